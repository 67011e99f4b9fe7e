//! What the pager costs a program that stays within its budget.
//!
//! A program runs bare and under the pager, with much more local memory than it uses, in pairs whose order
//! alternates, and free to run on any CPU. Workloads tell their own time, so starting the pager does not count; a
//! shell that starts one small program after the other tells what each of them takes, which is all starting and
//! ending.
//!
//! Invariant: a run of which a page left or came did not stay within its budget, and fails.

use std::process::Command;

use spillway_pager::statistics::PagerStatistics;
use spillway_workloads::size::{MIB, Size};

use super::{LOCAL_NAME, PAGER_NAME};
use crate::harness::interrupt::Interrupt;
use crate::harness::process::{Collected, Running, bound};
use crate::harness::spillway::{Donor, Transport, Via, read_run};
use crate::harness::{HarnessError, tool};
use crate::limits::PROGRAM_DEADLINE;
use crate::result::{Better, MICROSECONDS, SECONDS, StudyResult, Unit};
use crate::studies::Context;
use crate::studies::places::run_storage;
use crate::studies::program_run::{run_workload, workload_command};

/// Local memory: several times what each of the programs uses.
const LOCAL: Size = Size(1024 * MIB);

/// What the donor lends, which nothing is to need.
const LENT: Size = Size(256 * MIB);

/// A program within its budget takes at most so many times as long (issue's goal).
const GOAL_BOUND: f64 = 1.01;

const GOAL: &str = "a program within its budget at most 1 % slower";

/// Small programs that a shell starts one after the other.
const STARTS: u32 = 50;

/// Prints the nanoseconds that starting and ending one program took, of `$1` programs `$2`.
const STARTS_SCRIPT: &str = "begun=$(date +%s%N); count=0
    while [ $count -lt $1 ]; do \"$2\" || exit 1; count=$((count + 1)); done
    ended=$(date +%s%N); echo $(((ended - begun) / $1))";

/// What runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Program {
    /// A workload of so many bytes in a full run, and in a quick one.
    Workload(&'static str, Size, Size),
    /// A shell that starts programs.
    Starts,
}

/// One that computes, one that goes through its memory in turn, one that does at random, and one that starts others.
const PROGRAMS: [Program; 4] = [
    Program::Workload("matrix", Size(64 * MIB), Size(16 * MIB)),
    Program::Workload("fill-modify", Size(256 * MIB), Size(64 * MIB)),
    Program::Workload("key-value", Size(128 * MIB), Size(64 * MIB)),
    Program::Starts,
];

impl Program {
    fn case(self) -> String {
        match self {
            Self::Workload(name, ..) => format!("within the budget: {name}"),
            Self::Starts => "within the budget: starting programs".to_owned(),
        }
    }

    fn unit(self) -> Unit {
        if self == Self::Starts { MICROSECONDS } else { SECONDS }
    }

    fn command(self, context: &Context) -> Result<Command, HarnessError> {
        let (name, full, quick) = match self {
            Self::Workload(name, full, quick) => (name, full, quick),
            Self::Starts => return starts_command(STARTS),
        };
        let plain = workload_command(name, context.choose(full, quick))?;
        let mut command = bound(plain.get_program());
        command.args(plain.get_args());
        Ok(command)
    }

    /// Runs `command`, which is this program somewhere; gives its own time in its unit.
    fn run(self, command: &mut Command, interrupt: &Interrupt) -> Result<f64, HarnessError> {
        match self {
            Self::Workload(name, ..) => Ok(run_workload(name, command, interrupt)?.elapsed_seconds),
            Self::Starts => start_us(command, interrupt),
        }
    }
}

fn starts_command(count: u32) -> Result<Command, HarnessError> {
    let mut command = bound("sh");
    command.args(["-c", STARTS_SCRIPT, "sh", &count.to_string()]).arg(tool::need("true")?);
    Ok(command)
}

/// Runs [`STARTS_SCRIPT`]; gives microseconds.
fn start_us(command: &mut Command, interrupt: &Interrupt) -> Result<f64, HarnessError> {
    let output = Collected::default();
    let running = Running::start("a shell", command, output.clone())?;
    let messages = running.messages.clone();
    let finished = running.wait(PROGRAM_DEADLINE, interrupt, || {})?;
    let nanoseconds = output.text().trim().parse::<f64>().ok().filter(|_| finished.status.success());
    let nanoseconds = nanoseconds.ok_or_else(|| HarnessError::failed("a shell", messages.last_line()))?;
    Ok(nanoseconds / 1e3)
}

