//! Where the pages of a device go: donors, copies, key and backing file.
//!
//! Everything that can be known beforehand is checked here, in the foreground, so that a mistake gets its error at
//! once and nothing has been started by then.

use std::path::{Path, PathBuf};
use std::{env, fs};

use serde::{Deserialize, Serialize};
use spillway_block::cpu_idle::KeepAwake;
use spillway_console::failure::Failure;
use spillway_control::as_typed;
use spillway_control::own_donors::OwnDonors;
use spillway_control::storage_arguments::StorageArguments;
use spillway_fabric::address::DonorAddress;
use spillway_frontend::choice::FrontEndChoice;
use spillway_machine::filesystem::FileSystem;
use spillway_machine::size::human;
use spillway_sys::own_files;
use spillway_volume::settings::VolumeConfig;
use spillway_volume::settings::mapping::MappingPolicy;
use spillway_volume::settings::protection::{CheckChoice, SealChoice};
use spillway_volume::settings::redundancy::Redundancy;
use spillway_volume::settings::transport::TransportChoice;
use spillway_volume::settings::wrapper::QueuePairWrapper;

use crate::limits;

/// Where root's default backing files lie; a user's are in `$XDG_STATE_HOME`.
const BACKING_DIRECTORY: &str = "/var/lib/spillway";

/// Where root's cluster key lies if no other file is named; a user's is in `$XDG_CONFIG_HOME`.
const KEY_FILE: &str = "/etc/spillway/cluster.key";

/// A directory of the user's own, by the XDG base directory specification.
fn user_directory(variable: &str, below_home: &str) -> Option<PathBuf> {
    let named = env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute());
    let home = || Some(PathBuf::from(env::var_os("HOME")?).join(below_home));
    Some(named.or_else(home)?.join("spillway"))
}

/// Where backing files lie if no file is named.
pub fn backing_directory() -> PathBuf {
    let own = || user_directory("XDG_STATE_HOME", ".local/state");
    if rustix::process::geteuid().is_root() { None } else { own() }.unwrap_or_else(|| BACKING_DIRECTORY.into())
}

/// Where the pages of a device or of a run go and how they travel: decided from what was typed or configured, and one
/// value from there to the volume. Its JSON has each setting as a user types it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StorageSettings {
    /// Bytes of all pages.
    pub size_bytes: u64,
    /// Bytes of a slab.
    pub slab_size_bytes: u64,
    /// Donors' addresses.
    #[serde(with = "as_typed::list")]
    pub donors: Vec<DonorAddress>,
    /// The cluster whose donors these are, and later ones too.
    #[serde(default)]
    pub follows: Option<String>,
    /// The cluster key file.
    pub key_file: Option<PathBuf>,
    /// The setting for copies.
    #[serde(with = "as_typed")]
    pub redundancy: Redundancy,
    /// The backing file.
    pub backing: Option<PathBuf>,
    /// Whether the backing file was not named by the user, and is removed with the device.
    pub backing_temporary: bool,
    /// When slabs get their donor.
    #[serde(with = "as_typed")]
    pub mapping: MappingPolicy,
    /// How pages travel.
    #[serde(with = "as_typed")]
    pub transport: TransportChoice,
    /// Whether pages are sealed.
    #[serde(with = "as_typed")]
    pub seal: SealChoice,
    /// Whether pages that are not sealed are checked.
    #[serde(with = "as_typed")]
    pub check: CheckChoice,
    /// When idle CPUs are kept awake.
    #[serde(with = "as_typed")]
    pub keep_awake: KeepAwake,
    /// How the kernel reaches the device.
    #[serde(with = "as_typed")]
    pub frontend: FrontEndChoice,
    /// Most bytes of pages a second, both directions together.
    #[serde(default)]
    pub bandwidth_bytes_per_second: Option<u64>,
}

