//! Which donor gets the next slab: the power of two choices (Infiniswap, NSDI'17, section 4.3), with three.
//!
//! [`PLACEMENT_CHOICES`](crate::limits::PLACEMENT_CHOICES) donors are drawn at random, among those that hold nothing
//! of this volume while there are any (spreading a volume over many donors makes the loss of one cheap); the one with
//! most free memory is taken ([`super::placing`]). Before that, only the donors count that are farthest from the
//! slab's other copies: in other zones if there are any, else in other racks. So a second copy survives what takes
//! the first one. Without labels all are equally far.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use spillway_fabric::site::Separation;

use crate::slab_map::slab_entry::DonorSlot;

/// A donor that could be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The donor.
    pub donor: DonorSlot,
    /// Slabs of this volume that it holds.
    pub slabs_held: u64,
    /// How far it is from the nearest other copy of the slab.
    pub separation: Separation,
}

/// A source of random numbers below a bound; injected so that a run can be repeated.
pub trait Random {
    /// A number below `bound`, which is positive.
    fn below(&mut self, bound: usize) -> usize;
}

/// Draws `choices` of the best `candidates`, or all if there are fewer. Which has more room is asked afterwards.
pub fn draw(candidates: &[Candidate], choices: usize, random: &mut dyn Random) -> Vec<DonorSlot> {
    let farthest = candidates.iter().map(|candidate| candidate.separation).max();
    let far = || candidates.iter().filter(|candidate| Some(candidate.separation) == farthest);
    let fresh: Vec<DonorSlot> =
        far().filter(|candidate| candidate.slabs_held == 0).map(|candidate| candidate.donor).collect();
    let all = || far().map(|candidate| candidate.donor).collect();
    let mut from: Vec<DonorSlot> = if fresh.is_empty() { all() } else { fresh };
    let drawn = choices.min(from.len());
    // The first steps of a shuffle (Fisher and Yates).
    for place in 0..drawn {
        let other = place + random.below(from.len() - place);
        from.swap(place, other);
    }
    from.truncate(drawn);
    from
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

    fn candidate(donor: u16, slabs_held: u64) -> Candidate {
        Candidate { donor: DonorSlot(donor), slabs_held, separation: Separation::Zones }
    }

    #[test]
    fn the_farthest_donors_come_first_also_if_they_hold_something() {
        let at = |donor, slabs_held, separation| Candidate { separation, ..candidate(donor, slabs_held) };
        let candidates = [
            at(0, 0, Separation::Unknown),
            at(1, 0, Separation::Racks),
            at(2, 5, Separation::Zones),
            at(3, 0, Separation::Racks),
        ];
        assert!((0..50).all(|seed| draw(&candidates, 2, &mut XorShift::new(seed)) == [DonorSlot(2)]));
        let mut drawn = draw(&[candidates[0], candidates[1], candidates[3]], 2, &mut XorShift::new(7));
        drawn.sort_unstable();
        assert_eq!(drawn, [DonorSlot(1), DonorSlot(3)], "no zone is left, so other racks");
    }

    #[test]
    fn donors_that_hold_nothing_of_the_volume_come_first() {
        let candidates = [candidate(0, 3), candidate(1, 0), candidate(2, 1)];
        assert!((0..50).all(|seed| draw(&candidates, 2, &mut XorShift::new(seed)) == [DonorSlot(1)]));
    }

    #[test]
    fn two_choices_spread_better_than_one() {
        // The theorem (Mitzenmacher): the fullest of n bins holds about log log n instead of log n.
        let largest = |choices: usize| {
            let mut candidates: Vec<Candidate> = (0..32).map(|donor| candidate(donor, 1)).collect();
            let mut random = XorShift::new(99);
            for _ in 0..320 {
                let drawn = draw(&candidates, choices, &mut random);
                let held = |donor: &DonorSlot| candidates[usize::from(donor.0)].slabs_held;
                let donor = *drawn.iter().min_by_key(|donor| held(donor)).unwrap();
                candidates[usize::from(donor.0)].slabs_held += 1;
            }
            candidates.iter().map(|candidate| candidate.slabs_held).max().unwrap()
        };
        assert!(largest(2) < largest(1));
    }

    proptest! {
        #[test]
        fn a_draw_has_two_different_candidates_if_there_are(held in prop::collection::vec(0u64..2, 0..12), seed: u64) {
            let candidates: Vec<Candidate> =
                held.iter().enumerate().map(|(donor, held)| candidate(donor as u16, *held)).collect();
            let fresh = held.iter().filter(|held| **held == 0).count();
            let drawn = draw(&candidates, 2, &mut XorShift::new(seed));
            let expected = if fresh > 0 { fresh } else { held.len() };
            prop_assert_eq!(drawn.len(), expected.min(2));
            prop_assert!(drawn.len() < 2 || drawn[0] != drawn[1]);
        }
    }
}
