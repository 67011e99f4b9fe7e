//! What a run needs: sizes, donors, copies and files, decided and checked before anything starts.

use std::ffi::OsString;
use std::path::PathBuf;

use spillway_console::failure::Failure;
use spillway_console::say;
use spillway_control::cluster_donors::{self, Borrower};
use spillway_control::own_donors::{OwnDonors, OwnDonorsPlan, own_size_bytes};
use spillway_control::registry::Registry;
use spillway_control::storage_arguments::StorageArguments;
use spillway_control::take_down::{device_name, donor_prefix};
use spillway_device_process::handover::LaunchedDevice;
use spillway_device_process::prefetch::choice::PrefetchChoice;
use spillway_device_process::storage::{self, StorageSettings};
use spillway_machine::filesystem::FileSystem;
use spillway_machine::interruption::Interruption;
use spillway_machine::memory::Memory;
use spillway_pager::config::PagerConfig;
use spillway_pager::fault::recording::RecordingConfig;
use spillway_pager::mappings::staying_kinds::SharedMemoryKinds;
use spillway_policy::prefetch::selection::PrefetchPolicy;
use spillway_policy::replacement::sampled::EagerEviction;
use spillway_report::kind::Kind;
use spillway_volume::settings::VolumeConfig;
use spillway_volume::settings::mapping::MappingPolicy;
use spillway_volume::settings::redundancy::Redundancy;

use super::recording::Recording;
use crate::arguments::run::{RunArguments, RunEagerEviction, RunHugePages, SharedMemoryChoice};

/// A run, decided.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// Its name: the process id.
    pub(crate) name: String,
    /// Where its pages go, without donors of its own.
    pub(crate) storage: StorageSettings,
    /// Donors of its own to start, if any.
    own_donors: Option<OwnDonorsPlan>,
    /// Directory of its entry, for its own donors' sockets.
    sockets: PathBuf,
    fault_threads: Option<usize>,
    /// Pages of shared anonymous memory leave.
    pub(crate) shared_memory: SharedMemoryKinds,
    /// Of the pager.
    prefetch: PrefetchPolicy,
    /// Of the pager.
    eager_eviction: EagerEviction,
    /// Of the pager.
    huge_pages: bool,
    recording: Option<RecordingConfig>,
    local_memory: bool,
}

impl Plan {
    /// Decides; fails with what to do if something is lacking.
    pub(crate) fn make(arguments: &RunArguments, registry: &Registry) -> Result<Self, Failure> {
        let name = std::process::id().to_string();
        let storage = &if arguments.local_memory {
            arguments.storage.clone()
        } else {
            cluster_donors::resolve(&arguments.storage, registry, Borrower::Program)?
        };
        let needs_own = storage.donors.is_empty() && !arguments.local_memory;
        let own_donors = if needs_own { arguments.own_donors } else { 0 };
        let redundancy = redundancy(storage, own_donors, arguments.local_memory)?;
        let memory = Memory::read().map_err(|error| Failure::during("/proc/meminfo", error))?;
        let slab_size_bytes = storage.slab_size.bytes;
        let mut size_bytes = match (arguments.lend, own_donors) {
            (Some(size), 0) => size.bytes,
            (None, 0) => memory.total_bytes,
            (lend, _) => own_size_bytes(lend.map(|size| size.bytes), memory, redundancy)?,
        };
        if redundancy.disk && arguments.lend.is_none() {
            size_bytes = size_bytes.min(disk_size_bytes(storage)?);
        }
        let size_bytes = (size_bytes / slab_size_bytes).max(1) * slab_size_bytes;
        let key_file = if own_donors > 0 { None } else { storage::key_file(storage.key.as_deref()) };
        let bandwidth_bytes_per_second = arguments.bandwidth.map(|rate| rate.bytes);
        let decided = StorageSettings::decide(storage, &device_name(&name), size_bytes, redundancy, key_file)?;
        Ok(Self {
            sockets: registry.entry_path(Kind::Run, &name),
            name,
            storage: StorageSettings { bandwidth_bytes_per_second, ..decided },
            own_donors: (own_donors > 0)
                .then(|| OwnDonorsPlan::new(own_donors, size_bytes, slab_size_bytes, redundancy)),
            fault_threads: arguments.fault_threads,
            shared_memory: arguments.shared_memory.map(SharedMemoryChoice::kinds).unwrap_or_default(),
            prefetch: arguments.prefetch.and_then(PrefetchChoice::policy).unwrap_or_default(),
            eager_eviction: arguments.eager_eviction.map(RunEagerEviction::policy).unwrap_or_default(),
            huge_pages: arguments.huge_pages == Some(RunHugePages::Yes),
            recording: arguments.recording.as_ref().map(Recording::of_pager),
            local_memory: arguments.local_memory,
        })
    }

