//! Sizes as users write them: `512M`, `2G`, `1.5GiB`, `4096`, and budgets such as `50%`.
//!
//! Units are powers of 1024, as in the kernel's own interfaces. A size that cannot be understood says what would be.

use std::fmt;
use std::str::FromStr;

/// Bytes, as read from a command line or a configuration file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size {
    /// The number of bytes; never 0.
    pub bytes: u64,
}

/// How much local memory a program may have.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LocalBudget {
    /// A fixed number of bytes.
    Fixed(Size),
    /// A share of the footprint as it grows, above 0 and at most 100.
    Percent(f64),
    /// As little as its program bears (the stall controller of `crates/policy`).
    Auto,
}

/// A size or budget that cannot be understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SizeError {
    /// Not a number with a unit.
    #[error("'{0}' is not a size; write a number with K, M, G or T, such as 512M or 1.5G")]
    NotASize(String),
    /// More than 64 bits.
    #[error("'{0}' is more than any machine has; write a number with K, M, G or T, such as 512M or 1.5G")]
    TooLarge(String),
    /// Zero bytes.
    #[error("'{0}' is nothing; write a size above zero, such as 512M")]
    Zero(String),
    /// Less than a page: the unit is missing.
    #[error("'{0}' is {0} bytes, less than a page of memory; write the unit: {0}M or {0}G")]
    UnitMissing(String),
    /// Less than a page, with a unit.
    #[error("'{0}' is less than a page of memory, 4K; write more, such as 512M")]
    TooSmall(String),
    /// A percentage outside its range.
    #[error("'{0}' is not a share; write a percentage above 0 and at most 100, such as 50%")]
    NotAShare(String),
}

/// Bytes of a page; nothing that is lent, kept or limited is smaller.
const PAGE_BYTES: u64 = 4096;

/// Bytes of one unit, and the letters it is written with.
const UNITS: [(&str, u64); 5] = [("", 1), ("k", 1 << 10), ("m", 1 << 20), ("g", 1 << 30), ("t", 1 << 40)];

fn unit_bytes(text: &str) -> Option<u64> {
    let lower = text.to_ascii_lowercase();
    let letter = lower.strip_suffix("ib").or_else(|| lower.strip_suffix('b')).unwrap_or(&lower);
    UNITS.iter().find(|(name, _)| *name == letter).map(|(_, bytes)| *bytes)
}

/// Digits with at most one point between them; no sign, exponent or other notation.
fn number(text: &str) -> Option<f64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    if digits(whole) && digits(fraction) { text.parse().ok() } else { None }
}

impl FromStr for Size {
    type Err = SizeError;

    fn from_str(text: &str) -> Result<Self, SizeError> {
        let trimmed = text.trim();
        let split = trimmed.find(|character: char| character.is_ascii_alphabetic()).unwrap_or(trimmed.len());
        let (digits, unit) = trimmed.split_at(split);
        let not_a_size = || SizeError::NotASize(text.to_owned());
        let unit_bytes = unit_bytes(unit).ok_or_else(not_a_size)?;
        let number = number(digits.trim_end()).ok_or_else(not_a_size)?;
        let bytes = number * unit_bytes as f64;
        // 2^63 bytes fit in neither a file offset nor a block device.
        if bytes >= 9.2e18 {
            return Err(SizeError::TooLarge(text.to_owned()));
        }
        match bytes as u64 {
            0 => Err(SizeError::Zero(text.to_owned())),
            1..PAGE_BYTES if unit.is_empty() => Err(SizeError::UnitMissing(trimmed.to_owned())),
            1..PAGE_BYTES => Err(SizeError::TooSmall(text.to_owned())),
            bytes => Ok(Self { bytes }),
        }
    }
}

impl fmt::Display for Size {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&human(self.bytes))
    }
}

impl FromStr for LocalBudget {
    type Err = SizeError;

    fn from_str(text: &str) -> Result<Self, SizeError> {
        if text.trim() == "auto" {
            return Ok(Self::Auto);
        }
        let Some(share) = text.trim().strip_suffix('%') else {
            return text.parse().map(Self::Fixed);
        };
        match number(share.trim_end()) {
            Some(percent) if percent > 0.0 && percent <= 100.0 => Ok(Self::Percent(percent)),
            _ => Err(SizeError::NotAShare(text.to_owned())),
        }
    }
}

