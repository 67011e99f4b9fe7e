//! One range of address space in which slab handle `h` has its fixed place at `h * slab_size`.
//!
//! The manager attaches and detaches memfds; I/O threads copy without a lock. An atomic bit per handle says whether
//! it is attached. A thread reads it before a copy, so that nothing is touched without success, and again after it:
//! [`ShmWindow::detach`] clears the bit *before* it takes the memory away, so a bit that is still set afterwards
//! proves that the whole copy met the slab's memory. A caller that is given the memory itself
//! ([`mapped`](crate::queue_pair::QueuePair::mapped)) cannot look again, and keeps the slab from being detached
//! meanwhile. This relies on a handle not being reused while a request for it may run, which [`SlabHandle`] promises.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

use spillway_sys::mapping::{Mapping, Window};
use spillway_sys::memfd::Memfd;

use crate::queue_pair::RequestError;
use crate::units::{RemoteAddress, SlabHandle};

/// The lent slabs of one control session, see the module text.
#[derive(Debug)]
pub struct ShmWindow {
    range: Window,
    slab_size_bytes: usize,
    slab_count_max: usize,
    attached: Box<[AtomicU64]>,
    closed: AtomicBool,
}

impl ShmWindow {
    /// Reserves address space, without memory behind it, for `slab_count_max` slabs.
    pub fn new(slab_size_bytes: u64, slab_count_max: usize) -> io::Result<Arc<Self>> {
        let invalid = || io::Error::new(io::ErrorKind::InvalidInput, "the window is larger than the address space");
        let slab_size_bytes = usize::try_from(slab_size_bytes).map_err(|_| invalid())?;
        let length = slab_size_bytes.checked_mul(slab_count_max).ok_or_else(invalid)?;
        Ok(Arc::new(Self {
            range: Window::new(length)?,
            slab_size_bytes,
            slab_count_max,
            attached: (0..slab_count_max.div_ceil(u64::BITS as usize)).map(|_| AtomicU64::new(0)).collect(),
            closed: AtomicBool::new(false),
        }))
    }

    /// Puts a lent slab at its place. From the return on, requests for it are served.
    pub fn attach(&self, slab: SlabHandle, file: &Memfd) -> io::Result<()> {
        let Some((word, bit)) = self.position(slab) else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the donor lent more slabs than the window holds"));
        };
        if self.is_attached(slab) {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "the donor lent the same slab twice"));
        }
        self.range.attach(self.start(slab), file, self.slab_size_bytes)?;
        word.fetch_or(bit, Ordering::SeqCst);
        Ok(())
    }

    /// Takes a slab away. From the call on, requests for it end with [`RequestError::NotLent`].
    pub fn detach(&self, slab: SlabHandle) -> io::Result<()> {
        match self.position(slab) {
            Some((word, bit)) if word.fetch_and(!bit, Ordering::SeqCst) & bit != 0 => {
                self.range.detach(self.start(slab), self.slab_size_bytes)
            }
            _ => Ok(()),
        }
    }

    /// Whether `slab` is attached.
    pub fn is_attached(&self, slab: SlabHandle) -> bool {
        self.position(slab).is_some_and(|(word, bit)| word.load(Ordering::SeqCst) & bit != 0)
    }

    /// The control session ended: every queue pair of this window is down from now on.
    pub fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
    }

    /// Whether [`ShmWindow::close`] was called.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// Runs `access` with the window's memory and the offset of `remote` in it, if the range is lent before and after.
    pub(super) fn access(
        &self,
        remote: RemoteAddress,
        length_bytes: usize,
        access: impl FnOnce(&Mapping, usize) -> Result<(), RequestError>,
    ) -> Result<(), RequestError> {
        let (memory, offset) = self.place(remote, length_bytes).ok_or(RequestError::NotLent)?;
        let result = access(memory, offset);
        fence(Ordering::SeqCst);
        if self.is_attached(remote.slab) { result } else { Err(RequestError::NotLent) }
    }

    /// The window's memory and the offset of `remote` in it, if the range is lent now.
    pub(super) fn place(&self, remote: RemoteAddress, length_bytes: usize) -> Option<(&Mapping, usize)> {
        let offset = remote.offset_bytes as usize;
        let is_inside = offset.checked_add(length_bytes).is_some_and(|end| end <= self.slab_size_bytes);
        (is_inside && self.is_attached(remote.slab)).then(|| (self.range.memory(), self.start(remote.slab) + offset))
    }

    fn start(&self, slab: SlabHandle) -> usize {
        slab.0 as usize * self.slab_size_bytes
    }

    fn position(&self, slab: SlabHandle) -> Option<(&AtomicU64, u64)> {
        let index = slab.0 as usize;
        (index < self.slab_count_max).then(|| (&self.attached[index / 64], 1 << (index % 64)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLAB: u64 = 1 << 20;

    #[test]
    fn slabs_come_and_go_without_touching_their_neighbours() {
        let window = ShmWindow::new(SLAB, 100).unwrap();
        let file = Memfd::create("slab", SLAB).unwrap();
        window.attach(SlabHandle(70), &file).unwrap();
        assert!(window.is_attached(SlabHandle(70)));
        assert!(!window.is_attached(SlabHandle(69)) && !window.is_attached(SlabHandle(6)));
        assert!(window.attach(SlabHandle(70), &file).is_err(), "twice");
        window.detach(SlabHandle(70)).unwrap();
        assert!(!window.is_attached(SlabHandle(70)));
        window.detach(SlabHandle(70)).unwrap();
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let window = ShmWindow::new(SLAB, 100).unwrap();
        let small = Memfd::create("small", SLAB / 2).unwrap();
        assert!(window.attach(SlabHandle(0), &small).is_err());
        assert!(!window.is_attached(SlabHandle(0)));
        let file = Memfd::create("slab", SLAB).unwrap();
        assert!(window.attach(SlabHandle(100), &file).is_err());
        assert!(!window.is_attached(SlabHandle(100)));
        window.detach(SlabHandle(100)).unwrap();
        assert!(ShmWindow::new(u64::MAX, 2).is_err());
    }

    #[test]
    fn a_slab_detached_during_a_copy_fails_the_copy() {
        let window = ShmWindow::new(SLAB, 1).unwrap();
        window.attach(SlabHandle(0), &Memfd::create("slab", SLAB).unwrap()).unwrap();
        let remote = RemoteAddress { slab: SlabHandle(0), offset_bytes: 0 };
        let result = window.access(remote, 4096, |_, _| {
            window.detach(SlabHandle(0)).unwrap();
            Ok(())
        });
        assert_eq!(result, Err(RequestError::NotLent));
    }

    #[test]
    fn a_range_outside_the_slab_is_not_lent() {
        let window = ShmWindow::new(SLAB, 2).unwrap();
        window.attach(SlabHandle(0), &Memfd::create("slab", SLAB).unwrap()).unwrap();
        for (offset_bytes, length) in [(SLAB as u32, 4096), (SLAB as u32 - 4096, 8192), (u32::MAX, usize::MAX)] {
            let remote = RemoteAddress { slab: SlabHandle(0), offset_bytes };
            let result = window.access(remote, length, |_, _| panic!("must not be reached"));
            assert_eq!(result, Err(RequestError::NotLent));
        }
    }
}
