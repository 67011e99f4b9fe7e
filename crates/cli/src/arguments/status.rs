//! `spillway status`.

use clap::Args;
use spillway_console::output::OutputArguments;

/// What is shown, and when.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct StatusArguments {
    /// First wait until every slab has all its copies, as after a donor was lost; shows how far that is
    #[arg(long)]
    pub(crate) wait: bool,
    #[command(flatten)]
    pub(crate) output: OutputArguments,
}
