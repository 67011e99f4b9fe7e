//! Which pages come along with the one that a program waits for: one trait, one file per policy, no I/O.
//!
//! | file | policy |
//! |---|---|
//! | [`read_ahead`] | along a stride, in windows that grow with use and shrink with waste |
//! | `head`, `experience` | the places that it follows, and what it remembers beside them |
//! | [`read_around`] | the same, and the neighbours of pages in no trend, where those are needed soon after; [`runs`]: how many of them are |
//! | [`elastic`] | the rest of a block of 4 KiB to 2 MiB, which grows and shrinks with use: DCM's |
//! | [`leap`] | Leap's, by a majority of the last deltas ([`history`]): the one to compare with |
//! | [`linux_cluster`], [`linux_vma`] | the kernel's, for swap: to compare with |
//! | [`selection`] | those that a user may choose by name |
//! | [`streams`] | one prefetcher for each thread, so that concurrent streams do not hide one another |
//!
//! Simpler ones that these were compared with (next-N, a fixed stride, blocks of 32 pages) are in `crates/research`
//! (docs/decisions/prefetching.md).
//!
//! A page that is brought along can be shown to the program at once (mapped), and then the pager never learns whether
//! it was used; or be kept local and unmapped, and then its use costs a cheap fault. As the kernel's read-ahead does,
//! one page of each window is a *marker*: it is kept unmapped, the others are mapped. The fault on the marker tells
//! that the program came so far, and is when the next window is asked for, while the program still has the rest of
//! this one to go through. So a stream costs one cheap fault for each window and waits for the network once. A policy
//! may want the other way, as Leap does: then every page stays unmapped, and its first use is a hit
//! ([`Prefetcher::keeps_unmapped`]).
//!
//! What the pager tells a prefetcher:
//! - `on_fault`: a page was waited for that had not been brought along (one that is still on its way is no such fault);
//! - `around`: that brought nothing along; what of the page's neighbours is away is said too;
//! - `on_hit`: a marker, or a page that was kept unmapped, was reached, whether it was there or still on its way;
//! - `on_unused`: pages that were brought along left again before a marker behind them was reached.
//!
//! Invariants: candidates are at most [`CANDIDATES_MAX`], never the demanded page, and distinct; nothing allocates
//! after construction. Whether a candidate exists, is remote, and is worth a read is for the pager to say: it drops
//! the others ([`Candidates::retain`]).

pub mod elastic;
mod experience;
mod head;
pub mod history;
pub mod leap;
pub mod linux_cluster;
pub mod linux_vma;
pub mod read_ahead;
pub mod read_around;
pub mod runs;
pub mod selection;
pub mod streams;

/// A page of a program's address space: its address over the page size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageNumber(pub u64);

impl PageNumber {
    /// The page `delta` further on, if there is one.
    pub fn offset(self, delta: i64) -> Option<Self> {
        self.0.checked_add_signed(delta).map(Self)
    }

    /// How far it is from `other` to here.
    pub fn distance_from(self, other: Self) -> i64 {
        self.0.wrapping_sub(other.0).cast_signed()
    }
}

/// Pages of one window at most, unless donors are far: 256 KiB, two of HPBD's largest requests; the kernel's
/// read-ahead ends at 128 KiB for files and at 32 pages for swap.
pub const WINDOW_MAX: usize = 64;

/// Pages of one window from donors that are far: 2 MiB, a huge page of the processor.
pub const WINDOW_FAR_MAX: usize = 512;

/// Candidates at a time: two windows, since of one some pages may be local, and a stream has one while the next comes.
pub const CANDIDATES_MAX: usize = 2 * WINDOW_FAR_MAX;

/// Pages to bring along, the most urgent first, and which of them is the marker.
#[derive(Clone, Debug)]
pub struct Candidates {
    pages: [PageNumber; CANDIDATES_MAX],
    count: usize,
    marker: Option<PageNumber>,
    around: bool,
    window_max: usize,
}

impl Default for Candidates {
    fn default() -> Self {
        Self { pages: [PageNumber(0); CANDIDATES_MAX], count: 0, marker: None, around: false, window_max: WINDOW_MAX }
    }
}

impl Candidates {
    /// Windows that are put here end at so many pages; [`WINDOW_MAX`] unless told otherwise.
    pub fn set_window_max(&mut self, pages: usize) {
        self.window_max = pages.min(WINDOW_FAR_MAX);
    }

