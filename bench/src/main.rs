//! The command line of the benchmarks.

#![forbid(unsafe_code)]

use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};
use spillway_bench::demo::{self, DemoSettings, Scale, redis_job};
use spillway_bench::harness::interrupt::Interrupt;
use spillway_bench::harness::subject::Subject;
use spillway_bench::harness::subject::Workshop;
use spillway_bench::runner::{self, RunSettings};
use spillway_bench::studies;
use spillway_bench::studies::guest::{page_in, trial::Trial};
use spillway_bench::studies::loopback;
use spillway_bench::studies::rdma;
use spillway_workloads::WorkloadSettings;
use spillway_workloads::size::Size;

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
    /// Runs studies that compare Spillway with its peers, and writes results as JSON, tables and plots. Needs root.
    Run(RunSettings),
    /// Shows real programs with part of their memory lent, in about three minutes. Needs root.
    Demo(DemoArguments),
    /// Redis under test as one program; part of the demo
    #[command(name = "redis-job", hide = true)]
    RedisJob(RedisArguments),
    /// The server of a raw exchange, on the connection that is its standard input; part of the study `pager`
    #[command(name = loopback::SERVER_COMMAND, hide = true)]
    ExchangeServer(ExchangeServerArguments),
    /// One subject's turn of the study `guest`, in the guest
    #[command(name = "guest-trial", hide = true)]
    GuestTrial(GuestTrialArguments),
    /// One round of the study `rdma`, in the guest
    #[command(name = rdma::COMMAND, hide = true)]
    RdmaTrial(RdmaTrialArguments),
}

#[derive(Debug, clap::Args)]
struct DemoArguments {
    /// Small inputs: to see in half a minute that all works.
    #[arg(long)]
    quick: bool,
    /// Half a GB of text and more of everything: some ten minutes.
    #[arg(long, conflicts_with = "quick")]
    large: bool,
    /// Tiny inputs, of which nothing needs to be lent: for tests of the demo itself.
    #[arg(long, hide = true)]
    tiny: bool,
    /// Only this program; repeat it for more. A wrong name lists them.
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// The product's binary [default: beside this one]
    #[arg(long, value_name = "FILE")]
    spillway: Option<PathBuf>,
    /// Where files go; must be on a disk [default: /var/tmp or another usual place]
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
struct ExchangeServerArguments {
    /// Runs there
    #[arg(long)]
    cpu: Option<usize>,
}

#[derive(Debug, clap::Args)]
struct RedisArguments {
    /// Memory of the values
    #[arg(long)]
    size: Size,
    /// Of one value
    #[arg(long, default_value_t = redis_job::SMALL_VALUE)]
    value: Size,
    /// Where the saved file goes
    #[arg(long)]
    directory: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
struct GuestTrialArguments {
    /// Which device
    #[arg(long)]
    subject: String,
    /// The program's working set
    #[arg(long)]
    size: Size,
    /// How long requests are made at each depth
    #[arg(long)]
    milliseconds: u64,
    /// Where files go
    #[arg(long)]
    directory: PathBuf,
    /// The product's binary
    #[arg(long)]
    spillway: Option<PathBuf>,
    /// Take the life of a page-in apart instead
    #[arg(long)]
    page_in: bool,
}

#[derive(Debug, clap::Args)]
struct RdmaTrialArguments {
    /// Where files go
    #[arg(long)]
    directory: PathBuf,
    /// The product's binary
    #[arg(long)]
    spillway: PathBuf,
    /// Fewer pages
    #[arg(long)]
    quick: bool,
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
    let report = spillway_workloads::run(&arguments.name, &settings)?;
    if arguments.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        println!("checksum {} {} {}", report.workload, arguments.size, report.checksum);
    }
    Ok(())
}

fn demo(arguments: DemoArguments) -> Result<(), Box<dyn std::error::Error>> {
    let DemoArguments { quick, large, tiny, only, spillway, directory } = arguments;
    let scale = match (tiny, quick, large) {
        (true, ..) => Scale::TINY,
        (false, true, _) => Scale::QUICK,
        (false, false, true) => Scale::LARGE,
        (false, false, false) => Scale::FULL,
    };
    let settings = DemoSettings { scale, only, spillway, directory };
    Ok(demo::run(&settings, &Interrupt::on_signals()?)?)
}

fn redis(arguments: &RedisArguments) -> Result<(), Box<dyn std::error::Error>> {
    let settings = redis_job::settings(arguments.size, arguments.value, arguments.directory.as_deref());
    print!("{}", redis_job::run(&settings, &Interrupt::on_signals()?)?);
    Ok(())
}

fn exchange_server(arguments: &ExchangeServerArguments) -> Result<(), Box<dyn std::error::Error>> {
    let connection = std::io::stdin().as_fd().try_clone_to_owned()?;
    Ok(loopback::serve_scattered(connection.into(), arguments.cpu)?)
}

fn guest_trial(arguments: &GuestTrialArguments) -> Result<(), Box<dyn std::error::Error>> {
    let unknown = || format!("there is no subject '{}'", arguments.subject);
    let subject = Subject::named(&arguments.subject).ok_or_else(unknown)?;
    let shop = Workshop::open(arguments.spillway.as_deref(), Some(&arguments.directory), &Interrupt::on_signals()?)?;
    let trial = Trial { subject, size: arguments.size, time: Duration::from_millis(arguments.milliseconds) };
    let result = if arguments.page_in { page_in::run(&trial, &shop) } else { trial.run(&shop) };
    println!("{}", serde_json::to_string(&result)?);
    Ok(())
}

fn rdma_trial(arguments: &RdmaTrialArguments) -> Result<(), Box<dyn std::error::Error>> {
    let shop = Workshop::open(Some(&arguments.spillway), Some(&arguments.directory), &Interrupt::on_signals()?)?;
    let result = rdma::trial::Trial::in_guest(&shop, arguments.quick)?.run(&shop)?;
    println!("{}", serde_json::to_string(&result)?);
    Ok(())
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Workload(arguments) => workload(&arguments),
        Command::Run(settings) => {
            Interrupt::on_signals().and_then(|it| runner::run(&studies::ALL, &settings, &it)).map_err(Into::into)
        }
        Command::Demo(arguments) => demo(arguments),
        Command::RedisJob(arguments) => redis(&arguments),
        Command::ExchangeServer(arguments) => exchange_server(&arguments),
        Command::GuestTrial(arguments) => guest_trial(&arguments),
        Command::RdmaTrial(arguments) => rdma_trial(&arguments),
    };
    runner::status("spillway-bench", result)
}
