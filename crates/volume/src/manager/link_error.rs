//! Why a connection to a donor could not be made, or ended.

use std::io;

use spillway_fabric::control::ControlError;
use spillway_fabric::limits::CONNECT_DEADLINE;

use super::dialing::DialError;

/// Why a session could not be opened, or ended.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// There is no connection to the address.
    #[error(transparent)]
    Unreachable(DialError),
    /// The peer at the address accepted the connection and said nothing.
    #[error(
        "the connection was accepted, and then nothing came within {} s: another program listens there (an HTTP server waits for a \
         whole request), or the donor is stopped",
        CONNECT_DEADLINE.as_secs()
    )]
    Speechless,
    /// The control channel failed: key, version, silence.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The donor wants no session.
    #[error("the donor rejected this borrower: {0}")]
    Rejected(String),
    /// It said something that makes no sense here.
    #[error("the donor spoke out of turn: {0}")]
    Protocol(String),
    /// A data connection or the window for shared memory could not be made.
    #[error("cannot make data connections: {0}")]
    Data(io::Error),
    /// The donor was reached, and its port for data was not.
    #[error("the donor was reached, but not for data: {0}")]
    DataUnreachable(DialError),
    /// The user wants nothing else.
    #[error("no shared memory with it: it runs on another host, or for another user; use --transport auto")]
    NoSharedMemory,
    /// This donor is used no more.
    #[error("it was removed")]
    Removed,
    /// The same for RDMA.
    #[error("no RDMA with it, and --transport rdma allows nothing else: {0}")]
    NoRdma(String),
    /// The donor leaves.
    #[error("the donor said goodbye: {0}")]
    Goodbye(String),
}

impl LinkError {
    /// Whether trying again cannot help before an operator changes something.
    pub(super) fn is_final(&self) -> bool {
        let is_refused = matches!(self, Self::Control(ControlError::Preface(_) | ControlError::WrongKey));
        is_refused || matches!(self, Self::NoSharedMemory | Self::NoRdma(_))
    }
}
