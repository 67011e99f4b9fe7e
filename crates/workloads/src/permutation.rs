//! A random order of `0..length` that needs no memory of its own.
//!
//! A shuffled table of page numbers would itself be paged out and so disturb what is measured. Here place `i` is
//! computed: steps that are each a bijection on a power of two, repeated until the result is in range (cycle walking,
//! Black and Rogaway 2002). A plain multiplication would be a constant stride, which prefetchers find.
//!
//! Invariant: `at` is a bijection of `0..length`.

use crate::random::Random;

/// Mixing rounds; two leave visible runs in small ranges, four do not (see the tests).
const ROUNDS: usize = 4;

/// A fixed random order.
#[derive(Clone, Debug)]
pub struct Permutation {
    length: u64,
    mask: u64,
    shift: u32,
    keys: [u64; ROUNDS],
}

impl Permutation {
    /// The order of `0..length` that belongs to `seed`.
    pub fn new(length: u64, seed: u64) -> Self {
        assert!((1..=1 << 62).contains(&length), "a permutation has from 1 to 2^62 places");
        let bits = u64::BITS - (length - 1).leading_zeros();
        let mut random = Random::new(seed);
        Self {
            length,
            mask: (1 << bits) - 1,
            shift: bits.div_ceil(2).max(1),
            keys: [(); ROUNDS].map(|()| random.next_u64()),
        }
    }

    /// Which of `0..length` comes at place `index`.
    pub fn at(&self, index: u64) -> u64 {
        assert!(index < self.length, "place {index} is outside of 0..{}", self.length);
        let mut value = self.scramble(index);
        while value >= self.length {
            value = self.scramble(value);
        }
        value
    }

    /// A bijection of `0..=mask`: adding, multiplying by an odd number and xor-shifting are each one.
    fn scramble(&self, mut value: u64) -> u64 {
        for key in self.keys {
            value = value.wrapping_add(key >> 32) & self.mask;
            value = value.wrapping_mul(key | 1) & self.mask;
            value ^= value >> self.shift;
        }
        value
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn order(length: u64, seed: u64) -> Vec<u64> {
        let permutation = Permutation::new(length, seed);
        (0..length).map(|index| permutation.at(index)).collect()
    }

    #[test]
    fn one_place_stays() {
        assert_eq!(order(1, 5), [0]);
    }

    #[test]
    fn neighbours_part_and_no_stride_dominates() {
        let order = order(10_000, 1);
        let mut strides: Vec<i64> = order.windows(2).map(|pair| pair[1] as i64 - pair[0] as i64).collect();
        strides.sort_unstable();
        let most = strides.chunk_by(|one, other| one == other).map(<[i64]>::len).max().unwrap();
        assert!(most < 500, "one stride makes up {most} of 10000 steps");
    }

    #[test]
    #[should_panic(expected = "outside")]
    fn places_outside_are_refused() {
        Permutation::new(10, 0).at(10);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn every_number_comes_once(length in 1_u64..3000, seed: u64) {
            let mut order = order(length, seed);
            order.sort_unstable();
            prop_assert!(order.into_iter().eq(0..length));
        }

        #[test]
        fn seeds_give_different_orders(seed: u64) {
            prop_assert_ne!(order(500, seed), order(500, seed.wrapping_add(1)));
        }
    }
}
