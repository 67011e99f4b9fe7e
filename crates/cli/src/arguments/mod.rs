//! The command line: every subcommand and option, with the help that users read.
//!
//! Values are checked here, so that a mistake ends with status 2 before anything is touched.

pub(crate) mod key;
pub(crate) mod run;
pub(crate) mod setup;
pub(crate) mod sizing;
pub(crate) mod status;
pub(crate) mod trace;
mod values;
mod variables;

use std::path::PathBuf;

use clap::{ArgMatches, Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use spillway_console::output::OutputArguments;
use spillway_console::say;
use spillway_control::sandbox::SandboxChoice;
use spillway_control::storage_arguments::{StorageArguments, slab_size};
use spillway_device_process::prefetch::choice::PrefetchChoice;
use spillway_fabric::address::DonorAddress;
use spillway_frontend::nbd::listener::NbdAddress;
use spillway_machine::limits::SWAP_PRIORITY_MAX;
use spillway_machine::size::Size;
use spillway_observe::top::arguments::TopArguments;

use self::key::KeyCommand;
use self::run::{BecomeArguments, RunArguments};
use self::setup::{SetupArguments, UninstallCheckArguments};
use self::sizing::SizingArguments;
use self::status::StatusArguments;
use self::trace::TraceCommand;
use self::values::{connections, device_size};
use crate::machine_weight::MachineWeight;

/// Lets programs use the idle memory of other machines.
#[derive(Debug, Parser)]
#[command(name = "spillway", version, subcommand_required = true, arg_required_else_help = true)]
pub(crate) struct Arguments {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
    /// The user wants JSON, also of a failure.
    #[arg(skip)]
    pub(crate) wants_json: bool,
}

impl Arguments {
    /// What the user typed; options that the help no longer has are named with what takes their place.
    pub(crate) fn read() -> Self {
        let mut command = Self::command();
        let matches = command.get_matches_mut();
        for warning in variables::warnings(&command, &matches) {
            say!("spillway: {warning}");
        }
        let arguments = Self::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
        Self { wants_json: wants_json(&matches), ..arguments }
    }
}

/// Whether `--json` was given, to whatever subcommand has it.
fn wants_json(matches: &ArgMatches) -> bool {
    matches.try_get_one("json").is_ok_and(|given| given == Some(&true))
        || matches.subcommand().is_some_and(|(_, matches)| wants_json(matches))
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Set this machine up to lend memory, to borrow some, or both: asks three questions, writes the configuration and
    /// starts the service
    Setup(SetupArguments),
    /// Run an unmodified program with a local memory budget; the rest of its memory lives with donors
    Run(RunArguments),
    /// A swap device for the whole machine, made of remote memory
    #[command(subcommand)]
    Swap(SwapCommand),
    /// A plain block device made of remote memory, for file systems and other tools
    #[command(subcommand)]
    Device(DeviceCommand),
    /// Lend this machine's idle memory
    Donate(DonateArguments),
    /// Show every device, donor and run on this machine
    Status(StatusArguments),
    /// Show devices, runs and donors live: pages, latency, and what is degraded
    Top(TopArguments),
    /// Say how much memory a program needs, and what less of it costs
    Size(SizingArguments),
    /// Record page faults of programs, replay them against policies of prefetching, and plot them
    #[command(subcommand)]
    Trace(TraceCommand),
    /// Show the machines of the cluster that this machine's agent belongs to: what each lends and uses
    Cluster(OutputArguments),
    /// Empty a donor: its borrowers move their pages elsewhere, and it lends nothing any more
    Drain(DrainArguments),
    /// Make cluster keys, tell them apart, and move a cluster from one to the next without a restart
    #[command(subcommand)]
    Key(KeyCommand),
    /// Say what this kernel and user can do, and the command that mends what is missing
    Doctor(DoctorArguments),
    /// Say what of Spillway is in use or left on this machine, each with the command that ends it; fails if there is
    /// something
    UninstallCheck(UninstallCheckArguments),
    /// The long-running daemon, as its configuration says
    Agent(AgentArguments),
    /// The background process of a device
    #[command(name = "serve-device", hide = true)]
    ServeDevice(ServeArguments),
    /// Prefetches from a swap device of the machine
    #[command(name = "prefetch-swap", hide = true)]
    PrefetchSwap(PrefetchArguments),
    /// Writes completions and manual pages below a directory that becomes /usr/share
    #[command(name = "generate-files", hide = true)]
    GenerateFiles(GenerateArguments),
    /// Becomes the program of `run`, inside its memory group
    #[command(name = "become-program", hide = true)]
    BecomeProgram(BecomeArguments),
    /// Says which signals came to the process group of `run`
    #[command(name = "witness-signals", hide = true)]
    WitnessSignals,
}

/// `spillway swap`.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum SwapCommand {
    /// Start a device and swap to it
    On(SwapOnArguments),
    /// Bring every page back and stop; says what is lacking and changes nothing if memory does not suffice
    Off(NameArguments),
    /// Show the swap devices
    Status(OutputArguments),
    /// Use another donor too; swapping goes on meanwhile
    AddDonor(AddDonorArguments),
    /// Bring everything away from a donor, then use it no more; swapping goes on meanwhile
    RemoveDonor(RemoveDonorArguments),
}

