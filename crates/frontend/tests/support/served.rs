//! A device of any front end, served from this process's memory by threads that end with it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use spillway_block::adaptive_polling::{AdaptivePolling, SpinPermit};
use spillway_block::channel::BlockChannel;
use spillway_block::cpu_idle::CpuIdleLimit;
use spillway_block::io_thread::IoThread;
use spillway_block::local_memory::LocalMemory;
use spillway_block::metrics::Metrics;
use spillway_frontend::front_end::{FrontEnd, FrontEndError};
use spillway_sys::event::EventFd;
use spillway_sys::mapping::Mapping;

/// How long anything may take on a busy machine before a test fails.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// A running device.
pub(crate) struct Served<F: FrontEnd> {
    pub(crate) front: F,
    /// What the front end calls its device.
    pub(crate) path: PathBuf,
    threads: Vec<IoThread>,
    stop: Arc<EventFd>,
}

impl<F: FrontEnd> Served<F> {
    /// Serves and attaches a device.
    pub(crate) fn start(
        mut front: F,
        channels: impl IntoIterator<Item = impl BlockChannel + 'static>,
        memory: &Arc<Mapping>,
    ) -> Self {
        let (stop, permit) = (Arc::new(EventFd::new().unwrap()), SpinPermit::default());
        let start = |channel: Box<dyn BlockChannel>| {
            let pool = Arc::clone(channel.pool());
            let service = Box::new(LocalMemory::new(Arc::clone(memory), Arc::new(Metrics::default()), pool));
            let adaptive_polling = AdaptivePolling::new(permit.clone(), CpuIdleLimit::default());
            IoThread::start("test-io".to_owned(), channel, service, Arc::clone(&stop), adaptive_polling, Arc::default())
                .unwrap()
        };
        let threads = channels.into_iter().map(|channel| start(Box::new(channel))).collect();
        let path = front.attach().unwrap();
        Self { front, path, threads, stop }
    }

    /// A short try, for devices that are in use.
    pub(crate) fn detach(&mut self) -> Result<(), FrontEndError> {
        self.front.detach(Duration::from_millis(100))
    }

    /// Detaches; the channels close by themselves.
    pub(crate) fn end(&mut self) {
        self.front.detach(PATIENCE).unwrap();
        self.threads.iter_mut().for_each(IoThread::join);
    }
}

impl<F: FrontEnd> Drop for Served<F> {
    fn drop(&mut self) {
        // Also after a failed assertion: free the device while the threads still serve, then end them.
        let _ = self.front.detach(Duration::from_secs(5));
        self.stop.signal();
        self.threads.iter_mut().for_each(IoThread::join);
    }
}
