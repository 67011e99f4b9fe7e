//! What the pager and the stub in its programs agree on: the arena's layout, batches, and the greeting over the socket.
//!
//! The stub is built without the standard library, so this file uses `core` only; both sides compile the same file. They are
//! always of one build, and the magic and version in every message say so.
//!
//! *Arena*: one memfd per run, mapped by the pager and all programs: [`ArenaHead`], then seats of [`SEAT_BYTES`] each, then
//! the write-back pool. A *seat* belongs to one process: [`SeatHead`], two [`Batch`]es, the agent's stack, and a stack for the
//! call that starts the agent. Words in shared memory are atomics; a batch belongs to one side at a time, by its [`Phase`].
//!
//! *Greeting* (a `SOCK_SEQPACKET` UNIX socket): the program sends [`Hello`] with its userfaultfd, gets [`Welcome`] with the
//! arena's memfd, maps it, and sends [`Ready`]. An agent sends `Hello` of its own kind and gets the userfaultfd back.
//!
//! Where the pager would say the same to every program, it says so in advance ([`ArenaHead::features`]): the program opens the arena by
//! its link ([`ARENA_SUFFIX`]), does what it would do after `Welcome`, sends a `Hello` that is complete to a datagram socket
//! ([`NOTES_SUFFIX`]), and waits for nothing.

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
pub use greeting::{Hello, HelloKind, MESSAGE_BYTES, MESSAGE_WORDS, Mismatch, Ready, Verdict, Welcome, Words};

/// The first word of the arena and of every message: `SPILLWAY` as text.
pub const MAGIC: u64 = u64::from_le_bytes(*b"SPILLWAY");

/// Raised with every change of this file that the other side would notice.
pub const VERSION: u32 = 3;

/// Arguments of a `clone` that every kernel refuses (a thread without common signal handlers): by it a program that inherited a filter
/// finds out whether it is its own pager who is asked about its forks.
pub const PROBE_FLAGS: u64 = 0x1_0000;
/// See [`PROBE_FLAGS`]: the stack.
pub const PROBE_STACK: u64 = MAGIC;

/// What the pager at `address` lets such a call give: no other one has its address (FNV-1a, less the bit that would make it an error).
pub const fn probe_answer(address: &[u8]) -> u64 {
    let (mut hash, mut index) = (0xcbf2_9ce4_8422_2325_u64, 0);
    while index < address.len() {
        hash = (hash ^ address[index] as u64).wrapping_mul(0x100_0000_01b3);
        index += 1;
    }
    hash >> 1
}

/// Behind the pager's address: a link to the arena for programs that do not wait for the pager.
pub const ARENA_SUFFIX: &str = ".arena";

/// Behind the pager's address: the datagram socket for the hellos of such programs.
pub const NOTES_SUFFIX: &str = ".notes";

/// What agents are called in `/proc`; ends with a zero byte, as `PR_SET_NAME` demands.
pub const AGENT_NAME: &[u8; 16] = b"spillway-agent\0\0";

/// Bytes of a page.
pub const PAGE_BYTES: usize = 4096;

/// The environment variable that tells a program's stub where the pager is: a path, or `@` and an abstract name.
pub const ADDRESS_VARIABLE: &str = "SPILLWAY_PAGER";

/// The longest address: `sun_path` less its first or last byte (unix(7)).
pub const ADDRESS_BYTES_MAX: usize = 107;

/// Entries of a batch. Moving costs 0.23 us a page in runs of 32, measured; 512 pages keep a program's faults waiting for
/// little more than 100 us.
pub const BATCH_ENTRIES_MAX: usize = 512;

/// Batches of a seat: one with the agent, one with the engine.
pub const BATCHES: usize = 2;

/// Bytes of a slot of the write-back pool: 32 neighbouring pages.
pub const POOL_SLOT_BYTES: usize = 128 << 10;

/// Bytes of the agent's stack; it calls few functions, and has no large variables.
pub const AGENT_STACK_BYTES: usize = 64 << 10;

/// Bytes of the stack of the call that starts the agent.
pub const CALL_STACK_BYTES: usize = 32 << 10;

const BATCH_STRIDE_BYTES: usize = size_of::<Batch>().next_multiple_of(PAGE_BYTES);

/// Bytes of a seat.
pub const SEAT_BYTES: usize = PAGE_BYTES + BATCHES * BATCH_STRIDE_BYTES + CALL_STACK_BYTES + AGENT_STACK_BYTES;

