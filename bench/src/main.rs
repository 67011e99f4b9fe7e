//! The command line of the benchmarks.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use spillway_bench::size::Size;
use spillway_bench::workloads::{self, WorkloadSettings};

/// Workloads and side-by-side comparisons for Spillway.
#[derive(Debug, Parser)]
#[command(name = "spillway-bench", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs one workload here, checks its result and prints its checksum.
    Workload(WorkloadArguments),
}

#[derive(Debug, clap::Args)]
struct WorkloadArguments {
    /// Which one; a wrong name lists them.
    name: String,
    /// Its working set.
    #[arg(long, default_value = "256M")]
    size: Size,
    /// Fixes the input and the checksum.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Threads that work at once.
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Print times, and microseconds per page of each part, as JSON.
    #[arg(long)]
    json: bool,
}

fn workload(arguments: &WorkloadArguments) -> Result<(), Box<dyn std::error::Error>> {
    let settings = WorkloadSettings { size: arguments.size, seed: arguments.seed, threads: arguments.threads };
    let report = workloads::run(&arguments.name, &settings)?;
    if arguments.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        println!("checksum {} {} {}", report.workload, arguments.size, report.checksum);
    }
    Ok(())
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Workload(arguments) => workload(&arguments),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("spillway-bench: {error}");
            ExitCode::FAILURE
        }
    }
}
