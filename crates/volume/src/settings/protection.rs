//! Whether pages are sealed or checked, as users set it.

use std::fmt;
use std::str::FromStr;

use spillway_fabric::address::DonorAddress;

use crate::protection::ProtectionKind;

/// `on`, `off` or `auto`: whether each page is encrypted and authenticated before it leaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SealChoice {
    /// On if some donor is reached over a network; off if all of them are of this machine.
    #[default]
    Auto,
    /// On.
    On,
    /// Off.
    Off,
}

/// `on` or `off`: whether each page that is not sealed has a checksum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CheckChoice {
    /// On.
    #[default]
    On,
    /// Off: donors are believed.
    Off,
}

/// A word that is no such setting.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{found}' is not possible here; use {possible}")]
pub struct UnknownProtection {
    found: String,
    possible: &'static str,
}

impl FromStr for SealChoice {
    type Err = UnknownProtection;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "auto" => Ok(Self::Auto),
            "on" => Ok(Self::On),
            "off" => Ok(Self::Off),
            _ => Err(UnknownProtection { found: text.to_owned(), possible: "on, off or auto" }),
        }
    }
}

impl fmt::Display for SealChoice {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Auto => "auto",
            Self::On => "on",
            Self::Off => "off",
        })
    }
}

impl FromStr for CheckChoice {
    type Err = UnknownProtection;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "on" => Ok(Self::On),
            "off" => Ok(Self::Off),
            _ => Err(UnknownProtection { found: text.to_owned(), possible: "on or off" }),
        }
    }
}

impl fmt::Display for CheckChoice {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::On => "on",
            Self::Off => "off",
        })
    }
}

/// How a volume with these settings and donors is protected.
pub fn protection_kind(seal: SealChoice, check: CheckChoice, donors: &[DonorAddress]) -> ProtectionKind {
    let is_sealed = match seal {
        SealChoice::On => true,
        SealChoice::Off => false,
        SealChoice::Auto => donors.iter().any(|donor| !donor.is_of_this_machine()),
    };
    match check {
        _ if is_sealed => ProtectionKind::Sealed,
        CheckChoice::On => ProtectionKind::Checked,
        CheckChoice::Off => ProtectionKind::Plain,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_survive_a_round_trip_and_others_are_refused() {
        for text in ["auto", "on", "off"] {
            assert_eq!(text.parse::<SealChoice>().unwrap().to_string(), text);
        }
        for text in ["on", "off"] {
            assert_eq!(text.parse::<CheckChoice>().unwrap().to_string(), text);
        }
        assert!("yes".parse::<SealChoice>().unwrap_err().to_string().contains("on, off or auto"));
        assert!("auto".parse::<CheckChoice>().unwrap_err().to_string().contains("on or off"));
        assert_eq!((SealChoice::default(), CheckChoice::default()), (SealChoice::Auto, CheckChoice::On));
    }

    #[test]
    fn auto_seals_what_goes_over_a_network() {
        let kind = |seal, check, donors: &[&str]| {
            let donors: Vec<DonorAddress> = donors.iter().map(|donor| donor.parse().unwrap()).collect();
            protection_kind(seal, check, &donors)
        };
        let (auto, on) = (SealChoice::Auto, CheckChoice::On);
        assert_eq!(kind(auto, on, &["unix:/x", "127.0.0.1:1"]), ProtectionKind::Checked);
        assert_eq!(kind(auto, on, &["unix:/x", "node2:1"]), ProtectionKind::Sealed);
        assert_eq!(kind(auto, CheckChoice::Off, &["node2:1"]), ProtectionKind::Sealed);
        assert_eq!(kind(auto, CheckChoice::Off, &["[::1]:1"]), ProtectionKind::Plain);
        assert_eq!(kind(SealChoice::Off, on, &["node2:1"]), ProtectionKind::Checked);
        assert_eq!(kind(SealChoice::On, CheckChoice::Off, &["unix:/x"]), ProtectionKind::Sealed);
    }
}
