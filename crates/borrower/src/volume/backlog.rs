//! Pages on their way to the backing file.
//!
//! With disk redundancy a write is acknowledged after the remote write, and its page is copied here; the disk thread writes
//! it out later (Infiniswap's asynchronous backup). The backlog is bounded: a stream of writes runs at the fabric's speed
//! until the bound, and at the disk's speed beyond it. A page that is written again while it waits takes no second slot, so
//! the disk sees only the last content. Who waits for room gets it in the order of arrival ([`admission`](super::admission)).
//!
//! Life of a slot: `Free` -> `Filling` (a writer copies the page in) -> `Queued` -> `InFlight` -> `Free`. A page written again
//! while its old content is in flight gets a slot that is `Held` until the old write ended, because two writes of one page
//! must not overtake each other; the old one is marked superseded and says nothing about the page when it ends. A page
//! written again while it is `Queued` or `Held` takes a new slot too, and then frees the old one: a process that dies while it
//! copies must not have spoilt the content that was there.
//!
//! Page bits: `Pending` is set and `Disk` cleared when a page enters; the end of its last write clears `Pending` and sets
//! `Disk`, or, when the write failed and nothing else is left, `Lost`. The lock orders this against writers and discards.
//!
//! Contents and their [`Journal`] outlive the process; [`Backlog::recover`] makes the rest anew from them.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::limits::WRITERS_WAITING_MAX;
use crate::volume::admission::{Admission, Ticket};
use crate::volume::journal::Journal;
use crate::volume::page_bits::{Bit, PageBits};
use crate::volume::page_table::PageTable;
use crate::volume::words::Words;

/// A place in the backlog's buffer pool, one page each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BacklogSlot(pub u32);

/// A page to write, and where its content is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BacklogPage {
    /// Page of the volume.
    pub page: u64,
    /// Its content.
    pub slot: BacklogSlot,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Free,
    Filling,
    Queued,
    Held,
    InFlight { superseded: bool },
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    page: u64,
    state: State,
    /// Neighbours in the queue.
    previous: u32,
    next: u32,
    /// The older write of the same page that is in flight, and the newer content that waits for it.
    predecessor: u32,
    successor: u32,
}

impl Slot {
    fn new(page: u64, state: State) -> Self {
        Self { page, state, previous: NONE, next: NONE, predecessor: NONE, successor: NONE }
    }
}

const NONE: u32 = u32::MAX;

#[derive(Debug)]
struct Inner {
    slots: Box<[Slot]>,
    free: Vec<u32>,
    journal: Journal,
    admission: Admission,
    by_page: PageTable,
    /// First and last of the queue, which runs through the slots.
    head: u32,
    tail: u32,
    queued: usize,
    oldest_since: Option<Instant>,
    closed: bool,
}

/// The backlog of one volume, see the module text.
#[derive(Debug)]
pub struct Backlog {
    inner: Mutex<Inner>,
    more: Condvar,
    capacity: usize,
}

/// When the disk thread takes pages.
#[derive(Clone, Copy, Debug)]
pub struct TakePolicy {
    /// Take at once from so many queued pages on.
    pub eager_pages: usize,
    /// Take fewer only when the oldest waits so long.
    pub delay: Duration,
    /// Return with nothing after so long.
    pub patience: Duration,
}

impl Backlog {
    /// Room for `capacity` pages, recorded in memory of this process.
    pub fn new(capacity: usize) -> Self {
        Self::over(Words::new(Journal::words(capacity)))
    }

    /// An empty backlog, recorded in `words`. What they say from an earlier process is for [`Backlog::recover`].
    pub fn over(words: Words) -> Self {
        let journal = Journal::over(words);
        let capacity = journal.capacity();
        let slot = Slot::new(0, State::Free);
        let inner = Inner {
            slots: vec![slot; capacity].into_boxed_slice(),
            free: (0..capacity as u32).rev().collect(),
            journal,
            admission: Admission::new(WRITERS_WAITING_MAX),
            by_page: PageTable::new(capacity),
            head: NONE,
            tail: NONE,
            queued: 0,
            oldest_since: None,
            closed: false,
        };
        Self { inner: Mutex::new(inner), more: Condvar::new(), capacity }
    }

    /// Pages it can hold.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Pages it holds.
    pub fn length(&self) -> usize {
        self.capacity - self.lock().free.len()
    }

    /// Takes slots for pages `[first, first + count)`, whose owner the caller is, for all of them or for none. `placed` is
    /// told each page's slot, in order, and copies the content there; the caller then [publishes](Backlog::publish) them.
    /// Without room the caller gets a ticket, tries again with it, and does not lose its turn meanwhile.
    pub fn reserve(
        &self,
        bits: &PageBits,
        (first, count): (u64, u64),
        ticket: &mut Option<Ticket>,
        mut placed: impl FnMut(u64, BacklogSlot),
    ) -> bool {
        let mut inner = self.lock();
        let free = inner.free.len();
        if !inner.admission.admit(count as usize, free, ticket) {
            return false;
        }
        for page in first..first + count {
            let Reserved { slot, replaced } = inner.reserve(page);
            placed(page, BacklogSlot(slot));
            inner.journal.record(slot, page);
            if let Some(old) = replaced {
                inner.release(old);
            }
        }
        // In this order a reader, or a process that comes after this one, finds one of them.
        bits.set(Bit::Pending, first, count);
        bits.clear(Bit::Disk, first, count);
        true
    }

