//! The command lines of `spillway setup` and `spillway uninstall-check`.

use std::path::PathBuf;

use clap::Args;
use spillway_console::output::OutputArguments;
use spillway_machine::size::LocalBudget;
use spillway_volume::settings::redundancy::Redundancy;

/// `spillway setup`. What is given here is not asked.
#[derive(Clone, Debug, Args)]
pub(crate) struct SetupArguments {
    /// Lend this much at most: a size, or a share of this machine's memory [default when asked: 50%]
    #[arg(long, value_name = "SIZE|PERCENT")]
    pub(crate) lend: Option<LocalBudget>,
    /// Borrow this much as swap: a size, or a share of this machine's memory [default when asked: 100%]
    #[arg(long, value_name = "SIZE|PERCENT")]
    pub(crate) borrow: Option<LocalBudget>,
    /// Another machine of the cluster: HOST or HOST:PORT; repeat it for more
    #[arg(long = "machine", value_name = "HOST[:PORT]")]
    pub(crate) machines: Vec<String>,
    /// The key that the machines share: a file copied from another one, '-' for its text on standard input, or 'new' on
    /// the first of them
    #[arg(long, value_name = "FILE|-|new")]
    pub(crate) key: Option<String>,
    /// Where copies live: disk, none, replicas=N or disk+replicas=N [default: disk; none with donors of `run`'s own]
    #[arg(long, value_name = "COPIES")]
    pub(crate) redundancy: Option<Redundancy>,
    /// The cluster's name, the same on every machine
    #[arg(long, value_name = "NAME", default_value = "spillway")]
    pub(crate) cluster: String,
    /// Ask nothing: do what the options say
    #[arg(long)]
    pub(crate) yes: bool,
    /// Say what would be done, and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Take the place of a file that was changed by hand; it is kept beside the new one
    #[arg(long)]
    pub(crate) replace: bool,
    /// Where the configuration lies; elsewhere than in the default place, no service is started
    #[arg(long, value_name = "DIRECTORY", default_value = "/etc/spillway")]
    pub(crate) directory: PathBuf,
}

/// `spillway uninstall-check`.
#[derive(Clone, Debug, Args)]
pub(crate) struct UninstallCheckArguments {
    /// Only what is in use: what must end before the package can go
    #[arg(long)]
    pub(crate) in_use: bool,
    /// Output
    #[command(flatten)]
    pub(crate) output: OutputArguments,
}
