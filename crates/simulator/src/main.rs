//! Runs simulated clusters, one for each seed, until a rule is broken or the seeds are over.

use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use spillway_simulator::cluster::Cluster;
use spillway_simulator::settings::Settings;
use spillway_simulator::slab_sizes::Layout;
use spillway_simulator::{eviction, experiment, membership, slab_sizes};
use spillway_volume::limits::PLACEMENT_CHOICES;

/// Simulates clusters under faults with the decision code of the product
#[derive(Parser)]
struct Arguments {
    /// The first seed; a run of the same seed is the same run
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// How many seeds, one after the other
    #[arg(long, default_value_t = 1)]
    runs: u64,
    /// Machines of a cluster; each lends and borrows
    #[arg(long)]
    machines: Option<u32>,
    /// Stop after so many seconds of real time
    #[arg(long)]
    seconds: Option<u64>,
    /// Instead of storms: containers on so many machines, and how evenly memory is used
    #[arg(long)]
    experiment: bool,
    /// Instead of storms: the membership of so many machines, alone
    #[arg(long, value_name = "MACHINES", conflicts_with = "experiment")]
    members: Option<usize>,
    /// With --members: a quarter of the machines is cut off at the end
    #[arg(long, requires = "members")]
    cut: bool,
    /// Instead of storms: containers on 16 machines, with slabs of so many MiB
    #[arg(long, value_name = "MIB", conflicts_with_all = ["experiment", "members"])]
    slab_mib: Option<u64>,
    /// Instead of storms: evictions of 10 slabs, of which so many others are asked about, while a fifth is busy
    #[arg(long, value_name = "MORE", conflicts_with_all = ["experiment", "members", "slab_mib"])]
    evictions: Option<usize>,
    /// Of an experiment: donors that are asked for each slab
    #[arg(long, default_value_t = PLACEMENT_CHOICES)]
    choices: usize,
}

/// One of the studies, if one is asked for.
fn study(arguments: &Arguments) -> bool {
    let seed = arguments.seed;
    if arguments.experiment {
        let machines = arguments.machines.unwrap_or(32);
        println!("{:#?}", experiment::run(machines, arguments.choices.max(1), seed));
    } else if let Some(machines) = arguments.members {
        println!("{}", membership::run(machines.max(2), seed, arguments.cut));
    } else if let Some(mib) = arguments.slab_mib {
        for layout in [Layout::Apart, Layout::Mixed] {
            println!("{layout:?}: {:#?}", slab_sizes::run(mib.next_power_of_two().clamp(1, 1024) << 20, layout, seed));
        }
    } else if let Some(more) = arguments.evictions {
        println!("formula: {:.3}", eviction::formula(eviction::WANTED, more, 0.8));
        println!("{:#?}", eviction::run(more, 20, 10_000, seed));
    } else {
        return false;
    }
    true
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let started = Instant::now();
    if study(&arguments) {
        println!("simulated in {:.1} s", started.elapsed().as_secs_f64());
        return ExitCode::SUCCESS;
    }
    for seed in arguments.seed..arguments.seed + arguments.runs {
        if arguments.seconds.is_some_and(|seconds| started.elapsed().as_secs() >= seconds) {
            println!("seeds {} to {seed} are well", arguments.seed);
            return ExitCode::SUCCESS;
        }
        let mut settings = Settings::storm(seed);
        settings.machines = arguments.machines.unwrap_or(settings.machines);
        let run = || Cluster::new(settings, started).run();
        match std::panic::catch_unwind(run) {
            Ok(report) => println!("seed {seed}: {report}"),
            Err(_) => {
                let machines = arguments.machines.map(|count| format!(" --machines {count}")).unwrap_or_default();
                eprintln!("seed {seed} breaks a rule; see it again with: spillway-simulator --seed {seed}{machines}");
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}