    /// The writer with this ticket does not try again.
    pub fn give_up(&self, ticket: Ticket) {
        self.lock().admission.leave(ticket);
    }

    /// Hands the reserved slots of `[first, first + count)` to the disk thread; their content is in place.
    pub fn publish(&self, first: u64, count: u64, now: Instant) {
        let mut inner = self.lock();
        for page in first..first + count {
            inner.publish(page);
        }
        inner.oldest_since.get_or_insert(now);
        drop(inner);
        self.more.notify_one();
    }

    /// Drops pages `[first, first + count)`, whose owner the caller is: they are discarded.
    pub fn discard(&self, bits: &PageBits, first: u64, count: u64) {
        // The disk thread sets `Disk` before it clears `Pending`, so looking in this order misses nothing.
        if !bits.any(Bit::Pending, first, count) && !bits.any(Bit::Disk, first, count) {
            return;
        }
        let mut inner = self.lock();
        // The bits first: a pending page has a slot.
        bits.clear(Bit::Pending, first, count);
        bits.clear(Bit::Disk, first, count);
        for page in first..first + count {
            inner.forget(page);
        }
    }

    /// Queues what an earlier process recorded and its page bits call pending; forgets the rest. Pages that are pending without
    /// a content (the process died while it settled a failed write) are left to the caller: they come back as a list.
    pub fn recover(&self, bits: &PageBits, now: Instant) -> Vec<u64> {
        let mut inner = self.lock();
        assert!(inner.free.len() == self.capacity, "a backlog is recovered before it is used");
        let newest = inner.journal.newest();
        let kept = |page: u64| page < bits.page_count() && bits.any(Bit::Pending, page, 1);
        inner.free.clear();
        for recorded in newest.iter().filter(|recorded| kept(recorded.page)) {
            inner.slots[recorded.slot as usize] = Slot::new(recorded.page, State::Filling);
            inner.by_page.insert(recorded.page, recorded.slot);
            inner.link(recorded.slot);
            inner.oldest_since.get_or_insert(now);
            // An older content, if the process died while this one entered.
            bits.clear(Bit::Disk, recorded.page, 1);
        }
        for slot in (0..self.capacity as u32).rev() {
            if inner.slots[slot as usize].state == State::Free {
                inner.release(slot);
            }
        }
        let pages = (0..bits.page_count()).step_by(64).flat_map(|first| {
            let pending = bits.word(first).pending;
            (0..64).filter(move |page| pending & (1 << page) != 0).map(move |page| first + page)
        });
        pages.filter(|page| inner.by_page.get(*page).is_none()).collect()
    }

    /// Waits as `policy` says and takes up to `batch.capacity()` pages, oldest first, sorted by page. False when the backlog
    /// is closed and empty; nothing that was taken before is in flight then.
    pub fn take(&self, policy: TakePolicy, batch: &mut Vec<BacklogPage>) -> bool {
        batch.clear();
        let give_up = Instant::now() + policy.patience;
        let mut inner = self.lock();
        loop {
            let now = Instant::now();
            let due = inner.oldest_since.map(|since| since + policy.delay);
            if inner.queued >= policy.eager_pages.max(1) || inner.closed || due.is_some_and(|due| due <= now) {
                break;
            }
            if now >= give_up {
                return true;
            }
            let until = due.map_or(give_up, |due| due.min(give_up));
            (inner, _) = self.more.wait_timeout(inner, until - now).unwrap_or_else(PoisonError::into_inner);
        }
        while batch.len() < batch.capacity() && inner.head != NONE {
            let slot = inner.head;
            inner.unlink(slot);
            inner.slots[slot as usize].state = State::InFlight { superseded: false };
            batch.push(BacklogPage { page: inner.slots[slot as usize].page, slot: BacklogSlot(slot) });
        }
        if inner.queued == 0 {
            inner.oldest_since = None;
        }
        // What is not queued when the disk thread has nothing in flight belongs to a writer that panicked.
        let finished = inner.closed && batch.is_empty();
        drop(inner);
        batch.sort_unstable();
        !finished
    }

    /// The write of a taken page ended. True when it failed and this was the page's newest content: then the caller must find
    /// out whether another copy is left.
    #[must_use]
    pub fn complete(&self, bits: &PageBits, taken: BacklogPage, written: bool, now: Instant) -> bool {
        let mut inner = self.lock();
        let slot = taken.slot.0;
        let Slot { page, state, successor, .. } = inner.slots[slot as usize];
        let State::InFlight { superseded } = state else { unreachable!("only a taken page's write can end") };
        assert!(page == taken.page, "a slot holds one page until its write ended");
        if successor != NONE {
            inner.slots[successor as usize].predecessor = NONE;
            if inner.slots[successor as usize].state == State::Held {
                inner.link(successor);
                inner.oldest_since.get_or_insert(now);
                self.more.notify_one();
            }
        } else {
            let newest = inner.by_page.remove(page);
            assert!(newest == Some(slot), "the newest content of a page is in the table");
        }
        if !superseded {
            // A failed one stays pending until its owner has said whether it is lost: see `settle_failure`.
            if written {
                bits.set(Bit::Disk, page, 1);
                bits.clear(Bit::Pending, page, 1);
            }
        }
        inner.release(slot);
        !superseded && !written
    }

