//! A running pager: how it starts its threads, and what it tells of itself.

use std::ffi::OsString;
use std::fs::Permissions;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use spillway_block::cpu_idle::CpuIdleLimit;
use spillway_block::metrics::Metrics;
use spillway_fabric::buffer_pool::BufferPool;
use spillway_policy::replacement::sampled::Sampled;
use spillway_policy::trace::fault_log::FaultLog;
use spillway_stub::greeting::{Address, Listener};
use spillway_stub::head::Head;
use spillway_stub::protocol::NOTES_SUFFIX;
use spillway_sys::guardian::Guardian;
use spillway_volume::health;
use spillway_volume::protection::ProtectionKind;
use spillway_volume::running::{Prerequisites, RunningVolume};
use spillway_volume::state::DeviceState;
use spillway_volume::status::DeviceStatus;

use crate::address_space::AddressSpace;
use crate::budget::Budget;
use crate::config::PagerConfig;
use crate::error::PagerError;
use crate::evict::Eviction;
use crate::fault::Faults;
use crate::fault::messages::Messages;
use crate::fault::pool::FaultPool;
use crate::fault::recording::FaultRecording;
use crate::limits::{
    BUDGET_BYTES_MIN, FAULT_READS_MAX, GROUP_SIZE_BYTES, POOL_SHARE, POOL_SLOTS_MAX, POOL_SLOTS_MIN, PROGRAMS_MAX,
    STOP_INTERVAL, STOP_PATIENCE, fault_threads,
};
use crate::mappings::maps;
use crate::mappings::staying_kinds::SharedMemoryKinds;
use crate::page_table::PageIndexes;
use crate::page_table::page_indexes::CachePages;
use crate::page_table::ranges::Ranges;
use crate::page_table::volume_pages::VolumePages;
use crate::pager_state::PagerState;
use crate::process::proc_files;
use crate::process::{RunOfPrograms, Survey};
use crate::statistics::PagerStatistics;
use crate::threads;
use crate::threads::bell::Bell;
use crate::threads::lock::lock;

/// A running pager. Dropping it stops it; programs must have ended by then.
pub struct Pager {
    config: PagerConfig,
    metrics: Arc<Metrics>,
    shared: Arc<PagerState>,
    threads: Vec<JoinHandle<()>>,
    remote: Option<RunningVolume>,
    donors_missing: Vec<String>,
}

/// What a pager says of itself: the volume's report, and its own.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct PagerStatus {
    /// Donors, slabs, traffic, health; `path` is the socket.
    pub device: DeviceStatus,
    /// The pager's own.
    pub pager: PagerStatistics,
}

/// Any number; the same one makes runs comparable.
const POLICY_SEED: u64 = 0x5eed;

/// Slots of the write-back pool for a budget.
fn pool_slots(budget_bytes: u64) -> usize {
    ((budget_bytes / POOL_SHARE / GROUP_SIZE_BYTES) as usize).clamp(POOL_SLOTS_MIN, POOL_SLOTS_MAX)
}

/// The write-back pool as buffers of an engine, with one slot more, for discards; and how many slots evictors have.
/// Staged pages stay readable while they are written, so what is sealed needs memory of its own.
fn make_write_back_pool(budget_bytes: u64, protection: ProtectionKind) -> io::Result<(Arc<BufferPool>, usize)> {
    let slots = pool_slots(budget_bytes);
    let make =
        if protection == ProtectionKind::Sealed { BufferPool::unlocked_with_twins } else { BufferPool::unlocked };
    Ok((make(slots + 1, GROUP_SIZE_BYTES as usize)?, slots))
}

/// The pools that engines use: one of buffers for each fault thread, and the write-back pool.
fn make_pools(fault_threads: usize, pool: &Arc<BufferPool>) -> io::Result<Vec<Arc<BufferPool>>> {
    let buffers = |_| BufferPool::unlocked(FAULT_READS_MAX, GROUP_SIZE_BYTES as usize);
    (0..fault_threads).map(buffers).chain([Ok(Arc::clone(pool))]).collect()
}

impl Pager {
    /// The volume behind it, while it runs.
    pub fn volume(&self) -> Option<&RunningVolume> {
        self.remote.as_ref()
    }

    /// The donors that could not be reached when the pager started, each as its address and the reason.
    pub fn donors_missing(&self) -> &[String] {
        &self.donors_missing
    }

