//! Every policy of replacement: against plain models, and what all of them promise. Each call runs under an allocator
//! that aborts, as the eviction thread must not allocate.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod replacement_support;

use std::collections::BTreeSet;

use proptest::prelude::*;
use spillway_policy::replacement::{Arrival, CachePage, Evidence, LEAVING_MAX, Replacement, Shadows};
use spillway_research::replacement::Policy;
use spillway_sys::allocation_guard::{GuardedAllocator, forbid_allocation};

use replacement_support::Model;

#[global_allocator]
static ALLOCATOR: GuardedAllocator = GuardedAllocator;

/// Pages of the models.
const PAGES: u32 = 40;

#[derive(Clone, Copy, Debug)]
enum Step {
    Insert(u32, Arrival),
    Touch(u32, Evidence),
    Remove(u32),
    Refuse(u32),
    Evict(usize),
    Resize(u32),
}

fn step() -> impl Strategy<Value = Step> {
    let arrival = prop_oneof![
        3 => Just(Arrival::New),
        2 => (0_u32..60).prop_map(|distance| Arrival::Refault { distance }),
        1 => Just(Arrival::Staged),
        2 => Just(Arrival::Prefetched),
    ];
    let evidence = prop_oneof![Just(Evidence::Written), Just(Evidence::PrefetchUsed), Just(Evidence::Referenced)];
    prop_oneof![
        8 => (0..PAGES, arrival).prop_map(|(page, arrival)| Step::Insert(page, arrival)),
        4 => (0..PAGES, evidence).prop_map(|(page, evidence)| Step::Touch(page, evidence)),
        1 => (0..PAGES).prop_map(Step::Remove),
        1 => (0..PAGES).prop_map(Step::Refuse),
        3 => (0_usize..8).prop_map(Step::Evict),
        1 => (1_u32..30).prop_map(Step::Resize),
    ]
}

/// Does a step without allocating; gives the victims.
fn apply(policy: &mut dyn Replacement, step: Step, apart: u32, room: &mut [CachePage; 8]) -> usize {
    let page = |page: u32| CachePage(page * apart);
    forbid_allocation(|| {
        match step {
            Step::Insert(number, arrival) => policy.inserted(page(number), arrival),
            Step::Touch(number, evidence) => policy.touched(page(number), evidence),
            Step::Remove(number) => policy.removed(page(number)),
            Step::Refuse(number) => policy.refused(page(number)),
            Step::Evict(count) => return policy.victims(&mut room[..count]),
            Step::Resize(pages) => policy.resize(pages),
        }
        0
    })
}