    /// How many pages a window has at most.
    pub fn window_max(&self) -> usize {
        self.window_max
    }

    /// Forgets them all.
    pub fn clear(&mut self) {
        (self.count, self.marker, self.around) = (0, None, false);
    }

    /// The pages.
    pub fn pages(&self) -> &[PageNumber] {
        &self.pages[..self.count]
    }

    /// The page that stays unmapped, one of [`Candidates::pages`].
    pub fn marker(&self) -> Option<PageNumber> {
        self.marker
    }

    /// Adds `page` if there is room.
    pub fn push(&mut self, page: PageNumber) {
        if let Some(room) = self.pages.get_mut(self.count) {
            *room = page;
            self.count += 1;
        }
    }

    /// Adds `pages` as far as there is room.
    pub fn extend(&mut self, pages: &[PageNumber]) {
        let count = pages.len().min(CANDIDATES_MAX - self.count);
        self.pages[self.count..self.count + count].copy_from_slice(&pages[..count]);
        self.count += count;
    }

    /// Adds `count` pages from `from` on, `delta` apart and without `from`, as far as there are so many and room.
    pub fn push_line(&mut self, from: PageNumber, delta: i64, count: usize) {
        let count = count.min(CANDIDATES_MAX - self.count);
        let has_all = (count as i64).checked_mul(delta).is_some_and(|length| from.offset(length).is_some());
        if has_all {
            let room = &mut self.pages[self.count..self.count + count];
            let mut page = from.0;
            for place in room {
                page = page.wrapping_add_signed(delta);
                *place = PageNumber(page);
            }
            self.count += count;
        } else {
            let mut page = from;
            for _ in 0..count {
                let Some(next) = page.offset(delta) else { break };
                self.push(next);
                page = next;
            }
        }
    }

    /// Adds those of `other` that are not here yet and for which there is room; its marker counts if there was none.
    /// Streams that meet, one from below and one from above, name the same pages, and a page is read once.
    pub fn append(&mut self, other: &Self) {
        let own = self.count;
        if own == 0 {
            self.extend(other.pages());
        } else {
            for page in other.pages() {
                if !self.pages()[..own].contains(page) {
                    self.push(*page);
                }
            }
        }
        self.marker = self.marker.or(other.marker).filter(|marker| self.pages().contains(marker));
        self.around |= other.around;
    }

    /// Forgets the first `count` pages; the marker too.
    pub fn drop_first(&mut self, count: usize) {
        self.pages.copy_within(count..self.count, 0);
        (self.count, self.marker) = (self.count - count, None);
    }

    /// Drops the pages that are not worth a read, because they are local or do not exist. If the marker is one of them,
    /// the next page that stays takes its place, or else the last: a stream must come to a marker, or it would have
    /// to fault to go on.
    pub fn retain(&mut self, mut is_wanted: impl FnMut(PageNumber) -> bool) {
        let marker = self.marker.and_then(|marker| self.pages().iter().position(|page| *page == marker));
        let mut kept = 0;
        for index in 0..self.count {
            if marker == Some(index) {
                self.marker = None;
            }
            if is_wanted(self.pages[index]) {
                self.pages[kept] = self.pages[index];
                kept += 1;
                if marker.is_some_and(|marker| marker <= index) && self.marker.is_none() {
                    self.marker = Some(self.pages[index]);
                }
            }
        }
        self.count = kept;
        self.marker = self.marker.filter(|_| kept > 0).or(self.pages().last().copied().filter(|_| marker.is_some()));
    }

    /// They are neighbours of a page in no trend.
    pub fn are_around(&mut self) {
        self.around = true;
    }

    /// Whether they are neighbours of a page in no trend, and taken for needed: no marker will tell.
    pub fn comes_around(&self) -> bool {
        self.around
    }

    /// Makes the page at `index` the marker.
    pub fn mark(&mut self, index: usize) {
        self.marker = Some(self.pages()[index]);
    }
}

/// Whose faults one policy sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keying {
    /// All of an address space.
    Process,
    /// Those of a thread.
    Thread,
    /// Those of a thread in one region of addresses.
    ThreadAndRegion,
}

