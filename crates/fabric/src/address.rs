//! Where a donor listens, as users write it.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;

use crate::plain_text::{is_plain, plain};

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
#[error("'{text}' is not a donor address; {advice}")]
pub struct AddressError {
    text: String,
    advice: &'static str,
}

impl DonorAddress {
    /// Whether its words say that it is on this machine: a UNIX socket, `localhost` or a loopback address. A name or an
    /// address of this machine on a network counts as another machine's.
    pub fn is_of_this_machine(&self) -> bool {
        let Self::Tcp(text) = self else { return true };
        let host = text.rsplit_once(':').map_or(text.as_str(), |(host, _)| host);
        let host = host.trim_start_matches('[').trim_end_matches(']');
        host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
    }
}

impl FromStr for DonorAddress {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let told = |advice| AddressError { text: plain(text).into_owned(), advice };
        let error = || told("write HOST:PORT, [IPV6]:PORT or unix:/PATH");
        if !is_plain(text) {
            return Err(error());
        }
        if let Some(path) = text.strip_prefix("unix:") {
            return if path.starts_with('/') { Ok(Self::Unix(path.into())) } else { Err(error()) };
        }
        let (host, port) = text.rsplit_once(':').ok_or_else(error)?;
        let bracketed = host.starts_with('[') && host.ends_with(']');
        let plain = !host.is_empty() && !host.contains([':', '/', '[', ']', ' ']);
        if !bracketed && !plain {
            return Err(error());
        }
        // A number is taken: what prints addresses writes zones so.
        let zone = host.split_once('%').map(|(_, zone)| zone.trim_end_matches(']'));
        if zone.is_some_and(|zone| zone.parse::<u32>().is_err()) {
            return Err(told("write HOST:PORT without a zone (%), which only one machine knows"));
        }
        match port.parse::<u16>() {
            Ok(port) if port > 0 => Ok(Self::Tcp(text.to_owned())),
            _ => Err(told("write HOST:PORT with a port from 1 to 65535")),
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
    fn addresses_of_this_machine_are_told_from_others() {
        let is_here = |text: &str| text.parse::<DonorAddress>().unwrap().is_of_this_machine();
        assert!(["unix:/x", "localhost:1", "127.0.0.1:7070", "127.8.0.9:1", "[::1]:7070"].into_iter().all(is_here));
        assert!(!["node1:1", "10.0.0.1:80", "[fe80::1]:7070", "localhost.example:1"].into_iter().any(is_here));
    }

    #[test]
    fn nonsense_is_refused_with_an_example() {
        for text in ["", "node1", "node1:", "node1:0", "node1:99999", ":7070", "::1:7070", "unix:relative", "a b:1"] {
            let error = text.parse::<DonorAddress>().unwrap_err();
            assert!(error.to_string().contains("HOST:PORT"), "{text}");
        }
        for (text, word) in [("node1:0", "65535"), ("node1:70000", "65535"), ("[fe80::1%eth0]:7070", "zone")] {
            assert!(text.parse::<DonorAddress>().unwrap_err().to_string().contains(word), "{text}");
        }
    }
}
