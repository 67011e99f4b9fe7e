//! Where a donor listens, as users write it.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// A donor's address: `HOST:PORT`, or `unix:PATH` for one on this host.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum DonorAddress {
    /// `HOST:PORT`; the host may be a name.
    Tcp(String),
    /// A UNIX socket; slabs can be shared memory.
    Unix(PathBuf),
}

/// A donor address that cannot be understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{text}' is not a donor address; write HOST:PORT, [IPV6]:PORT or unix:/PATH")]
pub struct AddressError {
    text: String,
}

impl FromStr for DonorAddress {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let error = || AddressError { text: text.to_owned() };
        if let Some(path) = text.strip_prefix("unix:") {
            return if path.starts_with('/') { Ok(Self::Unix(path.into())) } else { Err(error()) };
        }
        let (host, port) = text.rsplit_once(':').ok_or_else(error)?;
        let bracketed = host.starts_with('[') && host.ends_with(']');
        let plain = !host.is_empty() && !host.contains([':', '/', '[', ']', ' ']);
        match port.parse::<u16>() {
            Ok(port) if port > 0 && (bracketed || plain) => Ok(Self::Tcp(text.to_owned())),
            _ => Err(error()),
        }
    }
}

impl fmt::Display for DonorAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(text) => formatter.write_str(text),
            Self::Unix(path) => write!(formatter, "unix:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_a_round_trip() {
        for text in ["node1:7070", "10.0.0.1:80", "[::1]:7070", "unix:/run/spillway/donor.sock"] {
            assert_eq!(text.parse::<DonorAddress>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn nonsense_is_refused_with_an_example() {
        for text in ["", "node1", "node1:", "node1:0", "node1:99999", ":7070", "::1:7070", "unix:relative", "a b:1"] {
            let error = text.parse::<DonorAddress>().unwrap_err();
            assert!(error.to_string().contains("HOST:PORT"), "{text}");
        }
    }
}
