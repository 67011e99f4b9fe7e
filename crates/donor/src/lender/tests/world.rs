//! A machine without threads, sockets or memory: it keeps the books about a Lender's outputs, and panics when one of
//! them breaks a rule.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use spillway_fabric::control::message::{Hello, Message};
use spillway_fabric::limits::RESERVATION_TIME;
use spillway_fabric::units::{BorrowerId, SlabHandle};
use spillway_fabric::wire::{SessionToken, WIRE_VERSION};

use super::super::capacity::Capacity;
use super::super::leases::SessionId;
use super::super::{Input, Lender, LenderConfig, Make, Opening, Output, SlabId};
use crate::connections::Machine;
use crate::host_memory::{Bound, MemorySample};
use crate::limits::RECALL_DEADLINE;

/// Slabs of the tests.
pub(super) const SIZE: u64 = 1 << 20;

/// Slabs that the machine could make.
pub(super) const MACHINE_SLABS: u64 = 40;

pub(super) const HEADROOM_SLABS: u64 = 4;

/// See the module text.
pub(super) struct World {
    /// Where the next sessions come from.
    pub(super) machine: Machine,
    pub(super) lender: Lender,
    pub(super) now: Instant,
    /// Slabs that are there, with their sizes.
    pub(super) memory: BTreeMap<SlabId, u64>,
    pub(super) making: BTreeMap<SlabId, Make>,
    named: BTreeSet<SlabId>,
    /// What data connections find.
    pub(super) handles: BTreeMap<(SessionId, SlabHandle), SlabId>,
    owners: BTreeMap<SlabId, BorrowerId>,
    recalled: BTreeMap<SlabId, Instant>,
    /// Offers that stand: a lease by one is not refused before its slab fails to be made.
    pub(super) offers: BTreeMap<(SessionId, u32), Instant>,
    borrowers: BTreeMap<SessionId, BorrowerId>,
    pub(super) open: BTreeSet<SessionId>,
    /// Neither welcomed nor turned away.
    pub(super) waiting: BTreeSet<SessionId>,
    /// The secret of each session that was welcomed.
    pub(super) secrets: BTreeMap<SessionId, SessionToken>,
    /// Activity that was asked for.
    pub(super) questions: Vec<(SessionId, u32, Vec<SlabHandle>)>,
    pub(super) wake_at: Option<Instant>,
    /// All outputs.
    pub(super) log: Vec<Output>,
}

/// A machine with so much memory left, and no pressure.
pub(super) fn sample(slabs: u64) -> MemorySample {
    MemorySample { available_bytes: slabs * SIZE, bound: Bound::Machine, pressure_percent: None }
}

impl World {
    /// One that lends so much to one machine at most.
    pub(super) fn with_machine_limit(quota_slabs: u64, limit_slabs: u64) -> Self {
        let limit_bytes = Some(limit_slabs * SIZE);
        Self::with(quota_slabs, 0, 1, Instant::now(), limit_bytes)
    }

    /// A donor of up to `quota_slabs` slabs.
    pub(super) fn new(quota_slabs: u64, prepared_count: usize, seed: u64, now: Instant) -> Self {
        Self::with(quota_slabs, prepared_count, seed, now, None)
    }

    fn with(
        quota_slabs: u64,
        prepared_count: usize,
        seed: u64,
        now: Instant,
        machine_limit_bytes: Option<u64>,
    ) -> Self {
        let config = LenderConfig {
            quota_bytes: quota_slabs * SIZE,
            headroom_bytes: HEADROOM_SLABS * SIZE,
            machine_limit_bytes,
            prepared_count,
            slab_size_hint_bytes: SIZE,
            seed,
        };
        Self {
            machine: Machine::Here,
            lender: Lender::new(config, sample(MACHINE_SLABS)),
            now,
            memory: BTreeMap::new(),
            making: BTreeMap::new(),
            named: BTreeSet::new(),
            handles: BTreeMap::new(),
            owners: BTreeMap::new(),
            recalled: BTreeMap::new(),
            offers: BTreeMap::new(),
            borrowers: BTreeMap::new(),
            open: BTreeSet::new(),
            waiting: BTreeSet::new(),
            secrets: BTreeMap::new(),
            questions: Vec::new(),
            wake_at: None,
            log: Vec::new(),
        }
    }

