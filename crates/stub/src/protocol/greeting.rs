//! The greeting: messages of ten words each, of which the first two say whose they are.

use super::{MAGIC, VERSION};

/// Who says hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum HelloKind {
    /// A program that starts; a userfaultfd comes along unless `status` says why not.
    Program = 1,
    /// An evictor that starts, and wants its userfaultfd.
    Evictor = 2,
}

/// What the pager says to a hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Verdict {
    /// The program is paged; the head comes along (for an evictor: the userfaultfd; its seat follows in another such
    /// message).
    Page = 1,
    /// The program runs without being paged.
    RunUnpaged = 2,
    /// The program shall end, with a message.
    Refuse = 3,
    /// As `Page`; besides, the program's forks wait until the pager allows each, because the kernel does not let this
    /// user have messages about them. The descriptor for that comes with [`Ready`], unless the program inherited it.
    PageTellingForks = 4,
    /// The program may not make a userfaultfd by itself; what comes along is the device that makes one. It says hello
    /// again.
    TakeDevice = 5,
}

/// What a program or an evictor says first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Who speaks.
    pub kind: HelloKind,
    /// The process as it sees itself; the socket's credentials tell the pager's view.
    pub process: u32,
    /// An evictor's: which attempt it comes of ([`EvictorCell::attempt`](super::EvictorCell)).
    pub attempt: u32,
    /// 0, or the negative error number with which making a userfaultfd failed.
    pub status: i32,
    /// The run's token: what proves that the program was started in the run. 0 of an evictor.
    pub token: u64,
    /// The address of the stub's `start_evictor`, see there.
    pub start_evictor: u64,
    /// Where the stub's library is mapped.
    pub library_start: u64,
    /// Its end.
    pub library_end: u64,
    /// Where its [`EvictorCell`](super::EvictorCell) is.
    pub cell: u64,
    /// Where a program has mapped the head that goes on without waiting: it has agreed on what
    /// [`RunHead::features`](super::RunHead) says, and registered the head's first page. 0 if it waits for an answer.
    pub head: u64,
}

/// The pager's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// What shall happen.
    pub verdict: Verdict,
    /// Of a program that starts its evictor now, because the pager may not start it later by ptrace.
    pub evictor: Option<EvictorStart>,
}

/// How an evictor is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EvictorStart {
    /// Which attempt that is; never 0.
    pub attempt: u32,
    /// Whether its root and working directory are its own. Linux refuses `setns` into a mount namespace to a thread
    /// that shares these with another one (`mntns_install` in its fs/namespace.c). But a filter of system calls may
    /// know threads by what they share: under such a filter the evictor shares them.
    pub has_own_directory: bool,
}

impl EvictorStart {
    /// As the argument of a call.
    pub const fn word(self) -> u64 {
        pack(self.attempt, self.has_own_directory as u32)
    }

    /// Takes it apart.
    pub const fn from_word(word: u64) -> Self {
        Self { attempt: word as u32, has_own_directory: word >> 32 != 0 }
    }
}

/// The program's last word: from now on it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ready {
    /// Where the head is mapped.
    pub head: u64,
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

/// Words of a message: magic, version, and up to eight more.
pub const MESSAGE_WORDS: usize = 10;

/// Bytes of a message; all have the same size.
pub const MESSAGE_BYTES: usize = MESSAGE_WORDS * 8;

/// A message as it travels.
pub type Words = [u64; MESSAGE_WORDS];

/// The word of a hello that has the run's token.
pub const TOKEN_WORD: usize = 4;

/// Words of a message that are its own.
const OWN_WORDS: usize = MESSAGE_WORDS - 2;

fn frame(own: &[u64]) -> Words {
    let mut words = [0; MESSAGE_WORDS];
    words[0] = MAGIC;
    words[1] = u64::from(VERSION);
    for (word, value) in words.iter_mut().skip(2).zip(own) {
        *word = *value;
    }
    words
}

fn unframe(words: &Words) -> Result<[u64; OWN_WORDS], Mismatch> {
    let [magic, version, own @ ..] = *words;
    if magic != MAGIC {
        return Err(Mismatch::NotOurs);
    }
    if version != u64::from(VERSION) {
        return Err(Mismatch::Version(version as u32));
    }
    Ok(own)
}

/// Two halves in a word.
const fn pack(low: u32, high: u32) -> u64 {
    low as u64 | (high as u64) << 32
}

impl Hello {
    /// As it travels.
    pub fn encode(&self) -> Words {
        let who = pack(self.kind as u32, self.process);
        let how = pack(self.attempt, self.status.cast_unsigned());
        frame(&[who, how, self.token, self.start_evictor, self.library_start, self.library_end, self.cell, self.head])
    }

    /// Takes apart what came.
    pub fn decode(words: &Words) -> Result<Self, Mismatch> {
        let [who, how, token, start_evictor, library_start, library_end, cell, head] = unframe(words)?;
        Ok(Self {
            kind: HelloKind::from_number(who as u32).ok_or(Mismatch::NotOurs)?,
            process: (who >> 32) as u32,
            attempt: how as u32,
            status: ((how >> 32) as u32).cast_signed(),
            token,
            start_evictor,
            library_start,
            library_end,
            cell,
            head,
        })
    }
}

impl Welcome {
    /// As it travels.
    pub fn encode(&self) -> Words {
        frame(&[self.verdict as u64, self.evictor.map_or(0, EvictorStart::word)])
    }

    /// Takes apart what came.
    pub fn decode(words: &Words) -> Result<Self, Mismatch> {
        let [verdict, evictor, ..] = unframe(words)?;
        Ok(Self {
            verdict: Verdict::from_number(verdict as u32).ok_or(Mismatch::NotOurs)?,
            evictor: (evictor != 0).then(|| EvictorStart::from_word(evictor)),
        })
    }
}

impl Ready {
    /// As it travels.
    pub fn encode(&self) -> Words {
        frame(&[self.head, u64::from(self.status.cast_unsigned())])
    }

    /// Takes apart what came.
    pub fn decode(words: &Words) -> Result<Self, Mismatch> {
        let [head, status, ..] = unframe(words)?;
        Ok(Self { head, status: (status as u32).cast_signed() })
    }
}

number_of!(Verdict: Page, RunUnpaged, Refuse, PageTellingForks, TakeDevice);
number_of!(HelloKind: Program, Evictor);
