//! Ublk devices served from memory of this process, and what tests in a guest need besides.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use spillway_borrower::block::BlockChannel;
use spillway_borrower::frontend::ublk::Ublk;
use spillway_borrower::frontend::ublk_channel::UblkChannel;
use spillway_borrower::frontend::{FrontEnd, FrontEndConfig, FrontEndError};
use spillway_borrower::io_thread::{IoThread, SpinPermit};
use spillway_borrower::local_memory::LocalMemory;
use spillway_borrower::metrics::Metrics;
use spillway_sys::event::EventFd;
use spillway_sys::mapping::Mapping;

use crate::frontend_support::PATIENCE;

pub(crate) const MIB: u64 = 1 << 20;

/// A device that goes with its process.
pub(crate) fn config(size_bytes: u64, threads: usize) -> FrontEndConfig {
    FrontEndConfig {
        name: "test".to_owned(),
        size_bytes,
        threads,
        slots_per_thread: 4,
        recoverable: false,
        directory: PathBuf::new(),
    }
}

/// A device that waits for another process.
pub(crate) fn recoverable(size_bytes: u64, threads: usize) -> FrontEndConfig {
    FrontEndConfig { recoverable: true, ..config(size_bytes, threads) }
}

/// Ublk devices that the kernel knows.
pub(crate) fn device_count() -> usize {
    fs::read_dir("/sys/class/ublk-char").map_or(0, Iterator::count)
}

/// A running device.
pub(crate) struct Server {
    pub(crate) front: Ublk,
    pub(crate) path: PathBuf,
    threads: Vec<IoThread>,
    stop: Arc<EventFd>,
}

impl Server {
    pub(crate) fn start(size_bytes: u64, threads: usize) -> Self {
        Self::start_with(&config(size_bytes, threads), None)
    }

    pub(crate) fn start_with(config: &FrontEndConfig, memory: Option<Arc<Mapping>>) -> Self {
        let memory = memory.unwrap_or_else(|| Arc::new(Mapping::locked(config.size_bytes as usize).unwrap()));
        let (front, channels) = Ublk::add(config).unwrap();
        serve(front, channels, &memory)
    }

    pub(crate) fn detach(&mut self) -> Result<(), FrontEndError> {
        self.front.detach(Duration::from_millis(100))
    }

    /// Detaches; the channels close by themselves.
    pub(crate) fn stop(mut self) {
        self.front.detach(PATIENCE).unwrap();
        self.threads.iter_mut().for_each(IoThread::join);
        assert!(!self.path.exists(), "the block device is gone");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Also after a failed assertion: stop the device while the threads still serve, then end them.
        let _ = self.front.detach(Duration::from_secs(5));
        self.stop.signal();
        self.threads.iter_mut().for_each(IoThread::join);
    }
}

/// Serves and attaches a device.
pub(crate) fn serve(mut front: Ublk, channels: Vec<UblkChannel>, memory: &Arc<Mapping>) -> Server {
    let stop = Arc::new(EventFd::new().unwrap());
    let permit = SpinPermit::default();
    let start = |channel: UblkChannel| {
        let pool = Arc::clone(channel.pool());
        let service = LocalMemory::new(Arc::clone(memory), Arc::new(Metrics::default()), pool);
        let (channel, service) = (Box::new(channel), Box::new(service));
        IoThread::start("test-io".to_owned(), channel, service, Arc::clone(&stop), permit.clone(), Arc::default())
            .unwrap()
    };
    let threads = channels.into_iter().map(start).collect();
    let path = front.attach().unwrap();
    Server { front, path, threads, stop }
}
