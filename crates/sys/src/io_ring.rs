//! One io_uring for one file and one range of memory.
//!
//! The kernel reads and writes the memory while our code runs on, so two things must hold, and this type sees to
//! both: the memory outlives every operation (the ring owns a share of it, and dropping the ring waits for what is in
//! flight), and it is a [`Mapping`], whose bytes may change at any time. Where possible the memory is registered, so
//! that the kernel need not look up its pages for each operation.
//!
//! Everything is allocated when the ring is made. Completions are taken from shared memory without a system call.
//!
//! Invariant: a slot is *busy* from its `push` to the [`IoRing::next_completion`] that names it, and is pushed only
//! when it is not; so the queues, which have a place for every slot, never overflow.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use io_uring::{EnterFlags, IoUring, opcode, squeue, types};

use crate::mapping::Mapping;

/// Memory that a ring moves bytes to and from: something that owns a [`Mapping`].
pub trait RingMemory: Send + Sync {
    /// The mapping, the same one each time.
    fn mapping(&self) -> &Mapping;

    /// Whether the kernel may pin all of it, which makes all of its pages present.
    fn is_pinned(&self) -> bool {
        true
    }
}

/// Longest memory that the kernel registers as one buffer.
const REGISTERED_BYTES_MAX: usize = 1 << 30;

/// The only registered buffer and the only registered file.
const REGISTERED_INDEX: u16 = 0;

/// What to do with the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RingOperation {
    /// From the file into memory.
    Read {
        /// Bytes from the memory's start.
        memory_offset: usize,
        /// Bytes to move.
        length: u32,
        /// Bytes from the file's start.
        file_offset: u64,
    },
    /// From memory into the file.
    Write {
        /// Bytes from the memory's start.
        memory_offset: usize,
        /// Bytes to move.
        length: u32,
        /// Bytes from the file's start.
        file_offset: u64,
    },
    /// Frees a range of the file, which reads as zeroes afterwards.
    PunchHole {
        /// Bytes from the file's start.
        file_offset: u64,
        /// Bytes to free.
        length: u64,
    },
}

/// See the module text.
pub struct IoRing {
    ring: IoUring,
    file: OwnedFd,
    memory: Arc<dyn RingMemory>,
    registered: bool,
    busy: Box<[bool]>,
    busy_count: usize,
    /// Pushed but not yet handed to the kernel.
    unsubmitted: usize,
    /// `pieces_per_slot` of them for each slot; the kernel may read a busy slot's.
    vectors: Box<[libc::iovec]>,
    pieces_per_slot: usize,
}

// SAFETY: the raw pointers in `vectors` point into the mapping that `memory` keeps alive and are passed to the kernel
// only; nothing is bound to the thread that made the ring.
unsafe impl Send for IoRing {}

impl std::fmt::Debug for IoRing {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("IoRing").field("busy", &self.busy_count).finish_non_exhaustive()
    }
}

impl IoRing {
    /// A ring with `slot_count` slots on `file` and `memory`; a slot's vectored write has up to `pieces_per_slot`
    /// pieces.
    pub fn new(
        file: OwnedFd,
        memory: Arc<dyn RingMemory>,
        slot_count: usize,
        pieces_per_slot: usize,
    ) -> io::Result<Self> {
        let entries = u32::try_from(slot_count).map_err(|_| io::ErrorKind::InvalidInput)?;
        let ring = IoUring::new(entries).map_err(explain)?;
        ring.submitter().register_files(&[file.as_raw_fd()])?;
        let registered = memory.is_pinned() && register(&ring, memory.mapping());
        let nothing = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        Ok(Self {
            ring,
            file,
            memory,
            registered,
            busy: vec![false; slot_count].into(),
            busy_count: 0,
            unsubmitted: 0,
            vectors: vec![nothing; slot_count * pieces_per_slot].into(),
            pieces_per_slot,
        })
    }

    /// The file.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Slots that are busy.
    pub fn busy_count(&self) -> usize {
        self.busy_count
    }

    /// Operations that the next [`IoRing::submit`] hands over.
    pub fn unsubmitted(&self) -> usize {
        self.unsubmitted
    }

