//! Random inputs in a random order. The world checks each output; here are the rules about whole runs.

use std::time::{Duration, Instant};

use proptest::collection::vec;
use proptest::prelude::*;
use spillway_fabric::control::message::{Hello, Message};
use spillway_fabric::units::SlabHandle;

use super::super::capacity::Holdings;
use super::super::leases::SessionId;
use super::super::{Input, Output};
use super::world::{HEADROOM_SLABS, MACHINE_SLABS, SIZE, World, hello, sample};
use crate::host_memory::MemorySample;
use crate::limits::{LINGER_MAX, PRESSURE_PERCENT_MAX, RECALL_DEADLINE, RESUME_DEADLINE};

#[derive(Clone, Debug)]
enum Step {
    /// A borrower comes, perhaps to resume one of its sessions, perhaps with larger slabs.
    Open {
        borrower: u128,
        linger_seconds: u16,
        resumes: bool,
        is_large: bool,
    },
    Lease(usize),
    /// Asks with this number, declines, or takes what is kept for it.
    Ask(usize, u32),
    Decline(usize, u32),
    Take(usize, u32),
    Release(usize, u32),
    Answer(usize, u64),
    Say(usize, Message),
    Quiet(usize),
    Ended(usize),
    Gone(usize),
    Made(usize),
    MakeFailed(usize),
    Sample(u64, bool),
    Quota(u64),
    Drain,
    Undrain,
    Pass(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let session = || 0..12usize;
    let said = prop_oneof![
        Just(Message::Query { request: 1 }),
        Just(Message::Ping),
        Just(Message::Pong),
        Just(Message::Goodbye { reason: String::new() }),
        Just(Message::Activity { request: 0, values: vec![(SlabHandle(0), 3)] }),
    ];
    prop_oneof![
        4 => (0..4u128, prop_oneof![Just(0u16), Just(3), Just(100)], any::<bool>(), prop::bool::weighted(0.1))
            .prop_map(|(borrower, linger_seconds, resumes, is_large)| {
                Step::Open { borrower, linger_seconds, resumes, is_large }
            }),
        12 => session().prop_map(Step::Lease),
        8 => (session(), 10..20u32).prop_map(|(session, request)| Step::Ask(session, request)),
        2 => (session(), 10..20u32).prop_map(|(session, request)| Step::Decline(session, request)),
        8 => (session(), 10..20u32).prop_map(|(session, request)| Step::Take(session, request)),
        6 => (session(), 0..6u32).prop_map(|(session, slab)| Step::Release(session, slab)),
        6 => (any::<prop::sample::Index>(), any::<u64>()).prop_map(|(index, seed)| Step::Answer(index.index(8), seed)),
        2 => (session(), said).prop_map(|(session, message)| Step::Say(session, message)),
        3 => session().prop_map(Step::Quiet),
        2 => session().prop_map(Step::Ended),
        4 => session().prop_map(Step::Gone),
        12 => (0..4usize).prop_map(Step::Made),
        1 => (0..4usize).prop_map(Step::MakeFailed),
        4 => (0..=MACHINE_SLABS, prop::bool::weighted(0.2)).prop_map(|(slabs, presses)| Step::Sample(slabs, presses)),
        2 => (0..24u64).prop_map(Step::Quota),
        1 => prop::bool::weighted(0.3).prop_map(|drains| if drains { Step::Drain } else { Step::Undrain }),
        6 => prop_oneof![0..800u64, 800..40_000u64].prop_map(Step::Pass),
    ]
}

/// A world, and what a run has to remember besides.
struct Run {
    world: World,
    sessions: Vec<(SessionId, u128)>,
    quota_bytes: u64,
    /// The machine's own programs take nothing, and samples say so.
    is_steady: bool,
}

impl Run {
    fn new(seed: u64, start: Instant, is_steady: bool) -> Self {
        let quota_slabs = 16;
        let world = World::new(quota_slabs, 2, seed, start);
        Self { world, sessions: Vec::new(), quota_bytes: quota_slabs * SIZE, is_steady }
    }

    fn take(&mut self, step: &Step) {
        let lent_before = self.world.lender.holdings().lent_bytes;
        if let Some(input) = self.input(step) {
            self.world.feed(input);
        }
        let lent_bytes = self.world.lender.holdings().lent_bytes;
        assert!(lent_bytes <= lent_before.max(self.quota_bytes), "no lease goes beyond the quota");
        if self.is_steady {
            assert!(self.world.taken_bytes() <= (MACHINE_SLABS - HEADROOM_SLABS) * SIZE, "the headroom stays");
        }
    }

