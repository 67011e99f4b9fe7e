//! Looks for blocks of programs that are whole, so that they can be given back as huge pages
//! ([`crate::huge_pages`]).

use std::fs;
use std::ops::Range;
use std::time::Instant;

use spillway_fabric::units::PAGE_SIZE_BYTES;
use spillway_stub::protocol::EvictorState;
use spillway_stub::seat::Seat;
use spillway_sys::pagemap::{Categories, Query, Region};

use crate::huge_pages::blocks::{Block, Look};
use crate::huge_pages::eligible::{HugeSetting, eligible};
use crate::limits::{
    HUGE_FLAGS_INTERVAL, HUGE_LOOK_BLOCKS, HUGE_LOOK_INTERVAL, HUGE_LOOK_REST_TIMES, HUGE_PAGE_BYTES, HUGE_PAGE_PAGES,
};
use crate::page_table::Wholeness;
use crate::page_table::ranges::Ranges;
use crate::page_table::virtual_page::VirtualPage;
use crate::process::proc_files::{Process, smaps};
use crate::process::{Survey, TrackedProcess};
use crate::threads::lock::lock;

/// Where the kernel says which mappings get huge pages.
const SETTINGS: &str = "/sys/kernel/mm/transparent_hugepage";

/// When something is done again that takes its time: at an interval, and after a rest of many times what it took.
#[derive(Clone, Copy, Debug, Default)]
struct Rest {
    due: Option<Instant>,
}

impl Rest {
    fn is_due(self, now: Instant) -> bool {
        self.due.is_none_or(|due| due <= now)
    }

    fn ended(&mut self, begin: Instant, end: Instant, interval: std::time::Duration) {
        let took = end.saturating_duration_since(begin);
        self.due = Some(end + interval.max(took.saturating_mul(HUGE_LOOK_REST_TIMES)));
    }
}

/// Of the survey: when it looks for whole blocks.
#[derive(Debug, Default)]
pub(super) struct HugePageLooks {
    is_wanted: bool,
    look: Rest,
}

/// Of one program: where it may have huge pages.
#[derive(Debug, Default)]
pub(super) struct HugePagesOf {
    eligible: Ranges,
    flags: Rest,
}

impl HugePageLooks {
    pub(super) fn new(is_wanted: bool) -> Self {
        Self { is_wanted, look: Rest::default() }
    }
}

impl Survey {
    /// Tells the eviction thread of blocks that are whole, and of those that are no huge pages any more.
    pub(super) fn look_for_whole_blocks(&mut self, now: Instant) {
        if !self.huge_pages.is_wanted || !self.huge_pages.look.is_due(now) {
            return;
        }
        let setting = setting();
        let mut tracked = std::mem::take(&mut self.tracked);
        let mut has_found = false;
        for one in &mut tracked {
            if one.seat.as_ref().map(Seat::state) == Some(EvictorState::Running) {
                look_for_flags(one, setting, now);
                has_found |= self.look_at_blocks(one, now);
            }
        }
        self.tracked = tracked;
        self.huge_pages.look.ended(now, Instant::now(), HUGE_LOOK_INTERVAL);
        if has_found {
            self.shared.eviction.signal();
        }
    }

    /// Whether any block is whole.
    fn look_at_blocks(&mut self, tracked: &TrackedProcess, now: Instant) -> bool {
        let Some(process) = &tracked.process else { return false };
        let eligible = &tracked.huge_pages.eligible;
        let space = tracked.space.id;
        let is_eligible = |first: VirtualPage| eligible.contain(&(first.address()..first.address() + HUGE_PAGE_BYTES));
        lock(&self.shared.huge_blocks).keep(space, is_eligible);
        let mut has_found = false;
        for range in eligible.iter() {
            for start in range.clone().step_by(HUGE_LOOK_BLOCKS * HUGE_PAGE_BYTES as usize) {
                let part = start..range.end.min(start + HUGE_LOOK_BLOCKS as u64 * HUGE_PAGE_BYTES);
                let seen = self.seen(tracked, process, part);
                let blocks = &mut *lock(&self.shared.huge_blocks);
                for (first, look) in seen {
                    let is_split = blocks.looked(Block { space, first }, look, now);
                    self.shared.counters.huge_pages_split.add(is_split.into());
                    has_found |= matches!(look, Look::Whole { .. });
                }
            }
        }
        has_found
    }

    /// What the blocks of `part` are, as far as it matters.
    fn seen(&mut self, tracked: &TrackedProcess, process: &Process, part: Range<u64>) -> Vec<(VirtualPage, Look)> {
        let space = tracked.space.id;
        let now = Instant::now();
        let state = tracked.space.lock();
        let firsts = part.clone().step_by(HUGE_PAGE_BYTES as usize).map(VirtualPage::at);
        let known: Vec<(VirtualPage, Wholeness)> =
            firsts.map(|first| (first, state.page_table.wholeness(first))).collect();
        drop(state);
        let huge = huge_ranges(process, part, &mut self.regions);
        let looks = known.into_iter().map(|(first, known)| {
            let range = first.address()..first.address() + HUGE_PAGE_BYTES;
            if known != Wholeness::Broken && huge.contain(&range) {
                return (first, Look::Huge);
            }
            let is_worth =
                known != Wholeness::Broken && lock(&self.shared.huge_blocks).wants_look(Block { space, first }, now);
            (first, if is_worth { look_at(process, first) } else { Look::Broken })
        });
        looks.collect()
    }
}

/// By the kernel's page table; what is known here may be old.
fn look_at(process: &Process, first: VirtualPage) -> Look {
    let number = first.address() / PAGE_SIZE_BYTES as u64;
    match process.pagemap.read_private(number, HUGE_PAGE_PAGES as usize) {
        Ok(found) if found.present as u64 == HUGE_PAGE_PAGES => Look::Whole { protected: found.protected > 0 },
        _ => Look::Broken,
    }
}

/// The huge pages in `range`.
fn huge_ranges(process: &Process, range: Range<u64>, regions: &mut [Region]) -> Ranges {
    let query = Query { all_of: Categories::HUGE, report: Categories::HUGE, ..Query::default() };
    let mut found = Ranges::default();
    let mut start = range.start;
    while start < range.end {
        // One that has ended has none.
        let Ok(scan) = process.pagemap.scan(start..range.end, &query, regions) else { break };
        regions[..scan.regions].iter().for_each(|region| found.insert(region.start..region.end));
        start = scan.end.max(start + PAGE_SIZE_BYTES as u64);
    }
    found
}

fn setting() -> HugeSetting {
    let read = |name: &str| fs::read_to_string(format!("{SETTINGS}/{name}"));
    let of_size = read("hugepages-2048kB/enabled").ok();
    read("enabled").map_or(HugeSetting::Never, |all| HugeSetting::parse(&all, of_size.as_deref()))
}

fn look_for_flags(tracked: &mut TrackedProcess, setting: HugeSetting, now: Instant) {
    let Some(process) = tracked.process.as_ref().filter(|_| tracked.huge_pages.flags.is_due(now)) else { return };
    let begin = Instant::now();
    let text = if setting == HugeSetting::Never { Ok(Vec::new()) } else { smaps(process.number()) };
    tracked.huge_pages.eligible = eligible(&text.unwrap_or_default(), setting);
    tracked.huge_pages.flags.ended(begin, Instant::now(), HUGE_FLAGS_INTERVAL);
}
