//! The command line of the benchmarks.

#![forbid(unsafe_code)]

use std::ffi::OsString;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};
use spillway_bench::demo::{self, DemoSettings, Scale, redis_job};
use spillway_bench::harness::HarnessError;
use spillway_bench::harness::interrupt::Interrupt;
use spillway_bench::harness::stock_subject::StockSubject;
use spillway_bench::harness::subject::Workshop;
use spillway_bench::machine::Machine;
use spillway_bench::recording::valgrind;
use spillway_bench::replay::traces;
use spillway_bench::result::StudyResult;
use spillway_bench::runner::{self, RunSettings};
use spillway_bench::size::Size;
use spillway_bench::studies::Study;
use spillway_bench::studies::guest::{page_in, trial::Trial};
use spillway_bench::studies::loopback;
use spillway_bench::studies::prefetching::{self, PrefetchingStudy};
use spillway_bench::studies::prefetching_live::paged::{self, Fabric, PagedRun, Policies};
use spillway_bench::studies::rdma;
use spillway_bench::studies::replacement::{self, ReplacementStudy};
use spillway_bench::table;
use spillway_bench::workloads::{self, WorkloadSettings};
use spillway_policy::replay::accesses::Accesses;
use spillway_policy::trace::Recorder;

/// The status of a program that Ctrl-C ended, as shells give it: 128 and the number of SIGINT.
const INTERRUPTED: u8 = 130;

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
    Run(RunArguments),
    /// Records which pages any program touches, under valgrind; `replay` reads it.
    Record(RecordArguments),
    /// Replays a recorded trace against every policy of replacement and prefetching, and prints tables.
    Replay(ReplayArguments),
    /// Shows real programs with part of their memory lent, in about three minutes. Needs root.
    Demo(DemoArguments),
    /// Redis under test as one program; part of the demo
    #[command(name = "redis-job", hide = true)]
    RedisJob(RedisArguments),
    /// The server of a raw exchange, on the connection that is its standard input; part of the study `pager`
    #[command(name = loopback::SERVER_COMMAND, hide = true)]
    ExchangeServer(ExchangeServerArguments),
    /// One program under a pager of this process; part of the study `prefetching-live`
    #[command(name = paged::COMMAND, hide = true)]
    Paged(PagedArguments),
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
struct PagedArguments {
    /// How pages travel
    #[arg(long)]
    fabric: String,
    /// Which pages come and leave
    #[arg(long)]
    policies: String,
    /// The donor
    #[arg(long)]
    donor: String,
    /// The cluster key
    #[arg(long)]
    key: PathBuf,
    /// Local memory
    #[arg(long)]
    local: Size,
    /// What may be lent at most
    #[arg(long)]
    lend: Size,
    /// Where the pager's statistics go
    #[arg(long)]
    stats: PathBuf,
    /// The program and its arguments
    #[arg(last = true, required = true)]
    program: Vec<OsString>,
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
struct RunArguments {
    /// Only this study; repeat it for more. A wrong name lists them.
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Small inputs and two rounds at most: to see that all works, not to measure.
    #[arg(long)]
    quick: bool,
    /// Rounds of each comparison [default: 2 to 5 by study, or 2 with --quick]
    #[arg(long)]
    rounds: Option<usize>,
    /// The product's binary [default: beside this one]
    #[arg(long, value_name = "FILE")]
    spillway: Option<PathBuf>,
    /// Where swap files go; must be on a disk [default: /var/tmp or another usual place]
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,
    /// Where results go
    #[arg(long, value_name = "DIR", default_value = "bench/results")]
    results: PathBuf,
    /// For `--only rdma`: the RDMA device of this host to use [default: soft-RoCE in a guest]
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
}

#[derive(Debug, clap::Args)]
struct RecordArguments {
    /// Where the trace goes.
    file: PathBuf,
    /// The program and its arguments, after `--`.
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

#[derive(Debug, clap::Args)]
struct ReplayArguments {
    /// The trace, from `workload --trace` or `record`.
    file: PathBuf,
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
    /// Record which pages it touches, with one thread, into this file; `replay` reads it.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["json", "threads"])]
    trace: Option<PathBuf>,
}

fn workload(arguments: &WorkloadArguments) -> Result<(), Box<dyn std::error::Error>> {
    let settings = WorkloadSettings { size: arguments.size, seed: arguments.seed, threads: arguments.threads };
    if let Some(file) = &arguments.trace {
        return trace(&arguments.name, &settings, file);
    }
    let report = workloads::run(&arguments.name, &settings)?;
    if arguments.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        println!("checksum {} {} {}", report.workload, arguments.size, report.checksum);
    }
    Ok(())
}

fn trace(name: &str, settings: &WorkloadSettings, file: &Path) -> Result<(), Box<dyn std::error::Error>> {
    println!("{}", write_trace(&traces::record(name, settings)?, file)?);
    Ok(())
}

/// Standard output is the recorded program's. An error also when that failed: a trace of what it did until then is
/// written all the same.
fn record(arguments: &RecordArguments) -> Result<(), Box<dyn std::error::Error>> {
    let (program, rest) = arguments.program.split_first().expect("the command line needs a program");
    let (recorder, status) = valgrind::record_here(program, rest, &Interrupt::on_signals()?)?;
    eprintln!("{}", write_trace(&recorder, &arguments.file)?);
    if status.success() { Ok(()) } else { Err(format!("{}: {status}", program.to_string_lossy()).into()) }
}

/// Gives what there is to tell of it.
fn write_trace(recorder: &Recorder, file: &Path) -> Result<String, Box<dyn std::error::Error>> {
    let mut target = BufWriter::new(File::create(file).map_err(|error| format!("{}: {error}", file.display()))?);
    recorder.write_to(&mut target)?;
    target.flush()?;
    Ok(format!("{} touches recorded, {} found no room", recorder.events(), recorder.lost()))
}

fn replay(arguments: &ReplayArguments) -> Result<(), Box<dyn std::error::Error>> {
    let named = |error: &dyn std::error::Error| format!("{}: {error}", arguments.file.display());
    let bytes = std::fs::read(&arguments.file).map_err(|error| named(&error))?;
    let accesses = traces::read(&bytes).map_err(|error| named(&error))?;
    for (study, measure) in [
        (&ReplacementStudy as &dyn Study, replacement::measure as fn(&Accesses, &str, &mut StudyResult)),
        (&PrefetchingStudy, prefetching::measure),
    ] {
        let mut result = StudyResult::new(study.name(), study.title(), false, Machine::here());
        measure(&accesses, "trace", &mut result);
        result.complete = true;
        println!("{}", table::document(&result));
    }
    Ok(())
}

fn run(arguments: RunArguments) -> Result<(), Box<dyn std::error::Error>> {
    let RunArguments { only, quick, rounds, spillway, directory, results, device } = arguments;
    let settings = RunSettings { only, quick, rounds, spillway, directory, results, rdma_device: device };
    Ok(runner::run(&settings, &Interrupt::on_signals()?)?)
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

fn paged_run(arguments: PagedArguments) -> Result<(), Box<dyn std::error::Error>> {
    let PagedArguments { fabric, policies, donor, key, local, lend, stats, program } = arguments;
    let fabric = Fabric::named(&fabric).ok_or_else(|| format!("there is no fabric '{fabric}'"))?;
    let policies = Policies::named(&policies).ok_or_else(|| format!("there are no policies '{policies}'"))?;
    let status = PagedRun { fabric, policies, donor, key, local, lend, stats, program }.run()?;
    if status.success() { Ok(()) } else { Err(format!("the program failed: {status}").into()) }
}

fn guest_trial(arguments: &GuestTrialArguments) -> Result<(), Box<dyn std::error::Error>> {
    let unknown = || format!("there is no subject '{}'", arguments.subject);
    let subject = StockSubject::named(&arguments.subject).ok_or_else(unknown)?;
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
        Command::Run(arguments) => run(arguments),
        Command::Record(arguments) => record(&arguments),
        Command::Replay(arguments) => replay(&arguments),
        Command::Demo(arguments) => demo(arguments),
        Command::RedisJob(arguments) => redis(&arguments),
        Command::ExchangeServer(arguments) => exchange_server(&arguments),
        Command::Paged(arguments) => paged_run(arguments),
        Command::GuestTrial(arguments) => guest_trial(&arguments),
        Command::RdmaTrial(arguments) => rdma_trial(&arguments),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("spillway-bench: {error}");
            let interrupted = error.downcast_ref::<HarnessError>().is_some_and(HarnessError::is_interrupt);
            if interrupted { ExitCode::from(INTERRUPTED) } else { ExitCode::FAILURE }
        }
    }
}
