//! The options of `spillway run`, and of what becomes the program.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use spillway_device_process::prefetch::choice::PrefetchChoice;
use spillway_machine::size::{LocalBudget, Size};
use spillway_pager::mappings::staying_kinds::SharedMemoryKinds;
use spillway_policy::replacement::sampled::EagerEviction;
use spillway_sys::callers_limits::CallersLimits;

use super::StorageArguments;
use super::values::{bandwidth, device_size, fault_threads, own_donors, slowdown};
use crate::limits;
use crate::run::recording::Recording;

/// How memory reaches the program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Via {
    /// The one that can be had and is faster on this kernel; says which and why
    #[default]
    Auto,
    /// A memory cgroup over a swap device; any program, needs root
    Swap,
    /// Page faults handled in user space; needs no root
    Pager,
}

/// Whether pages that streams have passed leave first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum RunEagerEviction {
    /// Most of them do
    Yes,
    /// They leave by chance, as others
    No,
}

impl RunEagerEviction {
    /// What the pager is told.
    pub(crate) fn policy(self) -> EagerEviction {
        match self {
            Self::Yes => EagerEviction::Yes,
            Self::No => EagerEviction::No,
        }
    }
}

/// Whether programs get huge pages back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum RunHugePages {
    /// They do, where the kernel would have given them huge pages
    Yes,
    /// Pages that came back stay small
    No,
}

/// Shared memory that the pager pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum SharedMemoryChoice {
    /// It stays local
    None,
    /// What programs map with MAP_SHARED and MAP_ANONYMOUS, and their forks with them
    Anonymous,
    /// That, and objects of memfd_create(2) while no descriptor of them is open anywhere
    Memfd,
}

impl SharedMemoryChoice {
    pub(crate) fn kinds(self) -> SharedMemoryKinds {
        match self {
            Self::None => SharedMemoryKinds::None,
            Self::Anonymous => SharedMemoryKinds::Anonymous,
            Self::Memfd => SharedMemoryKinds::Memfd,
        }
    }
}

/// `spillway run`.
#[derive(Clone, Debug, Args)]
pub(crate) struct RunArguments {
    /// Local memory: a size, a share of what the program uses as it grows, or auto (as little as keeps to --slowdown)
    #[arg(long, value_name = "SIZE|PERCENT|auto", default_value = "50%")]
    pub(crate) local: LocalBudget,
    /// With --local auto: how much of its time the program may lose to page-ins [default: 5%]
    #[arg(long, value_name = "PERCENT", value_parser = slowdown)]
    pub(crate) slowdown: Option<f64>,
    /// How memory reaches the program
    #[arg(long, value_enum, default_value_t)]
    pub(crate) via: Via,
    /// Where pages go
    #[command(flatten)]
    pub(crate) storage: StorageArguments,
    /// Memory to borrow at most [default: what this machine can lend, or as much as it has with --donor]
    #[arg(long, value_name = "SIZE", value_parser = device_size)]
    pub(crate) lend: Option<Size>,
    /// Page traffic at most, both directions together: bytes a second, such as 100M; at least 8M [default: no bound]
    #[arg(long, value_name = "RATE", value_parser = bandwidth)]
    pub(crate) bandwidth: Option<Size>,
    /// Donors to start on this machine when none is named
    #[arg(long, value_name = "COUNT", hide = true, env = "SPILLWAY_OWN_DONORS", default_value_t = limits::OWN_DONORS_DEFAULT, value_parser = own_donors)]
    pub(crate) own_donors: usize,
    /// Threads of the pager that answer page faults; each has a connection to every donor [default: by the number of
    /// CPUs]
    #[arg(long, value_name = "COUNT", hide = true, env = "SPILLWAY_FAULT_THREADS", value_parser = fault_threads)]
    pub(crate) fault_threads: Option<usize>,
    /// Which pages come before programs fault on them; over swap, all but kernel set vm.page-cluster to 0 meanwhile
    /// [default: kernel over swap, streams with --via pager]
    #[arg(long, value_name = "POLICY", value_enum)]
    pub(crate) prefetch: Option<PrefetchChoice>,
    /// Whether pages that came before the program asked for them, and that it has used, leave before others [default:
    /// yes, with --via pager]
    #[arg(long, value_name = "WHETHER", hide = true, env = "SPILLWAY_EAGER_EVICTION", value_enum)]
    pub(crate) eager_eviction: Option<RunEagerEviction>,
    /// Whether a program gets huge pages back that it lost to paging, once all their pages are there again [default:
    /// no, with --via pager]
    #[arg(long, value_name = "WHETHER", hide = true, env = "SPILLWAY_HUGE_PAGES", value_enum)]
    pub(crate) huge_pages: Option<RunHugePages>,
    /// An experiment: shared memory whose pages leave too; the kernel writes to such pages on its own behalf where a
    /// program uses devices in ways that the run cannot see, see docs/pager-programs.md [default: none]
    #[arg(long, value_name = "KIND", value_enum)]
    pub(crate) shared_memory: Option<SharedMemoryChoice>,
    /// Page to this machine's own memory, without donors: the yardstick for measurements
    #[arg(long, hide = true)]
    pub(crate) local_memory: bool,
    /// Write statistics as JSON to this file when the program ends
    #[arg(long, value_name = "FILE")]
    pub(crate) stats: Option<PathBuf>,
    /// Print a summary on standard error when the program ends
    #[arg(long)]
    pub(crate) summary: bool,
    /// What `trace record` wants recorded
    #[arg(skip)]
    pub(crate) recording: Option<Recording>,
    /// The program and its arguments; options of `run` end at the first word that is none, or at `--`
    #[arg(trailing_var_arg = true, required = true, value_name = "CMD")]
    pub(crate) program: Vec<OsString>,
}

/// The hidden command that becomes the program.
#[derive(Clone, Debug, Args)]
pub(crate) struct BecomeArguments {
    /// File to write the own process id to, which moves it into the memory group; repeat it for more
    #[arg(long)]
    pub(crate) procs_file: Vec<PathBuf>,
    /// NAME=VALUE for the program's environment
    #[arg(long)]
    pub(crate) set: Vec<OsString>,
    /// The program's limits (`ulimit`)
    #[arg(long)]
    pub(crate) limits: Option<CallersLimits>,
    /// The program's limit of a core file
    #[arg(long)]
    pub(crate) core_limit: Option<u64>,
    /// Which memory the program's core has
    #[arg(long)]
    pub(crate) core_filter: Option<u64>,
    /// Socket at which to hand over what tells of the program's system calls
    #[arg(long)]
    pub(crate) tells_calls: Option<PathBuf>,
    /// Of forks, too
    #[arg(long)]
    pub(crate) tells_forks: bool,
    /// Of what matters where pages of shared memory leave, too
    #[arg(long)]
    pub(crate) tells_shared_memory: bool,
    /// No huge pages
    #[arg(long)]
    pub(crate) small_pages: bool,
    /// The program's file
    #[arg(long)]
    pub(crate) file: PathBuf,
    /// The program as the user wrote it, and its arguments
    #[arg(last = true, required = true)]
    pub(crate) program: Vec<OsString>,
}
