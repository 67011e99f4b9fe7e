//! What a donor is told to do, and why it may refuse.

use std::fmt;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::str::FromStr;

use spillway_fabric::address::{AddressError, DonorAddress};
use spillway_fabric::key_source::KeySource;
use spillway_fabric::limits::{SLAB_SIZE_BYTES_MAX, SLAB_SIZE_BYTES_MIN};
use spillway_fabric::site::Site;
use spillway_fabric::tcp::Weights;

use crate::host_memory::{Bound, MemorySample};

/// Where to listen: like a [`DonorAddress`], but the port may be 0 (the kernel chooses).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListenAddress {
    /// `HOST:PORT`.
    Tcp(String),
    /// A UNIX socket at this path.
    Unix(PathBuf),
}

impl From<DonorAddress> for ListenAddress {
    fn from(address: DonorAddress) -> Self {
        match address {
            DonorAddress::Tcp(text) => Self::Tcp(text),
            DonorAddress::Unix(path) => Self::Unix(path),
        }
    }
}

impl FromStr for ListenAddress {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let Some(host) = text.strip_suffix(":0") else { return text.parse::<DonorAddress>().map(Self::from) };
        // The host is judged with a port that is allowed.
        format!("{host}:1").parse::<DonorAddress>()?;
        Ok(Self::Tcp(text.to_owned()))
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(text) => formatter.write_str(text),
            Self::Unix(path) => write!(formatter, "unix:{}", path.display()),
        }
    }
}

/// What to lend, and to whom.
#[derive(Clone, Debug)]
pub struct DonorConfig {
    /// Most to lend.
    pub memory_bytes: u64,
    /// What stays available for the machine's own programs.
    pub headroom_bytes: u64,
    /// Where to listen.
    pub listen: Vec<ListenAddress>,
    /// A UNIX socket besides, so that borrowers on this host get shared memory.
    pub unix_path: Option<PathBuf>,
    /// What borrowers have to prove; without it, only this host is listened to.
    pub key: Option<KeySource>,
    /// Most to lend to the volumes of one machine together; without it, a machine has to make room for others.
    pub machine_limit_bytes: Option<u64>,
    /// What machines get of the bandwidth over TCP, in relation to each other.
    pub weights: Weights,
    /// Where this machine stands, for borrowers that want copies apart.
    pub site: Site,
    /// Slabs to keep prepared.
    pub slab_prepared_count: usize,
    /// Their size until a borrower has asked for another one.
    pub slab_size_hint_bytes: u64,
}

impl DonorConfig {
    /// Refuses what cannot work.
    pub(crate) fn check(&self, sample: MemorySample) -> Result<(), DonorError> {
        let hint = self.slab_size_hint_bytes;
        if !is_slab_size(hint) {
            return Err(DonorError::SlabSize(hint));
        }
        if self.listen.is_empty() && self.unix_path.is_none() {
            return Err(DonorError::NoAddress);
        }
        let MemorySample { available_bytes, bound, .. } = sample;
        let spare_bytes = available_bytes.saturating_sub(self.headroom_bytes);
        if self.memory_bytes < hint || spare_bytes < hint {
            let (memory_bytes, headroom_bytes) = (self.memory_bytes, self.headroom_bytes);
            return Err(DonorError::TooLittleMemory {
                memory_bytes,
                headroom_bytes,
                available_bytes,
                bound,
                slab_bytes: hint,
            });
        }
        Ok(())
    }
}

/// Whether slabs may have this size.
pub(crate) fn is_slab_size(size_bytes: u64) -> bool {
    size_bytes.is_power_of_two() && (SLAB_SIZE_BYTES_MIN..=SLAB_SIZE_BYTES_MAX).contains(&size_bytes)
}

/// The socket addresses of `text`; those beyond this host only with a key.
pub(crate) fn resolve(text: &str, has_key: bool) -> Result<Vec<SocketAddr>, DonorError> {
    let listen_error = |source| DonorError::Listen { address: text.to_owned(), source };
    let addresses: Vec<SocketAddr> = text.to_socket_addrs().map_err(listen_error)?.collect();
    if addresses.is_empty() {
        return Err(listen_error(io::Error::new(io::ErrorKind::NotFound, "the name has no address")));
    }
    if !has_key && addresses.iter().any(|address| !address.ip().is_loopback()) {
        return Err(DonorError::KeyMissing(text.to_owned()));
    }
    Ok(addresses)
}

