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

use core::mem::offset_of;
use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64};

/// The first word of the arena and of every message: `SPILLWAY` as text.
pub const MAGIC: u64 = u64::from_le_bytes(*b"SPILLWAY");

/// Raised with every change of this file that the other side would notice.
pub const VERSION: u32 = 1;

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
    /// 1 while the pager sleeps on the phase of a batch.
    pub pager_sleeps: AtomicU32,
    /// How often the agent looks at its next batch before it sleeps.
    pub spin_rounds: AtomicU32,
    /// 1 when the starting call has returned into its final loop; see `start_agent` of the stub.
    pub call_returned: AtomicU32,
    /// The agent's thread number, as the program sees it.
    pub thread: AtomicU32,
    /// This seat's number.
    pub index: AtomicU32,
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
    /// [`SeatHead::pager_sleeps`].
    pub const PAGER_SLEEPS: usize = offset_of!(SeatHead, pager_sleeps);
    /// [`SeatHead::spin_rounds`].
    pub const SPIN_ROUNDS: usize = offset_of!(SeatHead, spin_rounds);
    /// [`SeatHead::call_returned`].
    pub const CALL_RETURNED: usize = offset_of!(SeatHead, call_returned);
    /// [`SeatHead::thread`].
    pub const THREAD: usize = offset_of!(SeatHead, thread);
    /// [`SeatHead::index`].
    pub const INDEX: usize = offset_of!(SeatHead, index);
    /// [`SeatHead::staging`].
    pub const STAGING: usize = offset_of!(SeatHead, staging);
}

/// Up to [`BATCH_ENTRIES_MAX`] things for the agent to do.
#[repr(C)]
#[derive(Debug)]
pub struct Batch {
    /// A [`Phase`]; a futex.
    pub phase: AtomicU32,
    /// Entries in use.
    pub count: AtomicU32,
    reserved: [u64; 7],
    /// What to do, in this order.
    pub entries: [Entry; BATCH_ENTRIES_MAX],
}

/// Where a batch's words are.
pub mod batch_word {
    use super::{Batch, Entry, offset_of};

    /// [`Batch::phase`].
    pub const PHASE: usize = offset_of!(Batch, phase);
    /// [`Batch::count`].
    pub const COUNT: usize = offset_of!(Batch, count);

    /// Where entry `index` begins.
    pub const fn entry(index: usize) -> usize {
        offset_of!(Batch, entries) + index * size_of::<Entry>()
    }
}

/// One thing to do.
#[repr(C)]
#[derive(Debug)]
pub struct Entry {
    /// The page's address in the program, or the range's.
    pub address: AtomicU64,
    /// What the operation needs: a place in the arena, or a length in bytes.
    pub argument: AtomicU64,
    /// An [`Operation`].
    pub operation: AtomicU32,
    /// What the operation needs besides.
    pub detail: AtomicU32,
    /// 0 or a negative error number, see [`outcome`].
    pub result: AtomicI32,
    reserved: u32,
}

/// Where an entry's words are.
pub mod entry_word {
    use super::{Entry, offset_of};

    /// [`Entry::address`].
    pub const ADDRESS: usize = offset_of!(Entry, address);
    /// [`Entry::argument`].
    pub const ARGUMENT: usize = offset_of!(Entry, argument);
    /// [`Entry::operation`].
    pub const OPERATION: usize = offset_of!(Entry, operation);
    /// [`Entry::detail`].
    pub const DETAIL: usize = offset_of!(Entry, detail);
    /// [`Entry::result`].
    pub const RESULT: usize = offset_of!(Entry, result);
}

/// Who has a batch, and how far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub enum Phase {
    /// The pager's: nothing asked, or all results taken.
    Idle = 0,
    /// The agent's: it moves pages. Meanwhile nobody may read the userfaultfd's messages (rule 14).
    Posted = 1,
    /// The agent's: pages are moved, which cannot be undone; it copies and drops them. Messages may be read again.
    Moved = 2,
    /// The pager's: all results are there.
    Done = 3,
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

/// What an entry asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Operation {
    /// Move the page out of the program, copy it to `argument` of the arena, and drop it.
    EvictCopy = 1,
    /// Move the page out of the program, and drop it: its content is elsewhere.
    EvictDrop = 2,
    /// Make the pages of `argument` bytes the process's own (`MADV_POPULATE_WRITE`), after the evictions of the batch: what a
    /// page needs that a fork shared (rule 2). Only for pages that were never write-protected by us.
    Populate = 3,
    /// `madvise` of `argument` bytes with advice `detail`, after the evictions of the batch.
    Advise = 4,
    /// End.
    Exit = 5,
}

/// Results that say what to do next.
pub mod outcome {
    /// Done.
    pub const DONE: i32 = 0;
    /// `-ENOENT`: the page is not there.
    pub const ABSENT: i32 = -2;
    /// `-EAGAIN`: the program changes its mappings; nothing was done. Read messages, and ask later.
    pub const TRY_LATER: i32 = -11;
    /// `-EBUSY`: pinned, or shared with a forked process.
    pub const BUSY: i32 = -16;
    /// `-EEXIST`: the staging area was not empty: the agent is broken.
    pub const STAGING_IN_USE: i32 = -17;
    /// `-EINVAL`: not memory that can be moved: locked, not both readable and writable, or not private and anonymous.
    pub const REFUSED: i32 = -22;
    /// `-ENOSYS`: an operation that this agent does not know.
    pub const UNKNOWN: i32 = -38;
}

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

