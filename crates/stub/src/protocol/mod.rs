//! What the pager and the stub in its programs agree on: the layout of the head and of seats, batches, and the
//! greeting over the socket.
//!
//! The stub is built without the standard library, so this file uses `core` only; both sides compile the same file.
//! They are always of one build, and the magic and version in every message say so.
//!
//! *Head*: one memfd per run that no thread can write to ([`RunHead`]), mapped by all programs and inherited by their
//! forks. A process that maps it is of the run. Its first page is registered with the program's userfaultfd, so that
//! forks are told.
//!
//! *Seat*: one memfd per address space, shared by its evictor and the pager alone, and not inherited by forks:
//! [`SeatHead`], two [`Batch`]es, and a page for each entry of both, through which evicted pages go to the pager.
//! Words in shared memory are atomics; a batch belongs to one side at a time, by its [`Phase`].
//!
//! *Cell*: [`EvictorCell`], in the memory of the stub's library: what the pager reads from outside while there is no
//! seat yet.
//!
//! *Greeting* (a `SOCK_SEQPACKET` UNIX socket): the program sends [`Hello`] with its userfaultfd, gets [`Welcome`]
//! with the head's memfd, maps it, and sends [`Ready`]. A program that may not make a userfaultfd gets the device
//! that makes one ([`Verdict::TakeDevice`]), and says hello again. An evictor sends `Hello` of its own kind and gets
//! the userfaultfd, then its seat's memfd.
//!
//! Where the pager would say the same to every program, it says so in advance ([`RunHead::features`]): the program
//! opens the head by its link ([`HEAD_SUFFIX`]), does what it would do after `Welcome`, sends a `Hello` that is
//! complete to a datagram socket ([`NOTES_SUFFIX`]), and waits for nothing.

/// Makes numbers that came from the other side into what they stand for.
macro_rules! number_of {
    ($type:ident: $($variant:ident),+) => {
        impl $type {
            /// What `number` stands for.
            pub const fn from_number(number: u32) -> Option<Self> {
                $(if number == Self::$variant as u32 { return Some(Self::$variant); })+
                None
            }
        }
    };
}

mod batch;
mod greeting;
#[cfg(test)]
mod tests;

use core::mem::offset_of;
use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64};

pub use batch::{Batch, Entry, Operation, Phase, batch_word, entry_word, outcome};
pub use greeting::{
    EvictorStart, Hello, HelloKind, MESSAGE_BYTES, MESSAGE_WORDS, Mismatch, Ready, TOKEN_WORD, Verdict, Welcome, Words,
};

/// The first word of the head and of every message: `SPILLWAY` as text.
pub const MAGIC: u64 = u64::from_le_bytes(*b"SPILLWAY");

/// Raised with every change of this file that the other side would notice.
pub const VERSION: u32 = 6;

/// In the fourth argument of an `ioctl`, of which the kernel takes three: the filter of a run's calls lets
/// `UFFDIO_REGISTER` pass (`spillway_sys::call_filter::UNASKED`).
pub const UNASKED: u32 = 0x5350_4c59;

/// Arguments of a `clone` that every kernel refuses (a thread without common signal handlers): by it a program that
/// inherited a filter finds out whether its own pager is asked about its forks.
pub const PROBE_FLAGS: u64 = 0x1_0000;
/// See [`PROBE_FLAGS`]: the stack.
pub const PROBE_STACK: u64 = MAGIC;

/// What the pager at `address` lets such a call give: no other one has its address (FNV-1a, less the bit that would
/// make it an error).
pub const fn probe_answer(address: &[u8]) -> u64 {
    let (mut hash, mut index) = (0xcbf2_9ce4_8422_2325_u64, 0);
    while index < address.len() {
        hash = (hash ^ address[index] as u64).wrapping_mul(0x100_0000_01b3);
        index += 1;
    }
    hash >> 1
}

/// Behind the pager's address: a link to the head for programs that do not wait for the pager.
pub const HEAD_SUFFIX: &str = ".head";

/// Behind the pager's address: the datagram socket for the hellos of such programs.
pub const NOTES_SUFFIX: &str = ".notes";

/// What evictors are called in `/proc`; ends with a zero byte, as `PR_SET_NAME` demands.
pub const EVICTOR_NAME: &[u8; 16] = b"spillway-evict\0\0";

/// Bytes of a page.
pub const PAGE_BYTES: usize = 4096;

/// The environment variable that tells a program's stub where the pager is: a path, or `@` and an abstract name; then
/// [`TOKEN_MARK`] and the run's token in hexadecimal digits.
pub const ADDRESS_VARIABLE: &str = "SPILLWAY_PAGER";

