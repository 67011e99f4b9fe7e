//! Records which pages a workload touches, at the source: a workload tells its [`Probe`] what it reads and writes.
//!
//! A measured run has the probe [`Silent`], which the compiler removes. A traced run has a [`Recording`], which keeps a
//! touch unless its page is one of the last [`RECENT_PAGES`] different ones: every memory that is worth replaying holds
//! those, so leaving them out changes results by little (stack deletion, Smith 1977) and makes a trace a hundred times
//! smaller. A first write to a recent page is kept, as it makes the page dirty.
//!
//! Pages are those of the process's own addresses, so neighbours are neighbours; which ones they are differs from run
//! to run. What the library does inside (sorting the bodies of Barnes-Hut, growing a vector) is not seen.

use std::sync::Mutex;

use spillway_policy::prefetch::PageNumber;
use spillway_policy::trace::{Event, Kind, Recorder};

use crate::size::PAGE_SIZE_BYTES;

/// A page that is among so many that were touched last is not recorded again. A thirtieth of the smallest memory
/// that traces are replayed with.
pub const RECENT_PAGES: usize = 32;

/// Is told what a program touches. A copy is handed to each part of it.
pub trait Probe: Copy + Send + Sync + std::fmt::Debug {
    /// All of `range`, bytes of the program's memory, is touched.
    fn touch(self, start: usize, length_bytes: usize, write: bool);

    /// `what` is read.
    fn read<Any>(self, what: &Any) {
        self.touch(std::ptr::from_ref(what).addr(), size_of::<Any>(), false);
    }

    /// `what` is written.
    fn write<Any>(self, what: &Any) {
        self.touch(std::ptr::from_ref(what).addr(), size_of::<Any>(), true);
    }

    /// All of `what` is read, from its start to its end.
    fn read_all<Any>(self, what: &[Any]) {
        self.touch(what.as_ptr().addr(), size_of_val(what), false);
    }

    /// All of `what` is written, from its start to its end.
    fn write_all<Any>(self, what: &[Any]) {
        self.touch(what.as_ptr().addr(), size_of_val(what), true);
    }
}

/// Does nothing, in no time.
#[derive(Clone, Copy, Debug)]
pub struct Silent;

impl Probe for Silent {
    #[inline(always)]
    fn touch(self, _start: usize, _length_bytes: usize, _write: bool) {}
}

/// Records into a [`TouchLog`].
#[derive(Clone, Copy, Debug)]
pub struct Recording<'log>(pub &'log Mutex<TouchLog>);

impl Probe for Recording<'_> {
    fn touch(self, start: usize, length_bytes: usize, write: bool) {
        let mut log = self.0.lock().expect("nobody panics while recording");
        let page_size = PAGE_SIZE_BYTES as usize;
        let last = (start + length_bytes.max(1) - 1) / page_size;
        (start / page_size..=last).for_each(|page| log.touch(PageNumber(page as u64), 0, write));
    }
}

/// The touches so far. Which pages were touched last is one list for all threads; traces of workloads are of one.
#[derive(Debug)]
pub struct TouchLog {
    recorder: Recorder,
    /// The last pages that were touched and whether a write to them is recorded, the latest first.
    recent: [(PageNumber, bool); RECENT_PAGES],
    touches: u64,
}

impl TouchLog {
    /// With room for a trace of `room_bytes`.
    pub fn new(room_bytes: usize) -> Self {
        let recorder = Recorder::new(Kind::Touches, room_bytes);
        Self { recorder, recent: [(PageNumber(u64::MAX), true); RECENT_PAGES], touches: 0 }
    }

    /// `thread` touches `page`.
    pub fn touch(&mut self, page: PageNumber, thread: u32, write: bool) {
        self.touches += 1;
        let (latest, written) = self.recent[0];
        if latest == page && (written || !write) {
            return;
        }
        let known = self.recent.iter().position(|(recent, _)| *recent == page);
        let written = known.is_some_and(|index| self.recent[index].1);
        let place = known.unwrap_or(RECENT_PAGES - 1);
        self.recent.copy_within(..place, 1);
        self.recent[0] = (page, written || write);
        if known.is_none() || (write && !written) {
            self.recorder.record(Event { page, thread, write, time: self.touches });
        }
    }

    /// Memory was touched that no trace is made of: time goes on.
    pub fn pass(&mut self) {
        self.touches += 1;
    }

    /// What was recorded.
    pub fn into_recorder(self) -> Recorder {
        self.recorder
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use spillway_policy::trace::Reader;

    use super::*;

    /// Pages and writes that are recorded of touches.
    fn recorded(touches: &[(u64, bool)]) -> Vec<(u64, bool)> {
        let mut log = TouchLog::new(100_000);
        touches.iter().for_each(|(page, write)| log.touch(PageNumber(*page), 0, *write));
        let mut bytes = Vec::new();
        log.into_recorder().write_to(&mut bytes).unwrap();
        Reader::new(&bytes).unwrap().map(|event| event.map(|event| (event.page.0, event.write)).unwrap()).collect()
    }

    #[test]
    fn recent_pages_are_left_out_and_first_writes_are_not() {
        let touches = [(1, false), (1, false), (2, false), (1, false), (1, true), (1, true), (1, false)];
        assert_eq!(recorded(&touches), [(1, false), (2, false), (1, true)]);
    }

    #[test]
    fn a_page_that_was_not_touched_for_long_is_recorded_again() {
        let round = 0..RECENT_PAGES as u64 + 1;
        let twice: Vec<_> = round.clone().chain(round).map(|page| (page, false)).collect();
        assert_eq!(recorded(&twice), twice);
    }

    #[test]
    fn ranges_touch_each_of_their_pages() {
        let log = Mutex::new(TouchLog::new(1000));
        let page_size = PAGE_SIZE_BYTES as usize;
        Recording(&log).touch(page_size - 1, 2, true);
        Recording(&log).touch(5 * page_size, 3 * page_size, false);
        Recording(&log).touch(9 * page_size, 0, false);
        Silent.touch(100 * page_size, 1, true);
        assert_eq!(log.into_inner().unwrap().into_recorder().events(), 6);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn only_touches_of_recent_pages_are_left_out(
            touches in proptest::collection::vec((0_u64..40, any::<bool>()), 0..400)
        ) {
            let mut left = recorded(&touches).into_iter().peekable();
            let mut recent: Vec<u64> = Vec::new();
            for (page, write) in touches {
                if left.peek() == Some(&(page, write)) {
                    left.next();
                } else {
                    prop_assert!(recent.contains(&page), "page {} was not touched for long", page);
                }
                recent.retain(|held| *held != page);
                recent.push(page);
                recent.drain(..recent.len().saturating_sub(RECENT_PAGES));
            }
            prop_assert!(left.next().is_none(), "nothing else is recorded");
        }
    }
}
