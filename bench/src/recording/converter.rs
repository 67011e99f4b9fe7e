//! Makes a trace of the tool's log, in memory that does not grow with the log.

use std::collections::HashMap;

use spillway_policy::prefetch::PageNumber;
use spillway_policy::trace::Recorder;

use super::anonymous::Anonymous;
use super::line::{Arguments, Line, Outcome, parse};
use crate::size::PAGE_SIZE_BYTES;
use crate::touches::TouchLog;

/// System calls that fill a buffer: the second argument is its address, the result is its length.
const FILLING: [&str; 3] = ["sys_read", "sys_pread64", "sys_recvfrom"];

/// System calls that take what is in a buffer.
const TAKING: [&str; 3] = ["sys_write", "sys_pwrite64", "sys_sendto"];

/// Others that are of interest.
const MAPPING: [&str; 4] = ["sys_mmap", "sys_munmap", "sys_mremap", "sys_brk"];

/// See the module text.
#[derive(Debug)]
pub struct Converter {
    anonymous: Anonymous,
    log: TouchLog,
    /// The process that runs.
    thread: u32,
    /// By thread: the system call that is under way.
    under_way: HashMap<u32, (&'static str, Arguments)>,
}

impl Converter {
    /// With room for a trace of `room_bytes`.
    pub fn new(room_bytes: usize) -> Self {
        Self { anonymous: Anonymous::default(), log: TouchLog::new(room_bytes), thread: 0, under_way: HashMap::new() }
    }

    /// Takes all whole lines of `text`; gives their length.
    pub fn take(&mut self, text: &[u8]) -> usize {
        let mut start = 0;
        while let Some(length) = text[start..].iter().position(|byte| *byte == b'\n') {
            self.line(parse(&text[start..start + length]));
            start += length + 1;
        }
        start
    }

    fn line(&mut self, line: Line<'_>) {
        match line {
            Line::Touch { address, bytes, write } => self.touch(address, bytes, write),
            Line::Thread(thread) => self.thread = thread,
            Line::Call { thread, name, arguments, result } => {
                let known = FILLING.into_iter().chain(TAKING).chain(MAPPING).find(|known| *known == name);
                self.under_way.remove(&thread);
                match (known, result) {
                    (Some(name), Some(result)) => self.ended(name, &arguments, result),
                    (Some(name), None) => {
                        self.under_way.insert(thread, (name, arguments));
                    }
                    (None, _) => {}
                }
            }
            Line::Ended { thread, result } => {
                if let Some((name, arguments)) = self.under_way.remove(&thread) {
                    self.ended(name, &arguments, result);
                }
            }
            Line::Other => {}
        }
    }

    fn ended(&mut self, name: &'static str, arguments: &Arguments, result: Outcome) {
        let Ok(result) = result else { return };
        if MAPPING.contains(&name) {
            self.anonymous.succeeded(name, arguments, result);
        } else if (1..=arguments[2]).contains(&result) {
            self.touch(arguments[1], result, FILLING.contains(&name));
        }
    }

    fn touch(&mut self, address: u64, bytes: u64, write: bool) {
        let Some(last) = address.checked_add(bytes - 1) else { return };
        for page in address / PAGE_SIZE_BYTES..=last / PAGE_SIZE_BYTES {
            if self.anonymous.holds(page) {
                self.log.touch(PageNumber(page), self.thread, write);
            } else {
                self.log.pass();
            }
        }
    }

    /// What was recorded.
    pub fn into_recorder(self) -> Recorder {
        self.log.into_recorder()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use spillway_policy::trace::{Event, Reader};

    use super::*;

    fn events(converter: Converter) -> Vec<Event> {
        let mut bytes = Vec::new();
        converter.into_recorder().write_to(&mut bytes).unwrap();
        Reader::new(&bytes).unwrap().map(Result::unwrap).collect()
    }

    const LOG: &[u8] = b"==1== Lackey, an example Valgrind tool
--1--   SCHED[1]:  acquired lock (thread_wrapper(starting new thread))
I  0401ca90,3
 S 1ffefff750,8
SYSCALL[1,1](9) sys_mmap ( 0x0, 16384, 3, 34, 4294967295, 0 ) --> [pre-success] Success(0x4000000)
 L 04000ffc,8
SYSCALL[1,1](0) sys_read ( 4, 0x4002000, 8192 ) --> [async] ...
--1--   SCHED[1]: releasing lock (VG_(client_syscall)[async]) -> VgTs_WaitSys
--1--   SCHED[2]:  acquired lock (VG_(client_syscall)[async])
 M 04000ff8,8
SYSCALL[1,1](0) ... [async] --> Success(0x1001)
SYSCALL[1,2](1) sys_write ( 4, 0x4003000, 8192 ) --> [async] ...
SYSCALL[1,2](1) ... [async] --> Failure(0x20)
SYSCALL[1,2](11) sys_munmap ( 0x4000000, 16384 )[sync] --> Success(0x0)
 L 04000ff8,8
";

    #[test]
    fn touches_of_anonymous_memory_are_recorded() {
        let mut converter = Converter::new(10_000);
        assert_eq!(converter.take(LOG), LOG.len());
        let event = |page: u64, thread, write, time| Event { page: PageNumber(0x4000 + page), thread, write, time };
        let expected = [
            event(0, 1, false, 2),
            event(1, 1, false, 3),
            event(0, 2, true, 4),
            event(2, 2, true, 5),
            event(3, 2, true, 6),
        ];
        assert_eq!(events(converter), expected);
    }

    #[test]
    fn a_result_beyond_the_buffer_is_no_touch() {
        let mut converter = Converter::new(1000);
        converter.take(b"SYSCALL[1,1](12) sys_brk ( 0x0 ) --> [pre-success] Success(0x1000)\n");
        converter.take(b"SYSCALL[1,1](12) sys_brk ( 0x9000 ) --> [pre-success] Success(0x9000)\n");
        converter.take(b"SYSCALL[1,1](0) sys_read ( 4, 0x2000, 10 )[sync] --> Success(0xffffffff)\n");
        assert_eq!(events(converter), []);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn pieces_of_any_length_make_the_same_trace(cuts in proptest::collection::vec(1_usize..200, 1..20)) {
            let mut whole = Converter::new(10_000);
            whole.take(LOG);
            let (mut converter, mut held, mut cuts) = (Converter::new(10_000), Vec::new(), cuts.into_iter().cycle());
            let mut rest = LOG;
            while !rest.is_empty() {
                let (piece, after) = rest.split_at(cuts.next().unwrap().min(rest.len()));
                held.extend_from_slice(piece);
                let taken = converter.take(&held);
                held.drain(..taken);
                rest = after;
            }
            prop_assert_eq!(events(converter), events(whole));
        }
    }
}
