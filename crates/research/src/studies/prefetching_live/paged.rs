//! One program under a pager of this process: what `spillway run --via pager` does, over a fabric of the study's choice
//! and with policies that no user can choose.
//!
//! It is a process of its own (`spillway-research paged`, hidden), since a pager traces programs for a moment and has
//! threads that would take part in whatever else is measured. The program is its only child.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use spillway_block::cpu_idle::KeepAwake;
use spillway_pager::config::PagerConfig;
use spillway_pager::mappings::staying_kinds::SharedMemoryKinds;
use spillway_pager::pager::Pager;
use spillway_pager::statistics::PagerStatistics;
use spillway_policy::prefetch::selection::PrefetchPolicy;
use spillway_policy::replacement::sampled::EagerEviction;
use spillway_sys::userfaultfd::access::Access;
use spillway_volume::settings::VolumeConfig;
use spillway_volume::settings::transport::TransportChoice;
use spillway_volume::settings::wrapper::QueuePairWrapper;

use super::modelled_rdma::ModelledRdma;
use spillway_bench::harness::HarnessError;
use spillway_bench::harness::process::bound;
use spillway_bench::harness::spillway::Transport;
use spillway_bench::harness::storage::PrivateDirectory;
use spillway_workloads::size::{MIB, Size};

/// The name of the hidden command.
pub const COMMAND: &str = "paged";

/// Bytes of a slab: small, as donors here make it while the program runs.
const SLAB_SIZE: Size = Size(8 * MIB);

/// How long to wait for the donor, which has said that it is there.
const DONOR_WAIT: Duration = Duration::from_secs(10);

/// How pages travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fabric {
    /// The donor's memory is mapped.
    SharedMemory,
    /// Over TCP on the loopback interface.
    Tcp,
    /// [`ModelledRdma`].
    Rdma,
}

impl Fabric {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::SharedMemory, Self::Tcp, Self::Rdma];

    /// As on the command line and in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::SharedMemory => "shm",
            Self::Tcp => "tcp",
            Self::Rdma => "rdma model",
        }
    }

    /// The one of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|fabric| fabric.name() == name)
    }

    /// How its donor is reached.
    pub fn transport(self) -> Transport {
        match self {
            Self::SharedMemory | Self::Rdma => Transport::SharedMemory,
            Self::Tcp => Transport::Tcp,
        }
    }

    fn choice(self) -> TransportChoice {
        match self {
            Self::SharedMemory | Self::Rdma => TransportChoice::Shm,
            Self::Tcp => TransportChoice::Tcp,
        }
    }

    fn wrapper(self) -> QueuePairWrapper {
        match self {
            Self::SharedMemory | Self::Tcp => QueuePairWrapper::default(),
            Self::Rdma => QueuePairWrapper::new(|below| Box::new(ModelledRdma::over(below))),
        }
    }
}

/// Which pages come along, and when those leave that were used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policies {
    /// Its name in tables and on the command line.
    pub name: &'static str,
    /// See [`PrefetchPolicy`].
    pub prefetch: PrefetchPolicy,
    /// See [`EagerEviction`].
    pub eager: EagerEviction,
}

impl Policies {
    /// No page comes along.
    pub const NONE: Self = Self::new("none", PrefetchPolicy::None, EagerEviction::Yes);
    /// The product's default.
    pub const OURS: Self = Self::new("ours", PrefetchPolicy::Streams, EagerEviction::Yes);
    /// The same without eager eviction.
    pub const OURS_NOT_EAGER: Self = Self::new("ours, not eager", PrefetchPolicy::Streams, EagerEviction::No);
    /// Leap's prefetcher with a history for each thread.
    pub const LEAP: Self = Self::new("leap by thread", PrefetchPolicy::Leap, EagerEviction::Yes);
    /// Leap's prefetcher as published.
    pub const LEAP_BY_PROCESS: Self = Self::new("leap by process", PrefetchPolicy::LeapByProcess, EagerEviction::Yes);

    /// Blocks that grow and shrink.
    pub const ELASTIC: Self = Self::new("elastic", PrefetchPolicy::Elastic, EagerEviction::Yes);

    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::NONE, Self::OURS, Self::OURS_NOT_EAGER, Self::LEAP, Self::LEAP_BY_PROCESS, Self::ELASTIC];

    const fn new(name: &'static str, prefetch: PrefetchPolicy, eager: EagerEviction) -> Self {
        Self { name, prefetch, eager }
    }

    /// Those of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|policies| policies.name == name)
    }
}

/// What is run, and over what.
#[derive(Clone, Debug)]
pub struct PagedRun {
    /// How pages travel.
    pub fabric: Fabric,
    /// Which pages come and leave.
    pub policies: Policies,
    /// The donor.
    pub donor: String,
    /// What proves to it that this process may borrow.
    pub key: PathBuf,
    /// Local memory of the program.
    pub local: Size,
    /// What may be lent at most.
    pub lend: Size,
    /// Where the pager's statistics go as JSON.
    pub stats: PathBuf,
    /// The program and its arguments.
    pub program: Vec<OsString>,
}

