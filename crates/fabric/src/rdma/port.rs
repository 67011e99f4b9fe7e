//! The device and port that has an IP address of this host, and what is registered there.
//!
//! The address is the control channel's own, so that pages travel over the network that the user named. It is looked
//! for among the addresses of RoCE version 2. An InfiniBand port is found by the address of the IP interface over it.

use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use spillway_sys::mapping::Mapping;
use spillway_sys::verbs::{
    Access, Connection, Device, GidKind, PortAddress, ProtectionDomain, Region, Registrable, Timing, VerbsError,
    addresses, ip_over_infiniband,
};

use crate::buffer_pool::BufferPool;
use crate::control::host::random_bytes;
use crate::endpoint::Endpoint;
use crate::limits::{
    QUEUE_DEPTH_MAX, RDMA_READS_IN_FLIGHT_MAX, RDMA_RETRIES, RDMA_TIMEOUT_EXPONENT, SOFT_ROCE_TIMEOUT_EXPONENT,
};

/// Why pages cannot travel by RDMA here.
#[derive(Debug, thiserror::Error)]
pub enum RdmaUnavailable {
    /// No library, no module or no device.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    /// Devices are there, and none has the address.
    #[error(
        "no RDMA device has the address {address} (there are {devices}); name the donor by an address of its device's network (on InfiniBand: of the interface ib0 or the like)"
    )]
    NoAddress {
        /// Of the control channel.
        address: IpAddr,
        /// Devices and their addresses.
        devices: String,
    },
    /// The channel has no IP address: a UNIX socket.
    #[error("the donor is reached through a UNIX socket; name it by its network address")]
    NoNetwork,
    /// Memory cannot be registered.
    #[error(
        "memory cannot be registered with the RDMA device: {0}; raise the limit of locked memory (ulimit -l unlimited, or LimitMEMLOCK=infinity)"
    )]
    LockedMemory(io::Error),
    /// The system refused.
    #[error("the RDMA device cannot be used: {0}")]
    System(io::Error),
}

impl RdmaUnavailable {
    /// What a failed registration means.
    pub fn of_registration(error: io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc_enomem) if libc_enomem == rustix::io::Errno::NOMEM.raw_os_error() => Self::LockedMemory(error),
            _ => Self::System(error),
        }
    }
}

/// One port of a device of this host. Clones share the device.
#[derive(Clone, Debug)]
pub struct RdmaPort {
    /// What it was looked for by.
    ip: IpAddr,
    address: PortAddress,
    domain: Arc<ProtectionDomain>,
    mtu: u8,
    lid: u16,
    reads_in: u8,
    reads_out: u8,
    timing: Timing,
}

/// How long a connection waits for its peer's device.
const TIMING: Timing = Timing { timeout_exponent: RDMA_TIMEOUT_EXPONENT, retries: RDMA_RETRIES };
/// The same over soft-RoCE.
const TIMING_SOFT_ROCE: Timing = Timing { timeout_exponent: SOFT_ROCE_TIMEOUT_EXPONENT, retries: 0 };

/// A queue pair that is not connected, and what the other end needs to know of it.
#[derive(Debug)]
pub struct Unconnected {
    connection: Connection,
    port: RdmaPort,
    /// What to tell the other end.
    pub endpoint: Endpoint,
}

impl RdmaPort {
    /// The port that has `address`, with a protection domain of its own.
    pub fn find(address: IpAddr) -> Result<Self, RdmaUnavailable> {
        let address = address.to_canonical();
        let all = addresses()?;
        let infiniband = ip_over_infiniband::gid_of(address);
        let Some(found) = all.iter().find(|candidate| is_at(candidate, address, infiniband)) else {
            return Err(RdmaUnavailable::NoAddress { address, devices: devices_in_words(&all) });
        };
        Self::open(address, found.clone())
    }