/// `spillway device`.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum DeviceCommand {
    /// Start a block device and print its path
    On(DeviceOnArguments),
    /// Stop a block device and give its memory back
    Off(NameArguments),
    /// Show the block devices
    Status(OutputArguments),
    /// Use another donor too; the device or run goes on meanwhile
    AddDonor(AddDonorArguments),
    /// Bring everything away from a donor, then use it no more; the device or run goes on meanwhile
    RemoveDonor(RemoveDonorArguments),
}

/// `spillway swap add-donor` and `spillway device add-donor`.
#[derive(Clone, Debug, Args)]
pub(crate) struct AddDonorArguments {
    /// Name of the device; of `device add-donor` also of a run
    pub(crate) device: String,
    /// The donor: HOST:PORT or unix:/PATH
    pub(crate) address: DonorAddress,
    /// Output
    #[command(flatten)]
    pub(crate) output: OutputArguments,
}

/// `spillway swap remove-donor` and `spillway device remove-donor`.
#[derive(Clone, Debug, Args)]
pub(crate) struct RemoveDonorArguments {
    /// Name of the device; of `device remove-donor` also of a run
    pub(crate) device: String,
    /// The donor, as `status` shows its address
    pub(crate) address: DonorAddress,
    /// Output
    #[command(flatten)]
    pub(crate) output: OutputArguments,
}

/// `spillway swap on`.
#[derive(Clone, Debug, Args)]
pub(crate) struct SwapOnArguments {
    /// Name of the device
    #[arg(long, default_value = "swap")]
    pub(crate) name: String,
    /// The device
    #[command(flatten)]
    pub(crate) device: NewDeviceArguments,
    /// Swap priority [default: above every area that is on]
    #[arg(long, value_parser = clap::value_parser!(i32).range(0..=i64::from(SWAP_PRIORITY_MAX)))]
    pub(crate) priority: Option<i32>,
    /// Which pages come before programs fault on them; over swap, all but kernel set vm.page-cluster to 0 meanwhile
    /// [default: kernel over swap, streams with --via pager]
    #[arg(long, value_enum, value_name = "POLICY", default_value_t, hide_default_value = true)]
    pub(crate) prefetch: PrefetchChoice,
    /// Prefetch for the processes in this memory cgroup, given by its directory; repeat it for more [default: for all]
    #[arg(long = "prefetch-cgroup", value_name = "DIRECTORY")]
    pub(crate) prefetch_cgroups: Vec<PathBuf>,
    /// Prefetch for the processes of this name, present and future; repeat it for more [default: for all]
    #[arg(long = "prefetch-process", value_name = "NAME")]
    pub(crate) prefetch_processes: Vec<String>,
}