    /// Brings an input, and does what follows.
    pub(super) fn feed(&mut self, input: Input) -> Vec<Output> {
        match &input {
            Input::Opened(opening) => {
                self.waiting.insert(opening.session);
                self.borrowers.insert(opening.session, opening.hello.borrower);
            }
            Input::Made { slab } => {
                let make = self.making.remove(slab).expect("only what is being made is made");
                self.memory.insert(*slab, make.size_bytes);
            }
            Input::MakeFailed { slab, .. } => assert!(self.making.remove(slab).is_some()),
            Input::Message { session, message: Message::Decline { request } } => {
                self.offers.remove(&(*session, *request));
            }
            // The machine's own needs come first.
            Input::Sample(_) | Input::Quota { .. } | Input::Drain => self.offers.clear(),
            _ => {}
        }
        self.offers.retain(|_, until| *until > self.now);
        let by_offer = match &input {
            Input::Message { session, message: Message::Lease { request } } => {
                self.offers.remove(&(*session, *request)).map(|_| *request)
            }
            _ => None,
        };
        let is_tick = input == Input::Tick;
        let released = match &input {
            Input::Message { session, message: Message::Release { slab } } => Some((*session, *slab)),
            _ => None,
        };
        let outputs = self.lender.on(self.now, input);
        outputs.iter().for_each(|output| self.apply(released, output));
        let is_refusal = |output: &Output| match output {
            Output::Send { message: Message::Refused { request, .. }, .. } => Some(*request) == by_offer,
            _ => false,
        };
        assert!(!outputs.iter().any(is_refusal), "a slab that was offered is lent: {outputs:?}");
        self.check();
        if is_tick {
            assert!(self.wake_at.is_none_or(|wake_at| wake_at > self.now), "it asks for a tick that just came");
        }
        self.log.extend(outputs.iter().cloned());
        outputs
    }

    fn apply(&mut self, released: Option<(SessionId, SlabHandle)>, output: &Output) {
        match output {
            Output::Welcome { session, resume, .. } => {
                assert!(self.waiting.remove(session) && self.open.insert(*session), "a session is welcomed once");
                self.secrets.insert(*session, *resume);
            }
            Output::Reject { session, .. } => assert!(self.waiting.remove(session), "an open session is not rejected"),
            Output::Send { session, message } => self.hear(*session, message),
            Output::End { session, .. } => {
                assert!(self.open.remove(session) || self.waiting.remove(session), "a session ends once");
                self.handles.retain(|(of, _), _| of != session);
                self.questions.retain(|(of, ..)| of != session);
                self.offers.retain(|(of, _), _| of != session);
            }
            Output::Make(make) => {
                assert!(self.named.insert(make.slab), "{:?} is another slab", make.slab);
                self.making.insert(make.slab, *make);
            }
            Output::Attach { slab, session, handle } => self.attach(*slab, *session, *handle),
            Output::Detach { session, handle } => {
                assert_eq!(released, Some((*session, *handle)), "no slab is taken away");
                assert!(self.handles.remove(&(*session, *handle)).is_some());
            }
            Output::Free { slab } => {
                assert!(self.memory.remove(slab).is_some(), "{slab:?} is not there");
                assert!(self.handles.values().all(|named| named != slab), "{slab:?} is in use");
                self.recalled.remove(slab);
            }
            Output::WakeAt(wake_at) => self.wake_at = *wake_at,
            Output::Note(_) => {}
        }
    }

    fn attach(&mut self, slab: SlabId, session: SessionId, handle: SlabHandle) {
        assert!(self.memory.contains_key(&slab), "{slab:?} was not made");
        assert!(self.handles.values().all(|named| *named != slab), "{slab:?} is in two leases");
        assert!(self.handles.insert((session, handle), slab).is_none(), "a handle names one slab");
        let borrower = self.borrowers[&session];
        assert_eq!(*self.owners.entry(slab).or_insert(borrower), borrower, "no borrower gets another one's slab");
    }

    fn hear(&mut self, session: SessionId, message: &Message) {
        assert!(self.open.contains(&session), "{message:?} is for a session that is open");
        match message {
            Message::Leased { slab, .. } | Message::Held { slab, .. } => {
                assert!(self.handles.contains_key(&(session, *slab)), "a slab is there before its borrower is told");
            }
            Message::Recall { slabs, .. } => {
                for handle in slabs {
                    let slab = self.handles[&(session, *handle)];
                    let before = self.recalled.insert(slab, self.now);
                    assert!(
                        before.is_none_or(|before| self.now >= before + RECALL_DEADLINE),
                        "asked for again too soon"
                    );
                }
            }
            Message::RecallWithdrawn { slabs } => {
                for handle in slabs {
                    let slab = self.handles[&(session, *handle)];
                    assert!(self.recalled.remove(&slab).is_some(), "only what was asked back may stay after all");
                }
            }
            Message::Offered { request, is_reserved: true, free_bytes } => {
                assert!(*free_bytes >= SIZE, "a slab is kept where there is room for one");
                self.offers.insert((session, *request), self.now + RESERVATION_TIME);
            }
            Message::ActivityQuery { request, slabs } => {
                assert!(slabs.iter().all(|slab| self.handles.contains_key(&(session, *slab))));
                self.questions.push((session, *request, slabs.clone()));
            }
            _ => {}
        }
    }

