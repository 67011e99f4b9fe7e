//! A borrower and a donor in one process, over a soft-RoCE device of the loopback interface.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use spillway_fabric::buffer_pool::BufferPool;
use spillway_fabric::patience::Patience;
use spillway_fabric::rdma::port::PooledPort;
use spillway_fabric::rdma::queue_pair::Parts;
use spillway_fabric::rdma::{LentRegions, RdmaQueuePair, RemoteSlabs};
use spillway_fabric::tcp::TcpQueuePair;
use spillway_fabric::units::SlabHandle;

use super::{SLAB_SIZE_BYTES, Serving, Slabs, TOKEN, tcp_sockets};

/// Where the device is.
pub const ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// What a queue pair and its donor stand on.
pub struct Lending {
    pub slabs: Arc<Slabs>,
    pub table: Arc<RemoteSlabs>,
    pub serving: Serving,
}

impl Lending {
    pub fn regions(&self) -> &LentRegions {
        self.slabs.regions.as_ref().unwrap()
    }
}

/// Lends `count` slabs, and connects queue pair 0.
pub fn over_rdma(count: u32, pool: &Arc<BufferPool>) -> (RdmaQueuePair, Lending) {
    over_rdma_with(count, pool, Arc::default())
}

/// The same, with a donor that is waited for so long.
pub fn over_rdma_with(count: u32, pool: &Arc<BufferPool>, patience: Arc<Patience>) -> (RdmaQueuePair, Lending) {
    let slabs = Arc::new(Slabs { regions: Some(LentRegions::open(ADDRESS).unwrap()), ..Slabs::default() });
    let table = RemoteSlabs::new(SLAB_SIZE_BYTES as u64);
    let regions = slabs.regions.as_ref().unwrap();
    for slab in (0..count).map(SlabHandle) {
        slabs.lend(slab);
        let key = regions.lend(slab, slabs.memory(slab)).unwrap();
        table.insert(slab, Some(key)).unwrap();
    }
    let (borrower, donor) = tcp_sockets();
    let serving = Serving::start(donor, Arc::clone(&slabs));
    let tcp = TcpQueuePair::connect(borrower, &TOKEN, Arc::clone(pool), Arc::default()).unwrap();
    let port = PooledPort::find(ADDRESS).unwrap();
    let ours = port.port().connection().unwrap();
    let theirs = regions.connect(0, &ours.endpoint).unwrap();
    let connection = ours.connect(&theirs, false).unwrap();
    let parts = Parts { port, pool: Arc::clone(pool), slabs: Arc::clone(&table), tcp, patience };
    (RdmaQueuePair::new(connection, parts).unwrap(), Lending { slabs, table, serving })
}
