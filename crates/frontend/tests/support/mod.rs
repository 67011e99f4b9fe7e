//! Devices of each front end served from this process's locked memory: here the loop device over FUSE, in [`nbd`] and
//! [`ublk`] the others.

pub(crate) mod busy;
pub(crate) mod exercise;
pub(crate) mod guarded;
pub(crate) mod in_guest;
pub(crate) mod nbd;
pub(crate) mod pressure;
pub(crate) mod served;
pub(crate) mod ublk;

use std::fs;
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::sync::Arc;

#[allow(unused_imports)]
pub(crate) use served::{PATIENCE, Served};
use spillway_frontend::choice::{self, FrontEndKind};
use spillway_frontend::front_end::FrontEndConfig;
use spillway_frontend::fuse::device::LoopFuse;
use spillway_sys::mapping::Mapping;
use spillway_sys::skipping::skip;

/// How requests of a FUSE filesystem reach this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Over `/dev/fuse`.
    Device,
    /// Through rings (Linux 6.14).
    Rings,
}

/// The ways that this kernel has; says what it lacks.
pub(crate) fn ways() -> Vec<Way> {
    match choice::probe(FrontEndKind::LoopFuseRing) {
        Ok(()) => vec![Way::Device, Way::Rings],
        Err(error) => {
            skip(format!("rings for FUSE ({error})"));
            vec![Way::Device]
        }
    }
}

/// A running loop device over FUSE.
pub(crate) struct Server {
    served: Served<LoopFuse>,
    directory: tempfile::TempDir,
}

impl Server {
    pub(crate) fn start(way: Way, name: &str, size_bytes: u64, threads: usize) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let config = FrontEndConfig {
            name: name.to_owned(),
            size_bytes,
            threads,
            slots_per_thread: 4,
            recoverable: false,
            answer_deadline: std::time::Duration::from_secs(12),
            directory: directory.path().to_owned(),
        };
        let memory = Arc::new(Mapping::locked(size_bytes as usize).unwrap());
        let served = match way {
            Way::Device => {
                let (front, channels) = LoopFuse::mount(&config).unwrap();
                Served::start(front, channels, &memory)
            }
            Way::Rings => {
                let (front, channels) = LoopFuse::mount_with_rings(&config).unwrap();
                Served::start(front, channels, &memory)
            }
        };
        Self { served, directory }
    }

    /// Detaches, and checks that nothing is left.
    pub(crate) fn stop(mut self) {
        self.served.end();
        assert_eq!(fs::read_dir(self.directory.path()).unwrap().count(), 0, "the mount's directory is removed");
        assert!(!is_bound_to(&self.path, self.directory.path()), "the loop device is free");
    }

    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }
}

impl Deref for Server {
    type Target = Served<LoopFuse>;

    fn deref(&self) -> &Self::Target {
        &self.served
    }
}

impl DerefMut for Server {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.served
    }
}

fn sysfs(device: &Path) -> PathBuf {
    Path::new("/sys/block").join(device.file_name().unwrap())
}

/// Whether the loop device has a file.
pub(crate) fn is_bound(device: &Path) -> bool {
    sysfs(device).join("loop").exists()
}

/// Whether the loop device has a file in `directory`; others may have taken its number since.
pub(crate) fn is_bound_to(device: &Path, directory: &Path) -> bool {
    let directory = directory.to_str().unwrap();
    fs::read_to_string(sysfs(device).join("loop/backing_file")).is_ok_and(|file| file.contains(directory))
}

pub(crate) fn queue_setting(device: &Path, name: &str) -> String {
    fs::read_to_string(sysfs(device).join("queue").join(name)).unwrap().trim().to_owned()
}
