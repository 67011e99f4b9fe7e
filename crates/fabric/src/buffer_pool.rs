//! Pre-registered page buffers.
//!
//! HPBD found copying a page 12 times cheaper than registering it, so buffers are registered once and pages are
//! copied in and out. A pool is one locked, prefaulted range cut into equal slots; a slot is named by its number, and
//! a queue pair that was given the pool reads and writes any [`BufferRange`] of it.

use std::io;
use std::sync::Arc;

use spillway_sys::mapping::Mapping;

use crate::units::{BufferRange, PAGE_SIZE_BYTES};

/// Equal slots of locked memory, see the module text.
#[derive(Debug)]
pub struct BufferPool {
    memory: Mapping,
    slot_size_bytes: u32,
    slot_count: u32,
    has_twins: bool,
    is_present: bool,
}

impl BufferPool {
    /// `slot_count` slots of `slot_size_bytes` (a multiple of the page size), present and locked.
    pub fn new(slot_count: usize, slot_size_bytes: usize) -> io::Result<Arc<Self>> {
        let length = Self::length_bytes(slot_count, slot_size_bytes)?;
        Ok(Arc::new(Self::cut(Mapping::locked(length)?, slot_count, slot_size_bytes)))
    }

    /// As [`BufferPool::new`], present and not locked: for processes that serve single programs and not the whole
    /// machine, and may have no right to lock much.
    pub fn unlocked(slot_count: usize, slot_size_bytes: usize) -> io::Result<Arc<Self>> {
        Self::unlocked_over(
            Mapping::anonymous(Self::length_bytes(slot_count, slot_size_bytes)?)?,
            slot_count,
            slot_size_bytes,
        )
    }

    /// As [`BufferPool::unlocked`], with a second range of memory for each slot, its twin: for data that must stay as
    /// it is while something made of it is sent.
    pub fn unlocked_with_twins(slot_count: usize, slot_size_bytes: usize) -> io::Result<Arc<Self>> {
        let memory = Mapping::anonymous(Self::length_bytes(2 * slot_count, slot_size_bytes)?)?;
        memory.zero(0, memory.length());
        let (slot_size_bytes, slot_count) = (slot_size_bytes as u32, slot_count as u32);
        Ok(Arc::new(Self { memory, slot_size_bytes, slot_count, has_twins: true, is_present: true }))
    }

    /// As [`BufferPool::unlocked`], in memory that the caller has mapped, of exactly the pool's size.
    pub fn unlocked_over(memory: Mapping, slot_count: usize, slot_size_bytes: usize) -> io::Result<Arc<Self>> {
        Self::check_size(&memory, slot_count, slot_size_bytes)?;
        memory.zero(0, memory.length());
        Ok(Arc::new(Self::cut(memory, slot_count, slot_size_bytes)))
    }

    /// As [`BufferPool::new`], in memory that the caller has mapped, of exactly the pool's size, and that this locks.
    pub fn over(memory: Mapping, slot_count: usize, slot_size_bytes: usize) -> io::Result<Arc<Self>> {
        Self::check_size(&memory, slot_count, slot_size_bytes)?;
        memory.lock()?;
        Ok(Arc::new(Self::cut(memory, slot_count, slot_size_bytes)))
    }

    /// As [`BufferPool::over`], neither present nor locked: a page of it comes when it is touched. The kernel is not to
    /// pin it as a whole ([`BufferPool::is_present`]).
    pub fn as_used(memory: Mapping, slot_count: usize, slot_size_bytes: usize) -> io::Result<Arc<Self>> {
        Self::check_size(&memory, slot_count, slot_size_bytes)?;
        let pool = Self::cut(memory, slot_count, slot_size_bytes);
        Ok(Arc::new(Self { is_present: false, ..pool }))
    }

    fn check_size(memory: &Mapping, slot_count: usize, slot_size_bytes: usize) -> io::Result<()> {
        if memory.length() != Self::length_bytes(slot_count, slot_size_bytes)? {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the memory has another size than the pool"));
        }
        Ok(())
    }

