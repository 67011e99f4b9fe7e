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

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, RwLock};

use spillway_fabric::tcp::SlabDirectory;
use spillway_fabric::units::SlabHandle;
use spillway_sys::mapping::Mapping;
use spillway_sys::memfd::Memfd;

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
        let mapping = Mapping::anonymous(length)?;
        // Replaces the range by the file and maps all of its pages at once.
        mapping.attach(0, &file, length)?;
        // Without the privilege the slab is lent all the same, and counted.
        let is_locked = mapping.lock().is_ok();
        Ok(Self { file, mapping, is_locked })
    }

    /// Whether the donor's kernel keeps the slab in memory, whatever happens.
    pub fn is_locked(&self) -> bool {
        self.is_locked
    }

    /// Bytes of the slab.
    pub fn size_bytes(&self) -> u64 {
        self.file.length_bytes()
    }

    /// A descriptor of the file, for a borrower on this host that maps it itself.
    pub fn file(&self) -> io::Result<Memfd> {
        self.file.try_clone()
    }
}

/// Slabs made ahead, oldest first.
#[derive(Debug, Default)]
pub struct PreparedSlabs {
    slabs: VecDeque<SlabMemory>,
    bytes: u64,
}

impl PreparedSlabs {
    /// A slab of this size, if one is prepared.
    pub fn take(&mut self, size_bytes: u64) -> Option<SlabMemory> {
        let index = self.slabs.iter().position(|slab| slab.size_bytes() == size_bytes)?;
        let slab = self.slabs.remove(index)?;
        self.bytes -= slab.size_bytes();
        Some(slab)
    }

    /// Whether a slab of this size is prepared.
    pub fn has(&self, size_bytes: u64) -> bool {
        self.slabs.iter().any(|slab| slab.size_bytes() == size_bytes)
    }

    /// Keeps `slab` for a later lease.
    pub fn put(&mut self, slab: SlabMemory) {
        self.bytes += slab.size_bytes();
        self.slabs.push_back(slab);
    }

    /// Gives up the oldest slab.
    pub fn take_any(&mut self) -> Option<SlabMemory> {
        let size_bytes = self.slabs.front()?.size_bytes();
        self.take(size_bytes)
    }

    /// The size of each, oldest first.
    pub fn sizes(&self) -> Vec<u64> {
        self.slabs.iter().map(SlabMemory::size_bytes).collect()
    }

