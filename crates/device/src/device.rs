//! A device: volume, I/O threads and front end put together.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use spillway_block::adaptive_polling::{AdaptivePolling, SpinPermit};
use spillway_block::channel::BlockChannel;
use spillway_block::cpu_idle::CpuIdleLimit;
use spillway_block::device_failure::{DeviceFailure, FailedService};
use spillway_block::io_thread::IoThread;
use spillway_block::limits::SLOTS_PER_THREAD;
use spillway_block::local_memory::LocalMemory;
use spillway_block::metrics::Metrics;
use spillway_block::service::BlockService;
use spillway_fabric::buffer_pool::BufferPool;
use spillway_fabric::units::PAGE_SIZE_BYTES;
use spillway_frontend::choice::{self, Opened};
use spillway_frontend::front_end::{FrontEnd, FrontEndConfig, FrontEndError};
use spillway_frontend::identity::FrontEndIdentity;
use spillway_frontend::limits::{NBD_CONNECTIONS_DEFAULT, NBD_SERVER_SLOTS};
use spillway_frontend::nbd::server::NbdServer;
use spillway_sys::event::EventFd;
use spillway_sys::mapping::Mapping;
use spillway_volume::error::VolumeError;
use spillway_volume::health;
use spillway_volume::limits::LINGER;
use spillway_volume::running::{Prerequisites, RunningVolume};
use spillway_volume::settings::SettingsError;
use spillway_volume::slab_map::Geometry;
use spillway_volume::state::DeviceState;
use spillway_volume::state::records::Milestone;
use spillway_volume::status::DeviceStatus;

use crate::config::DeviceConfig;
use crate::limits::{DETACH_DEADLINE, IO_THREADS_DEFAULT};