impl fmt::Display for LocalBudget {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(size) => size.fmt(formatter),
            Self::Percent(percent) => write!(formatter, "{percent}%"),
            Self::Auto => formatter.write_str("auto"),
        }
    }
}

impl<'de> serde::Deserialize<'de> for Size {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// Bytes for people: three digits and a binary unit.
pub fn human(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut index = 0;
    while value >= 1024.0 && index + 1 < units.len() {
        value /= 1024.0;
        index += 1;
    }
    if index == 0 || value >= 100.0 || value.fract() < 0.05 {
        format!("{value:.0} {}", units[index])
    } else {
        format!("{value:.1} {}", units[index])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(text: &str) -> u64 {
        text.parse::<Size>().unwrap().bytes
    }

    #[test]
    fn sizes_take_the_usual_spellings() {
        assert_eq!(bytes("4096"), 4096);
        assert_eq!(bytes("512M"), 512 << 20);
        assert_eq!(bytes("512m"), 512 << 20);
        assert_eq!(bytes("2GiB"), 2 << 30);
        assert_eq!(bytes("2GB"), 2 << 30);
        assert_eq!(bytes("1.5G"), 3 << 29);
        assert_eq!(bytes("64 K"), 64 << 10);
        assert_eq!(bytes("1T"), 1 << 40);
    }

    #[test]
    fn nonsense_is_refused_and_says_what_would_do() {
        for text in ["", "M", "12Q", "1e3", "-5M", "0x10", "5MM", "1..5G", ".5G", "5.", "50%", "inf", "NaN", "1 2M"] {
            let error = text.parse::<Size>().unwrap_err();
            assert_eq!(error, SizeError::NotASize(text.to_owned()), "{text}");
            assert!(error.to_string().contains("512M"), "{error}");
        }
        assert!(matches!("0".parse::<Size>(), Err(SizeError::Zero(_))));
        assert!(matches!("0.1".parse::<Size>(), Err(SizeError::Zero(_))));
        let error = "1".parse::<Size>().unwrap_err();
        assert!(error.to_string().contains("1M or 1G"), "{error}");
        assert!(matches!("4095".parse::<Size>(), Err(SizeError::UnitMissing(_))));
        assert!(matches!("1K".parse::<Size>(), Err(SizeError::TooSmall(_))));
        assert_eq!("4096".parse::<Size>().unwrap().bytes, 4096);
        assert!(matches!("99999999T".parse::<Size>(), Err(SizeError::TooLarge(_))));
    }

    #[test]
    fn budgets_are_sizes_or_shares() {
        assert_eq!("50%".parse(), Ok(LocalBudget::Percent(50.0)));
        assert_eq!("12.5 %".parse(), Ok(LocalBudget::Percent(12.5)));
        assert_eq!("100%".parse(), Ok(LocalBudget::Percent(100.0)));
        assert_eq!("64M".parse(), Ok(LocalBudget::Fixed(Size { bytes: 64 << 20 })));
        for text in ["0%", "101%", "%", "-1%", "half%", "nan%"] {
            let error = text.parse::<LocalBudget>().unwrap_err();
            assert!(matches!(error, SizeError::NotAShare(_)), "{text}");
            assert!(error.to_string().contains("50%"), "{error}");
        }
        assert!(matches!("half".parse::<LocalBudget>(), Err(SizeError::NotASize(_))));
    }

    #[test]
    fn people_read_three_digits() {
        assert_eq!(human(0), "0 B");
        assert_eq!(human(1023), "1023 B");
        assert_eq!(human(1536), "1.5 KiB");
        assert_eq!(human(512 << 20), "512 MiB");
        assert_eq!(human(3 << 29), "1.5 GiB");
        assert_eq!(human(5 << 50), "5120 TiB");
    }

    #[test]
    fn shown_budgets_parse_again() {
        for text in ["50%", "12.5%", "auto"] {
            assert_eq!(text.parse::<LocalBudget>().unwrap().to_string(), text);
        }
        assert_eq!("64M".parse::<LocalBudget>().unwrap().to_string(), "64 MiB");
        assert_eq!("64 MiB".parse::<LocalBudget>().unwrap(), "64M".parse().unwrap());
    }
}
