//! Small traces by hand, and any trace against what must always hold.

use proptest::prelude::*;

use super::*;
use crate::prefetch::leap::Leap;
use crate::prefetch::linux_vma::LinuxVma;
use crate::prefetch::read_ahead::ReadAhead;
use crate::prefetch::selection::{PrefetchPolicy, SelectedPrefetcher};
use crate::replacement::clock::Clock;
use crate::replay::accesses::tests::{accesses, accesses_of};

fn clock(pages: u32, capacity: u32) -> Box<dyn Replacement> {
    Box::new(Clock::new(pages, capacity))
}

/// Pages leave in the order in which they came, unless something speaks for them.
fn settings(budget: u32) -> Settings<SelectedPrefetcher> {
    let settings = Settings { staging_thousandths: 0, policy: clock, ..Settings::usual(budget) };
    settings.with(PrefetchPolicy::None.prefetcher())
}

fn reads(pages: impl IntoIterator<Item = u64>) -> Accesses {
    accesses(&pages.into_iter().map(|page| (page, false)).collect::<Vec<_>>())
}

#[test]
fn a_loop_that_does_not_fit_refaults_always() {
    let twice = reads((0..10).chain(0..10));
    let counts = replay(&twice, &settings(5));
    assert_eq!((counts.refaults, counts.evicted, counts.written), (10, 15, 0), "what is only read is not written");
    assert_eq!(counts.lost_ns, 10 * (LOCAL_FAULT_NS + EXCHANGE_NS));
    assert_eq!(replay(&twice, &settings(10)).evicted, 0);
}

#[test]
fn staged_pages_come_back_cheaply() {
    // Two resident, two staged: page 0 is staged when it is touched again, page 1 in its turn too.
    let trace = reads([0, 1, 2, 0, 1, 3, 4, 5, 6, 7, 0]);
    let counts = replay(&trace, &Settings { staging_thousandths: 500, ..settings(4) });
    assert_eq!((counts.staged_hits, counts.refaults), (2, 1));
    assert_eq!(counts.lost_ns, 3 * LOCAL_FAULT_NS + EXCHANGE_NS);
    let none = Settings { staging_thousandths: 500, stages_clean: false, ..settings(4) };
    assert_eq!(replay(&trace, &none).staged_hits, 0, "pages that need no write are not staged");
}

#[test]
fn writes_make_pages_dirty_once() {
    let trace = accesses(&[(0, false), (0, true), (0, true), (1, false), (2, false), (0, true), (0, true)]);
    let counts = replay(&trace, &settings(1));
    assert_eq!((counts.refaults, counts.write_faults, counts.written), (1, 1, 1), "a write fault fills writable");
}

#[test]
fn neighbours_are_written_together() {
    let trace = accesses(&(0..640).map(|page| (page, true)).collect::<Vec<_>>());
    let counts = replay(&trace, &settings(320));
    assert!(counts.written >= 5 * counts.write_requests, "batches of five: {counts:?}");
}

#[test]
fn windows_come_in_time_or_late() {
    let scan = reads((0..4000).chain(0..4000));
    let none = replay(&scan, &settings(2000));
    let alone = replay(&scan, &settings(2000).with(ReadAhead::default()));
    let adapting = replay(&scan, &settings(2000).with(PrefetchPolicy::Streams.prefetcher()));
    assert_eq!((none.refaults, none.prefetched, none.marker_faults), (4000, 0, 0));
    for counts in [alone, adapting] {
        assert!(counts.refaults < 400 && counts.coverage() > 0.9 && counts.accuracy() > 0.9, "{counts:?}");
        assert!(counts.marker_faults > 2 && counts.lost_ns < none.lost_ns / 2, "{counts:?}");
    }
}

#[test]
fn pages_that_stay_unmapped_cost_a_cheap_fault_each() {
    let scan = reads((0..4000).chain(0..4000));
    let with = |leap: Leap| replay(&scan, &settings(2000).with(leap));
    let (unmapped, mapped) = (with(Leap::by_process()), with(Leap::mapped()));
    assert!(unmapped.coverage() > 0.85 && mapped.coverage() > 0.95, "{unmapped:?} {mapped:?}");
    assert_eq!(unmapped.marker_faults, unmapped.prefetch_used);
    assert!(mapped.marker_faults < mapped.prefetch_used / 6, "one for each window: {mapped:?}");
}

