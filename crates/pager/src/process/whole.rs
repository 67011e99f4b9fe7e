//! Programs whose memory is whole: all of it is there, and none of it is registered, so that every call of the kernel
//! finds it as without the pager.
//!
//! That is so while a descriptor of `/proc/PID/pagemap` or `/proc/PID/mem` of the program is open (`openings`), and
//! while another process traces it that said so (`ptrace`, see `calls`). Its pages count in the budget, and those of
//! other programs leave in their place.

use spillway_sys::lease::read_unless_leased;
use std::sync::Arc;
use std::time::{Duration, Instant};

use spillway_sys::proc_text::fields::number_of;

use crate::address_space::AddressSpace;
use crate::fork::page_in::{ALL, ForkPageIn, PageInProgress};
use crate::limits::{WHOLE_PAUSE_MAX, WHOLE_PAUSE_MIN};
use crate::process::openings::Openings;
use crate::process::proc_files::room_bytes;
use crate::process::{Survey, is_memory_gone};

/// Of one program; see the module text.
pub(super) struct Whole {
    /// Brings its pages back; none once they are there.
    page_in: Option<ForkPageIn>,
    /// When it is looked whether it still has to be whole, and how long after that again.
    looks_at: Instant,
    pause: Duration,
}

impl Whole {
    fn new(page_in: Option<ForkPageIn>, now: Instant) -> Self {
        Self { page_in, looks_at: now + WHOLE_PAUSE_MIN, pause: WHOLE_PAUSE_MIN }
    }
}

impl Survey {
    /// Whether pages of a program come back.
    pub(super) fn is_making_whole(&self) -> bool {
        self.tracked.iter().any(|tracked| tracked.whole.as_ref().is_some_and(|whole| whole.page_in.is_some()))
    }

    /// Makes a program whole whose files are being opened.
    pub(super) fn begin_whole(&mut self, index: usize, now: Instant) {
        let tracked = &mut self.tracked[index];
        let Some(process) = tracked.process.as_ref().filter(|_| !is_memory_gone(tracked)) else {
            return tracked.openings.release();
        };
        let number = process.number();
        match &tracked.whole {
            Some(whole) if whole.page_in.is_none() => return tracked.openings.release(),
            Some(_) => return,
            None => {}
        }
        let name = process.name().unwrap_or_default();
        self.tell_of_opening(&format!("process {number} ({name})"));
        let space = Arc::clone(&self.tracked[index].space);
        let objects = self.shared.objects.within(&[space.id], &ALL);
        self.make_local(&objects, &format!("process {number} has its memory read by files of /proc"), now);
        let page_in = ForkPageIn::begin(&self.shared, [vec![space], objects].concat(), &ALL, now);
        self.tracked[index].whole = Some(Whole::new(Some(page_in), now));
    }

    /// Leaves the memory of a program that is there to the kernel. False: not now.
    pub(super) fn become_whole(&mut self, space: &AddressSpace, now: Instant) -> bool {
        let Some(index) = self.tracked.iter().position(|tracked| tracked.space.id == space.id) else { return true };
        if is_memory_gone(&self.tracked[index]) {
            self.tracked[index].openings.release();
            return true;
        }
        // What the program's own calls left to it stays so after that.
        let left_alone = self.tracked[index].left_alone.clone();
        if !self.leave_alone(space, &ALL) {
            return false;
        }
        let tracked = &mut self.tracked[index];
        tracked.left_alone = left_alone;
        tracked.whole = Some(Whole::new(None, now));
        tracked.openings.release();
        true
    }

    /// Goes on with programs that become whole, and lets pages of those leave again that need not be.
    pub(super) fn follow_wholes(&mut self, now: Instant) {
        for index in 0..self.tracked.len() {
            let tracked = &mut self.tracked[index];
            let Some(whole) = &mut tracked.whole else { continue };
            let Some(page_in) = &mut whole.page_in else {
                self.end_whole(index, now);
                continue;
            };
            let space = Arc::clone(&tracked.space);
            match page_in.look(now, &room_bytes) {
                PageInProgress::NotYet => {}
                PageInProgress::All => drop(self.become_whole(&space, now)),
                PageInProgress::Never(reason) => {
                    let process = tracked.places.process;
                    tracked.whole = None;
                    tracked.openings.release();
                    self.shared.fail(format!(
                        "process {process}: not all of its memory can come back, because {reason}; what reads it by /proc/{process}/mem fails, and /proc/{process}/pagemap does not show what is away"
                    ));
                }
            }
        }
    }

    fn end_whole(&mut self, index: usize, now: Instant) {
        let tracked = &mut self.tracked[index];
        let (Some(whole), Some(process)) = (&mut tracked.whole, &tracked.process) else { return };
        if now < whole.looks_at {
            return;
        }
        let (number, space) = (process.number(), tracked.space.id);
        let threads = process.threads().unwrap_or_default();
        whole.looks_at = now + whole.pause;
        whole.pause = (whole.pause * 2).min(WHOLE_PAUSE_MAX);
        if self.calls.is_tracing(space) || threads.iter().any(|thread| is_traced(number, *thread)) {
            return;
        }
        let tracked = &mut self.tracked[index];
        // What is opened from now on waits; what was open is seen.
        tracked.openings = Openings::default();
        let is_watched = tracked.process.as_ref().is_some_and(|process| tracked.openings.watch(process).is_ok());
        let is_over = is_watched && !self.is_open_anywhere(number, now);
        let tracked = &mut self.tracked[index];
        if is_over {
            tracked.whole = None;
        } else {
            tracked.openings.release();
        }
    }
}

/// Whether another process than this traces a thread.
fn is_traced(process: u32, thread: u32) -> bool {
    let status = read_unless_leased(format!("/proc/{process}/task/{thread}/status")).unwrap_or_default();
    let tracer = number_of(&status, "TracerPid");
    tracer.is_some_and(|tracer| tracer != 0 && tracer != u64::from(std::process::id()))
}