impl StorageSettings {
    /// What `arguments` say for the device `name`, with what its kind decides: the size, the copies, and the key file.
    /// Fails if the backing file cannot hold the device.
    pub fn decide(
        arguments: &StorageArguments,
        name: &str,
        size_bytes: u64,
        redundancy: Redundancy,
        key_file: Option<PathBuf>,
    ) -> Result<Self, Failure> {
        let backing = backing(arguments, redundancy, name, size_bytes)?;
        Ok(Self {
            size_bytes,
            slab_size_bytes: arguments.slab_size.bytes,
            donors: arguments.donors.clone(),
            follows: arguments.follows.clone(),
            key_file,
            redundancy,
            backing_temporary: backing.is_some() && arguments.backing.is_none(),
            backing,
            mapping: arguments.mapping,
            transport: arguments.transport,
            seal: arguments.seal,
            check: arguments.check,
            keep_awake: arguments.keep_awake,
            frontend: arguments.frontend,
            bandwidth_bytes_per_second: None,
        })
    }

    /// The same with donors of its own besides.
    pub fn with_own(&self, own: &OwnDonors) -> Self {
        let mut settings = self.clone();
        settings.donors.extend_from_slice(own.addresses());
        settings
    }

    /// The backing file, if it goes with the device.
    pub fn temporary_backing(&self) -> Option<&Path> {
        self.backing.as_deref().filter(|_| self.backing_temporary)
    }

    /// The volume of the device `name`.
    pub fn volume(&self, name: &str) -> VolumeConfig {
        VolumeConfig {
            name: name.to_owned(),
            size_bytes: self.size_bytes,
            slab_size_bytes: self.slab_size_bytes,
            donors: self.donors.clone(),
            key_file: self.key_file.clone(),
            redundancy: self.redundancy,
            mapping: self.mapping,
            transport: self.transport,
            seal: self.seal,
            check: self.check,
            backing: self.backing.clone(),
            fill_backing: false,
            bandwidth_bytes_per_second: self.bandwidth_bytes_per_second,
            donor_wait: limits::DONOR_WAIT,
            wrapper: QueuePairWrapper::default(),
        }
    }
}

/// The setting for copies, for a device that uses donors of other machines or owners.
pub fn redundancy(arguments: &StorageArguments) -> Redundancy {
    arguments.redundancy.unwrap_or(Redundancy::DISK)
}

/// The backing file of the device `name`, if its copies need one.
fn backing(
    arguments: &StorageArguments,
    redundancy: Redundancy,
    name: &str,
    size_bytes: u64,
) -> Result<Option<PathBuf>, Failure> {
    let path = match (&arguments.backing, redundancy.disk) {
        (Some(path), false) => {
            let path = path.display();
            return Err(Failure::Usage(format!(
                "--backing {path} has no use with --redundancy {redundancy}; leave it out, or write --redundancy disk"
            )));
        }
        (None, false) => return Ok(None),
        (Some(path), true) => std::path::absolute(path).map_err(|error| Failure::during(path.display(), error))?,
        (None, true) => default_backing(name)?,
    };
    check_backing(&path, size_bytes)?;
    Ok(Some(path))
}

fn default_backing(name: &str) -> Result<PathBuf, Failure> {
    let directory = backing_directory();
    own_files::make_directories(&directory, 0o755)
        .map_err(|error| Failure::Failed(format!("{error}; name a file with --backing")))?;
    Ok(directory.join(format!("{name}.backing")))
}

/// Refuses what cannot hold the device: a directory, a file system in memory, too little space.
fn check_backing(path: &Path, size_bytes: u64) -> Result<(), Failure> {
    let shown = path.display();
    if path.is_dir() {
        return Err(Failure::Failed(format!("{shown} is a directory; --backing names a file")));
    }
    if !path.parent().is_some_and(Path::is_dir) {
        return Err(Failure::Failed(format!(
            "{shown} lies in no directory that exists; make it, or name another file"
        )));
    }
    let found = FileSystem::of(path).map_err(|error| Failure::during(shown.to_string(), error))?;
    if let Some(kind) = found.in_memory {
        return Err(Failure::Failed(format!(
            "{shown} lies on {kind}, which is memory itself; paging to it would stop the machine. Name a file on a disk with --backing"
        )));
    }
    let held = fs::metadata(path).map_or(0, |metadata| std::os::unix::fs::MetadataExt::blocks(&metadata) * 512);
    let needed = size_bytes.saturating_sub(held) + limits::BACKING_RESERVE_BYTES;
    if found.free_bytes < needed {
        return Err(Failure::Failed(format!(
            "{shown} needs {} on a file system with {} free; free {} there, name a file elsewhere with --backing, or take a smaller --size",
            human(needed),
            human(found.free_bytes),
            human(needed - found.free_bytes),
        )));
    }
    Ok(())
}