    /// The write of `page`, whose owner the caller is, failed: lost, unless a donor has it, it was discarded or written again.
    pub fn settle_failure(&self, bits: &PageBits, page: u64) {
        let inner = self.lock();
        if inner.by_page.get(page).is_some() || !bits.any(Bit::Pending, page, 1) {
            return;
        }
        let word = bits.word(page);
        let elsewhere = word.copies.iter().fold(word.disk, |all, copy| all | copy);
        if elsewhere & (1 << (page % 64)) == 0 {
            bits.set(Bit::Lost, page, 1);
        }
        bits.clear(Bit::Pending, page, 1);
    }

    /// Wakes the disk thread for the last time; `take` ends when everything is written.
    pub fn close(&self) {
        self.lock().closed = true;
        self.more.notify_all();
    }

    /// Makes the disk thread take what is queued now.
    pub fn hurry(&self) {
        let mut inner = self.lock();
        if inner.queued > 0 {
            inner.oldest_since =
                Some(Instant::now().checked_sub(Duration::from_secs(3600)).unwrap_or_else(Instant::now));
        }
        drop(inner);
        self.more.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A slot for a page's new content, and the one to free once that is recorded.
struct Reserved {
    slot: u32,
    replaced: Option<u32>,
}

impl Inner {
    fn reserve(&mut self, page: u64) -> Reserved {
        let slot = self.free.pop().expect("the caller checked that enough slots are free");
        self.slots[slot as usize] = Slot::new(page, State::Filling);
        let Some(old) = self.by_page.insert(page, slot) else { return Reserved { slot, replaced: None } };
        match self.slots[old as usize].state {
            State::Queued => {
                self.unlink(old);
                Reserved { slot, replaced: Some(old) }
            }
            State::Held => {
                self.follow(slot, self.slots[old as usize].predecessor);
                Reserved { slot, replaced: Some(old) }
            }
            State::InFlight { .. } => {
                self.follow(slot, old);
                Reserved { slot, replaced: None }
            }
            State::Free | State::Filling => unreachable!("a page in the table is queued, held or in flight"),
        }
    }

    /// `slot` waits for the write of `old`, which says nothing about the page any more.
    fn follow(&mut self, slot: u32, old: u32) {
        self.slots[slot as usize].predecessor = old;
        self.slots[old as usize].state = State::InFlight { superseded: true };
        self.slots[old as usize].successor = slot;
    }

    fn publish(&mut self, page: u64) {
        let slot = self.by_page.get(page).expect("a published page was reserved");
        let entry = &mut self.slots[slot as usize];
        assert!(entry.state == State::Filling, "a published page was being filled");
        if entry.predecessor == NONE {
            self.link(slot);
        } else {
            entry.state = State::Held;
        }
    }

    /// Drops a page's newest content; a write in flight goes on, means nothing, and still keeps later ones behind itself.
    fn forget(&mut self, page: u64) {
        let Some(slot) = self.by_page.get(page) else { return };
        match self.slots[slot as usize].state {
            State::Queued => {
                self.unlink(slot);
                self.by_page.remove(page);
                self.release(slot);
            }
            State::Held => {
                let old = self.slots[slot as usize].predecessor;
                self.slots[old as usize].successor = NONE;
                self.by_page.insert(page, old);
                self.release(slot);
            }
            State::InFlight { .. } => {
                self.slots[slot as usize].state = State::InFlight { superseded: true };
                self.journal.forget(slot);
            }
            State::Free | State::Filling => unreachable!("a page in the table is queued, held or in flight"),
        }
    }

    fn release(&mut self, slot: u32) {
        self.journal.forget(slot);
        self.slots[slot as usize].state = State::Free;
        self.free.push(slot);
    }

    fn link(&mut self, slot: u32) {
        let tail = self.tail;
        let entry = &mut self.slots[slot as usize];
        entry.state = State::Queued;
        (entry.previous, entry.next) = (tail, NONE);
        if tail == NONE {
            self.head = slot;
        } else {
            self.slots[tail as usize].next = slot;
        }
        self.tail = slot;
        self.queued += 1;
    }

    fn unlink(&mut self, slot: u32) {
        let Slot { previous, next, .. } = self.slots[slot as usize];
        if previous == NONE {
            self.head = next;
        } else {
            self.slots[previous as usize].next = next;
        }
        if next == NONE {
            self.tail = previous;
        } else {
            self.slots[next as usize].previous = previous;
        }
        self.queued -= 1;
    }
}

#[cfg(test)]
#[path = "backlog_tests.rs"]
mod tests;
