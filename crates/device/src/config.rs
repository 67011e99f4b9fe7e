//! How a device is started: a volume, and how the kernel reaches it.

use spillway_block::cpu_idle::KeepAwake;
use spillway_frontend::choice::FrontEndChoice;
use spillway_frontend::nbd::server::NbdListen;
use spillway_volume::settings::{SettingsError, VolumeConfig};
use spillway_volume::slab_map::Geometry;

/// How to start a device.
#[derive(Clone, Debug)]
pub struct DeviceConfig {
    /// The pages behind it.
    pub volume: VolumeConfig,
    /// When idle CPUs are kept from sleeping deeply.
    pub keep_awake: KeepAwake,
    /// How the kernel reaches the device.
    pub front_end: FrontEndChoice,
    /// Serve ordinary NBD clients there, instead of making a block device.
    pub listen: Option<NbdListen>,
    /// Threads that serve the device, and so connections of an NBD server; `None` takes the default.
    pub io_threads: Option<usize>,
    /// Serve from memory of this process instead of donors: the yardstick for the front end's own cost.
    pub local_memory: bool,
}

impl DeviceConfig {
    /// The sizes of the device, if every setting makes sense; settings of donors and disk do not matter without either.
    pub(crate) fn check(&self) -> Result<Geometry, SettingsError> {
        if self.local_memory { self.volume.geometry() } else { self.volume.check() }
    }
}
