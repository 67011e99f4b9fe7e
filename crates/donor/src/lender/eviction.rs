//! Which slabs to ask back: Infiniswap's decentralised batch eviction.
//!
//! To free E slabs, E + E' of those lent are sampled at random, their owners are asked for the activity of just
//! those, and the E least active are recalled. There are no global statistics. Owners that do not answer in time
//! count as fully active, so they lose a slab only when the others' do not suffice.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use std::collections::BTreeMap;
use std::time::Instant;

use spillway_fabric::units::SlabHandle;

use super::leases::{Lease, SessionId};
use super::random::Random;
use crate::limits::ACTIVITY_DEADLINE;

/// One eviction in progress.
#[derive(Clone, Debug)]
pub struct Eviction {
    request: u32,
    wanted_bytes: u64,
    candidates: BTreeMap<Lease, Candidate>,
    deadline: Instant,
}

#[derive(Clone, Copy, Debug)]
struct Candidate {
    size_bytes: u64,
    activity: Option<u64>,
}

impl Eviction {
    /// Samples candidates from `lent`, so many percent of what is wanted; `None` if nothing is lent.
    pub fn start(
        request: u32,
        wanted_bytes: u64,
        sample_percent: u64,
        mut lent: Vec<(Lease, u64)>,
        now: Instant,
        random: &mut Random,
    ) -> Option<Self> {
        random.shuffle(&mut lent);
        let sampled_bytes_min = wanted_bytes.saturating_mul(sample_percent.max(100)) / 100;
        let mut sampled_bytes = 0u64;
        let mut candidates = BTreeMap::new();
        for (lease, size_bytes) in lent {
            if sampled_bytes >= sampled_bytes_min {
                break;
            }
            sampled_bytes += size_bytes;
            candidates.insert(lease, Candidate { size_bytes, activity: None });
        }
        let deadline = now + ACTIVITY_DEADLINE;
        (!candidates.is_empty()).then_some(Self { request, wanted_bytes, candidates, deadline })
    }

    /// The number by which answers are known.
    pub fn request(&self) -> u32 {
        self.request
    }

    /// When it is time to choose, whatever is known then.
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Whom to ask about which slabs.
    pub fn questions(&self) -> BTreeMap<SessionId, Vec<SlabHandle>> {
        let mut questions: BTreeMap<SessionId, Vec<SlabHandle>> = BTreeMap::new();
        for lease in self.candidates.keys() {
            questions.entry(lease.session).or_default().push(lease.slab);
        }
        questions
    }

    /// `session` answered request `request`. Answers to other requests, and about slabs that were not asked for, count
    /// nothing.
    pub fn answer(&mut self, request: u32, session: SessionId, values: &[(SlabHandle, u64)]) {
        if request != self.request {
            return;
        }
        for (slab, activity) in values {
            if let Some(candidate) = self.candidates.get_mut(&Lease { session, slab: *slab }) {
                candidate.activity = Some(*activity);
            }
        }
    }

    /// Whether it is time to choose: everything is known, or the deadline has passed.
    pub fn is_ready(&self, now: Instant) -> bool {
        now >= self.deadline || self.candidates.values().all(|candidate| candidate.activity.is_some())
    }

    /// The least active candidates, as many as give the bytes wanted.
    pub fn choose(&self) -> Vec<Lease> {
        let mut order: Vec<(u64, Lease, u64)> = self
            .candidates
            .iter()
            .map(|(lease, candidate)| (candidate.activity.unwrap_or(u64::MAX), *lease, candidate.size_bytes))
            .collect();
        order.sort_unstable();
        let mut chosen_bytes = 0u64;
        let mut chosen = Vec::new();
        for (_, lease, size_bytes) in order {
            if chosen_bytes >= self.wanted_bytes {
                break;
            }
            chosen_bytes += size_bytes;
            chosen.push(lease);
        }
        chosen
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::limits::EVICTION_SAMPLE_PERCENT;

    fn lent(count: u32) -> Vec<(Lease, u64)> {
        (0..count).map(|slab| (Lease { session: SessionId(u64::from(slab % 3)), slab: SlabHandle(slab) }, 1)).collect()
    }

    fn answer_all(eviction: &mut Eviction, activity: impl Fn(SlabHandle) -> u64) {
        for (session, slabs) in eviction.questions() {
            let values: Vec<_> = slabs.into_iter().map(|slab| (slab, activity(slab))).collect();
            eviction.answer(eviction.request(), session, &values);
        }
    }

    #[test]
    fn the_least_active_of_the_sample_are_chosen() {
        let now = Instant::now();
        let mut eviction = Eviction::start(7, 5, EVICTION_SAMPLE_PERCENT, lent(100), now, &mut Random::new(1)).unwrap();
        assert_eq!(eviction.questions().values().map(Vec::len).sum::<usize>(), 10);
        assert!(!eviction.is_ready(now));
        answer_all(&mut eviction, |slab| u64::from(slab.0));
        assert!(eviction.is_ready(now));
        let chosen: Vec<u32> = eviction.choose().iter().map(|lease| lease.slab.0).collect();
        let mut sampled: Vec<u32> = eviction.candidates.keys().map(|lease| lease.slab.0).collect();
        sampled.sort_unstable();
        assert_eq!(chosen, sampled[..5]);
    }

    #[test]
    fn silent_owners_and_answers_to_other_questions_do_not_hold_it_up() {
        let now = Instant::now();
        let mut eviction = Eviction::start(7, 2, EVICTION_SAMPLE_PERCENT, lent(4), now, &mut Random::new(1)).unwrap();
        eviction.answer(6, SessionId(0), &[(SlabHandle(0), 1)]);
        eviction.answer(7, SessionId(1), &[(SlabHandle(1), 99), (SlabHandle(55), 0)]);
        assert!(!eviction.is_ready(now));
        assert!(eviction.is_ready(now + ACTIVITY_DEADLINE));
        let chosen = eviction.choose();
        assert_eq!(chosen.len(), 2);
        assert_eq!(chosen[0].slab, SlabHandle(1), "the only one known to be less than fully active");
    }

    #[test]
    fn nothing_lent_means_nothing_to_evict() {
        assert!(
            Eviction::start(1, 5, EVICTION_SAMPLE_PERCENT, Vec::new(), Instant::now(), &mut Random::new(1)).is_none()
        );
    }

    proptest! {
        #[test]
        fn enough_is_chosen_and_not_a_slab_more(count in 1u32..60, wanted in 1u64..80, seed in any::<u64>()) {
            let mut eviction = Eviction::start(1, wanted, EVICTION_SAMPLE_PERCENT, lent(count), Instant::now(), &mut Random::new(seed)).unwrap();
            answer_all(&mut eviction, |slab| u64::from(slab.0).wrapping_mul(seed));
            prop_assert_eq!(eviction.choose().len() as u64, wanted.min(u64::from(count)));
        }
    }
}
