//! How the slabs of a session are reached: mapped here, by the keys of an RDMA device, or by requests over a socket.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

use spillway_fabric::control::ControlSender;
use spillway_fabric::control::message::Message;
use spillway_fabric::rdma::{Endpoint, RemoteSlabs, Repair};
use spillway_fabric::shm::ShmWindow;
use spillway_fabric::units::SlabHandle;
use spillway_sys::memfd::Memfd;

/// See the module text.
#[derive(Debug)]
pub enum Reach {
    /// Shared memory.
    Window(Arc<ShmWindow>),
    /// RDMA.
    Rdma(RdmaReach),
    /// A socket: the donor finds them.
    Socket,
}

/// What a session over RDMA has.
#[derive(Debug)]
pub struct RdmaReach {
    /// Its slabs.
    pub slabs: Arc<RemoteSlabs>,
    /// Whether slabs without a key are of no use: the user wants nothing but RDMA.
    pub needs_keys: bool,
    /// How each thread's queue pair is connected anew.
    pub repairs: Mutex<Vec<Arc<Repair>>>,
}

impl RdmaReach {
    /// The next thread's queue pair was made.
    pub(super) fn add_repair(&self, repair: Arc<Repair>) {
        self.repairs.lock().unwrap_or_else(PoisonError::into_inner).push(repair);
    }
}

/// A slab that a donor lent cannot be used here.
#[derive(Debug, thiserror::Error)]
#[error("the donor's slab cannot be used: {0}")]
pub struct UnusableSlab(String);

impl From<io::Error> for UnusableSlab {
    fn from(error: io::Error) -> Self {
        Self(error.to_string())
    }
}

impl Reach {
    /// Makes a slab that is lent usable: maps its memory, or notes its key.
    pub fn attach(&self, slab: SlabHandle, memory: Option<OwnedFd>, key: Option<u32>) -> Result<(), UnusableSlab> {
        match self {
            Self::Window(window) => {
                let memory = memory.ok_or_else(|| UnusableSlab("no memory came along".to_owned()))?;
                Ok(window.attach(slab, &Memfd::open(memory)?)?)
            }
            Self::Rdma(rdma) if rdma.needs_keys && key.is_none() => {
                Err(UnusableSlab("the donor could not register it for RDMA; its log says why".to_owned()))
            }
            Self::Rdma(rdma) => Ok(rdma.slabs.insert(slab, key)?),
            Self::Socket => Ok(()),
        }
    }

    /// Ends the use of a slab.
    pub fn detach(&self, slab: SlabHandle) -> io::Result<()> {
        match self {
            Self::Window(window) => window.detach(slab),
            Self::Rdma(rdma) => {
                rdma.slabs.remove(slab);
                Ok(())
            }
            Self::Socket => Ok(()),
        }
    }

    /// Slabs that RDMA does not reach in a session that has it.
    pub fn slabs_by_tcp(&self) -> u64 {
        if let Self::Rdma(rdma) = self { rdma.slabs.count_without_key() } else { 0 }
    }

    /// The session ended: requests end too.
    pub fn close(&self) {
        match self {
            Self::Window(window) => window.close(),
            Self::Rdma(rdma) => rdma.slabs.close(),
            Self::Socket => {}
        }
    }

    /// Asks the donor for another connection of each queue pair that broke.
    pub fn ask_for_repairs(&self, sender: &ControlSender) {
        let Self::Rdma(rdma) = self else { return };
        let repairs = rdma.repairs.lock().unwrap_or_else(PoisonError::into_inner);
        for (place, repair) in repairs.iter().enumerate() {
            match repair.begin() {
                None => {}
                Some(Ok(endpoint)) => {
                    tracing::warn!("RDMA queue pair {place} broke; it is connected anew");
                    // A failed send ends the session.
                    let _ = sender.send(&Message::RdmaConnect { place: place as u32, endpoint }, None);
                }
                Some(Err(error)) => tracing::error!("RDMA queue pair {place} broke, and there is no other: {error}"),
            }
        }
    }

    /// The donor's answer to that.
    pub fn repaired(&self, place: u32, peer: Result<&Endpoint, &str>) {
        let Self::Rdma(rdma) = self else { return };
        let repairs = rdma.repairs.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(repair) = repairs.get(place as usize) else { return };
        match (repair.finish(peer.ok()), peer) {
            (Ok(()), _) => tracing::info!("RDMA queue pair {place} is connected again"),
            (Err(_), Err(reason)) => tracing::error!("the donor connects RDMA queue pair {place} no more: {reason}"),
            (Err(error), Ok(_)) => tracing::error!("RDMA queue pair {place} cannot be connected again: {error}"),
        }
    }
}
