//! A loop device over FUSE served from this process's locked memory, and aligned buffers for direct I/O.

pub(crate) mod busy;
pub(crate) mod exercise;
pub(crate) mod guarded;
pub(crate) mod in_guest;
pub(crate) mod pressure;
pub(crate) mod served;

use std::fs::{self, File, OpenOptions};
use std::ops::{Deref, DerefMut};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub(crate) use served::{PATIENCE, Served};
use spillway_borrower::frontend::FrontEndConfig;
use spillway_borrower::frontend::loop_fuse::LoopFuse;
use spillway_sys::mapping::Mapping;

/// `O_DIRECT` on this architecture.
pub(crate) const O_DIRECT: i32 = rustix::fs::OFlags::DIRECT.bits() as i32;

/// Says which capability is missing, or that nothing is.
pub(crate) fn can_run() -> bool {
    let missing = if !rustix::process::geteuid().is_root() {
        "root"
    } else if !Path::new("/dev/fuse").exists() {
        "/dev/fuse"
    } else if !Path::new("/dev/loop-control").exists() {
        "loop devices (/dev/loop-control)"
    } else {
        return true;
    };
    spillway_sys::skipping::skip(missing);
    false
}

/// Keeps swap areas of other tests and measurements of this machine away: the kernel would page to theirs too. Held by an
/// open file, so it ends with its holder.
pub(crate) fn swap_lock() -> File {
    let file = File::create("/tmp/spillway-end-to-end.lock").expect("the lock file can be made");
    rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).expect("the lock can be taken");
    file
}

/// A running loop device over FUSE.
pub(crate) struct Server {
    served: Served<LoopFuse>,
    directory: tempfile::TempDir,
}

impl Server {
    pub(crate) fn start(name: &str, size_bytes: u64, threads: usize) -> Self {
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
        let (front, channels) = LoopFuse::mount(&config).unwrap();
        let memory = Arc::new(Mapping::locked(size_bytes as usize).unwrap());
        Self { served: Served::start(front, channels, &memory), directory }
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

/// A device or file open past the page cache.
pub(crate) fn open_direct(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).custom_flags(O_DIRECT).open(path).unwrap()
}

/// Bytes at a page boundary, for direct I/O.
pub(crate) struct Aligned {
    bytes: Vec<u8>,
    start: usize,
    length: usize,
}

impl Aligned {
    pub(crate) fn new(length: usize) -> Self {
        let bytes = vec![0; length + 4096];
        let start = bytes.as_ptr().align_offset(4096);
        Self { bytes, start, length }
    }

    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.length]
    }

    pub(crate) fn read(&mut self, file: &File, offset: u64, length: usize) -> &[u8] {
        let bytes = &mut self.bytes()[..length];
        file.read_exact_at(bytes, offset).unwrap();
        bytes
    }

    pub(crate) fn write(&mut self, file: &File, offset: u64, content: &[u8]) {
        self.bytes()[..content.len()].copy_from_slice(content);
        file.write_all_at(&self.bytes()[..content.len()], offset).unwrap();
    }
}
