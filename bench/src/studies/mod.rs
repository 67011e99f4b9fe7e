//! The studies: what is compared with what, round by round.
//!
//! | file | question |
//! |---|---|
//! | [`device`] | what a request to the block device costs, against its peers |
//! | [`swap`] | what a page costs when the kernel swaps to it |
//! | [`pager`] | what a page costs when the pager brings it, how fast pages leave, and what a program within its budget loses |
//! | [`page_in`] | where the time of one page-in goes, stage by stage |
//! | [`programs`] | what whole programs cost at L(100), L(75), L(50), L(25), by pager, swap device, zram and disk |
//! | [`servers`] | what memcached, Redis and others give their clients at these shares, by the same ways |
//! | [`guest`] | ublk, NBD and loop over FUSE beside their peers, in a virtual machine with a stock kernel |
//! | [`rdma`] | RDMA beside TCP, nbdkit and a bare loop of verbs, in a guest or over a device of this host |
//! | [`cost`] | CPU time and memory that lending takes |
//! | [`recovery`] | how long until pages come and all is well, after a donor died or has to give its memory back |
//! | [`writes`] | sustained writes with a copy on disk, before and after its backlog is full |
//!
//! Invariant: a subject that cannot be had is left out with its reason in the result; only an interrupt ends a study
//! early.

pub mod cost;
pub mod device;
pub mod guest;
pub mod job;
pub mod jvm;
pub mod kind;
pub mod loopback;
pub mod page_in;
pub mod pager;
pub mod pinning;
pub mod places;
pub mod program_run;
pub mod programs;
pub mod rdma;
pub mod recovery;
pub mod servers;
pub mod swap;
pub mod writes;

use std::time::{Duration, Instant};

use crate::harness::HarnessError;
use crate::harness::subject::{Subject, Workshop};
use crate::result::StudyResult;
use crate::schedule::Schedule;

/// What a study works with.
#[derive(Debug)]
pub struct Context {
    /// Builds subjects.
    pub shop: Workshop,
    /// Small inputs and few rounds: to see that all works.
    pub quick: bool,
    /// Rounds of each comparison.
    pub rounds: usize,
    /// What remains.
    pub schedule: Schedule,
    /// The RDMA device of this host that the study `rdma` is to use; a guest's without.
    pub rdma_device: Option<String>,
}

/// A question and how it is answered.
pub trait Study: Sync {
    /// Its name on the command line and in file names.
    fn name(&self) -> &'static str;
    /// What it answers.
    fn title(&self) -> &'static str;
    /// Rounds of a full run, when the user does not say.
    fn rounds(&self) -> usize {
        3
    }
    /// Rounds of a quick run, when the user does not say.
    fn rounds_quick(&self) -> usize {
        2
    }
    /// Seconds that one round takes on the development machine (2 CPUs), quiet: of a full and of a quick run.
    fn seconds_per_round(&self) -> (u64, u64);
    /// How long so many rounds are expected to take.
    fn expected(&self, quick: bool, rounds: usize) -> Duration {
        let (full, of_quick) = self.seconds_per_round();
        Duration::from_secs(if quick { of_quick } else { full }) * rounds as u32
    }
    /// Measures.
    fn run(&self, context: &Context, result: &mut StudyResult) -> Result<(), HarnessError>;
    /// Plots beyond the bars that every study gets: name and SVG.
    fn plots(&self, _result: &StudyResult) -> Vec<(String, String)> {
        Vec::new()
    }
}

/// All of them; the longest last, as each writes its result when it ends.
pub const ALL: [&dyn Study; 12] = [
    &device::DeviceStudy,
    &swap::SwapStudy,
    &cost::CostStudy,
    &writes::WritesStudy,
    &page_in::PageInStudy,
    &pager::PagerStudy,
    &recovery::RecoveryStudy,
    &guest::GuestStudy,
    &guest::page_in::GuestPageInStudy,
    &rdma::RdmaStudy,
    &programs::ProgramsStudy,
    &servers::ServersStudy,
];

impl Context {
    /// `full`, or `quick` in a quick run.
    pub fn choose<Value>(&self, full: Value, quick: Value) -> Value {
        if self.quick { quick } else { full }
    }