    fn cut(memory: Mapping, slot_count: usize, slot_size_bytes: usize) -> Self {
        Self {
            memory,
            slot_size_bytes: slot_size_bytes as u32,
            slot_count: slot_count as u32,
            has_twins: false,
            is_present: true,
        }
    }

    /// Whether all of its memory is present.
    pub fn is_present(&self) -> bool {
        self.is_present
    }

    fn length_bytes(slot_count: usize, slot_size_bytes: usize) -> io::Result<usize> {
        let invalid = || io::Error::new(io::ErrorKind::InvalidInput, "a buffer pool is whole pages below 4 GiB");
        let length = slot_count.checked_mul(slot_size_bytes).ok_or_else(invalid)?;
        if slot_size_bytes == 0 || !slot_size_bytes.is_multiple_of(PAGE_SIZE_BYTES) {
            return Err(invalid());
        }
        u32::try_from(length).map_err(|_| invalid())?;
        Ok(length)
    }

    /// Slots in the pool.
    pub fn slot_count(&self) -> usize {
        self.slot_count as usize
    }

    /// Bytes of each slot.
    pub fn slot_size_bytes(&self) -> usize {
        self.slot_size_bytes as usize
    }

    /// The whole of slot `slot`.
    pub fn slot(&self, slot: usize) -> BufferRange {
        assert!(slot < self.slot_count(), "slot {slot} of {}", self.slot_count);
        BufferRange { offset_bytes: slot as u32 * self.slot_size_bytes, length_bytes: self.slot_size_bytes }
    }

    /// The twin of slot `slot`, if the pool has twins.
    pub fn twin(&self, slot: usize) -> Option<BufferRange> {
        let BufferRange { offset_bytes, length_bytes } = self.slot(slot);
        let twins_bytes = self.slot_count * self.slot_size_bytes;
        self.has_twins.then_some(BufferRange { offset_bytes: twins_bytes + offset_bytes, length_bytes })
    }

    /// The memory of the pool, addressed by [`BufferRange::offset_bytes`].
    pub fn memory(&self) -> &Mapping {
        &self.memory
    }
}

impl BufferRange {
    /// `length_bytes` of this range, from `offset_bytes` on.
    pub fn part(self, offset_bytes: usize, length_bytes: usize) -> Self {
        assert!(offset_bytes + length_bytes <= self.length_bytes as usize, "part lies outside its buffer");
        Self { offset_bytes: self.offset_bytes + offset_bytes as u32, length_bytes: length_bytes as u32 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_disjoint_and_parts_stay_inside() {
        let pool = BufferPool::new(3, 8192).unwrap();
        assert_eq!(pool.slot(1), BufferRange { offset_bytes: 8192, length_bytes: 8192 });
        assert_eq!(pool.slot(2).part(4096, 4096), BufferRange { offset_bytes: 20480, length_bytes: 4096 });
        assert!(BufferPool::new(1, 100).is_err());
        assert!(BufferPool::new(0, 4096).is_err());
    }

    #[test]
    fn twins_are_as_disjoint_as_slots() {
        let pool = BufferPool::unlocked_with_twins(2, 8192).unwrap();
        assert_eq!(pool.slot_count(), 2);
        assert_eq!(pool.twin(1), Some(BufferRange { offset_bytes: 24576, length_bytes: 8192 }));
        assert_eq!(pool.memory().length(), 32768);
        assert_eq!(BufferPool::unlocked(2, 8192).unwrap().twin(0), None);
    }

    #[test]
    fn a_pool_may_lie_in_memory_of_the_caller_of_the_right_size() {
        let pool = BufferPool::over(Mapping::anonymous(16384).unwrap(), 2, 8192).unwrap();
        assert_eq!(pool.slot(1), BufferRange { offset_bytes: 8192, length_bytes: 8192 });
        assert!(BufferPool::over(Mapping::anonymous(16384).unwrap(), 3, 8192).is_err());
        assert_eq!(BufferPool::unlocked(2, 8192).unwrap().slot_count(), 2);
        assert!(BufferPool::unlocked_over(Mapping::anonymous(16384).unwrap(), 3, 8192).is_err());
    }
}
