//! Which donor gets the next slab: the power of two choices (Infiniswap, NSDI'17, section 4.3).
//!
//! Two donors are drawn at random, among those that hold nothing of this volume while there are any (spreading a
//! volume over many donors makes the loss of one cheap); the one with more free memory is taken. The cluster manager
//! will deepen this.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use crate::slab_map::slab_entry::DonorSlot;

/// A donor that could be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The donor.
    pub donor: DonorSlot,
    /// What it said it can still lend.
    pub free_bytes: u64,
    /// Slabs of this volume that it holds.
    pub slabs_held: u64,
    /// Whether it refused a slab a moment ago.
    pub refused: bool,
}

/// A source of random numbers below a bound; injected so that a run can be repeated.
pub trait Random {
    /// A number below `bound`, which is positive.
    fn below(&mut self, bound: usize) -> usize;
}

/// Chooses among `candidates` for a slab of `slab_size_bytes`. `refresh` asks one donor for its free memory now.
pub fn choose(
    candidates: &[Candidate],
    slab_size_bytes: u64,
    random: &mut dyn Random,
    refresh: &mut dyn FnMut(DonorSlot) -> Option<u64>,
) -> Option<DonorSlot> {
    let mut pool: Vec<Candidate> = candidates
        .iter()
        .filter(|candidate| !candidate.refused && candidate.free_bytes >= slab_size_bytes)
        .copied()
        .collect();
    while !pool.is_empty() {
        let fresh: Vec<usize> = (0..pool.len()).filter(|index| pool[*index].slabs_held == 0).collect();
        let drawn_from = if fresh.is_empty() { (0..pool.len()).collect() } else { fresh };
        let mut drawn = draw_two(&drawn_from, random);
        for index in &drawn {
            pool[*index].free_bytes = refresh(pool[*index].donor).unwrap_or(0);
        }
        drawn.sort_by_key(|index| std::cmp::Reverse(pool[*index].free_bytes));
        if pool[drawn[0]].free_bytes >= slab_size_bytes {
            return Some(pool[drawn[0]].donor);
        }
        // Both were full or silent: draw again among the others.
        pool = pool.iter().enumerate().filter(|(index, _)| !drawn.contains(index)).map(|(_, other)| *other).collect();
    }
    None
}

fn draw_two(from: &[usize], random: &mut dyn Random) -> Vec<usize> {
    let first = random.below(from.len());
    if from.len() == 1 {
        return vec![from[first]];
    }
    let second = (first + 1 + random.below(from.len() - 1)) % from.len();
    vec![from[first], from[second]]
}

/// A small generator (xorshift64*, Vigna 2016): placement needs spread, not secrecy.
#[derive(Debug)]
pub struct XorShift(u64);

impl XorShift {
    /// Every seed is fine.
    pub fn new(seed: u64) -> Self {
        Self(seed | 1)
    }
}

impl Random for XorShift {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) as usize % bound
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SLAB: u64 = 32 << 20;

    fn candidate(donor: u16, free_slabs: u64, slabs_held: u64) -> Candidate {
        Candidate { donor: DonorSlot(donor), free_bytes: free_slabs * SLAB, slabs_held, refused: false }
    }

    fn choose_simply(candidates: &[Candidate], seed: u64) -> Option<DonorSlot> {
        let mut known = |donor| candidates.iter().find(|other| other.donor == donor).map(|other| other.free_bytes);
        choose(candidates, SLAB, &mut XorShift::new(seed), &mut known)
    }

    #[test]
    fn donors_that_hold_nothing_of_the_volume_come_first() {
        let candidates = [candidate(0, 100, 3), candidate(1, 1, 0), candidate(2, 100, 1)];
        assert!((0..50).all(|seed| choose_simply(&candidates, seed) == Some(DonorSlot(1))));
    }

    #[test]
    fn of_two_the_one_with_more_room_is_taken() {
        let candidates = [candidate(0, 1, 1), candidate(1, 9, 1)];
        assert!((0..50).all(|seed| choose_simply(&candidates, seed) == Some(DonorSlot(1))));
    }

    #[test]
    fn full_silent_and_refusing_donors_are_passed_over() {
        let mut candidates = [candidate(0, 0, 0), candidate(1, 5, 0), candidate(2, 5, 0), candidate(3, 2, 9)];
        candidates[1].refused = true;
        let mut silent = |donor: DonorSlot| (donor.0 == 3).then_some(SLAB);
        assert_eq!(choose(&candidates, SLAB, &mut XorShift::new(7), &mut silent), Some(DonorSlot(3)));
        assert_eq!(choose(&candidates, SLAB, &mut XorShift::new(7), &mut |_| None), None);
    }

    #[test]
    fn two_choices_spread_better_than_one() {
        // The theorem (Mitzenmacher): the fullest of n bins holds about log log n instead of log n.
        let largest = |two: bool| {
            let mut candidates: Vec<Candidate> = (0..32).map(|donor| candidate(donor, 1000, 1)).collect();
            let mut random = XorShift::new(99);
            for _ in 0..320 {
                let donor = if two {
                    let known = candidates.clone();
                    let mut refresh = |donor: DonorSlot| Some(known[usize::from(donor.0)].free_bytes);
                    choose(&candidates, SLAB, &mut random, &mut refresh).unwrap()
                } else {
                    DonorSlot(random.below(32) as u16)
                };
                candidates[usize::from(donor.0)].free_bytes -= SLAB;
                candidates[usize::from(donor.0)].slabs_held += 1;
            }
            candidates.iter().map(|candidate| candidate.slabs_held).max().unwrap()
        };
        assert!(largest(true) < largest(false));
    }

    proptest! {
        #[test]
        fn a_choice_has_room_and_none_means_there_is_none(free in prop::collection::vec(0u64..3, 1..12), seed: u64) {
            let candidates: Vec<Candidate> =
                free.iter().enumerate().map(|(donor, free)| candidate(donor as u16, *free, donor as u64 % 2)).collect();
            match choose_simply(&candidates, seed) {
                Some(donor) => prop_assert!(free[usize::from(donor.0)] > 0),
                None => prop_assert!(free.iter().all(|free| *free == 0)),
            }
        }
    }
}