    fn open(ip: IpAddr, address: PortAddress) -> Result<Self, RdmaUnavailable> {
        let device = Device::open(&address.device)?;
        let (mtu, lid) = device.port(address.port).map_err(RdmaUnavailable::System)?;
        let (reads_in, reads_out) = device.reads_max().map_err(RdmaUnavailable::System)?;
        let is_soft = device.is_soft_roce().map_err(RdmaUnavailable::System)?;
        let timing = if is_soft { TIMING_SOFT_ROCE } else { TIMING };
        let domain = ProtectionDomain::new(device).map_err(RdmaUnavailable::System)?;
        let bounded = |reads: u8| reads.min(RDMA_READS_IN_FLIGHT_MAX);
        let (reads_in, reads_out) = (bounded(reads_in), bounded(reads_out));
        Ok(Self { ip, address, domain, mtu, lid, reads_in, reads_out, timing })
    }

    /// The device's name.
    pub fn device(&self) -> &str {
        &self.address.device
    }

    /// What regions and connections of this port belong to.
    pub fn domain(&self) -> &Arc<ProtectionDomain> {
        &self.domain
    }

    /// A new queue pair.
    pub fn connection(&self) -> io::Result<Unconnected> {
        let connection = Connection::new(Arc::clone(&self.domain), QUEUE_DEPTH_MAX as u32)?;
        let [one, two, three] = random_bytes::<3>()?;
        let endpoint = Endpoint {
            number: connection.number(),
            sequence: u32::from_le_bytes([one, two, three, 0]),
            gid: self.address.gid,
            lid: self.lid,
            mtu: self.mtu,
            reads_in: self.reads_in,
            reads_out: self.reads_out,
        };
        Ok(Unconnected { connection, port: self.clone(), endpoint })
    }
}

/// Whether a port has the IP address `address`, or is the InfiniBand port below the interface that has it.
fn is_at(candidate: &PortAddress, address: IpAddr, infiniband: Option<[u8; 16]>) -> bool {
    match candidate.kind {
        GidKind::RoceV2 => candidate.ip() == Some(address),
        GidKind::InfiniBand => infiniband == Some(candidate.gid),
        GidKind::RoceV1 => false,
    }
}

/// Devices and their addresses, as an error tells them.
fn devices_in_words(all: &[PortAddress]) -> String {
    let words = |one: &PortAddress| match one.kind {
        GidKind::RoceV2 => Some(format!("{} {}", one.device, one.ip()?)),
        GidKind::InfiniBand => Some(format!("{} on InfiniBand", one.device)),
        GidKind::RoceV1 => None,
    };
    let devices: Vec<String> = all.iter().filter_map(words).collect();
    if devices.is_empty() { "none with addresses".to_owned() } else { devices.join(", ") }
}

impl Unconnected {
    /// Connects it to the other end; with `serve` it answers requests.
    pub fn connect(mut self, peer: &Endpoint, serve: bool) -> io::Result<Connection> {
        let route = self.endpoint.route_to(peer, self.port.address.port, self.port.address.index);
        self.connection.connect(&route, self.port.timing, serve)?;
        Ok(self.connection)
    }
}

impl Registrable for BufferPool {
    fn memory(&self) -> &Mapping {
        Self::memory(self)
    }
}

/// A borrower's port and the regions of its buffer pools, for all sessions of the process: a pool is registered once
/// for each device.
#[derive(Debug)]
pub struct PooledPort {
    port: RdmaPort,
    pools: Mutex<Vec<(Weak<BufferPool>, Weak<Region>)>>,
}

/// The ports of one borrower, with its buffer pools registered there, for as long as it lives: a session that is opened
/// again needs no registration, and its donor does not wait for one.
#[derive(Debug, Default)]
pub struct KeptPorts {
    kept: Mutex<Vec<Kept>>,
    /// Threads that open a port or register buffers now.
    registering: AtomicUsize,
}

/// A port, and the regions that are there only to be kept.
#[derive(Debug)]
struct Kept {
    port: Arc<PooledPort>,
    _regions: Vec<Arc<Region>>,
}