/// Between the address and the token. An environment is readable by its own user alone (proc(5)), an address by
/// every user.
pub const TOKEN_MARK: u8 = b'#';

/// Digits of a token.
pub const TOKEN_DIGITS: usize = 16;

/// The longest address: `sun_path` less its first or last byte (unix(7)).
pub const ADDRESS_BYTES_MAX: usize = 107;

/// Entries of a batch. Moving costs 0.23 us a page in runs of 32, measured; 512 pages keep a program's faults waiting
/// for little more than 100 us.
pub const BATCH_ENTRIES_MAX: usize = 512;

/// Batches of a seat: one with the evictor, one with the engine.
pub const BATCHES: usize = 2;

/// Bytes of the evictor's stack, in the stub's library; the evictor calls few functions, and has no large variables.
pub const EVICTOR_STACK_BYTES: usize = 32 << 10;

/// Bytes of the stack of the call that starts the evictor, in the stub's library.
pub const CALL_STACK_BYTES: usize = 16 << 10;

const BATCH_STRIDE_BYTES: usize = size_of::<Batch>().next_multiple_of(PAGE_BYTES);

/// Where the first batch's pages begin in a seat's memory.
const TRANSFER_OFFSET: usize = PAGE_BYTES + BATCHES * BATCH_STRIDE_BYTES;

/// Bytes of a seat's memory; pages of it that are never used take none.
pub const SEAT_BYTES: usize = TRANSFER_OFFSET + BATCHES * BATCH_ENTRIES_MAX * PAGE_BYTES;

/// Bytes of the head: [`RunHead`], a page that is registered for a moment to find out whose a userfaultfd is, and one
/// behind it.
pub const HEAD_BYTES: usize = 3 * PAGE_BYTES;

/// What all programs of a run see; no thread can change it.
#[repr(C)]
#[derive(Debug)]
pub struct RunHead {
    /// [`MAGIC`].
    pub magic: u64,
    /// [`VERSION`].
    pub version: u32,
    /// Bytes of [`RunHead::address`] in use.
    pub address_length: u32,
    /// What the userfaultfd of a program agrees on that goes on without waiting for the pager; 0: every program asks.
    pub features: u64,
    /// Where the pager is; evictors that start late connect to it. As in [`ADDRESS_VARIABLE`], without the token.
    pub address: [u8; ADDRESS_BYTES_MAX],
}

/// Where batch `index` begins in its seat.
pub const fn batch_offset(index: usize) -> usize {
    PAGE_BYTES + index * BATCH_STRIDE_BYTES
}

/// Where the page of entry `entry` of batch `batch` is in its seat.
pub const fn transfer_offset(batch: usize, entry: usize) -> usize {
    TRANSFER_OFFSET + (batch * BATCH_ENTRIES_MAX + entry) * PAGE_BYTES
}

const _: () =
    assert!(transfer_offset(BATCHES - 1, BATCH_ENTRIES_MAX) == SEAT_BYTES && SEAT_BYTES.is_multiple_of(PAGE_BYTES));
const _: () = assert!(size_of::<RunHead>() <= PAGE_BYTES && size_of::<SeatHead>() <= PAGE_BYTES);

/// What the pager reads in the stub's library while an evictor starts. It is private memory: a forked child has a
/// copy of its own, in which [`EvictorCell::attempt`] is that of its parent.
#[repr(C)]
#[derive(Debug)]
pub struct EvictorCell {
    /// Which of the pager's attempts the rest is about; 0 before the first.
    pub attempt: AtomicU32,
    /// 1 when the starting call has returned into its final loop; see `start_evictor` of the stub.
    pub call_returned: AtomicU32,
    /// The negative error number with which the evictor failed; 0 while it has not.
    pub failure: AtomicI32,
    /// The evictor's thread number as the program sees it.
    pub thread: AtomicU32,
    /// One more than the evictor's descriptor of a socket that it waits at, because it cannot connect: the pager
    /// takes the other end, whose descriptor is the next word. 0 if there is none.
    pub offered: AtomicU32,
    /// Which question [`EvictorCell::cleared_word`] is the answer to.
    pub answered: AtomicU32,
    /// Where the kernel clears a word when the thread ends that was asked; 0: nowhere. [`UNKNOWN_WORD`]: it does not
    /// say.
    pub cleared_word: AtomicU64,
}

/// See [`EvictorCell::cleared_word`].
pub const UNKNOWN_WORD: u64 = u64::MAX;

