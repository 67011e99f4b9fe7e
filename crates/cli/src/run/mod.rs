//! `spillway run`: an unmodified program with part of its memory lent by donors.
//!
//! - [`via`]: over a swap device or by the pager, and why; [`via_swap`] and [`via_pager`]: the two ways.
//! - [`plan`]: what is needed, checked before anything starts.
//! - [`preload`]: the library that paged programs load.
//! - [`program`]: finding, starting and waiting for the program; [`group_signals`]: signals that it has already.
//! - [`swap_prefetch`]: prefetching over a swap device.
//! - [`watch`]: the budget while the program runs.
//! - [`mod@recording`]: page faults for a trace.
//! - [`statistics`]: what is told at the end.
//!
//! A run that is killed is taken down by the first that notices: its device's process or its donors, the next run, or
//! `doctor --mend`.

pub(crate) mod become_program;
pub(crate) mod calls;
pub(crate) mod group_signals;
pub(crate) mod plan;
pub(crate) mod preload;
pub(crate) mod program;
pub(crate) mod recording;
pub(crate) mod statistics;
pub(crate) mod swap_prefetch;
pub(crate) mod via;
pub(crate) mod via_pager;
pub(crate) mod via_swap;
pub(crate) mod watch;

use std::path::Path;

use spillway_console::failure::Failure;
use spillway_console::output_file::OutputFile;
use spillway_console::say;
use spillway_control::mend;
use spillway_control::registry::Registry;
use spillway_machine::interruption::Interruption;
use spillway_machine::memory::Memory;
use spillway_machine::size::{LocalBudget, human};
use spillway_pager::limits::BUDGET_BYTES_MIN;
use spillway_report::run::{Ending, Way};
use spillway_sys::memory_group;

use crate::arguments::run::RunArguments;
use crate::budget::Budget;
use crate::limits;

/// Refuses a budget that no program gets by with, in place of giving it more without a word.
fn check_local(way: Way, local: LocalBudget) -> Result<(), Failure> {
    let least_bytes = match way {
        Way::Swap => limits::BUDGET_FLOOR_BYTES,
        Way::Pager => BUDGET_BYTES_MIN,
    };
    match local {
        LocalBudget::Fixed(size) if size.bytes < least_bytes => Err(Failure::Usage(format!(
            "--local {} is too little: the least that works is {} here; give that, or a percentage",
            human(size.bytes),
            human(least_bytes),
        ))),
        _ => Ok(()),
    }
}

/// The budget that the user wants.
fn budget_of(arguments: &RunArguments, least_bytes: u64) -> Result<Budget, Failure> {
    if arguments.local != LocalBudget::Auto {
        return Ok(Budget::new(arguments.local));
    }
    let all_bytes = Memory::read().map_err(|error| Failure::during("/proc/meminfo", error))?.total_bytes;
    Ok(Budget::automatic(arguments.slowdown.unwrap_or(limits::SLOWDOWN), least_bytes, all_bytes))
}

/// The file that the run's figures are written to at its end.
fn statistics_file(path: &Path) -> Result<OutputFile, Failure> {
    OutputFile::open(path).map_err(|error| Failure::during(format_args!("--stats {}", path.display()), error))
}

/// Runs the program; gives how it ended.
pub(crate) fn run(arguments: &RunArguments) -> Result<Ending, Failure> {
    let interruption = Interruption::watch().map_err(|error| Failure::during("watching for signals", error))?;
    if arguments.slowdown.is_some() && arguments.local != LocalBudget::Auto {
        return Err(Failure::usage("--slowdown is for --local auto; write `--local auto` too, or leave it out"));
    }
    let program = program::find(&arguments.program)?;
    let statistics = arguments.stats.as_deref().map(statistics_file).transpose()?;
    let available_bytes = memory_group::available_bytes();
    let choice = via::choose(arguments, program.file(), available_bytes.is_some())?;
    via::check_options(choice.way, arguments)?;
    check_local(choice.way, arguments.local)?;
    let registry = Registry::open().map_err(Failure::failed)?;
    for line in mend::mend_all(&registry)? {
        say!("spillway: {line}");
    }
    let budget_bytes = if let LocalBudget::Fixed(size) = arguments.local { Some(size.bytes) } else { None };
    if let Some(told) = via::told_of_group(choice.way, budget_bytes, available_bytes) {
        say!("spillway: {told}");
    }
    match choice.way {
        Way::Swap => via_swap::run(arguments, registry, &program, choice, statistics.as_ref(), &interruption),
        Way::Pager => via_pager::run(arguments, registry, &program, choice, statistics.as_ref(), &interruption),
    }
}
