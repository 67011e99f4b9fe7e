//! What a machine tells of itself: its name and place, its release, what it lends and uses.
//!
//! An announcement travels in two ways: as a rumor when it changes, and in the pages that machines pull from each
//! other. Its life and sequence number say which of two is newer. Texts are short and printable, so that a member
//! cannot write escape sequences to the terminal of another machine's user.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use bytes::{Buf, BufMut};

use super::MembershipError;
use crate::limits::LABEL_BYTES_MAX;

/// A short printable text.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Label(String);

impl Label {
    /// Takes letters, digits and punctuation of ASCII.
    pub fn new(text: &str) -> Result<Self, MembershipError> {
        let is_good = text.len() <= LABEL_BYTES_MAX && text.bytes().all(|byte| byte.is_ascii_graphic());
        if is_good { Ok(Self(text.to_owned())) } else { Err(MembershipError::Value) }
    }

    /// As much of `text` as fits, other characters left out: for names that the user did not choose for us.
    pub fn from_foreign(text: &str) -> Self {
        Self(text.chars().filter(char::is_ascii_graphic).take(LABEL_BYTES_MAX).collect())
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    fn encode(&self, buffer: &mut impl BufMut) {
        buffer.put_u8(self.0.len() as u8);
        buffer.put_slice(self.0.as_bytes());
    }

    fn decode(buffer: &mut impl Buf) -> Result<Self, MembershipError> {
        let length = usize::from(buffer.try_get_u8()?);
        if length > LABEL_BYTES_MAX {
            return Err(MembershipError::Value);
        }
        let mut bytes = vec![0; length];
        buffer.try_copy_to_slice(&mut bytes)?;
        std::str::from_utf8(&bytes).map_err(|_| MembershipError::Value).and_then(Self::new)
    }
}

/// What a machine is and does, besides its identity.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Profile {
    /// Its host name.
    pub name: Label,
    /// Its zone: machines that fail together.
    pub zone: Label,
    /// Its rack.
    pub rack: Label,
    /// The program's release.
    pub release: Label,
    /// The version of everything on the wire that it speaks.
    pub wire_version: u16,
    /// Most that it lends; 0 for a machine that is no donor.
    pub quota_bytes: u64,
    /// What it lends now.
    pub lent_bytes: u64,
    /// What it uses of other machines.
    pub used_bytes: u64,
    /// Whether it says goodbye.
    pub is_leaving: bool,
    /// Whether it lends nothing any more, and wants everything back.
    pub is_draining: bool,
}

/// A profile with its number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Announcement {
    /// Rises with each change in one life.
    pub(crate) sequence: u32,
    /// What is told.
    pub(crate) profile: Profile,
}

impl Announcement {
    /// Writes it.
    pub(crate) fn encode(&self, buffer: &mut impl BufMut) {
        let profile = &self.profile;
        buffer.put_u32_le(self.sequence);
        buffer.put_u8(u8::from(profile.is_leaving) | u8::from(profile.is_draining) << 1);
        buffer.put_u16_le(profile.wire_version);
        for bytes in [profile.quota_bytes, profile.lent_bytes, profile.used_bytes] {
            buffer.put_u64_le(bytes);
        }
        for label in [&profile.name, &profile.zone, &profile.rack, &profile.release] {
            label.encode(buffer);
        }
    }

    /// Bytes that [`Announcement::encode`] writes.
    pub(crate) fn encoded_bytes(&self) -> usize {
        let Profile { name, zone, rack, release, .. } = &self.profile;
        let labels = [name, zone, rack, release];
        4 + 1 + 2 + 3 * 8 + labels.iter().map(|label| 1 + label.0.len()).sum::<usize>()
    }

    /// Reads one from bytes that no check has passed.
    pub(crate) fn decode(buffer: &mut impl Buf) -> Result<Self, MembershipError> {
        let sequence = buffer.try_get_u32_le()?;
        let flags = buffer.try_get_u8()?;
        if flags > 3 {
            return Err(MembershipError::Value);
        }
        let (is_leaving, is_draining) = (flags & 1 != 0, flags & 2 != 0);
        let wire_version = buffer.try_get_u16_le()?;
        let bytes = [buffer.try_get_u64_le()?, buffer.try_get_u64_le()?, buffer.try_get_u64_le()?];
        let name = Label::decode(buffer)?;
        let zone = Label::decode(buffer)?;
        let rack = Label::decode(buffer)?;
        let release = Label::decode(buffer)?;
        let (quota_bytes, lent_bytes, used_bytes) = (bytes[0], bytes[1], bytes[2]);
        let profile = Profile {
            name,
            zone,
            rack,
            release,
            wire_version,
            quota_bytes,
            lent_bytes,
            used_bytes,
            is_leaving,
            is_draining,
        };
        Ok(Self { sequence, profile })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn labels_are_short_and_printable() {
        assert_eq!(Label::new("rack-7").unwrap().as_str(), "rack-7");
        for text in ["a b", "\u{1b}[31m", "z\u{e4}hler", &"x".repeat(LABEL_BYTES_MAX + 1)] {
            assert!(Label::new(text).is_err(), "{text}");
        }
        assert_eq!(Label::from_foreign("a b\u{1b}[c").as_str(), "ab[c");
        assert_eq!(Label::from_foreign(&"x".repeat(99)).as_str().len(), LABEL_BYTES_MAX);
    }

    proptest! {
        #[test]
        fn what_decodes_encodes_to_the_same_bytes(bytes in prop::collection::vec(0u8..60, 0..200)) {
            let mut rest = &bytes[..];
            if let Ok(announcement) = Announcement::decode(&mut rest) {
                let mut again = Vec::new();
                announcement.encode(&mut again);
                prop_assert_eq!(again.len(), announcement.encoded_bytes());
                prop_assert_eq!(&again[..], &bytes[..bytes.len() - rest.len()]);
            }
        }
    }

    #[test]
    fn announcements_survive_a_round_trip() {
        let zone = Label::new("eu-1").unwrap();
        let profile = Profile { zone, quota_bytes: 1 << 40, is_draining: true, wire_version: 5, ..Profile::default() };
        let announcement = Announcement { sequence: 9, profile };
        let mut bytes = Vec::new();
        announcement.encode(&mut bytes);
        assert_eq!(Announcement::decode(&mut &bytes[..]).unwrap(), announcement);
    }
}
