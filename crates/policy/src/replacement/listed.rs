//! What every policy has: its lists, its budget, and pages that were brought along in a list of their own. A policy
//! is an [`Order`], which says only what distinguishes it from the others.
//!
//! Pages enter the list [`NEW`]; an order has a use of its own for a second one, [`APART`]. What was learnt of a page
//! is counted in its marks, which the order spends while it looks for a victim.
//!
//! Invariant: a page in `AHEAD` has no marks, as the first evidence takes it out of there.

use super::lists::{List, Lists, Victims};
use super::{Arrival, CachePage, Evidence, JOINED_PASSES, LEAVING_MAX, NEIGHBOURS_MAX, Replacement};

/// Pages that were brought along and not asked for yet.
const AHEAD: List = List(0);
/// Where pages enter: all others, if the order has none apart.
pub const NEW: List = List(1);
/// Pages that the order treats differently: those that proved themselves, say.
pub const APART: List = List(2);

/// The lists of an order.
pub type OrderLists = Lists<3>;

/// Pages that were brought along and not asked for yet are left alone as long as they are fewer than one in so many
/// of the budget: time for the program to come to them. What is asked for later than that was brought along too
/// early.
pub const AHEAD_SHARE: u32 = 16;

/// Or fewer than this: two windows of `prefetch::WINDOW_MAX`, as the next one comes while the program uses the last.
const AHEAD_MIN: u32 = 2 * crate::prefetch::WINDOW_MAX as u32;

/// In which order pages leave that were asked for.
pub trait Order: Send {
    /// Evidence for a page is counted to here.
    const EVIDENCE_MAX: u8 = 1;

    /// Bytes for each page number, beside the lists.
    const BYTES_PER_PAGE: usize = 0;

    /// The list that `page` enters, which was not brought along, and the evidence that it has from the start: some if
    /// it was needed soon after it left. `capacity` is the budget in pages.
    fn entry(&mut self, _page: CachePage, arrival: Arrival, capacity: u32) -> (List, u8) {
        (NEW, u8::from(arrival.is_near(capacity)).min(Self::EVIDENCE_MAX))
    }

    /// Page numbers below `pages` are in use from now on: the only call that allocates.
    fn grow(&mut self, _pages: u32) {}

    /// The page that leaves next, one of [`NEW`] or [`APART`] without evidence; `None` if there is no page in them.
    /// Pages on the way to it lose evidence, so each call ends. The caller takes it, and its neighbours if they have
    /// no evidence either.
    fn next(&mut self, lists: &mut OrderLists, capacity: u32) -> Option<CachePage>;

    /// The list that a page enters which was brought along, once it is asked for; without marks.
    fn entry_used(&self) -> List {
        NEW
    }

    /// `pages` leave now: what was next, and its neighbours; not those that were brought along and never asked for.
    /// What it marks them with they have when they come back.
    fn left(&mut self, _lists: &mut OrderLists, _pages: &[CachePage], _capacity: u32) {}

    /// A page is here again that had `marks` when it left; it could not leave, or a program asked for it or what it
    /// lies beside.
    fn came_back(&mut self, _marks: u8) {}

    /// `page` leaves its place for another reason than that it was next.
    fn displaced(&mut self, _lists: &OrderLists, _page: CachePage) {}
}

/// A policy: see the module text.
#[derive(Clone, Debug)]
pub struct Listed<Policy> {
    lists: OrderLists,
    capacity: u32,
    order: Policy,
}

impl<Policy: Order> Listed<Policy> {
    /// With room for page numbers below `pages`, and a budget of `capacity` pages.
    pub fn new(pages: u32, capacity: u32, order: Policy) -> Self {
        Self { lists: Lists::new(pages), capacity, order }
    }

    /// The next victim.
    fn next(&mut self) -> Option<CachePage> {
        let too_many_ahead = self.lists.length(AHEAD) > ahead_max(self.capacity);
        let first = self.lists.tail(AHEAD).filter(|_| too_many_ahead);
        first.or_else(|| self.order.next(&mut self.lists, self.capacity)).or_else(|| self.lists.tail(AHEAD))
    }
}

/// So many pages that were brought along and not asked for are left alone, never half of `capacity`; those beyond
/// leave before all others. Leap evicts them eagerly for the same reason: nothing speaks for them.
fn ahead_max(capacity: u32) -> u32 {
    (capacity / AHEAD_SHARE).max(AHEAD_MIN).min(capacity / 2)
}

