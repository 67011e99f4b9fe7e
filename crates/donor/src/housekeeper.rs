//! The donor's background thread: looks at the machine's memory, prepares slabs, and asks for slabs back.

use std::collections::BTreeMap;
use std::sync::{Arc, MutexGuard};
use std::time::Instant;

use spillway_fabric::units::SlabHandle;

use crate::donor_state::{DonorState, State};
use crate::eviction::Eviction;
use crate::host_memory;
use crate::leases::{Lease, SessionId};
use crate::limits::{RECALL_DEADLINE, SAMPLE_INTERVAL};
use crate::preparation::{Step, next};
use crate::random::Random;
use crate::session::Session;
use crate::slab_memory::SlabMemory;

/// What the thread keeps to itself.
pub(crate) struct Housekeeper {
    shared: Arc<DonorState>,
    prepared_count: usize,
    random: Random,
    sampled: Instant,
    /// Making a slab failed; not tried again before the next sample.
    exhausted: bool,
}

/// Messages to send once the lock is released.
type Demands = Vec<(Arc<Session>, Demand)>;

enum Demand {
    Ask(u32, Vec<SlabHandle>),
    Recall(Vec<SlabHandle>),
}

impl Housekeeper {
    pub(crate) fn new(shared: Arc<DonorState>, prepared_count: usize, seed: u64) -> Self {
        Self { shared, prepared_count, random: Random::new(seed), sampled: Instant::now(), exhausted: false }
    }

    /// Works until the donor stops.
    pub(crate) fn run(mut self) {
        let shared = Arc::clone(&self.shared);
        while !shared.is_stopping() {
            let now = Instant::now();
            self.sample(now);
            self.shared.expire_lingering(now);
            let demands = self.plan_recalls(&mut shared.lock(), now);
            send_demands(demands);
            if !self.tend_prepared() {
                let state = shared.lock();
                // A change that came before the lock is seen at the next sample at the latest.
                drop(shared.wait(state, SAMPLE_INTERVAL / 5));
            }
        }
    }

    fn sample(&mut self, now: Instant) {
        if now.duration_since(self.sampled) < SAMPLE_INTERVAL {
            return;
        }
        self.sampled = now;
        self.exhausted = false;
        match host_memory::sample() {
            Ok(sample) => self.shared.lock().capacity.observe(sample),
            Err(error) => tracing::warn!("the machine's memory cannot be looked at: {error}"),
        }
    }

    /// Makes or gives up one prepared slab, if that is wanted. Whether it did.
    fn tend_prepared(&mut self) -> bool {
        let shared = Arc::clone(&self.shared);
        let mut state = shared.lock();
        let holdings = state.holdings();
        if state.draining || state.capacity.prepared_excess_bytes(holdings) > 0 {
            return self.give_up(state, None);
        }
        let preparable_bytes = if self.exhausted { 0 } else { state.capacity.preparable_bytes(holdings) };
        match next(&state.sizes_in_use(), self.prepared_count, &state.prepared.sizes(), preparable_bytes) {
            Step::Prepare(size_bytes) => {
                state.capacity.taken(size_bytes);
                drop(state);
                self.prepare(size_bytes)
            }
            Step::GiveUp(size_bytes) => self.give_up(state, Some(size_bytes)),
            Step::Nothing => false,
        }
    }

    /// Makes one slab ahead, whose memory counts as taken already. Whether it could.
    fn prepare(&mut self, size_bytes: u64) -> bool {
        // Ahead of need: the process that waits for this CPU goes first.
        let made = SlabMemory::prepare(size_bytes, std::thread::yield_now);
        let mut state = self.shared.lock();
        match made {
            Ok(slab) => state.prepared.put(slab),
            Err(error) => {
                tracing::warn!("a slab of {size_bytes} bytes cannot be prepared: {error}");
                state.capacity.returned(size_bytes);
                self.exhausted = true;
            }
        }
        !self.exhausted
    }

    /// Gives the oldest prepared slab, of this size if one is named, back to the machine. Whether there was one.
    fn give_up(&self, mut state: MutexGuard<'_, State>, size_bytes: Option<u64>) -> bool {
        let slab = match size_bytes {
            Some(size_bytes) => state.prepared.take(size_bytes),
            None => state.prepared.take_any(),
        };
        let Some(slab) = slab else { return false };
        state.capacity.returned(slab.size_bytes());
        drop(state);
        // Freeing many pages takes a while; no process waits for the lock meanwhile.
        drop(slab);
        true
    }

    /// Decides what to ask back and whom to ask what.
    fn plan_recalls(&mut self, state: &mut MutexGuard<'_, State>, now: Instant) -> Demands {
        let mut wanted = state.leases.take_overdue(now, RECALL_DEADLINE);
        if !wanted.is_empty() {
            tracing::warn!("{} recalled slabs are overdue; asking for them again", wanted.len());
        }
        if state.draining {
            state.eviction = None;
            let all = state.leases.recallable().into_iter().map(|(lease, _)| lease).collect();
            wanted.extend(recall(state, all, now));
        } else if state.eviction.as_ref().is_some_and(|eviction| eviction.is_ready(now)) {
            let chosen = state.eviction.take().map(|eviction| eviction.choose()).unwrap_or_default();
            wanted.extend(recall(state, chosen, now));
        }
        let mut demands = group(state, &wanted);
        if state.eviction.is_none() && !state.draining {
            demands.extend(self.start_eviction(state, now));
        }
        demands
    }

    fn start_eviction(&mut self, state: &mut State, now: Instant) -> Demands {
        let wanted_bytes = state.capacity.shortage_bytes(state.holdings());
        if wanted_bytes == 0 {
            return Vec::new();
        }
        let request = state.evictions_next;
        state.evictions_next = request.wrapping_add(1);
        let eviction = Eviction::start(request, wanted_bytes, state.leases.recallable(), now, &mut self.random);
        let questions = eviction.as_ref().map(Eviction::questions).unwrap_or_default();
        state.eviction = eviction;
        let ask = |(session, slabs)| Some((Arc::clone(state.sessions.get(&session)?), Demand::Ask(request, slabs)));
        questions.into_iter().filter_map(ask).collect()
    }
}

/// Notes that these are asked back; those that were not already.
fn recall(state: &mut State, leases: Vec<Lease>, now: Instant) -> Vec<Lease> {
    leases.into_iter().filter(|lease| state.leases.recall(*lease, now + RECALL_DEADLINE)).collect()
}

/// One recall per session.
fn group(state: &State, leases: &[Lease]) -> Demands {
    let mut slabs: BTreeMap<SessionId, Vec<SlabHandle>> = BTreeMap::new();
    for lease in leases {
        slabs.entry(lease.session).or_default().push(lease.slab);
    }
    let demand = |(session, slabs)| Some((Arc::clone(state.sessions.get(&session)?), Demand::Recall(slabs)));
    slabs.into_iter().filter_map(demand).collect()
}

fn send_demands(demands: Demands) {
    for (session, demand) in demands {
        match demand {
            Demand::Ask(request, slabs) => session.ask_activity(request, &slabs),
            Demand::Recall(slabs) => {
                tracing::info!("{} slabs of volume {} are recalled", slabs.len(), session.volume);
                session.recall(&slabs, RECALL_DEADLINE.as_millis() as u32);
            }
        }
    }
}
