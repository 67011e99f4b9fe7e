//! Ublk devices served from memory of this process, and what tests in a guest need besides.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use spillway_frontend::front_end::FrontEndConfig;
use spillway_frontend::ublk::device::Ublk;
use spillway_sys::mapping::Mapping;

use super::{PATIENCE, Served};

pub(crate) const MIB: u64 = 1 << 20;

/// A device that goes with its process.
pub(crate) fn config(size_bytes: u64, threads: usize) -> FrontEndConfig {
    FrontEndConfig {
        name: "test".to_owned(),
        size_bytes,
        threads,
        slots_per_thread: 4,
        recoverable: false,
        answer_deadline: std::time::Duration::from_secs(12),
        directory: PathBuf::new(),
    }
}

/// A device that waits for another process.
pub(crate) fn recoverable(size_bytes: u64, threads: usize) -> FrontEndConfig {
    FrontEndConfig { recoverable: true, ..config(size_bytes, threads) }
}

/// Ublk devices that the kernel knows.
fn device_count() -> usize {
    fs::read_dir("/sys/class/ublk-char").map_or(0, Iterator::count)
}

/// The kernel forgets a deleted device when the last ring that knows it is gone, which takes it a moment.
pub(crate) fn await_devices(count: usize) {
    let deadline = Instant::now() + PATIENCE;
    while device_count() != count {
        assert!(Instant::now() < deadline, "{} devices instead of {count}", device_count());
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A running device; see [`stop`].
pub(crate) type Server = Served<Ublk>;

/// Starts a device that goes with its process.
pub(crate) fn start(size_bytes: u64, threads: usize) -> Server {
    start_with(&config(size_bytes, threads))
}

/// Starts a device over memory of its own.
pub(crate) fn start_with(config: &FrontEndConfig) -> Server {
    let memory = Arc::new(Mapping::locked(config.size_bytes as usize).unwrap());
    let (front, channels) = Ublk::add(config).unwrap();
    Served::start(front, channels, &memory)
}

/// Detaches it, and checks that it is gone.
pub(crate) fn stop(mut server: Server) {
    server.end();
    let deadline = Instant::now() + PATIENCE;
    while server.path.exists() {
        assert!(Instant::now() < deadline, "the block device is gone");
        std::thread::sleep(Duration::from_millis(10));
    }
}
