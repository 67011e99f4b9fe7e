//! The policies of replacement once more, as plainly as possible: what the real ones must agree with.
//!
//! Lists are vectors that are searched, the oldest page first. Pages have no neighbours here.

use std::collections::HashMap;

use spillway_policy::replacement::Arrival;
use spillway_research::replacement::Policy;

/// A policy by the book.
pub(crate) struct Model {
    policy: Policy,
    capacity: u32,
    /// Pages that were brought along; new ones; those that stay (S3-FIFO's main queue, the active list).
    lists: [Vec<u32>; 3],
    marks: HashMap<u32, u8>,
    /// SIEVE's hand: a page of list 1.
    hand: Option<u32>,
}

impl Model {
    pub(crate) fn new(policy: Policy, capacity: u32) -> Self {
        Self { policy, capacity, lists: Default::default(), marks: HashMap::new(), hand: None }
    }

    fn list_of(&self, page: u32) -> Option<usize> {
        self.lists.iter().position(|list| list.contains(&page))
    }

    fn near(&self, arrival: Arrival) -> bool {
        match arrival {
            Arrival::Staged => true,
            Arrival::Refault { distance } => distance <= self.capacity,
            Arrival::New | Arrival::Around { .. } | Arrival::Prefetched => false,
        }
    }

    pub(crate) fn inserted(&mut self, page: u32, arrival: Arrival) {
        if self.list_of(page).is_some() {
            return self.touched(page);
        }
        let near = self.near(arrival);
        let list = match (arrival, self.policy) {
            (Arrival::Prefetched, _) => 0,
            (_, Policy::S3Fifo) if near => 2,
            _ => 1,
        };
        let marked = near && !matches!(self.policy, Policy::S3Fifo | Policy::Fifo);
        self.marks.insert(page, u8::from(marked));
        self.lists[list].push(page);
    }

    pub(crate) fn touched(&mut self, page: u32) {
        match (self.list_of(page), self.policy) {
            (None, _) | (Some(1 | 2), Policy::Fifo) => {}
            (Some(0), _) => {
                self.removed(page);
                self.lists[1].push(page);
            }
            (Some(_), Policy::S3Fifo) => *self.marks.get_mut(&page).unwrap() = (self.marks[&page] + 1).min(3),
            (Some(_), _) => *self.marks.get_mut(&page).unwrap() = 1,
        }
    }

    pub(crate) fn removed(&mut self, page: u32) {
        if self.hand == Some(page) {
            let place = self.lists[1].iter().position(|other| *other == page).unwrap();
            self.hand = self.lists[1].get(place + 1).copied();
        }
        self.lists.iter_mut().for_each(|list| list.retain(|other| *other != page));
    }

    pub(crate) fn refused(&mut self, page: u32) {
        self.removed(page);
        self.marks.insert(page, if self.policy == Policy::S3Fifo { 3 } else { u8::from(self.policy != Policy::Fifo) });
        self.lists[1].push(page);
    }

    pub(crate) fn listed(&self) -> usize {
        self.lists.iter().map(Vec::len).sum()
    }

    pub(crate) fn victim(&mut self) -> Option<u32> {
        let ahead_max = (self.capacity / 16).max(128).min(self.capacity / 2) as usize;
        let page = match self.policy {
            _ if self.lists[0].len() > ahead_max => Some(self.lists[0][0]),
            Policy::Fifo => self.lists[1].first().copied(),
            Policy::Clock => self.go_round(|_| Some(1)),
            Policy::Sieve => self.sieve(),
            Policy::S3Fifo => self.go_round(|model| {
                let small_is_full = model.lists[1].len() as u32 > model.capacity / 10;
                model.of_two(small_is_full)
            }),
            Policy::SeveralChances => self.go_round(|model| {
                let new_is_full = model.lists[1].len() as u32 * 7 > model.capacity * 3;
                model.of_two(new_is_full)
            }),
            Policy::Sampled | Policy::SampledInTurn | Policy::SampledAtOnce => panic!("chance has no model"),
        };
        let page = page.or(self.lists[0].first().copied())?;
        self.removed(page);
        Some(page)
    }

    /// The first list if it is too full or the other one is empty.
    fn of_two(&self, first_is_full: bool) -> Option<usize> {
        let first = !self.lists[1].is_empty() && (first_is_full || self.lists[2].is_empty());
        Some(if first { 1 } else { 2 })
    }

    /// The oldest page of the list that `choose` names, if it is not marked; one that is goes round.
    fn go_round(&mut self, choose: impl Fn(&Self) -> Option<usize>) -> Option<u32> {
        loop {
            let list = choose(self)?;
            let page = *self.lists[list].first()?;
            let mark = self.marks[&page];
            if mark == 0 {
                return Some(page);
            }
            self.lists[list].remove(0);
            let counts_down = self.policy == Policy::S3Fifo && list == 2;
            self.marks.insert(page, if counts_down { mark - 1 } else { 0 });
            self.lists[if self.policy == Policy::Clock { 1 } else { 2 }].push(page);
        }
    }

    fn sieve(&mut self) -> Option<u32> {
        loop {
            let page = self.hand.or(self.lists[1].first().copied())?;
            let place = self.lists[1].iter().position(|other| *other == page).unwrap();
            self.hand = self.lists[1].get(place + 1).copied();
            if self.marks[&page] == 0 {
                return Some(page);
            }
            self.marks.insert(page, 0);
        }
    }
}
