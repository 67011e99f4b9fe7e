//! What processes of a device tell one another.
//!
//! [`LaunchedDevice`] goes from the launcher to the keeper, and [`Readiness`] is the answer. [`KeeperHandover`] goes
//! from the keeper to the process that serves.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use spillway_control::own_donors::OwnDonorsPlan;
use spillway_frontend::nbd::listener::NbdAddress;

use super::prefetch::plan::PrefetchPlan;
use super::storage::StorageSettings;
use crate::as_typed;

/// Everything the device's process needs to know, checked by the launcher.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct LaunchedDevice {
    /// Its name.
    pub(crate) name: String,
    /// Where its pages go.
    #[serde(flatten)]
    pub(crate) storage: StorageSettings,
    /// Donors of its own that its keeper starts.
    #[serde(default)]
    pub(crate) own_donors: Option<OwnDonorsPlan>,
    /// Where it serves NBD clients, instead of being a block device; empty for none.
    #[serde(with = "as_typed::list")]
    pub(crate) listen: Vec<NbdAddress>,
    /// Also where other machines may connect.
    pub(crate) insecure_listen: bool,
    /// Clients at a time.
    pub(crate) connections: Option<usize>,
    /// Whether the whole machine swaps to it.
    pub(crate) machine_swap: bool,
    /// Whether it serves from its own memory.
    pub(crate) local_memory: bool,
    /// Whether its pages are served again, through a new block device, when its process and with it the block device
    /// died: for disks, which can be plugged in again, and not for swap. A front end whose block device stays needs
    /// no such leave.
    pub(crate) outlives_block_device: bool,
    /// The run that it belongs to.
    pub(crate) run: Option<String>,
    /// What comes ahead from it, if it is the machine's swap; none: what the kernel reads ahead.
    #[serde(default)]
    pub(crate) prefetch: Option<PrefetchPlan>,
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
