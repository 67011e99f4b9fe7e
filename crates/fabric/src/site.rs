//! Where a machine stands: what fails together with it.
//!
//! Two copies of a page are worth little if one power supply or one switch takes both. So donors say where they stand,
//! and placement puts further copies as far away as it can (Infiniswap leaves replicas open; racks and zones are the
//! levels of HDFS and Ceph's CRUSH that users know).

use crate::limits::LABEL_BYTES_MAX;
use crate::membership::announcement::Label;

/// A machine's zone and rack; an empty label is not known.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Site {
    /// Machines of a zone may fail together.
    pub zone: Label,
    /// A part of a zone.
    pub rack: Label,
}

/// How far two machines are apart, the nearest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Separation {
    /// In one rack, or nothing is known.
    Unknown,
    /// In different racks.
    Racks,
    /// In different zones.
    Zones,
}

impl Site {
    /// How far this machine is from another one. What is not known does not count as different.
    ///
    /// ```
    /// use spillway_fabric::membership::announcement::Label;
    /// use spillway_fabric::site::{Separation, Site};
    ///
    /// let site = |zone, rack| Site { zone: Label::new(zone).unwrap(), rack: Label::new(rack).unwrap() };
    /// assert_eq!(site("east", "1").separation(&site("west", "1")), Separation::Zones);
    /// assert_eq!(site("east", "1").separation(&site("east", "2")), Separation::Racks);
    /// assert_eq!(site("east", "1").separation(&site("", "")), Separation::Unknown);
    /// ```
    pub fn separation(&self, other: &Self) -> Separation {
        let differ = |one: &Label, other: &Label| {
            let is_known = !one.as_str().is_empty() && !other.as_str().is_empty();
            is_known && one != other
        };
        if differ(&self.zone, &other.zone) {
            Separation::Zones
        } else if differ(&self.rack, &other.rack) {
            Separation::Racks
        } else {
            Separation::Unknown
        }
    }

    /// Of two texts; each at most [`LABEL_BYTES_MAX`] printable characters.
    pub fn parse(zone: &str, rack: &str) -> Result<Self, SiteError> {
        let label = |text: &str| Label::new(text).map_err(|_| SiteError(text.to_owned()));
        Ok(Self { zone: label(zone)?, rack: label(rack)? })
    }
}

/// A text that names no zone or rack.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a zone or rack; use up to {LABEL_BYTES_MAX} letters, digits and signs")]
pub struct SiteError(String);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_label_is_near_to_all() {
        let site = |zone, rack| Site::parse(zone, rack).unwrap();
        assert_eq!(site("", "1").separation(&site("", "2")), Separation::Racks);
        assert_eq!(site("", "").separation(&site("east", "2")), Separation::Unknown);
        assert_eq!(site("east", "").separation(&site("", "2")), Separation::Unknown);
        assert_eq!(site("east", "7").separation(&site("east", "7")), Separation::Unknown);
    }

    #[test]
    fn a_text_that_could_move_the_cursor_is_refused() {
        assert_eq!(
            Site::parse("east", "a b").unwrap_err().to_string().split(';').next(),
            Some("'a b' is not a zone or rack")
        );
        assert!(Site::parse("\x1b[2J", "").is_err());
    }
}
