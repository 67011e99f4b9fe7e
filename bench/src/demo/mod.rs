//! `make demo`: real programs and a server with part of their memory lent, in about three minutes.
//!
//! Three donors are started. Each program runs once with all memory local, which gives its working set, its time and
//! the output that all later runs must repeat byte by byte. Then 100, 75, 50 and 25 % of the working set are local
//! and the rest is with the donors, by the pager and over the swap device. Disk swap under the same limit follows.
//! One donor is killed in the middle of one run. At last clients ask memcached, half of whose memory is lent. Without
//! root the pager is shown alone.
//!
//! - [`programs`]: what runs; [`text`] makes its input from the machine's own documents, [`redis_job`] drives Redis,
//!   [`resp`] speaks its protocol.
//! - [`server`]: memcached and what its clients see.
//! - [`compare`]: counts wrong bytes while a program still prints; [`trial`]: one run somewhere.
//! - [`progress`]: the line that lives; [`report`]: the table at the end.
//!
//! Invariant: whatever happens, Ctrl-C included, everything that was started or attached here ends with this program.

pub mod compare;
pub mod programs;
pub mod progress;
pub mod redis_job;
pub mod report;
pub mod resp;
pub mod server;
pub mod text;
pub mod trial;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use spillway_pager::limits::BUDGET_BYTES_MIN;

use self::programs::DemoProgram;
use self::progress::Progress;
use self::redis_job::PAGE_VALUE;
use self::report::{Disk, Report, Row};
use self::text::Lines;
use self::trial::{AllLocal, Kill, Trials};
use crate::harness::HarnessError;
use crate::harness::interrupt::Interrupt;
use crate::harness::spillway::{Spillway, Via};
use crate::harness::storage::PrivateDirectory;
use crate::harness::subject::Workshop;
use crate::schedule::Schedule;
use crate::studies::Context;
use spillway_workloads::size::{MIB, Size};

/// The shares of the working set that fit local memory.
const SHARES_PERCENT: [u64; 4] = [100, 75, 50, 25];

/// Donors at the start.
const DONORS: usize = 3;

/// The run in which a donor is killed.
const KILL_IN: (&str, u64) = ("numpy", 50);

/// How large the inputs are, and how long disk swap may be waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scale {
    /// Bytes of text to sort.
    pub text: Size,
    /// What a line of it is.
    pub lines: Lines,
    /// Working set of the numpy job.
    pub numpy: Size,
    /// Values held by Redis.
    pub redis: Size,
    /// One of them.
    pub redis_value: Size,
    /// Values held by memcached.
    pub memcached: Size,
    /// Integers to sort.
    pub quicksort: Size,
    /// A run over disk swap is ended after so long, or after [`DISK_PATIENCE`] times what Spillway took if that is
    /// longer.
    pub disk_seconds_min: u64,
}

/// A run over disk swap that takes this many times as long as over Spillway has shown what there is to see.
pub const DISK_PATIENCE: f64 = 1.25;

