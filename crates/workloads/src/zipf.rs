//! Zipf's law: the k-th most popular item is asked for 1/k^s as often as the first.
//!
//! The generator of Gray and others ("Quickly generating billion-record synthetic databases", SIGMOD 1994), which YCSB
//! uses too: constant time for each number after one sum over all items.

use crate::random::Random;

/// Chooses from `0..items`, the lower numbers more often.
#[derive(Clone, Debug)]
pub struct Zipf {
    items: u64,
    zeta: f64,
    alpha: f64,
    eta: f64,
    second: f64,
}

impl Zipf {
    /// The law over `items` items with exponent `skew` (YCSB's default is 0.99; it must be below 1 for this method).
    pub fn new(items: u64, skew: f64) -> Self {
        assert!(items > 0 && (0.0..1.0).contains(&skew), "Zipf's law needs items, and a skew from 0 to 1");
        let zeta: f64 = (1..=items).map(|rank| (rank as f64).powf(-skew)).sum();
        let second = 0.5_f64.powf(skew);
        let eta = (1.0 - (2.0 / items as f64).powf(1.0 - skew)) / (1.0 - (1.0 + second) / zeta);
        Self { items, zeta, alpha: 1.0 / (1.0 - skew), eta, second }
    }

    /// The next item.
    pub fn next(&self, random: &mut Random) -> u64 {
        let unit = random.unit();
        let scaled = unit * self.zeta;
        if scaled < 1.0 {
            return 0;
        }
        if scaled < 1.0 + self.second {
            return 1.min(self.items - 1);
        }
        let item = self.items as f64 * (self.eta * unit - self.eta + 1.0).powf(self.alpha);
        (item as u64).min(self.items - 1)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn popularity_falls_as_the_law_says() {
        let (zipf, mut random) = (Zipf::new(1000, 0.99), Random::new(1));
        let mut counts = vec![0_u32; 1000];
        (0..200_000).for_each(|_| counts[zipf.next(&mut random) as usize] += 1);
        let ratio = f64::from(counts[0]) / f64::from(counts[9]);
        assert!((7.0..14.0).contains(&ratio), "first to tenth: {ratio}, by the law 10^0.99");
        let hottest: u32 = counts[..100].iter().sum();
        assert!((0.6..0.8).contains(&(f64::from(hottest) / 200_000.0)), "a tenth of the items got {hottest}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn items_are_in_range(items in 1_u64..5000, seed: u64, skew in 0.0_f64..0.999) {
            let (zipf, mut random) = (Zipf::new(items, skew), Random::new(seed));
            for _ in 0..50 {
                prop_assert!(zipf.next(&mut random) < items);
            }
        }
    }
}
