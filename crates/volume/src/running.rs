//! A running volume, as a device or a pager has it behind its I/O threads: slab map, an engine for each thread, the
//! manager and the disk thread.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use spillway_block::device_failure::DeviceFailure;
use spillway_block::metrics::Metrics;
use spillway_fabric::address::DonorAddress;
use spillway_fabric::buffer_pool::BufferPool;
use spillway_fabric::file::{BackingFile, FileQueuePair};
use spillway_fabric::key_source::KeySource;
use spillway_fabric::queue_pair::QueuePair;
use spillway_fabric::units::{PAGE_SIZE_BYTES, SlabIndex};

use crate::disk_writer::{DiskCounters, DiskThread};
use crate::engine::Engine;
use crate::engine::bandwidth::Bandwidth;
use crate::engine::queue_pairs::{QueuePairMailbox, QueuePairSet};
use crate::error::VolumeError;
use crate::limits::{BACKING_HANDOVER_DEADLINE, BACKING_RELEASE_DEADLINE, DISK_WRITES_MAX, MOVE_BATCH_PAGES};
use crate::manager::donor_table::DonorChangeError;
use crate::manager::donors::{DonorEntry, Phase};
use crate::manager::{Manager, ManagerParts, QueuePairHolder, SessionResumption};
use crate::protection::ProtectionKind;
use crate::settings::VolumeConfig;
use crate::settings::mapping::MappingPolicy;
use crate::settings::protection::SealChoice;
use crate::slab_map::Volume;
use crate::slab_map::proofs::PageProofs;
use crate::slab_map::slab_entry::DonorSlot;
use crate::state::DeviceState;
use crate::status::{DeviceStatus, DiskStatus, DonorLinkStatus, SlabCounts, SlabMapStatus};
use crate::steward::care::Finding;

/// Pause between looks at a write that another thread is settling: as long as a page takes on a slow network.
const SETTLE_PAUSE: Duration = Duration::from_micros(50);

/// See the module text. Dropped without [`RunningVolume::stop`], its threads stay until the process ends.
pub struct RunningVolume {
    volume: Arc<Volume>,
    manager: Manager,
    disk: Option<(DiskThread, Arc<DiskCounters>)>,
    bandwidth: Option<Arc<Bandwidth>>,
}

impl RunningVolume {
    /// Starts everything over `state`; an engine for each of `pools`, whose requests use that pool's buffers. Donors
    /// keep slabs for `linger` if this process dies.
    pub fn start(
        config: &VolumeConfig,
        state: &DeviceState,
        prerequisites: Prerequisites,
        linger: Duration,
        metrics: &Arc<Metrics>,
        pools: &[Arc<BufferPool>],
    ) -> Result<(Vec<Engine>, Self), VolumeError> {
        let Prerequisites { key, backing } = prerequisites;
        let system = || VolumeError::system("cannot set the device up");
        let backing = match (backing, &config.backing) {
            (None, Some(path)) => Some(open_backing(path, state)?),
            (backing, _) => backing,
        };
        let volume = state.volume(config.redundancy).map_err(system())?.with_mapping(config.mapping);
        let volume = Arc::new(volume.with_disk_blocks_kept(config.fill_backing));
        let geometry = volume.geometry;
        if state.is_resumed() {
            tracing::warn!("going on with the device of a process that died: {:?}", volume.recover(Instant::now()));
        }
        let make_queue_pairs = |holder: &QueuePairHolder| -> std::io::Result<QueuePairSet> {
            let file = backing
                .as_ref()
                .map(|file| FileQueuePair::open(file, geometry.slab_size_bytes(), Arc::clone(&holder.pool)));
            let file = file.transpose()?.map(|file| Box::new(file) as Box<dyn QueuePair>);
            Ok(QueuePairSet::new(Arc::clone(&holder.mailbox), file))
        };
        let bandwidth = config.bandwidth_bytes_per_second.map(|rate| Arc::new(Bandwidth::new(rate, Instant::now())));
        let mut engines = Vec::new();
        let mut io_holders = Vec::new();
        for pool in pools {
            let holder = QueuePairHolder { mailbox: QueuePairMailbox::new(), pool: Arc::clone(pool) };
            // Not the mover's: its reads have many pages, take longer, and hold no fault up.
            let queue_pairs = make_queue_pairs(&holder).map_err(system())?.watched_by(&volume.latencies);
            let pool = Arc::clone(&holder.pool);
            let engine = Engine::new(Arc::clone(&volume), Arc::clone(metrics), pool, queue_pairs, Instant::now());
            engines.push(engine.bounded_by(bandwidth.clone()).noting_in(state.records()));
            io_holders.push(holder);
        }
        let mover_pool = BufferPool::new(1, MOVE_BATCH_PAGES * PAGE_SIZE_BYTES).map_err(system())?;
        let mover_holder = QueuePairHolder { mailbox: QueuePairMailbox::new(), pool: mover_pool };
        let disk = match (&backing, &volume.disk) {
            (Some(file), Some(copy)) => {
                let writer = file.writer(Arc::clone(&copy.pool), DISK_WRITES_MAX).map_err(system())?;
                let filler = if config.fill_backing { Some(file.filler().map_err(system())?) } else { None };
                let counters = Arc::new(DiskCounters::new(file.buffered_reason(), config.fill_backing));
                let thread = DiskThread::start(Arc::clone(&volume), writer, filler, Arc::clone(&counters));
                let thread = thread.map_err(system())?;
                Some((thread, counters))
            }
            _ => None,
        };
        let manager = Manager::start(ManagerParts {
            stays_on_machine: config.seal == SealChoice::Auto && config.protection() != ProtectionKind::Sealed,
            volume: Arc::clone(&volume),
            donors: state.donors()?,
            io_holders,
            mover_queue_pairs: make_queue_pairs(&mover_holder).map_err(system())?,
            mover_holder,
            borrower: state.borrower(),
            resumption: SessionResumption { records: state.records(), linger },
            name: config.name.clone(),
            key,
            transport: config.transport,
            wrapper: config.wrapper.clone(),
        });
        Ok((engines, Self { volume, manager: manager.map_err(system())?, disk, bandwidth }))
    }

