//! The borrower's table of the slabs that are lent to it in one session, and the keys that reach them.
//!
//! One atomic word for each handle. The manager writes it when a slab is lent or given back; I/O threads look at it for
//! each request, so that what is not lent is refused without asking the donor. A request that is in flight when its
//! slab is given back would break its connection: callers give a slab back when no request uses it any more.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::limits::SLABS_PER_SESSION_MAX;
use crate::queue_pair::RequestError;
use crate::units::{RemoteAddress, SlabHandle};

/// The slab is lent.
const LENT: u64 = 1 << 63;
/// It has a key, in the lower half of the word.
const HAS_KEY: u64 = 1 << 62;

/// See the module text.
#[derive(Debug)]
pub struct RemoteSlabs {
    slab_size_bytes: u64,
    words: Box<[AtomicU64]>,
    is_closed: AtomicBool,
}

impl RemoteSlabs {
    /// A table without slabs.
    pub fn new(slab_size_bytes: u64) -> Arc<Self> {
        let words = (0..SLABS_PER_SESSION_MAX).map(|_| AtomicU64::new(0)).collect();
        Arc::new(Self { slab_size_bytes, words, is_closed: AtomicBool::new(false) })
    }

    /// From now on requests for `slab` are taken; without a key they travel over TCP.
    pub fn insert(&self, slab: SlabHandle, key: Option<u32>) -> io::Result<()> {
        let invalid = |what| io::Error::new(io::ErrorKind::InvalidInput, what);
        let word = self.words.get(slab.0 as usize).ok_or_else(|| invalid("the donor lent more slabs than it may"))?;
        let lent = key.map_or(LENT, |key| LENT | HAS_KEY | u64::from(key));
        let inserted = word.compare_exchange(0, lent, Ordering::SeqCst, Ordering::SeqCst);
        inserted.map(drop).map_err(|_| invalid("the donor lent the same slab twice"))
    }

    /// From now on requests for `slab` are refused.
    pub fn remove(&self, slab: SlabHandle) {
        if let Some(word) = self.words.get(slab.0 as usize) {
            word.store(0, Ordering::SeqCst);
        }
    }

    /// How many slabs are lent without a key.
    pub fn count_without_key(&self) -> u64 {
        let is_without = |word: &&AtomicU64| word.load(Ordering::Relaxed) & (LENT | HAS_KEY) == LENT;
        self.words.iter().filter(is_without).count() as u64
    }

    /// The session ended: every queue pair of this table is down from now on.
    pub fn close(&self) {
        self.is_closed.store(true, Ordering::SeqCst);
    }

    /// Whether [`RemoteSlabs::close`] was called.
    pub fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::SeqCst)
    }

    /// The key for `length_bytes` at `remote`; none for a slab that is reached over TCP.
    pub(super) fn key(&self, remote: RemoteAddress, length_bytes: u32) -> Result<Option<u32>, RequestError> {
        let is_inside = u64::from(remote.offset_bytes) + u64::from(length_bytes) <= self.slab_size_bytes;
        let word = self.words.get(remote.slab.0 as usize).map_or(0, |word| word.load(Ordering::SeqCst));
        if !is_inside || word & LENT == 0 {
            return Err(RequestError::NotLent);
        }
        Ok((word & HAS_KEY != 0).then_some(word as u32))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLAB: u64 = 1 << 20;

    fn at(slab: u32, offset_bytes: u32) -> RemoteAddress {
        RemoteAddress { slab: SlabHandle(slab), offset_bytes }
    }

    #[test]
    fn only_ranges_of_lent_slabs_have_keys() {
        let slabs = RemoteSlabs::new(SLAB);
        assert_eq!(slabs.key(at(3, 0), 4096), Err(RequestError::NotLent));
        slabs.insert(SlabHandle(3), Some(u32::MAX)).unwrap();
        slabs.insert(SlabHandle(4), None).unwrap();
        assert_eq!(slabs.key(at(3, SLAB as u32 - 4096), 4096), Ok(Some(u32::MAX)));
        assert_eq!(slabs.key(at(4, 0), 4096), Ok(None));
        for (remote, length) in [(at(3, SLAB as u32 - 4096), 8192), (at(3, u32::MAX - 4095), 4096), (at(5, 0), 1)] {
            assert_eq!(slabs.key(remote, length), Err(RequestError::NotLent), "{remote:?}");
        }
        assert!(slabs.insert(SlabHandle(3), Some(1)).is_err(), "twice");
        assert!(slabs.insert(SlabHandle(SLABS_PER_SESSION_MAX as u32), None).is_err());
        slabs.remove(SlabHandle(3));
        assert_eq!(slabs.key(at(3, 0), 4096), Err(RequestError::NotLent));
        slabs.insert(SlabHandle(3), Some(0)).unwrap();
        assert_eq!(slabs.key(at(3, 0), 4096), Ok(Some(0)), "zero is a key");
    }
}