    /// Connects to donors and starts the threads; programs that are started with [`Pager::environment`] are paged
    /// from now on.
    pub fn start(config: PagerConfig) -> Result<Self, PagerError> {
        config.check()?;
        let system = || PagerError::system("cannot set the pager up");
        let address = Address::parse(&config.socket().display().to_string()).map_err(system())?;
        let (pool, slots) = make_write_back_pool(config.budget_bytes, config.volume.protection()).map_err(system())?;
        let head = Head::create(&address, Survey::features_in_advance(config.programs_fork)).map_err(system())?;
        // Early, before there are threads, and while there is little that it would have a copy of. It finds programs
        // by the head too: a child that was forked a moment ago is in no list.
        let successor = config.successor().map_err(system())?;
        let guardian = Guardian::start_for_users(PROGRAMS_MAX as usize, head.file(), successor);
        let guardian = guardian.map_err(PagerError::system("cannot start the guardian"))?;
        let listener = Listener::bind(&address).map_err(PagerError::system("cannot make the socket for programs"))?;
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let fault_threads = config.fault_threads.unwrap_or_else(|| fault_threads(cpus));
        let pools = make_pools(fault_threads, &pool).map_err(system())?;
        let state = DeviceState::as_used(&config.volume)?;
        let metrics = Arc::new(Metrics::default());
        let (mut engines, remote) = RunningVolume::start(
            &config.volume,
            &state,
            Prerequisites::find(&config.volume, &state)?,
            Duration::ZERO,
            &metrics,
            &pools,
        )?;
        let budget = Budget::new(config.budget_bytes, slots as u64 * GROUP_SIZE_BYTES);
        let volume_pages = remote.page_count();
        let page_indexes = PageIndexes {
            volume_pages: VolumePages::new(u32::try_from(volume_pages).unwrap_or(u32::MAX)),
            cache_pages: CachePages::default(),
        };
        let fault_pool = FaultPool::new(fault_threads, config.prefetch).map_err(system())?;
        let mut shared = PagerState::new(page_indexes, budget, fault_pool).map_err(system())?;
        shared.recording = config.recording.map(|recording| FaultRecording::new(recording, Instant::now()));
        let shared = Arc::new(shared);
        let donors_missing = Vec::new();
        let mut pager = Self { config, metrics, shared, threads: Vec::new(), remote: Some(remote), donors_missing };
        let remote = pager.remote.as_ref().expect("just made");
        pager.donors_missing = remote.await_donors(pager.config.volume.donor_wait, false)?;
        let writer = engines.pop().expect("an engine for each pool");
        let shared = &pager.shared;
        let capacity = u32::try_from(shared.budget.limit_pages()).unwrap_or(u32::MAX);
        let policy = Box::new(Sampled::with(pager.config.eager_eviction, 0, capacity, POLICY_SEED));
        let eviction = Eviction::new(Arc::clone(shared), policy, Box::new(writer), slots, Instant::now());
        let faults = engines.into_iter().zip(&pools).map(|(reader, buffers)| {
            Faults::new(Arc::clone(shared), Box::new(reader), Arc::clone(buffers), Arc::clone(&pool))
        });
        let faults = faults.collect::<io::Result<Vec<_>>>().map_err(system())?;
        let run = RunOfPrograms {
            head,
            token: pager.config.token,
            variable: pager.config.variable().to_string_lossy().into_owned(),
            programs_fork: pager.config.programs_fork,
            huge_pages: pager.config.huge_pages,
            shared_memory: if pager.config.programs_fork {
                pager.config.shared_memory
            } else {
                SharedMemoryKinds::None
            },
            pool,
        };
        let mut survey = Survey::new(Arc::clone(shared), listener, run, guardian).map_err(system())?;
        survey.let_in();
        pager.open_to_all().map_err(system())?;
        pager.start_threads(faults, eviction, survey).map_err(PagerError::system("cannot start a thread"))?;
        Ok(pager)
    }

    /// Programs of root may become another user's before they start: what they say hello at is open to all, and who
    /// says it proves where it was started.
    fn open_to_all(&self) -> io::Result<()> {
        if !rustix::process::geteuid().is_root() {
            return Ok(());
        }
        let socket = self.config.socket();
        let mut notes = socket.clone().into_os_string();
        notes.push(NOTES_SUFFIX);
        for path in [socket, notes.into()].into_iter().filter(|path| path.exists()) {
            std::fs::set_permissions(path, Permissions::from_mode(0o666))?;
        }
        Ok(())
    }