/// The key file to use: the one named, none, or the default. Root's is made on first use; a user's must have been
/// copied from a machine of the cluster, because a key that no other process has would open nothing.
pub fn key_file(named: Option<&Path>) -> Option<PathBuf> {
    match named {
        Some(path) if path == Path::new("none") => None,
        // The process that reads it may run elsewhere.
        Some(path) => Some(std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf())),
        None if rustix::process::geteuid().is_root() => Some(KEY_FILE.into()),
        None => {
            let own = user_directory("XDG_CONFIG_HOME", ".config")?.join("cluster.key");
            own.exists().then_some(own)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(backing: Option<&Path>) -> StorageArguments {
        StorageArguments {
            follows: None,
            donors: Vec::new(),
            redundancy: None,
            backing: backing.map(Path::to_path_buf),
            key: None,
            slab_size: "32M".parse().unwrap(),
            mapping: MappingPolicy::OnDemand,
            transport: TransportChoice::Auto,
            seal: SealChoice::Auto,
            check: CheckChoice::On,
            keep_awake: KeepAwake::Bursts,
            frontend: FrontEndChoice::Auto,
        }
    }

    fn choose(path: &Path, size_bytes: u64) -> Result<Option<PathBuf>, String> {
        backing(&arguments(Some(path)), Redundancy::DISK, "x", size_bytes).map_err(|failure| failure.to_string())
    }

    #[test]
    fn a_file_on_a_disk_is_taken() {
        let directory = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let path = directory.path().join("backing");
        let choice = choose(&path, 1 << 20).unwrap().unwrap();
        assert_eq!(choice, path);
        assert_eq!(redundancy(&arguments(None)), Redundancy::DISK);
    }

    #[test]
    fn what_cannot_hold_a_device_is_refused() {
        let directory = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        assert!(choose(directory.path(), 1).unwrap_err().contains("is a directory"));
        assert!(choose(&directory.path().join("a/b"), 1).unwrap_err().contains("no directory"));
        assert!(choose(&directory.path().join("b"), 1 << 60).unwrap_err().contains("free"));
        if Path::new("/dev/shm").is_dir() {
            assert!(choose(Path::new("/dev/shm/spillway-test"), 1).unwrap_err().contains("tmpfs"));
        }
    }

    #[test]
    fn a_backing_file_without_use_is_a_mistake() {
        let with_file = arguments(Some(Path::new("/x")));
        let failure = backing(&with_file, Redundancy::NONE, "x", 1).unwrap_err();
        assert_eq!(failure.exit_status(), 2);
        assert_eq!(backing(&arguments(None), Redundancy::NONE, "x", 1).unwrap(), None);
    }

    #[test]
    fn the_key_may_be_left_out_or_named() {
        assert_eq!(key_file(Some(Path::new("none"))), None);
        assert_eq!(key_file(Some(Path::new("/a/key"))), Some("/a/key".into()));
        if rustix::process::geteuid().is_root() {
            assert_eq!(key_file(None), Some(KEY_FILE.into()));
            assert_eq!(backing_directory(), Path::new(BACKING_DIRECTORY));
        }
    }

    #[test]
    fn users_have_directories_of_their_own() {
        let directory = user_directory("SPILLWAY_TEST_NO_SUCH_VARIABLE", ".config");
        let home = env::var_os("HOME").map(PathBuf::from);
        assert_eq!(directory, home.map(|home| home.join(".config/spillway")));
        assert!(user_directory("HOME", "x").is_none_or(|found| !found.ends_with("x/spillway")));
    }
}
