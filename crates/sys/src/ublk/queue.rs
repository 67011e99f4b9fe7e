//! `/dev/ublkcN`: one hardware queue's requests and answers, over a ring of its own.
//!
//! A slot is *with the kernel* from [`UblkQueue::fetch`] or [`UblkQueue::answer`] until [`UblkQueue::next_event`]
//! names it. Meanwhile the kernel may write a request's data into its buffer (and takes a read's data out of it
//! within the answer); so the buffers are a [`RingMemory`] that the queue owns a share of. A queue that is dropped
//! while the kernel has slots leaks its share: the kernel notices the drop only later.
//!
//! The thread that fetches is the queue's server: all slots must be fetched, and are answered, by one thread.
//!
//! The ring leaves the thread alone until it enters the kernel by itself (`IORING_SETUP_COOP_TASKRUN`), and says in
//! shared memory that there is something to enter for; a thread that sleeps in `epoll_wait` or `poll` is woken.
//! Nothing here allocates after [`UblkDevice::queue`].

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use io_uring::{IoUring, opcode, types};
use rustix::fs::{Mode, OFlags};
use rustix::mm::{self, MapFlags, ProtFlags};

use super::abi::{COMMIT_AND_FETCH, DESCRIPTOR_BYTES, Descriptor, FETCH, QUEUE_DEPTH_MAX, io_command};
use crate::io_ring::{RingMemory, hand_over};
use crate::mapping::{Mapping, PAGE_SIZE_BYTES};

/// The driver cuts larger requests (`UBLK_MAX_IO_BYTES`).
const SLOT_SIZE_BYTES_MAX: usize = 1 << 20;

/// The only registered file: the character device.
const REGISTERED_INDEX: u32 = 0;

/// The character device of one ublk device. One process may have it open, once.
#[derive(Debug)]
pub struct UblkDevice {
    file: OwnedFd,
}

impl UblkDevice {
    /// Opens `/dev/ublkcN` of the device with the number `device`.
    pub fn open(device: u32) -> io::Result<Self> {
        let path = format!("/dev/ublkc{device}");
        Ok(Self { file: rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())? })
    }

    /// The queue with the number `number`, of `depth` slots whose buffers lie in `memory`. The queue keeps the device
    /// open.
    pub fn queue(&self, number: u16, depth: u16, memory: Arc<dyn RingMemory>) -> io::Result<UblkQueue> {
        let ring = IoUring::builder().setup_coop_taskrun().setup_taskrun_flag().build(depth.into())?;
        ring.submitter().register_files(&[self.file.as_raw_fd()])?;
        Ok(UblkQueue {
            ring,
            number,
            descriptors: Descriptors::map(self.file.as_fd(), number, depth)?,
            memory,
            with_kernel: vec![false; depth.into()].into(),
            with_kernel_count: 0,
            unsubmitted: 0,
        })
    }

    /// Fetches every slot of all queues, `depth` each, and closes the device. When the calling thread ends, the driver
    /// takes the slots back; it then knows a server of each queue, and this server has ended. A slot that has a server
    /// refuses a second one, and keeps the first.
    ///
    /// Linux 6.7 to 6.15 need this before the begin of a recovery, if a server may have died between the begin of an
    /// earlier one and its last queue. Without the server of a queue, the driver refuses the begin, or follows a null
    /// pointer (`ublk_ctrl_start_recovery` in `drivers/block/ublk_drv.c`).
    pub fn serve_briefly(self, queue_count: u16, depth: u16) -> io::Result<()> {
        let mut ring: IoUring = IoUring::builder().build(u32::from(queue_count) * u32::from(depth))?;
        // No request is delivered before the end of a recovery. Should the driver use the buffer all the same, the
        // buffer is there: this memory stays mapped, and takes no page.
        let memory = std::mem::ManuallyDrop::new(Mapping::anonymous(SLOT_SIZE_BYTES_MAX)?);
        for (number, slot) in (0..queue_count).flat_map(|number| (0..depth).map(move |slot| (number, slot))) {
            let command = io_command(number, slot, 0, memory.address() as u64);
            let entry = opcode::UringCmd16::new(types::Fd(self.file.as_raw_fd()), FETCH).cmd(command).build();
            // SAFETY: the buffer is `memory`, which is never unmapped.
            unsafe { ring.submission().push(&entry) }.expect("there is a place for every slot");
        }
        let wanted = usize::from(queue_count) * usize::from(depth);
        if ring.submit()? != wanted {
            return Err(io::Error::other("the kernel took some of the commands only"));
        }
        // A slot that has, or had, a server is refused.
        let is_expected = |result: i32| [-libc::EINVAL, -libc::EBUSY, -libc::ENODEV].contains(&result);
        match ring.completion().map(|entry| entry.result()).find(|result| !is_expected(*result)) {
            Some(result) => Err(io::Error::from_raw_os_error(-result)),
            None => Ok(()),
        }
    }
}

/// What became of a slot that was with the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotEvent {
    /// It holds a request.
    Request(Descriptor),
    /// It holds nothing and will not any more: the errno, `ENODEV` when the device stops.
    Ended(i32),
}

/// See the module text.
pub struct UblkQueue {
    ring: IoUring,
    number: u16,
    descriptors: Descriptors,
    memory: Arc<dyn RingMemory>,
    with_kernel: Box<[bool]>,
    with_kernel_count: usize,
    /// Pushed but not yet handed to the kernel.
    unsubmitted: usize,
}

