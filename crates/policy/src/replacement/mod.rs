//! Which page leaves local memory when the budget is exceeded: one trait, one file per policy, no I/O.
//!
//! | file | policy |
//! |---|---|
//! | [`sampled`] | the pager's: what streams have passed, then random victims that were not needed soon after they left |
//! | [`clock`] | in order of arrival, once more round with evidence; a part of `sampled` |
//!
//! FIFO, SIEVE, S3-FIFO and the lists of DCM were compared with it (docs/decisions/replacement.md) and are in
//! `crates/research`.
//!
//! Each is an [`listed::Order`] over the [`lists`]; what they share is in [`listed`]. How soon pages are needed again
//! is in [`rates`].
//!
//! A user-space pager sees little of what a program does with resident pages: there are no referenced bits for it. It
//! learns of a page
//! - when it *arrives* ([`Arrival`]): by a fault, or ahead of one;
//! - when a page that left is touched again while still local (*staged*): [`Arrival::Staged`], a cheap fault, and the
//!   only cheap sign that a page which did not leave for long is in use. So staging is a second chance for every
//!   policy, and the sensor of those that want one;
//! - when it is written for the first time since it arrived clean ([`Evidence::Written`]);
//! - on kernels that tell ([`Evidence::Referenced`]): when a scan finds it referenced.
//!
//! Everything else, most of all a hit, is silent. A replay (`replay`) gives a policy these events and no others.
//!
//! The life of a page: *absent* -> `inserted` -> *listed* -> `victims` hands it out -> *absent* for the policy (the
//! pager stages it, then writes it out) -> `inserted` again as [`Arrival::Staged`] or [`Arrival::Refault`].
//! [`Shadows`] tells how far back it left.
//!
//! Events cross: while the eviction thread takes victims, the fault thread still tells of them. So an event about a
//! page that is not listed is no mistake; it is ignored. A policy has one owner (the eviction thread) and needs no
//! lock.
//!
//! Invariants of every policy: a page is listed once or not at all; victims were listed; nothing allocates but
//! construction and [`Replacement::grow`]; every call takes constant time for each page, amortised.

pub mod clock;
pub mod listed;
pub mod lists;
pub mod rates;
pub mod sampled;
pub mod shadows;

pub use shadows::Shadows;

/// A page as the pager counts pages: dense, from 0, given again to another page when one is gone.
///
/// Pages of one aligned group of [`NEIGHBOURS_MAX`] numbers must be neighbours in address in the same order (or
/// unused): the pager hands numbers out by whole groups. Pages that leave together can then be written, and come
/// back, as one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CachePage(pub u32);

/// Pages of a group of neighbours: a slot of the write-back pool, 128 KiB (docs/pager.md), HPBD's largest request.
pub const NEIGHBOURS_MAX: u32 = 32;

/// Pages that leave together at most, of one aligned group of so many numbers: four groups of neighbours, the pager's
/// batch. Groups that were numbered one after the other are neighbours in most cases, and pages that are neighbours
/// move as one run, with one flush of other CPUs' TLBs (docs/decisions/pager-eviction.md). If they are not, the pages
/// that leave along are others that came at the same time and have nothing that speaks for them, of another program
/// even.
pub const LEAVING_MAX: u32 = 4 * NEIGHBOURS_MAX;

/// How a page came into local memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// It was never here before: registered while resident, or filled with zeroes by a fault.
    New,
    /// A fault brought it back from afar; `distance` pages left since it did ([`Shadows::distance`]).
    Refault {
        /// Pages that left in between.
        distance: u32,
    },
    /// It came along with a neighbour in no trend, and is taken for needed: no marker will tell whether it is.
    Around {
        /// Pages that left since it did; `u32::MAX` if it never left.
        distance: u32,
    },
    /// A fault found it staged: it was handed out as a victim and touched before its staging slot was used again.
    Staged,
    /// It was brought along with another page; no fault has asked for it yet. Once there are many of those they leave
    /// before all others, until [`Evidence::PrefetchUsed`] (or any other evidence) comes.
    Prefetched,
}

impl Arrival {
    /// Whether the page was needed soon after it left: it would have stayed in twice a memory of `capacity` pages, so
    /// it may belong among those that stay in this one (the kernel's test in `workingset_refault`).
    pub fn is_near(self, capacity: u32) -> bool {
        match self {
            Self::Staged => true,
            Self::Refault { distance } => distance <= capacity,
            Self::New | Self::Around { .. } | Self::Prefetched => false,
        }
    }
}

/// What the pager learns of a listed page. Never a plain hit: the kernel does not tell a process of those.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evidence {
    /// A write-protect fault: the first write since the page arrived clean.
    Written,
    /// A page that was brought along was asked for: the marker behind it was reached (see `prefetch`), or it faulted.
    PrefetchUsed,
    /// A stream went on behind the page, a marker that it had waited for. That speaks for it no more than for those
    /// that were brought along beside it.
    Passed,
    /// A scan found it referenced since the last one. No kernel of today tells an ordinary process (PAGEMAP_SCAN has
    /// written bits only); read-write-protection is announced for Linux 7.2.
    Referenced,
    /// The page became a part of a huge page: its leaving would split that. It is passed over [`JOINED_PASSES`] times.
    Joined,
    /// The huge page that it was a part of was split: nothing speaks for it any more, so it leaves with the rest.
    Parted,
}

/// How often a page of a new huge page is passed over: as one that was needed at once. A huge page is split once one of
/// its 512 pages was met more often by chance; with 4 that is after about as many victims as there are pages in memory,
/// with 1 after a sixteenth of that (Poisson).
pub const JOINED_PASSES: u8 = 4;

/// A policy: which of the listed pages leaves next.
/// ```
/// use spillway_policy::replacement::sampled::Sampled;
/// use spillway_policy::replacement::{Arrival, CachePage, Replacement};
///
/// let mut policy = Sampled::new(4, 4, 1);
/// (0..4).for_each(|page| policy.inserted(CachePage(page), Arrival::New));
/// let mut victims = [CachePage(0); 2];
/// assert_eq!(policy.victims(&mut victims), 2);
/// assert_eq!(policy.listed(), 2);
/// ```
pub trait Replacement: Send {
    /// `page` is in local memory now, in the program's sight. A listed page is taken as touched instead.
    fn inserted(&mut self, page: CachePage, arrival: Arrival);

    /// Something was learnt of `page`.
    fn touched(&mut self, page: CachePage, evidence: Evidence);

    /// The program dropped `page` (unmap, MADV_DONTNEED, exit): its number may name another page from now on.
    fn removed(&mut self, page: CachePage);

    /// `page`, handed out by `victims`, could not leave (pinned for DMA, locked, busy after a fork). It is listed
    /// again, as far from leaving as the policy can, so that it is not tried again and again.
    fn refused(&mut self, page: CachePage);

    /// Hands out pages that leave, first those that leave first, at most as many as `victims` has room for; gives their
    /// number, which is less only when no more are listed. Neighbours of a victim that are nearly as old leave with it.
    fn victims(&mut self, victims: &mut [CachePage]) -> usize;

    /// Pages that are listed.
    fn listed(&self) -> u32;

    /// The budget: how many pages are to be listed. What parts of it a policy gives to its lists follows from this; the
    /// policy itself never evicts.
    fn resize(&mut self, pages: u32);

    /// Page numbers below `pages` are in use from now on: the only call that allocates.
    fn grow(&mut self, pages: u32);

    /// Bytes of memory for each page number, for documents and tables.
    fn bytes_per_page(&self) -> usize;
}
