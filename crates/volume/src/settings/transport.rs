//! How pages travel to donors, as users set it.

use std::fmt;
use std::str::FromStr;

/// `auto`, `shm` or `tcp`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TransportChoice {
    /// Shared memory with donors on this host, a socket to others.
    #[default]
    Auto,
    /// Shared memory, or no connection.
    Shm,
    /// A socket, also to donors on this host: for measurements and tests, and where donors must not map memory to
    /// borrowers.
    Tcp,
}

/// A transport that does not exist.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is no transport; use auto, shm or tcp")]
pub struct UnknownTransport(String);

impl FromStr for TransportChoice {
    type Err = UnknownTransport;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "auto" => Ok(Self::Auto),
            "shm" => Ok(Self::Shm),
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
            Self::Tcp => "tcp",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_survive_a_round_trip_and_others_are_refused() {
        for text in ["auto", "shm", "tcp"] {
            assert_eq!(text.parse::<TransportChoice>().unwrap().to_string(), text);
        }
        assert_eq!(TransportChoice::default(), TransportChoice::Auto);
        for text in ["", "TCP", "rdma"] {
            assert!(text.parse::<TransportChoice>().unwrap_err().to_string().contains("auto, shm or tcp"));
        }
    }
}
