//! How long a thread has run, and waited for a CPU: `/proc/PID/task/TID/schedstat` (the kernel's
//! `Documentation/scheduler/sched-stats.rst`). A kernel without scheduler statistics has no such file, or says 0 in it.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use crate::lease::open_unless_leased;

use crate::proc_text::words;

/// Longest text that is read: three numbers of at most 20 digits.
const TEXT_BYTES_MAX: usize = 64;

/// Where the kernel tells of one thread, open: a look is one system call.
#[derive(Debug)]
pub struct ThreadTimes {
    file: File,
}

/// One look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// The time it had a CPU; grows when the thread leaves its CPU, and at each tick.
    pub run: Duration,
    /// The time it was ready to run and had none.
    pub waited: Duration,
}

impl ThreadTimes {
    /// Of the calling thread.
    pub fn own() -> io::Result<Self> {
        Self::open("/proc/thread-self/schedstat")
    }

    /// Of a thread of a process; an error when there is none.
    pub fn of_thread(process: u32, thread: u32) -> io::Result<Self> {
        Self::open(&format!("/proc/{process}/task/{thread}/schedstat"))
    }

    fn open(path: &str) -> io::Result<Self> {
        Ok(Self { file: open_unless_leased(path)? })
    }

    /// As of now; an error when the thread has ended.
    pub fn read(&self) -> io::Result<Times> {
        let mut text = [0; TEXT_BYTES_MAX];
        let length = self.file.read_at(&mut text, 0)?;
        parse(&text[..length]).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "schedstat has no times in it"))
    }
}

/// The first two of its numbers, in nanoseconds.
fn parse(text: &[u8]) -> Option<Times> {
    let [run, waited] = words::first(text)?.map(Duration::from_nanos);
    Some(Times { run, waited })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_two_numbers_are_the_times() {
        let times = Times { run: Duration::from_nanos(12), waited: Duration::from_nanos(345) };
        assert_eq!(parse(b"12 345 6\n"), Some(times));
        let longest = format!("{0} {0} {0}\n", u64::MAX);
        assert!(longest.len() <= TEXT_BYTES_MAX && parse(longest.as_bytes()).is_some());
        for text in ["", "12", "12 x 6", "-1 2 3"] {
            assert_eq!(parse(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn time_on_a_cpu_grows_and_time_without_never_shrinks() {
        let Ok(own) = ThreadTimes::own() else { return crate::skipping::skip("schedstat of threads") };
        let before = own.read().unwrap();
        let begun = std::time::Instant::now();
        while own.read().unwrap().run == before.run {
            assert!(begun.elapsed() < Duration::from_secs(60), "its time does not grow");
        }
        assert!(own.read().unwrap().waited >= before.waited);
    }

    #[test]
    fn there_is_nothing_of_a_thread_that_is_none() {
        assert!(ThreadTimes::of_thread(std::process::id(), 0).is_err());
    }
}