fn with_models() -> impl Strategy<Value = Policy> {
    proptest::sample::select(Policy::ALL.into_iter().filter(|policy| *policy != Policy::Sampled).collect::<Vec<_>>())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Pages lie a group apart, so none leaves as a neighbour.
    #[test]
    fn policies_are_what_their_models_are(
        policy in with_models(), capacity in 1_u32..30, steps in proptest::collection::vec(step(), 0..200)
    ) {
        let mut real = policy.build(PAGES * LEAVING_MAX, capacity);
        let (mut model, mut room) = (Model::new(policy, capacity), [CachePage(0); 8]);
        // The budget stays what the model knows.
        for step in steps.into_iter().filter(|step| !matches!(step, Step::Resize(_))) {
            let count = apply(real.as_mut(), step, LEAVING_MAX, &mut room);
            match step {
                Step::Insert(page, arrival) => model.inserted(page, arrival),
                Step::Touch(page, _) => model.touched(page),
                Step::Remove(page) => model.removed(page),
                Step::Refuse(page) => model.refused(page),
                Step::Evict(wanted) => {
                    let expected: Vec<_> = (0..wanted).map_while(|_| model.victim()).collect();
                    let found: Vec<_> = room[..count].iter().map(|page| page.0 / LEAVING_MAX).collect();
                    prop_assert_eq!(found, expected, "{}", policy.name());
                }
                Step::Resize(_) => {}
            }
            prop_assert_eq!(real.listed() as usize, model.listed(), "{}", policy.name());
        }
    }

    /// Pages are neighbours, and leave together.
    #[test]
    fn no_page_is_lost_or_listed_twice(
        policy in proptest::sample::select(Policy::ALL.to_vec()), capacity in 1_u32..30,
        steps in proptest::collection::vec(step(), 0..200)
    ) {
        let mut real = policy.build(PAGES / 2, capacity);
        real.grow(PAGES);
        let (mut listed, mut room) = (BTreeSet::new(), [CachePage(0); 8]);
        for step in steps.into_iter().chain([Step::Evict(8); PAGES as usize / 8]) {
            let count = apply(real.as_mut(), step, 1, &mut room);
            match step {
                Step::Insert(page, _) | Step::Refuse(page) => drop(listed.insert(page)),
                Step::Remove(page) => drop(listed.remove(&page)),
                Step::Evict(wanted) => {
                    prop_assert_eq!(count, wanted.min(listed.len()), "all that are wanted, or all there are");
                    for victim in &room[..count] {
                        prop_assert!(listed.remove(&victim.0), "{} was listed, once", victim.0);
                    }
                }
                Step::Touch(..) | Step::Resize(_) => {}
            }
            prop_assert_eq!(real.listed() as usize, listed.len(), "{}", policy.name());
        }
        prop_assert!(listed.is_empty(), "every page leaves in the end");
    }
}

fn policies(pages: u32, capacity: u32) -> impl Iterator<Item = (Policy, Box<dyn Replacement>)> {
    Policy::ALL.into_iter().map(move |policy| (policy, policy.build(pages, capacity)))
}

#[test]
fn prefetched_pages_without_a_reader_leave_first() {
    for (name, mut policy) in policies(2000, 1000) {
        (0..400).for_each(|page| policy.inserted(CachePage(page), Arrival::New));
        (1000..1400).for_each(|page| policy.inserted(CachePage(page), Arrival::Prefetched));
        policy.touched(CachePage(1000), Evidence::PrefetchUsed);
        let mut room = [CachePage(0); 200];
        assert_eq!(policy.victims(&mut room), 200);
        assert!(room.iter().all(|page| (1001..1400).contains(&page.0)), "{name:?}");
    }
}

#[test]
fn a_refused_page_is_not_offered_at_once() {
    for (name, mut policy) in policies(10 * LEAVING_MAX, 160) {
        (0..10).for_each(|page| policy.inserted(CachePage(page * LEAVING_MAX), Arrival::New));
        let mut room = [CachePage(0)];
        policy.victims(&mut room);
        let refused = room[0];
        policy.refused(refused);
        let mut room = [CachePage(0); 5];
        assert_eq!(policy.victims(&mut room), 5);
        assert!(!room.contains(&refused), "{name:?}");
    }
}

#[test]
fn what_is_learnt_keeps_a_page() {
    for (name, mut policy) in policies(100 * LEAVING_MAX, 50) {
        (0..50).for_each(|page| policy.inserted(CachePage(page * LEAVING_MAX), Arrival::New));
        (0..5).for_each(|page| policy.touched(CachePage(page * LEAVING_MAX), Evidence::Written));
        let mut room = [CachePage(0); 10];
        policy.victims(&mut room);
        let touched = room.iter().filter(|page| page.0 < 5 * LEAVING_MAX).count();
        // A look by chance spends evidence too, so the page may leave at the next one.
        let most = match name {
            Policy::Fifo => 5,
            Policy::Sampled => 2,
            _ => 0,
        };
        assert!(touched <= most, "{name:?}: {touched} of the five left");
    }
}

