//! The command line of `spillway key`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use spillway_console::output::OutputArguments;

/// What is done with keys.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum KeyCommand {
    /// Make a new random key in a file that only its owner reads
    New(NewKeyArguments),
    /// Show the names of the keys in a file: one that is used, and one that is accepted besides while the key changes
    ShowId(KeyFileArguments),
    /// Move this machine towards the next key: accept, use and finish, each on all machines before the next
    #[command(subcommand)]
    Rotate(RotateCommand),
}

/// The steps of a change of key.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum RotateCommand {
    /// Accept the next key besides the present one
    Accept(RotateArguments),
    /// Use the next key, and accept the former one; once all machines accept the next one
    Use(RotateArguments),
    /// Accept only the next key; once all machines use it
    Finish(RotateArguments),
}

/// `spillway key new`.
#[derive(Clone, Debug, Args)]
pub(crate) struct NewKeyArguments {
    /// The file, which must not exist
    pub(crate) file: PathBuf,
    /// Output
    #[command(flatten)]
    pub(crate) output: OutputArguments,
}

/// `spillway key show-id`.
#[derive(Clone, Debug, Args)]
pub(crate) struct KeyFileArguments {
    /// The key file [default: that of the cluster, /etc/spillway/cluster.key]
    pub(crate) file: Option<PathBuf>,
    /// Output
    #[command(flatten)]
    pub(crate) output: OutputArguments,
}

/// A step of `spillway key rotate`.
#[derive(Clone, Debug, Args)]
pub(crate) struct RotateArguments {
    /// A file with the next key, the same on every machine
    pub(crate) next: PathBuf,
    /// The cluster's key file, which is changed [default: /etc/spillway/cluster.key]
    #[arg(long, value_name = "FILE")]
    pub(crate) key: Option<PathBuf>,
    /// Output
    #[command(flatten)]
    pub(crate) output: OutputArguments,
}