/// A policy for one stream of faults.
/// ```
/// use spillway_policy::prefetch::read_ahead::ReadAhead;
/// use spillway_policy::prefetch::{Candidates, Prefetcher, PageNumber};
///
/// let (mut prefetcher, mut candidates) = (ReadAhead::default(), Candidates::default());
/// for page in [10, 11, 12] {
///     candidates.clear();
///     prefetcher.on_fault(PageNumber(page), &mut candidates);
/// }
/// assert_eq!(candidates.pages()[0], PageNumber(13), "the stream goes on");
/// ```
pub trait Prefetcher: Send {
    /// Its name on command lines and in tables.
    fn name(&self) -> &'static str;

    /// Whose faults it wants to see together.
    fn keying(&self) -> Keying {
        Keying::ThreadAndRegion
    }

    /// Whether all that it brings along stays unmapped, so that the first use of each page is a cheap fault and a hit.
    /// It has no markers then.
    fn keeps_unmapped(&self) -> bool {
        false
    }

    /// Whether it brings blocks whose size it chooses by their use. Then windows may be large even if donors are near.
    fn brings_blocks(&self) -> bool {
        false
    }

    /// Whether `page` is among what it brought along and the program has not come to it yet, as far as it can say.
    fn has_ahead(&self, page: PageNumber) -> bool {
        let _ = page;
        true
    }

    /// The program waits for `page`: adds to `candidates`, which are empty, what is worth bringing along.
    fn on_fault(&mut self, page: PageNumber, candidates: &mut Candidates);

    /// [`Prefetcher::on_fault`] brought nothing along with `page`: adds what of its neighbours is worth it. `is_away`
    /// says which pages could come.
    fn around(&mut self, page: PageNumber, is_away: &dyn Fn(PageNumber) -> bool, candidates: &mut Candidates) {
        let _ = (page, is_away, candidates);
    }

    /// The program reached `page`, a marker of this prefetcher: adds what is to come next.
    fn on_hit(&mut self, page: PageNumber, candidates: &mut Candidates);

    /// The candidates up to `page`, the last of them, were few when local ones were left out: adds what is behind
    /// them. The program has not come there yet.
    fn go_on(&mut self, page: PageNumber, candidates: &mut Candidates) {
        let _ = (page, candidates);
    }

    /// `page`, which this prefetcher brought along, left unused.
    fn on_unused(&mut self, page: PageNumber);

    /// A new stream of the program that `other` is of begins with this one: takes over what that learnt of the
    /// program, and nothing of where it is.
    fn learn_from(&mut self, other: &Self)
    where
        Self: Sized,
    {
        let _ = other;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn candidates_end_where_their_room_does() {
        let mut candidates = Candidates::default();
        (0..2 * CANDIDATES_MAX as u64).for_each(|page| candidates.push(PageNumber(page)));
        assert_eq!(candidates.pages().len(), CANDIDATES_MAX);
        candidates.mark(3);
        assert_eq!(candidates.marker(), Some(PageNumber(3)));
        candidates.clear();
        assert_eq!((candidates.pages(), candidates.marker()), (&[][..], None));
    }

    #[test]
    fn pages_that_two_windows_name_are_candidates_once() {
        let window = |pages: &[u64]| {
            let mut window = Candidates::default();
            pages.iter().for_each(|page| window.push(PageNumber(*page)));
            window
        };
        let mut candidates = window(&[10, 11, 12, 13]);
        candidates.append(&window(&[12, 11, 10, 9]));
        assert_eq!(candidates.pages(), [10, 11, 12, 13, 9].map(PageNumber));
    }

    #[test]
    fn a_marker_that_is_dropped_moves_on() {
        let retained = |marker: usize, wanted: &[u64]| {
            let mut candidates = Candidates::default();
            (10..16).for_each(|page| candidates.push(PageNumber(page)));
            candidates.mark(marker);
            candidates.retain(|page| wanted.contains(&page.0));
            assert!(candidates.pages().iter().map(|page| page.0).eq(wanted.iter().copied()));
            candidates.marker().map(|page| page.0)
        };
        assert_eq!(retained(2, &[10, 11, 12, 13]), Some(12), "it stays");
        assert_eq!(retained(2, &[10, 13, 15]), Some(13), "the next one");
        assert_eq!(retained(4, &[10, 12]), Some(12), "none is left behind it: the last one");
        assert_eq!(retained(0, &[]), None);
    }
}
