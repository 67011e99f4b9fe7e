//! What clients ask a store of keys and values for: 95 % reads and 5 % writes of values of 1 KiB, which are large next
//! to what a server keeps for each. Keys are asked for by Zipf's law, as in YCSB.
//!
//! Invariant: the bytes of a value depend on its key, the seed and its version. They are random, so that compressed
//! memory gains nothing.

use spillway_workloads::random::{Random, word_at};

/// The exponent of the popularity of keys, as YCSB has it.
pub const SKEW: f64 = 0.99;

/// Bytes of a value.
const VALUE_BYTES: u64 = 1024;

/// Requests of which one is a write.
const REQUESTS_PER_WRITE: u64 = 20;

/// Whether the next request is a write.
pub fn is_write(random: &mut Random) -> bool {
    random.below(REQUESTS_PER_WRITE) == 0
}

/// The value of `key` in its version number `version`.
pub fn value(seed: u64, key: u64, version: u64) -> Vec<u8> {
    let stream = word_at(word_at(seed, key), version);
    (0..VALUE_BYTES / 8).flat_map(|place| word_at(stream, place).to_le_bytes()).collect()
}

/// How many keys fill `size_bytes`, when a server takes `entry_bytes` for each beside its value.
pub fn keys(size_bytes: u64, entry_bytes: u64) -> u64 {
    size_bytes.div_ceil(VALUE_BYTES + entry_bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn writes_have_their_share() {
        let mut random = Random::new(3);
        let writes = (0..100_000).filter(|_| is_write(&mut random)).count();
        assert!((4_500..5_500).contains(&writes), "{writes}");
    }

    #[test]
    fn keys_fill_what_is_asked_for() {
        assert_eq!(keys(1 << 20, 0), 1024);
        assert_eq!(keys((1 << 20) + 1, 0), 1025);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn values_derive_from_seed_key_and_version(seed: u64, key in 0_u64..1 << 40, version in 0_u64..1 << 32) {
            let one = value(seed, key, version);
            prop_assert_eq!((one.len(), &one), (1024, &value(seed, key, version)));
            for other in [value(seed, key, version + 1), value(seed, key + 1, version), value(!seed, key, version)] {
                prop_assert_ne!(&one, &other);
            }
        }
    }
}
