//! How threads of the pager wake one another: a flag, and an eventfd that is written only if its reader sleeps.
//!
//! Each thread looks at its bell at every turn, hundreds of times between two sleeps while it spins or an evictor
//! works. The fault thread rings for the eviction at every page beyond the watermark. None of these is to be a system
//! call.
//!
//! Invariant: the thread that rings after the flag was last cleared is seen, before the next sleep or by its end. A
//! descriptor that stays readable because it was written late ends one sleep too early.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use spillway_sys::event::EventFd;

/// See the module text. Any thread rings; one waits.
#[derive(Debug)]
pub struct Bell {
    has_rung: AtomicBool,
    sleeps: AtomicBool,
    event: EventFd,
}

impl Bell {
    /// One that has not rung.
    pub fn new() -> io::Result<Self> {
        Ok(Self { has_rung: AtomicBool::new(false), sleeps: AtomicBool::new(false), event: EventFd::new()? })
    }

    /// Wakes the thread that waits; one that does not sleep finds out at its next look.
    pub fn signal(&self) {
        self.has_rung.store(true, Ordering::SeqCst);
        if self.sleeps.swap(false, Ordering::SeqCst) {
            self.event.signal();
        }
    }

    /// Whether it has rung since it was last asked.
    pub fn clear(&self) -> bool {
        self.has_rung.load(Ordering::SeqCst) && self.has_rung.swap(false, Ordering::SeqCst)
    }

    /// Runs `sleep`, which waits for the descriptor among others; `None` if it has rung already.
    pub fn sleep<T>(&self, sleep: impl FnOnce() -> T) -> Option<T> {
        // Either this sees that it has rung, or the thread that rings sees that we sleep.
        self.sleeps.store(true, Ordering::SeqCst);
        let slept = (!self.has_rung.load(Ordering::SeqCst)).then(sleep);
        self.sleeps.store(false, Ordering::SeqCst);
        if slept.is_some() {
            self.event.clear();
        }
        slept
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;
    use std::time::{Duration, Instant};

    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    /// Sleeps for a minute at most. Whether it was woken.
    fn sleep(bell: &Bell) -> bool {
        let minute = Timespec { tv_sec: 60, tv_nsec: 0 };
        poll(&mut [PollFd::new(bell, PollFlags::IN)], Some(&minute)).unwrap() > 0
    }

    #[test]
    fn a_bell_that_has_rung_lets_no_thread_sleep() {
        let bell = Bell::new().unwrap();
        assert!(!bell.clear());
        bell.signal();
        bell.signal();
        assert_eq!(bell.sleep(|| panic!("it has rung")), None);
        assert!(bell.clear() && !bell.clear());
        let is_silent = bell.sleep(|| poll(&mut [PollFd::new(&bell, PollFlags::IN)], Some(&Timespec::default())));
        assert_eq!(is_silent, Some(Ok(0)), "nobody slept, so nothing was written");
    }

    #[test]
    fn a_sleeping_thread_is_woken_once() {
        let bell = Bell::new().unwrap();
        let woken = bell.sleep(|| {
            bell.signal();
            bell.signal();
            sleep(&bell)
        });
        assert_eq!(woken, Some(true));
        assert!(bell.clear());
        let again = bell.sleep(|| poll(&mut [PollFd::new(&bell, PollFlags::IN)], Some(&Timespec::default())));
        assert_eq!(again, Some(Ok(0)), "the descriptor was read");
    }

    #[test]
    fn no_ring_is_lost() {
        const ROUNDS: u64 = 2000;
        let (bell, answer) = (Bell::new().unwrap(), Bell::new().unwrap());
        let told = AtomicU64::new(0);
        let begun = Instant::now();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 1..=ROUNDS {
                    told.store(round, Ordering::Relaxed);
                    bell.signal();
                    while !answer.clear() {
                        answer.sleep(|| assert!(sleep(&answer), "round {round}"));
                    }
                }
            });
            for round in 1..=ROUNDS {
                while !bell.clear() {
                    bell.sleep(|| assert!(sleep(&bell), "round {round}"));
                }
                assert_eq!(told.load(Ordering::Relaxed), round);
                answer.signal();
            }
        });
        assert!(begun.elapsed() < Duration::from_secs(60), "nobody slept until the end of his patience");
    }
}
