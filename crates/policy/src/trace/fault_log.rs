//! Faults of programs as events of a trace: what a pager, or samples of the kernel, tell of each.
//!
//! Threads and address spaces get small numbers in the order in which they come, so an event stays small and a trace
//! tells no number of the machine. A time that goes back, as of two fault threads or two CPUs, counts as the latest so
//! far.
//!
//! [`FaultLog::note`] takes no memory but for a thread or an address space that is new.

use std::collections::HashMap;
use std::io;

use super::{Event, Kind, Recorder, page_in};
use crate::prefetch::PageNumber;

/// Threads and address spaces for which there is room at once.
const NUMBERS: usize = 1024;

/// One fault, in numbers of the recording side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotedFault {
    /// The address space, or the process.
    pub space: u32,
    /// The thread.
    pub thread: u32,
    /// The page, by its number in the address space.
    pub page: PageNumber,
    /// Whether it is written.
    pub write: bool,
}

/// What a log came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogCounts {
    /// Faults in the trace.
    pub recorded: u64,
    /// Faults after the last one in it, for which there was no room.
    pub without_room: u64,
    /// Faults that did not come here: the kernel had no room for their samples.
    pub missed: u64,
    /// Threads that faulted.
    pub threads: u64,
    /// Address spaces, or processes, that they faulted in.
    pub spaces: u64,
    /// Microseconds to the last fault in it.
    pub last_time_us: u64,
}

/// See the module text.
#[derive(Debug)]
pub struct FaultLog {
    recorder: Recorder,
    threads: HashMap<(u32, u32), u32>,
    spaces: HashMap<u32, u32>,
    missed: u64,
    latest_us: u64,
}

impl FaultLog {
    /// With room for `room_bytes` of events, taken now; untouched memory is address space only.
    pub fn new(kind: Kind, room_bytes: usize) -> Self {
        let (threads, spaces) = (HashMap::with_capacity(NUMBERS), HashMap::with_capacity(NUMBERS));
        Self { recorder: Recorder::new(kind, room_bytes), threads, spaces, missed: 0, latest_us: 0 }
    }

    /// Records a fault, `time_us` after the recording began.
    pub fn note(&mut self, fault: NotedFault, time_us: u64) {
        let space = number_of(&mut self.spaces, fault.space);
        let thread = number_of(&mut self.threads, (fault.space, fault.thread));
        self.latest_us = self.latest_us.max(time_us);
        match page_in(space, fault.page) {
            Some(page) => {
                self.recorder.record(Event { page, thread, write: fault.write, time: self.latest_us });
            }
            // More address spaces, or a larger one, than a trace can tell.
            None => self.missed(1),
        }
    }

    /// `count` faults were not told.
    pub fn missed(&mut self, count: u64) {
        self.missed += count;
        self.recorder.missed(count);
    }

    /// What it came to so far.
    pub fn counts(&self) -> LogCounts {
        LogCounts {
            recorded: self.recorder.events(),
            without_room: self.recorder.lost(),
            missed: self.missed,
            threads: self.threads.len() as u64,
            spaces: self.spaces.len() as u64,
            last_time_us: self.recorder.last_time(),
        }
    }

    /// Writes the trace.
    pub fn write_to(&self, target: &mut dyn io::Write) -> io::Result<()> {
        self.recorder.write_to(target)
    }
}

/// The number of `key`, given now if it had none.
fn number_of<Key: std::hash::Hash + Eq>(numbers: &mut HashMap<Key, u32>, key: Key) -> u32 {
    let next = numbers.len() as u32;
    *numbers.entry(key).or_insert(next)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::{Reader, space_of};

    fn fault(space: u32, thread: u32, page: u64) -> NotedFault {
        NotedFault { space, thread, page: PageNumber(page), write: false }
    }

    #[test]
    fn threads_and_spaces_get_small_numbers_and_times_go_on() {
        let mut log = FaultLog::new(Kind::MajorFaults, 1000);
        log.note(fault(900, 31, 5), 10);
        log.note(fault(700, 31, 5), 7);
        log.note(NotedFault { write: true, ..fault(900, 32, 6) }, 12);
        let mut bytes = Vec::new();
        log.write_to(&mut bytes).unwrap();
        let events: Vec<Event> = Reader::new(&bytes).unwrap().map(Result::unwrap).collect();
        let told: Vec<_> = events.iter().map(|event| (space_of(event.page).0, event.thread, event.time)).collect();
        assert_eq!(told, [(0, 0, 10), (1, 1, 10), (0, 2, 12)]);
        assert_eq!(space_of(events[1].page).1, PageNumber(5));
        assert!(events[2].write && !events[0].write);
        let counts = LogCounts { recorded: 3, threads: 3, spaces: 2, last_time_us: 12, ..LogCounts::default() };
        assert_eq!(log.counts(), counts);
    }

    #[test]
    fn what_is_lost_is_told_by_its_cause() {
        let mut log = FaultLog::new(Kind::Faults, 4);
        log.missed(3);
        (0..10).for_each(|page| log.note(fault(1, 1, page), 0));
        log.note(fault(1, 1, u64::MAX >> 12), 0);
        let counts = log.counts();
        assert_eq!((counts.recorded, counts.without_room, counts.missed), (4, 6, 4));
        let mut bytes = Vec::new();
        log.write_to(&mut bytes).unwrap();
        assert_eq!(Reader::new(&bytes).unwrap().lost(), 10);
    }
}
