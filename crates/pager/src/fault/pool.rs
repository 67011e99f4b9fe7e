//! What the fault threads of a pager have in common.
//!
//! A fault takes the fault thread 12 us of CPU time, most of them outside the program's table. So a program whose
//! threads wait for many pages at once would be served by one CPU, however many idle ones its waiting threads left.
//! The first thread reads all messages ([`crate::fault::messages`]); where faults come in crowds it answers one of
//! each crowd, and leaves the others to whichever thread is free first: to itself too, so that none waits for a
//! thread to wake up. They are tried before the next batch of evictions
//! ([`SpaceState::untried`](crate::address_space::SpaceState::untried)), as all faults of one reading are; from then
//! on they are like any that was put off.
//!
//! Read-ahead follows the streams of all programs wherever their faults are answered, so there is one
//! [`ReadAheadState`].
//!
//! Locks: a program's table, then the one for read-ahead, then the page indexes; under the one for pending faults
//! none is taken.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use spillway_sys::userfaultfd::Fault;

use crate::address_space::AddressSpace;
use crate::fault::read_ahead::ReadAheadState;
use crate::limits::MESSAGES_MAX;
use crate::threads::bell::Bell;
use crate::threads::lock::lock;
use spillway_policy::prefetch::selection::PrefetchPolicy;

/// A fault that is not answered yet.
pub(super) struct Pending {
    pub(super) space: Arc<AddressSpace>,
    pub(super) fault: Fault,
    pub(super) arrived: Instant,
    /// It waits for the budget (rule 15).
    pub(super) is_held_back: bool,
}

impl Pending {
    pub(super) fn new(space: Arc<AddressSpace>, fault: Fault, arrived: Instant) -> Self {
        Self { space, fault, arrived, is_held_back: false }
    }
}

/// See the module text.
pub struct FaultPool {
    read_ahead: Mutex<ReadAheadState>,
    pending: Mutex<VecDeque<Pending>>,
    /// How many there are, for a thread that looks and finds none.
    pending_count: AtomicUsize,
    /// One for each thread but the first.
    bells: Box<[Bell]>,
    /// Reads that programs' threads wait for, since they were asked for.
    demands: AtomicU32,
}

impl FaultPool {
    /// Of so many threads, with pages that come along by `prefetch`.
    pub fn new(threads: usize, prefetch: PrefetchPolicy) -> std::io::Result<Self> {
        Ok(Self {
            read_ahead: Mutex::new(ReadAheadState::new(prefetch)),
            pending: Mutex::new(VecDeque::with_capacity(2 * MESSAGES_MAX)),
            pending_count: AtomicUsize::new(0),
            bells: (1..threads).map(|_| Bell::new()).collect::<Result<_, _>>()?,
            demands: AtomicU32::new(0),
        })
    }

    /// What wakes each thread but the first: there are faults to answer, or all threads are to end.
    pub fn bells(&self) -> &[Bell] {
        &self.bells
    }

    /// How many threads began to wait for a page from elsewhere since this was asked.
    pub fn take_demands(&self) -> u32 {
        self.demands.swap(0, Ordering::Relaxed)
    }

    pub(super) fn demanded(&self) {
        self.demands.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn has_helpers(&self) -> bool {
        !self.bells.is_empty()
    }

    /// Leaves these faults to the thread that is free first.
    pub(super) fn share(&self, faults: impl ExactSizeIterator<Item = Pending>) {
        let wakes = faults.len().min(self.bells.len());
        let mut pending = lock(&self.pending);
        pending.extend(faults);
        self.pending_count.store(pending.len(), Ordering::Relaxed);
        drop(pending);
        self.bells[..wakes].iter().for_each(Bell::signal);
    }

    /// The next fault that no thread took.
    pub(super) fn take(&self) -> Option<Pending> {
        if self.pending_count.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let mut pending = lock(&self.pending);
        let next = pending.pop_front();
        self.pending_count.store(pending.len(), Ordering::Relaxed);
        next
    }

    /// How many faults no thread took so far.
    pub fn pending_count(&self) -> usize {
        lock(&self.pending).len()
    }

    pub(super) fn read_ahead(&self) -> MutexGuard<'_, ReadAheadState> {
        lock(&self.read_ahead)
    }
}
