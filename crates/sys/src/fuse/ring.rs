//! FUSE over io_uring (Linux 6.14): requests and answers of a filesystem pass through a ring instead of `/dev/fuse`.
//!
//! The kernel has one queue for each possible CPU. A request goes into the queue of the CPU where it was made, and a
//! slot that waits in that queue takes it. A slot is *with the kernel* from [`FuseRing::register`] or
//! [`FuseRing::answer`] until [`FuseRing::next_event`] names it. Meanwhile the kernel writes the request's head into
//! the slot's header and its data into the slot's buffer. With an answer it takes a read's data out of the buffer.
//!
//! Source of every layout and number: `include/uapi/linux/fuse.h`, protocol 7.42, and
//! `Documentation/filesystems/fuse-io-uring.rst` of Linux 6.14.
//!
//! The thread that registers a slot also answers it: the kernel copies pages as that thread's work. The ring leaves
//! the thread alone until it enters the kernel by itself (`IORING_SETUP_COOP_TASKRUN`), and says in shared memory that
//! there is something to enter for. A thread that sleeps in `epoll_wait` or `poll` is woken. Nothing here allocates
//! after [`FuseRing::new`].

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;

use io_uring::{IoUring, cqueue, opcode, squeue, types};

use super::{FuseDevice, REQUEST_HEAD_BYTES, part};
use crate::io_ring::{RingMemory, hand_over};
use crate::mapping::Mapping;

/// `FUSE_IO_URING_CMD_REGISTER`: a slot waits for its first request.
const REGISTER: u32 = 1;
/// `FUSE_IO_URING_CMD_COMMIT_AND_FETCH`: the answer, and the slot waits for the next request.
const COMMIT_AND_FETCH: u32 = 2;

/// `fuse_uring_req_header`: the header in or out (128 bytes), the fixed argument (128 bytes), and
/// `fuse_uring_ent_in_out` (32 bytes).
const HEADER_BYTES: usize = 288;
/// Bytes from one slot's header to the next one's: a multiple of a cache line.
const HEADER_STRIDE_BYTES: usize = 320;
/// `fuse_uring_req_header.op_in`.
const ARGUMENT_OFFSET: usize = 128;
/// `fuse_uring_ent_in_out.commit_id`, which names the request in its answer.
const COMMIT_ID_OFFSET: usize = 256 + 8;
/// `fuse_uring_ent_in_out.payload_sz`, the bytes of the buffer that belong to the answer.
const PAYLOAD_LENGTH_OFFSET: usize = 256 + 16;
/// `fuse_in_header`.
const REQUEST_HEADER_BYTES: usize = 40;
/// `fuse_out_header`.
pub const REPLY_HEADER_BYTES: usize = 16;

/// The vectors that a slot is registered with: its header and its buffer (`FUSE_URING_IOV_SEGS`).
const VECTORS_PER_SLOT: usize = 2;

/// The only registered file: the connection.
const REGISTERED_INDEX: u32 = 0;

/// What became of a slot that was with the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RingEvent {
    /// It holds a request.
    Request,
    /// It holds nothing and will not any more: the errno, `ENOTCONN` when the filesystem is gone.
    Ended(i32),
}

/// See the module text.
pub struct FuseRing {
    ring: IoUring<squeue::Entry128, cqueue::Entry>,
    memory: Arc<dyn RingMemory>,
    headers: Arc<Mapping>,
    vectors: Box<[[libc::iovec; VECTORS_PER_SLOT]]>,
    /// The kernel's queue of each slot that was registered.
    queues: Box<[u16]>,
    with_kernel: Box<[bool]>,
    with_kernel_count: usize,
    /// Pushed but not yet handed to the kernel.
    unsubmitted: usize,
}

// SAFETY: the raw pointers in `vectors` point into the two mappings that this value owns shares of, and are passed to
// the kernel only. Nothing is bound to the thread that made the ring.
unsafe impl Send for FuseRing {}

impl std::fmt::Debug for FuseRing {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("FuseRing").field("with_kernel", &self.with_kernel_count).finish_non_exhaustive()
    }
}

impl FuseRing {
    /// A ring of the filesystem of `device`, with `slot_count` slots whose buffers lie in `memory`.
    pub fn new(device: &FuseDevice, memory: Arc<dyn RingMemory>, slot_count: u16) -> io::Result<Self> {
        let count = usize::from(slot_count);
        let ring = IoUring::builder().setup_coop_taskrun().setup_taskrun_flag().build(slot_count.into())?;
        ring.submitter().register_files(&[device.as_fd().as_raw_fd()])?;
        let headers = Arc::new(Mapping::locked((count * HEADER_STRIDE_BYTES).next_multiple_of(4096))?);
        let nothing = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        Ok(Self {
            ring,
            memory,
            headers,
            vectors: vec![[nothing; VECTORS_PER_SLOT]; count].into(),
            queues: vec![0; count].into(),
            with_kernel: vec![false; count].into(),
            with_kernel_count: 0,
            unsubmitted: 0,
        })
    }

