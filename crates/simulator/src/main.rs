//! Runs simulated clusters, one for each seed, until a rule is broken or the seeds are over.

use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use spillway_simulator::cluster::Cluster;
use spillway_simulator::membership;
use spillway_simulator::settings::Settings;

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
    /// Instead of storms: the membership of so many machines, alone
    #[arg(long, value_name = "MACHINES")]
    members: Option<usize>,
    /// With --members: a quarter of the machines is cut off at the end
    #[arg(long, requires = "members")]
    cut: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let started = Instant::now();
    if let Some(machines) = arguments.members {
        println!("{}", membership::run(machines.max(2), arguments.seed, arguments.cut));
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
