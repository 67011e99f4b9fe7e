//! What the threads of a pager share.
//!
//! Locks, in the order in which they are taken: an address space's table, then read-ahead ([`crate::faults::crew`]), then the books. All are
//! held for microseconds, and never across a wait; whoever holds a table may change what is known of that address space.
//!
//! A batch of evictions is under way without the table's lock, so [`Table::batch`] says so: nobody reads the program's events
//! then (rule 14 of docs/pager.md). That keeps every fault and event out of the batch: the kernel lets no page be moved while an
//! event waits to be read. Nor does a batch begin while events that were read are not settled ([`crate::unsettled`]).

use std::collections::VecDeque;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::yield_now;
use std::time::Instant;

use spillway_fabric::units::PAGE_SIZE_BYTES;
use spillway_stub::seat::Seat;
use spillway_sys::epoll::{Epoll, Interest};
use spillway_sys::userfaultfd::PageError;

use crate::bell::Bell;
use crate::claims::Claims;
use crate::courteous_lock::CourteousLock;
use crate::directory::SpaceId;
use crate::doubt::Doubt;
use crate::faults::crew::Crew;
use crate::limits::{
    FAILURES_MAX, GROUP_SIZE_BYTES, LAST_PAGES, WATERMARK_PAGES_MAX, WATERMARK_PAGES_MIN, WATERMARK_SHARE,
    WATERMARK_SHARE_MAX, YIELD_QUICK,
};
use crate::program::{Agent, ProgramMemory};
use crate::rechecked::Rechecked;
use crate::space::{Books, Space};
use crate::statistics::Counters;
use crate::unsettled::{Change, Evidence, Unsettled};

/// An address space that is served.
pub struct Tenant {
    /// Its number.
    pub id: SpaceId,
    /// Its memory.
    pub memory: Box<dyn ProgramMemory>,
    /// What is known of its pages.
    pub table: CourteousLock<Table>,
    /// Who takes pages out of it; the eviction thread's.
    pub agent: Mutex<Option<Box<dyn Agent>>>,
    /// Whose fork it is.
    pub parent: Option<SpaceId>,
    /// The process; 0 as long as that is not known.
    pub process: AtomicU32,
    /// Its memory is gone: nothing of it is answered any more.
    pub is_gone: Arc<AtomicBool>,
    /// Where its agent says where its staging area is; not known yet of a child that was just forked.
    pub seat: Mutex<Option<Seat>>,
    /// The thread of its agent; 0 before there is one.
    pub agent_thread: Arc<AtomicU32>,
    /// It has forked, or is a fork: the kernel may refuse pages that are shared (rule 2).
    pub has_forked: AtomicBool,
    /// It has forked and the child is not paged: nothing tells when its pages are its own again.
    pub has_forked_untold: AtomicBool,
    /// Forks that are prepared or under way: no page may leave, and no fault waits for the budget ([`crate::gathering`]).
    holds: AtomicU32,
    /// The fault thread waits for its messages since it was admitted ([`Shared::admit_quietly`]).
    pub is_listened_to: AtomicBool,
    /// Pages that could not be read when nobody waited for them.
    pub unread: AtomicU64,
    /// Pages that stay (rule 4): what the kernel itself touches when a thread ends. Set by the survey.
    pub kept_pages: Mutex<Vec<u64>>,
}

/// A page that is to come back though nobody waits for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Whose it is.
    pub space: SpaceId,
    /// The page.
    pub address: u64,
    /// It comes as if it was written: without protection, and its slot is given up.
    pub is_writable: bool,
}

/// The page table, and who may use it.
#[derive(Debug)]
pub struct Table {
    /// The pages.
    pub space: Space,
    /// Changes of mappings that are not in the table yet: nothing is answered or taken out before they are ([`Shared::settle`]).
    pub unsettled: Unsettled,
    /// A batch is with the agent: events wait.
    pub batch: bool,
    /// The fault thread wants to know when the batch has ended.
    pub is_awaited: bool,
    /// A fault that was read is put off until the batch has ended: all fault threads are woken then, and the next batch waits a moment.
    pub is_hurried: bool,
    /// Faults that were read, were left to whichever thread is free, and were not tried yet: no batch begins before that, or they would have to
    /// wait for it.
    pub untried: u32,
    /// A batch waits for that: no more faults are left to others before it has begun.
    pub is_batch_due: bool,
    /// A change is still to be told that is needed to understand another: nothing is read until then.
    pub doubt: Option<Doubt>,
    /// Faults on pages that are there by all that is known.
    pub rechecked: Rechecked,
}

