//! The command line of `spillway trace`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use spillway_console::output::OutputArguments;
use spillway_machine::size::{LocalBudget, Size};
use spillway_policy::replay::policies::ReplayPolicy;

use super::RunArguments;

/// `spillway trace`.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum TraceCommand {
    /// Run a program as `run` does, and record its page faults
    Record(Box<RecordArguments>),
    /// Say what each policy of prefetching would have made of a recorded trace
    Replay(ReplayArguments),
    /// Draw a recorded trace as SVG
    Plot(PlotArguments),
}

/// `spillway trace record`.
#[derive(Clone, Debug, Args)]
pub(crate) struct RecordArguments {
    /// The trace, a new file; compressed if its name ends with .gz [default: the program's name and .trace.gz]
    #[arg(long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Memory for the trace; faults for which it has no room are counted and lost
    #[arg(long, value_name = "SIZE", default_value = "64M")]
    pub(crate) limit: Size,
    /// Record also faults that wait for no page: first touches, first writes
    #[arg(long)]
    pub(crate) all_faults: bool,
    /// How to run the program; unless told otherwise no page is prefetched, as that hides faults
    #[command(flatten)]
    pub(crate) run: RunArguments,
}

/// `spillway trace replay`.
#[derive(Clone, Debug, Args)]
pub(crate) struct ReplayArguments {
    /// Policies, separated by commas: none, streams, read-ahead, leap, leap-published, linux-cluster, linux-vma,
    /// elastic [default: all]
    #[arg(long, value_name = "POLICY", value_delimiter = ',', value_parser = replay_policy)]
    pub(crate) policy: Vec<ReplayPolicy>,
    /// Local memory of the replay: a size, or a share of the pages in the trace
    #[arg(long, value_name = "SIZE|PERCENT", default_value = "50%", value_parser = replay_local)]
    pub(crate) local: LocalBudget,
    /// Output
    #[command(flatten)]
    pub(crate) output: OutputArguments,
    /// The trace
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
}

/// What a plot shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum PlotSubject {
    /// Which page was wanted when, in a colour for each thread
    #[default]
    Map,
    /// How far each fault was from the one before, as a cumulative distribution
    Distances,
}

/// `spillway trace plot`.
#[derive(Clone, Debug, Args)]
pub(crate) struct PlotArguments {
    /// The picture [default: standard output]
    #[arg(long, value_name = "SVG")]
    pub(crate) output: Option<PathBuf>,
    /// What it shows
    #[arg(long, value_name = "SUBJECT", value_enum, default_value_t)]
    pub(crate) of: PlotSubject,
    /// The trace
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
}

/// A replay has no time that a program could lose.
fn replay_local(text: &str) -> Result<LocalBudget, String> {
    match text.parse() {
        Ok(LocalBudget::Auto) => {
            Err("'auto' needs a program that runs; write a size or a share, such as 50%".to_owned())
        }
        Ok(local) => Ok(local),
        Err(error) => Err(error.to_string()),
    }
}

/// A policy by its name, or by that of the module that it is made of.
fn replay_policy(text: &str) -> Result<ReplayPolicy, String> {
    let name = if text == "read-around" { "streams" } else { text };
    let found = ReplayPolicy::ALL.into_iter().find(|policy| policy.name() == name);
    found.ok_or_else(|| {
        let names = ReplayPolicy::ALL.map(ReplayPolicy::name).join(", ");
        format!("'{text}' is no policy; write one of {names}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_are_found_by_name() {
        assert_eq!(replay_policy("linux-vma"), Ok(ReplayPolicy::LinuxVma));
        assert_eq!(replay_policy("read-around"), Ok(ReplayPolicy::Streams));
        assert!(replay_policy("magic").unwrap_err().contains("leap-published"));
    }
}