    /// Prepares `operation` in the free slot `slot`.
    pub fn push(&mut self, slot: usize, operation: RingOperation) {
        let file = types::Fixed(REGISTERED_INDEX.into());
        let entry = match operation {
            RingOperation::Read { memory_offset, length, file_offset } => {
                let address = self.address(memory_offset, length as usize);
                if self.registered {
                    opcode::ReadFixed::new(file, address, length, REGISTERED_INDEX).offset(file_offset).build()
                } else {
                    opcode::Read::new(file, address, length).offset(file_offset).build()
                }
            }
            RingOperation::Write { memory_offset, length, file_offset } => {
                let address = self.address(memory_offset, length as usize);
                if self.registered {
                    opcode::WriteFixed::new(file, address, length, REGISTERED_INDEX).offset(file_offset).build()
                } else {
                    opcode::Write::new(file, address, length).offset(file_offset).build()
                }
            }
            RingOperation::PunchHole { file_offset, length } => {
                let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
                opcode::Fallocate::new(file, length).offset(file_offset).mode(mode).build()
            }
        };
        self.push_entry(slot, entry);
    }

    /// Prepares, in the free slot `slot`, one write of several `(offset, length)` pieces of memory to adjacent places
    /// of the file.
    pub fn push_write_vectored(&mut self, slot: usize, file_offset: u64, pieces: impl Iterator<Item = (usize, usize)>) {
        assert!(!self.busy[slot], "slot {slot} is busy");
        let first = slot * self.pieces_per_slot;
        let mut count = 0;
        for (offset, length) in pieces {
            assert!(count < self.pieces_per_slot, "a run has more pieces than its slot");
            let address = self.address(offset, length);
            self.vectors[first + count] = libc::iovec { iov_base: address.cast(), iov_len: length };
            count += 1;
        }
        let file = types::Fixed(REGISTERED_INDEX.into());
        let vectors = self.vectors[first..first + count].as_ptr();
        self.push_entry(slot, opcode::Writev::new(file, vectors, count as u32).offset(file_offset).build());
    }

    fn push_entry(&mut self, slot: usize, entry: squeue::Entry) {
        assert!(!std::mem::replace(&mut self.busy[slot], true), "slot {slot} is busy");
        self.busy_count += 1;
        self.unsubmitted += 1;
        let entry = entry.user_data(slot as u64);
        // SAFETY: the entry points into `memory`'s mapping (checked by `address`), which lives until `drop` has
        // waited for every busy slot. Or it points into the slot's own part of `vectors`, which is not written while
        // the slot is busy.
        unsafe { self.ring.submission().push(&entry) }.expect("the queue has a place for every slot");
    }

    fn address(&self, offset: usize, length: usize) -> *mut u8 {
        let mapping = self.memory.mapping();
        let inside = offset.checked_add(length).is_some_and(|end| end <= mapping.length());
        assert!(inside, "range {offset}+{length} lies outside the ring's memory of {} bytes", mapping.length());
        (mapping.address() + offset) as *mut u8
    }

    /// Hands what was pushed to the kernel. On an error it stays [unsubmitted](IoRing::unsubmitted); try again.
    pub fn submit(&mut self) -> io::Result<()> {
        if self.unsubmitted > 0 {
            self.unsubmitted -= self.ring.submit()?;
        }
        Ok(())
    }

