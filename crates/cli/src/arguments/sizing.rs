//! The command line of `spillway size`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;
use spillway_console::output::OutputArguments;
use spillway_fabric::address::DonorAddress;
use spillway_volume::settings::redundancy::Redundancy;

use super::run::Via;

/// `spillway size`.
#[derive(Clone, Debug, Args)]
#[command(group = clap::ArgGroup::new("subject").required(true).args(["pid", "cgroup", "trace", "program"]))]
pub(crate) struct SizingArguments {
    /// A process that runs, and its descendants
    #[arg(long, value_name = "PID")]
    pub(crate) pid: Option<u32>,
    /// A cgroup that runs: its directory
    #[arg(long, value_name = "PATH")]
    pub(crate) cgroup: Option<PathBuf>,
    /// A recorded trace, such as `trace record --all-faults` makes; its page faults in place of scans
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,
    /// With --trace: how long the program works with all memory local [default: as long as was recorded]
    #[arg(long, value_name = "SECONDS", hide = true, env = "SPILLWAY_WORK_SECONDS", value_parser = seconds)]
    pub(crate) work_seconds: Option<f64>,
    /// Run the program five times, by itself and with 100, 75, 50 and 25 % of its memory local, and say how long it
    /// took each time; nothing is predicted. --donor, --redundancy, --key and --via are as of `run`. Each run has an
    /// empty standard input, and the output is that of the first
    #[arg(long, requires = "program", conflicts_with_all = ["seconds", "page_in_us"])]
    pub(crate) measure: bool,
    /// A donor: HOST:PORT or unix:/PATH; repeat it for more
    #[arg(long = "donor", value_name = "ADDRESS", requires = "measure")]
    pub(crate) donors: Vec<DonorAddress>,
    /// Where copies live: disk, none, replicas=N or disk+replicas=N [default: disk; none with donors of `run`'s own]
    #[arg(long, value_name = "COPIES", requires = "measure")]
    pub(crate) redundancy: Option<Redundancy>,
    /// The cluster key, or 'none' [default: /etc/spillway/cluster.key, made on first use by root; without root
    /// ~/.config/spillway/cluster.key if it exists]
    #[arg(long, value_name = "FILE", requires = "measure")]
    pub(crate) key: Option<PathBuf>,
    /// How memory reaches the program
    #[arg(long, value_enum, requires = "measure")]
    pub(crate) via: Option<Via>,
    /// How long to look at most [default: until the program ends, or 30 with --pid and --cgroup]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) seconds: Option<f64>,
    /// What a page-in costs the program, in microseconds [default: 8, the pager with donors on the same machine]
    #[arg(long, value_name = "US", value_parser = microseconds)]
    pub(crate) page_in_us: Option<f64>,
    /// Draw the curve as SVG
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
    /// Output; with a program it goes to standard error, because standard output is the program's
    #[command(flatten)]
    pub(crate) output: OutputArguments,
    /// The program and its arguments; options of `size` end at the first word that is none, or at `--`
    #[arg(trailing_var_arg = true, value_name = "CMD")]
    pub(crate) program: Vec<OsString>,
}

fn seconds(text: &str) -> Result<f64, String> {
    within(text, 0.1, 86_400.0, "a time", "30")
}

fn microseconds(text: &str) -> Result<f64, String> {
    within(text, 0.1, 1e6, "what a page-in costs", "10")
}

fn within(text: &str, least: f64, most: f64, what: &str, example: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(number) if (least..=most).contains(&number) => Ok(number),
        _ => Err(format!("'{text}' is not {what}; write a number from {least} to {most}, such as {example}")),
    }
}