impl KeptPorts {
    /// The port that has `address`, with all `pools` registered.
    pub fn find<'pool>(
        &self,
        address: IpAddr,
        pools: impl Iterator<Item = &'pool Arc<BufferPool>>,
    ) -> Result<Arc<PooledPort>, RdmaUnavailable> {
        self.registering.fetch_add(1, Ordering::Relaxed);
        let found = PooledPort::find(address).and_then(|port| {
            let _regions = pools.map(|pool| port.region(pool)).collect::<Result<Vec<_>, _>>()?;
            Ok(Kept { port, _regions })
        });
        self.registering.fetch_sub(1, Ordering::Relaxed);
        let kept = found?;
        let port = Arc::clone(&kept.port);
        self.forget(&port);
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).push(kept);
        Ok(port)
    }

    /// Whether some thread waits for this host's device: donors are not to blame for that time.
    pub fn is_registering(&self) -> bool {
        self.registering.load(Ordering::Relaxed) > 0
    }

    /// Keeps `port` no longer: its device does not work. Queue pairs that have it go on.
    pub fn forget(&self, port: &Arc<PooledPort>) {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).retain(|kept| !Arc::ptr_eq(&kept.port, port));
    }
}

/// The ports in use.
static PORTS: Mutex<Vec<Weak<PooledPort>>> = Mutex::new(Vec::new());

impl PooledPort {
    /// The port that has `address`.
    pub fn find(address: IpAddr) -> Result<Arc<Self>, RdmaUnavailable> {
        let mut ports = PORTS.lock().unwrap_or_else(PoisonError::into_inner);
        ports.retain(|port| port.strong_count() > 0);
        let has_address = |port: &Arc<Self>| port.port.ip == address.to_canonical();
        if let Some(port) = ports.iter().filter_map(Weak::upgrade).find(has_address) {
            return Ok(port);
        }
        let port = Arc::new(Self { port: RdmaPort::find(address)?, pools: Mutex::default() });
        ports.push(Arc::downgrade(&port));
        Ok(port)
    }

    /// The port.
    pub fn port(&self) -> &RdmaPort {
        &self.port
    }

    /// The region of `pool`, registered now if it is not.
    pub fn region(&self, pool: &Arc<BufferPool>) -> Result<Arc<Region>, RdmaUnavailable> {
        let mut pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        pools.retain(|(_, region)| region.strong_count() > 0);
        let is_it = |known: &Weak<BufferPool>| std::ptr::eq(known.as_ptr(), Arc::as_ptr(pool));
        if let Some(region) = pools.iter().find(|(known, _)| is_it(known)).and_then(|(_, region)| region.upgrade()) {
            return Ok(region);
        }
        let owner: Arc<dyn Registrable> = Arc::clone(pool) as _;
        let region = Region::register(self.port.domain(), owner, Access::Local);
        let region = Arc::new(region.map_err(RdmaUnavailable::of_registration)?);
        pools.push((Arc::downgrade(pool), Arc::downgrade(&region)));
        Ok(region)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(device: &str, kind: GidKind, gid: [u8; 16]) -> PortAddress {
        PortAddress { device: device.to_owned(), port: 1, index: 0, gid, kind }
    }

    #[test]
    fn a_port_is_found_by_its_own_address_or_by_that_of_the_interface_over_it() {
        let address: IpAddr = "10.0.0.1".parse().unwrap();
        let gid = std::net::Ipv4Addr::new(10, 0, 0, 1).to_ipv6_mapped().octets();
        let (roce, old) = (port("roce", GidKind::RoceV2, gid), port("roce", GidKind::RoceV1, gid));
        let infiniband = port("ib", GidKind::InfiniBand, [7; 16]);
        assert!(is_at(&roce, address, None) && !is_at(&old, address, None));
        assert!(!is_at(&infiniband, address, None) && !is_at(&infiniband, address, Some([8; 16])));
        assert!(is_at(&infiniband, address, Some([7; 16])));
        assert!(!is_at(&roce, "10.0.0.2".parse().unwrap(), Some([7; 16])));
        assert_eq!(devices_in_words(&[old.clone(), roce, infiniband]), "roce 10.0.0.1, ib on InfiniBand");
        assert_eq!(devices_in_words(&[old]), "none with addresses");
    }
}