impl<Policy: Order> Replacement for Listed<Policy> {
    fn inserted(&mut self, page: CachePage, arrival: Arrival) {
        if self.lists.list_of(page).is_some() {
            return self.touched(page, Evidence::Referenced);
        }
        // The number of a new page was another's.
        if arrival != Arrival::New {
            self.order.came_back(self.lists.marks(page));
        }
        let (list, evidence) = match arrival {
            Arrival::Prefetched => (AHEAD, 0),
            _ => self.order.entry(page, arrival, self.capacity),
        };
        self.lists.set_marks(page, evidence);
        self.lists.push(list, page);
    }

    fn touched(&mut self, page: CachePage, evidence: Evidence) {
        match self.lists.list_of(page) {
            Some(AHEAD) if evidence == Evidence::Parted => {}
            Some(AHEAD) => {
                self.lists.renew(self.order.entry_used(), page);
                if evidence == Evidence::Joined {
                    self.touched(page, evidence);
                }
            }
            Some(list) if evidence == Evidence::Passed => {
                let is_plain = list == NEW && self.lists.marks(page) == 0;
                let entry = self.order.entry_used();
                if is_plain && entry != NEW {
                    self.order.displaced(&self.lists, page);
                    self.lists.renew(entry, page);
                }
            }
            Some(_) if evidence == Evidence::Joined => {
                let passes = JOINED_PASSES.min(Policy::EVIDENCE_MAX).max(self.lists.marks(page));
                self.lists.set_marks(page, passes);
            }
            Some(_) if evidence == Evidence::Parted => self.lists.set_marks(page, 0),
            Some(_) => self.lists.set_marks(page, (self.lists.marks(page) + 1).min(Policy::EVIDENCE_MAX)),
            None => {}
        }
    }

    fn removed(&mut self, page: CachePage) {
        self.order.displaced(&self.lists, page);
        self.lists.remove(page);
    }

    fn refused(&mut self, page: CachePage) {
        self.order.displaced(&self.lists, page);
        self.order.came_back(self.lists.marks(page));
        self.lists.set_marks(page, Policy::EVIDENCE_MAX);
        // Not among the proven ones: where those are few it would be the next victim.
        self.lists.renew(NEW, page);
    }

    fn victims(&mut self, victims: &mut [CachePage]) -> usize {
        let mut victims = Victims::new(victims);
        while !victims.is_full() {
            let Some(page) = self.next() else { break };
            // Of what was brought along only what is too much leaves, and little more.
            let is_ahead = self.lists.list_of(page) == Some(AHEAD);
            let group = if is_ahead { NEIGHBOURS_MAX } else { LEAVING_MAX };
            let first = victims.count();
            self.lists.take(page, group, |evidence| evidence == 0, &mut victims);
            if !is_ahead {
                self.order.left(&mut self.lists, victims.since(first), self.capacity);
            }
        }
        victims.count()
    }

    fn listed(&self) -> u32 {
        self.lists.total()
    }

    fn resize(&mut self, pages: u32) {
        self.capacity = pages;
    }

    fn grow(&mut self, pages: u32) {
        self.lists.grow(pages);
        self.order.grow(pages);
    }