impl Table {
    /// Whether events may be read now.
    pub fn may_read(&self) -> bool {
        !self.batch && self.doubt.is_none()
    }
}

impl Tenant {
    /// An address space with `space` as its table; a fork of `parent`, if of any.
    pub fn new(space: Space, memory: Box<dyn ProgramMemory>, parent: Option<SpaceId>) -> Self {
        Self {
            id: space.id(),
            memory,
            table: CourteousLock::new(Table {
                space,
                unsettled: Unsettled::default(),
                batch: false,
                is_awaited: false,
                is_hurried: false,
                untried: 0,
                is_batch_due: false,
                doubt: None,
                rechecked: Rechecked::default(),
            }),
            agent: Mutex::new(None),
            parent,
            process: AtomicU32::new(0),
            is_gone: Arc::default(),
            seat: Mutex::new(None),
            agent_thread: Arc::default(),
            has_forked: AtomicBool::new(parent.is_some()),
            has_forked_untold: AtomicBool::new(false),
            holds: AtomicU32::new(0),
            is_listened_to: AtomicBool::new(false),
            unread: AtomicU64::new(0),
            kept_pages: Mutex::new(Vec::new()),
        }
    }

    /// The table, for this moment; fault threads let whoever asks for it so go first.
    pub fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock()
    }

    /// The same for fault threads, which have it nearly all the time.
    pub fn lock_for_faults(&self) -> MutexGuard<'_, Table> {
        self.table.lock_last(|| {
            let begin = Instant::now();
            yield_now();
            begin.elapsed() < YIELD_QUICK
        })
    }

    /// Whether `thread` is its agent, which nobody may keep waiting.
    pub fn is_agent(&self, thread: u32) -> bool {
        thread != 0 && thread == self.agent_thread.load(Ordering::Relaxed)
    }

    /// What its agent has in its memory, once there is one: never to be registered, listed or taken out.
    pub fn agents_ranges(&self) -> impl Iterator<Item = Range<u64>> + use<> {
        let seat = lock(&self.seat);
        let ranges = seat.as_ref().map(|seat| [seat.mapped(), seat.staging()]);
        ranges.into_iter().flatten().flatten()
    }

    /// Its agent's staging area, once it has one: never to be registered, listed or taken out, since what is taken out goes there.
    pub fn staging(&self) -> Option<Range<u64>> {
        lock(&self.seat).as_ref().and_then(Seat::staging)
    }

    /// No batch of evictions begins from now on; one may be under way. The lock orders this with whoever begins one.
    pub fn hold(&self) {
        let _table = self.lock();
        self.holds.fetch_add(1, Ordering::SeqCst);
    }

    /// The end of one [`Tenant::hold`].
    pub fn release(&self) {
        let before = self.holds.fetch_sub(1, Ordering::SeqCst);
        assert!(before > 0, "a hold ends once");
    }

    /// Whether its pages are to stay for now.
    pub fn is_held(&self) -> bool {
        self.holds.load(Ordering::SeqCst) > 0
    }

    /// Kills its process, if that is known: rather no program than one with wrong bytes.
    pub fn kill(&self) {
        let process = self.process.load(Ordering::Relaxed).cast_signed();
        if let Some(process) = rustix::process::Pid::from_raw(process) {
            // It may have ended by itself.
            let _ = rustix::process::kill_process(process, rustix::process::Signal::KILL);
        }
    }

    /// Whether its memory is gone.
    pub fn is_gone(&self) -> bool {
        self.is_gone.load(Ordering::SeqCst)
    }
}

/// How much memory programs may have.
#[derive(Debug)]
pub struct Budget {
    bytes: AtomicU64,
    pool_bytes_max: u64,
    /// Pages of the write-back pool that were used: the others take no memory.
    pool_pages: AtomicI64,
    /// Something had to leave since the budget was last changed.
    is_short: AtomicBool,
    /// Pages of programs that are resident: the kernel's count at the last look, and what came and left since.
    resident: AtomicI64,
    /// Nothing can leave now, so nobody waits for that.
    is_stuck: AtomicBool,
}

impl Budget {
    /// `bytes` for programs and a pool of `pool_bytes_max` at most.
    pub fn new(bytes: u64, pool_bytes_max: u64) -> Self {
        Self {
            bytes: bytes.into(),
            pool_bytes_max,
            pool_pages: AtomicI64::new(0),
            is_short: AtomicBool::new(false),
            resident: AtomicI64::new(0),
            is_stuck: AtomicBool::new(false),
        }
    }

