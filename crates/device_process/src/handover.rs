//! What processes of a device tell one another.
//!
//! [`LaunchedDevice`] goes from the launcher to the keeper, and `Readiness` is the answer. `KeeperHandover` goes
//! from the keeper to the process that serves.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use spillway_control::as_typed;
use spillway_control::own_donors::OwnDonorsPlan;
use spillway_frontend::nbd::listener::NbdAddress;

use crate::prefetch::plan::PrefetchPlan;
use crate::storage::StorageSettings;

/// Everything the device's process needs to know, checked by the launcher.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LaunchedDevice {
    /// Its name.
    pub name: String,
    /// Where its pages go.
    #[serde(flatten)]
    pub storage: StorageSettings,
    /// Donors of its own that its keeper starts.
    #[serde(default)]
    pub own_donors: Option<OwnDonorsPlan>,
    /// Where it serves NBD clients, instead of being a block device; empty for none.
    #[serde(with = "as_typed::list")]
    pub listen: Vec<NbdAddress>,
    /// Also where other machines may connect.
    pub insecure_listen: bool,
    /// Clients at a time.
    pub connections: Option<usize>,
    /// Whether the whole machine swaps to it.
    pub machine_swap: bool,
    /// Whether it serves from its own memory.
    pub local_memory: bool,
    /// Whether its pages are served again, through a new block device, when its process and with it the block device
    /// died: for disks, which can be plugged in again, and not for swap. A front end whose block device stays needs
    /// no such leave.
    pub outlives_block_device: bool,
    /// The run that it belongs to.
    pub run: Option<String>,
    /// What comes ahead from it, if it is the machine's swap; none: what the kernel reads ahead.
    #[serde(default)]
    pub prefetch: Option<PrefetchPlan>,
}

/// The line that the process answers with.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Readiness {
    /// The device is there.
    Ready {
        /// Its path.
        path: PathBuf,
        /// What is less safe than it should be, in words.
        notes: Vec<String>,
        /// Donors that could not be reached, with the reason.
        donors_missing: Vec<String>,
    },
    /// It could not be started.
    Failed(String),
}

/// What a keeper hands to the process that serves.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct KeeperHandover {
    /// Where the memory is opened; none for a device without pages that could outlive it.
    pub(crate) memory: Option<PathBuf>,
    /// What is less safe than it should be, in words.
    pub(crate) notes: Vec<String>,
    /// Whether the launcher let the device live on without it.
    pub(crate) released: bool,
    /// Whether it is to fail every request: the device was given up.
    pub(crate) fails: bool,
}