    /// Hands everything over and waits until at least one slot's operation has ended.
    pub fn submit_and_wait(&mut self) -> io::Result<()> {
        match self.ring.submit_and_wait(1) {
            Ok(count) => self.unsubmitted -= count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// The next ended operation: its slot, now free, and the bytes moved or the errno.
    pub fn next_completion(&mut self) -> Option<(usize, Result<usize, i32>)> {
        let entry = self.ring.completion().next()?;
        let slot = entry.user_data() as usize;
        assert!(std::mem::replace(&mut self.busy[slot], false), "slot {slot} was not busy");
        self.busy_count -= 1;
        let result = usize::try_from(entry.result()).map_err(|_| -entry.result());
        Some((slot, result))
    }
}

/// Readable while completions wait to be taken; always writable in effect. Level-triggered, nothing to clear.
impl AsFd for IoRing {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the ring owns the descriptor and the borrow cannot outlive the ring.
        unsafe { BorrowedFd::borrow_raw(self.ring.as_raw_fd()) }
    }
}

impl Drop for IoRing {
    /// Waits for the kernel to be done with the memory, and lets go of the file: a ring that is closed with a
    /// registered file keeps it, and its lock (flock(2)), until the kernel has taken the ring apart in the
    /// background, 24 to 32 ms later on an idle machine.
    fn drop(&mut self) {
        while self.busy_count > 0 {
            if self.submit_and_wait().is_err() {
                std::thread::yield_now();
            }
            while self.next_completion().is_some() {}
        }
        // Best effort: refused, the file stays open for that while.
        let _ = self.ring.submitter().unregister_files();
    }
}

/// Hands `unsubmitted` entries over, in one system call, and lets the kernel do what waits for this thread to enter it:
/// for rings whose entries wait for requests of the kernel's (ublk, FUSE).
pub(crate) fn hand_over<Entry: squeue::EntryMarker>(
    ring: &mut IoUring<Entry>,
    unsubmitted: &mut usize,
) -> io::Result<()> {
    while *unsubmitted > 0 {
        match ring.submit() {
            Ok(count) => *unsubmitted -= count,
            // Interrupted, or the kernel is short of memory for the moment.
            Err(error) if is_passing(&error) => std::thread::yield_now(),
            Err(error) => return Err(error),
        }
    }
    if ring.submission().taskrun() {
        // SAFETY: without arguments nothing of ours is handed over.
        let entered = unsafe { ring.submitter().enter::<libc::sigset_t>(0, 0, EnterFlags::GETEVENTS.bits(), None) };
        return match entered {
            Err(error) if !is_passing(&error) => Err(error),
            _ => Ok(()),
        };
    }
    Ok(())
}

fn is_passing(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY))
}

/// Registers the memory, if the kernel takes it (limits on locked memory may forbid it).
fn register(ring: &IoUring, mapping: &Mapping) -> bool {
    if mapping.length() > REGISTERED_BYTES_MAX {
        return false;
    }
    let buffer = libc::iovec { iov_base: mapping.address() as *mut libc::c_void, iov_len: mapping.length() };
    // SAFETY: the range is mapped while the ring's share of the memory lives, which is longer than the registration.
    unsafe { ring.submitter().register_buffers(&[buffer]) }.is_ok()
}

