//! A donor's bandwidth, shared by the machines that borrow: the lock and the clock around the
//! [fair queue](super::fair_queue).
//!
//! A connection's thread asks before it moves pages, and says afterwards how many it moved. With one machine that is a
//! look at one number. With several, it takes one lock that no thread holds for longer than a look at all machines. A
//! thread whose machine is ahead of its share sleeps here until another one moved; it holds no memory of a slab then.

use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use super::fair_queue::{FairQueue, Seat, Verdict};
use super::weights::{Weights, one_machine};
use crate::limits::{SHARE_TURN_BYTES, SOCKET_BUFFER_BYTES, STOP_CHECK_INTERVAL};

/// See the module text.
#[derive(Debug)]
pub struct Shares {
    queue: Mutex<FairQueue>,
    /// Some holder moved, or has no work any more.
    moved: Condvar,
    /// Threads that sleep here.
    held: AtomicUsize,
    /// Machines with data connections.
    machines: AtomicUsize,
}

/// The part of one data connection; given back on drop.
#[derive(Debug)]
pub struct Share<'a> {
    shares: &'a Shares,
    seat: Seat,
    is_busy: bool,
    /// Bytes that came before it was known to have work.
    unpaid_bytes: usize,
}

/// What a connection may do in its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Allowance {
    /// Whole answers are sent until they come to so many bytes.
    pub(super) bytes: usize,
    /// The kernel may keep so much of what is sent and not acknowledged.
    pub(super) in_flight_bytes: usize,
}

impl Shares {
    /// Shares by these weights.
    pub fn new(weights: Weights) -> Self {
        let queue = Mutex::new(FairQueue::new(weights));
        Self { queue, moved: Condvar::new(), held: AtomicUsize::new(0), machines: AtomicUsize::new(0) }
    }

    /// A machine that is behind is waited for at least so long. For tests: on a busy host a thread can rest for longer
    /// than the [usual time](crate::limits::SHARE_PATIENCE_MAX).
    pub fn set_patience(&self, patience: Duration) {
        self.lock().set_patience(patience);
    }

    /// Other weights from here on, for connections that there are, too.
    pub fn set_weights(&self, weights: Weights) {
        self.lock().set_weights(weights);
        self.moved.notify_all();
    }

    /// The weight of the machine at `address`.
    pub fn weight_of(&self, address: IpAddr) -> u32 {
        self.lock().weight_of(address)
    }

    /// A data connection of the machine at `address`. Those of the same machine have one part together.
    pub fn join(&self, address: IpAddr) -> Share<'_> {
        let mut queue = self.lock();
        let seat = queue.join(one_machine(address));
        self.machines.store(queue.machine_count(), Ordering::Relaxed);
        Share { shares: self, seat, is_busy: false, unpaid_bytes: 0 }
    }

    fn lock(&self) -> MutexGuard<'_, FairQueue> {
        self.queue.lock().expect("no thread panics with the shares locked")
    }

    fn tell_held(&self) {
        if self.held.load(Ordering::Relaxed) > 0 {
            self.moved.notify_all();
        }
    }
}

impl Share<'_> {
    fn has_rivals(&self) -> bool {
        self.shares.machines.load(Ordering::Relaxed) > 1
    }

    /// The connection has work. What it may do now; `None` after a while in which it was not its turn.
    pub(super) fn ask(&mut self) -> Option<Allowance> {
        let unpaid_bytes = std::mem::take(&mut self.unpaid_bytes);
        if !self.has_rivals() && !self.is_busy {
            return Some(Allowance { bytes: usize::MAX, in_flight_bytes: SOCKET_BUFFER_BYTES });
        }
        let mut queue = self.shares.lock();
        let mut now = Instant::now();
        if !self.is_busy {
            queue.begin(self.seat, now);
            queue.charge(self.seat, unpaid_bytes);
            self.is_busy = true;
        }
        let deadline = now + STOP_CHECK_INTERVAL;
        while let Verdict::Wait(at_most) = queue.ask(self.seat, now) {
            if now >= deadline {
                return None;
            }
            self.shares.held.fetch_add(1, Ordering::Relaxed);
            let waited = self.shares.moved.wait_timeout(queue, at_most.min(deadline - now));
            queue = waited.expect("no thread panics with the shares locked").0;
            self.shares.held.fetch_sub(1, Ordering::Relaxed);
            now = Instant::now();
        }
        Some(Allowance { bytes: SHARE_TURN_BYTES, in_flight_bytes: queue.in_flight_bytes_max(self.seat, now) })
    }

    /// The connection moved `bytes`, and has more work or not.
    pub(super) fn moved(&mut self, bytes: usize, has_work: bool) {
        if !self.is_busy {
            self.unpaid_bytes += bytes;
            return;
        }
        if bytes == 0 && has_work {
            return;
        }
        let mut queue = self.shares.lock();
        queue.charge(self.seat, bytes);
        if !has_work {
            queue.rest(self.seat, Instant::now());
            self.is_busy = false;
        }
        drop(queue);
        self.shares.tell_held();
    }
}

impl Drop for Share<'_> {
    fn drop(&mut self) {
        let mut queue = self.shares.lock();
        queue.leave(self.seat, self.is_busy, Instant::now());
        self.shares.machines.store(queue.machine_count(), Ordering::Relaxed);
        drop(queue);
        self.shares.tell_held();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    fn machine(number: u8) -> IpAddr {
        [10, 0, 0, number].into()
    }

    #[test]
    fn a_machine_alone_is_given_everything_without_a_lock() {
        let shares = Shares::new(Weights::default());
        let mut share = shares.join(machine(1));
        let _of_same_machine = shares.join(machine(1));
        let locked = shares.lock();
        let all = Allowance { bytes: usize::MAX, in_flight_bytes: SOCKET_BUFFER_BYTES };
        assert_eq!(share.ask(), Some(all));
        share.moved(1 << 30, false);
        drop(locked);
    }

    #[test]
    fn threads_of_two_machines_move_bytes_by_their_weights() {
        let shares = Shares::new(Weights::new(vec![(machine(2), 3)]).unwrap());
        shares.set_patience(Duration::from_secs(60));
        let stop = AtomicBool::new(false);
        let run = |number: u8, most: u64| {
            let mut share = shares.join(machine(number));
            let mut turns = 0_u64;
            while turns < most && !stop.load(Ordering::Relaxed) {
                if share.ask().is_some() {
                    share.moved(128 << 10, true);
                    turns += 1;
                }
            }
            stop.store(true, Ordering::Relaxed);
            turns
        };
        // Both have work before one of them begins.
        let mut first = shares.join(machine(1));
        let mut second = shares.join(machine(2));
        assert!(first.ask().is_some() && second.ask().is_some());
        std::thread::scope(|scope| {
            let one = scope.spawn(|| run(1, u64::MAX));
            let three = scope.spawn(|| {
                let turns = run(2, 3000);
                drop(second);
                turns
            });
            let (one, three) = (one.join().unwrap(), three.join().unwrap());
            assert_eq!(three, 3000);
            assert!((990..=1010).contains(&one), "{one}");
        });
        drop(first);
    }
}