    /// The whole budget.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Changes it.
    pub fn set_bytes(&self, bytes: u64) {
        if self.bytes.swap(bytes, Ordering::Relaxed) < bytes {
            self.is_short.store(false, Ordering::Relaxed);
        }
    }

    /// Bytes of the write-back pool, if all of it is used.
    pub fn pool_bytes_max(&self) -> u64 {
        self.pool_bytes_max
    }

    /// Bytes of the write-back pool that were used.
    pub fn pool_bytes(&self) -> u64 {
        self.pool_pages.load(Ordering::Relaxed).unsigned_abs() * PAGE_SIZE_BYTES as u64
    }

    /// `pages` of the write-back pool were used.
    pub fn set_pool_pages(&self, pages: u32) {
        self.pool_pages.store(pages.into(), Ordering::Relaxed);
    }

    /// Pages that programs may have: the pool takes the rest of the budget.
    pub fn limit_pages(&self) -> i64 {
        let page = PAGE_SIZE_BYTES as u64;
        (self.bytes().saturating_sub(self.pool_bytes()).max(GROUP_SIZE_BYTES) / page).cast_signed()
    }

    /// Eviction begins above this.
    pub fn high_pages(&self) -> i64 {
        self.limit_pages() - self.watermark_pages()
    }

    /// And ends here.
    pub fn low_pages(&self) -> i64 {
        self.high_pages() - self.watermark_pages()
    }

    fn watermark_pages(&self) -> i64 {
        let pages = (self.limit_pages() / WATERMARK_SHARE).clamp(WATERMARK_PAGES_MIN, WATERMARK_PAGES_MAX);
        pages.min(self.limit_pages() / WATERMARK_SHARE_MAX)
    }

    /// Resident pages now.
    pub fn resident_pages(&self) -> i64 {
        self.resident.load(Ordering::Relaxed)
    }

    /// The kernel counted `pages`.
    pub fn set_resident(&self, pages: i64) {
        self.resident.store(pages, Ordering::Relaxed);
    }

    /// `pages` came (or left, if negative).
    pub fn count(&self, pages: i64) {
        self.resident.fetch_add(pages, Ordering::Relaxed);
    }

    /// Whether a page that comes now has to wait for another to leave (rule 15).
    pub fn holds_back(&self) -> bool {
        self.resident_pages() >= self.limit_pages() && !self.is_stuck.load(Ordering::Relaxed)
    }

    /// Whether `pages` more could come without anybody having to wait.
    pub fn has_room(&self, pages: i64) -> bool {
        self.resident_pages() + pages < self.limit_pages()
    }

    /// Whether pages are to leave: above the watermark, once the budget was nearly used up. Until then programs may need no more than they
    /// have, and what lies above the watermark is theirs.
    pub fn is_exceeded(&self) -> bool {
        let resident = self.resident_pages();
        if resident > self.high_pages() && resident > self.limit_pages() - LAST_PAGES {
            self.is_short.store(true, Ordering::Relaxed);
        }
        resident > self.high_pages() && self.is_short.load(Ordering::Relaxed)
    }

    /// Says whether anything can leave.
    pub fn set_stuck(&self, is_stuck: bool) {
        self.is_stuck.store(is_stuck, Ordering::Relaxed);
    }
}

/// See the module text.
pub struct Shared {
    /// Slots and numbers of all address spaces.
    pub books: Mutex<Books>,
    /// Every address space that is served.
    pub tenants: Mutex<Vec<Arc<Tenant>>>,
    /// The budget.
    pub budget: Budget,
    /// Memory that forks may fill.
    pub claims: Claims,
    /// The counters.
    pub(crate) counters: Counters,
    /// Wakes the first fault thread: a batch ended, a program came or went.
    pub faults: Bell,
    /// What it shares with the others.
    pub crew: Crew,
    /// What the first fault thread waits for: the messages of each address space under its number, and its bell.
    pub served: Epoll,
    /// Wakes the eviction thread: the budget is exceeded.
    pub eviction: Bell,
    /// Something is put off in a fault thread until pages have left.
    waits_for_room: AtomicBool,
    /// Wakes the survey: the budget is exceeded for the first time, a child came.
    pub survey: Bell,
    /// Everybody is to end.
    pub is_stopping: AtomicBool,
    /// What went wrong, in words.
    failures: Mutex<VecDeque<String>>,
    next_space: AtomicU32,
    /// Pages that are to come back without a fault.
    wanted: Mutex<Vec<Wanted>>,
    /// Descriptors that tell of programs' calls, for the survey; whether of forks, too.
    pub call_notices: Mutex<Vec<(OwnedFd, bool)>>,
}

