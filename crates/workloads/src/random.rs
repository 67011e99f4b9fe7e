//! The benchmark's own random numbers: SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number
//! generators", 2014).
//!
//! A workload's checksum must be the same on every machine and after every upgrade of a dependency, so the generator
//! lives here, with known answers in its tests. It is not for secrets.
//!
//! Invariant: equal seeds give equal sequences, for ever.

/// The increment of SplitMix64: 2^64 divided by the golden ratio, made odd.
const GOLDEN_GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

/// A sequence of random numbers that is fixed by its seed.
#[derive(Clone, Debug)]
pub struct Random {
    state: u64,
}

/// Mixes all bits of `value` into all others (the finalizer of SplitMix64, a bijection).
pub fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// The content that belongs to place `index` under `seed`: what a fill writes and a check expects.
pub fn word_at(seed: u64, index: u64) -> u64 {
    mix(seed.wrapping_add(index.wrapping_add(1).wrapping_mul(GOLDEN_GAMMA)))
}

impl Random {
    /// The sequence of `seed`.
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// The next 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(GOLDEN_GAMMA);
        mix(self.state)
    }

    /// A number from 0 to `bound - 1`, even to within 2^-64 (Lemire's multiplication).
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "there is no number below zero");
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// A number in [0, 1).
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_sequence_is_splitmix64() {
        // Known answers of the published reference implementation for seed 1234567.
        let mut random = Random::new(1_234_567);
        let numbers: Vec<u64> = (0..5).map(|_| random.next_u64()).collect();
        assert_eq!(
            numbers,
            [
                6_457_827_717_110_365_317,
                3_203_168_211_198_807_973,
                9_817_491_932_198_370_423,
                4_593_380_528_125_082_431,
                16_408_922_859_458_223_821
            ]
        );
    }

    #[test]
    fn a_word_is_the_number_at_its_place() {
        let mut random = Random::new(42);
        for index in 0..100 {
            assert_eq!(word_at(42, index), random.next_u64());
        }
    }

    #[test]
    fn units_fill_their_interval() {
        let mut random = Random::new(7);
        let units: Vec<f64> = (0..10_000).map(|_| random.unit()).collect();
        assert!(units.iter().all(|unit| (0.0..1.0).contains(unit)));
        let mean = units.iter().sum::<f64>() / units.len() as f64;
        assert!((mean - 0.5).abs() < 0.02, "{mean}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn numbers_stay_below_their_bound(seed: u64, bound in 1_u64..=u64::MAX) {
            let mut random = Random::new(seed);
            for _ in 0..32 {
                prop_assert!(random.below(bound) < bound);
            }
        }

        #[test]
        fn mixing_tells_neighbours_apart(value: u64) {
            prop_assert_ne!(mix(value), mix(value.wrapping_add(1)));
        }
    }
}