fn explain(error: io::Error) -> io::Error {
    if error.kind() != io::ErrorKind::PermissionDenied && error.kind() != io::ErrorKind::Unsupported {
        return error;
    }
    let message = format!(
        "io_uring is not allowed here ({error}); allow it (sysctl kernel.io_uring_disabled=0, or the container's seccomp \
         profile), or use no backing file"
    );
    io::Error::new(error.kind(), message)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    struct Memory(Mapping);

    impl RingMemory for Memory {
        fn mapping(&self) -> &Mapping {
            &self.0
        }
    }

    fn ring(slots: usize) -> (IoRing, Arc<Memory>, std::fs::File) {
        let file = tempfile::tempfile().unwrap();
        let memory = Arc::new(Memory(Mapping::anonymous(16 * 4096).unwrap()));
        let shared = Arc::clone(&memory);
        (IoRing::new(file.try_clone().unwrap().into(), shared, slots, 4).unwrap(), memory, file)
    }

    fn finish(ring: &mut IoRing) -> Vec<(usize, Result<usize, i32>)> {
        let mut ended = Vec::new();
        while ring.busy_count() > 0 {
            ring.submit_and_wait().unwrap();
            ended.extend(std::iter::from_fn(|| ring.next_completion()));
        }
        ended.sort_unstable();
        ended
    }

    #[test]
    fn writes_reads_and_holes_reach_the_file() {
        let (mut ring, memory, file) = ring(4);
        memory.0.write(0, &[7; 8192]);
        ring.push(0, RingOperation::Write { memory_offset: 0, length: 8192, file_offset: 4096 });
        assert_eq!(ring.unsubmitted(), 1);
        assert_eq!(finish(&mut ring), [(0, Ok(8192))]);
        ring.push(3, RingOperation::PunchHole { file_offset: 4096, length: 4096 });
        assert_eq!(finish(&mut ring), [(3, Ok(0))]);
        ring.push(1, RingOperation::Read { memory_offset: 12288, length: 4096, file_offset: 4096 });
        ring.push(2, RingOperation::Read { memory_offset: 16384, length: 4096, file_offset: 8192 });
        assert_eq!(finish(&mut ring), [(1, Ok(4096)), (2, Ok(4096))]);
        let mut seen = [1; 8192];
        memory.0.read(12288, &mut seen);
        assert!(seen[..4096].iter().all(|&byte| byte == 0) && seen[4096..].iter().all(|&byte| byte == 7));
        assert_eq!(file.metadata().unwrap().len(), 3 * 4096);
    }

    #[test]
    fn a_vectored_write_gathers_scattered_pieces() {
        let (mut ring, memory, file) = ring(1);
        for (page, byte) in [(0, 1), (5, 2), (3, 3)] {
            memory.0.write(page * 4096, &[byte; 4096]);
        }
        ring.push_write_vectored(0, 0, [0, 5, 3].map(|page| (page * 4096, 4096)).into_iter());
        assert_eq!(finish(&mut ring), [(0, Ok(3 * 4096))]);
        let mut seen = [0; 3 * 4096];
        file.read_exact_at(&mut seen, 0).unwrap();
        assert_eq!([seen[0], seen[4096], seen[8192]], [1, 2, 3]);
    }

    #[test]
    fn an_error_is_an_errno_and_the_end_of_the_file_a_short_read() {
        let (mut ring, ..) = ring(2);
        ring.push(0, RingOperation::Read { memory_offset: 0, length: 4096, file_offset: 0 });
        ring.push(1, RingOperation::PunchHole { file_offset: 0, length: 0 });
        assert_eq!(finish(&mut ring), [(0, Ok(0)), (1, Err(libc::EINVAL))]);
    }

    #[test]
    fn dropping_waits_for_what_is_in_flight() {
        let (mut ring, memory, file) = ring(1);
        memory.0.write(0, &[9; 4096]);
        ring.push(0, RingOperation::Write { memory_offset: 0, length: 4096, file_offset: 0 });
        drop(ring);
        assert_eq!(Arc::strong_count(&memory), 1);
        assert_eq!(file.metadata().unwrap().len(), 4096);
    }

    #[test]
    fn dropping_lets_go_of_the_file_and_its_lock_at_once() {
        use rustix::fs::{FlockOperation::NonBlockingLockExclusive as Lock, Mode, OFlags};
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let open = || rustix::fs::open(&path, OFlags::RDWR | OFlags::CREATE, Mode::RWXU).unwrap();
        let mut at_once = 0;
        for _ in 0..20 {
            let file = open();
            rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).unwrap();
            let memory = Arc::new(Memory(Mapping::anonymous(4096).unwrap()));
            let mut ring = IoRing::new(file, memory, 1, 0).unwrap();
            ring.push(0, RingOperation::Write { memory_offset: 0, length: 4096, file_offset: 0 });
            assert!(rustix::fs::flock(open(), Lock).is_err(), "the ring has the file");
            drop(ring);
            at_once += u32::from(rustix::fs::flock(open(), Lock).is_ok());
        }
        // A child that another test forks has the file, too, until it ends.
        assert!(at_once > 10, "{at_once} of 20");
    }

    #[test]
    #[should_panic(expected = "slot 0 is busy")]
    fn a_busy_slot_is_not_reused() {
        let (mut ring, ..) = ring(1);
        let operation = RingOperation::Read { memory_offset: 0, length: 4096, file_offset: 0 };
        ring.push(0, operation);
        ring.push(0, operation);
    }

    #[test]
    #[should_panic(expected = "outside the ring's memory")]
    fn memory_outside_the_mapping_is_never_given_to_the_kernel() {
        let (mut ring, ..) = ring(1);
        ring.push(0, RingOperation::Read { memory_offset: 15 * 4096, length: 8192, file_offset: 0 });
    }
}
