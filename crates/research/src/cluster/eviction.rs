//! Infiniswap's batch eviction by the product's [`Lender`], against the formula of its authors (NSDI '17, section 4.4,
//! figure 8).
//!
//! To free E slabs, E + E' of those lent are drawn, and the E least active leave. An eviction is good if none of them
//! is busy, which takes E lightly active slabs among those drawn. Of slabs that are each lightly active with the same
//! chance, the formula is a binomial sum. Borrowers answer as these slabs would.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use spillway_donor::connections::Machine;
use spillway_donor::host_memory::{Bound, MemorySample};
use spillway_donor::lender::leases::SessionId;
use spillway_donor::lender::{Input, Lender, LenderConfig, Opening, Output};
use spillway_fabric::control::message::{Hello, Message};
use spillway_fabric::units::{BorrowerId, SlabHandle};
use spillway_fabric::wire::{SessionToken, WIRE_VERSION};
use spillway_volume::steward::placement::{Random, XorShift};

use spillway_simulator::settings::SLAB_SIZE_BYTES;

/// Slabs that have to leave: E of the paper's figure.
pub const WANTED: usize = 10;

/// Borrowers of the donor.
const BORROWERS: usize = 8;

/// Slabs of each: the donor lends 16 GiB.
const SLABS_EACH: usize = 64;

/// Page I/Os a second of a lightly active slab, in thousandths, at most; a busy one has more.
const LIGHT_MAX: u64 = 20_000;

/// What the evictions of one kind came to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Findings {
    /// Of all evictions, those in which no busy slab left.
    pub good: f64,
    /// Of the slabs that left, the lightly active ones.
    pub light: f64,
    /// Messages of one eviction: questions, answers, recalls, releases and their answers.
    pub messages: f64,
    /// Slabs about which borrowers are asked.
    pub asked: f64,
}

/// The chance that at least `wanted` of `wanted + more` slabs are lightly active, each with the chance `light`.
pub fn formula(wanted: usize, more: usize, light: f64) -> f64 {
    let drawn = wanted + more;
    let ways = |count: usize| (0..count).fold(1.0, |ways, step| ways * (drawn - step) as f64 / (step + 1) as f64);
    let chance = |count: usize| ways(count) * light.powi(count as i32) * (1.0 - light).powi((drawn - count) as i32);
    (wanted..=drawn).map(chance).sum()
}

/// The donor and its borrowers.
struct World {
    lender: Lender,
    now: Instant,
    random: XorShift,
    busy_percent: usize,
    /// Which of the slabs that were asked about are busy.
    busy: Vec<(SessionId, SlabHandle)>,
    /// Slabs that have left, and how many of those were busy.
    left: (usize, usize),
    messages: u64,
    asked: u64,
}

impl World {
    fn new(more: usize, busy_percent: usize, seed: u64) -> Self {
        let memory = MemorySample { available_bytes: 1 << 40, bound: Bound::Machine, pressure_percent: None };
        let config = LenderConfig {
            quota_bytes: (BORROWERS * SLABS_EACH) as u64 * SLAB_SIZE_BYTES,
            headroom_bytes: 0,
            machine_limit_bytes: None,
            prepared_count: 0,
            slab_size_hint_bytes: SLAB_SIZE_BYTES,
            seed,
        };
        let percent = (100 * (WANTED + more)).div_ceil(WANTED) as u64;
        let mut world = Self {
            lender: Lender::new(config, memory).sampling(percent),
            now: Instant::now(),
            random: XorShift::new(seed.wrapping_mul(0x2545_F491_4F6C_DD1D)),
            busy_percent,
            busy: Vec::new(),
            left: (0, 0),
            messages: 0,
            asked: 0,
        };
        for borrower in 0..BORROWERS {
            world.feed(Input::Opened(opening(borrower)));
            (0..SLABS_EACH).for_each(|_| world.lease(SessionId(borrower as u64)));
        }
        world
    }

    fn feed(&mut self, input: Input) {
        let outputs = self.lender.on(self.now, input);
        for output in outputs {
            match output {
                Output::Make(make) => self.feed(Input::Made { slab: make.slab }),
                Output::Send { session, message } => self.hear(session, message),
                Output::Reject { reason, .. } => panic!("the donor takes these borrowers: {reason}"),
                _ => {}
            }
        }
    }

    fn lease(&mut self, session: SessionId) {
        self.feed(Input::Message { session, message: Message::Lease { request: 0 } });
    }

    fn answer(&mut self, session: SessionId, message: Message) {
        self.messages += 1;
        self.feed(Input::Message { session, message });
    }