    /// The Lender's sums are those of the books.
    fn check(&self) {
        let holdings = self.lender.holdings();
        let waits = |make: &&Make| make.wanted_by.is_some_and(|session| self.open.contains(&session));
        let booked_bytes: u64 = self.making.values().filter(waits).map(|make| make.size_bytes).sum();
        let there_bytes: u64 = self.memory.values().sum();
        assert_eq!(holdings.lent_bytes + holdings.prepared_bytes, there_bytes + booked_bytes);
        assert!(holdings.recalled_bytes <= holdings.lent_bytes);
        let offered_bytes = self.offers.len() as u64 * SIZE;
        assert!(holdings.reserved_bytes >= offered_bytes, "{offered_bytes} bytes are offered");
        let is_kept = |capacity: &Capacity| holdings.reserved_bytes <= capacity.reservable_bytes(holdings);
        assert!(self.lender.is_draining() || is_kept(self.lender.capacity()), "more is kept than could be lent");
        assert_eq!(self.lender.open_sessions().collect::<BTreeSet<_>>(), self.open);
    }

    /// Bytes that the donor has taken from the machine, or is about to.
    pub(super) fn taken_bytes(&self) -> u64 {
        self.memory.values().sum::<u64>() + self.making.values().map(|make| make.size_bytes).sum::<u64>()
    }

    /// Time passes.
    pub(super) fn pass(&mut self, time: Duration) {
        self.now += time;
        self.feed(Input::Tick);
    }

    /// All slabs under way are made, and those that are wanted then.
    pub(super) fn make_all(&mut self) {
        while let Some(slab) = self.making.keys().next().copied() {
            self.feed(Input::Made { slab });
        }
    }

    /// Opens a session that need not be welcomed.
    pub(super) fn knock(&mut self, session: u64, hello: Hello) -> SessionId {
        let session = SessionId(session);
        let mut secret = [0; 32];
        secret[..8].copy_from_slice(&session.0.to_le_bytes());
        let resume = SessionToken(secret);
        self.feed(Input::Opened(Opening { session, hello, machine: self.machine, passes_descriptors: true, resume }));
        session
    }

    /// Opens a session that is welcomed at once.
    pub(super) fn enter(&mut self, session: u64, hello: Hello) -> SessionId {
        let session = self.knock(session, hello);
        assert!(self.open.contains(&session));
        session
    }

    pub(super) fn say(&mut self, session: SessionId, message: Message) -> Vec<Output> {
        self.feed(Input::Message { session, message })
    }

    /// Asks for a slab, which is made if need be; its name if there is one.
    pub(super) fn lease(&mut self, session: SessionId) -> Option<SlabHandle> {
        let begin = self.log.len();
        self.say(session, Message::Lease { request: 7 });
        self.make_all();
        self.log[begin..].iter().find_map(|output| match output {
            Output::Send { session: to, message: Message::Leased { request: 7, slab, .. } } if *to == session => {
                Some(*slab)
            }
            _ => None,
        })
    }

    /// The slabs that `outputs` ask back.
    pub(super) fn recalled(outputs: &[Output]) -> Vec<(SessionId, SlabHandle)> {
        let slabs = |output: &Output| match output {
            Output::Send { session, message: Message::Recall { slabs, .. } } => {
                slabs.iter().map(|slab| (*session, *slab)).collect()
            }
            _ => Vec::new(),
        };
        outputs.iter().flat_map(slabs).collect()
    }
}

/// The hello of a borrower over TCP that asks for nothing special.
pub(super) fn hello(borrower: u128) -> Hello {
    Hello {
        version: WIRE_VERSION,
        borrower: BorrowerId(borrower),
        volume: format!("volume {borrower}"),
        slab_size_bytes: SIZE,
        wants_shared_memory: false,
        wants_rdma: false,
        linger_seconds: 0,
        patience_seconds: 0,
        resume: None,
    }
}
