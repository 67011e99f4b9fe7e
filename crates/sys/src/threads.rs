//! The threads of a process: `/proc/PID/task` (proc(5)).

use std::fs::File;
use std::io;

use rustix::fs::Dir;

/// The list of one process's threads. Kept open for callers that ask often: opening it takes three times as long as
/// reading it.
#[derive(Debug)]
pub struct Threads {
    directory: Dir,
}

impl Threads {
    /// Those of `process`; an error when there is none.
    pub fn of(process: u32) -> io::Result<Self> {
        Ok(Self { directory: Dir::new(File::open(format!("/proc/{process}/task"))?)? })
    }

    /// Their numbers now. Some may be left out while others end.
    pub fn list(&mut self) -> io::Result<Vec<u32>> {
        self.directory.rewind();
        let mut threads = Vec::new();
        for entry in &mut self.directory {
            threads.extend(entry?.file_name().to_str().ok().and_then(|name| name.parse::<u32>().ok()));
        }
        Ok(threads)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_starts_and_ends_comes_and_goes() {
        let own = std::process::id();
        let mut threads = Threads::of(own).unwrap();
        assert!(threads.list().unwrap().contains(&own));
        let (tell, told) = std::sync::mpsc::channel();
        let (leave, until) = std::sync::mpsc::channel::<()>();
        let other = std::thread::spawn(move || {
            tell.send(rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs()).unwrap();
            let _ = until.recv();
        });
        let number = told.recv().unwrap();
        // Other tests' threads end meanwhile, and a listing may leave this one out.
        let mut wait_until = |is_there: bool| {
            let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
            while threads.list().unwrap().contains(&number) != is_there {
                assert!(std::time::Instant::now() < deadline, "the list does not change");
                std::thread::yield_now();
            }
        };
        wait_until(true);
        drop(leave);
        other.join().unwrap();
        wait_until(false);
        assert!(Threads::of(u32::MAX >> 1).is_err());
    }
}
