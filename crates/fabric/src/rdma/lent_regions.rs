//! The donor's end of a session: its protection domain, the regions of the slabs that are lent in it, and its queue
//! pairs.
//!
//! A peer that shows the key of a region that was taken back, or of another session, is refused by the device, and its
//! connection breaks. At the end queue pairs go first: from then on nothing of the session reaches memory.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use spillway_sys::verbs::{Access, Connection, Region, Registrable};

use super::port::{RdmaPort, RdmaUnavailable};
use crate::endpoint::Endpoint;
use crate::limits::RDMA_CONNECTIONS_PER_SESSION_MAX;
use crate::units::SlabHandle;

/// See the module text.
#[derive(Debug)]
pub struct LentRegions {
    port: RdmaPort,
    state: Mutex<State>,
}

/// Dropped in the order of its fields: queue pairs before regions.
#[derive(Debug, Default)]
struct State {
    connections: BTreeMap<u32, Connection>,
    regions: BTreeMap<SlabHandle, Region>,
    is_closed: bool,
}

impl LentRegions {
    /// For a session whose control channel has this local address.
    pub fn open(address: IpAddr) -> Result<Self, RdmaUnavailable> {
        Ok(Self { port: RdmaPort::find(address)?, state: Mutex::default() })
    }

    /// The device's name.
    pub fn device(&self) -> &str {
        self.port.device()
    }

    /// Answers a borrower that wants its queue pair `number` connected; the one that had this number before ends first.
    pub fn connect(&self, number: u32, peer: &Endpoint) -> io::Result<Endpoint> {
        if number >= RDMA_CONNECTIONS_PER_SESSION_MAX || !peer.is_possible() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the borrower asks for an impossible connection"));
        }
        let before = self.lock().connections.remove(&number);
        drop(before);
        let unconnected = self.port.connection()?;
        let endpoint = unconnected.endpoint;
        let connection = unconnected.connect(peer, true)?;
        let mut state = self.lock();
        if state.is_closed {
            return Err(io::Error::new(io::ErrorKind::NotConnected, "the session has ended"));
        }
        state.connections.insert(number, connection);
        Ok(endpoint)
    }

    /// Whether a queue pair is connected.
    pub fn is_connected(&self) -> bool {
        !self.lock().connections.is_empty()
    }

    /// Registers a slab; its key. Takes some milliseconds.
    pub fn lend(&self, slab: SlabHandle, owner: Arc<dyn Registrable>) -> Result<u32, RdmaUnavailable> {
        let region = Region::register(self.port.domain(), owner, Access::Remote);
        let region = region.map_err(RdmaUnavailable::of_registration)?;
        let key = region.remote_key();
        let mut state = self.lock();
        if state.is_closed {
            let error = io::Error::new(io::ErrorKind::NotConnected, "the session has ended");
            return Err(RdmaUnavailable::System(error));
        }
        let before = state.regions.insert(slab, region);
        drop(state);
        assert!(before.is_none(), "a handle names one slab");
        Ok(key)
    }

    /// Takes a slab back; when this returns no request of the borrower reaches it.
    pub fn take_back(&self, slab: SlabHandle) {
        let region = self.lock().regions.remove(&slab);
        drop(region);
    }

    /// Whether `slab` is registered.
    pub fn is_lent(&self, slab: SlabHandle) -> bool {
        self.lock().regions.contains_key(&slab)
    }

    /// Ends all queue pairs, then takes all slabs back. Nothing is lent or connected any more.
    pub fn close(&self) {
        let mut state = self.lock();
        state.is_closed = true;
        let (connections, regions) = (std::mem::take(&mut state.connections), std::mem::take(&mut state.regions));
        drop(state);
        drop(connections);
        drop(regions);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