/// `spillway device on`.
#[derive(Clone, Debug, Args)]
pub(crate) struct DeviceOnArguments {
    /// Name of the device
    #[arg(long, default_value = "device")]
    pub(crate) name: String,
    /// The device
    #[command(flatten)]
    pub(crate) device: NewDeviceArguments,
    /// Whom it serves
    #[command(flatten)]
    pub(crate) serving: ServingArguments,
}

/// Clients of a device that is no block device of this machine.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct ServingArguments {
    /// Instead of a block device, serve NBD clients (qemu, nbdcopy, nbd-client) at unix:/PATH or HOST:PORT; repeat it
    /// for more
    #[arg(long, value_name = "ADDRESS", conflicts_with = "frontend")]
    pub(crate) listen: Vec<NbdAddress>,
    /// Listen where other machines can connect, though any client that connects can read and write everything
    #[arg(long, requires = "listen")]
    pub(crate) insecure_listen: bool,
    /// NBD clients at a time; each takes 8 MiB of locked memory [default: 8]
    #[arg(long, value_name = "COUNT", requires = "listen", value_parser = connections)]
    pub(crate) connections: Option<usize>,
}

/// What `swap on` and `device on` have in common.
#[derive(Clone, Debug, Args)]
pub(crate) struct NewDeviceArguments {
    /// Size of the device
    #[arg(long, value_name = "SIZE", value_parser = device_size)]
    pub(crate) size: Size,
    /// Where pages go
    #[command(flatten)]
    pub(crate) storage: StorageArguments,
    /// Serve from this machine's own memory, without donors: the yardstick for measurements
    #[arg(long, hide = true)]
    pub(crate) local_memory: bool,
    /// Output
    #[command(flatten)]
    pub(crate) output: OutputArguments,
}

/// Names one device, for `off`.
#[derive(Clone, Debug, Args)]
pub(crate) struct NameArguments {
    /// Name of the device; may be left out when there is only one
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// Output
    #[command(flatten)]
    pub(crate) output: OutputArguments,
}

/// `spillway donate`.
#[derive(Clone, Debug, Args)]
pub(crate) struct DonateArguments {
    /// Name of this donor in `status`
    #[arg(long, default_value = "donor")]
    pub(crate) name: String,
    /// Memory to lend at most [default: what is idle, beyond the headroom]
    #[arg(long, value_name = "SIZE")]
    pub(crate) memory: Option<Size>,
    /// Memory kept free for local applications [default: an eighth of all]
    #[arg(long, value_name = "SIZE")]
    pub(crate) headroom: Option<Size>,
    /// Where to listen: HOST:PORT (port 0 takes a free one) or unix:/PATH; repeat it for more [default: 127.0.0.1:7070]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) listen: Vec<String>,
    /// The cluster key, or 'none' [default: /etc/spillway/cluster.key, made on first use by root; without root
    /// ~/.config/spillway/cluster.key if it exists]
    #[arg(long, value_name = "FILE")]
    pub(crate) key: Option<PathBuf>,
    /// Unit of lending, a power of two
    #[arg(long, value_name = "SIZE", value_parser = slab_size, default_value = "32M")]
    pub(crate) slab_size: Size,
    /// Memory to lend at most to all devices and runs of one machine [default: all, until others need their share]
    #[arg(long, value_name = "SIZE")]
    pub(crate) machine_limit: Option<Size>,
    /// A machine's share of the bandwidth over TCP, in relation to others; repeat it for more [default: 1 for each]
    #[arg(long = "weight", value_name = "MACHINE=N")]
    pub(crate) weights: Vec<MachineWeight>,
    /// The zone of this machine: further copies of a page go to other zones
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    pub(crate) zone: String,
    /// The rack of this machine, inside its zone: further copies go to other racks
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    pub(crate) rack: String,
    /// Whether the process gives up other files, programs, system calls and rights: auto (as far as the kernel can), on
    /// (or it does not start), or off
    #[arg(long, value_name = "WHEN", default_value_t)]
    pub(crate) sandbox: SandboxChoice,
    /// Output
    #[command(flatten)]
    pub(crate) output: OutputArguments,
    /// Ends when standard input does and nothing is lent any more
    #[arg(long, hide = true)]
    pub(crate) owned: bool,
}