    /// A borrower hears something.
    fn hear(&mut self, session: SessionId, message: Message) {
        match message {
            Message::ActivityQuery { request, slabs } => {
                self.messages += 1;
                self.asked += slabs.len() as u64;
                let values = slabs.into_iter().map(|slab| (slab, self.activity(session, slab))).collect();
                self.answer(session, Message::Activity { request, values });
            }
            Message::Recall { slabs, .. } => {
                self.messages += 1;
                for slab in slabs {
                    let is_busy = self.busy.contains(&(session, slab));
                    self.left = (self.left.0 + 1, self.left.1 + usize::from(is_busy));
                    self.answer(session, Message::Release { slab });
                }
            }
            Message::Released { .. } => self.messages += 1,
            Message::Refused { reason, .. } => panic!("there is room for every slab: {reason}"),
            _ => {}
        }
    }

    fn activity(&mut self, session: SessionId, slab: SlabHandle) -> u64 {
        let is_busy = self.random.below(100) < self.busy_percent;
        if is_busy {
            self.busy.push((session, slab));
        }
        let within = self.random.below(LIGHT_MAX as usize) as u64;
        if is_busy { LIGHT_MAX + 1 + within } else { within }
    }

    /// The donor's user takes memory for as many slabs as wanted, and gives it back. Slabs and busy ones that left.
    fn evict(&mut self) -> (usize, usize) {
        (self.left, self.now) = ((0, 0), self.now + Duration::from_secs(1));
        self.busy.clear();
        let all = (BORROWERS * SLABS_EACH) as u64;
        self.feed(Input::Quota { bytes: (all - WANTED as u64) * SLAB_SIZE_BYTES });
        let left = self.left;
        self.feed(Input::Quota { bytes: all * SLAB_SIZE_BYTES });
        for borrower in (0..BORROWERS).map(|borrower| SessionId(borrower as u64)) {
            (self.lender.slabs_held(borrower)..SLABS_EACH).for_each(|_| self.lease(borrower));
        }
        left
    }
}

fn opening(borrower: usize) -> Opening {
    let hello = Hello {
        version: WIRE_VERSION,
        borrower: BorrowerId(borrower as u128),
        volume: format!("volume-{borrower}"),
        slab_size_bytes: SLAB_SIZE_BYTES,
        wants_shared_memory: false,
        wants_rdma: false,
        linger_seconds: 0,
        patience_seconds: 2,
        resume: None,
    };
    let machine = Machine::At(Ipv4Addr::from_bits(borrower as u32).into());
    let resume = SessionToken([0; 32]);
    Opening { session: SessionId(borrower as u64), hello, machine, passes_descriptors: false, resume }
}

/// So many evictions of [`WANTED`] slabs with `more` drawn besides, while each slab is busy with a chance of
/// `busy_percent`.
pub fn run(more: usize, busy_percent: usize, evictions: usize, seed: u64) -> Findings {
    let mut world = World::new(more, busy_percent, seed);
    (world.messages, world.asked) = (0, 0);
    let (mut good, mut busy) = (0, 0);
    for _ in 0..evictions {
        let (left, left_busy) = world.evict();
        assert_eq!(left, WANTED, "as many leave as are wanted");
        good += usize::from(left_busy == 0);
        busy += left_busy;
    }
    let each = |count: u64| count as f64 / evictions as f64;
    Findings {
        good: each(good as u64),
        light: 1.0 - each(busy as u64) / WANTED as f64,
        messages: each(world.messages),
        asked: each(world.asked),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_formula_gives_the_papers_figures() {
        for (busy, expected) in [(0.2, [0.107, 0.558, 0.939, 0.999]), (0.5, [0.001, 0.019, 0.151, 0.588])] {
            for (more, expected) in [0, 2, 5, 10].into_iter().zip(expected) {
                let found = formula(WANTED, more, 1.0 - busy);
                assert!((found - expected).abs() < 0.0006, "E' {more}, {busy} busy: {found}, not {expected}");
            }
        }
    }

    #[test]
    fn the_lender_evicts_as_the_formula_says() {
        const EVICTIONS: usize = 1000;
        for (more, busy_percent) in [(0, 20), (2, 20), (5, 20), (10, 20), (5, 50), (10, 50)] {
            let found = run(more, busy_percent, EVICTIONS, 1);
            let expected = formula(WANTED, more, 1.0 - busy_percent as f64 / 100.0);
            // Four standard deviations of so many trials; the seed is fixed.
            let spread = 4.0 * (expected * (1.0 - expected) / EVICTIONS as f64).sqrt();
            assert!((found.good - expected).abs() <= spread, "E' {more}, {busy_percent} %: {found:?}, not {expected}");
            assert_eq!(found.asked, (WANTED + more) as f64);
        }
    }
}
