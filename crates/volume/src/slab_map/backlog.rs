//! Pages on their way to the backing file.
//!
//! With disk redundancy a write is acknowledged after the remote write, and its page is copied here; the disk thread
//! writes it out later (Infiniswap's asynchronous backup). The backlog is bounded: a stream of writes runs at the
//! fabric's speed until the bound, and at the disk's speed beyond it. A page that is written again while it waits
//! takes no second slot, so the disk sees only the last content. Requests that wait for room get it in the order of
//! arrival ([`admission`](super::admission)).
//!
//! Life of a slot: `Free` -> `Filling` (a writer copies the page in, without the lock) -> `Queued` -> `InFlight` ->
//! `Free`. A page written again while its old content is in flight gets a slot that is `Held` until the old write
//! ended, because two writes of one page must not overtake each other; the old one is marked superseded and says
//! nothing about the page when it ends. A page written again while it is `Queued` or `Held` takes a new slot too, and
//! frees the old one when its content is in place: a process that dies while it copies must not have spoilt the
//! content that was there.
//!
//! Writers and the disk thread meet at the lock for each request, so it is held for the lists alone. An earlier
//! version held it for the copies too, and took it for each page that was written: the disk thread slept at it for a
//! third of its time, and sustained writes took 1.1 to 1.2 times as long (`docs/measurements.md`, "Sustained writes").
//!
//! Page bits: `Pending` is set and `Disk` cleared when a page enters; the end of its last write clears `Pending` and
//! sets `Disk`, or, when the write failed and nothing else is left, `Lost`. The lock orders this against writers and
//! discards.
//!
//! Contents and their [`Journal`] outlive the process; [`Backlog::recover`] makes the rest anew from them.

use std::ops::Range;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::limits::WRITERS_WAITING_MAX;
use crate::protection::PageProof;
use crate::slab_map::admission::{Admission, Ticket};
use crate::slab_map::journal::Journal;
use crate::slab_map::page_bits::{Bit, PageBits};
use crate::slab_map::page_index::PageIndex;
use crate::slab_map::page_table::PageTable;
use crate::slab_map::proofs::{PageProofs, ProofWriter};
use crate::slab_map::words::Words;

/// A place in the backlog's buffer pool, one page each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BacklogSlot(pub u32);

/// A page to write, and where its content is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BacklogPage {
    /// Page of the volume.
    pub page: PageIndex,
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
    page: PageIndex,
    state: State,
    /// Neighbours in the queue.
    previous: u32,
    next: u32,
    /// The older write of the same page that is in flight, and the newer content that waits for it.
    predecessor: u32,
    successor: u32,
}

impl Slot {
    fn new(page: PageIndex, state: State) -> Self {
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
    /// The disk thread waits for so many queued pages, or for the oldest to have waited long enough.
    awaited: Option<usize>,
    closed: bool,
}

/// The backlog of one volume, see the module text.
#[derive(Debug)]
pub struct Backlog {
    inner: Mutex<Inner>,
    more: Condvar,
    capacity: usize,
}

/// The proofs of contents that are handed over, in order, and where they go.
#[derive(Clone, Copy, Debug)]
pub struct NewProofs<'a> {
    /// Of the volume.
    pub proofs: &'a PageProofs,
    /// The thread that hands over.
    pub writer: ProofWriter,
    /// One for each page.
    pub new: &'a [PageProof],
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
        let slot = Slot::new(PageIndex(0), State::Free);
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
            awaited: None,
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

    /// Fills `slots` with places for as many pages, or with none. The caller copies its pages there and then
    /// [publishes](Backlog::publish) them. Without room the caller gets a ticket, tries again with it, and does not
    /// lose its turn meanwhile.
    pub fn reserve(&self, slots: &mut [BacklogSlot], ticket: &mut Option<Ticket>) -> bool {
        let mut inner = self.lock();
        let free = inner.free.len();
        if !inner.admission.admit(slots.len(), free, ticket) {
            return false;
        }
        for slot in slots {
            let free = inner.free.pop().expect("enough slots are free");
            inner.slots[free as usize].state = State::Filling;
            *slot = BacklogSlot(free);
        }
        true
    }