/// Measures all of them, and how they stand to the goal.
pub(super) fn measure(context: &Context, result: &mut StudyResult) -> Result<(), HarnessError> {
    let pairs = context.choose(5, 2);
    let product = match context.shop.product() {
        Ok(product) => product,
        Err(error) => {
            result.skip("within the budget", &error.to_string());
            return Ok(());
        }
    };
    // Held until the last program has ended.
    let donors = [product.donor(LENT, Transport::SharedMemory, None, &context.shop.interrupt)?];
    let outcome = context.interleave(result, &PROGRAMS, Program::case, |round, program, result| {
        for pair in round * pairs..(round + 1) * pairs {
            let order = if pair.is_multiple_of(2) { [false, true] } else { [true, false] };
            for paged in order {
                let time = if paged { under_pager(context, program, &donors)? } else { bare(context, program)? };
                let side = if paged { PAGER_NAME } else { LOCAL_NAME };
                result.record(pair, &program.case(), side, program.unit(), time);
            }
        }
        Ok(())
    });
    goals(result);
    outcome
}

fn goals(result: &mut StudyResult) {
    for program in PROGRAMS {
        result.goal(GOAL, &program.case(), PAGER_NAME, LOCAL_NAME, GOAL_BOUND, Better::Lower);
    }
}

fn bare(context: &Context, program: Program) -> Result<f64, HarnessError> {
    program.run(&mut program.command(context)?, &context.shop.interrupt)
}

fn under_pager(context: &Context, program: Program, donors: &[Donor]) -> Result<f64, HarnessError> {
    let storage = run_storage(context, donors, "none", LENT);
    let stats = context.shop.directory.path().join("within-budget-stats.json");
    let plain = program.command(context)?;
    let mut command = context.shop.product()?.run_via(Via::Pager, None, &LOCAL.to_string(), &storage, &stats, &plain);
    let time = program.run(&mut command, &context.shop.interrupt)?;
    stayed_within(&program.case(), read_run(&stats)?.0.pager.as_ref())?;
    Ok(time)
}

/// Fails for a run that did not stay within its budget.
fn stayed_within(what: &str, told: Option<&PagerStatistics>) -> Result<(), HarnessError> {
    let Some(pager) = told else {
        return Err(HarnessError::failed(what, "it did not run under the pager"));
    };
    match pager.pages_out_dirty + pager.pages_out_clean + pager.fill.count {
        0 => Ok(()),
        moved => Err(HarnessError::failed(what, format!("{moved} pages left or came, and none must"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;
    use crate::studies::tests::context;

    #[test]
    fn a_shell_tells_what_a_start_takes() {
        assert!(start_us(&mut starts_command(3).unwrap(), &Interrupt::never()).unwrap() > 0.0);
        let mut failing = Command::new("sh");
        failing.args(["-c", STARTS_SCRIPT, "sh", "3", "false"]);
        assert!(start_us(&mut failing, &Interrupt::never()).is_err());
        assert!(start_us(&mut Command::new("true"), &Interrupt::never()).is_err(), "it says nothing");
    }

    #[test]
    fn a_run_whose_pages_move_is_beyond_its_budget() {
        let mut came = PagerStatistics::default();
        assert!(stayed_within("matrix", Some(&came)).is_ok());
        (came.fill.count, came.pages_out_clean) = (2, 1);
        assert!(stayed_within("matrix", Some(&came)).unwrap_err().to_string().contains("3 pages"));
        assert!(stayed_within("matrix", None).is_err());
    }

    #[test]
    fn each_program_has_its_goal() {
        let mut result = StudyResult::new("pager", "", true, Machine::default());
        for (pair, slower) in [1.0, 1.005, 1.2].into_iter().enumerate() {
            for (program, extra) in PROGRAMS.into_iter().zip([0.0, 0.0, 0.0, 1.0]) {
                result.record(pair, &program.case(), LOCAL_NAME, program.unit(), 2.0);
                result.record(pair, &program.case(), PAGER_NAME, program.unit(), 2.0 * (slower + extra));
            }
        }
        goals(&mut result);
        let met: Vec<_> = result.goals.iter().map(|goal| goal.met).collect();
        assert_eq!(met, [Some(true), Some(true), Some(true), Some(false)]);
    }

    #[test]
    fn programs_are_workloads_well_within_the_budget() {
        let names = spillway_workloads::names();
        for program in PROGRAMS {
            if let Program::Workload(name, full, quick) = program {
                assert!(names.contains(&name) && full.0 * 4 <= LOCAL.0 && quick.0 <= full.0, "{name}");
            }
        }
    }

    #[test]
    fn without_the_product_it_is_left_out() {
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        let mut result = StudyResult::new("pager", "", true, Machine::default());
        measure(&context(directory.path(), 1), &mut result).unwrap();
        assert!(result.measures.is_empty() && result.skipped[0].reason.contains("not built"));
    }
}
