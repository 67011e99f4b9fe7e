//! What a volume is started with, and what a user may get wrong about it.
//!
//! - [`redundancy`]: how many copies of a page there are, and where; [`mapping`]: when slabs get their donor;
//!   [`transport`]: how pages travel; [`protection`]: whether they are sealed; [`wrapper`]: what a
//!   measurement puts around queue pairs.

pub mod mapping;
pub mod protection;
pub mod redundancy;
pub mod transport;
pub mod wrapper;

use std::path::PathBuf;
use std::time::Duration;

use spillway_fabric::address::DonorAddress;
use spillway_fabric::limits::{SLAB_SIZE_BYTES_MAX, SLAB_SIZE_BYTES_MIN};
use spillway_fabric::units::PAGE_SIZE_BYTES;

use self::mapping::MappingPolicy;
use self::protection::{CheckChoice, SealChoice, protection_kind};
use self::redundancy::Redundancy;
use self::transport::TransportChoice;
use self::wrapper::QueuePairWrapper;
use crate::limits::{DONORS_MAX, VOLUME_SIZE_BYTES_MAX};
use crate::protection::ProtectionKind;
use crate::slab_map::Geometry;
use crate::state::records::ADDRESS_BYTES_MAX;

/// How to start a volume.
/// ```
/// use spillway_volume::settings::{SettingsError, VolumeConfig};
///
/// let donors = vec!["node2:7070".parse().unwrap()];
/// let config = VolumeConfig::new("example", 1 << 30, 32 << 20, donors);
/// let config = VolumeConfig { redundancy: "replicas=2".parse().unwrap(), ..config };
/// assert!(matches!(config.check(), Err(SettingsError::TooFewDonors { count: 1, .. })));
/// ```
#[derive(Clone, Debug)]
pub struct VolumeConfig {
    /// Shows in status, mounts and logs; letters, digits and dashes.
    pub name: String,
    /// Bytes of the volume; rounded up to whole slabs.
    pub size_bytes: u64,
    /// Bytes of a slab: a power of two between the fabric's limits.
    pub slab_size_bytes: u64,
    /// Donors to borrow from.
    pub donors: Vec<DonorAddress>,
    /// The cluster key file; `None` reaches only donors without a key (loopback and UNIX sockets).
    pub key_file: Option<PathBuf>,
    /// Where copies live.
    pub redundancy: Redundancy,
    /// When slabs get their donor.
    pub mapping: MappingPolicy,
    /// How pages travel.
    pub transport: TransportChoice,
    /// Whether pages are sealed.
    pub seal: SealChoice,
    /// Whether pages that are not sealed are checked.
    pub check: CheckChoice,
    /// The backing file for `redundancy.disk`; made, at the volume's size, when it does not exist.
    pub backing: Option<PathBuf>,
    /// Give the backing file all its blocks before they are needed, and keep them: for the swap of a whole machine,
    /// which may have no memory for the file system's journal when it writes pages out.
    pub fill_backing: bool,
    /// Most bytes of pages a second, both directions together; `None`: no bound.
    pub bandwidth_bytes_per_second: Option<u64>,
    /// How long to wait at the start for the first donor.
    pub donor_wait: Duration,
    /// What is put around queue pairs to donors: nothing, but in measurements.
    pub wrapper: QueuePairWrapper,
}

/// A setting that cannot be. The text says what to write instead.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// A slab is no power of two, too small or too large.
    #[error(
        "a slab of {bytes} bytes is not possible; use a power of two from {SLAB_SIZE_BYTES_MIN} (1M) to {SLAB_SIZE_BYTES_MAX} (1G)"
    )]
    SlabSize {
        /// The size that was asked for.
        bytes: u64,
    },
    /// The volume is empty or too large.
    #[error("a device of {bytes} bytes is not possible; use a size up to {VOLUME_SIZE_BYTES_MAX} (16T)")]
    VolumeSize {
        /// The size that was asked for.
        bytes: u64,
    },
    /// The slabs are too small for the volume.
    #[error("the device has too many slabs; use larger ones")]
    TooManySlabs,
    /// No donor is named.
    #[error("no donor is named; give at least one with --donor HOST:PORT")]
    NoDonors,
    /// More donors than a volume can use.
    #[error("{count} donors are named; a device uses at most {DONORS_MAX}")]
    TooManyDonors {
        /// How many are named.
        count: usize,
    },
    /// Fewer donors than replicas.
    #[error("{redundancy} needs {} donors, and {count} is named; name more, or use --redundancy disk", redundancy.replicas)]
    TooFewDonors {
        /// The setting.
        redundancy: Redundancy,
        /// How many are named.
        count: usize,
    },
    /// One donor is named twice.
    #[error("the donor {0} is named twice")]
    DonorTwice(DonorAddress),
    /// An address cannot be kept for the next process of the device.
    #[error("the address {0} is too long; use at most {ADDRESS_BYTES_MAX} bytes")]
    LongAddress(DonorAddress),
    /// Slabs that wait for a donor would be nowhere.
    #[error("mapping by activity keeps quiet slabs on the disk, and the redundancy is {0}; use --redundancy disk")]
    MappingNeedsDisk(Redundancy),
    /// A copy on disk was asked for, and no file.
    #[error("a copy on disk needs a backing file; give one with --backing FILE")]
    NoBacking,
    /// A file was named, and no copy on disk asked for.
    #[error("a backing file is named, but the redundancy is {0}; use --redundancy disk")]
    BackingUnused(Redundancy),
}

