//! What travels between a borrower and a donor, byte by byte.
//!
//! Everything is little-endian and of fixed size unless a length says otherwise. Every connection starts with the
//! same plaintext [`preface`], so that a peer of another version, or no Spillway at all, is told apart before
//! anything else is read. Decoders never panic: the bytes come from a peer that may be broken or hostile.
//!
//! - [`preface`]: the first bytes of every connection.
//! - [`proof`]: how both ends of a data connection show that they belong to a session.
//! - [`data`]: pages and what is done with them.
//! - [`foreign`]: which other protocol a wrong peer speaks.

pub mod data;
pub mod foreign;
pub mod preface;
pub mod proof;

use std::fmt;

/// The version of everything on the wire. Two peers talk only when theirs are equal; any change of a message raises it.
///
/// 1: the first. 2: a data connection proves its session's token instead of showing it. 3: a donor may keep slabs for a
/// borrower's next process. 4: a borrower says how long a donor should wait for it. 5: a donor says where it stands.
/// 6: a donor can be drained over the network, and tells its cluster.
/// 7: pages travel by RDMA.
pub const WIRE_VERSION: u16 = 7;

/// Opens data connections of a control session. Random and secret: a process that [proves](proof) to know it may
/// read and write the session's slabs, so it is handed over encrypted, never travels on a data connection, and
/// nothing prints it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SessionToken(pub [u8; SESSION_TOKEN_BYTES]);

/// Bytes of a [`SessionToken`]: 256 random bits cannot be guessed.
pub const SESSION_TOKEN_BYTES: usize = 32;

impl fmt::Debug for SessionToken {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("SessionToken(..)")
    }
}

/// The fixed-size array at `offset` of `bytes`, whose length the caller has checked.
pub(crate) fn array_at<const LENGTH: usize>(bytes: &[u8], offset: usize) -> [u8; LENGTH] {
    let mut array = [0; LENGTH];
    array.copy_from_slice(&bytes[offset..offset + LENGTH]);
    array
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_does_not_print_itself() {
        assert_eq!(format!("{:?}", SessionToken([0xab; 32])), "SessionToken(..)");
    }
}