    /// The memory group of the program.
    pub(crate) fn group_name(&self) -> String {
        format!("run-{}", self.name)
    }

    /// Starts the donors of its own, if it needs any, and says so.
    pub(crate) fn start_own_donors(&self, interruption: &Interruption) -> Result<OwnDonors, Failure> {
        let Some(plan) = &self.own_donors else { return Ok(OwnDonors::default()) };
        say!("spillway: {}", plan.note("program"));
        OwnDonors::start(plan, &donor_prefix(&self.name), &self.sockets, &|| Ok(interruption.check()?))
    }

    /// What the device's process is told.
    pub(crate) fn launched(&self, donors: &OwnDonors) -> LaunchedDevice {
        LaunchedDevice {
            name: device_name(&self.name),
            storage: self.storage.with_own(donors),
            own_donors: None,
            listen: Vec::new(),
            insecure_listen: false,
            connections: None,
            local_memory: self.local_memory,
            machine_swap: false,
            outlives_block_device: false,
            run: Some(self.name.clone()),
            prefetch: None,
        }
    }

    /// What the pager is told; its programs find it in `directory`, and `programs_fork` is as the library `preload`
    /// was chosen.
    pub(crate) fn paged(
        &self,
        donors: &OwnDonors,
        directory: PathBuf,
        preload: PathBuf,
        programs_fork: bool,
        budget_bytes: u64,
    ) -> Result<PagerConfig, Failure> {
        let volume = self.storage.with_own(donors).volume(&device_name(&self.name));
        Ok(PagerConfig {
            // A slab is asked for when the first page leaves to it.
            volume: VolumeConfig { mapping: MappingPolicy::OnDemand, ..volume },
            keep_awake: self.storage.keep_awake,
            budget_bytes,
            directory,
            token: token()?,
            preload,
            programs_fork,
            shared_memory: self.shared_memory,
            fault_threads: self.fault_threads,
            prefetch: self.prefetch,
            eager_eviction: self.eager_eviction,
            huge_pages: self.huge_pages,
            recording: self.recording,
            // As a run's own donors do, in whichever order they come: menders do not meet.
            mender: ["spillway", "doctor", "--mend", "--json"].map(OsString::from).to_vec(),
        })
    }
}

/// Donors of the run's own end only with it, so that copies elsewhere are the user's choice; others may vanish.
fn redundancy(storage: &StorageArguments, own_donors: usize, local_memory: bool) -> Result<Redundancy, Failure> {
    let redundancy = match storage.redundancy {
        None if own_donors > 0 || local_memory => Redundancy::NONE,
        _ => storage::redundancy(storage),
    };
    let donors = own_donors.max(storage.donors.len());
    if usize::from(redundancy.replicas) > donors.max(1) {
        return Err(Failure::Usage(format!(
            "{redundancy} needs {} donors and there are {donors}; name more with --donor",
            redundancy.replicas
        )));
    }
    Ok(redundancy)
}

/// What proves that a program was started in this run.
fn token() -> Result<u64, Failure> {
    let mut bytes = [0; size_of::<u64>()];
    // So few bytes come whole, or not at all (getrandom(2)).
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(|error| Failure::during("random numbers", error))?;
    Ok(u64::from_ne_bytes(bytes))
}

/// What the disk can copy, when the user did not say how much to borrow.
fn disk_size_bytes(storage: &StorageArguments) -> Result<u64, Failure> {
    let place = storage.backing.clone().unwrap_or_else(storage::backing_directory);
    let found = FileSystem::of(&place).map_err(|error| Failure::during(place.display(), error))?;
    // Half of what is left: the user did not offer the disk, and others write to it too.
    Ok((found.free_bytes / 2)
        .saturating_sub(spillway_device_process::limits::BACKING_RESERVE_BYTES)
        .max(spillway_control::limits::DEVICE_SIZE_BYTES_MIN))
}
