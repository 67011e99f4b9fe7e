//! Runs simulated clusters, one for each seed, until a rule is broken or the seeds are over.

use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use spillway_simulator::cluster::Cluster;
use spillway_simulator::settings::Settings;
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
    /// Of an experiment: donors that are asked for each slab
    #[arg(long, default_value_t = PLACEMENT_CHOICES)]
    choices: usize,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let started = Instant::now();
    if arguments.experiment {
        let machines = arguments.machines.unwrap_or(32);
        println!("{:#?}", spillway_simulator::experiment::run(machines, arguments.choices.max(1), arguments.seed));
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