    fn start_threads(&mut self, mut faults: Vec<Faults>, eviction: Eviction, survey: Survey) -> io::Result<()> {
        let cpu_idle = CpuIdleLimit::new(self.config.keep_awake, self.metrics.awake());
        let all = Arc::clone(&self.shared);
        let messages = Messages::new(Arc::clone(&all), Box::new(wiped_ranges), Instant::now());
        let first = (messages, faults.remove(0));
        self.start_thread("faults", move |shared| threads::serve_faults(shared, first, cpu_idle))?;
        for (bell, faults) in faults.into_iter().enumerate() {
            self.start_thread("faults", move |shared| threads::help_with_faults(shared, bell, faults))?;
        }
        self.start_thread("eviction", move |shared| threads::evict(shared, eviction))?;
        self.start_thread("survey", move |shared| threads::survey(shared, survey))
    }

    fn start_thread(
        &mut self,
        name: &str,
        run: impl FnOnce(&PagerState) -> io::Result<()> + Send + 'static,
    ) -> io::Result<()> {
        let shared = Arc::clone(&self.shared);
        self.threads.push(threads::start(name, &self.shared, move || run(&shared))?);
        Ok(())
    }

    /// What a program needs in its environment to be paged. `LD_PRELOAD` is to be put before what the user set there.
    pub fn environment(&self) -> Vec<(OsString, OsString)> {
        vec![
            ("SPILLWAY_PAGER".into(), self.config.variable()),
            ("LD_PRELOAD".into(), self.config.preload.clone().into_os_string()),
        ]
    }

    /// Hears of the calls of programs by this descriptor ([`spillway_sys::call_filter`]) from now on; `has_forks`: of
    /// forks, too. To be called before there is a program.
    pub fn take_call_notices(&self, listener: OwnedFd, has_forks: bool) {
        lock(&self.shared.call_notices).push((listener, has_forks));
        self.shared.survey.signal();
    }

    /// Changes the local memory for all programs together.
    pub fn set_budget_bytes(&self, bytes: u64) {
        let bytes = bytes.max(BUDGET_BYTES_MIN);
        self.shared.budget.set_bytes(bytes);
        self.shared.counters.budget_bytes_peak.set_max(bytes);
        self.shared.survey.signal();
    }

    /// What was done so far.
    pub fn statistics(&self) -> PagerStatistics {
        self.shared.tell_of_look(Instant::now());
        self.shared.report()
    }

    /// Hands over the faults that were recorded so far, if they are.
    pub fn with_fault_log<Result>(&self, look: impl FnOnce(&FaultLog) -> Result) -> Option<Result> {
        self.shared.recording.as_ref().map(|recording| recording.with_log(look))
    }

    /// What is going on, with the volume behind the pager.
    pub fn status(&self) -> PagerStatus {
        let mut device = DeviceStatus {
            name: self.config.volume.name.clone(),
            path: self.config.socket().display().to_string(),
            frontend: "pager (userfaultfd)".to_owned(),
            size_bytes: self.config.volume.size_bytes,
            slab_size_bytes: self.config.volume.slab_size_bytes,
            redundancy: self.config.volume.redundancy.to_string(),
            mapping: self.config.volume.mapping.to_string(),
            traffic: self.metrics.status(),
            ..DeviceStatus::default()
        };
        if let Some(remote) = &self.remote {
            device.failure = remote.device_failure().reason();
            remote.describe(&self.config.volume, &mut device);
            device.health = health::summarise(&device, usize::from(self.config.volume.redundancy.replicas));
        }
        PagerStatus { device, pager: self.statistics() }
    }

    /// Ends the threads and gives all slabs back. Programs must have ended: a process that is left is killed, since its
    /// pages go.
    pub fn stop(&mut self) {
        self.shared.kill_programs();
        self.shared.is_stopping.store(true, Ordering::SeqCst);
        let bells = [&self.shared.faults, &self.shared.eviction, &self.shared.survey];
        bells.into_iter().chain(self.shared.fault_pool.bells()).for_each(Bell::signal);
        let end = Instant::now() + STOP_PATIENCE;
        for thread in self.threads.drain(..) {
            while !thread.is_finished() && Instant::now() < end {
                std::thread::sleep(STOP_INTERVAL);
            }
            if thread.is_finished() {
                // A panic inside it is caught and told there.
                let _ = thread.join();
            } else {
                self.shared.tell_of_look(Instant::now());
                tracing::error!("a thread of the pager still waits for a program, and is left behind");
            }
        }
        if let Some(mut remote) = self.remote.take() {
            remote.stop();
        }
    }
}

impl Drop for Pager {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Rule 5 of docs/pager.md: the ranges that a child of this program reads as zeroes. The program waits in its fork
/// meanwhile.
fn wiped_ranges(space: &AddressSpace) -> Ranges {
    let number = space.process.load(Ordering::Relaxed);
    proc_files::smaps(number).map(|text| maps::wiped_on_fork(&text)).unwrap_or_default()
}