    /// The writer with this ticket does not try again.
    pub fn give_up(&self, ticket: Ticket) {
        self.lock().admission.leave(ticket);
    }

    /// Hands the pages from `first` on, whose owner the caller is, to the disk thread: the reserved `slots`, in
    /// order, hold their contents. They are plain.
    pub fn publish(&self, bits: &PageBits, first: PageIndex, slots: &[BacklogSlot], now: Instant) {
        self.publish_proven(bits, first, slots, None, now);
    }

    /// As [`Backlog::publish`], for contents that have proofs, which change under the lock: the disk thread must not
    /// say that the disk has a content before the page has its proof.
    pub fn publish_proven(
        &self,
        bits: &PageBits,
        first: PageIndex,
        slots: &[BacklogSlot],
        proven: Option<NewProofs<'_>>,
        now: Instant,
    ) {
        let count = slots.len() as u64;
        let mut inner = self.lock();
        for (index, (page, slot)) in first.up_to(first + count).zip(slots).enumerate() {
            inner.publish(page, slot.0, proven.map_or(PageProof::NONE, |proven| proven.new[index]));
        }
        // In this order a reader, or a process that comes after this one, finds one of them.
        bits.set(Bit::Pending, first, count);
        bits.clear(Bit::Disk, first, count);
        if let Some(NewProofs { proofs, writer, new }) = proven {
            first.up_to(first + count).zip(new).for_each(|(page, proof)| proofs.set(writer, page, *proof));
        }
        let is_first = inner.oldest_since.is_none();
        inner.oldest_since.get_or_insert(now);
        let awaited = inner.awaited.is_some_and(|pages| is_first || inner.queued >= pages);
        drop(inner);
        if awaited {
            self.more.notify_one();
        }
    }

    /// Drops pages `[first, first + count)`, whose owner the caller is: they are discarded.
    pub fn discard(&self, bits: &PageBits, first: PageIndex, count: u64) {
        // The disk thread sets `Disk` before it clears `Pending`, so looking in this order misses nothing.
        if !bits.any(Bit::Pending, first, count) && !bits.any(Bit::Disk, first, count) {
            return;
        }
        let mut inner = self.lock();
        // The bits first: a pending page has a slot.
        bits.clear(Bit::Pending, first, count);
        bits.clear(Bit::Disk, first, count);
        for page in first.up_to(first + count) {
            inner.forget(page);
        }
    }

    /// Queues what an earlier process recorded and its page bits call pending; forgets the rest. Pages that are
    /// pending without a content (the process died while it settled a failed write) are left to the caller: they come
    /// back as a list. What is queued has the proof that was recorded with it.
    pub fn recover(&self, bits: &PageBits, proofs: Option<&PageProofs>, now: Instant) -> Vec<PageIndex> {
        let mut inner = self.lock();
        assert!(inner.free.len() == self.capacity, "a backlog is recovered before it is used");
        let newest = inner.journal.newest();
        let kept = |page: PageIndex| page.0 < bits.page_count() && bits.any(Bit::Pending, page, 1);
        inner.free.clear();
        for recorded in newest.iter().filter(|recorded| kept(recorded.page)) {
            inner.slots[recorded.slot as usize] = Slot::new(recorded.page, State::Filling);
            inner.by_page.insert(recorded.page, recorded.slot);
            inner.link(recorded.slot);
            inner.oldest_since.get_or_insert(now);
            if let Some(proofs) = proofs {
                proofs.put_back(recorded.page, recorded.proof);
            }
            // An older content, if the process died while this one entered.
            bits.clear(Bit::Disk, recorded.page, 1);
        }
        for slot in (0..self.capacity as u32).rev() {
            if inner.slots[slot as usize].state == State::Free {
                inner.release(slot);
            }
        }
        let pages = (0..bits.page_count()).step_by(64).map(PageIndex).flat_map(|first| {
            let pending = bits.word(first).pending;
            (0..64).filter(move |page| pending & (1 << page) != 0).map(move |page| first + page)
        });
        pages.filter(|page| inner.by_page.get(*page).is_none()).collect()
    }

    /// Waits as `policy` says and takes up to `batch.capacity()` pages, oldest first, sorted by page. False when the
    /// backlog is closed and empty; nothing that was taken before is in flight then.
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
            inner.awaited = Some(policy.eager_pages);
            (inner, _) = self.more.wait_timeout(inner, until - now).unwrap_or_else(PoisonError::into_inner);
            inner.awaited = None;
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

