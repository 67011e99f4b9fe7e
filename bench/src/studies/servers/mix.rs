//! What clients ask a store of keys and values for: mixes of reads and writes, and the values.
//!
//! | mix | reads to one write | bytes of a value |
//! |---|---|---|
//! | `zipf` | 19 (95 % reads) | 1024 |
//! | `etc` | 30 | generalized Pareto distribution, mostly below 1 KB |
//! | `sys` | 3 | three of four values 480 to 520, the others 64 to 480 |
//!
//! `etc` and `sys` are in the manner of two of Facebook's pools (Atikoglu et al., "Workload analysis of a large-scale
//! key-value store", SIGMETRICS 2012). What is simplified:
//!
//! - `etc` has no values of less than 15 bytes; the paper has a table of their own for these.
//! - Keys have 16 bytes; those of Facebook have 16 to 40.
//! - Keys are asked for by Zipf's law with exponent 0.99, as in YCSB; the paper gives no law.
//! - No key is deleted or expires, none is asked for that is not there, and the load is the same all the time.
//! - The paper shows the sizes in `sys` as a curve; the two uniform parts here only have its step.
//!
//! Invariants: the size of a value depends on its key and the seed; its bytes also depend on its version. They are
//! random, so that compressed memory gains nothing.

use spillway_workloads::random::{Random, word_at};

/// The exponent of the popularity of keys, as YCSB has it.
pub const SKEW: f64 = 0.99;

/// The generalized Pareto distribution of value sizes in `etc`, as the paper's authors fitted it: location in bytes,
/// scale in bytes, shape.
const PARETO: (f64, f64, f64) = (15.0, 214.476, 0.348_238);

/// Sizes in `etc` are cut here: one value in about 2000 is larger, and all larger ones together would decide how much
/// memory a mix needs.
const PARETO_BYTES_MAX: f64 = 8192.0;

/// The seed of sizes is that of values with these bits changed, so that they do not depend on each other.
const SIZE_SEED: u64 = 0x5a5a_5a5a_5a5a_5a5a;

/// How large values are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sizes {
    Fixed(usize),
    Pareto,
    About500,
}

/// A mix of reads and writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mix {
    /// Its name in results.
    pub name: &'static str,
    reads_to_a_write: u64,
    sizes: Sizes,
}

/// Values that are large next to what a server keeps for each.
pub const ZIPF: Mix = Mix { name: "zipf", reads_to_a_write: 19, sizes: Sizes::Fixed(1024) };

/// Facebook's general pool, nearly.
pub const ETC: Mix = Mix { name: "etc", reads_to_a_write: 30, sizes: Sizes::Pareto };

/// Facebook's pool for data about servers, nearly.
pub const SYS: Mix = Mix { name: "sys", reads_to_a_write: 3, sizes: Sizes::About500 };

impl Sizes {
    fn bytes(self, word: u64) -> usize {
        let mut random = Random::new(word);
        match self {
            Self::Fixed(bytes) => bytes,
            Self::Pareto => {
                let (location, scale, shape) = PARETO;
                let excess = scale / shape * ((1.0 - random.unit()).powf(-shape) - 1.0);
                (location + excess).min(PARETO_BYTES_MAX) as usize
            }
            Self::About500 if random.below(4) > 0 => 480 + random.below(41) as usize,
            Self::About500 => 64 + random.below(417) as usize,
        }
    }
}

impl Mix {
    /// Whether the next request is a write.
    pub fn is_write(&self, random: &mut Random) -> bool {
        random.below(self.reads_to_a_write + 1) == 0
    }

    /// Bytes of the value of `key`.
    pub fn value_bytes(&self, seed: u64, key: u64) -> usize {
        self.sizes.bytes(word_at(seed ^ SIZE_SEED, key))
    }

    /// The value of `key` in its version number `version`.
    pub fn value(&self, seed: u64, key: u64, version: u64) -> Vec<u8> {
        let bytes = self.value_bytes(seed, key);
        let stream = word_at(word_at(seed, key), version);
        let words = 0..bytes.div_ceil(8) as u64;
        let mut value: Vec<u8> = words.flat_map(|place| word_at(stream, place).to_le_bytes()).collect();
        value.truncate(bytes);
        value
    }

    /// How many keys fill `size_bytes`, when a server takes `entry_bytes` for each beside its value.
    pub fn keys(&self, seed: u64, size_bytes: u64, entry_bytes: u64) -> u64 {
        let (mut keys, mut bytes) = (0, 0);
        while bytes < size_bytes {
            bytes += self.value_bytes(seed, keys) as u64 + entry_bytes;
            keys += 1;
        }
        keys
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn writes_have_their_share() {
        for (mix, share) in [(ZIPF, 0.05), (ETC, 1.0 / 31.0), (SYS, 0.25)] {
            let mut random = Random::new(3);
            let writes = (0..100_000).filter(|_| mix.is_write(&mut random)).count() as f64 / 100_000.0;
            assert!((writes / share - 1.0).abs() < 0.1, "{}: {writes} of {share}", mix.name);
        }
    }

    fn sorted_sizes(mix: Mix) -> Vec<usize> {
        let mut sizes: Vec<usize> = (0..20_000).map(|key| mix.value_bytes(1, key)).collect();
        sizes.sort_unstable();
        sizes
    }

    #[test]
    fn sizes_have_their_shape() {
        assert!(sorted_sizes(ZIPF).iter().all(|size| *size == 1024));
        let etc = sorted_sizes(ETC);
        // By the distribution: half of the values below 15 + 168 bytes, nine of ten below 770.
        assert!(
            (170..200).contains(&etc[10_000]) && (700..840).contains(&etc[18_000]),
            "{}, {}",
            etc[10_000],
            etc[18_000]
        );
        assert!(etc[0] >= 15 && etc[19_999] <= 8192);
        let sys = sorted_sizes(SYS);
        let near = sys.iter().filter(|size| (480..=520).contains(*size)).count();
        assert!((14_500..15_700).contains(&near) && sys[0] >= 64 && sys[19_999] <= 520, "{near}");
    }

    #[test]
    fn keys_fill_what_is_asked_for() {
        assert_eq!(ZIPF.keys(1, 1 << 20, 0), 1024);
        assert_eq!(ZIPF.keys(1, (1 << 20) + 1, 0), 1025);
        let keys = ETC.keys(1, 1 << 20, 80);
        let bytes: usize = (0..keys).map(|key| ETC.value_bytes(1, key) + 80).sum();
        assert!((1 << 20..(1 << 20) + 8192 + 80).contains(&bytes));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn values_derive_from_seed_key_and_version(seed: u64, key in 0_u64..1 << 40, version in 0_u64..1 << 32) {
            for mix in [ZIPF, ETC, SYS] {
                let value = mix.value(seed, key, version);
                prop_assert_eq!(value.len(), mix.value_bytes(seed, key));
                prop_assert_eq!(&value, &mix.value(seed, key, version));
                for other in [mix.value(seed, key, version + 1), mix.value(seed, key + 1, version), mix.value(!seed, key, version)] {
                    prop_assert_ne!(&value, &other);
                }
            }
        }
    }
}
