//! The donor's side of a machine: its memory, a [`Lender`], and slabs that have a content.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use spillway_donor::connections;
use spillway_donor::host_memory::{Bound, MemorySample};
use spillway_donor::lender::leases::SessionId;
use spillway_donor::lender::{Input, Lender, LenderConfig, Output, SlabId};
use spillway_fabric::units::SlabHandle;

use crate::links::LinkId;
use crate::settings::Settings;

/// Slabs that a donor keeps ready.
const PREPARED_COUNT: usize = 2;

/// What was written to a slab last: by which borrower, as which of its slabs, and which version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Content {
    /// A borrower that lives once.
    pub(crate) borrower: u64,
    /// Its slab.
    pub(crate) slab: u32,
    /// Of it.
    pub(crate) version: u64,
}

/// See the module text.
#[derive(Debug)]
pub(crate) struct Machine {
    /// `None` while it is switched off.
    pub(crate) lender: Option<Lender>,
    /// How often it was switched on.
    pub(crate) life: u32,
    /// Memory that its own programs use.
    pub(crate) local_bytes: u64,
    /// All of it.
    pub(crate) memory_bytes: u64,
    slab_size_bytes: u64,
    /// Packets from and to it are held back.
    pub(crate) is_cut: bool,
    /// Which link is which session.
    pub(crate) sessions: BTreeMap<SessionId, LinkId>,
    sessions_next: u64,
    /// What is in each slab.
    pub(crate) memory: BTreeMap<SlabId, Content>,
    making: BTreeSet<SlabId>,
    /// What data connections find.
    pub(crate) handles: BTreeMap<(SessionId, SlabHandle), SlabId>,
    /// The slabs of those.
    lent: BTreeSet<SlabId>,
    /// When its Lender wants to be asked again.
    pub(crate) wake_at: Option<Instant>,
}

/// How donors tell a borrower's machine from others.
pub(crate) fn seen_by_donors(borrower: usize) -> connections::Machine {
    connections::Machine::At(Ipv4Addr::from_bits(borrower as u32).into())
}

impl Machine {
    /// Switched off.
    pub(crate) fn new(settings: &Settings) -> Self {
        Self {
            lender: None,
            life: 0,
            local_bytes: 0,
            memory_bytes: settings.memory_slabs * settings.slab_size_bytes,
            slab_size_bytes: settings.slab_size_bytes,
            is_cut: false,
            sessions: BTreeMap::new(),
            sessions_next: 0,
            memory: BTreeMap::new(),
            making: BTreeSet::new(),
            handles: BTreeMap::new(),
            lent: BTreeSet::new(),
            wake_at: None,
        }
    }

    /// Its donor starts.
    pub(crate) fn switch_on(&mut self, settings: &Settings, seed: u64) {
        self.life += 1;
        let config = LenderConfig {
            quota_bytes: self.memory_bytes,
            headroom_bytes: settings.headroom_slabs * settings.slab_size_bytes,
            machine_limit_bytes: None,
            prepared_count: PREPARED_COUNT,
            slab_size_hint_bytes: settings.slab_size_bytes,
            seed,
        };
        self.lender = Some(Lender::new(config, self.sample()));
    }

    /// Everything in its memory is gone.
    pub(crate) fn switch_off(&mut self) {
        self.lender = None;
        self.sessions.clear();
        self.memory.clear();
        self.making.clear();
        self.handles.clear();
        self.lent.clear();
        self.wake_at = None;
    }

    /// A number for a new session over `link`.
    pub(crate) fn enter(&mut self, link: LinkId) -> SessionId {
        let session = SessionId(self.sessions_next);
        self.sessions_next += 1;
        self.sessions.insert(session, link);
        session
    }

    /// What its donor sees of its memory.
    pub(crate) fn sample(&self) -> MemorySample {
        let slabs = (self.memory.len() + self.making.len()) as u64 * self.slab_size_bytes;
        let available_bytes = self.memory_bytes.saturating_sub(self.local_bytes + slabs);
        MemorySample { available_bytes, bound: Bound::Machine, pressure_percent: None }
    }

    /// The Lender decides. What has no effect in this machine alone is returned.
    pub(crate) fn feed(&mut self, now: Instant, input: Input) -> Vec<Output> {
        let Some(lender) = &mut self.lender else { return Vec::new() };
        if let Input::Made { slab } | Input::MakeFailed { slab, .. } = &input {
            assert!(self.making.remove(slab), "a slab is made once");
            if matches!(input, Input::Made { .. }) {
                self.memory.insert(*slab, Content::default());
            }
        }
        let outputs = lender.on(now, input);
        outputs.iter().for_each(|output| self.apply(output));
        outputs
    }

    fn apply(&mut self, output: &Output) {
        match output {
            Output::Make(make) => assert!(self.making.insert(make.slab), "{:?} is another slab", make.slab),
            Output::Attach { slab, session, handle } => {
                assert!(self.memory.contains_key(slab), "{slab:?} was not made");
                assert!(self.lent.insert(*slab), "{slab:?} is in two leases");
                self.memory.insert(*slab, Content::default());
                assert!(self.handles.insert((*session, *handle), *slab).is_none(), "a handle names one slab");
            }
            Output::Detach { session, handle } => {
                let slab = self.handles.remove(&(*session, *handle));
                assert!(slab.is_some_and(|slab| self.lent.remove(&slab)), "{handle:?} names nothing");
            }
            Output::Free { slab } => {
                assert!(self.memory.remove(slab).is_some(), "{slab:?} is not there");
                assert!(!self.lent.contains(slab), "{slab:?} is lent");
            }
            Output::End { session, .. } | Output::Reject { session, .. } => {
                let (handles, lent) = (&mut self.handles, &mut self.lent);
                handles.retain(|(of, _), slab| of != session || !lent.remove(slab));
            }
            Output::WakeAt(at) => self.wake_at = *at,
            Output::Welcome { .. } | Output::Send { .. } | Output::Note(_) => {}
        }
    }

    /// What its donor could lend to a machine now, and could give.
    pub(crate) fn room_bytes(&self, borrower: usize) -> u64 {
        let lendable = self.lender.as_ref().map_or(0, |lender| lender.free_for_bytes(seen_by_donors(borrower)));
        lendable.min(self.sample().available_bytes)
    }

    /// Whether a slab could be made now.
    pub(crate) fn has_memory(&self) -> bool {
        self.sample().available_bytes > 0
    }

    /// What a borrower finds under a handle.
    pub(crate) fn slab(&mut self, session: SessionId, handle: SlabHandle) -> Option<&mut Content> {
        let slab = self.handles.get(&(session, handle))?;
        self.memory.get_mut(slab)
    }

    /// Time from `now` to the Lender's next wish.
    pub(crate) fn wakes_in(&self, now: Instant) -> Option<Duration> {
        self.wake_at.map(|at| at.saturating_duration_since(now))
    }
}