    /// The write of taken pages, neighbours in their order, ended. True when it failed and was the newest content of
    /// one of them: then the caller must find out whether another copy is left. Of a failed write it is told page by
    /// page.
    #[must_use]
    pub fn complete(&self, bits: &PageBits, taken: &[BacklogPage], written: bool, now: Instant) -> bool {
        let mut inner = self.lock();
        let mut newest = PageIndex(0)..PageIndex(0);
        for taken in taken {
            if inner.complete(*taken, now) {
                if taken.page != newest.end {
                    on_disk(bits, newest, written);
                    newest = taken.page..taken.page;
                }
                newest.end += 1;
            }
        }
        let is_newest = !newest.is_empty();
        on_disk(bits, newest, written);
        // Only now: a process that comes after this one finds the page's content here, or on the disk.
        taken.iter().for_each(|taken| inner.release(taken.slot.0));
        is_newest && !written
    }

    /// The write of `page`, whose owner the caller is, failed: lost, unless a donor has it, it was discarded or
    /// written again.
    pub fn settle_failure(&self, bits: &PageBits, page: PageIndex) {
        let inner = self.lock();
        if inner.by_page.get(page).is_some() || !bits.any(Bit::Pending, page, 1) {
            return;
        }
        let word = bits.word(page);
        let elsewhere = word.copies.iter().fold(word.disk, |all, copy| all | copy);
        if elsewhere & (1 << (page.0 % 64)) == 0 {
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

/// Says of `pages` that the disk has them. Those that could not be written stay pending until their owner has said
/// whether they are lost: see [`Backlog::settle_failure`].
fn on_disk(bits: &PageBits, pages: Range<PageIndex>, written: bool) {
    let count = pages.end - pages.start;
    if written && count > 0 {
        bits.set(Bit::Disk, pages.start, count);
        bits.clear(Bit::Pending, pages.start, count);
    }
}

impl Inner {
    /// From now on `slot`, whose content is in place, is the newest content of `page`.
    fn publish(&mut self, page: PageIndex, slot: u32, proof: PageProof) {
        assert!(self.slots[slot as usize].state == State::Filling, "a published slot was reserved");
        self.slots[slot as usize] = Slot::new(page, State::Filling);
        self.journal.record(slot, page, proof);
        let Some(old) = self.by_page.insert(page, slot) else { return self.link(slot) };
        match self.slots[old as usize].state {
            State::Queued => {
                self.unlink(old);
                self.link(slot);
                self.release(old);
            }
            State::Held => {
                self.follow(slot, self.slots[old as usize].predecessor);
                self.release(old);
            }
            State::InFlight { .. } => self.follow(slot, old),
            State::Free | State::Filling => unreachable!("a page in the table is queued, held or in flight"),
        }
    }

    /// The write of `taken` ended, and its slot is to be released. True when it was the newest content of its page.
    fn complete(&mut self, taken: BacklogPage, now: Instant) -> bool {
        let slot = taken.slot.0;
        let Slot { page, state, successor, .. } = self.slots[slot as usize];
        let State::InFlight { superseded } = state else { unreachable!("only a taken page's write can end") };
        assert!(page == taken.page, "a slot holds one page until its write ended");
        if successor == NONE {
            let newest = self.by_page.remove(page);
            assert!(newest == Some(slot), "the newest content of a page is in the table");
        } else {
            self.slots[successor as usize].predecessor = NONE;
            self.link(successor);
            self.oldest_since.get_or_insert(now);
        }
        !superseded
    }

    /// `slot` waits for the write of `old`, which says nothing about the page any more.
    fn follow(&mut self, slot: u32, old: u32) {
        self.slots[slot as usize].state = State::Held;
        self.slots[slot as usize].predecessor = old;
        self.slots[old as usize].state = State::InFlight { superseded: true };
        self.slots[old as usize].successor = slot;
    }

    /// Drops a page's newest content; a write in flight goes on, means nothing, and still keeps later ones behind
    /// itself.
    fn forget(&mut self, page: PageIndex) {
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