/// The start of the arena.
#[repr(C)]
#[derive(Debug)]
pub struct ArenaHead {
    /// [`MAGIC`].
    pub magic: u64,
    /// [`VERSION`].
    pub version: u32,
    /// How many seats follow the first page.
    pub seats: u32,
    /// Bytes of the arena.
    pub arena_bytes: u64,
    /// What the userfaultfd of a program agrees on that goes on without waiting for the pager; 0: every program asks.
    pub features: u64,
    /// Bytes of [`ArenaHead::address`] in use.
    pub address_length: u32,
    /// Where the pager is; agents that start late connect to it. As in [`ADDRESS_VARIABLE`].
    pub address: [u8; ADDRESS_BYTES_MAX],
}

/// Where seat `index` begins in the arena.
pub const fn seat_offset(index: u32) -> usize {
    PAGE_BYTES + index as usize * SEAT_BYTES
}

/// Where the write-back pool begins in an arena of `seats`.
pub const fn pool_offset(seats: u32) -> usize {
    seat_offset(seats)
}

/// Where batch `index` begins in its seat.
pub const fn batch_offset(index: usize) -> usize {
    PAGE_BYTES + index * BATCH_STRIDE_BYTES
}

/// Where the stack of the starting call ends in its seat (stacks grow down).
pub const CALL_STACK_END: usize = batch_offset(BATCHES) + CALL_STACK_BYTES;

/// Where the agent's stack ends in its seat.
pub const AGENT_STACK_END: usize = CALL_STACK_END + AGENT_STACK_BYTES;

const _: () = assert!(AGENT_STACK_END == SEAT_BYTES && SEAT_BYTES.is_multiple_of(PAGE_BYTES));
const _: () = assert!(size_of::<ArenaHead>() <= PAGE_BYTES && size_of::<SeatHead>() <= PAGE_BYTES);

/// The start of a seat.
#[repr(C)]
#[derive(Debug)]
pub struct SeatHead {
    /// An [`AgentState`]; a futex.
    pub state: AtomicU32,
    /// The error number with which the agent failed.
    pub failure: AtomicI32,
    /// 1 while the agent sleeps on the phase of its next batch, so that whoever posts it must wake it.
    pub agent_sleeps: AtomicU32,
    /// The [`Phase`] that the pager sleeps for; 0 while it does not sleep.
    pub pager_awaits: AtomicU32,
    /// How often the agent looks at its next batch before it sleeps.
    pub spin_rounds: AtomicU32,
    /// 1 when the starting call has returned into its final loop; see `start_agent` of the stub.
    pub call_returned: AtomicU32,
    /// The agent's thread number, as the program sees it.
    pub thread: AtomicU32,
    /// This seat's number.
    pub index: AtomicU32,
    /// The CPU that the agent began its last batch on, counted from 1; 0 if it does not know.
    pub agent_cpu: AtomicU32,
    /// Where the agent's staging area begins in the program; its length is [`STAGING_BYTES`]. 0 before there is one.
    pub staging: AtomicU64,
}

/// Bytes of the agent's staging area.
pub const STAGING_BYTES: usize = BATCH_ENTRIES_MAX * PAGE_BYTES;

/// Where a seat's word is, for the side that sees the arena as a range of bytes.
pub mod seat_word {
    use super::{SeatHead, offset_of};

    /// [`SeatHead::state`].
    pub const STATE: usize = offset_of!(SeatHead, state);
    /// [`SeatHead::failure`].
    pub const FAILURE: usize = offset_of!(SeatHead, failure);
    /// [`SeatHead::agent_sleeps`].
    pub const AGENT_SLEEPS: usize = offset_of!(SeatHead, agent_sleeps);
    /// [`SeatHead::pager_awaits`].
    pub const PAGER_AWAITS: usize = offset_of!(SeatHead, pager_awaits);
    /// [`SeatHead::spin_rounds`].
    pub const SPIN_ROUNDS: usize = offset_of!(SeatHead, spin_rounds);
    /// [`SeatHead::call_returned`].
    pub const CALL_RETURNED: usize = offset_of!(SeatHead, call_returned);
    /// [`SeatHead::thread`].
    pub const THREAD: usize = offset_of!(SeatHead, thread);
    /// [`SeatHead::index`].
    pub const INDEX: usize = offset_of!(SeatHead, index);
    /// [`SeatHead::agent_cpu`].
    pub const AGENT_CPU: usize = offset_of!(SeatHead, agent_cpu);
    /// [`SeatHead::staging`].
    pub const STAGING: usize = offset_of!(SeatHead, staging);
}

/// How an agent is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum AgentState {
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

number_of!(AgentState: Absent, Starting, Running, Ended, Failed);