/// `spillway drain`.
#[derive(Clone, Debug, Args)]
pub(crate) struct DrainArguments {
    /// A machine of the cluster: its name, its address or the beginning of its identity [default: this machine]
    pub(crate) machine: Option<String>,
    /// Have it lend again
    #[arg(long)]
    pub(crate) undo: bool,
    /// The cluster key, or 'none' [default: that of this machine's agent]
    #[arg(long, value_name = "FILE")]
    pub(crate) key: Option<PathBuf>,
    /// Output
    #[command(flatten)]
    pub(crate) output: OutputArguments,
}

/// `spillway doctor`.
#[derive(Clone, Debug, Args)]
pub(crate) struct DoctorArguments {
    /// Remove what dead runs left behind
    #[arg(long)]
    pub(crate) mend: bool,
    /// Begin when a line comes on standard input, and not at all at its end
    #[arg(long, hide = true)]
    pub(crate) on_order: bool,
    /// Output
    #[command(flatten)]
    pub(crate) output: OutputArguments,
}

/// `spillway agent`.
#[derive(Clone, Debug, Args)]
pub(crate) struct AgentArguments {
    /// The configuration; files in the directory `spillway.d` beside it are read too
    #[arg(long, value_name = "FILE", default_value = "/etc/spillway/spillway.toml")]
    pub(crate) config: PathBuf,
    /// Only check the configuration
    #[arg(long)]
    pub(crate) check: bool,
}

/// The hidden command of a device's process; what the launcher has checked comes as JSON.
#[derive(Clone, Debug, Args)]
pub(crate) struct ServeArguments {
    /// A `LaunchedDevice`
    pub(crate) launched: String,
    /// A `KeeperHandover`, for the process that serves; without it this is the keeper
    #[arg(long)]
    pub(crate) kept: Option<String>,
}

/// The hidden command that prefetches from a swap device; for its keeper.
#[derive(Clone, Debug, Args)]
pub(crate) struct PrefetchArguments {
    /// A `PrefetchPlan`
    pub(crate) plan: String,
    /// The device's entry
    pub(crate) entry: PathBuf,
}

/// The hidden command that makes files of a package.
#[derive(Clone, Debug, Args)]
pub(crate) struct GenerateArguments {
    /// Where
    pub(crate) share: PathBuf,
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use spillway_machine::size::LocalBudget;

    use super::run::Via;
    use super::*;
    use crate::limits;

    /// What a user can be asked to learn.
    const OPTIONS_MAX: usize = 70;

    fn parse(line: &str) -> Result<Command, clap::Error> {
        Arguments::try_parse_from(line.split(' ')).map(|arguments| arguments.command)
    }

    #[test]
    fn the_definition_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn a_document_tells_of_every_option() {
        let documents = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
        let folders = [documents.join("decisions"), documents].map(|folder| std::fs::read_dir(folder).unwrap());
        let files = folders.into_iter().flatten().map(|entry| entry.unwrap().path()).filter(|path| path.is_file());
        let text: String = files.map(|file| std::fs::read_to_string(file).unwrap()).collect();
        let (mut commands, mut known) = (vec![Arguments::command()], HashSet::new());
        while let Some(command) = commands.pop() {
            for option in command.get_arguments().filter(|option| !option.is_hide_set()) {
                let Some(name) = option.get_long() else { continue };
                let ends = |rest: &str| !rest.starts_with(|next: char| next.is_alphanumeric() || next == '-');
                let is_told = text.split(&format!("--{name}")).skip(1).any(ends);
                assert!(is_told, "no document tells of --{name} of {}", command.get_name());
                known.insert((name.to_owned(), option.get_help().map(ToString::to_string)));
            }
            commands.extend(command.get_subcommands().filter(|command| !command.is_hide_set()).cloned());
        }
        // An option that several commands share, with the same words, is learned once.
        assert!((60..=OPTIONS_MAX).contains(&known.len()), "{} options: {known:#?}", known.len());
    }