    fn bytes_per_page(&self) -> usize {
        OrderLists::BYTES_PER_PAGE + Policy::BYTES_PER_PAGE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_brought_along_have_a_part_of_the_budget() {
        assert_eq!(ahead_max(1000 * AHEAD_SHARE), 1000);
        assert_eq!(ahead_max(4 * AHEAD_MIN), AHEAD_MIN, "time for two windows");
        assert_eq!([ahead_max(5), ahead_max(1), ahead_max(0)], [2, 0, 0], "others have the larger part");
    }

    /// The last one that entered leaves, with a mark; the displaced page is remembered, and with which marks pages
    /// came back.
    #[derive(Default)]
    struct Youngest {
        displaced: Vec<u32>,
        came_back: Vec<u8>,
    }

    /// See there.
    const GONE: u8 = 7;

    impl Order for Youngest {
        const EVIDENCE_MAX: u8 = 2;

        fn next(&mut self, lists: &mut OrderLists, _capacity: u32) -> Option<CachePage> {
            std::iter::successors(lists.tail(NEW), |page| lists.younger(*page)).last()
        }

        fn displaced(&mut self, _lists: &OrderLists, page: CachePage) {
            self.displaced.push(page.0);
        }

        fn left(&mut self, lists: &mut OrderLists, pages: &[CachePage], _capacity: u32) {
            pages.iter().for_each(|page| lists.set_marks(*page, GONE));
        }

        fn came_back(&mut self, marks: u8) {
            self.came_back.push(marks);
        }
    }

    #[test]
    fn evidence_is_counted_and_gone_with_the_page() {
        let mut pages = Listed::new(100, 100, Youngest::default());
        let (near, far) = (Arrival::Refault { distance: 100 }, Arrival::Refault { distance: 101 });
        pages.inserted(CachePage(0), near);
        pages.inserted(CachePage(1), far);
        pages.inserted(CachePage(2), Arrival::Prefetched);
        assert_eq!([0, 1, 2].map(|page| pages.lists.marks(CachePage(page))), [1, 0, 0]);
        (0..5).for_each(|_| pages.touched(CachePage(1), Evidence::Written));
        pages.inserted(CachePage(2), near);
        assert_eq!(
            [1, 2].map(|page| pages.lists.marks(CachePage(page))),
            [2, 0],
            "the first evidence takes it from ahead"
        );
        pages.removed(CachePage(1));
        pages.inserted(CachePage(1), Arrival::New);
        assert_eq!(pages.lists.marks(CachePage(1)), 0);
        assert_eq!(pages.order.displaced, [1]);
    }

    #[test]
    fn pages_of_a_huge_page_are_passed_over_and_leave_together_once_it_is_split() {
        let mut pages = Listed::new(100, 100, Youngest::default());
        pages.inserted(CachePage(0), Arrival::New);
        pages.inserted(CachePage(1), Arrival::Prefetched);
        (0..3).for_each(|page| pages.touched(CachePage(page), Evidence::Joined));
        let marks = |pages: &Listed<Youngest>| [0, 1, 2].map(|page| pages.lists.marks(CachePage(page)));
        assert_eq!(marks(&pages), [2, 2, 0], "as much as the order counts; page 2 is not listed");
        (0..3).for_each(|page| pages.touched(CachePage(page), Evidence::Parted));
        assert_eq!(marks(&pages), [0; 3]);
        let mut room = [CachePage(9); 2];
        assert_eq!(pages.victims(&mut room), 2);
        assert_eq!(room, [CachePage(1), CachePage(0)], "neighbours leave together");
    }

    #[test]
    fn a_marker_that_was_passed_is_like_those_beside_it_unless_something_speaks_for_it() {
        /// Only the lists are looked at.
        struct Streaming;

        impl Order for Streaming {
            fn next(&mut self, _lists: &mut OrderLists, _capacity: u32) -> Option<CachePage> {
                None
            }

            fn entry_used(&self) -> List {
                APART
            }
        }

        let mut pages = Listed::new(100, 100, Streaming);
        let [far, near] = [101, 100].map(|distance| Arrival::Refault { distance });
        for (page, arrival) in [far, near, Arrival::Prefetched, far].into_iter().enumerate() {
            pages.inserted(CachePage(page as u32), arrival);
        }
        pages.touched(CachePage(3), Evidence::Written);
        (0..5).for_each(|page| pages.touched(CachePage(page), Evidence::Passed));
        let lists = [0, 1, 2, 3, 4].map(|page| pages.lists.list_of(CachePage(page)));
        assert_eq!(lists, [Some(APART), Some(NEW), Some(APART), Some(NEW), None]);
        assert_eq!(
            [0, 1, 2, 3].map(|page| pages.lists.marks(CachePage(page))),
            [0, 1, 0, 1],
            "nor does it speak for one"
        );
    }

    #[test]
    fn what_is_next_takes_neighbours_without_evidence_along() {
        let mut pages = Listed::new(100, 100, Youngest::default());
        pages.inserted(CachePage(4), Arrival::New);
        pages.inserted(CachePage(6), Arrival::Staged);
        pages.inserted(CachePage(5), Arrival::New);
        let mut room = [CachePage(0); 2];
        assert_eq!(pages.victims(&mut room), 2);
        assert_eq!(room, [CachePage(5), CachePage(4)]);
        pages.refused(CachePage(4));
        assert_eq!((pages.lists.marks(CachePage(4)), pages.listed()), (2, 2));
    }

    #[test]
    fn marks_of_those_that_left_are_told_when_they_come_back_or_could_not_leave() {
        let mut pages = Listed::new(100, 100, Youngest::default());
        (0..3).for_each(|page| pages.inserted(CachePage(40 * page), Arrival::New));
        assert_eq!(pages.victims(&mut [CachePage(0); 3]), 3);
        pages.refused(CachePage(0));
        pages.inserted(CachePage(40), Arrival::Prefetched);
        assert_eq!(pages.order.came_back, [GONE; 2]);
        pages.inserted(CachePage(80), Arrival::New);
        assert_eq!(pages.order.came_back.len(), 2, "another page has the number");
        assert!([0, 40, 80].iter().all(|page| pages.lists.marks(CachePage(*page)) != GONE));
    }
}