    fn input(&mut self, step: &Step) -> Option<Input> {
        let session = |index: &usize| self.sessions.get(*index).map(|(session, _)| *session);
        let message = |index: &usize, message| Some(Input::Message { session: session(index)?, message });
        match step {
            Step::Open { borrower, linger_seconds, resumes, is_large } => {
                self.open(*borrower, *linger_seconds, *resumes, *is_large);
                None
            }
            Step::Lease(index) => message(index, Message::Lease { request: 1 }),
            Step::Ask(index, request) => message(index, Message::Ask { request: *request }),
            Step::Decline(index, request) => message(index, Message::Decline { request: *request }),
            Step::Take(index, request) => message(index, Message::Lease { request: *request }),
            Step::Release(index, slab) => {
                // Now and then of a slab that is not there, which ends the session.
                message(index, Message::Release { slab: SlabHandle(*slab) })
            }
            Step::Answer(index, seed) => self.answer(*index, *seed),
            Step::Say(index, said) => message(index, said.clone()),
            Step::Quiet(index) => Some(Input::Quiet { session: session(index)? }),
            Step::Ended(index) => Some(Input::Ended { session: session(index)? }),
            Step::Gone(index) => {
                let session = session(index)?;
                let has_connection = self.world.open.contains(&session) || self.world.waiting.contains(&session);
                (!has_connection).then_some(Input::Gone { session })
            }
            Step::Made(index) => self.world.making.keys().nth(*index).map(|slab| Input::Made { slab: *slab }),
            Step::MakeFailed(index) => {
                let slab = *self.world.making.keys().nth(*index)?;
                Some(Input::MakeFailed { slab, reason: "no room".to_owned() })
            }
            Step::Sample(slabs, presses) => Some(Input::Sample(self.sample(*slabs, *presses))),
            Step::Quota(slabs) => {
                self.quota_bytes = slabs * SIZE;
                Some(Input::Quota { bytes: self.quota_bytes })
            }
            Step::Drain => Some(Input::Drain),
            Step::Undrain => Some(Input::Undrain),
            Step::Pass(milliseconds) => {
                self.world.now += Duration::from_millis(*milliseconds);
                Some(Input::Tick)
            }
        }
    }

    fn open(&mut self, borrower: u128, linger_seconds: u16, resumes: bool, is_large: bool) {
        let of_borrower = self.sessions.iter().rev().filter(|(_, of)| *of == borrower);
        let shown = of_borrower.filter_map(|(session, _)| self.world.secrets.get(session)).next().copied();
        let slab_size_bytes = if is_large { 2 * SIZE } else { SIZE };
        let hello = Hello { linger_seconds, resume: shown.filter(|_| resumes), slab_size_bytes, ..hello(borrower) };
        let session = self.world.knock(self.sessions.len() as u64, hello);
        self.sessions.push((session, borrower));
    }

    fn answer(&mut self, index: usize, seed: u64) -> Option<Input> {
        if index >= self.world.questions.len() {
            return None;
        }
        let (session, request, slabs) = self.world.questions.remove(index);
        let values = slabs.into_iter().map(|slab| (slab, seed.wrapping_mul(u64::from(slab.0) + 1))).collect();
        Some(Input::Message { session, message: Message::Activity { request, values } })
    }

    fn sample(&self, slabs: u64, presses: bool) -> MemorySample {
        if self.is_steady {
            let available_bytes = MACHINE_SLABS * SIZE - self.world.taken_bytes();
            return MemorySample { available_bytes, ..sample(0) };
        }
        MemorySample { pressure_percent: Some(if presses { PRESSURE_PERCENT_MAX } else { 0.0 }), ..sample(slabs) }
    }

    /// All borrowers go, and time passes.
    fn close(&mut self) {
        for (session, _) in self.sessions.clone() {
            self.world.feed(Input::Ended { session });
        }
        self.world.pass(RESUME_DEADLINE);
        assert!(self.world.waiting.is_empty(), "none waits longer for a welcome");
        for session in self.world.open.clone() {
            self.world.feed(Input::Ended { session });
        }
        self.world.pass(LINGER_MAX);
        self.world.feed(Input::Drain);
        self.world.make_all();
        assert_eq!((self.world.lender.slabs_lent(), self.world.memory.len()), (0, 0), "everything came back");
        let recalls = self.world.lender.recalls();
        assert_eq!((recalls.returned + recalls.withdrawn, recalls.overdue), (recalls.asked, 0));
        self.world.pass(RECALL_DEADLINE);
        assert_eq!(self.world.lender.holdings(), Holdings::default(), "no reservation is left");
        assert_eq!(self.world.wake_at, None, "nothing is left to wait for");
    }
}

fn play(steps: &[Step], seed: u64, start: Instant, is_steady: bool) -> Vec<Output> {
    let mut run = Run::new(seed, start, is_steady);
    steps.iter().for_each(|step| run.take(step));
    run.close();
    run.world.log
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_order_of_inputs_breaks_a_rule_and_a_seed_repeats_a_run(
        steps in vec(step(), 1..150), seed in any::<u64>(), is_steady in any::<bool>(),
    ) {
        let start = Instant::now();
        let log = play(&steps, seed, start, is_steady);
        prop_assert_eq!(&log, &play(&steps, seed, start, is_steady));
    }
}

/// The run above does reach what it is about.
#[test]
fn random_inputs_reach_all_that_a_lender_does() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;

    let mut runner = TestRunner::deterministic();
    let mut log = Vec::new();
    for seed in 0..60 {
        let steps = vec(step(), 150).new_tree(&mut runner).expect("the strategy has no filters").current();
        log.extend(play(&steps, seed, Instant::now(), seed % 2 == 0));
    }
    let has = |found: fn(&Output) -> bool| log.iter().any(found);
    assert!(has(|output| matches!(output, Output::Welcome { held: 1.., .. })));
    assert!(has(|output| matches!(output, Output::Send { message: Message::Recall { .. }, .. })));
    assert!(has(|output| matches!(output, Output::Send { message: Message::Refused { .. }, .. })));
    assert!(has(|output| matches!(output, Output::Send { message: Message::Offered { is_reserved: true, .. }, .. })));
    assert!(has(|output| matches!(output, Output::Send { message: Message::Offered { is_reserved: false, .. }, .. })));
    assert!(has(|output| matches!(output, Output::Send { message: Message::RecallWithdrawn { .. }, .. })));
    assert!(has(|output| matches!(output, Output::Note(super::super::Note::NotBack(_)))));
    assert!(has(|output| matches!(output, Output::Note(super::super::Note::Overdue(_)))));
    assert!(
        has(|output| matches!(output, Output::End { .. })) && has(|output| matches!(output, Output::Detach { .. }))
    );
}