    /// Bytes of all of them.
    pub fn bytes(&self) -> u64 {
        self.bytes
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
    pub fn insert(&self, handle: SlabHandle, slab: SlabMemory) {
        let mut lent = self.lent.write().expect("no thread panics with the slabs locked");
        let index = handle.0 as usize;
        if lent.len() <= index {
            lent.resize_with(index + 1, || None);
        }
        assert!(lent[index].is_none(), "a handle names one slab");
        lent[index] = Some(Arc::new(slab));
    }

    /// `handle` is not lent any more.
    pub fn remove(&self, handle: SlabHandle) {
        let mut lent = self.lent.write().expect("no thread panics with the slabs locked");
        let slab = lent.get_mut(handle.0 as usize).and_then(Option::take);
        drop(lent);
        // Freeing many pages takes a while; others' requests go on meanwhile.
        drop(slab);
    }

    /// Takes over all that `other` lends, which then lends nothing.
    pub fn adopt(&self, other: &Self) {
        let slabs = std::mem::take(&mut *other.lent.write().expect("no thread panics with the slabs locked"));
        let mut lent = self.lent.write().expect("no thread panics with the slabs locked");
        assert!(lent.is_empty(), "a session adopts slabs before it lends any");
        *lent = slabs;
    }

    /// What `handle` names, for a borrower on this host; none if it is not lent.
    pub fn file(&self, handle: SlabHandle) -> Option<io::Result<Memfd>> {
        let lent = self.lent.read().expect("no thread panics with the slabs locked");
        lent.get(handle.0 as usize)?.as_ref().map(|slab| slab.file())
    }

    /// Nothing is lent any more.
    pub fn clear(&self) {
        let slabs = std::mem::take(&mut *self.lent.write().expect("no thread panics with the slabs locked"));
        drop(slabs);
    }
}

impl SlabDirectory for SessionSlabs {
    fn with_slab(&self, slab: SlabHandle, use_memory: &mut dyn FnMut(&Mapping)) -> bool {
        let lent = self.lent.read().expect("no thread panics with the slabs locked");
        let found = lent.get(slab.0 as usize).and_then(Option::clone);
        drop(lent);
        let Some(memory) = found else { return false };
        use_memory(&memory.mapping);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = 1 << 20;

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
    fn prepared_slabs_are_found_by_size() {
        let mut prepared = PreparedSlabs::default();
        for size_bytes in [SIZE, 2 * SIZE, SIZE] {
            prepared.put(SlabMemory::prepare(size_bytes, || {}).unwrap());
        }
        assert_eq!((prepared.sizes(), prepared.bytes()), (vec![SIZE, 2 * SIZE, SIZE], 4 * SIZE));
        assert!(prepared.take(4 * SIZE).is_none());
        assert!(prepared.has(2 * SIZE) && !prepared.has(4 * SIZE));
        assert_eq!(prepared.take(2 * SIZE).unwrap().size_bytes(), 2 * SIZE);
        assert!(prepared.take(2 * SIZE).is_none());
        assert!(prepared.take_any().is_some() && prepared.take(SIZE).is_some() && prepared.take_any().is_none());
        assert_eq!(prepared.bytes(), 0);
    }

    #[test]
    fn only_slabs_that_are_lent_are_served() {
        let slabs = SessionSlabs::default();
        let served = |handle| slabs.with_slab(SlabHandle(handle), &mut |memory| memory.write(0, &[7]));
        assert!(!served(0));
        slabs.insert(SlabHandle(3), SlabMemory::prepare(SIZE, || {}).unwrap());
        slabs.insert(SlabHandle(1), SlabMemory::prepare(SIZE, || {}).unwrap());
        assert!(served(3) && !served(2) && served(1));
        slabs.remove(SlabHandle(3));
        slabs.remove(SlabHandle(9));
        assert!(!served(3) && served(1));
        slabs.clear();
        assert!(!served(1));
    }

    #[test]
    fn slabs_go_over_to_the_session_that_resumes() {
        let (old, new) = (SessionSlabs::default(), SessionSlabs::default());
        old.insert(SlabHandle(1), SlabMemory::prepare(SIZE, || {}).unwrap());
        old.with_slab(SlabHandle(1), &mut |memory| memory.write(7, b"page"));
        new.adopt(&old);
        assert!(old.file(SlabHandle(1)).is_none() && new.file(SlabHandle(0)).is_none());
        let file = new.file(SlabHandle(1)).unwrap().unwrap();
        let mut seen = [0; 4];
        Mapping::shared(&file, SIZE as usize).unwrap().read(7, &mut seen);
        assert_eq!(&seen, b"page");
    }

    #[test]
    fn a_request_that_runs_while_its_slab_is_released_holds_nobody_up() {
        let slabs = SessionSlabs::default();
        slabs.insert(SlabHandle(0), SlabMemory::prepare(SIZE, || {}).unwrap());
        let found = slabs.with_slab(SlabHandle(0), &mut |memory| {
            slabs.remove(SlabHandle(0));
            slabs.insert(SlabHandle(0), SlabMemory::prepare(SIZE, || {}).unwrap());
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
        let file = slab.file().unwrap();
        slab.mapping.write(5, b"page");
        drop(slab);
        assert_eq!(file.resident_bytes().unwrap(), SIZE);
        let mut seen = [0; 4];
        Mapping::shared(&file, SIZE as usize).unwrap().read(5, &mut seen);
        assert_eq!(&seen, b"page");
    }
}
