//! A device: volume, I/O threads, manager and front end put together.
//!
//! - [`config`]: how it is started, and what may be wrong with that.
//! - [`redundancy`]: the setting for copies; [`transport`]: how pages travel.
//! - [`status`]: what a device says of itself; [`health`]: in one line.

pub mod config;
pub mod health;
pub mod redundancy;
pub mod status;
pub mod transport;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use spillway_fabric::buffer_pool::BufferPool;
use spillway_fabric::file::{BackingError, BackingFile, FileQueuePair};
use spillway_fabric::key::ClusterKey;
use spillway_fabric::queue_pair::QueuePair;
use spillway_fabric::units::PAGE_SIZE_BYTES;
use spillway_sys::event::EventFd;
use spillway_sys::mapping::Mapping;

pub use self::config::DeviceConfig;
use self::status::{DeviceStatus, DiskStatus, SlabCounts};
use crate::block::BlockChannel;
use crate::disk_writer::{DiskCounters, DiskThread};
use crate::downfall::Downfall;
use crate::engine::Engine;
use crate::engine::lanes::{LaneMailbox, Lanes};
use crate::frontend::choice::{self, Opened};
use crate::frontend::limits::{NBD_CONNECTIONS_DEFAULT, NBD_SERVER_SLOTS};
use crate::frontend::nbd_server::NbdServer;
use crate::frontend::{FrontEnd, FrontEndConfig, FrontEndError};
use crate::io_thread::{IoThread, SpinPermit};
use crate::limits::{
    BACKING_RELEASE_DEADLINE, DETACH_DEADLINE, DISK_WRITES_MAX, IO_THREADS_DEFAULT, LINGER, MOVE_BATCH_PAGES,
    SLOTS_PER_THREAD,
};
use crate::local_memory::LocalMemory;
use crate::manager::donors::Phase;
use crate::manager::heat::MappingPolicy;
use crate::manager::{Lane, Manager, ManagerParts, Ties, care};
use crate::metrics::Metrics;
use crate::service::BlockService;
use crate::state::DeviceState;
use crate::volume::slab_entry::DonorSlot;
use crate::volume::{Geometry, Volume};

/// Why a device could not be started or stopped. The text says what to do.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// A setting is wrong.
    #[error("{0}")]
    Invalid(String),
    /// The kernel or the user lacks something.
    #[error("{0}")]
    Missing(String),
    /// No donor answered, or none may lend.
    #[error("{0}")]
    NoDonor(String),
    /// The backing file cannot be used.
    #[error(transparent)]
    Backing(#[from] BackingError),
    /// Somebody still uses the device.
    #[error("{0}")]
    Busy(String),
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
    pub(crate) fn system(context: &str) -> impl FnOnce(std::io::Error) -> Self + use<> {
        let context = context.to_owned();
        move |source| Self::System { context, source }
    }
}

impl From<FrontEndError> for DeviceError {
    fn from(error: FrontEndError) -> Self {
        match error {
            FrontEndError::Invalid(text) => Self::Invalid(text),
            FrontEndError::Missing(text) => Self::Missing(text),
            FrontEndError::Busy(text) => Self::Busy(text),
            FrontEndError::System { context, source } => Self::System { context, source },
        }
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
    remote: Option<Remote>,
    downfall: Arc<Downfall>,
    state: Option<Arc<Kept>>,
    stopped: bool,
}

/// The memory of a device that outlives its process, if somebody keeps it.
#[derive(Debug)]
pub struct Kept {
    /// The memory.
    pub state: DeviceState,
    /// Whether a process that comes after this one goes on with the pages even if the block device ended with this one: a
    /// disk that is plugged in again. Swap cannot be.
    pub outlives_block_device: bool,
}

/// What a device has behind its I/O threads, unless it serves local memory.
struct Remote {
    volume: Arc<Volume>,
    manager: Manager,
    disk: Option<(DiskThread, Arc<DiskCounters>)>,
}

impl Device {
    /// Connects to donors, starts the threads and attaches the block device. Nothing is left behind on an error. The pages
    /// end with this process.
    pub fn start(config: DeviceConfig) -> Result<Self, DeviceError> {
        let state = if config.local_memory { None } else { Some(DeviceState::memory(&config)?) };
        let state = state.map(|memory| DeviceState::open(memory, &config)).transpose()?;
        Self::start_over(config, state.map(|state| Kept { state, outlives_block_device: false }), false)
    }