impl Shared {
    /// For a volume and a budget, with so many fault threads.
    pub fn new(books: Books, budget: Budget, fault_threads: usize) -> std::io::Result<Self> {
        let counters = Counters::default();
        counters.budget_bytes_peak.set(budget.bytes());
        Ok(Self {
            books: Mutex::new(books),
            tenants: Mutex::default(),
            budget,
            claims: Claims::default(),
            counters,
            faults: Bell::new()?,
            crew: Crew::new(fault_threads)?,
            served: Epoll::new()?,
            eviction: Bell::new()?,
            waits_for_room: AtomicBool::new(false),
            survey: Bell::new()?,
            is_stopping: AtomicBool::new(false),
            failures: Mutex::default(),
            next_space: AtomicU32::new(0),
            wanted: Mutex::default(),
            call_notices: Mutex::default(),
        })
    }

    /// A number for a new address space.
    pub fn next_space(&self) -> SpaceId {
        SpaceId(self.next_space.fetch_add(1, Ordering::Relaxed))
    }

    /// The books, for this moment.
    pub fn books(&self) -> MutexGuard<'_, Books> {
        lock(&self.books)
    }

    /// Serves `tenant` from now on.
    pub fn admit(&self, tenant: Arc<Tenant>) {
        self.push(tenant);
        self.faults.signal();
        self.survey.signal();
    }

    /// As [`Shared::admit`], and wakes nobody: the fault thread gets to know it by its first message.
    pub fn admit_quietly(&self, tenant: &Arc<Tenant>) {
        tenant.is_listened_to.store(true, Ordering::SeqCst);
        self.push(Arc::clone(tenant));
        // It is known by now to whoever looks for whose message it is.
        if self.served.add(tenant.memory.event(), tenant.id.0.into(), Interest::Readable).is_err() {
            // The fault thread tries again, and says what is wrong.
            tenant.is_listened_to.store(false, Ordering::SeqCst);
            self.faults.signal();
        }
    }

    fn push(&self, tenant: Arc<Tenant>) {
        let mut tenants = lock(&self.tenants);
        tenants.push(tenant);
        self.counters.programs.add(1);
        self.counters.programs_now.set(tenants.len() as u64);
    }

    /// `tenant` is gone; its slots come back. Its agent's seat goes with it.
    pub fn dismiss(&self, tenant: &Tenant) {
        tenant.is_gone.store(true, Ordering::SeqCst);
        *lock(&tenant.agent) = None;
        let mut tenants = lock(&self.tenants);
        tenants.retain(|other| other.id != tenant.id);
        self.counters.programs_now.set(tenants.len() as u64);
        drop(tenants);
        let mut table = tenant.lock();
        // A child that it made last lives on.
        self.take_over_changes(tenant, &mut table);
        table.space.end(&mut self.books());
        drop(table);
        self.faults.signal();
    }

    /// Something is to be put off in the calling fault thread until pages have left; it looks once more afterwards.
    pub fn put_off_for_room(&self) {
        self.waits_for_room.store(true, Ordering::SeqCst);
    }

    /// Pages have left: wakes the fault threads if one of them has put something off for that.
    pub fn made_room(&self) {
        if self.waits_for_room.swap(false, Ordering::SeqCst) {
            self.call_fault_threads();
        }
    }

    /// Wakes all fault threads: any of them may have put a fault off.
    pub fn call_fault_threads(&self) {
        self.faults.signal();
        self.crew.bells().iter().for_each(Bell::signal);
    }

    /// Wakes the eviction thread if pages are to leave.
    pub fn call_eviction(&self) {
        if self.budget.is_exceeded() {
            self.eviction.signal();
        }
    }

    /// Brings the table of `tenant` up to date with what was told of its mappings. False: it is changing them, and what was told
    /// may not be all.
    pub fn settle(&self, tenant: &Tenant, table: &mut Table) -> bool {
        if table.unsettled.is_empty() {
            return true;
        }
        if tenant.memory.is_changing() {
            return false;
        }
        self.take_over_changes(tenant, table)
    }

    fn take_over_changes(&self, tenant: &Tenant, table: &mut Table) -> bool {
        let Table { space, unsettled, .. } = table;
        // Of memory that is gone nothing matters but its children.
        let page = PAGE_SIZE_BYTES as u64;
        let covers = |range| match tenant.memory.covers(&range) {
            Err(PageError::TryAgain) if !tenant.is_gone() => None,
            answer => Some(matches!(answer, Ok(true))),
        };
        let is_mapped = |to: u64, address: u64| {
            Some(match (covers(address..address + page)?, covers(to.saturating_sub(page)..to + page)?) {
                (false, _) => Evidence::Hole,
                (true, false) => Evidence::Mapped,
                (true, true) => Evidence::None,
            })
        };
        let Some(changes) = unsettled.settle(|range| space.known_mapped(range), is_mapped) else { return false };
        for change in changes {
            let books = &mut self.books();
            match change {
                Change::Remove(range) => space.remove(&range, books),
                Change::Unmap(range) => space.unmap(&range, books),
                Change::Remap { from, to, length } => space.remap(from, to, length, books),
                Change::Fork(memory, wiped) => {
                    let child = space.fork(self.next_space(), &wiped, books);
                    self.admit(Arc::new(Tenant::new(child, memory, Some(tenant.id))));
                }
            }
        }
        true
    }

    /// Every address space that is served now.
    pub fn tenants(&self) -> Vec<Arc<Tenant>> {
        lock(&self.tenants).clone()
    }

    /// The address space with number `id`, if it is still served.
    pub fn tenant(&self, id: SpaceId) -> Option<Arc<Tenant>> {
        lock(&self.tenants).iter().find(|tenant| tenant.id == id).cloned()
    }

    /// The fault thread shall bring `pages` back.
    pub fn want(&self, pages: impl IntoIterator<Item = Wanted>) {
        let mut wanted = lock(&self.wanted);
        wanted.extend(pages);
        let is_empty = wanted.is_empty();
        drop(wanted);
        if !is_empty {
            self.faults.signal();
        }
    }

    /// What was wanted so far.
    pub fn take_wanted(&self) -> Vec<Wanted> {
        std::mem::take(&mut *lock(&self.wanted))
    }

    /// Says `text`, and remembers it for the statistics; what is remembered is not said again.
    pub fn fail(&self, text: String) {
        let mut failures = lock(&self.failures);
        if failures.contains(&text) {
            return;
        }
        tracing::error!("{text}");
        if failures.len() < FAILURES_MAX {
            failures.push_back(text);
        }
    }

    /// What went wrong so far.
    pub fn failures(&self) -> Vec<String> {
        lock(&self.failures).iter().cloned().collect()
    }

    /// Kills every program whose process is known: nobody serves their pages any more.
    pub fn kill_programs(&self) {
        self.tenants().iter().for_each(|tenant| tenant.kill());
    }

    /// Whether everybody is to end.
    pub fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::SeqCst)
    }
}

