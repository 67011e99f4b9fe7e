//! Checksums of what a workload computed, to be compared between runs.
//!
//! Two kinds: [`Ordered`] depends on the order of its words, [`Unordered`] does not, and so can be taken by several
//! threads or in another order than that of the content. Neither is for secrets.
//!
//! Invariant: a single changed word changes either checksum (each step is a bijection of the state or of the word).

use std::fmt;

use crate::random::mix;

/// A finished checksum; prints as 16 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Checksum(pub u64);

impl fmt::Display for Checksum {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:016x}", self.0)
    }
}

/// A checksum of words in their order.
#[derive(Clone, Debug, Default)]
pub struct Ordered {
    state: u64,
}

impl Ordered {
    /// Takes the next word.
    pub fn add(&mut self, word: u64) {
        self.state = mix(self.state.rotate_left(5) ^ word).wrapping_add(1);
    }

    /// Takes bytes, and their number, as words.
    pub fn add_bytes(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.add(u64::from_le_bytes(word));
        }
        self.add(bytes.len() as u64);
    }

    /// The checksum of what was taken so far.
    pub fn finish(&self) -> Checksum {
        Checksum(self.state)
    }
}

/// A checksum of words whatever their order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unordered {
    sum: u64,
}

impl Unordered {
    /// Takes a word.
    pub fn add(&mut self, word: u64) {
        self.sum = self.sum.wrapping_add(mix(word));
    }

    /// Takes what another one has taken.
    pub fn merge(&mut self, other: &Self) {
        self.sum = self.sum.wrapping_add(other.sum);
    }

    /// The checksum of what was taken so far.
    pub fn finish(&self) -> Checksum {
        Checksum(self.sum)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ordered(words: &[u64]) -> Checksum {
        let mut checksum = Ordered::default();
        words.iter().for_each(|word| checksum.add(*word));
        checksum.finish()
    }

    fn unordered(words: &[u64]) -> Checksum {
        let mut checksum = Unordered::default();
        words.iter().for_each(|word| checksum.add(*word));
        checksum.finish()
    }

    #[test]
    fn prints_sixteen_digits() {
        assert_eq!(Checksum(0xabc).to_string(), "0000000000000abc");
    }

    #[test]
    fn trailing_zero_bytes_count() {
        let of = |bytes: &[u8]| {
            let mut checksum = Ordered::default();
            checksum.add_bytes(bytes);
            checksum.finish()
        };
        assert_ne!(of(b"abc"), of(b"abc\0"));
        assert_ne!(of(b""), of(b"\0"));
        assert_eq!(of(b"a longer text than a word"), of(b"a longer text than a word"));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn one_changed_word_is_seen(words in proptest::collection::vec(any::<u64>(), 1..50), at: usize, flip in 1_u64..) {
            let mut changed = words.clone();
            changed[at % words.len()] ^= flip;
            prop_assert_ne!(ordered(&words), ordered(&changed));
            prop_assert_ne!(unordered(&words), unordered(&changed));
        }

        #[test]
        fn only_the_ordered_one_sees_an_exchange(first: u64, second: u64) {
            prop_assume!(first != second);
            prop_assert_ne!(ordered(&[first, second]), ordered(&[second, first]));
            prop_assert_eq!(unordered(&[first, second]), unordered(&[second, first]));
        }

        #[test]
        fn parts_merge_to_the_whole(words in proptest::collection::vec(any::<u64>(), 0..50), cut: usize) {
            let cut = cut % (words.len() + 1);
            let mut merged = Unordered::default();
            for part in [&words[..cut], &words[cut..]] {
                let mut checksum = Unordered::default();
                part.iter().for_each(|word| checksum.add(*word));
                merged.merge(&checksum);
            }
            prop_assert_eq!(merged.finish(), unordered(&words));
        }
    }
}