    /// As [`Device::start`], with pages in memory that another process keeps too; goes on with the device of a process that
    /// died, if that is what the memory holds.
    pub fn start_kept(config: DeviceConfig, kept: Kept) -> Result<Self, DeviceError> {
        Self::start_over(config, Some(kept), true)
    }

    fn start_over(config: DeviceConfig, state: Option<Kept>, is_kept: bool) -> Result<Self, DeviceError> {
        let geometry = config.check()?;
        let metrics = Arc::new(Metrics::default());
        let kept = state.as_ref().filter(|_| is_kept);
        // Before a block device is taken over, which the kernel may allow once only: whoever fails after that has lost it.
        let ground = state.as_ref().map(|kept| Ground::find(&config, &kept.state)).transpose()?;
        let (front_end_text, front_end, channels) = open_front_end(&config, geometry, kept)?;
        let goes_on = kept.is_some_and(|kept| kept.outlives_block_device || front_end.outlives_process());
        let (services, remote) = match &state {
            None => (local_services(geometry, &metrics, &channels)?, None),
            Some(kept) => {
                let linger = if goes_on { LINGER } else { Duration::ZERO };
                let ground = ground.expect("a device with a state has its ground");
                let (services, remote) = remote_services(&config, &kept.state, ground, linger, &metrics, &channels)?;
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
            downfall: remote.as_ref().map(|remote| Arc::clone(&remote.volume.downfall)).unwrap_or_default(),
            remote,
            state: state.map(Arc::new),
            config,
            stopped: false,
        };
        device.await_donors()?;
        device.settle();
        let permit = SpinPermit::default();
        for (number, (channel, service)) in channels.into_iter().zip(services).enumerate() {
            let stop = Arc::clone(&device.stop);
            let (name, downfall) = (format!("io-{number}"), Arc::clone(&device.downfall));
            let thread = IoThread::start(name, channel, service, stop, permit.clone(), downfall);
            device.io_threads.push(thread.map_err(DeviceError::system("cannot start an I/O thread"))?);
        }
        device.note_front_end();
        device.path = device.front_end.attach()?;
        device.note_front_end();
        if let Some(kept) = &device.state {
            kept.state.records().set_serving(goes_on);
        }
        Ok(device)
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
        let alive = |donor: DonorSlot| remote.manager.shared.donors[usize::from(donor.0)].phase() == Phase::Connected;
        let settled = remote.volume.settle_writes(&alive, || std::thread::sleep(Duration::from_micros(50)));
        tracing::info!("{settled} pages were being written when the process before this one died");
    }

    fn is_resumed(&self) -> bool {
        self.state.as_ref().is_some_and(|kept| kept.state.is_resumed())
    }

    /// Waits until every donor was reached or refused once, for the configured time; then one must be there.
    fn await_donors(&self) -> Result<(), DeviceError> {
        let Some(remote) = &self.remote else { return Ok(()) };
        let donors = &remote.manager.shared.donors;
        let give_up = Instant::now() + self.config.donor_wait;
        let is_connected = |phase| phase == Phase::Connected;
        while !donors.iter().all(|donor| is_connected(donor.phase())) && Instant::now() < give_up {
            let tried = donors.iter().all(|donor| !donor.status().last_error.is_empty() || is_connected(donor.phase()));
            if tried && (self.is_resumed() || donors.iter().any(|donor| is_connected(donor.phase()))) {
                break;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        // A device that goes on has pages to serve, from the disk if need be.
        if self.is_resumed() || donors.iter().any(|donor| is_connected(donor.phase())) {
            return Ok(());
        }
        let reasons = donors.iter().map(|donor| format!("{}: {}", donor.address, donor.status().last_error));
        Err(DeviceError::NoDonor(format!(
            "no donor can be reached; start one with 'spillway donate', or check the address and the key\n  {}",
            reasons.collect::<Vec<_>>().join("\n  ")
        )))
    }

    /// The block device, such as `/dev/loop0`, or where an NBD server's clients find it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes of the device: the asked size, rounded up to whole slabs.
    pub fn size_bytes(&self) -> u64 {
        self.config.size_bytes.next_multiple_of(self.config.slab_size_bytes)
    }

    /// What is going on.
    pub fn status(&self) -> DeviceStatus {
        let mut status = DeviceStatus {
            name: self.config.name.clone(),
            path: self.path.display().to_string(),
            frontend: self.front_end_text.clone(),
            size_bytes: self.size_bytes(),
            slab_size_bytes: self.config.slab_size_bytes,
            redundancy: self.config.redundancy.to_string(),
            mapping: self.config.mapping.to_string(),
            traffic: self.metrics.status(),
            failure: self.downfall.reason(),
            ..DeviceStatus::default()
        };
        if let Some(remote) = &self.remote {
            remote.describe(&self.config, &mut status);
            status.health = health::summarise(&status, usize::from(self.config.redundancy.replicas));
        } else {
            status.redundancy = "none".to_owned();
            status.health = health::summarise_local(&status);
        }
        status
    }

    /// Detaches the block device, stops the threads and gives all slabs back. Fails with [`DeviceError::Busy`], and leaves
    /// everything as it was, while somebody has the device open (swap on, mounted).
    pub fn stop(&mut self) -> Result<(), DeviceError> {
        if !self.stopped {
            self.front_end.detach(DETACH_DEADLINE)?;
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
            // The threads and the donors' slabs stay until the process ends: somebody still pages to this device.
            tracing::error!("{} cannot be detached: {error}", self.path.display());
            std::mem::forget(std::mem::take(&mut self.io_threads));
            std::mem::forget(self.remote.take());
        }
    }
}

impl Remote {
    fn stop(&mut self) {
        self.manager.stop();
        if let Some(copy) = &self.volume.disk {
            copy.backlog.close();
        }
        if let Some((thread, _)) = &mut self.disk {
            thread.join();
        }
    }

    fn describe(&self, config: &DeviceConfig, status: &mut DeviceStatus) {
        let shared = &self.manager.shared;
        status.donors = shared.donors.iter().map(|donor| donor.status()).collect();
        for (slab, finding) in self.volume.geometry.slabs().zip(shared.survey.look(shared)) {
            status.pages_stored += finding.stored;
            status.pages_lost += finding.lost;
            let migrating = self.volume.slab(slab).is_migrating();
            *state_of(&finding, migrating, config, &mut status.slabs) += 1;
        }
        if let (Some(copy), Some((_, counters))) = (&self.volume.disk, &self.disk) {
            status.disk = Some(DiskStatus {
                path: config.backing.as_ref().map(|path| path.display().to_string()).unwrap_or_default(),
                backlog_pages: copy.backlog.length() as u64,
                backlog_pages_max: copy.backlog.capacity() as u64,
                pages_written: counters.pages_written(),
                blocks: counters.blocks(),
                buffered_reason: counters.buffered_reason(),
                write_errors: counters.write_errors(),
                last_error: counters.last_error(),
            });
        }
    }
}

/// The counter of the state that a slab is in.
fn state_of<'a>(
    finding: &care::Finding,
    migrating: bool,
    config: &DeviceConfig,
    counts: &'a mut SlabCounts,
) -> &'a mut u64 {
    let replicas = config.redundancy.replicas;
    match finding.copies {
        _ if finding.lost > 0 => &mut counts.lost,
        _ if migrating => &mut counts.migrating,
        0 if finding.stored == 0 || config.mapping == MappingPolicy::ByActivity => &mut counts.unmapped,
        copies if copies < usize::from(replicas) || finding.missing > 0 => &mut counts.degraded,
        _ => &mut counts.mapped,
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
        name: config.name.clone(),
        size_bytes: geometry.page_count() * PAGE_SIZE_BYTES as u64,
        threads: config.io_threads.unwrap_or(IO_THREADS_DEFAULT),
        slots_per_thread: SLOTS_PER_THREAD,
        recoverable: kept.is_some(),
        directory: PathBuf::from("/run/spillway"),
    };
    if let Some(listen) = &config.listen {
        front_end.threads = config.io_threads.unwrap_or(NBD_CONNECTIONS_DEFAULT);
        front_end.slots_per_thread = NBD_SERVER_SLOTS;
        let (server, channels) = NbdServer::open(&front_end, listen)?;
        let text = format!("nbd server ({} connections at a time)", front_end.threads);
        return Ok((text, Box::new(server), choice::boxed(channels)));
    }
    let left = kept.and_then(|kept| kept.state.records().front_end());
    let opened = match left.map(|identity| choice::take_over(&identity, &front_end)) {
        // Unplugged and plugged in again.
        Some(Err(error)) if kept.is_some_and(|kept| kept.outlives_block_device) => {
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

/// What a device needs and may lack.
struct Ground {
    key: Option<ClusterKey>,
    /// Of a device that goes on; that of a new one is made when nothing else can fail any more.
    backing: Option<BackingFile>,
}

impl Ground {
    fn find(config: &DeviceConfig, state: &DeviceState) -> Result<Self, DeviceError> {
        let key = config.key_file.as_deref().map(ClusterKey::load).transpose();
        let key = key.map_err(|error| DeviceError::Invalid(error.to_string()))?;
        let path = config.backing.as_deref().filter(|_| state.is_resumed());
        let backing = path.map(|path| open_backing(path, state)).transpose()?;
        Ok(Self { key, backing })
    }
}

/// The backing file. One that a dead process used stays locked until its last write has ended; from then on nothing of that
/// process reaches the file any more.
fn open_backing(path: &Path, state: &DeviceState) -> Result<BackingFile, DeviceError> {
    let size_bytes = state.size_bytes();
    if !state.is_resumed() {
        return Ok(BackingFile::prepare(path, size_bytes)?);
    }
    if std::fs::metadata(path).map_or(0, |metadata| metadata.len()) < size_bytes {
        let path = path.display();
        return Err(DeviceError::Invalid(format!("the backing file {path} with the pages of this device is gone")));
    }
    let give_up = Instant::now() + BACKING_RELEASE_DEADLINE;
    loop {
        match BackingFile::prepare(path, size_bytes) {
            Err(BackingError::InUse(_)) if Instant::now() < give_up => std::thread::sleep(Duration::from_millis(10)),
            result => return Ok(result?),
        }
    }
}

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

fn remote_services(
    config: &DeviceConfig,
    state: &DeviceState,
    ground: Ground,
    linger: Duration,
    metrics: &Arc<Metrics>,
    channels: &[Box<dyn BlockChannel>],
) -> Result<(Services, Remote), DeviceError> {
    let Ground { key, backing } = ground;
    let system = || DeviceError::system("cannot set the device up");
    let backing = match (backing, &config.backing) {
        (None, Some(path)) => Some(open_backing(path, state)?),
        (backing, _) => backing,
    };
    let volume = state.volume(config.redundancy).map_err(system())?.with_mapping(config.mapping);
    let volume = volume.with_disk_blocks_kept(config.fill_backing);
    let volume = Arc::new(volume);
    let geometry = volume.geometry;
    if state.is_resumed() {
        tracing::warn!("going on with the device of a process that died: {:?}", volume.recover(Instant::now()));
    }
    let make_lanes = |lane: &Lane| -> std::io::Result<Lanes> {
        let file =
            backing.as_ref().map(|file| FileQueuePair::open(file, geometry.slab_size_bytes(), Arc::clone(&lane.pool)));
        let file = file.transpose()?.map(|file| Box::new(file) as Box<dyn QueuePair>);
        Ok(Lanes::new(Arc::clone(&lane.mailbox), file))
    };
    let mut services: Services = Vec::new();
    let mut io_lanes = Vec::new();
    for channel in channels {
        let lane = Lane { mailbox: LaneMailbox::new(), pool: Arc::clone(channel.pool()) };
        let lanes = make_lanes(&lane).map_err(system())?;
        let pool = Arc::clone(&lane.pool);
        services.push(Box::new(Engine::new(Arc::clone(&volume), Arc::clone(metrics), pool, lanes, Instant::now())));
        io_lanes.push(lane);
    }
    let mover_pool = BufferPool::new(1, MOVE_BATCH_PAGES * PAGE_SIZE_BYTES).map_err(system())?;
    let mover_lane = Lane { mailbox: LaneMailbox::new(), pool: mover_pool };
    let disk = match (&backing, &volume.disk) {
        (Some(file), Some(copy)) => {
            let writer = file.writer(Arc::clone(&copy.pool), DISK_WRITES_MAX).map_err(system())?;
            let filler = if config.fill_backing { Some(file.filler().map_err(system())?) } else { None };
            let counters = Arc::new(DiskCounters::new(file.buffered_reason()));
            let thread =
                DiskThread::start(Arc::clone(&volume), writer, filler, Arc::clone(&counters)).map_err(system())?;
            Some((thread, counters))
        }
        _ => None,
    };
    let manager = Manager::start(ManagerParts {
        volume: Arc::clone(&volume),
        addresses: config.donors.clone(),
        io_lanes,
        mover_lanes: make_lanes(&mover_lane).map_err(system())?,
        mover_lane,
        borrower: state.borrower(),
        ties: Ties { records: state.records(), linger },
        name: config.name.clone(),
        key,
        transport: config.transport,
    });
    Ok((services, Remote { volume, manager: manager.map_err(system())?, disk }))
}
