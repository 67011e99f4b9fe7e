//! How a device is started, and what a user may get wrong about it.

use std::path::PathBuf;
use std::time::Duration;

use spillway_fabric::address::DonorAddress;
use spillway_fabric::limits::{SLAB_SIZE_BYTES_MAX, SLAB_SIZE_BYTES_MIN};
use spillway_fabric::units::PAGE_SIZE_BYTES;

use super::DeviceError;
use super::redundancy::Redundancy;
use crate::device::transport::TransportChoice;
use crate::frontend::choice::FrontEndChoice;
use crate::frontend::nbd_server::NbdListen;
use crate::limits::{DEVICE_SIZE_BYTES_MAX, DONORS_MAX};
use crate::manager::heat::MappingPolicy;
use crate::volume::Geometry;
use crate::wakefulness::KeepAwake;

/// How to start a device.
#[derive(Clone, Debug)]
pub struct DeviceConfig {
    /// Shows in status, mounts and logs; letters, digits and dashes.
    pub name: String,
    /// Bytes of the device; rounded up to whole slabs.
    pub size_bytes: u64,
    /// Bytes of a slab: a power of two between the fabric's limits.
    pub slab_size_bytes: u64,
    /// Donors to borrow from; more may be added later by the cluster manager.
    pub donors: Vec<DonorAddress>,
    /// The cluster key file; `None` reaches only donors without a key (loopback and UNIX sockets).
    pub key_file: Option<PathBuf>,
    /// Where copies live.
    pub redundancy: Redundancy,
    /// When slabs get their donor.
    pub mapping: MappingPolicy,
    /// How pages travel.
    pub transport: TransportChoice,
    /// When idle CPUs are kept from sleeping deeply.
    pub keep_awake: KeepAwake,
    /// The backing file for `redundancy.disk`; made, at the device's size, when it does not exist.
    pub backing: Option<PathBuf>,
    /// Give the backing file all its blocks before they are needed, and keep them: for the swap of a whole machine, which may
    /// have no memory for the file system's journal when it writes pages out.
    pub fill_backing: bool,
    /// How the kernel reaches the device.
    pub front_end: FrontEndChoice,
    /// Serve ordinary NBD clients there, instead of making a block device.
    pub listen: Option<NbdListen>,
    /// Threads that serve the device, and so connections of an NBD server; `None` takes the default.
    pub io_threads: Option<usize>,
    /// Serve from memory of this process instead of donors: the yardstick for the front end's own cost.
    pub local_memory: bool,
    /// How long to wait at the start for the first donor.
    pub donor_wait: Duration,
}

impl DeviceConfig {
    /// The sizes of the volume, if every setting makes sense.
    pub(crate) fn check(&self) -> Result<Geometry, DeviceError> {
        let invalid = |text: String| Err(DeviceError::Invalid(text));
        let slab = self.slab_size_bytes;
        if !slab.is_power_of_two() || !(SLAB_SIZE_BYTES_MIN..=SLAB_SIZE_BYTES_MAX).contains(&slab) {
            return invalid(format!(
                "a slab of {slab} bytes is not possible; use a power of two from {SLAB_SIZE_BYTES_MIN} (1M) to {SLAB_SIZE_BYTES_MAX} (1G)"
            ));
        }
        if self.size_bytes == 0 || self.size_bytes > DEVICE_SIZE_BYTES_MAX {
            return invalid(format!(
                "a device of {} bytes is not possible; use a size up to {DEVICE_SIZE_BYTES_MAX} (16T)",
                self.size_bytes
            ));
        }
        if !self.local_memory {
            self.check_donors()?;
        }
        let slab_count = self.size_bytes.div_ceil(slab);
        Ok(Geometry {
            slab_pages: slab / PAGE_SIZE_BYTES as u64,
            slab_count: u32::try_from(slab_count)
                .map_err(|_| DeviceError::Invalid("the device has too many slabs; use larger ones".to_owned()))?,
        })
    }

    fn check_donors(&self) -> Result<(), DeviceError> {
        let invalid = |text: String| Err(DeviceError::Invalid(text));
        if self.donors.is_empty() {
            return invalid("no donor is named; give at least one with --donor HOST:PORT".to_owned());
        }
        if self.donors.len() > DONORS_MAX {
            return invalid(format!("{} donors are named; a device uses at most {DONORS_MAX}", self.donors.len()));
        }
        let replicas = usize::from(self.redundancy.replicas);
        if self.donors.len() < replicas {
            return invalid(format!(
                "{} needs {replicas} donors, and {} is named; name more, or use --redundancy disk",
                self.redundancy,
                self.donors.len()
            ));
        }
        for (index, donor) in self.donors.iter().enumerate() {
            if self.donors[..index].contains(donor) {
                return invalid(format!("the donor {donor} is named twice"));
            }
        }
        if self.mapping == MappingPolicy::ByActivity && !self.redundancy.disk {
            return invalid(format!(
                "mapping by activity keeps quiet slabs on the disk, and the redundancy is {}; use --redundancy disk",
                self.redundancy
            ));
        }
        if self.redundancy.disk != self.backing.is_some() {
            return invalid(if self.redundancy.disk {
                "a copy on disk needs a backing file; give one with --backing FILE".to_owned()
            } else {
                format!("a backing file is named, but the redundancy is {}; use --redundancy disk", self.redundancy)
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> DeviceConfig {
        DeviceConfig {
            name: "test".to_owned(),
            size_bytes: 100 << 20,
            slab_size_bytes: 32 << 20,
            donors: vec!["host:1".parse().unwrap()],
            key_file: None,
            redundancy: Redundancy::NONE,
            mapping: MappingPolicy::OnDemand,
            transport: TransportChoice::Auto,
            keep_awake: KeepAwake::Bursts,
            backing: None,
            fill_backing: false,
            front_end: FrontEndChoice::Auto,
            listen: None,
            io_threads: None,
            local_memory: false,
            donor_wait: Duration::ZERO,
        }
    }

    fn complaint(change: impl FnOnce(&mut DeviceConfig)) -> String {
        let mut config = config();
        change(&mut config);
        config.check().unwrap_err().to_string()
    }

    #[test]
    fn sizes_are_rounded_up_to_slabs() {
        assert_eq!(config().check().unwrap(), Geometry { slab_pages: 8192, slab_count: 4 });
    }

    #[test]
    fn each_mistake_is_named_with_its_cure() {
        assert!(complaint(|config| config.slab_size_bytes = 3 << 20).contains("power of two"));
        assert!(complaint(|config| config.size_bytes = 0).contains("not possible"));
        assert!(complaint(|config| config.donors.clear()).contains("--donor"));
        assert!(complaint(|config| config.donors.push("host:1".parse().unwrap())).contains("twice"));
        assert!(complaint(|config| config.redundancy = Redundancy::DISK).contains("--backing"));
        assert!(complaint(|config| config.backing = Some("/x".into())).contains("--redundancy disk"));
        assert!(complaint(|config| config.mapping = MappingPolicy::ByActivity).contains("--redundancy disk"));
        assert!(complaint(|config| config.redundancy.replicas = 2).contains("needs 2 donors"));
    }
}