    /// Lets `slot`, with its buffer of `length` bytes at `offset` of the memory, wait for its first request in the
    /// kernel's queue `queue`. The kernel wants a buffer as long as the longest request and answer.
    pub fn register(&mut self, slot: usize, queue: u16, offset: usize, length: usize) {
        self.queues[slot] = queue;
        let header = part(&self.headers, slot * HEADER_STRIDE_BYTES, HEADER_BYTES);
        self.vectors[slot] = [header, part(self.memory.mapping(), offset, length)];
        let address = self.vectors[slot].as_ptr() as u64;
        self.push(slot, REGISTER, 0, Some(address));
    }

    /// The first bytes of the request in `slot`, as `/dev/fuse` would have them: its header and fixed argument.
    pub fn head(&self, slot: usize) -> [u8; REQUEST_HEAD_BYTES] {
        let (mut head, at) = ([0; REQUEST_HEAD_BYTES], slot * HEADER_STRIDE_BYTES);
        let (header, argument) = head.split_at_mut(REQUEST_HEADER_BYTES);
        self.headers.read(at, header);
        self.headers.read(at + ARGUMENT_OFFSET, argument);
        head
    }

    /// Answers the request in `slot` with a reply's header, `payload_bytes` of the slot's buffer, and lets the slot
    /// wait for the next request.
    pub fn answer(&mut self, slot: usize, header: &[u8; REPLY_HEADER_BYTES], payload_bytes: u32) {
        let at = slot * HEADER_STRIDE_BYTES;
        let mut commit_id = [0; 8];
        self.headers.read(at + COMMIT_ID_OFFSET, &mut commit_id);
        self.headers.write(at, header);
        self.headers.write(at + PAYLOAD_LENGTH_OFFSET, &payload_bytes.to_ne_bytes());
        self.push(slot, COMMIT_AND_FETCH, u64::from_ne_bytes(commit_id), None);
    }

    fn push(&mut self, slot: usize, operation: u32, commit_id: u64, vectors: Option<u64>) {
        assert!(!std::mem::replace(&mut self.with_kernel[slot], true), "slot {slot} is with the kernel");
        self.with_kernel_count += 1;
        self.unsubmitted += 1;
        // `fuse_uring_cmd_req`: flags, commit_id, qid.
        let mut command = [0; 80];
        command[8..16].copy_from_slice(&commit_id.to_ne_bytes());
        command[16..18].copy_from_slice(&self.queues[slot].to_ne_bytes());
        let file = types::Fixed(REGISTERED_INDEX);
        let entry = opcode::UringCmd80::new(file, operation).cmd(command).addr(vectors).build();
        let mut entry = entry.user_data(slot as u64);
        if vectors.is_some() {
            set_length(&mut entry, VECTORS_PER_SLOT as u32);
        }
        // SAFETY: the vectors, the header and the buffer live for as long as a slot is with the kernel (see `drop`).
        unsafe { self.ring.submission().push(&entry) }.expect("there is a place for every slot");
    }

    /// Hands everything over that was pushed, in one system call, and lets the kernel put waiting requests into slots.
    pub fn submit(&mut self) -> io::Result<()> {
        hand_over(&mut self.ring, &mut self.unsubmitted)
    }

    /// The next slot that the kernel gave back. No system call.
    pub fn next_event(&mut self) -> Option<(usize, RingEvent)> {
        let entry = self.ring.completion().next()?;
        let slot = entry.user_data() as usize;
        assert!(std::mem::replace(&mut self.with_kernel[slot], false), "slot {slot} was not with the kernel");
        self.with_kernel_count -= 1;
        let event = match entry.result() {
            error if error < 0 => RingEvent::Ended(-error),
            _ => RingEvent::Request,
        };
        Some((slot, event))
    }
}

/// Sets `len` of an entry, for which the library has no name (`struct io_uring_sqe`: the byte 24).
fn set_length(entry: &mut squeue::Entry128, length: u32) {
    const LENGTH_OFFSET: usize = 24;
    const _: () = assert!(size_of::<squeue::Entry128>() == 128);
    // SAFETY: an entry is 128 bytes of plain data, laid out as the kernel has them, and borrowed exclusively.
    unsafe { (&raw mut *entry).cast::<u8>().add(LENGTH_OFFSET).cast::<u32>().write(length) };
}

/// Readable while slots wait to be taken.
impl AsFd for FuseRing {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the ring owns the descriptor and the borrow cannot outlive the ring.
        unsafe { BorrowedFd::borrow_raw(self.ring.as_raw_fd()) }
    }
}

impl Drop for FuseRing {
    /// The kernel may still write to what its slots were registered with, so that stays.
    fn drop(&mut self) {
        // Answers that were not handed over yet; the thread that waits for them should have them.
        let _ = self.submit();
        while self.next_event().is_some() {}
        if self.with_kernel_count > 0 {
            std::mem::forget(Arc::clone(&self.memory));
            std::mem::forget(Arc::clone(&self.headers));
        }
        // The ring itself goes later, on a worker of the kernel; the connection should be free now.
        let _ = self.ring.submitter().unregister_files();
    }
}
