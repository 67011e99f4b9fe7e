//! The first eight bytes of every connection, in plain text: who we are, which version, and what the connection is for.
//!
//! | bytes | meaning |
//! |---|---|
//! | 0..4 | `SPLW` |
//! | 4..6 | wire version, little-endian |
//! | 6 | role: 1 control, 2 data |
//! | 7 | zero |
//!
//! The layout of this message is the same in every version, so that any two versions can tell each other apart.

use super::foreign::{ForeignProtocol, PREFACE_BYTES};
use super::{WIRE_VERSION, array_at};

const MAGIC: [u8; 4] = *b"SPLW";

/// What a connection carries after its preface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The encrypted control channel.
    Control,
    /// Page data.
    Data,
}

/// Why the first bytes were refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PrefaceError {
    /// Something else answers there.
    #[error("the peer is not Spillway: it speaks {0}; check the address and the port")]
    NotSpillway(ForeignProtocol),
    /// The versions differ.
    #[error("the peer speaks wire version {theirs}, this program {ours}; install the same release on both machines")]
    Version {
        /// The peer's version.
        theirs: u16,
        /// [`WIRE_VERSION`].
        ours: u16,
    },
    /// The version is ours but the role does not exist.
    #[error("the peer asked for unknown role {0}; it is broken or not Spillway")]
    Role(u8),
}

/// Whether `bytes`, the first of a connection, can still become a preface of any version.
pub fn may_begin(bytes: &[u8]) -> bool {
    let length = bytes.len().min(MAGIC.len());
    bytes[..length] == MAGIC[..length]
}

/// The bytes that open a connection of `role`.
pub fn encode(role: Role) -> [u8; PREFACE_BYTES] {
    let mut bytes = [0; PREFACE_BYTES];
    bytes[..4].copy_from_slice(&MAGIC);
    bytes[4..6].copy_from_slice(&WIRE_VERSION.to_le_bytes());
    bytes[6] = match role {
        Role::Control => 1,
        Role::Data => 2,
    };
    bytes
}

/// What the peer wants, or why it cannot be talked to.
pub fn decode(bytes: &[u8; PREFACE_BYTES]) -> Result<Role, PrefaceError> {
    if bytes[..4] != MAGIC {
        return Err(PrefaceError::NotSpillway(ForeignProtocol::of(bytes)));
    }
    let theirs = u16::from_le_bytes(array_at(bytes, 4));
    if theirs != WIRE_VERSION {
        return Err(PrefaceError::Version { theirs, ours: WIRE_VERSION });
    }
    match (bytes[6], bytes[7]) {
        (1, 0) => Ok(Role::Control),
        (2, 0) => Ok(Role::Data),
        (role, _) => Err(PrefaceError::Role(role)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_survive_a_round_trip() {
        for role in [Role::Control, Role::Data] {
            assert_eq!(decode(&encode(role)), Ok(role));
        }
    }

    #[test]
    fn another_program_another_version_and_another_role_are_told_apart() {
        assert_eq!(decode(b"GET / HT"), Err(PrefaceError::NotSpillway(ForeignProtocol::Http)));
        let mut newer = encode(Role::Data);
        newer[4] += 1;
        let error = decode(&newer).unwrap_err();
        assert_eq!(error, PrefaceError::Version { theirs: WIRE_VERSION + 1, ours: WIRE_VERSION });
        assert!(error.to_string().contains("same release"));
        let mut unknown = encode(Role::Data);
        unknown[6] = 9;
        assert_eq!(decode(&unknown), Err(PrefaceError::Role(9)));
        let mut reserved = encode(Role::Control);
        reserved[7] = 1;
        assert!(decode(&reserved).is_err());
    }
}
