//! The front ends of stock kernels beside their peers, in one virtual machine: what a request costs, what a page
//! costs when the kernel swaps to it, and the CPU time of both sides.
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
use crate::harness::subject::{RAMDISK_VARIABLE, Subject};
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

    fn rounds(&self) -> usize {
        2
    }

    fn seconds_per_round(&self) -> (u64, u64) {
        (150, 60)
    }

    fn run(&self, context: &Context, result: &mut StudyResult) -> Result<(), HarnessError> {
        let mut guest = Guest::new(own_program()?, Instant::now() + GUEST_STUDY_DEADLINE);
        let outcome = context.interleave(
            result,
            &Subject::STOCK,
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
pub(super) fn merge(result: &mut StudyResult, round: usize, trial: StudyResult) {
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

/// The goals of the front ends, and ratios that say something. Of swapping the median page-in is looked at: a busy
/// host takes an emulated processor away for longer than a page takes, and that moves a phase's mean but not the
/// median.
fn judge(result: &mut StudyResult) {
    use Subject::{LibublkRamdisk, LoopFuse, Nbd, NbdkitTcp, NbdkitUnix, Ublk};
    let page_ins = PAGE_CLUSTERS.map(|cluster| page_in_case(cluster, "p50"));
    let requests = DEPTHS.map(|depth| request_case(depth, "p50"));
    let (ublk, nbd) = (Ublk.name(), Nbd.name());
    for case in &page_ins {
        for nbdkit in [NbdkitUnix.name(), NbdkitTcp.name()] {
            let half = format!("nbd: a random swap-in at most half of {nbdkit}'s");
            result.goal(&half, case, nbd, nbdkit, 0.5, Better::Lower);
            let third = format!("ublk: a random swap-in at most a third of {nbdkit}'s");
            result.goal(&third, case, ublk, nbdkit, 1.0 / 3.0, Better::Lower);
        }
    }
    for case in page_ins.iter().chain(&requests) {
        let goal = "ublk within 1.3x of libublk's ramdisk";
        result.goal(goal, case, ublk, LibublkRamdisk.name(), 1.3, Better::Lower);
        for subject in [Nbd, LoopFuse, NbdkitUnix, NbdkitTcp, Subject::Brd, Subject::VirtioDisk] {
            result.compare(case, subject.name(), ublk);
        }
        for subject in [NbdkitUnix, NbdkitTcp] {
            result.compare(case, subject.name(), nbd);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;
    use crate::result::MICROSECONDS;
    use crate::studies::tests::context;

    fn empty() -> StudyResult {
        StudyResult::new("guest", "", true, Machine::default())
    }

    #[test]
    fn a_trial_becomes_its_round_of_the_study() {
        let mut result = empty();
        for (round, value) in [(0, 5.0), (2, 7.0)] {
            let mut trial = empty();
            trial.record(0, "case", "brd", MICROSECONDS, value);
            trial.skip("brd", "in parts");
            merge(&mut result, round, trial);
        }
        assert_eq!(result.measure("case", "brd").unwrap().samples, [Some(5.0), None, Some(7.0)]);
        assert_eq!(result.skipped.len(), 1);
    }

    #[test]
    fn goals_follow_from_random_swap_ins_and_requests() {
        let mut result = empty();
        let case = page_in_case(0, "p50");
        for (subject, value) in
            [("spillway ublk", 100.0), ("spillway nbd", 160.0), ("nbdkit unix", 310.0), ("libublk ramdisk", 70.0)]
        {
            result.record(0, &case, subject, MICROSECONDS, value);
        }
        judge(&mut result);
        let of_case = |goal: &&crate::result::Goal| goal.case == case;
        let verdicts: Vec<_> = result.goals.iter().filter(of_case).map(|goal| goal.verdict()).collect();
        // 0.52, 0.32, and 1.43; there is nothing over TCP.
        assert_eq!(verdicts, ["NOT met", "met", "not measured", "not measured", "NOT met"]);
        assert!(result.comparisons.iter().any(|one| one.subject == "nbdkit unix" && one.baseline == "spillway nbd"));
    }

    #[test]
    fn without_the_product_its_subjects_are_missing_and_no_machine_boots() {
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        let context = context(directory.path(), 1);
        let mut guest = Guest::new("/nonexistent".into(), Instant::now());
        let trial = Trial::of(&context, Subject::Ublk);
        let error = run_trial(&context, &mut guest, &trial, None).unwrap_err();
        assert!(error.to_string().contains("not built"), "{error}");
    }

    #[test]
    fn the_phases_are_those_of_the_workload() {
        use spillway_workloads::size::{MIB, Size};
        use spillway_workloads::{WorkloadSettings, run};
        let report = run("visit", &WorkloadSettings { size: Size(MIB), seed: 1, threads: 1 }).unwrap();
        assert!(report.phases.iter().map(|phase| phase.phase.as_str()).eq(PHASES));
    }
}