impl Scale {
    /// Half a GB of text and more of everything: some ten minutes, reckoned from [`Self::FULL`].
    pub const LARGE: Self = Self {
        text: Size(512 * MIB),
        lines: Lines::Documents,
        numpy: Size(256 * MIB),
        redis: Size(192 * MIB),
        memcached: Size(192 * MIB),
        redis_value: PAGE_VALUE,
        quicksort: Size(256 * MIB),
        disk_seconds_min: 4,
    };
    /// For about three minutes in all: a page that was moved costs 10 to 40 us each way on the development machine,
    /// and each program moves its pages several times at each of four shares, here and over disk swap. Time grows
    /// with the pages moved; all else takes half a second a run. With a quarter local a sort of 200 MiB in such lines
    /// moved 386 MiB out and 742 MiB in; one of 64 MiB in lines of one to three KiB 238 and 428. The sort of 224 MiB
    /// needs most: 1.1 GiB of memory for all processes and their donors, and on disk text, output, and the copy of
    /// what is lent or the file for disk swap.
    pub const FULL: Self = Self {
        text: Size(224 * MIB),
        lines: Lines::Documents,
        numpy: Size(56 * MIB),
        redis: Size(56 * MIB),
        memcached: Size(64 * MIB),
        redis_value: PAGE_VALUE,
        quicksort: Size(72 * MIB),
        disk_seconds_min: 2,
    };
    /// To see in half a minute that all works. Less would not do: a quarter of it has to exceed the least local
    /// memory that `spillway run` gives a program, 8 MiB.
    pub const QUICK: Self = Self {
        text: Size(40 * MIB),
        lines: Lines::Documents,
        numpy: Size(40 * MIB),
        redis: Size(40 * MIB),
        memcached: Size(40 * MIB),
        redis_value: PAGE_VALUE,
        quicksort: Size(40 * MIB),
        disk_seconds_min: 1,
    };
    /// For tests of the demo itself, where nothing needs to be lent.
    pub const TINY: Self = Self {
        text: Size(4 * MIB),
        lines: Lines::Documents,
        numpy: Size(24 * MIB),
        redis: Size(8 * MIB),
        memcached: Size(32 * MIB),
        redis_value: PAGE_VALUE,
        quicksort: Size(12 * MIB),
        disk_seconds_min: 1,
    };
}

/// What to show, and with what.
#[derive(Clone, Debug)]
pub struct DemoSettings {
    /// How large the inputs are.
    pub scale: Scale,
    /// Only these programs; all without any.
    pub only: Vec<String>,
    /// The product's binary; looked for beside this one without.
    pub spillway: Option<PathBuf>,
    /// Where files go; must be on a disk.
    pub directory: Option<PathBuf>,
}

/// Shows it. An error when a run failed or an output was wrong.
pub fn run(settings: &DemoSettings, interrupt: &Interrupt) -> Result<(), HarnessError> {
    let start = Instant::now();
    let directory = PrivateDirectory::on_disk(settings.directory.as_deref())?;
    let spillway = Spillway::find(settings.spillway.as_deref(), directory.path())?;
    let shop = Workshop { interrupt: interrupt.clone(), spillway: Ok(spillway), directory };
    let context = Context { shop, quick: true, rounds: 1, schedule: Schedule::default(), rdma_device: None };
    let progress = Progress::on_stderr();
    let mut report = Report::default();
    let outcome = show(settings, &context, &progress, &mut report);
    // The table so far is worth seeing after an interrupt too.
    if !report.is_empty() {
        println!("\n{}", report.text());
        println!("{:.0} seconds in all.", start.elapsed().as_secs_f64());
    }
    outcome?;
    report.verdict()
}

/// The ways that can be used here; what the others lack is told.
fn usable_ways(trials: &Trials<'_>, progress: &Progress, report: &mut Report) -> Result<Vec<Via>, HarnessError> {
    let mut usable = Vec::new();
    for (via, name, tried) in
        [(Via::Pager, "the pager", trials.try_pager()), (Via::Swap, "the swap way", trials.try_swap())]
    {
        match tried {
            Ok(()) => usable.push(via),
            Err(error) if error.is_interrupt() => return Err(error),
            Err(error) => {
                progress.note(&format!("{name} is left out: {error}"));
                report.left_out(name, &error);
            }
        }
    }
    match usable.is_empty() {
        true => Err(HarnessError::Missing("neither way can be used here, as told above".to_owned())),
        false => Ok(usable),
    }
}