/// Why a device could not be started or stopped. The text says what to do.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// The pages behind it cannot be had.
    #[error(transparent)]
    Volume(#[from] VolumeError),
    /// The kernel cannot reach it, or it is still in use.
    #[error(transparent)]
    FrontEnd(#[from] FrontEndError),
    /// A system call failed.
    #[error("{context}: {source}")]
    System {
        /// What was being done.
        context: String,
        /// The error.
        source: std::io::Error,
    },
}

impl DeviceError {
    fn system(context: &str) -> impl FnOnce(std::io::Error) -> Self + use<> {
        let context = context.to_owned();
        move |source| Self::System { context, source }
    }
}

impl From<SettingsError> for DeviceError {
    fn from(error: SettingsError) -> Self {
        Self::Volume(error.into())
    }
}

/// A running block device. Dropping it detaches everything that can be detached.
pub struct Device {
    config: DeviceConfig,
    path: PathBuf,
    front_end: Box<dyn FrontEnd>,
    front_end_text: String,
    metrics: Arc<Metrics>,
    stop: Arc<EventFd>,
    io_threads: Vec<IoThread>,
    remote: Option<RunningVolume>,
    device_failure: Arc<DeviceFailure>,
    state: Option<Arc<Kept>>,
    donors_missing: Vec<String>,
    stopped: bool,
}

/// The memory of a device that outlives its process, if a keeper has it.
#[derive(Debug)]
pub struct Kept {
    /// The memory.
    pub state: DeviceState,
    /// Whether a process that comes after this one goes on with the pages even if the block device ended with this
    /// one: a disk that is plugged in again. Swap cannot be.
    pub outlives_block_device: bool,
}

impl Device {
    /// Connects to donors, starts the threads and attaches the block device. Nothing is left behind on an error. The
    /// pages end with this process.
    pub fn start(config: DeviceConfig) -> Result<Self, DeviceError> {
        let state = if config.local_memory { None } else { Some(DeviceState::memory(&config.volume)?) };
        let state = state.map(|memory| DeviceState::open(memory, &config.volume)).transpose()?;
        Self::start_over(config, state.map(|state| Kept { state, outlives_block_device: false }), false)
    }

    /// As [`Device::start`], with pages in memory that another process keeps too; goes on with the device of a
    /// process that died, if that is what the memory holds.
    pub fn start_kept(config: DeviceConfig, kept: Kept) -> Result<Self, DeviceError> {
        Self::start_over(config, Some(kept), true)
    }

    /// Takes over the block device of a process that died and fails every request to it, so that none waits for pages
    /// that no process serves. The pages stay as they are, for the process that comes after this one.
    pub fn start_failing(config: DeviceConfig, kept: Kept) -> Result<Self, DeviceError> {
        let geometry = config.check()?;
        let (front_end_text, front_end, channels) = open_front_end(&config, geometry, Some(&kept))?;
        let services = channels
            .iter()
            .map(|channel| Box::new(FailedService::new(channel.pool().slot_count())) as Box<dyn BlockService>)
            .collect();
        let mut device = Self {
            path: PathBuf::new(),
            front_end,
            front_end_text,
            metrics: Arc::default(),
            stop: Arc::new(EventFd::new().map_err(DeviceError::system("cannot make an event"))?),
            io_threads: Vec::new(),
            device_failure: Arc::default(),
            remote: None,
            state: Some(Arc::new(kept)),
            config,
            donors_missing: Vec::new(),
            stopped: false,
        };
        device.start_io_threads(channels, services)?;
        device.plug_in()?;
        Ok(device)
    }

    fn start_over(config: DeviceConfig, state: Option<Kept>, is_kept: bool) -> Result<Self, DeviceError> {
        let geometry = config.check()?;
        let metrics = Arc::new(Metrics::default());
        let kept = state.as_ref().filter(|_| is_kept);
        // Before a block device is taken over, which the kernel may allow once only: a process that fails after that
        // has lost it.
        let prerequisites = state.as_ref().map(|kept| Prerequisites::find(&config.volume, &kept.state)).transpose()?;
        let (front_end_text, front_end, channels) = open_front_end(&config, geometry, kept)?;
        let goes_on = kept.is_some_and(|kept| kept.outlives_block_device || front_end.outlives_process());
        let (services, remote) = match &state {
            None => (local_services(geometry, &metrics, &channels)?, None),
            Some(kept) => {
                let linger = if goes_on { LINGER } else { Duration::ZERO };
                let prerequisites = prerequisites.expect("found for every device with a state");
                let pools: Vec<_> = channels.iter().map(|channel| Arc::clone(channel.pool())).collect();
                let (engines, remote) =
                    RunningVolume::start(&config.volume, &kept.state, prerequisites, linger, &metrics, &pools)?;
                let services = engines.into_iter().map(|engine| Box::new(engine) as Box<dyn BlockService>).collect();
                (services, Some(remote))
            }
        };
        let mut device = Self {
            path: PathBuf::new(),
            front_end,
            front_end_text,
            metrics,
            stop: Arc::new(EventFd::new().map_err(DeviceError::system("cannot make an event"))?),
            io_threads: Vec::new(),
            device_failure: remote.as_ref().map(|remote| Arc::clone(remote.device_failure())).unwrap_or_default(),
            remote,
            state: state.map(Arc::new),
            config,
            donors_missing: Vec::new(),
            stopped: false,
        };
        if let Some(remote) = &device.remote {
            device.donors_missing = remote.await_donors(device.config.volume.donor_wait, device.is_resumed())?;
        }
        device.settle();
        device.start_io_threads(channels, services)?;
        device.plug_in()?;
        if let Some(kept) = &device.state {
            kept.state.records().set_serving(goes_on);
            kept.state.records().reach(Milestone::Ready);
        }
        Ok(device)
    }

    fn start_io_threads(
        &mut self,
        channels: Vec<Box<dyn BlockChannel>>,
        services: Services,
    ) -> Result<(), DeviceError> {
        let permit = SpinPermit::default();
        for (number, (channel, service)) in channels.into_iter().zip(services).enumerate() {
            let stop = Arc::clone(&self.stop);
            let (name, device_failure) = (format!("io-{number}"), Arc::clone(&self.device_failure));
            let awake = CpuIdleLimit::new(self.config.keep_awake, self.metrics.awake());
            let adaptive_polling = AdaptivePolling::new(permit.clone(), awake);
            let thread = IoThread::start(name, channel, service, stop, adaptive_polling, device_failure);
            self.io_threads.push(thread.map_err(DeviceError::system("cannot start an I/O thread"))?);
        }
        Ok(())
    }

    fn plug_in(&mut self) -> Result<(), DeviceError> {
        self.note_front_end();
        self.path = self.front_end.attach()?;
        self.note_front_end();
        Ok(())
    }

    /// Writes down for the next process how it takes the block device over; some can tell only once it is there.
    fn note_front_end(&self) {
        let (Some(kept), recovery) = (&self.state, self.front_end.recovery()) else { return };
        if !kept.state.records().set_front_end(recovery.as_ref()) {
            tracing::error!("{recovery:?} is too long to be taken over by another process");
        }
    }

    /// Pages that a dead process was writing get one content, now that it is known which donors are there.
    fn settle(&self) {
        let Some(remote) = self.remote.as_ref().filter(|_| self.is_resumed()) else { return };
        let settled = remote.settle_writes();
        tracing::info!("{settled} pages were being written when the process before this one died");
    }

    fn is_resumed(&self) -> bool {
        self.state.as_ref().is_some_and(|kept| kept.state.is_resumed())
    }

    /// The block device, such as `/dev/loop0`, or where an NBD server's clients find it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The donors that could not be reached when the device started, each as its address and the reason.
    pub fn donors_missing(&self) -> &[String] {
        &self.donors_missing
    }

    /// The volume behind it; `None` for one that serves from memory of this process.
    pub fn volume(&self) -> Option<&RunningVolume> {
        self.remote.as_ref()
    }

    /// Bytes of the device: the asked size, rounded up to whole slabs.
    pub fn size_bytes(&self) -> u64 {
        self.config.volume.whole_slabs_bytes()
    }

    /// What is going on.
    pub fn status(&self) -> DeviceStatus {
        let mut status = DeviceStatus {
            name: self.config.volume.name.clone(),
            path: self.path.display().to_string(),
            frontend: self.front_end_text.clone(),
            size_bytes: self.size_bytes(),
            slab_size_bytes: self.config.volume.slab_size_bytes,
            redundancy: self.config.volume.redundancy.to_string(),
            mapping: self.config.volume.mapping.to_string(),
            traffic: self.metrics.status(),
            failure: self.device_failure.reason(),
            ..DeviceStatus::default()
        };
        if let Some(remote) = &self.remote {
            remote.describe(&self.config.volume, &mut status);
            status.health = health::summarise(&status, usize::from(self.config.volume.redundancy.replicas));
        } else {
            status.redundancy = "none".to_owned();
            status.health = health::summarise_local(&status);
        }
        status
    }

    /// Detaches the block device, stops the threads and gives all slabs back. Fails with [`FrontEndError::Busy`], and
    /// leaves everything as it was, while the device is open (swap on, mounted).
    pub fn stop(&mut self) -> Result<(), DeviceError> {
        self.stop_within(DETACH_DEADLINE)
    }

    /// [`Device::stop`] that does not wait for others to close it, for callers that try again and again.
    pub fn stop_if_unused(&mut self) -> Result<(), DeviceError> {
        self.stop_within(Duration::ZERO)
    }

    fn stop_within(&mut self, deadline: Duration) -> Result<(), DeviceError> {
        if !self.stopped {
            self.front_end.detach(deadline)?;
            self.stop_threads();
        }
        Ok(())
    }

    fn stop_threads(&mut self) {
        self.stopped = true;
        if let Some(kept) = &self.state {
            kept.state.records().set_serving(false);
        }
        self.stop.signal();
        self.io_threads.iter_mut().for_each(IoThread::join);
        if let Some(remote) = &mut self.remote {
            remote.stop();
        }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        if let Err(error) = self.stop() {
            // The threads and the donors' slabs stay until the process ends: the kernel still pages to this device.
            tracing::error!("{} cannot be detached: {error}", self.path.display());
            std::mem::forget(std::mem::take(&mut self.io_threads));
            std::mem::forget(self.remote.take());
        }
    }
}

/// A front end with its channels, and which one it is and why, for `status`.
type FrontEndParts = (String, Box<dyn FrontEnd>, Vec<Box<dyn BlockChannel>>);

fn open_front_end(
    config: &DeviceConfig,
    geometry: Geometry,
    kept: Option<&Kept>,
) -> Result<FrontEndParts, FrontEndError> {
    let mut front_end = FrontEndConfig {
        name: config.volume.name.clone(),
        size_bytes: geometry.page_count() * PAGE_SIZE_BYTES as u64,
        threads: config.io_threads.unwrap_or(IO_THREADS_DEFAULT),
        slots_per_thread: SLOTS_PER_THREAD,
        recoverable: kept.is_some(),
        answer_deadline: spillway_volume::engine::answer_deadline(config.volume.redundancy),
        directory: PathBuf::from("/run/spillway"),
    };
    if let Some(listen) = &config.listen {
        front_end.threads = config.io_threads.unwrap_or(NBD_CONNECTIONS_DEFAULT);
        front_end.slots_per_thread = NBD_SERVER_SLOTS;
        let (server, channels) = NbdServer::open(&front_end, listen)?;
        let text = format!("nbd server ({} connections at a time)", front_end.threads);
        return Ok((text, Box::new(server), choice::boxed(channels)));
    }
    let left = kept.and_then(|kept| kept.state.records().front_end::<FrontEndIdentity>());
    let opened = match left.map(|identity| choice::take_over(&identity, &front_end)) {
        // Unplugged and plugged in again. One that is there has users, who wait for a process that takes it over.
        Some(Err(error @ (FrontEndError::Missing(_) | FrontEndError::Invalid(_))))
            if kept.is_some_and(|kept| kept.outlives_block_device) =>
        {
            tracing::warn!("the block device is not there any more, a new one is made: {error}");
            choice::open(config.front_end, &front_end)?
        }
        Some(taken_over) => taken_over?,
        None => choice::open(config.front_end, &front_end)?,
    };
    let Opened { kind, reason, front_end, channels } = opened;
    Ok((format!("{kind} ({reason})"), front_end, channels))
}

type Services = Vec<Box<dyn BlockService>>;

fn local_services(
    geometry: Geometry,
    metrics: &Arc<Metrics>,
    channels: &[Box<dyn BlockChannel>],
) -> Result<Services, DeviceError> {
    let memory = Mapping::anonymous(geometry.page_count() as usize * PAGE_SIZE_BYTES);
    let memory = Arc::new(memory.map_err(DeviceError::system("cannot reserve memory for the device"))?);
    let service = |pool: &Arc<BufferPool>| {
        let service = LocalMemory::new(Arc::clone(&memory), Arc::clone(metrics), Arc::clone(pool));
        Box::new(service) as Box<dyn BlockService>
    };
    Ok(channels.iter().map(|channel| service(channel.pool())).collect())
}
