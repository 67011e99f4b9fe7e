//! `spillway size --measure`: the program run by itself, and by `spillway run` with less and less local memory.

use std::fs::File;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use spillway_console::failure::{EXIT_DONE, Failure};
use spillway_console::say;
use spillway_machine::interruption::Interruption;
use spillway_machine::size::human;
use spillway_pager::limits::BUDGET_BYTES_MIN;
use spillway_report::format;
use spillway_report::run::{EndedRunReport, Ending};
use spillway_sys::callers_limits::CallersLimits;

use super::tell_all;
use super::trials::{SHARES_PERCENT, Trial, Trials};
use crate::arguments::sizing::SizingArguments;
use crate::run::program;

/// How often it is looked whether a run has ended: what its time is known by.
const LOOK_INTERVAL: Duration = Duration::from_millis(5);

/// Of what a run said that failed.
const LAST_LINES: usize = 10;

/// Runs the program; gives how it ended by itself.
pub(super) fn measure(arguments: &SizingArguments) -> Result<Ending, Failure> {
    let found = program::find(&arguments.program)?;
    let interruption = Interruption::watch().map_err(|error| Failure::during("watching for signals", error))?;
    let told = |text: &str| {
        if !arguments.output.json {
            say!("spillway: {text}");
        }
    };
    let runs = SHARES_PERCENT.len() + 1;
    told(&format!("run 1 of {runs}: the program by itself"));
    let mut alone = Command::new(found.file());
    alone.args(arguments.program.iter().skip(1)).stdin(Stdio::null());
    CallersLimits::before().give_back(&mut alone);
    let began = Instant::now();
    let ending = Ending::from(until_end(&mut alone, &interruption)?);
    let seconds_alone = began.elapsed().as_secs_f64();
    if ending != Ending::Exited(EXIT_DONE) {
        say!("spillway: the program failed by itself, so nothing was measured");
        return Ok(ending);
    }
    let directory = tempfile::tempdir().map_err(|error| Failure::during("a directory for statistics", error))?;
    let run = |index: usize, memory: &str, local: &str| {
        let least_left = seconds_alone * (SHARES_PERCENT.len() - index) as f64;
        told(&format!("run {} of {runs}: with {memory} local; {least_left:.0} s are left at least", index + 2));
        trial(arguments, local, directory.path(), &interruption)
    };
    let all = run(0, "all of its memory", "100%")?;
    let footprint_bytes = all.memory.footprint_bytes_max;
    let of_run = |percent: u32, bytes: u64, run: &EndedRunReport| {
        let (seconds, page_ins) = (run.wall_seconds, run.major_faults);
        Trial { percent, bytes, seconds, page_ins }
    };
    let mut trials = vec![of_run(SHARES_PERCENT[0], footprint_bytes, &all)];
    let mut left_out_percent = Vec::new();
    for (index, percent) in SHARES_PERCENT.into_iter().enumerate().skip(1) {
        let bytes = footprint_bytes * u64::from(percent) / 100;
        if bytes < BUDGET_BYTES_MIN {
            left_out_percent.push(percent);
            continue;
        }
        trials.push(of_run(percent, bytes, &run(index, &human(bytes), &bytes.to_string())?));
    }
    let trials = Trials { seconds_alone, footprint_bytes, trials, left_out_percent };
    tell_all(arguments, &trials, &trials.report(), &trials.told())?;
    Ok(ending)
}

/// Reads what a run says of itself.
fn read(statistics: &Path) -> Result<EndedRunReport, Failure> {
    let failed = |error: &dyn std::fmt::Display| Failure::during("what the run tells", error);
    let text = std::fs::read(statistics).map_err(|error| failed(&error))?;
    let report = serde_json::from_slice(&text).map_err(|error| failed(&error))?;
    format::read(&report).map_err(|error| failed(&error))
}

fn trial(
    arguments: &SizingArguments,
    local: &str,
    directory: &Path,
    interruption: &Interruption,
) -> Result<EndedRunReport, Failure> {
    let spillway = std::env::current_exe().map_err(|error| Failure::during("finding spillway itself", error))?;
    let (statistics, errors) = (directory.join("statistics.json"), directory.join("errors"));
    let mut command = Command::new(spillway);
    command.args(["run", "--local", local, "--stats"]).arg(&statistics);
    for donor in &arguments.donors {
        command.args(["--donor", &donor.to_string()]);
    }
    if let Some(redundancy) = &arguments.redundancy {
        command.args(["--redundancy", &redundancy.to_string()]);
    }
    if let Some(key) = &arguments.key {
        command.arg("--key").arg(key);
    }
    if let Some(via) = arguments.via.and_then(|via| via.to_possible_value()) {
        command.args(["--via", via.get_name()]);
    }
    let file = File::create(&errors).map_err(|error| Failure::during(errors.display(), error))?;
    command.arg("--").args(&arguments.program).stdin(Stdio::null()).stdout(Stdio::null()).stderr(file);
    CallersLimits::before().give_back(&mut command);
    let status = until_end(&mut command, interruption)?;
    if !status.success() {
        let said = std::fs::read(&errors).unwrap_or_default();
        let said = String::from_utf8_lossy(&said);
        let lines: Vec<&str> = said.lines().collect();
        let last = lines[lines.len().saturating_sub(LAST_LINES)..].join("\n");
        return Err(Failure::failed(format!("the run with {local} local failed ({status}); its last words:\n{last}")));
    }
    read(&statistics)
}

/// Runs it to its end. A signal that is meant for us is given on, and ends the measuring.
fn until_end(command: &mut Command, interruption: &Interruption) -> Result<ExitStatus, Failure> {
    let mut child = command.spawn().map_err(|error| Failure::during(command.get_program().display(), error))?;
    let mut given_on = None;
    loop {
        if let Some(status) = child.try_wait().map_err(|error| Failure::during("waiting for the program", error))? {
            return given_on.map_or(Ok(status), |signal| Err(Failure::Interrupted(signal)));
        }
        if let Some(signal) = interruption.signal().filter(|_| given_on.is_none()) {
            given_on = Some(signal);
            let number = rustix::process::Signal::from_named_raw(signal).unwrap_or(rustix::process::Signal::TERM);
            // It may end at the same moment, and has not been waited for.
            let _ = rustix::process::kill_process(rustix::process::Pid::from_child(&child), number);
        }
        std::thread::sleep(LOOK_INTERVAL);
    }
}