    /// Waits until every donor was reached or tried once, for the configured time, not counting what this host's RDMA
    /// device takes to register buffers; then one must be there. The donors
    /// that are not, with why, unless this is a device that goes on: such a device has pages to serve, from the disk
    /// if need be.
    pub fn await_donors(&self, patience: Duration, is_resumed: bool) -> Result<Vec<String>, VolumeError> {
        let donors = self.manager.shared.donors.all();
        let mut give_up = Instant::now() + patience;
        let missing = loop {
            if self.manager.shared.rdma_ports.is_registering() {
                give_up = Instant::now() + patience;
            }
            let missing: Vec<_> = donors.iter().filter(|donor| donor.phase() != Phase::Connected).collect();
            let refusals: Vec<_> = missing.iter().filter_map(|donor| donor.refusal()).collect();
            let all_tried = refusals.len() == missing.len();
            let is_enough =
                is_resumed || missing.len() < donors.len() || refusals.iter().all(|(_, is_final)| *is_final);
            if missing.is_empty() || (all_tried && is_enough) || Instant::now() >= give_up {
                break missing;
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let lines: Vec<String> = missing.iter().map(|donor| line_of_missing(donor, patience)).collect();
        if is_resumed || missing.len() < donors.len() {
            return Ok(lines);
        }
        Err(VolumeError::NoDonor { reasons: lines })
    }

    /// Pages of the volume.
    pub fn page_count(&self) -> u64 {
        self.volume.geometry.page_count()
    }

    /// Where a panic of any thread is told, and whether there was one.
    pub fn device_failure(&self) -> &Arc<DeviceFailure> {
        &self.volume.device_failure
    }

    /// Gives pages that a dead process was writing one content, now that it is known which donors are there; how many
    /// they were.
    pub fn settle_writes(&self) -> u64 {
        let connected = self.manager.shared.donors.connected();
        let alive = |donor: DonorSlot| connected & (1 << donor.0) != 0;
        self.volume.settle_writes(&alive, || std::thread::sleep(SETTLE_PAUSE))
    }

    /// Uses another donor from now on, or one again that is being removed.
    pub fn add_donor(&self, address: &DonorAddress) -> Result<(), DonorChangeError> {
        self.manager.add_donor(address)
    }

    /// Brings everything away from a donor, and then uses it no more. Goes on in the background: the status lists the
    /// donor as leaving until it is gone.
    pub fn remove_donor(&self, address: &DonorAddress) -> Result<(), DonorChangeError> {
        self.manager.remove_donor(address)
    }

    /// Gives all slabs back and ends the threads; no thread uses an engine any more.
    pub fn stop(&mut self) {
        self.volume.abandon();
        self.manager.stop();
        if let Some(copy) = &self.volume.disk {
            copy.backlog.close();
        }
        if let Some((thread, _)) = &mut self.disk {
            thread.join();
        }
    }

    /// Fills in what is known of donors, slabs and the disk.
    pub fn describe(&self, config: &VolumeConfig, status: &mut DeviceStatus) {
        let shared = &self.manager.shared;
        let now = Instant::now();
        let latency = |donor: &DonorEntry| self.volume.latencies.status(donor.slot, now);
        let trust = &self.volume.trust;
        let link = |donor: &DonorEntry| DonorLinkStatus {
            wrong_pages: trust.failures(Some(donor.slot)),
            is_distrusted: trust.is_distrusted(donor.slot),
            ..donor.status(shared.decisions.donor(donor.slot).as_ref())
        };
        config.protection().name().clone_into(&mut status.protection);
        status.bandwidth = self.bandwidth.as_ref().map(|bandwidth| bandwidth.status());
        status.pages_same_filled = self.volume.proofs.as_ref().map_or(0, PageProofs::same_filled);
        let donors = shared.donors.all();
        status.donors = donors.iter().map(|donor| DonorLinkStatus { latency: latency(donor), ..link(donor) }).collect();
        for (slab, finding) in self.volume.geometry.slabs().zip(shared.slab_findings.look(shared)) {
            status.pages_stored += finding.stored;
            status.pages_lost += finding.lost;
            let migrating = self.volume.slab(slab).is_migrating();
            *state_of(&finding, migrating, config, &mut status.slabs) += 1;
        }
        status.slab_map = self.slab_map(&donors);
        if let (Some(copy), Some((_, counters))) = (&self.volume.disk, &self.disk) {
            status.disk = Some(DiskStatus {
                path: config.backing.as_ref().map(|path| path.display().to_string()).unwrap_or_default(),
                backlog_pages: copy.backlog.length() as u64,
                backlog_pages_max: copy.backlog.capacity() as u64,
                pages_written: counters.pages_written(),
                blocks: counters.blocks(),
                buffered_reason: counters.buffered_reason(),
                wrong_pages: trust.failures(None),
                write_errors: counters.write_errors(),
                last_error: counters.last_error(),
            });
        }
    }

    /// The slabs as a picture, with places in `donors`.
    fn slab_map(&self, donors: &[Arc<DonorEntry>]) -> SlabMapStatus {
        let place = |slot: DonorSlot| donors.iter().position(|donor| donor.slot == slot).map(|place| place as u16);
        SlabMapStatus::new((0..self.volume.geometry.slab_count).map(|index| {
            let slab = self.volume.slab(SlabIndex(index));
            let first = slab.locations().into_iter().flatten().next();
            (slab.accesses(), first.and_then(|location| place(location.donor)))
        }))
    }
}

fn line_of_missing(donor: &DonorEntry, patience: Duration) -> String {
    let waited = || format!("no session within {:.0} s", patience.as_secs_f32());
    format!("{}: {}", donor.address, donor.refusal().map_or_else(waited, |(reason, _)| reason))
}

/// The counter of the state that a slab is in.
fn state_of<'a>(finding: &Finding, migrating: bool, config: &VolumeConfig, counts: &'a mut SlabCounts) -> &'a mut u64 {
    let replicas = config.redundancy.replicas;
    match finding.copies {
        _ if finding.lost > 0 => &mut counts.lost,
        _ if migrating => &mut counts.migrating,
        0 if finding.stored == 0 || config.mapping == MappingPolicy::ByActivity => &mut counts.unmapped,
        copies if copies < usize::from(replicas) || finding.missing > 0 => &mut counts.degraded,
        _ => &mut counts.mapped,
    }
}

