//! What the process of a block device reports.

use serde::{Deserialize, Serialize};
use spillway_volume::status::DeviceStatus;

use crate::format::Format;
use crate::prefetch::PrefetchReport;

/// The status of a device's process: the device's own and the process's.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DeviceReport {
    /// The version of the form.
    #[serde(default)]
    pub format: Format,
    /// The run that it belongs to.
    pub run: Option<String>,
    /// The cluster whose donors it uses, as they come and go; null if its donors were named.
    #[serde(default)]
    pub follows: Option<String>,
    /// What is less safe than it should be, in words.
    pub notes: Vec<String>,
    /// Its process died too often, and is not started again unless it is asked for.
    pub given_up: bool,
    /// What was prefetched from it, if it is the machine's swap.
    #[serde(default)]
    pub prefetch: Option<PrefetchReport>,
    /// The device.
    pub device: DeviceStatus,
}
