//! The control channel: how slabs are leased, recalled and returned, encrypted and authenticated.
//!
//! Every connection starts with the plaintext preface; one of role control then proves the cluster key in a Noise
//! handshake ([`handshake`]) and carries [`message`]s from there on. Pages never travel here.
//!
//! - [`message`]: what is said.
//! - [`codec`]: how it is written as bytes.
//! - [`handshake`]: who may talk.
//! - [`channel`]: the two ends of an open channel.
//! - `socket`: sending and receiving with a deadline.
//! - [`host`]: random bytes, and which host this is.
//! - [`silence`]: when a peer that says nothing is given up.

pub mod channel;
pub mod codec;
pub mod handshake;
pub mod host;
pub mod message;
pub mod silence;
mod socket;

use std::io;

use crate::wire::preface::PrefaceError;
pub use channel::{ControlChannel, ControlReceiver, ControlSender};
pub use codec::fuzz_decode;
pub use handshake::{FIRST_BYTES, Opening, shows_key};

/// Why a control channel could not be opened, or cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The peer is another program or another version.
    #[error(transparent)]
    Preface(#[from] PrefaceError),
    /// The peer hung up during the handshake, as a donor does if they do not prove its key.
    #[error(
        "the peer closed the connection without an answer; most likely its cluster key differs from ours, or only one of us has a key: copy the same key file to both machines, and check that a donor listens at this port"
    )]
    NoAnswer,
    /// The peer answered without knowing our key.
    #[error("the peer does not hold our cluster key; copy the same key file to both machines")]
    WrongKey,
    /// Nothing, or only part of a message, came before the deadline.
    #[error("the peer sent nothing in time; check that it runs and that no firewall drops the connection")]
    TimedOut,
    /// The peer does not take what we send.
    #[error("the peer does not read what it is sent; its session is ended")]
    Stuck,
    /// The channel was closed by either end.
    #[error("the control channel is closed")]
    Closed,
    /// What came is no message of an authentic peer.
    #[error("the peer sent something that is no control message ({0}); its session is ended")]
    Malformed(&'static str),
    /// What came, or was to be sent, breaks a rule of the message format.
    #[error(transparent)]
    Codec(#[from] codec::CodecError),
    /// The kernel refused.
    #[error("the control channel failed: {0}")]
    Io(#[from] io::Error),
}