/// What a volume needs and may lack: the cluster key, and the backing file of a volume that goes on.
pub struct Prerequisites {
    key: Option<KeySource>,
    /// Of a device that goes on; that of a new one is made when nothing else can fail any more.
    backing: Option<BackingFile>,
}

impl Prerequisites {
    /// Opens them, or says which cannot be had.
    pub fn find(config: &VolumeConfig, state: &DeviceState) -> Result<Self, VolumeError> {
        let key = config.key_file.as_deref().map(KeySource::load).transpose()?;
        let path = config.backing.as_deref().filter(|_| state.is_resumed());
        let backing = path.map(|path| open_backing(path, state)).transpose()?;
        Ok(Self { key, backing })
    }
}

/// The backing file. One that a dead process used stays locked until its last write has ended; from then on nothing
/// of that process reaches the file any more.
fn open_backing(path: &Path, state: &DeviceState) -> Result<BackingFile, VolumeError> {
    let size_bytes = state.size_bytes();
    if !state.is_resumed() {
        return Ok(BackingFile::prepare_within(path, size_bytes, BACKING_HANDOVER_DEADLINE)?);
    }
    if std::fs::metadata(path).map_or(0, |metadata| metadata.len()) < size_bytes {
        return Err(VolumeError::BackingGone { path: path.to_owned() });
    }
    Ok(BackingFile::prepare_within(path, size_bytes, BACKING_RELEASE_DEADLINE)?)
}
