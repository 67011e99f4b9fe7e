//! How many copies of a page there are, and where: a setting per volume.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Copies at donors at most.
pub const REPLICAS_MAX: usize = 3;

/// Where copies of a page live.
/// ```
/// use spillway_volume::settings::redundancy::Redundancy;
///
/// let redundancy: Redundancy = "disk+replicas=2".parse().unwrap();
/// assert_eq!((redundancy.replicas, redundancy.disk), (2, true));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Redundancy {
    /// Donors that hold each page; 1 to [`REPLICAS_MAX`].
    pub replicas: u8,
    /// Whether the local backing file holds a copy too, written asynchronously (Infiniswap).
    pub disk: bool,
}

/// A redundancy that cannot be understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a redundancy; write disk, none, replicas=N (N from 2 to 3) or disk+replicas=N")]
pub struct RedundancyError(String);

impl Redundancy {
    /// One donor and the disk: the default, survives the loss of every donor.
    pub const DISK: Self = Self { replicas: 1, disk: true };
    /// One donor only: its loss loses pages.
    pub const NONE: Self = Self { replicas: 1, disk: false };
}

impl FromStr for Redundancy {
    type Err = RedundancyError;

    fn from_str(text: &str) -> Result<Self, RedundancyError> {
        let error = || RedundancyError(text.to_owned());
        match text {
            "disk" => return Ok(Self::DISK),
            "none" => return Ok(Self::NONE),
            _ => {}
        }
        let (disk, rest) = match text.strip_prefix("disk+") {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let count = rest.strip_prefix("replicas=").ok_or_else(error)?;
        match count.parse::<u8>() {
            Ok(replicas) if replicas >= 2 && usize::from(replicas) <= REPLICAS_MAX => Ok(Self { replicas, disk }),
            _ => Err(error()),
        }
    }
}

impl fmt::Display for Redundancy {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.disk, self.replicas) {
            (true, 1) => formatter.write_str("disk"),
            (false, 1) => formatter.write_str("none"),
            (true, replicas) => write!(formatter, "disk+replicas={replicas}"),
            (false, replicas) => write!(formatter, "replicas={replicas}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_survive_a_round_trip() {
        for text in ["disk", "none", "replicas=2", "replicas=3", "disk+replicas=2"] {
            assert_eq!(text.parse::<Redundancy>().unwrap().to_string(), text);
        }
        for text in ["", "replicas", "replicas=0", "replicas=1", "replicas=4", "disk+none", "raid"] {
            assert!(text.parse::<Redundancy>().unwrap_err().to_string().contains("replicas=N"), "{text}");
        }
    }
}
