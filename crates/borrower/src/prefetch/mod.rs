//! Which pages come along with the one that a program waits for: one trait, one file per policy, no I/O.
//!
//! | file | policy |
//! |---|---|
//! | [`none`] | the demanded page alone |
//! | [`streams`] | one prefetcher for each thread and region, so that concurrent streams do not hide one another |
//!
//! Leap's majority vote over deltas (`leap.rs`) is to stand beside them.
//!
//! A page that is brought along can be shown to the program at once (mapped), and then the pager never learns whether it
//! was used; or be kept local and unmapped, and then its use costs a cheap fault. As the kernel's read-ahead does, one
//! page of each window is a *marker*: it is kept unmapped, the others are mapped. The fault on the marker tells that the
//! program came so far, and is when the next window is asked for, while the program still has the rest of this one to go
//! through. So a stream costs one cheap fault for each window and waits for the network once.
//!
//! What the pager tells a prefetcher:
//! - `on_fault`: a page was waited for that nobody had brought along (or that came too late: it was still on its way);
//! - `on_hit`: a marker was reached;
//! - `on_unused`: pages that were brought along left again before a marker behind them was reached.
//!
//! Invariants: candidates are at most [`CANDIDATES_MAX`], never the demanded page, and distinct; nothing allocates after
//! construction. Whether a candidate exists, is remote, and is worth a read is for the pager to say: it drops the others.

pub mod none;
pub mod streams;

/// A page of a program's address space: its address over the page size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VirtualPage(pub u64);

impl VirtualPage {
    /// The page `delta` further on, if there is one.
    pub fn offset(self, delta: i64) -> Option<Self> {
        self.0.checked_add_signed(delta).map(Self)
    }
}

/// Pages of one window at most: 512 KiB, four of HPBD's largest requests; the kernel's read-ahead ends at 128 KiB for
/// files and at 2^page-cluster pages for swap, up to 32.
pub const CANDIDATES_MAX: usize = 128;

/// Pages to bring along, the most urgent first, and which of them is the marker.
#[derive(Clone, Debug)]
pub struct Candidates {
    pages: [VirtualPage; CANDIDATES_MAX],
    count: usize,
    marker: Option<VirtualPage>,
}

impl Default for Candidates {
    fn default() -> Self {
        Self { pages: [VirtualPage(0); CANDIDATES_MAX], count: 0, marker: None }
    }
}

impl Candidates {
    /// Forgets them all.
    pub fn clear(&mut self) {
        (self.count, self.marker) = (0, None);
    }

    /// The pages.
    pub fn pages(&self) -> &[VirtualPage] {
        &self.pages[..self.count]
    }

    /// The page that stays unmapped, one of [`Candidates::pages`].
    pub fn marker(&self) -> Option<VirtualPage> {
        self.marker
    }

    /// Adds `page` if there is room; says whether there was.
    pub fn push(&mut self, page: VirtualPage) -> bool {
        let room = self.pages.get_mut(self.count);
        let found = room.is_some();
        if let Some(room) = room {
            *room = page;
            self.count += 1;
        }
        found
    }

    /// Makes the page at `index` the marker.
    pub fn mark(&mut self, index: usize) {
        self.marker = Some(self.pages()[index]);
    }
}

/// A policy for one stream of faults.
pub trait Prefetcher: Send {
    /// Its name on command lines and in tables.
    fn name(&self) -> &'static str;

    /// The program waits for `page`: adds to `candidates`, which are empty, what is worth bringing along.
    fn on_fault(&mut self, page: VirtualPage, candidates: &mut Candidates);

    /// The program reached `page`, a marker of this prefetcher: adds what is to come next.
    fn on_hit(&mut self, page: VirtualPage, candidates: &mut Candidates);

    /// `count` pages that this prefetcher brought along left unused.
    fn on_unused(&mut self, count: u32);
}