/// Why a donor does not start, or did not get its memory back.
#[derive(Debug, thiserror::Error)]
pub enum DonorError {
    /// The machine or the quota has not enough for one slab.
    #[error(
        "too little memory to lend: {memory_bytes} bytes are to be lent and {available_bytes} are available {bound}, of which {headroom_bytes} stay as headroom, but one slab takes {slab_bytes}; lend more, lower the headroom, or use smaller slabs"
    )]
    TooLittleMemory {
        /// To be lent.
        memory_bytes: u64,
        /// To stay.
        headroom_bytes: u64,
        /// What there is.
        available_bytes: u64,
        /// Where.
        bound: Bound,
        /// What one slab takes.
        slab_bytes: u64,
    },
    /// A slab size that does not exist.
    #[error("slabs of {0} bytes do not exist; use a power of two from 1 MiB to 1 GiB")]
    SlabSize(u64),
    /// Nowhere to listen.
    #[error("the donor has no address to listen at; name one (HOST:PORT or unix:/PATH)")]
    NoAddress,
    /// Other machines could connect, but need not prove anything.
    #[error("{0} can be reached from other machines, but there is no cluster key; give one, or listen on 127.0.0.1")]
    KeyMissing(String),
    /// An address cannot be listened at.
    #[error("cannot listen at {address}: {source}")]
    Listen {
        /// Which.
        address: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// Another donor runs there.
    #[error("a donor answers at {0} already; stop it, or use another path")]
    AlreadyRunning(PathBuf),
    /// The path of the UNIX socket is something else.
    #[error("{0} is not a socket; remove it, or use another path")]
    NotASocket(PathBuf),
    /// Borrowers did not give everything back in time.
    #[error(
        "{slabs} slabs are still lent; their borrowers have nowhere to move them: add memory elsewhere and drain again"
    )]
    DrainIncomplete {
        /// How many.
        slabs: u64,
    },
    /// The kernel refused.
    #[error("the donor cannot run: {0}")]
    Io(#[from] io::Error),
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn config() -> DonorConfig {
        DonorConfig {
            memory_bytes: 64 * MIB,
            headroom_bytes: 16 * MIB,
            listen: vec![ListenAddress::Tcp("127.0.0.1:0".to_owned())],
            unix_path: None,
            key: None,
            machine_limit_bytes: None,
            weights: Weights::default(),
            site: Site::default(),
            slab_prepared_count: 2,
            slab_size_hint_bytes: MIB,
        }
    }

    fn machine(available_bytes: u64) -> MemorySample {
        MemorySample { available_bytes, bound: Bound::Machine, pressure_percent: None }
    }

    #[test]
    fn what_cannot_work_is_refused_with_what_to_do() {
        assert!(config().check(machine(64 * MIB)).is_ok());
        let odd = DonorConfig { slab_size_hint_bytes: 3 * MIB, ..config() };
        assert!(odd.check(machine(64 * MIB)).unwrap_err().to_string().contains("power of two"));
        let nowhere = DonorConfig { listen: Vec::new(), ..config() };
        assert!(nowhere.check(machine(64 * MIB)).unwrap_err().to_string().contains("HOST:PORT"));
        let error = config().check(machine(16 * MIB)).unwrap_err();
        assert!(error.to_string().contains("lower the headroom"), "{error}");
        assert!(error.to_string().contains("on this machine"), "{error}");
        let group = MemorySample { bound: Bound::Group, ..machine(16 * MIB) };
        assert!(config().check(group).unwrap_err().to_string().contains("memory cgroup"));
        let small = DonorConfig { memory_bytes: 100, ..config() };
        assert!(small.check(machine(64 * MIB)).is_err());
    }

    #[test]
    fn listening_addresses_may_leave_the_port_to_the_kernel() {
        for text in ["127.0.0.1:0", "[::1]:0", "node1:7070", "unix:/run/donor.sock"] {
            assert_eq!(text.parse::<ListenAddress>().unwrap().to_string(), text);
        }
        for text in ["", ":0", "a b:0", "unix:relative", "::1:0"] {
            assert!(text.parse::<ListenAddress>().is_err(), "{text}");
        }
    }

    #[test]
    fn other_machines_are_listened_to_only_with_a_key() {
        assert!(matches!(resolve("0.0.0.0:0", false), Err(DonorError::KeyMissing(_))));
        assert!(resolve("0.0.0.0:0", true).is_ok());
        assert!(resolve("127.0.0.1:0", false).is_ok());
        assert!(matches!(resolve("127.0.0.1:port", true), Err(DonorError::Listen { .. })));
    }
}
