//! The front ends of stock kernels beside their peers, in one virtual machine: what a request costs, what a page costs when
//! the kernel swaps to it, and the CPU time of both sides.
//!
//! Guests are emulated where hardware virtualisation does not work, so only ratios count, and everything is small. Each
//! subject's turn ([`trial`]) is this very program in the guest, for a bounded time.

pub mod page_in;
pub mod trial;

use std::time::Instant;

use self::trial::Trial;
use super::program_run::own_program;
use super::{Context, Study};
use crate::harness::HarnessError;
use crate::harness::guest::{DIRECTORY, Guest};
use crate::harness::stock_subject::{RAMDISK_VARIABLE, StockSubject};
use crate::limits::{GUEST_STUDY_DEADLINE, GUEST_TRIAL_DEADLINE};
use crate::result::{Better, StudyResult, unit_of};

/// The command of this program that runs in the guest.
pub const COMMAND: &str = "guest-trial";

/// Requests in flight.
pub const DEPTHS: [u32; 2] = [1, 16];

/// Pages that the kernel reads ahead, as powers of two: none, and its default.
pub const PAGE_CLUSTERS: [u32; 2] = [0, 3];

/// The phases of the workload `visit`.
pub const PHASES: [&str; 4] = ["fill", "sequential", RANDOM, "rewrite"];

/// The phase whose page-ins are also told one by one.
pub const RANDOM: &str = "random";

/// Whose CPU time is told.
pub const SIDES: [&str; 2] = ["server", "donor"];

/// How requests of 4 KiB are called.
pub fn request_case(depth: u32, number: &str) -> String {
    format!("4 KiB read, depth {depth}, {number}")
}

/// How CPU time is called.
pub fn cost_case(depth: u32, side: &str) -> String {
    format!("4 KiB read, depth {depth}, the {side}'s CPU")
}

/// How a phase of swapping is called.
pub fn swap_case(phase: &str, page_cluster: u32) -> String {
    format!("swap: {phase}, page-cluster {page_cluster}")
}

/// How the visits that waited for a page are called.
pub fn page_in_case(page_cluster: u32, number: &str) -> String {
    format!("{}, page-in {number}", swap_case(RANDOM, page_cluster))
}

/// The study of front ends in a guest.
#[derive(Clone, Copy, Debug)]
pub struct GuestStudy;

impl Study for GuestStudy {
    fn name(&self) -> &'static str {
        "guest"
    }

    fn title(&self) -> &'static str {
        "front ends of a stock kernel, in a guest"
    }

    fn seconds_per_round(&self) -> (u64, u64) {
        (150, 60)
    }

    fn run(&self, context: &Context, result: &mut StudyResult) -> Result<(), HarnessError> {
        let mut guest = Guest::new(own_program()?, Instant::now() + GUEST_STUDY_DEADLINE);
        let outcome = context.interleave(
            result,
            &StockSubject::ALL,
            |subject| subject.name().to_owned(),
            |round, subject, result| {
                subject.check()?;
                merge(result, round, run_trial(context, &mut guest, &Trial::of(context, subject), None)?);
                Ok(())
            },
        );
        judge(result);
        outcome
    }
}

/// Runs a trial in the guest, with one more word for the command if need be.
fn run_trial(
    context: &Context,
    guest: &mut Guest,
    trial: &Trial,
    more: Option<&str>,
) -> Result<StudyResult, HarnessError> {
    let shop = &context.shop;
    let mut arguments = vec![COMMAND.to_owned(), "--subject".to_owned(), trial.subject.name().to_owned()];
    arguments.extend(["--size".to_owned(), trial.size.to_string(), "--directory".to_owned(), DIRECTORY.to_owned()]);
    arguments.extend(["--milliseconds".to_owned(), trial.time.as_millis().to_string()]);
    arguments.extend(more.map(str::to_owned));
    if trial.subject.front_end().is_some() {
        arguments.extend(["--spillway".to_owned(), shop.product()?.binary().to_string_lossy().into_owned()]);
    }
    let variable = std::env::var(RAMDISK_VARIABLE).map(|value| (RAMDISK_VARIABLE, value));
    let environment: Vec<_> = variable.into_iter().collect();
    let output = guest.run(&environment, &arguments, GUEST_TRIAL_DEADLINE, &shop.interrupt)?;
    serde_json::from_str(&output).map_err(HarnessError::system("reading what a trial in the guest printed"))
}

/// Adds the one round of a trial to the study.
fn merge(result: &mut StudyResult, round: usize, trial: StudyResult) {
    for measure in trial.measures {
        if let (Some(unit), Some(Some(sample))) = (unit_of(&measure.unit), measure.samples.first()) {
            result.record(round, &measure.case, &measure.subject, unit, *sample);
        }
    }
    for skip in trial.skipped {
        eprintln!("{}: left out: {}: {}", result.study, skip.what, skip.reason);
        result.skip(&skip.what, &skip.reason);
    }
}

/// The goals of the front ends, and ratios that say something.
fn judge(result: &mut StudyResult) {
    use StockSubject::{LibublkRamdisk, LoopFuse, Nbd, NbdkitTcp, NbdkitUnix, Ublk};
    let random = PAGE_CLUSTERS.map(|cluster| [swap_case(RANDOM, cluster), page_in_case(cluster, "p50")]).concat();
    for case in &random {
        let (ublk, nbd, nbdkit) = (Ublk.name(), Nbd.name(), NbdkitUnix.name());
        result.goal("nbd: a random swap-in at most half of nbdkit's", case, nbd, nbdkit, 0.5, Better::Lower);
        result.goal("ublk: a random swap-in at most a third of nbdkit's", case, ublk, nbdkit, 1.0 / 3.0, Better::Lower);
    }
    let requests = DEPTHS.map(|depth| request_case(depth, "p50"));
    for case in random.iter().chain(&requests) {
        let goal = "ublk within 1.3x of libublk's ramdisk";
        result.goal(goal, case, Ublk.name(), LibublkRamdisk.name(), 1.3, Better::Lower);
    }
    for case in random.iter().chain(&requests) {
        for subject in StockSubject::ALL.into_iter().filter(|subject| *subject != Ublk) {
            result.compare(case, subject.name(), Ublk.name());
        }
        for subject in [NbdkitUnix, NbdkitTcp, LoopFuse] {
            result.compare(case, subject.name(), Nbd.name());
        }
    }
}