number_of!(Phase: Idle, Posted, Moved, Done);
number_of!(AgentState: Absent, Starting, Running, Ended, Failed);
number_of!(Operation: EvictCopy, EvictDrop, Populate, Advise, Exit);
number_of!(Verdict: Page, RunUnpaged, Refuse);
number_of!(HelloKind: Program, Agent);

/// Who says hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum HelloKind {
    /// A program that starts; a userfaultfd comes along unless `status` says why not.
    Program = 1,
    /// An agent that starts, and wants its userfaultfd.
    Agent = 2,
}

/// What the pager says to a hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Verdict {
    /// The program is paged; the arena comes along (for an agent: the userfaultfd).
    Page = 1,
    /// The program runs without being paged.
    RunUnpaged = 2,
    /// The program shall end, with a message.
    Refuse = 3,
}

/// What a program or an agent says first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Who speaks.
    pub kind: HelloKind,
    /// The process as it sees itself; the socket's credentials tell the pager's view.
    pub process: u32,
    /// An agent's seat.
    pub seat: u32,
    /// 0, or the negative error number with which making a userfaultfd failed.
    pub status: i32,
    /// The address of the stub's `start_agent`, see there.
    pub start_agent: u64,
    /// Where the stub's library is mapped.
    pub library_start: u64,
    /// Its end.
    pub library_end: u64,
}

/// The pager's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// What shall happen.
    pub verdict: Verdict,
    /// The program's seat.
    pub seat: u32,
    /// Bytes of the arena.
    pub arena_bytes: u64,
    /// Whether the program starts its agent now, because the pager may not start it later by ptrace.
    pub start_agent: bool,
}

/// The program's last word: from now on it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ready {
    /// Where the arena is mapped.
    pub arena: u64,
    /// 0, or the negative error number with which mapping it failed.
    pub status: i32,
}

/// Why a message is none of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mismatch {
    /// Not a message of this protocol.
    NotOurs,
    /// One of another version.
    Version(u32),
}

/// Words of a message: magic, version, and up to six more.
pub const MESSAGE_WORDS: usize = 8;

/// Bytes of a message; all have the same size.
pub const MESSAGE_BYTES: usize = MESSAGE_WORDS * 8;

/// A message as it travels.
pub type Words = [u64; MESSAGE_WORDS];

fn frame(rest: [u64; 6]) -> Words {
    let [a, b, c, d, e, f] = rest;
    [MAGIC, u64::from(VERSION), a, b, c, d, e, f]
}

fn unframe(words: &Words) -> Result<[u64; 6], Mismatch> {
    let [magic, version, a, b, c, d, e, f] = *words;
    if magic != MAGIC {
        return Err(Mismatch::NotOurs);
    }
    if version != u64::from(VERSION) {
        return Err(Mismatch::Version(version as u32));
    }
    Ok([a, b, c, d, e, f])
}

/// Two halves in a word.
const fn pack(low: u32, high: u32) -> u64 {
    low as u64 | (high as u64) << 32
}

impl Hello {
    /// As it travels.
    pub fn encode(&self) -> Words {
        let who = pack(self.kind as u32, self.process);
        let where_to = pack(self.seat, self.status.cast_unsigned());
        frame([who, where_to, self.start_agent, self.library_start, self.library_end, 0])
    }

    /// Takes apart what came.
    pub fn decode(words: &Words) -> Result<Self, Mismatch> {
        let [who, where_to, start_agent, library_start, library_end, _] = unframe(words)?;
        Ok(Self {
            kind: HelloKind::from_number(who as u32).ok_or(Mismatch::NotOurs)?,
            process: (who >> 32) as u32,
            seat: where_to as u32,
            status: ((where_to >> 32) as u32).cast_signed(),
            start_agent,
            library_start,
            library_end,
        })
    }
}

impl Welcome {
    /// As it travels.
    pub fn encode(&self) -> Words {
        frame([pack(self.verdict as u32, self.seat), self.arena_bytes, u64::from(self.start_agent), 0, 0, 0])
    }

    /// Takes apart what came.
    pub fn decode(words: &Words) -> Result<Self, Mismatch> {
        let [verdict, arena_bytes, start_agent, ..] = unframe(words)?;
        Ok(Self {
            verdict: Verdict::from_number(verdict as u32).ok_or(Mismatch::NotOurs)?,
            seat: (verdict >> 32) as u32,
            arena_bytes,
            start_agent: start_agent != 0,
        })
    }
}

impl Ready {
    /// As it travels.
    pub fn encode(&self) -> Words {
        frame([self.arena, u64::from(self.status.cast_unsigned()), 0, 0, 0, 0])
    }

    /// Takes apart what came.
    pub fn decode(words: &Words) -> Result<Self, Mismatch> {
        let [arena, status, ..] = unframe(words)?;
        Ok(Self { arena, status: (status as u32).cast_signed() })
    }
}