fn show(
    settings: &DemoSettings,
    context: &Context,
    progress: &Progress,
    report: &mut Report,
) -> Result<(), HarnessError> {
    let (shop, scale) = (&context.shop, settings.scale);
    let mut trials = Trials::start(shop, scale, progress, DONORS)?;
    let ways = usable_ways(&trials, progress, report)?;
    for name in programs::choose(&settings.only)? {
        let outcome = if name == server::NAME {
            server::show(context, progress, scale.memcached, &ways).map(|shown| report.memcached(shown))
        } else {
            let prepare = || programs::prepare(name, shop, scale);
            progress.step(&format!("{name}: preparing its input"), prepare).and_then(|program| {
                report.input(name, &program.input);
                show_program(&program, &mut trials, report, &ways)
            })
        };
        match outcome {
            Err(error) if error.is_interrupt() => return Err(error),
            Err(error) => {
                progress.note(&format!("{name}: left out: {error}"));
                report.left_out(name, &error);
            }
            Ok(()) => {}
        }
    }
    Ok(())
}

fn show_program(
    program: &DemoProgram,
    trials: &mut Trials<'_>,
    report: &mut Report,
    ways: &[Via],
) -> Result<(), HarnessError> {
    let reference = trials.all_local(program)?;
    for percent in SHARES_PERCENT {
        let row = show_share(program, trials, &reference, percent, ways);
        match row {
            Ok(row) => report.push(row),
            Err(error) if error.is_interrupt() => return Err(error),
            Err(error) => report.failed(program.name, percent, &error),
        }
    }
    Ok(())
}

fn show_share(
    program: &DemoProgram,
    trials: &mut Trials<'_>,
    reference: &AllLocal,
    percent: u64,
    ways: &[Via],
) -> Result<Row, HarnessError> {
    let local = reference.footprint.percent(percent);
    let kill = if (program.name, percent) == KILL_IN { Kill::InTheMiddle } else { Kill::None };
    let share = (percent, local);
    // The least that the pager takes is more than a quarter of a small program.
    let pager = if ways.contains(&Via::Pager) && local.0 >= BUDGET_BYTES_MIN {
        Some(trials.lent(Via::Pager, program, reference, share, Kill::None)?)
    } else {
        None
    };
    let device =
        if ways.contains(&Via::Swap) { Some(trials.lent(Via::Swap, program, reference, share, kill)?) } else { None };
    // Disk swap needs what the swap device needs.
    let disk = match &device {
        Some(device) if percent < 100 => {
            trials.over_disk(program, reference, share, Duration::from_secs_f64(device.seconds))
        }
        _ => Ok(Disk::NotRun),
    };
    let disk = match disk {
        Err(error) if error.is_interrupt() => return Err(error),
        Err(error) => Disk::Failed(error.to_string()),
        Ok(disk) => disk,
    };
    Ok(Row {
        program: program.name.to_owned(),
        percent,
        local,
        all_local_seconds: reference.seconds,
        all_local_served: reference.served,
        pager,
        device,
        disk,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_killed_run_is_one_of_those_shown() {
        assert!(programs::NAMES.contains(&KILL_IN.0) && SHARES_PERCENT.contains(&KILL_IN.1));
    }

    #[test]
    fn scales_ascend_in_everything() {
        for (less, more) in [(Scale::TINY, Scale::QUICK), (Scale::QUICK, Scale::FULL), (Scale::FULL, Scale::LARGE)] {
            assert!(less.text < more.text && less.numpy < more.numpy);
            assert!(less.memcached < more.memcached && less.redis < more.redis && less.quicksort < more.quicksort);
            assert!(less.disk_seconds_min <= more.disk_seconds_min);
        }
    }

    #[test]
    fn without_the_product_it_says_so_and_leaves_nothing() {
        let parent = tempfile::tempdir_in("/var/tmp").unwrap();
        let settings = DemoSettings {
            scale: Scale::TINY,
            only: Vec::new(),
            spillway: Some("/nonexistent/spillway".into()),
            directory: Some(parent.path().to_owned()),
        };
        if crate::harness::tool::find("spillway").is_some() {
            return spillway_sys::skipping::skip_because("a spillway is installed on this machine");
        }
        let error = run(&settings, &Interrupt::never()).unwrap_err().to_string();
        assert!(error.contains("--spillway"), "{error}");
        assert_eq!(std::fs::read_dir(parent.path()).unwrap().count(), 0);
    }
}
