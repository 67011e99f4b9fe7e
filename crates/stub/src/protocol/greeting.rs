//! The greeting: messages of eight words each, of which the first two say whose they are.

use super::{MAGIC, VERSION};

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
    /// As `Page`; besides, the program's forks wait until the pager allows each, because the kernel does not let this user have
    /// messages about them. The descriptor for that comes with [`Ready`], unless the program inherited it.
    PageTellingForks = 4,
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
    /// Where a program has mapped the arena that goes on without waiting: it has agreed on what [`ArenaHead::features`](super::ArenaHead)
    /// says, and registered the arena's head. 0 if it waits for an answer.
    pub arena: u64,
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
        frame([who, where_to, self.start_agent, self.library_start, self.library_end, self.arena])
    }

    /// Takes apart what came.
    pub fn decode(words: &Words) -> Result<Self, Mismatch> {
        let [who, where_to, start_agent, library_start, library_end, arena] = unframe(words)?;
        Ok(Self {
            kind: HelloKind::from_number(who as u32).ok_or(Mismatch::NotOurs)?,
            process: (who >> 32) as u32,
            seat: where_to as u32,
            status: ((where_to >> 32) as u32).cast_signed(),
            start_agent,
            library_start,
            library_end,
            arena,
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

number_of!(Verdict: Page, RunUnpaged, Refuse, PageTellingForks);
number_of!(HelloKind: Program, Agent);
