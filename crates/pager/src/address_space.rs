//! An address space that is served, and what is known of its pages.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::yield_now;
use std::time::Instant;

use spillway_stub::seat::Seat;

use crate::fault::recheck::Rechecked;
use crate::limits::YIELD_QUICK;
use crate::mappings::events::MappingEvents;
use crate::mappings::late_event::LateEvent;
use crate::page_table::PageTable;
use crate::page_table::page_indexes::SpaceId;
use crate::page_table::virtual_page::VirtualPage;
use crate::process::memory::{Evictor, ProgramMemory};
use crate::threads::courteous_lock::CourteousLock;
use crate::threads::lock::lock;

/// An address space that is served.
pub struct AddressSpace {
    /// Its number.
    pub id: SpaceId,
    /// Its memory.
    pub memory: Box<dyn ProgramMemory>,
    /// What is known of its pages.
    pub state: CourteousLock<SpaceState>,
    /// Takes pages out of it; the eviction thread's.
    pub evictor: Mutex<Option<Box<dyn Evictor>>>,
    /// Whose fork it is.
    pub parent: Option<SpaceId>,
    /// The process; 0 as long as that is not known.
    pub process: AtomicU32,
    /// Its memory is gone: nothing of it is answered any more.
    pub is_gone: Arc<AtomicBool>,
    /// Where its evictor says where its staging area is; not known yet of a child that was just forked.
    pub seat: Mutex<Option<Seat>>,
    /// The thread of its evictor; 0 before there is one.
    pub evictor_thread: Arc<AtomicU32>,
    /// It has forked, or is a fork: the kernel may refuse pages that are shared (rule 2).
    pub has_forked: AtomicBool,
    /// It has forked and the child is not paged: nothing tells when its pages are its own again.
    pub has_forked_untold: AtomicBool,
    /// Forks that are prepared or under way: no page may leave, and no fault waits for the budget
    /// ([`crate::fork::page_in`]).
    holds: AtomicU32,
    /// The fault thread waits for its messages since it was admitted
    /// ([`PagerState::admit_quietly`](crate::pager_state::PagerState::admit_quietly)).
    pub is_listened_to: AtomicBool,
    /// Pages that could not be read when no thread waited for them.
    pub unread: AtomicU64,
    /// It is no program's but a shared object ([`crate::shared_memory`]).
    pub is_object: bool,
    /// Pages that stay (rule 4): what the kernel itself touches when a thread ends. Set by the survey.
    pub kept_pages: Mutex<Vec<VirtualPage>>,
}

/// A page that is to come back though no thread waits for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Whose it is.
    pub space: SpaceId,
    /// The page.
    pub page: VirtualPage,
    /// It comes as if it was written: without protection, and its slot is given up.
    pub is_writable: bool,
}

/// The page table, and the right to use it.
#[derive(Debug)]
pub struct SpaceState {
    /// The pages.
    pub page_table: PageTable,
    /// Changes of mappings that are not in the table yet: nothing is answered or taken out before they are
    /// ([`PagerState::apply_events`](crate::pager_state::PagerState::apply_events)).
    pub mapping_events: MappingEvents,
    /// A batch is with the evictor: events wait.
    pub batch: bool,
    /// The fault thread wants to know when the batch has ended.
    pub is_awaited: bool,
    /// A fault that was read is put off until the batch has ended: all fault threads are woken then, and the next
    /// batch waits a moment.
    pub is_hurried: bool,
    /// Faults that were read, were left to whichever thread is free, and were not tried yet: no batch begins before
    /// that, or they would have to wait for it.
    pub untried: u32,
    /// A batch waits for that: no more faults are left to others before it has begun.
    pub is_batch_due: bool,
    /// A change is still to be told that is needed to understand another: nothing is read until then.
    pub late_event: Option<LateEvent>,
    /// Faults on pages that are there by all that is known.
    pub rechecked: Rechecked,
}

impl SpaceState {
    /// Whether events may be read now.
    pub fn may_read(&self) -> bool {
        !self.batch && self.late_event.is_none()
    }
}

impl AddressSpace {
    /// An address space with `space` as its table; a fork of `parent`, if of any.
    pub fn new(page_table: PageTable, memory: Box<dyn ProgramMemory>, parent: Option<SpaceId>) -> Self {
        Self {
            id: page_table.id(),
            memory,
            state: CourteousLock::new(SpaceState {
                page_table,
                mapping_events: MappingEvents::default(),
                batch: false,
                is_awaited: false,
                is_hurried: false,
                untried: 0,
                is_batch_due: false,
                late_event: None,
                rechecked: Rechecked::default(),
            }),
            evictor: Mutex::new(None),
            parent,
            process: AtomicU32::new(0),
            is_gone: Arc::default(),
            seat: Mutex::new(None),
            evictor_thread: Arc::default(),
            has_forked: AtomicBool::new(parent.is_some()),
            has_forked_untold: AtomicBool::new(false),
            holds: AtomicU32::new(0),
            is_listened_to: AtomicBool::new(false),
            unread: AtomicU64::new(0),
            is_object: false,
            kept_pages: Mutex::new(Vec::new()),
        }
    }

    /// A shared object with `page_table`, whose addresses are offsets.
    pub fn of_object(page_table: PageTable, memory: Box<dyn ProgramMemory>) -> Self {
        Self { is_object: true, ..Self::new(page_table, memory, None) }
    }

    /// The table, for this moment; fault threads let a thread that asks for it this way go first.
    pub fn lock(&self) -> MutexGuard<'_, SpaceState> {
        self.state.lock()
    }

    /// The same for fault threads, which have it nearly all the time.
    pub fn lock_for_faults(&self) -> MutexGuard<'_, SpaceState> {
        self.state.lock_last(|| {
            let begin = Instant::now();
            yield_now();
            begin.elapsed() < YIELD_QUICK
        })
    }

    /// Whether `thread` is its evictor, which no thread may keep waiting.
    pub fn is_evictor(&self, thread: u32) -> bool {
        thread != 0 && thread == self.evictor_thread.load(Ordering::Relaxed)
    }

    /// What its evictor has in its memory, once there is one: never to be registered, listed or taken out.
    pub fn evictors_ranges(&self) -> impl Iterator<Item = Range<u64>> + use<> {
        let seat = lock(&self.seat);
        let ranges = seat.as_ref().map(|seat| [seat.mapped(), seat.staging()]);
        ranges.into_iter().flatten().flatten()
    }

    /// Its evictor's staging area, once it has one: never to be registered, listed or taken out, since what is taken
    /// out goes there.
    pub fn staging(&self) -> Option<Range<u64>> {
        lock(&self.seat).as_ref().and_then(Seat::staging)
    }

    /// No batch of evictions begins from now on; one may be under way. The lock orders this with the thread that
    /// begins one.
    pub fn hold(&self) {
        let _table = self.lock();
        self.holds.fetch_add(1, Ordering::SeqCst);
    }

    /// The end of one [`AddressSpace::hold`].
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