impl VolumeConfig {
    /// A volume on `donors` that need no key, without copies. It does not wait for a donor at its start.
    pub fn new(name: &str, size_bytes: u64, slab_size_bytes: u64, donors: Vec<DonorAddress>) -> Self {
        Self {
            name: name.to_owned(),
            size_bytes,
            slab_size_bytes,
            donors,
            key_file: None,
            redundancy: Redundancy::NONE,
            mapping: MappingPolicy::OnDemand,
            transport: TransportChoice::Auto,
            seal: SealChoice::Auto,
            check: CheckChoice::On,
            backing: None,
            fill_backing: false,
            bandwidth_bytes_per_second: None,
            donor_wait: Duration::ZERO,
            wrapper: QueuePairWrapper::default(),
        }
    }

    /// The sizes of the volume, if every setting makes sense.
    pub fn check(&self) -> Result<Geometry, SettingsError> {
        let geometry = self.geometry()?;
        self.check_donors()?;
        self.check_disk()?;
        Ok(geometry)
    }

    /// The sizes of the volume, wherever its pages live.
    pub fn geometry(&self) -> Result<Geometry, SettingsError> {
        let (size, slab) = (self.size_bytes, self.slab_size_bytes);
        if !slab.is_power_of_two() || !(SLAB_SIZE_BYTES_MIN..=SLAB_SIZE_BYTES_MAX).contains(&slab) {
            return Err(SettingsError::SlabSize { bytes: slab });
        }
        if size == 0 || size > VOLUME_SIZE_BYTES_MAX {
            return Err(SettingsError::VolumeSize { bytes: size });
        }
        let slab_count = u32::try_from(size.div_ceil(slab)).map_err(|_| SettingsError::TooManySlabs)?;
        Ok(Geometry { slab_pages: slab / PAGE_SIZE_BYTES as u64, slab_count })
    }

    /// How its pages are protected.
    pub fn protection(&self) -> ProtectionKind {
        protection_kind(self.seal, self.check, &self.donors)
    }

    /// Bytes of the volume: the asked size, rounded up to whole slabs.
    pub fn whole_slabs_bytes(&self) -> u64 {
        self.size_bytes.next_multiple_of(self.slab_size_bytes)
    }

    fn check_donors(&self) -> Result<(), SettingsError> {
        let (donors, redundancy) = (&self.donors, self.redundancy);
        match donors.len() {
            0 => return Err(SettingsError::NoDonors),
            count if count > DONORS_MAX => return Err(SettingsError::TooManyDonors { count }),
            count if count < usize::from(redundancy.replicas) => {
                return Err(SettingsError::TooFewDonors { redundancy, count });
            }
            _ => {}
        }
        let is_long = |donor: &&DonorAddress| donor.to_string().len() > ADDRESS_BYTES_MAX;
        if let Some(donor) = donors.iter().find(is_long) {
            return Err(SettingsError::LongAddress(donor.clone()));
        }
        let twice = donors.iter().enumerate().find(|(index, donor)| donors[..*index].contains(donor));
        twice.map_or(Ok(()), |(_, donor)| Err(SettingsError::DonorTwice(donor.clone())))
    }

    fn check_disk(&self) -> Result<(), SettingsError> {
        let redundancy = self.redundancy;
        match (redundancy.disk, self.backing.is_some()) {
            (false, _) if self.mapping == MappingPolicy::ByActivity => Err(SettingsError::MappingNeedsDisk(redundancy)),
            (true, false) => Err(SettingsError::NoBacking),
            (false, true) => Err(SettingsError::BackingUnused(redundancy)),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> VolumeConfig {
        VolumeConfig {
            name: "test".to_owned(),
            size_bytes: 100 << 20,
            slab_size_bytes: 32 << 20,
            donors: vec!["host:1".parse().unwrap()],
            key_file: None,
            redundancy: Redundancy::NONE,
            mapping: MappingPolicy::OnDemand,
            bandwidth_bytes_per_second: None,
            transport: TransportChoice::Auto,
            seal: SealChoice::Auto,
            check: CheckChoice::On,
            backing: None,
            fill_backing: false,
            donor_wait: Duration::ZERO,
            wrapper: QueuePairWrapper::default(),
        }
    }

    fn complaint(change: impl FnOnce(&mut VolumeConfig)) -> String {
        let mut config = config();
        change(&mut config);
        config.check().unwrap_err().to_string()
    }

    #[test]
    fn sizes_are_rounded_up_to_slabs() {
        assert_eq!(config().check().unwrap(), Geometry { slab_pages: 8192, slab_count: 4 });
        assert_eq!(config().whole_slabs_bytes(), 128 << 20);
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

    #[test]
    fn sizes_are_checked_without_donors_too() {
        let config = VolumeConfig { donors: Vec::new(), ..config() };
        assert!(config.geometry().is_ok());
        assert_eq!(config.check(), Err(SettingsError::NoDonors));
    }
}
