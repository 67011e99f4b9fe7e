//! Batches: what the evictor is asked, and what it answers.
//!
//! A batch belongs to one side at a time, as its [`Phase`] says; the words of its entries need no order of their own.

use core::mem::offset_of;
use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64};

use super::BATCH_ENTRIES_MAX;

/// Up to [`BATCH_ENTRIES_MAX`] things for the evictor to do.
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
    /// What the operation needs: a length in bytes, or a status.
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

/// The side that has a batch, and how far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub enum Phase {
    /// The pager's: nothing asked, or all results taken.
    Idle = 0,
    /// A thread that takes it: the evictor, or the pager back again, if the evictor is stopped. From now on no thread
    /// may read the userfaultfd's messages (rule 14).
    Posted = 1,
    /// The evictor's: it moves pages.
    Claimed = 2,
    /// The evictor's: pages are moved, which cannot be undone; it copies and drops them. Messages may be read again.
    Moved = 3,
    /// The pager's: all results are there.
    Done = 4,
}

/// What an entry asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Operation {
    /// Move the page out of the program, copy it to the entry's page of the seat, and drop it.
    EvictCopy = 1,
    /// Move the page out of the program, and drop it: its content is elsewhere.
    EvictDrop = 2,
    /// Make the pages of `argument` bytes the process's own (`MADV_POPULATE_WRITE`), after the evictions of the
    /// batch: what a page needs that a fork shared (rule 2). Only for pages that were never write-protected by us.
    Populate = 3,
    /// `madvise` of `argument` bytes with advice `detail`, after the evictions of the batch.
    Advise = 4,
    /// End, with status `argument`: that of the program if nothing else is left of it.
    Exit = 5,
}

/// Results that say what to do next.
pub mod outcome {
    /// Done.
    pub const DONE: i32 = 0;
    /// Done, and the page had nothing but zeroes: it was not copied, and reads as zeroes where it was.
    pub const ZERO: i32 = 1;
    /// `-ENOENT`: the page is not there.
    pub const ABSENT: i32 = -2;
    /// `-EAGAIN`: the program changes its mappings; nothing was done. Read messages, and ask later.
    pub const TRY_LATER: i32 = -11;
    /// `-EBUSY`: pinned, or shared with a forked process.
    pub const BUSY: i32 = -16;
    /// `-EINVAL`: not memory that can be moved: locked, not both readable and writable, or not private and anonymous.
    pub const REFUSED: i32 = -22;
    /// `-ENOSYS`: an operation that this evictor does not know.
    pub const UNKNOWN: i32 = -38;
}

number_of!(Phase: Idle, Posted, Claimed, Moved, Done);
number_of!(Operation: EvictCopy, EvictDrop, Populate, Advise, Exit);
