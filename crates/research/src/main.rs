//! The command line of what is compared with the product.

#![forbid(unsafe_code)]

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use spillway_bench::harness::interrupt::Interrupt;
use spillway_bench::runner::{self, RunSettings};
use spillway_bench::table;
use spillway_research::cluster::slab_sizes::{self, Layout};
use spillway_research::cluster::{balance, eviction};
use spillway_research::replay::{self, Comparison};
use spillway_research::studies;
use spillway_research::studies::prefetching_live::paged::{self, Fabric, PagedRun, Policies};
use spillway_volume::limits::PLACEMENT_CHOICES;
use spillway_workloads::size::{GIB, MIB, Size};

/// Policies, papers and pagers to compare Spillway with.
#[derive(Debug, Parser)]
#[command(name = "spillway-research", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs experiments of papers and others, and writes results as JSON, tables and plots. Needs root.
    Run(RunSettings),
    /// Replays patterns, or traces that `spillway trace record` wrote, against every policy, and prints tables.
    Replay(ReplayArguments),
    /// Simulates an experiment with the memory of a whole cluster.
    Cluster(ClusterArguments),
    /// One program under a pager of this process; part of the study `prefetching-live`
    #[command(name = paged::COMMAND, hide = true)]
    Paged(PagedArguments),
}

#[derive(Debug, clap::Args)]
struct ReplayArguments {
    /// Only this comparison; repeat it for more.
    #[arg(long, value_enum, value_name = "NAME")]
    compare: Vec<Comparison>,
    /// Parts of the pages that are local, in per cent.
    #[arg(long, value_name = "PERCENT", value_delimiter = ',', default_values_t = [75, 50, 25], value_parser = clap::value_parser!(u32).range(1..=100))]
    local: Vec<u32>,
    /// Memory of each pattern.
    #[arg(long, default_value = "16M")]
    size: Size,
    /// The traces [default: patterns by rule].
    files: Vec<PathBuf>,
}

#[derive(Debug, clap::Args)]
struct ClusterArguments {
    /// Which one.
    #[arg(value_enum)]
    experiment: Experiment,
    /// Decides everything.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Of `balance`: machines.
    #[arg(long, default_value_t = 32)]
    machines: u32,
    /// Of `balance`: donors that are asked for each slab.
    #[arg(long, default_value_t = PLACEMENT_CHOICES)]
    choices: usize,
    /// Of `slab-size`: bytes of a slab.
    #[arg(long, default_value = "32M")]
    slab_size: Size,
    /// Of `eviction`: how many other slabs are asked about.
    #[arg(long, default_value_t = eviction::WANTED)]
    more: usize,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Experiment {
    /// Containers on many machines, and how evenly memory is used
    Balance,
    /// Containers on 16 machines, by the size of a slab
    SlabSize,
    /// Evictions of 10 slabs while a fifth is busy
    Eviction,
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

fn replay(arguments: &ReplayArguments) -> Result<(), Box<dyn std::error::Error>> {
    let traces = match arguments.files.as_slice() {
        [] => replay::patterns(arguments.size.pages()),
        files => files.iter().map(|file| replay::read(file)).collect::<Result<_, _>>()?,
    };
    let chosen = if arguments.compare.is_empty() { &Comparison::ALL[..] } else { &arguments.compare };
    for comparison in chosen {
        println!("{}", table::document(&comparison.run(&traces, &arguments.local)));
    }
    Ok(())
}

fn simulate(arguments: &ClusterArguments) {
    let ClusterArguments { experiment, seed, machines, choices, slab_size, more } = *arguments;
    match experiment {
        Experiment::Balance => println!("{:#?}", balance::run(machines, choices.max(1), seed)),
        Experiment::SlabSize => {
            let bytes = slab_size.0.next_power_of_two().clamp(MIB, GIB);
            for layout in [Layout::Apart, Layout::Mixed] {
                println!("{layout:?}: {:#?}", slab_sizes::run(bytes, layout, seed));
            }
        }
        Experiment::Eviction => {
            println!("formula: {:.3}", eviction::formula(eviction::WANTED, more, 0.8));
            println!("{:#?}", eviction::run(more, 20, 10_000, seed));
        }
    }
}

fn paged_run(arguments: PagedArguments) -> Result<(), Box<dyn std::error::Error>> {
    let PagedArguments { fabric, policies, donor, key, local, lend, stats, program } = arguments;
    let fabric = Fabric::named(&fabric).ok_or_else(|| format!("there is no fabric '{fabric}'"))?;
    let policies = Policies::named(&policies).ok_or_else(|| format!("there are no policies '{policies}'"))?;
    let status = PagedRun { fabric, policies, donor, key, local, lend, stats, program }.run()?;
    if status.success() { Ok(()) } else { Err(format!("the program failed: {status}").into()) }
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Run(settings) => {
            Interrupt::on_signals().and_then(|it| runner::run(&studies::ALL, &settings, &it)).map_err(Into::into)
        }
        Command::Replay(arguments) => replay(&arguments),
        Command::Cluster(arguments) => {
            simulate(&arguments);
            Ok(())
        }
        Command::Paged(arguments) => paged_run(arguments),
    };
    runner::status("spillway-research", result)
}
