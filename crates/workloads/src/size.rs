//! Sizes as people write them: `256M`, `1G`, `4096`.
//!
//! Suffixes are powers of 1024, as in sort, fio and dd. Invariant: what [`format_bytes`] prints is for reading; what
//! [`Size`] prints parses back to the same number.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Bytes of a page, the unit of paging.
pub const PAGE_SIZE_BYTES: u64 = 4096;
/// Bytes of a MiB.
pub const MIB: u64 = 1 << 20;
/// Bytes of a GiB.
pub const GIB: u64 = 1 << 30;

/// The suffixes, the largest first.
const SUFFIXES: [(char, u32); 4] = [('T', 40), ('G', 30), ('M', 20), ('K', 10)];

/// A number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Size(pub u64);

/// A size that cannot be understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a size; write a number with K, M, G or T after it, such as 256M")]
pub struct SizeError(String);

impl Size {
    /// Whole pages in it.
    pub fn pages(self) -> u64 {
        self.0 / PAGE_SIZE_BYTES
    }

    /// `percent` % of it, in whole pages.
    pub fn percent(self, percent: u64) -> Self {
        let bytes = u128::from(self.0) * u128::from(percent) / 100;
        Self(bytes as u64 / PAGE_SIZE_BYTES * PAGE_SIZE_BYTES)
    }
}

impl FromStr for Size {
    type Err = SizeError;

    fn from_str(text: &str) -> Result<Self, SizeError> {
        let error = || SizeError(text.to_owned());
        let upper = text.to_ascii_uppercase();
        let plain = upper.strip_suffix("IB").or_else(|| upper.strip_suffix('B')).unwrap_or(&upper);
        let suffix = SUFFIXES.iter().find(|(letter, _)| plain.ends_with(*letter));
        let (digits, shift) = suffix.map_or((plain, 0), |(_, shift)| (&plain[..plain.len() - 1], *shift));
        let number: u64 = digits.parse().map_err(|_| error())?;
        number.checked_mul(1 << shift).map(Self).ok_or_else(error)
    }
}

impl fmt::Display for Size {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = |(_, shift): &&(char, u32)| self.0 > 0 && self.0.is_multiple_of(1 << shift);
        match SUFFIXES.iter().find(whole) {
            Some((letter, shift)) => write!(formatter, "{}{letter}", self.0 >> shift),
            None => write!(formatter, "{}", self.0),
        }
    }
}

/// Bytes with three digits or so, for people.
pub fn format_bytes(bytes: u64) -> String {
    match SUFFIXES.iter().find(|(_, shift)| bytes >= 1 << shift) {
        Some((letter, shift)) => format!("{:.1} {letter}iB", bytes as f64 / (1_u64 << shift) as f64),
        None => format!("{bytes} B"),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn sizes_are_understood() {
        for (text, bytes) in
            [("0", 0), ("4096", 4096), ("64k", 65536), ("256M", 256 * MIB), ("1GiB", GIB), ("2TB", 2048 * GIB)]
        {
            assert_eq!(text.parse::<Size>().unwrap().0, bytes, "{text}");
        }
    }

    #[test]
    fn nonsense_is_refused_with_advice() {
        for text in ["", "M", "-1", "1.5G", "12X", "99999999999T", "1 G"] {
            assert!(text.parse::<Size>().unwrap_err().to_string().contains("256M"), "{text}");
        }
    }

    #[test]
    fn bytes_read_well() {
        assert_eq!(format_bytes(12), "12 B");
        assert_eq!(format_bytes(1536), "1.5 KiB");
        assert_eq!(format_bytes(3 * GIB), "3.0 GiB");
    }

    #[test]
    fn percentages_are_whole_pages() {
        assert_eq!(Size(100 * PAGE_SIZE_BYTES).percent(25), Size(25 * PAGE_SIZE_BYTES));
        assert_eq!(Size(10 * PAGE_SIZE_BYTES).percent(25).pages(), 2);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn printing_and_parsing_agree(bytes: u64) {
            prop_assert_eq!(Size(bytes).to_string().parse::<Size>(), Ok(Size(bytes)));
        }

        #[test]
        fn a_percentage_never_exceeds_the_whole(bytes: u64, percent in 0_u64..=100) {
            prop_assert!(Size(bytes).percent(percent) <= Size(bytes));
        }
    }
}
