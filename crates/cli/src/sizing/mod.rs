//! `spillway size`: how much memory a program needs, and what less of it costs.
//!
//! - [`members`] and [`scan`]: the processes, and their page tables; [`watching`]: scans from time to time.
//! - [`mod@finding`]: the curve in words and numbers; [`picture`]: drawn.
//! - [`measuring`]: the program run with parts of its memory; [`trials`]: what came of that.

mod finding;
mod measuring;
mod members;
mod picture;
mod scan;
mod trials;
mod watching;

use std::ffi::OsString;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use serde::Serialize;
use spillway_console::failure::{EXIT_DONE, Failure};
use spillway_console::output;
use spillway_console::output_file::OutputFile;
use spillway_machine::interruption::Interruption;
use spillway_policy::sizing::shards::{SAMPLED_PAGES_MAX, Shards};
use spillway_report::run::Ending;

use self::finding::{Finding, Source};
use self::members::Members;
use self::picture::Slowdowns;
use self::watching::watch;
use crate::arguments::sizing::SizingArguments;
use crate::limits::{SIZING_PAGE_IN_US, SIZING_SECONDS};
use crate::run::program::{self, Becoming, Program};
use crate::trace::loaded::Loaded;

/// How often it is looked whether the user wants it to end.
const INTERRUPTION_INTERVAL: Duration = Duration::from_millis(100);

/// Executes the command; gives how the program ended.
pub(crate) fn execute(arguments: &SizingArguments) -> Result<Ending, Failure> {
    if let Some(file) = &arguments.svg {
        // Before a long look, not after it.
        OutputFile::open(file).map_err(Failure::failed)?;
    }
    if let Some(file) = &arguments.trace {
        tell(arguments, &of_trace(file, arguments)?)?;
    } else if arguments.program.is_empty() {
        let members = match (&arguments.pid, &arguments.cgroup) {
            (Some(pid), _) => Members::Process(*pid),
            (None, Some(path)) => Members::Group(path.clone()),
            (None, None) => return Err(Failure::usage("name a program after `--`, or give --pid or --cgroup")),
        };
        tell(arguments, &of_processes(&members, arguments)?)?;
    } else if arguments.measure {
        return measuring::measure(arguments);
    } else {
        return of_program(&arguments.program, arguments);
    }
    Ok(Ending::Exited(EXIT_DONE))
}

fn cost_us(arguments: &SizingArguments) -> f64 {
    arguments.page_in_us.unwrap_or(SIZING_PAGE_IN_US)
}

fn of_trace(file: &Path, arguments: &SizingArguments) -> Result<Finding, Failure> {
    let loaded = Loaded::read(file)?;
    let mut shards = Shards::new(1.0, SAMPLED_PAGES_MAX);
    loaded.accesses.as_slice().iter().for_each(|access| shards.used(u64::from(access.page.0)));
    let Some(seconds) = loaded.overview.seconds else {
        return Err(Failure::during(file.display(), "it has no times; record one with `spillway trace record`"));
    };
    let time = Duration::from_secs_f64(seconds);
    let work = arguments.work_seconds.map_or(time, Duration::from_secs_f64);
    let source = Source::Trace { faults: shards.references(), part: shards.part() };
    Ok(Finding::new(shards.curve(work), source, time, work, cost_us(arguments), arguments.page_in_us.is_some()))
}

fn of_processes(members: &Members, arguments: &SizingArguments) -> Result<Finding, Failure> {
    members.check()?;
    let interruption = Interruption::watch().map_err(|error| Failure::during("watching for signals", error))?;
    let end = Instant::now() + Duration::from_secs_f64(arguments.seconds.unwrap_or(SIZING_SECONDS));
    let wait = |time: Duration| {
        let until = Instant::now() + time;
        loop {
            let now = Instant::now();
            if now >= end || interruption.signal().is_some() || members.now().iter().all(|one| !is_there(*one)) {
                return true;
            }
            if now >= until {
                return false;
            }
            std::thread::sleep(until.min(end).saturating_duration_since(now).min(INTERRUPTION_INTERVAL));
        }
    };
    finding(&watch(members, wait)?, arguments)
}

fn is_there(process: u32) -> bool {
    spillway_sys::process_stat::ProcessStat::of_process(process).is_ok_and(|stat| !stat.is_dead())
}

fn of_program(program: &[OsString], arguments: &SizingArguments) -> Result<Ending, Failure> {
    let interruption = Interruption::watch().map_err(|error| Failure::during("watching for signals", error))?;
    let found = program::find(program)?;
    let becoming = Becoming { has_small_pages: true, ..Becoming::default() };
    let started = Program::start(&found, &becoming, &interruption)?;
    let Some(process) = started.process() else { return started.ending() };
    let end = arguments.seconds.map(|seconds| Instant::now() + Duration::from_secs_f64(seconds));
    let mut is_over = false;
    let watched = watch(&Members::Process(process), |time| {
        let left = end.map_or(Duration::MAX, |end| end.saturating_duration_since(Instant::now()));
        is_over = started.wait(time.min(left));
        is_over || left <= time
    })?;
    // The program goes on when enough was seen of it.
    while !is_over {
        is_over = started.wait(INTERRUPTION_INTERVAL);
    }
    let ending = started.ending()?;
    tell(arguments, &finding(&watched, arguments)?)?;
    Ok(ending)
}

fn finding(watched: &watching::Watched, arguments: &SizingArguments) -> Result<Finding, Failure> {
    let looks = watched.estimator.looks();
    if looks == 0 {
        return Err(Failure::failed(
            "it did not run for long enough to be looked at; give it more work, or record it with `spillway trace record`",
        ));
    }
    let longest_window = watched.estimator.longest_window();
    let source = Source::Scans { looks, longest_window, huge_part: watched.huge_part };
    let curve = watched.estimator.curve();
    Ok(Finding::new(curve, source, watched.time, watched.work, cost_us(arguments), arguments.page_in_us.is_some()))
}

fn tell(arguments: &SizingArguments, finding: &Finding) -> Result<(), Failure> {
    tell_all(arguments, finding, &finding.report(), &finding.told())
}

/// Writes and draws what was found: as JSON, or as `told` with a plot.
fn tell_all(
    arguments: &SizingArguments,
    found: &dyn Slowdowns,
    report: &impl Serialize,
    told: &str,
) -> Result<(), Failure> {
    if let Some(file) = &arguments.svg {
        let picture = OutputFile::open(file).map_err(Failure::failed)?;
        let drawn = picture.fill(|target| target.write_all(picture::svg(found).as_bytes()));
        drawn.map_err(|error| Failure::during(file.display(), error))?;
    }
    let text = if arguments.output.json {
        serde_json::to_string_pretty(report).map_err(Failure::failed)? + "\n"
    } else {
        told.to_owned() + &picture::terminal(found)
    };
    if arguments.program.is_empty() {
        return output::text(&text);
    }
    eprint!("{text}");
    Ok(())
}
