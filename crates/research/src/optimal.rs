//! The bound: how many faults a memory of so many pages costs at least (Belady 1966, "MIN": the page that is used last
//! leaves).
//!
//! It counts one page at a time, all of the budget, and no staging, so no policy and no pager reaches it; it shows
//! what is left to gain.

use std::collections::BinaryHeap;

use spillway_policy::replay::accesses::Accesses;

/// Never used again.
const NEVER: u32 = u32::MAX;

/// When the page of each access is accessed next.
fn next_uses(accesses: &Accesses) -> Vec<u32> {
    let mut next = vec![NEVER; accesses.page_end() as usize];
    let mut uses: Vec<u32> = accesses
        .as_slice()
        .iter()
        .enumerate()
        .rev()
        .map(|(index, access)| std::mem::replace(&mut next[access.page.0 as usize], index as u32))
        .collect();
    uses.reverse();
    uses
}

/// The fewest refaults in a memory of `capacity` pages: accesses to pages that were there before and had to leave.
pub fn refaults_min(accesses: &Accesses, capacity: u32) -> u64 {
    let uses = next_uses(accesses);
    // When each resident page is used next: what the heap says of a page is out of date unless it is the same.
    let mut resident: Vec<Option<u32>> = vec![None; accesses.page_end() as usize];
    let mut seen = vec![false; resident.len()];
    let (mut heap, mut count, mut refaults) = (BinaryHeap::new(), 0, 0);
    for (access, next) in accesses.as_slice().iter().zip(uses) {
        let page = access.page.0 as usize;
        if resident[page].is_none() {
            refaults += u64::from(std::mem::replace(&mut seen[page], true));
            if count == capacity.max(1) {
                let victim = loop {
                    let (use_at, victim): (u32, usize) = heap.pop().expect("every resident page is in the heap");
                    if resident[victim] == Some(use_at) {
                        break victim;
                    }
                };
                resident[victim] = None;
            } else {
                count += 1;
            }
        }
        resident[page] = Some(next);
        heap.push((next, page));
    }
    refaults
}

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, HashSet};

    use proptest::prelude::*;

    use super::*;
    use spillway_policy::prefetch::read_ahead::ReadAhead;
    use spillway_policy::replay::memory::{Settings, replay};

    use crate::replacement::Policy;
    use crate::replay::tests::accesses_of;

    fn reads(pages: &[u64]) -> Accesses {
        accesses_of(&pages.iter().map(|page| (*page, false)).collect::<Vec<_>>())
    }

    #[test]
    fn the_textbook_string_has_its_faults() {
        // Silberschatz, "Operating System Concepts": 9 faults with three frames, 6 of them first touches.
        let string = [7, 0, 1, 2, 0, 3, 0, 4, 2, 3, 0, 3, 2, 1, 2, 0, 1, 7, 0, 1];
        assert_eq!(refaults_min(&reads(&string), 3), 3);
    }

    #[test]
    fn a_loop_keeps_what_fits() {
        let twice: Vec<u64> = (0..10).chain(0..10).collect();
        assert_eq!(refaults_min(&reads(&twice), 10), 0);
        assert_eq!(refaults_min(&reads(&twice), 5), 5, "the first four stay, and the last one");
    }

    #[test]
    fn streams_come_and_go_beside_what_stays() {
        let scans = reads(&(0..6).flat_map(|_| 0..4000).collect::<Vec<_>>());
        let came = |policy: Policy| {
            let settings = Settings { staging_thousandths: 0, policy: policy.builder(), ..Settings::usual(2000) };
            let counts = replay(&scans, &settings.with(ReadAhead::default()));
            (counts.refaults + counts.prefetched) as f64 / refaults_min(&scans, 2000) as f64
        };
        // The share of the budget that is ahead of a stream and behind it is what the optimal order has more.
        assert!(came(Policy::Sampled) < 1.2, "{}", came(Policy::Sampled));
        assert!(came(Policy::Clock) > 1.9, "each time all of it: {}", came(Policy::Clock));
    }

    /// The fewest refaults by trying every victim.
    fn try_all(pages: &[u64], capacity: usize) -> u64 {
        let mut states: HashMap<Vec<u64>, u64> = HashMap::from([(Vec::new(), 0)]);
        let mut seen = HashSet::new();
        for page in pages {
            let cost = u64::from(!seen.insert(page));
            let mut next: HashMap<Vec<u64>, u64> = HashMap::new();
            let mut note = |mut memory: Vec<u64>, refaults: u64| {
                memory.sort_unstable();
                let known = next.entry(memory).or_insert(u64::MAX);
                *known = refaults.min(*known);
            };
            for (memory, refaults) in states {
                if memory.contains(page) {
                    note(memory, refaults);
                } else if memory.len() < capacity {
                    note([&memory[..], &[*page]].concat(), refaults + cost);
                } else {
                    for victim in 0..memory.len() {
                        let mut memory = memory.clone();
                        memory[victim] = *page;
                        note(memory, refaults + cost);
                    }
                }
            }
            states = next;
        }
        states.into_values().min().unwrap()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn no_choice_of_victims_is_better(pages in proptest::collection::vec(0_u64..6, 1..30), capacity in 1_usize..5) {
            prop_assert_eq!(refaults_min(&reads(&pages), capacity as u32), try_all(&pages, capacity));
        }

        #[test]
        fn no_policy_is_better(
            pages in proptest::collection::vec((0_u64..60, any::<bool>()), 1..300), budget in 1_u32..40,
            policy in proptest::sample::select(&Policy::ALL[..])
        ) {
            let trace = accesses_of(&pages);
            let settings = Settings { policy: policy.builder(), ..Settings::usual(budget) };
            let counts = replay(&trace, &settings.with(ReadAhead::default()));
            prop_assert!(counts.refaults + counts.prefetch_used >= refaults_min(&trace, budget));
        }
    }
}