/// The argument with which a borrowed thread of a program answers question `number`, in place of starting an evictor
/// ([`EvictorStart::word`]): no attempt has number 0.
pub const fn question(number: u32) -> u64 {
    (number as u64) << u32::BITS
}

/// The number of the question that an argument is, if it is one.
pub const fn asked(argument: u64) -> Option<u32> {
    if argument as u32 == 0 { Some((argument >> u32::BITS) as u32) } else { None }
}

/// Where the stack of the starting call ends, from the cell on (stacks grow down).
pub const CALL_STACK_END: usize = PAGE_BYTES + CALL_STACK_BYTES;

/// Where the evictor's stack ends, from the cell on.
pub const EVICTOR_STACK_END: usize = CALL_STACK_END + EVICTOR_STACK_BYTES;

/// Words of a cell, in their order.
pub const CELL_WORDS: usize = size_of::<EvictorCell>() / 4;

/// The start of a seat.
#[repr(C)]
#[derive(Debug)]
pub struct SeatHead {
    /// An [`EvictorState`]; a futex.
    pub state: AtomicU32,
    /// The error number with which the evictor failed.
    pub failure: AtomicI32,
    /// 1 while the evictor sleeps on the phase of its next batch, so that the thread that posts it must wake it.
    pub evictor_sleeps: AtomicU32,
    /// The [`Phase`] that the pager sleeps for; 0 while it does not sleep.
    pub pager_awaits: AtomicU32,
    /// How often the evictor looks at its next batch before it sleeps.
    pub spin_rounds: AtomicU32,
    /// The evictor's thread number, as the program sees it.
    pub thread: AtomicU32,
    /// The CPU that the evictor began its last batch on, counted from 1; 0 if it does not know.
    pub evictor_cpu: AtomicU32,
    /// Where the evictor's staging area begins in the program; its length is [`STAGING_BYTES`]. 0 before there is one.
    pub staging: AtomicU64,
    /// Where the program has this memory. 0 before.
    pub mapped: AtomicU64,
    /// 1: the evictor moves no page more in the batch that it has, and ends it as if the program changed its mappings.
    pub is_held: AtomicU32,
    /// Where the instructions begin that look at [`SeatHead::is_held`] and then move pages.
    pub move_start: AtomicU64,
    /// And where they end: an evictor that is stopped anywhere else looks again before it moves.
    pub move_end: AtomicU64,
}

/// Bytes of the evictor's staging area.
pub const STAGING_BYTES: usize = BATCH_ENTRIES_MAX * PAGE_BYTES;

/// Where a seat's word is, for the side that sees the seat as a range of bytes.
pub mod seat_word {
    use super::{SeatHead, offset_of};

    /// [`SeatHead::state`].
    pub const STATE: usize = offset_of!(SeatHead, state);
    /// [`SeatHead::failure`].
    pub const FAILURE: usize = offset_of!(SeatHead, failure);
    /// [`SeatHead::evictor_sleeps`].
    pub const EVICTOR_SLEEPS: usize = offset_of!(SeatHead, evictor_sleeps);
    /// [`SeatHead::pager_awaits`].
    pub const PAGER_AWAITS: usize = offset_of!(SeatHead, pager_awaits);
    /// [`SeatHead::spin_rounds`].
    pub const SPIN_ROUNDS: usize = offset_of!(SeatHead, spin_rounds);
    /// [`SeatHead::thread`].
    pub const THREAD: usize = offset_of!(SeatHead, thread);
    /// [`SeatHead::evictor_cpu`].
    pub const EVICTOR_CPU: usize = offset_of!(SeatHead, evictor_cpu);
    /// [`SeatHead::staging`].
    pub const STAGING: usize = offset_of!(SeatHead, staging);
    /// [`SeatHead::mapped`].
    pub const MAPPED: usize = offset_of!(SeatHead, mapped);
    /// [`SeatHead::is_held`].
    pub const IS_HELD: usize = offset_of!(SeatHead, is_held);
    /// [`SeatHead::move_start`].
    pub const MOVE_START: usize = offset_of!(SeatHead, move_start);
    /// [`SeatHead::move_end`].
    pub const MOVE_END: usize = offset_of!(SeatHead, move_end);
}

/// How an evictor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum EvictorState {
    /// There is none.
    Absent = 0,
    /// It was started and has no userfaultfd yet.
    Starting = 1,
    /// It carries out batches.
    Running = 2,
    /// It ended because it was asked to.
    Ended = 3,
    /// It could not start, or go on; [`SeatHead::failure`] says why.
    Failed = 4,
}

number_of!(EvictorState: Absent, Starting, Running, Ended, Failed);