impl PagedRun {
    /// The command that does it in a process of its own; `own` is this program.
    pub fn command(&self, own: &Path) -> Command {
        let mut command = bound(own);
        command.args([COMMAND, "--fabric", self.fabric.name(), "--policies", self.policies.name]);
        command.args(["--donor", &self.donor, "--local", &self.local.to_string(), "--lend", &self.lend.to_string()]);
        command.arg("--key").arg(&self.key).arg("--stats").arg(&self.stats).arg("--").args(&self.program);
        command
    }

    /// Does it here; gives how the program ended.
    pub fn run(&self) -> Result<ExitStatus, HarnessError> {
        let directory = PrivateDirectory::on_disk(self.stats.parent())?;
        let access = Access::probe().map_err(HarnessError::system("looking for userfaultfd"))?;
        let preload = directory.path().join("libspillway.so");
        let library = if access.follows_forks { spillway_stub::LIBRARY } else { spillway_stub::LIBRARY_TELLING_FORKS };
        std::fs::write(&preload, library).map_err(HarnessError::system("writing the library for programs"))?;
        let config = self.config(directory.path(), preload, access.follows_forks)?;
        let mut pager = Pager::start(config).map_err(|error| HarnessError::Missing(error.to_string()))?;
        let (program, arguments) = self.program.split_first().expect("the command line needs a program");
        let mut command = Command::new(program);
        let ended = wait_for(command.args(arguments).envs(pager.environment()));
        let statistics = pager.statistics();
        pager.stop();
        self.tell(&statistics)?;
        ended
    }

    fn config(&self, directory: &Path, preload: PathBuf, programs_fork: bool) -> Result<PagerConfig, HarnessError> {
        let donor = self.donor.parse().map_err(|_| HarnessError::Missing(format!("'{}' is no donor", self.donor)))?;
        Ok(PagerConfig {
            volume: VolumeConfig {
                key_file: Some(self.key.clone()),
                transport: self.fabric.choice(),
                donor_wait: DONOR_WAIT,
                wrapper: self.fabric.wrapper(),
                ..VolumeConfig::new(&format!("bench-{}", std::process::id()), self.lend.0, SLAB_SIZE.0, vec![donor])
            },
            keep_awake: KeepAwake::default(),
            budget_bytes: self.local.0,
            directory: directory.to_owned(),
            token: u64::from(std::process::id()),
            preload,
            programs_fork,
            shared_memory: SharedMemoryKinds::None,
            fault_threads: None,
            prefetch: self.policies.prefetch,
            huge_pages: false,
            eager_eviction: self.policies.eager,
            recording: None,
            mender: Vec::new(),
        })
    }

    fn tell(&self, statistics: &PagerStatistics) -> Result<(), HarnessError> {
        let text = serde_json::to_string(statistics).map_err(HarnessError::system("writing statistics"))?;
        std::fs::write(&self.stats, text).map_err(HarnessError::system("writing statistics"))
    }
}

/// Starts `command` and waits for its end. Not by waiting for the child, before that has ended: the pager traces it for
/// a moment, and its stops would be taken for its end.
fn wait_for(command: &mut Command) -> Result<ExitStatus, HarnessError> {
    let failed = HarnessError::system::<std::io::Error>;
    let mut child = command.spawn().map_err(failed("starting the program"))?;
    let descriptor = pidfd_open(Pid::from_child(&child), PidfdFlags::empty());
    let descriptor = descriptor.map_err(HarnessError::system("waiting for the program"))?;
    while !matches!(poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], None), Ok(1..)) {}
    child.wait().map_err(failed("waiting for the program"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_back() {
        assert!(Fabric::ALL.into_iter().all(|fabric| Fabric::named(fabric.name()) == Some(fabric)));
        assert!(Policies::ALL.into_iter().all(|policies| Policies::named(policies.name) == Some(policies)));
        assert_eq!((Fabric::named("ib"), Policies::named("magic")), (None, None));
    }

    #[test]
    fn the_command_has_all_of_the_run() {
        let run = PagedRun {
            fabric: Fabric::Rdma,
            policies: Policies::LEAP,
            donor: "unix:/donor".to_owned(),
            key: "/key".into(),
            local: Size(16 * MIB),
            lend: Size(64 * MIB),
            stats: "/stats".into(),
            program: vec!["true".into(), "--really".into()],
        };
        let command = run.command(Path::new("/bench"));
        let text = command.get_args().map(|part| part.to_string_lossy()).collect::<Vec<_>>().join(" ");
        assert!(text.contains("paged --fabric rdma model --policies leap by thread --donor unix:/donor"), "{text}");
        assert!(text.ends_with("--key /key --stats /stats -- true --really"), "{text}");
    }
}
