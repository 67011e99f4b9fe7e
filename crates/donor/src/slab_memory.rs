//! The memory of slabs: each in a sealed file of its own, present before it is lent.
//!
//! A slab is lent in a file that no other borrower ever had, so there is nothing to scrub and nothing to share.
//! Making one takes a millisecond per few MiB; therefore some are prepared ahead. It is locked in memory: a borrower
//! on the same machine may be the very swap device that the kernel would put it on, and then it could never be read
//! again.
//!
//! A returned slab's pages go back to the machine as soon as its borrower has unmapped it too; nothing is punched out
//! under a borrower that may still read (one that was stopped for a while and does not know yet that its session has
//! ended).

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, RwLock};

use spillway_fabric::tcp::SlabDirectory;
use spillway_fabric::units::SlabHandle;
use spillway_sys::mapping::Mapping;
use spillway_sys::memfd::Memfd;
use spillway_sys::verbs::Registrable;

use crate::limits::PREPARE_STEP_BYTES;

/// How slabs show in `/proc/PID/maps`.
const FILE_NAME: &str = "spillway-slab";

/// One slab's memory.
#[derive(Debug)]
pub struct SlabMemory {
    file: Memfd,
    mapping: Mapping,
    is_locked: bool,
}

impl SlabMemory {
    /// A new zeroed slab whose pages are all present and mapped. Fails when the machine has too little memory. Calls
    /// `pause` now and then.
    pub fn prepare(size_bytes: u64, pause: impl Fn()) -> io::Result<Self> {
        let length = usize::try_from(size_bytes).map_err(io::Error::other)?;
        let file = Memfd::create(FILE_NAME, size_bytes)?;
        for start in (0..size_bytes).step_by(PREPARE_STEP_BYTES) {
            file.preallocate(start, size_bytes.min(start + PREPARE_STEP_BYTES as u64) - start)?;
            pause();
        }
        let mapping = Mapping::shared_present(&file, length)?;
        // Without the privilege the slab is lent all the same, and counted.
        let is_locked = mapping.lock().is_ok();
        Ok(Self { file, mapping, is_locked })
    }

    /// Whether the donor's kernel keeps the slab in memory, whatever happens.
    pub fn is_locked(&self) -> bool {
        self.is_locked
    }

    /// The file, for a borrower on this host that maps it itself.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// The slabs of one session, as its data connections see them.
///
/// The lock is held to find a slab, never while its memory is used: a long discard must not hold up the other
/// connections. A request that still runs when its slab is released ends on memory that no other process ever gets.
#[derive(Debug, Default)]
pub struct SessionSlabs {
    lent: RwLock<Vec<Option<Arc<SlabMemory>>>>,
}

impl SessionSlabs {
    /// From now on `handle` is served over data connections.
    pub fn insert(&self, handle: SlabHandle, slab: Arc<SlabMemory>) {
        let mut lent = self.lent.write().expect("no thread panics with the slabs locked");
        let index = handle.0 as usize;
        if lent.len() <= index {
            lent.resize_with(index + 1, || None);
        }
        assert!(lent[index].is_none(), "a handle names one slab");
        lent[index] = Some(slab);
    }

    /// `handle` is not lent any more.
    pub fn remove(&self, handle: SlabHandle) {
        let mut lent = self.lent.write().expect("no thread panics with the slabs locked");
        let slab = lent.get_mut(handle.0 as usize).and_then(Option::take);
        drop(lent);
        // Freeing many pages takes a while; others' requests go on meanwhile.
        drop(slab);
    }

    /// What `handle` names; none if it is not lent.
    pub fn find(&self, handle: SlabHandle) -> Option<Arc<SlabMemory>> {
        let lent = self.lent.read().expect("no thread panics with the slabs locked");
        lent.get(handle.0 as usize)?.clone()
    }

    /// Nothing is lent any more.
    pub fn clear(&self) {
        let slabs = std::mem::take(&mut *self.lent.write().expect("no thread panics with the slabs locked"));
        drop(slabs);
    }
}

impl Registrable for SlabMemory {
    fn memory(&self) -> &Mapping {
        &self.mapping
    }
}

impl SlabDirectory for SessionSlabs {
    fn with_slab(&self, slab: SlabHandle, use_memory: &mut dyn FnMut(&Mapping)) -> bool {
        let Some(memory) = self.find(slab) else { return false };
        use_memory(&memory.mapping);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = 1 << 20;

    fn made() -> Arc<SlabMemory> {
        Arc::new(SlabMemory::prepare(SIZE, || {}).unwrap())
    }

    #[test]
    fn a_prepared_slab_is_present_and_zero() {
        let pauses = std::cell::Cell::new(0);
        let slab = SlabMemory::prepare(SIZE, || pauses.set(pauses.get() + 1)).unwrap();
        assert_eq!(pauses.get(), SIZE as usize / PREPARE_STEP_BYTES);
        assert_eq!(slab.file.resident_bytes().unwrap(), SIZE);
        let mut bytes = vec![1; SIZE as usize];
        slab.mapping.read(0, &mut bytes);
        assert!(bytes.iter().all(|byte| *byte == 0));
    }

    #[test]
    fn only_slabs_that_are_lent_are_served() {
        let slabs = SessionSlabs::default();
        let served = |handle| slabs.with_slab(SlabHandle(handle), &mut |memory| memory.write(0, &[7]));
        assert!(!served(0));
        slabs.insert(SlabHandle(3), made());
        slabs.insert(SlabHandle(1), made());
        assert!(served(3) && !served(2) && served(1));
        slabs.remove(SlabHandle(3));
        slabs.remove(SlabHandle(9));
        assert!(!served(3) && served(1));
        slabs.clear();
        assert!(!served(1));
    }

    #[test]
    fn a_request_that_runs_while_its_slab_is_released_holds_no_other_up() {
        let slabs = SessionSlabs::default();
        slabs.insert(SlabHandle(0), made());
        let found = slabs.with_slab(SlabHandle(0), &mut |memory| {
            slabs.remove(SlabHandle(0));
            slabs.insert(SlabHandle(0), made());
            memory.write(0, &[9; 16]);
        });
        assert!(found);
        let mut seen = [1; 16];
        slabs.with_slab(SlabHandle(0), &mut |memory| memory.read(0, &mut seen));
        assert_eq!(seen, [0; 16], "the slab's next borrower sees nothing of it");
    }

    #[test]
    fn a_passed_file_shows_the_same_bytes_and_stays_present_without_the_donor() {
        let slab = SlabMemory::prepare(SIZE, || {}).unwrap();
        let file = Memfd::open(slab.file().try_clone_to_owned().unwrap()).unwrap();
        slab.mapping.write(5, b"page");
        drop(slab);
        assert_eq!(file.resident_bytes().unwrap(), SIZE);
        let mut seen = [0; 4];
        Mapping::shared(&file, SIZE as usize).unwrap().read(5, &mut seen);
        assert_eq!(&seen, b"page");
    }
}
