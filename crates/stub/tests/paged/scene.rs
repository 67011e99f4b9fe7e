//! What most tests begin with: a pager and a program under it.

use std::ops::Range;
use std::process::Command;

use spillway_stub::protocol::outcome;
use spillway_sys::call_notices::CallNotices;

use crate::support::{Conversation, PAGE, Paged, TinyPager, compile};

/// More than half a batch, so that two thirds of the tests' evictions do not end with a batch.
pub(crate) const PAGES: u64 = 300;

/// Pages of a program with huge pages: some of these are of 2 MiB, wherever they begin.
pub(crate) const HUGE_PAGES: u64 = 2048;

/// A pager, and a program whose pages at `memory` are registered.
pub(crate) struct Scene {
    pub(crate) pager: TinyPager,
    pub(crate) conversation: Conversation,
    pub(crate) paged: Paged,
    pub(crate) memory: u64,
    pub(crate) notices: Option<CallNotices>,
}

impl Scene {
    pub(crate) fn new(start_evictor_early: bool) -> Self {
        Self::with(TinyPager::new(), PAGES, &[], |pager| (pager.greet(start_evictor_early), None))
    }

    /// With huge pages, where the kernel has them.
    pub(crate) fn with_huge_pages() -> Self {
        Self::with(TinyPager::new(), HUGE_PAGES, &["huge"], |pager| (pager.greet(true), None))
    }

    /// With a pager to whom the kernel tells nothing about forks.
    pub(crate) fn without_rights(start_evictor_early: bool) -> Self {
        Self::with(TinyPager::without_rights(), PAGES, &[], |pager| {
            let (paged, notices) = pager.greet_without_rights(start_evictor_early);
            (paged, Some(notices))
        })
    }

    fn with(
        mut pager: TinyPager,
        pages: u64,
        arguments: &[&str],
        greet: impl FnOnce(&mut TinyPager) -> (Paged, Option<CallNotices>),
    ) -> Self {
        let mut command = Command::new(compile(pager.directory.path()));
        command.arg(pages.to_string()).args(arguments);
        let conversation = pager.start(command);
        let (mut paged, notices) = greet(&mut pager);
        assert_eq!(paged.places.process, conversation.pid());
        let memory = paged.hear(&conversation, "memory");
        paged.register(memory, pages);
        Self { pager, conversation, paged, memory, notices }
    }

    pub(crate) fn pages(&self, range: Range<u64>) -> Vec<u64> {
        range.map(|page| self.memory + page * PAGE).collect()
    }

    /// Evicts pages, each of which is expected to leave.
    pub(crate) fn evict(&mut self, range: Range<u64>) {
        let pages = self.pages(range);
        assert_eq!(self.paged.evict(&pages), vec![outcome::DONE; pages.len()]);
    }

    pub(crate) fn ask(&mut self, command: &str, answer: &str) -> u64 {
        self.conversation.tell(command);
        self.paged.hear(&self.conversation, answer)
    }

    pub(crate) fn start_late(&mut self) {
        let spinning = self.ask("spin", "spinning");
        self.pager.start_late(&mut self.paged, spinning as u32);
    }

    pub(crate) fn end(mut self) {
        self.conversation.tell("exit");
        assert!(self.paged.serve_to_end(&mut self.conversation).success());
    }
}