    #[test]
    fn run_takes_the_options_of_the_manual() {
        let line = "spillway run --local 25% --via swap --donor a:1 --donor unix:/x --redundancy replicas=2 \
                    --stats s.json --lend 1G -- prog --local 3";
        let Command::Run(run) = parse(line).unwrap() else { panic!("not run") };
        assert_eq!(run.local, LocalBudget::Percent(25.0));
        assert_eq!(run.storage.donors.len(), 2);
        assert_eq!(run.storage.redundancy, Some("replicas=2".parse().unwrap()));
        assert_eq!(run.program, ["prog", "--local", "3"]);
    }

    #[test]
    fn run_has_defaults_and_needs_a_program() {
        for line in ["run --local 50% sort --parallel 2 -- x", "run --local 50% -- sort --parallel 2 -- x"] {
            let Command::Run(run) = parse(&format!("spillway {line}")).unwrap() else { panic!("not run") };
            assert_eq!(run.program, ["sort", "--parallel", "2", "--", "x"], "{line}");
        }
        assert!(parse("spillway run --lokal 50% sort").is_err(), "an option that does not exist is no program");
        let Command::Run(run) = parse("spillway run -- true").unwrap() else { panic!("not run") };
        assert_eq!((run.local, run.own_donors, run.via), (LocalBudget::Percent(50.0), 3, Via::Auto));
        assert_eq!(run.storage.slab_size.bytes, limits::SLAB_SIZE_BYTES_DEFAULT);
        assert!(parse("spillway run").is_err());
        assert!(parse("spillway run --local 50%").is_err());
    }

    #[test]
    fn nonsense_is_named_with_an_example() {
        for (line, expected) in [
            ("spillway run --local many -- true", "512M"),
            ("spillway run --local 0% -- true", "50%"),
            ("spillway run --local auto --slowdown much -- true", "such as 5%"),
            ("spillway size", "--pid"),
            ("spillway size --pid 1 --page-in-us 0", "from 0.1 to"),
            ("spillway trace replay --local auto x.gz", "such as 50%"),
            ("spillway run --own-donors 0 -- true", "from 1 to"),
            ("spillway run --fault-threads 9 -- true", "from 1 to"),
            ("spillway run --prefetch magic -- true", "streams"),
            ("spillway run --lend 8K -- true", "such as 2G"),
            ("spillway run --local 1 -- true", "1M or 1G"),
            ("spillway device on --size huge --donor a:1", "512M"),
            ("spillway device on --size 1M --donor a:1", "from 16 MiB"),
            ("spillway device on --size 1G --donor nowhere", "HOST:PORT"),
            ("spillway device on --size 1G --slab-size 3M --donor a:1", "power of two"),
            ("spillway device on --size 1G --redundancy raid --donor a:1", "replicas=N"),
            ("spillway device on --size 1G --mapping luck --donor a:1", "activity"),
            ("spillway device on --size 1G --frontend floppy --donor a:1", "loop-fuse"),
            ("spillway device on --size 1G --listen here --donor a:1", "unix:/PATH"),
            ("spillway device on --size 1G --listen unix:/x --frontend nbd --donor a:1", "--frontend"),
            ("spillway device on --size 1G --insecure-listen --donor a:1", "--listen"),
            ("spillway device on --size 1G --listen unix:/x --connections 0 --donor a:1", "from 1 to 64"),
            ("spillway donate --memory=-5", "--memory"),
            ("spillway swap on --size 1G --priority 40000 --donor a:1", "32767"),
            ("spillway swap on --size 1G --prefetch magic --donor a:1", "streams"),
            ("spillway top --interval 0", "from 0.1 to 3600"),
            ("spillway top --interval often", "such as 0.5"),
        ] {
            let error = parse(line).unwrap_err();
            assert_eq!(error.exit_code(), 2, "{line}");
            assert!(error.to_string().contains(expected), "{line}: {error}");
        }
    }

    #[test]
    fn hidden_commands_are_not_in_the_help() {
        let help = Arguments::command().render_long_help().to_string();
        assert!(
            help.contains("doctor")
                && !help.contains("serve-device")
                && !help.contains("prefetch-swap")
                && !help.contains("generate-files")
                && !help.contains("become-program")
        );
    }
}
