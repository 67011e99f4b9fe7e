//! How pages travel to donors, as users set it.

use std::fmt;
use std::str::FromStr;

/// `auto`, `shm`, `rdma` or `tcp`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TransportChoice {
    /// Shared memory with donors on this host; to others RDMA, where both ends have a device, and else a socket.
    #[default]
    Auto,
    /// Shared memory, or no connection.
    Shm,
    /// RDMA, or no connection.
    Rdma,
    /// A socket, also to donors on this host: for measurements and tests, and where donors must not map memory to
    /// borrowers.
    Tcp,
}

/// A transport that does not exist.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is no transport; use auto, shm, rdma or tcp")]
pub struct UnknownTransport(String);

impl FromStr for TransportChoice {
    type Err = UnknownTransport;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "auto" => Ok(Self::Auto),
            "shm" => Ok(Self::Shm),
            "rdma" => Ok(Self::Rdma),
            "tcp" => Ok(Self::Tcp),
            _ => Err(UnknownTransport(text.to_owned())),
        }
    }
}

impl fmt::Display for TransportChoice {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Auto => "auto",
            Self::Shm => "shm",
            Self::Rdma => "rdma",
            Self::Tcp => "tcp",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_survive_a_round_trip_and_others_are_refused() {
        for text in ["auto", "shm", "rdma", "tcp"] {
            assert_eq!(text.parse::<TransportChoice>().unwrap().to_string(), text);
        }
        assert_eq!(TransportChoice::default(), TransportChoice::Auto);
        for text in ["", "TCP", "roce"] {
            assert!(text.parse::<TransportChoice>().unwrap_err().to_string().contains("auto, shm, rdma or tcp"));
        }
    }
}
