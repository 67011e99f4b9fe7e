//! Pages that were asked for and that the program has not come to yet.
//!
//! A page is *in flight* until the program comes to it, or until it has surely arrived. Pages in flight are what the
//! kernel cannot take from a cgroup, so they are counted. Later it is only remembered, as a marker is what tells how
//! far the program came.
//!
//! Invariants: at most `in_flight` pages of those remembered are in flight, which are the youngest; at most
//! [`ASKED_MAX`] are remembered.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use std::collections::{HashMap, VecDeque};

use spillway_policy::prefetch::PageNumber;

use crate::limits::{ARRIVAL_NS, ASKED_MAX};

/// A page of an address space.
type Place = (u32, PageNumber);

/// What is known of a page that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AskedPage {
    asked_ns: u64,
    /// Its window's marker.
    pub is_marker: bool,
    /// It may still be on its way.
    pub is_in_flight: bool,
}

/// See the module text.
#[derive(Clone, Debug, Default)]
pub struct Asked {
    pages: HashMap<Place, AskedPage>,
    /// In the order of asking; a page that was used or asked for again stays until its turn.
    order: VecDeque<(Place, u64)>,
    /// So many at the begin of `order` have arrived.
    arrived: usize,
    in_flight: usize,
}

impl Asked {
    /// How many pages are in flight.
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Whether a page is in flight.
    pub fn is_in_flight(&self, space: u32, page: PageNumber) -> bool {
        self.pages.get(&(space, page)).is_some_and(|asked| asked.is_in_flight)
    }

    /// Pages that were asked for long before `now_ns` have arrived.
    pub fn arrive(&mut self, now_ns: u64) {
        while let Some((place, asked_ns)) = self.order.get(self.arrived)
            && asked_ns.saturating_add(ARRIVAL_NS) <= now_ns
        {
            if let Some(asked) = self.pages.get_mut(place)
                && asked.asked_ns == *asked_ns
                && std::mem::take(&mut asked.is_in_flight)
            {
                self.in_flight -= 1;
            }
            self.arrived += 1;
        }
        assert!(self.in_flight <= self.order.len() - self.arrived, "what is in flight was asked for lately");
    }

    /// `page` was asked for. Gives the page that is forgotten for it.
    pub fn ask(&mut self, space: u32, page: PageNumber, is_marker: bool, now_ns: u64) -> Option<Place> {
        let asked = AskedPage { asked_ns: now_ns, is_marker, is_in_flight: true };
        let before = self.pages.insert((space, page), asked);
        self.in_flight += usize::from(before.is_none_or(|before| !before.is_in_flight));
        self.order.push_back(((space, page), now_ns));
        if self.order.len() > ASKED_MAX { self.forget_oldest() } else { None }
    }

    fn forget_oldest(&mut self) -> Option<Place> {
        let (place, asked_ns) = self.order.pop_front()?;
        self.arrived = self.arrived.saturating_sub(1);
        let is_same = self.pages.get(&place).is_some_and(|asked| asked.asked_ns == asked_ns);
        if is_same { self.take(place.0, place.1).map(|_| place) } else { None }
    }

    /// The program came to `page`: forgets it, if it was asked for.
    pub fn take(&mut self, space: u32, page: PageNumber) -> Option<AskedPage> {
        let asked = self.pages.remove(&(space, page))?;
        self.in_flight -= usize::from(asked.is_in_flight);
        Some(asked)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn pages_are_in_flight_until_they_are_used_or_have_arrived() {
        let mut asked = Asked::default();
        for page in 0..4 {
            assert_eq!(asked.ask(1, PageNumber(page), page == 2, page), None);
        }
        assert_eq!((asked.in_flight(), asked.is_in_flight(1, PageNumber(2))), (4, true));
        assert!(!asked.is_in_flight(2, PageNumber(2)), "another program's");
        assert!(asked.take(1, PageNumber(2)).is_some_and(|page| page.is_marker && page.is_in_flight));
        assert_eq!((asked.in_flight(), asked.take(1, PageNumber(2))), (3, None));
        asked.arrive(ARRIVAL_NS + 1);
        assert_eq!(asked.in_flight(), 1, "the first two have arrived, and the third was used");
        assert!(asked.take(1, PageNumber(0)).is_some_and(|page| !page.is_in_flight), "and are remembered");
        asked.arrive(u64::MAX);
        assert_eq!(asked.in_flight(), 0);
    }

    #[test]
    fn the_oldest_are_forgotten() {
        let mut asked = Asked::default();
        (0..ASKED_MAX as u64).for_each(|page| assert_eq!(asked.ask(1, PageNumber(page), false, page), None));
        assert_eq!(asked.ask(1, PageNumber(ASKED_MAX as u64), false, 0), Some((1, PageNumber(0))));
        asked.take(1, PageNumber(1));
        assert_eq!(asked.ask(1, PageNumber(3), false, u64::MAX), None, "the second was used");
        assert_eq!(asked.in_flight(), ASKED_MAX - 1);
    }

    proptest! {
        #[test]
        fn the_count_is_that_of_a_list(steps in proptest::collection::vec((0_u64..20, 0_u8..3), 1..200)) {
            let (mut asked, mut model) = (Asked::default(), Vec::<(u64, u64)>::new());
            let mut now = 0;
            for (page, what) in steps {
                now += ARRIVAL_NS / 7;
                asked.arrive(now);
                model.retain(|(_, asked_ns)| asked_ns + ARRIVAL_NS > now);
                if what == 0 {
                    asked.take(1, PageNumber(page));
                    model.retain(|(known, _)| *known != page);
                } else {
                    asked.ask(1, PageNumber(page), false, now);
                    model.retain(|(known, _)| *known != page);
                    model.push((page, now));
                }
                prop_assert_eq!(asked.in_flight(), model.len());
                for (page, _) in &model {
                    prop_assert!(asked.is_in_flight(1, PageNumber(*page)));
                }
            }
        }
    }
}