#[test]
fn refaults_are_told_in_their_order() {
    let twice = reads((0..10).chain(0..10));
    let refaults = (0..10).map(|page| Refault { page: PageNumber(page), thread: 0 });
    assert_eq!(refaulted(&twice, &settings(5)), refaults.collect::<Vec<_>>());
}

#[test]
fn a_loop_that_fits_comes_to_stay_whatever_is_there() {
    // Its pages leave for others, neighbours or scattered, of which none is needed again. Then it goes on, over
    // half of the memory.
    for distance in [1, 2] {
        let others = (0..4000).map(|page| 1000 + distance * page);
        let trace = reads((0..1000).chain(others).chain((0..30).flat_map(|_| 0..1000)));
        let settings = Settings { policy: sampled, ..settings(2000) };
        let mut memory = Memory::new(&trace, &settings.with(ReadAhead::default()));
        let mut came = |accesses: &[Access]| {
            let before = memory.counts.refaults + memory.counts.prefetched;
            accesses.iter().for_each(|access| memory.access(access));
            memory.counts.refaults + memory.counts.prefetched - before
        };
        let (first, last) = trace.as_slice().split_at(trace.as_slice().len() - 1000);
        assert!(came(first) > 3000, "it is not there for a while");
        assert_eq!(came(last), 0, "it is in the end, beside others with {distance} between");
    }
}

#[test]
fn pages_of_major_faults_are_away_from_the_start() {
    let pages: Vec<(u64, bool)> = (0..64).map(|page| (page, false)).collect();
    let of = |kind| replay(&accesses_of(kind, &pages), &settings(100).with(ReadAhead::default()));
    let (fresh, away) = (of(Kind::Faults), of(Kind::MajorFaults));
    assert_eq!((fresh.refaults, fresh.prefetched), (0, 0), "first touches of fresh memory");
    assert!(away.refaults < 10 && away.refaults + away.prefetch_used == 64, "{away:?}");
    assert_eq!(away.prefetched, away.prefetch_used, "pages that the trace does not have are not there to come");
}

#[test]
fn address_spaces_are_kept_apart() {
    let other = |page| crate::trace::page_in(1, PageNumber(page)).unwrap().0;
    let steps: Vec<(u64, bool)> = (0..500).flat_map(|page| [(page, false), (other(9000 - page), false)]).collect();
    let trace = accesses_of(Kind::MajorFaults, &steps);
    // This one looks at all faults of a process, whichever thread they are of.
    let counts = replay(&trace, &settings(400).with(LinuxVma::default()));
    assert!(counts.coverage() > 0.8, "one goes up and one goes down: {counts:?}");
}

fn any_settings() -> impl Strategy<Value = Settings<SelectedPrefetcher>> {
    let policy = proptest::sample::select(vec![clock as BuildReplacement, sampled]);
    let policies = [PrefetchPolicy::None, PrefetchPolicy::Streams, PrefetchPolicy::Leap];
    let prefetcher = proptest::sample::select(policies.map(PrefetchPolicy::prefetcher).to_vec());
    (2_u32..60, 0_u32..600, any::<bool>(), policy, prefetcher).prop_map(
        |(budget, staging_thousandths, stages_clean, policy, prefetcher)| Settings {
            budget,
            staging_thousandths,
            stages_clean,
            policy,
            prefetcher,
        },
    )
}

fn any_kind() -> impl Strategy<Value = Kind> {
    proptest::sample::select(vec![Kind::Touches, Kind::Faults, Kind::MajorFaults])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn pages_are_never_lost(
        steps in proptest::collection::vec((0_u64..100, any::<bool>()), 1..600), settings in any_settings(),
        kind in any_kind()
    ) {
        let trace = accesses_of(kind, &steps);
        let mut memory = Memory::new(&trace, &settings);
        for access in trace.as_slice() {
            memory.access(access);
            let in_state = |state| memory.pages.iter().filter(|page| page.state == state).count();
            prop_assert_eq!(in_state(State::Resident), memory.policy.listed() as usize);
            prop_assert_eq!(in_state(State::Staged), memory.staged);
            prop_assert!(in_state(State::Resident) <= memory.resident_max as usize);
            prop_assert!(memory.staged <= memory.staging_max);
        }
        let counts = memory.counts;
        prop_assert!(counts.prefetch_used <= counts.prefetched && counts.prefetch_late <= counts.prefetch_used);
        prop_assert!(counts.write_requests <= counts.written && counts.written <= counts.evicted);
    }
}