/// How many of `rounds` rounds through `pages` pages are refaults, in a memory of `capacity` pages.
fn refaults_of_a_loop(policy: &mut dyn Replacement, pages: u32, capacity: u32, rounds: u32) -> u32 {
    let (mut resident, mut shadows, mut refaults) = (BTreeSet::new(), Shadows::new(pages), 0);
    for page in (0..rounds * pages).map(|step| CachePage(step % pages)) {
        if resident.insert(page) {
            let distance = shadows.distance(page);
            refaults += u32::from(distance.is_some());
            policy.inserted(page, distance.map_or(Arrival::New, |distance| Arrival::Refault { distance }));
        }
        if resident.len() > capacity as usize {
            let mut room = [CachePage(0); 4];
            let count = policy.victims(&mut room);
            for victim in &room[..count] {
                shadows.left(*victim);
                assert!(resident.remove(victim));
            }
        }
    }
    refaults
}

#[test]
fn chance_keeps_a_part_of_a_loop_that_does_not_fit() {
    let of = |policy: Policy| refaults_of_a_loop(policy.build(1200, 900).as_mut(), 1200, 900, 8);
    assert_eq!(of(Policy::Fifo), 7 * 1200, "first in, first out evicts what comes next");
    assert!(of(Policy::Sampled) < 7 * 1200 * 3 / 4, "{}", of(Policy::Sampled));
    assert_eq!(of(Policy::Sampled), of(Policy::Sampled), "a seed fixes it");
}

#[test]
fn what_a_stream_has_passed_leaves_before_others_but_for_the_last_of_it() {
    let mut policy = Policy::Sampled.build(8000, 1600);
    // None has a neighbour.
    (0..800).for_each(|page| policy.inserted(CachePage(4 * page), Arrival::New));
    // A sixteenth of the budget stays behind.
    let (passed, behind) = (4000..4600, 100);
    for page in passed.clone().map(CachePage) {
        policy.inserted(page, Arrival::Prefetched);
        policy.touched(page, Evidence::PrefetchUsed);
    }
    // Of these something else was learnt.
    (4000..4010).for_each(|page| policy.touched(CachePage(page), Evidence::Written));
    let mut room = [CachePage(0); 1000];
    let count = passed.len() - behind - 10;
    assert_eq!(policy.victims(&mut room[..count]), count);
    let (of_stream, others): (Vec<CachePage>, Vec<CachePage>) = room[..count].iter().partition(|page| page.0 >= 4010);
    assert!(of_stream.iter().all(|page| page.0 < 4600 - behind as u32), "{of_stream:?}");
    assert!((1..=count / 64).contains(&others.len()), "one in 64 is tried: {others:?}");
    assert_eq!(policy.victims(&mut room[..200]), 200);
    let others = room[..200].iter().filter(|page| page.0 < 4010).count();
    assert!(others > 50, "by chance from now on: {others}");
    assert_eq!(policy.victims(&mut room), 1400 - count - 200, "in the end all");
}

#[test]
fn chance_finds_victims_among_many_unused_numbers() {
    let mut policy = Policy::Sampled.build(1_000_000, 10);
    (0..10).for_each(|page| policy.inserted(CachePage(page * 90_000), Arrival::New));
    (0..9).for_each(|page| policy.touched(CachePage(page * 90_000), Evidence::Written));
    let mut room = [CachePage(0); 10];
    assert_eq!(policy.victims(&mut room), 10);
    assert_eq!(room[0], CachePage(9 * 90_000), "the one without evidence");
}

#[test]
fn without_a_page_there_is_no_victim() {
    for kind in Policy::ALL {
        let mut policy = kind.build(0, 8);
        assert_eq!(policy.victims(&mut [CachePage(0); 4]), 0, "{kind:?} before any page number");
        policy.grow(PAGES);
        assert_eq!(policy.victims(&mut [CachePage(0); 4]), 0, "{kind:?} before any page");
    }
}

#[test]
fn metadata_of_a_page_is_small() {
    for (name, policy) in policies(10, 5) {
        assert!(policy.bytes_per_page() <= 16, "{name:?}");
    }
}

#[test]
fn names_are_distinct() {
    let names: BTreeSet<_> = Policy::ALL.iter().map(|policy| policy.name()).collect();
    assert_eq!(names.len(), Policy::ALL.len());
}
