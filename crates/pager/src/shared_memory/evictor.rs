//! Takes pages out of a shared object.
//!
//! All of it happens in one go, on the eviction thread, with the tables of all programs that map the object locked:
//! no message of theirs is read, so no fork, move or end of a mapping comes to its end meanwhile, and the kernel says
//! (`UFFDIO_WRITEPROTECT` fails with EAGAIN) if one has begun. Then:
//!
//! 1. The pages are write-protected in every view. A thread that writes waits from now on; protection stays with
//!    mappings that move or are forked, and with page table entries that are dropped (marker entries, `mm/memory.c`).
//! 2. Each page is read from the object, and goes to the write-back pool. A read of a hole puts nothing there.
//! 3. The page is taken out of the object, and it is looked whether a hole is left. If not, a mapping that is not known
//!    has brought a page of zeroes: then every program that maps the object is killed.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, MutexGuard};

use rustix::fs::{FallocateFlags, SeekFrom, fallocate, seek};
use spillway_fabric::buffer_pool::BufferPool;
use spillway_fabric::units::PAGE_SIZE_BYTES;
use spillway_sys::userfaultfd::PageError;

use crate::address_space::{AddressSpace, SpaceState};
use crate::page_table::page_indexes::SpaceId;
use crate::page_table::virtual_page::VirtualPage;
use crate::process::memory::{EvictOutcome, EvictRequest, Evictor};
use crate::shared_memory::views::SharedObjects;
use crate::threads::lock::lock;

const PAGE: u64 = PAGE_SIZE_BYTES as u64;

/// What the evictor of an object tells the survey.
#[derive(Debug, Default)]
pub struct ObjectSigns {
    /// A view is not what it is thought to be: the object is to stay from now on.
    pub is_doubtful: AtomicBool,
    /// Something mapped the object that is not known, and may have read zeroes: its programs were killed.
    pub is_breached: AtomicBool,
}

/// See the module text.
pub struct ObjectEvictor {
    object: SpaceId,
    shared: Arc<SharedObjects>,
    file: Arc<File>,
    /// The write-back pool.
    pool: Arc<BufferPool>,
    signs: Arc<ObjectSigns>,
    /// Of the batch that was begun, until it is polled.
    outcomes: Option<Vec<EvictOutcome>>,
}

impl ObjectEvictor {
    /// Of the object that is address space `object`, with `file` as a descriptor of it; pages go to `pool`.
    pub fn new(
        object: SpaceId,
        shared: Arc<SharedObjects>,
        file: Arc<File>,
        pool: Arc<BufferPool>,
        signs: Arc<ObjectSigns>,
    ) -> Self {
        Self { object, shared, file, pool, signs, outcomes: None }
    }

    fn evict(&self, requests: &[EvictRequest]) -> Vec<EvictOutcome> {
        let all = |outcome| vec![outcome; requests.len()];
        let programs = self.shared.programs_of(self.object);
        let guards: Vec<MutexGuard<'_, SpaceState>> = programs.iter().map(|program| program.lock()).collect();
        // A fork that was told since has brought another.
        let now = self.shared.programs_of(self.object);
        let is_same = now.len() == programs.len() && now.iter().zip(&programs).all(|(one, other)| one.id == other.id);
        let is_settled = programs.iter().zip(&guards).all(|(program, state)| is_settled(program, state));
        if !is_same || !is_settled {
            return all(EvictOutcome::Changing);
        }
        match self.protect(requests) {
            Ok(()) => {}
            Err(PageError::TryAgain) => return all(EvictOutcome::Changing),
            Err(_) => {
                self.signs.is_doubtful.store(true, Ordering::SeqCst);
                return all(EvictOutcome::Refused);
            }
        }
        let outcomes = requests.iter().map(|request| self.take(request, &programs)).collect();
        drop(guards);
        outcomes
    }

    /// In all views, neighbours together.
    fn protect(&self, requests: &[EvictRequest]) -> Result<(), PageError> {
        let views = self.shared.read();
        for run in requests.chunk_by(|one, next| one.page + 1 == next.page) {
            let part = run[0].page.address()..run[run.len() - 1].page.range().end;
            for view in views.iter().filter(|view| view.object.id == self.object) {
                let Some(addresses) = view.addresses(&part) else { continue };
                match view.space.memory.protect(addresses) {
                    // None of its threads runs any more.
                    Ok(()) | Err(PageError::Gone) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }

    /// Takes one page out that is protected. What is not taken out may stay protected: a write asks, and is let go on.
    fn take(&self, request: &EvictRequest, programs: &[Arc<AddressSpace>]) -> EvictOutcome {
        let offset = request.page.address();
        if self.is_kept(request.page) {
            return EvictOutcome::Refused;
        }
        if seek(&self.file, SeekFrom::Data(offset)) != Ok(offset) {
            return EvictOutcome::Absent;
        }
        let mut content = [0; PAGE_SIZE_BYTES];
        if self.file.read_exact_at(&mut content, offset).is_err() {
            return EvictOutcome::Refused;
        }
        let is_zero = content.iter().all(|byte| *byte == 0);
        if let Some(target) = request.target.filter(|_| !is_zero) {
            self.pool.memory().write(target.0 as usize * PAGE_SIZE_BYTES, &content);
        }
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        if fallocate(&self.file, flags, offset, PAGE).is_err() {
            return EvictOutcome::Refused;
        }
        if seek(&self.file, SeekFrom::Hole(offset)) != Ok(offset) {
            self.signs.is_breached.store(true, Ordering::SeqCst);
            programs.iter().for_each(|program| program.kill());
        }
        if is_zero { EvictOutcome::Zero } else { EvictOutcome::Moved }
    }

    /// Rule 4: the kernel itself marks robust locks when a thread ends.
    fn is_kept(&self, page: VirtualPage) -> bool {
        let views = self.shared.read();
        let of_object = views.iter().filter(|view| view.object.id == self.object);
        let mut places = of_object.filter_map(|view| Some((&view.space, view.addresses(&page.range())?.start)));
        places.any(|(space, address)| lock(&space.kept_pages).binary_search(&VirtualPage::at(address)).is_ok())
    }
}

/// Whether what is known of a program's mappings is what they are.
fn is_settled(program: &AddressSpace, state: &SpaceState) -> bool {
    program.is_gone() || state.mapping_events.is_empty() && state.late_event.is_none() && !program.memory.is_changing()
}

impl Evictor for ObjectEvictor {
    fn begin(&mut self, requests: &[EvictRequest]) -> bool {
        if self.outcomes.is_some() {
            return false;
        }
        self.outcomes = Some(self.evict(requests));
        true
    }

    fn own(&mut self, _: &[VirtualPage]) -> bool {
        false
    }

    fn end(&mut self, _: u8) {}

    fn poll(&mut self, outcomes: &mut [EvictOutcome]) -> bool {
        if let Some(all) = self.outcomes.take() {
            outcomes.copy_from_slice(&all);
        }
        true
    }

    fn is_broken(&self) -> bool {
        false
    }
}