    /// What `prepare` makes of each name that this machine has what is needed for; `what` says what it looks for. The
    /// others are left out with their reason; an interrupt and a wrong result end the study.
    pub fn prepare<Prepared>(
        &self,
        result: &mut StudyResult,
        names: &[&'static str],
        what: &str,
        mut prepare: impl FnMut(&'static str) -> Result<Prepared, HarnessError>,
    ) -> Result<Vec<Prepared>, HarnessError> {
        let mut all = Vec::new();
        for name in names.iter().copied() {
            self.shop.interrupt.check()?;
            eprintln!("{}: {what} {name}", result.study);
            match prepare(name) {
                Ok(prepared) => all.push(prepared),
                Err(error) if error.is_interrupt() || matches!(error, HarnessError::Wrong { .. }) => return Err(error),
                Err(error) => result.skip(name, &error.to_string()),
            }
        }
        Ok(all)
    }

    /// Runs `trial` for each subject in each round, interleaved: A B C A B C. A subject that fails is left out of that
    /// round, one that cannot be had of all later ones.
    pub fn interleave<Subject: Copy + PartialEq>(
        &self,
        result: &mut StudyResult,
        subjects: &[Subject],
        name: impl Fn(Subject) -> String,
        mut trial: impl FnMut(usize, Subject, &mut StudyResult) -> Result<(), HarnessError>,
    ) -> Result<(), HarnessError> {
        let mut missing: Vec<Subject> = Vec::new();
        for round in 0..self.rounds {
            for subject in subjects.iter().copied() {
                self.shop.interrupt.check()?;
                if missing.contains(&subject) {
                    continue;
                }
                let remaining = self.schedule.text(Instant::now());
                let (study, rounds) = (&result.study, self.rounds);
                eprintln!("{study}: round {} of {rounds}: {} ({remaining})", round + 1, name(subject));
                if let Err(error) = trial(round, subject, result) {
                    if error.is_interrupt() {
                        return Err(error);
                    }
                    eprintln!("{}: left out: {}: {error}", result.study, name(subject));
                    result.skip(&name(subject), &error.to_string());
                    if matches!(error, HarnessError::Missing(_)) {
                        missing.push(subject);
                    }
                }
            }
        }
        Ok(())
    }

    /// [`Context::interleave`] for block devices.
    pub fn interleave_devices(
        &self,
        result: &mut StudyResult,
        subjects: &[Subject],
        trial: impl FnMut(usize, Subject, &mut StudyResult) -> Result<(), HarnessError>,
    ) -> Result<(), HarnessError> {
        self.interleave(result, subjects, |subject| subject.name().to_owned(), trial)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::harness::interrupt::Interrupt;
    use crate::harness::storage::PrivateDirectory;
    use crate::machine::Machine;
    use crate::result::SECONDS;

    /// A context without the product, in a directory on a disk.
    pub(crate) fn context(directory: &std::path::Path, rounds: usize) -> Context {
        let shop = Workshop {
            interrupt: Interrupt::never(),
            spillway: Err("the product is not built".to_owned()),
            directory: PrivateDirectory::on_disk(Some(directory)).unwrap(),
        };
        Context { shop, quick: true, rounds, schedule: Schedule::default(), rdma_device: None }
    }

    fn empty() -> StudyResult {
        StudyResult::new("test", "Test", true, Machine::default())
    }

    #[test]
    fn rounds_are_interleaved() {
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        let (mut order, mut result) = (Vec::new(), empty());
        let trial = |round, subject: char, result: &mut StudyResult| {
            order.push((round, subject));
            result.record(round, "case", &subject.to_string(), SECONDS, 1.0);
            Ok(())
        };
        context(directory.path(), 2).interleave(&mut result, &['a', 'b'], String::from, trial).unwrap();
        assert_eq!(order, [(0, 'a'), (0, 'b'), (1, 'a'), (1, 'b')]);
        assert_eq!(result.measures.len(), 2);
    }

    #[test]
    fn what_fails_is_tried_again_and_what_is_missing_is_not() {
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        let (mut order, mut result) = (Vec::new(), empty());
        let trial = |_, subject: char, _: &mut StudyResult| {
            order.push(subject);
            match subject {
                'm' => Err(HarnessError::Missing("install it".to_owned())),
                _ => Err(HarnessError::failed("it", "broke")),
            }
        };
        context(directory.path(), 2).interleave(&mut result, &['m', 'f'], String::from, trial).unwrap();
        assert_eq!(order, ['m', 'f', 'f']);
        let reasons: Vec<_> = result.skipped.iter().map(|skip| skip.reason.as_str()).collect();
        assert_eq!(reasons, ["install it", "it failed: broke"]);
    }

    #[test]
    fn what_cannot_be_prepared_is_left_out_and_a_wrong_result_ends_it() {
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        let (context, mut result) = (context(directory.path(), 1), empty());
        let prepare = |name: &'static str| match name {
            "missing" => Err(HarnessError::Missing("install it".to_owned())),
            "wrong" => Err(HarnessError::wrong("it", "a byte differs")),
            _ => Ok(name),
        };
        assert_eq!(context.prepare(&mut result, &["a", "missing", "b"], "looking at", prepare).unwrap(), ["a", "b"]);
        assert_eq!((result.skipped.len(), result.skipped[0].what.as_str()), (1, "missing"));
        assert!(context.prepare(&mut result, &["wrong", "a"], "looking at", prepare).is_err());
    }

    #[test]
    fn an_interrupt_ends_the_rounds() {
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        let context = context(directory.path(), 5);
        let mut trials = 0;
        let trial = |_, _: char, _: &mut StudyResult| {
            trials += 1;
            context.shop.interrupt.raise();
            Ok(())
        };
        let error = context.interleave(&mut empty(), &['a'], String::from, trial).unwrap_err();
        assert!(error.is_interrupt() && trials == 1);
    }

    #[test]
    fn all_of_them_take_less_than_an_hour_and_a_half() {
        let all: Duration = ALL.iter().map(|study| study.expected(false, study.rounds())).sum();
        assert!(all < Duration::from_secs(90 * 60), "{all:?}");
        assert!(ALL.iter().all(|study| study.expected(true, 1) <= study.expected(false, study.rounds())));
    }

    #[test]
    fn names_are_distinct() {
        let names: std::collections::HashSet<_> = ALL.iter().map(|study| study.name()).collect();
        assert_eq!(names.len(), ALL.len());
    }

    #[test]
    fn the_readme_lists_them_in_their_order() {
        let readme = include_str!("../../README.md");
        let list = readme.split("order of their runs: ").nth(1).and_then(|rest| rest.split(" (what each").next());
        let names = ALL.map(|study| format!("`{}`", study.name())).join(", ");
        assert_eq!(list.map(|list| list.replace('\n', " ")), Some(names));
    }
}
