//! `spillway trace replay`: each policy of prefetching on a recorded trace.
//!
//! *Faults left*: faults that still wait for a donor. *Accuracy*: of the pages brought along, the part that was used.
//! *Coverage*: of the pages that were needed from afar, the part that had been brought along. *Timeliness*: of those,
//! the part that was there in time. *Pollution*: by how much more pages were needed from afar than without.
//!
//! *Runs* are Leap's windows of eight distances between faults, those that are left without prefetching
//! ([`spillway_policy::replay::detection`]).

use std::collections::BTreeMap;

use spillway_console::failure::Failure;
use spillway_console::output;
use spillway_machine::size::LocalBudget;
use spillway_policy::prefetch::PageNumber;
use spillway_policy::prefetch::selection::PrefetchPolicy;
use spillway_policy::replay::accesses::Accesses;
use spillway_policy::replay::counts::Counts;
use spillway_policy::replay::detection::{Look, Windows, windows};
use spillway_policy::replay::memory::{Refault, Settings, refaulted};
use spillway_policy::replay::policies::ReplayPolicy;
use spillway_policy::trace::space_of;

use super::loaded::Loaded;
use super::report::{PolicyReport, Report, RunsReport};
use crate::arguments::trace::ReplayArguments;

/// Bytes of a page of a trace.
const PAGE_BYTES: u64 = 4096;

/// Replays and tells.
pub(crate) fn execute(arguments: &ReplayArguments) -> Result<(), Failure> {
    let loaded = Loaded::read(&arguments.file)?;
    let policies = if arguments.policy.is_empty() { &ReplayPolicy::ALL[..] } else { &arguments.policy };
    let report = replayed(&loaded, policies, arguments.local);
    if arguments.output.json { output::json(&report) } else { output::text(&report.table()) }
}

/// Pages of local memory.
fn local_pages(accesses: &Accesses, local: LocalBudget) -> u32 {
    let pages = match local {
        LocalBudget::Fixed(size) => size.bytes / PAGE_BYTES,
        // The command line has no such replay.
        LocalBudget::Auto => u64::from(accesses.pages()),
        LocalBudget::Percent(percent) => (f64::from(accesses.pages()) * percent / 100.0) as u64,
    };
    u32::try_from(pages).unwrap_or(u32::MAX).max(1)
}

fn replayed(loaded: &Loaded, policies: &[ReplayPolicy], local: LocalBudget) -> Report {
    let accesses = &loaded.accesses;
    let local_pages = local_pages(accesses, local);
    let settings = Settings::usual(local_pages);
    let without = ReplayPolicy::None.replay(accesses, &settings);
    let policies = policies.iter().map(|policy| {
        let counts = if *policy == ReplayPolicy::None { without } else { policy.replay(accesses, &settings) };
        policy_report(*policy, &counts, &without)
    });
    let policies = policies.collect();
    let faults = refaulted(accesses, &settings.with(PrefetchPolicy::None.prefetcher()));
    Report { trace: loaded.overview.clone(), local_pages, faults: without.refaults, policies, runs: runs(&faults) }
}

fn policy_report(policy: ReplayPolicy, counts: &Counts, without: &Counts) -> PolicyReport {
    let rate = |is_known: bool, rate: f64| is_known.then_some(rate);
    PolicyReport {
        name: policy.name(),
        faults_left: counts.refaults,
        pages_prefetched: counts.prefetched,
        accuracy: rate(counts.prefetched > 0, counts.accuracy()),
        coverage: rate(counts.prefetched > 0, counts.coverage()),
        timeliness: rate(counts.prefetch_used > 0, counts.timeliness()),
        pollution: rate(counts.prefetched > 0 && without.refaults > 0, counts.pollution(without)),
        waited_ms: counts.lost_ns as f64 / 1e6,
    }
}

/// The windows of all processes, and of all threads, seen both ways.
fn runs(faults: &[Refault]) -> Vec<RunsReport> {
    let space = |fault: &Refault| (space_of(fault.page).0, 0_u32);
    let thread = |fault: &Refault| (space_of(fault.page).0, fault.thread);
    let mut runs = Vec::new();
    for (by, key) in [("process", &space as &dyn Fn(&Refault) -> (u32, u32)), ("thread", &thread)] {
        let mut apart: BTreeMap<(u32, u32), Vec<PageNumber>> = BTreeMap::new();
        faults.iter().for_each(|fault| apart.entry(key(fault)).or_default().push(fault.page));
        for (look, name) in [(Look::Strict, "strict"), (Look::Majority, "majority")] {
            let all = apart.values().map(|faults| windows(faults, look)).fold(Windows::default(), Windows::and);
            runs.push(RunsReport::new(by, name, all));
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::loaded::tests::loaded;

    fn report(faults: impl IntoIterator<Item = (u32, u32, u64)>) -> Report {
        replayed(&loaded(faults).unwrap(), &ReplayPolicy::ALL, LocalBudget::Percent(50.0))
    }

    #[test]
    fn a_sequence_is_found_and_foreseen() {
        let report = report((0..4000).map(|page| (1, 1, page % 2000)));
        let of = |name: &str| report.policies.iter().find(|policy| policy.name == name).unwrap();
        assert_eq!((report.local_pages, report.faults), (1000, of("none").faults_left));
        assert!(of("streams").coverage > Some(0.9) && of("streams").faults_left < report.faults / 10, "{report:#?}");
        assert_eq!((of("none").accuracy, of("none").pages_prefetched), (None, 0));
        assert!(report.runs.iter().all(|runs| runs.sequential > 0.8), "{:#?}", report.runs);
    }

    #[test]
    fn threads_hide_each_others_sequences_from_their_process() {
        // A page of one, two of the other.
        let steps =
            (0..3000).map(|step| if step % 3 == 0 { (1, 1, step / 3) } else { (1, 2, 90_000 + step - step / 3) });
        let report = report(steps);
        let of = |by: &str, look: &str| report.runs.iter().find(|runs| runs.by == by && runs.look == look).unwrap();
        assert!(of("process", "strict").sequential < 0.01, "{:#?}", report.runs);
        assert!(of("thread", "strict").sequential > 0.99, "{:#?}", report.runs);
    }

    #[test]
    fn local_memory_is_a_size_or_a_share() {
        let trace = loaded((0..1000).map(|page| (1, 1, page))).unwrap();
        let pages = |text: &str| local_pages(&trace.accesses, text.parse().unwrap());
        assert_eq!([pages("50%"), pages("1M"), pages("0.01%"), pages("1000T")], [500, 256, 1, u32::MAX]);
    }
}