impl std::fmt::Debug for UblkQueue {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (number, with_kernel) = (self.number, self.with_kernel_count);
        formatter.debug_struct("UblkQueue").field("number", &number).field("with_kernel", &with_kernel).finish()
    }
}

impl UblkQueue {
    /// Lets `slot` wait for its first request, with the buffer of `length` bytes at `offset` of the memory.
    pub fn fetch(&mut self, slot: u16, offset: usize, length: usize) {
        self.push(slot, FETCH, 0, offset, length);
    }

    /// Answers the request in `slot` with `result` (bytes, or a negative errno), and lets it wait for the next one.
    pub fn answer(&mut self, slot: u16, result: i32, offset: usize, length: usize) {
        self.push(slot, COMMIT_AND_FETCH, result, offset, length);
    }

    fn push(&mut self, slot: u16, operation: u32, result: i32, offset: usize, length: usize) {
        assert!(!std::mem::replace(&mut self.with_kernel[usize::from(slot)], true), "slot {slot} is with the kernel");
        self.with_kernel_count += 1;
        self.unsubmitted += 1;
        let command = io_command(self.number, slot, result, self.address(offset, length));
        let entry = opcode::UringCmd16::new(types::Fixed(REGISTERED_INDEX), operation).cmd(command).build();
        // SAFETY: the buffer lies in `memory` (checked by `address`), which lives for as long as a slot is with the
        // kernel.
        unsafe { self.ring.submission().push(&entry.user_data(slot.into())) }.expect("there is a place for every slot");
    }

    fn address(&self, offset: usize, length: usize) -> u64 {
        let mapping = self.memory.mapping();
        let inside = offset.checked_add(length).is_some_and(|end| end <= mapping.length());
        assert!(inside, "range {offset}+{length} lies outside the queue's memory of {} bytes", mapping.length());
        (mapping.address() + offset) as u64
    }

    /// Hands everything over that was pushed, in one system call, and lets the kernel put waiting requests into slots.
    pub fn submit(&mut self) -> io::Result<()> {
        hand_over(&mut self.ring, &mut self.unsubmitted)
    }

    /// The next slot that the kernel gave back. No system call.
    pub fn next_event(&mut self) -> Option<(u16, SlotEvent)> {
        let entry = self.ring.completion().next()?;
        let slot = entry.user_data() as u16;
        assert!(
            std::mem::replace(&mut self.with_kernel[usize::from(slot)], false),
            "slot {slot} was not with the kernel"
        );
        self.with_kernel_count -= 1;
        let event = match entry.result() {
            0 => SlotEvent::Request(self.descriptors.read(slot)),
            error => SlotEvent::Ended(-error),
        };
        Some((slot, event))
    }
}

/// Readable while slots wait to be taken.
impl AsFd for UblkQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the ring owns the descriptor and the borrow cannot outlive the ring.
        unsafe { BorrowedFd::borrow_raw(self.ring.as_raw_fd()) }
    }
}

impl Drop for UblkQueue {
    fn drop(&mut self) {
        // Answers that were not handed over yet; the thread that waits for them should have them.
        let _ = self.submit();
        while self.next_event().is_some() {}
        if self.with_kernel_count > 0 {
            std::mem::forget(Arc::clone(&self.memory));
        } else {
            // The ring itself goes later, on a worker of the kernel; the device should be free now.
            let _ = self.ring.submitter().unregister_files();
        }
    }
}

/// The queue's requests, one for each slot, written by the kernel before it gives the slot back.
#[derive(Debug)]
struct Descriptors {
    base: NonNull<u8>,
    length: usize,
    count: usize,
}

// SAFETY: plain memory that this value owns the mapping of, read by copying bytes out; nothing is bound to a thread.
unsafe impl Send for Descriptors {}

impl Descriptors {
    fn map(file: BorrowedFd<'_>, queue: u16, depth: u16) -> io::Result<Self> {
        let bytes_of = |depth: u16| (usize::from(depth) * DESCRIPTOR_BYTES).next_multiple_of(PAGE_SIZE_BYTES);
        let (length, offset) = (bytes_of(depth), u64::from(queue) * bytes_of(QUEUE_DEPTH_MAX) as u64);
        // SAFETY: a fresh mapping at an address the kernel chooses replaces nothing.
        let base = unsafe { mm::mmap(std::ptr::null_mut(), length, ProtFlags::READ, MapFlags::SHARED, file, offset)? };
        let base = NonNull::new(base.cast()).ok_or_else(|| io::Error::other("memory was mapped at address zero"))?;
        Ok(Self { base, length, count: depth.into() })
    }

    fn read(&self, slot: u16) -> Descriptor {
        let slot = usize::from(slot);
        assert!(slot < self.count, "slot {slot} of {}", self.count);
        let mut bytes = [0; DESCRIPTOR_BYTES];
        // SAFETY: the range lies inside the mapping (checked); the kernel wrote it before the completion that the
        // caller has taken, and writes it again only after the slot was answered.
        unsafe {
            let source = self.base.as_ptr().add(slot * DESCRIPTOR_BYTES);
            std::ptr::copy_nonoverlapping(source, bytes.as_mut_ptr(), bytes.len());
        }
        Descriptor::decode(&bytes)
    }
}

impl Drop for Descriptors {
    fn drop(&mut self) {
        // SAFETY: the value owns the range and is going away; nothing else refers to it.
        let _ = unsafe { mm::munmap(self.base.as_ptr().cast(), self.length) };
    }
}
