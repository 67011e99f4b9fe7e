//! Randomness for decisions, seeded from outside so that a test can repeat them.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

/// A small generator (xorshift64*); not for secrets.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// A generator that repeats itself for equal seeds.
    pub fn new(seed: u64) -> Self {
        Self(seed | 1)
    }

    /// A number below `bound`, which is not zero.
    pub fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % bound
    }

    /// Puts `items` into a random order.
    pub fn shuffle<Item>(&mut self, items: &mut [Item]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shuffle_keeps_all_items_and_repeats_with_its_seed() {
        let order = |seed| {
            let mut items: Vec<u32> = (0..50).collect();
            Random::new(seed).shuffle(&mut items);
            items
        };
        assert_eq!(order(2), order(2));
        assert_ne!(order(2), order(8));
        let mut sorted = order(8);
        sorted.sort_unstable();
        assert_eq!(sorted, (0..50).collect::<Vec<_>>());
    }
}