/// A thread that panicked holding a lock takes the pager down elsewhere; what it protects is looked at all the same.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watermarks_lie_below_the_budget_and_the_pool_counts() {
        let budget = Budget::new(64 << 20, 4 << 20);
        assert_eq!(budget.limit_pages(), (64 << 20) / 4096, "a pool that was not used takes nothing");
        budget.set_pool_pages(1024);
        assert_eq!((budget.limit_pages(), budget.pool_bytes()), ((60 << 20) / 4096, 4 << 20));
        assert!(budget.low_pages() < budget.high_pages() && budget.high_pages() < budget.limit_pages());
        budget.set_resident(budget.limit_pages() - LAST_PAGES);
        assert!(!budget.is_exceeded(), "a program may need no more than this");
        budget.count(1);
        assert!(budget.is_exceeded() && !budget.holds_back());
        budget.set_resident(budget.high_pages() + 1);
        assert!(budget.is_exceeded(), "it needed more, so room is made ahead of it");
        budget.count(-1);
        assert!(!budget.is_exceeded());
        budget.set_resident(budget.limit_pages());
        assert!(budget.holds_back());
        budget.set_stuck(true);
        assert!(!budget.holds_back(), "nobody waits for what cannot happen");
        budget.set_bytes(1 << 30);
        assert!(!budget.is_exceeded());
        budget.set_resident(budget.high_pages() + 1);
        assert!(!budget.is_exceeded(), "it may not need more than that");
    }

    #[test]
    fn programs_have_nearly_all_of_a_small_budget_and_room_to_grow_in_a_large_one() {
        let never_had = |mib: u64| {
            let budget = Budget::new(mib << 20, 0);
            budget.limit_pages() - budget.low_pages()
        };
        assert_eq!(never_had(32), 2 * WATERMARK_PAGES_MIN, "3 %");
        assert_eq!(never_had(128), 1024, "3 %");
        assert_eq!(never_had(64 << 10), 2 * WATERMARK_PAGES_MAX);
        assert_eq!(never_had(1), 16, "never more than a part of it");
    }
}
