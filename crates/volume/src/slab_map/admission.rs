//! Which request gets room in a full backlog: the request that came first.
//!
//! A writer that finds too little room takes a ticket and tries again later. What the writers before it wait for is set
//! aside for them, so a small write never takes the room that a large one has been waiting for; where there is room for
//! all of them, no thread waits for another. Sans-I/O, and nothing allocates after it was made.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use std::collections::VecDeque;

/// A writer's place in the queue. It must be used or given up (`Admission::leave`), or its room stays set aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket(u64);

/// The writers that wait, see the module text.
#[derive(Debug)]
pub(super) struct Admission {
    /// Ticket and pages, oldest first.
    waiting: VecDeque<(u64, usize)>,
    next: u64,
}

impl Admission {
    /// Room for `capacity` tickets; the thread that comes while all are taken waits without one.
    pub(super) fn new(capacity: usize) -> Self {
        Self { waiting: VecDeque::with_capacity(capacity), next: 0 }
    }

    /// Whether a writer of `pages` may have them of `free` ones; `ticket` is what it got when it was told no before.
    /// When it may, its ticket is used up; when not, it has one, as far as there is room.
    pub(super) fn admit(&mut self, pages: usize, free: usize, ticket: &mut Option<Ticket>) -> bool {
        let before = |number: &u64| ticket.is_none_or(|ticket| *number < ticket.0);
        let set_aside: usize =
            self.waiting.iter().take_while(|(number, _)| before(number)).map(|(_, pages)| pages).sum();
        if free.saturating_sub(set_aside) >= pages {
            if let Some(ticket) = ticket.take() {
                self.leave(ticket);
            }
            return true;
        }
        if ticket.is_none() && self.waiting.len() < self.waiting.capacity() {
            self.waiting.push_back((self.next, pages));
            *ticket = Some(Ticket(self.next));
            self.next += 1;
        }
        false
    }

    /// The writer does not want the room any more.
    pub(super) fn leave(&mut self, ticket: Ticket) {
        let index = self.waiting.binary_search_by_key(&ticket.0, |(number, _)| *number);
        self.waiting.remove(index.expect("a ticket is used or given up once"));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn small_writers_do_not_pass_a_large_one() {
        let mut admission = Admission::new(4);
        let (mut large, mut small) = (None, None);
        assert!(!admission.admit(10, 9, &mut large));
        assert!(!admission.admit(1, 9, &mut small), "nine are set aside, and one is missing");
        assert!(!admission.admit(1, 10, &mut small));
        assert!(admission.admit(10, 10, &mut large));
        assert!(admission.admit(1, 1, &mut small));
        assert_eq!((large, small), (None, None));
    }

    #[test]
    fn where_there_is_room_for_all_none_waits() {
        let mut admission = Admission::new(4);
        let mut large = None;
        assert!(!admission.admit(10, 9, &mut large));
        // The large one does not come back, for whatever reason; there is room for both now.
        assert!(admission.admit(1, 11, &mut None));
    }

    #[test]
    fn room_that_is_given_up_is_free_for_others() {
        let mut admission = Admission::new(4);
        let mut large = None;
        assert!(!admission.admit(10, 9, &mut large));
        admission.leave(large.unwrap());
        assert!(admission.admit(9, 9, &mut None));
    }

    #[test]
    fn more_writers_than_tickets_wait_without_one() {
        let mut admission = Admission::new(1);
        let capacity = admission.waiting.capacity();
        let mut tickets = vec![None; capacity + 1];
        tickets.iter_mut().for_each(|ticket| assert!(!admission.admit(1, 0, ticket)));
        assert!(tickets[capacity].is_none() && tickets[..capacity].iter().all(Option::is_some));
        assert_eq!(admission.waiting.capacity(), capacity, "nothing was allocated");
    }

    proptest! {
        /// Writers of random sizes come all the time while room comes back page by page: each gets in before any that
        /// came later and is not smaller, and no thread waits for ever.
        #[test]
        fn writers_get_in_in_their_order(sizes in prop::collection::vec(1_usize..8, 1..40)) {
            let mut admission = Admission::new(64);
            let mut writers: Vec<(usize, Option<Ticket>, bool)> = sizes.iter().map(|size| (*size, None, false)).collect();
            let (mut free, mut admitted) = (0, Vec::new());
            for round in 0..sizes.iter().sum::<usize>() + sizes.len() {
                for (index, (pages, ticket, inside)) in writers.iter_mut().enumerate().take(round + 1).rev() {
                    if !*inside && admission.admit(*pages, free, ticket) {
                        free -= *pages;
                        *inside = true;
                        admitted.push(index);
                    }
                }
                free += 1;
            }
            prop_assert!(writers.iter().all(|(_, ticket, inside)| *inside && ticket.is_none()));
            prop_assert!(admission.waiting.is_empty());
            prop_assert!(admitted.is_sorted(), "{:?}", admitted);
        }
    }
}
