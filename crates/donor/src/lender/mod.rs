//! The Lender: every decision of a donor, as values in and values out.
//!
//! [`Lender::on`] takes the time and one [`Input`], and returns what is to be done as [`Output`]s, in order. It has no
//! clock, no thread, no descriptor and no lock, and its randomness comes from a seed. So the threads of a donor, a
//! property test and a simulated cluster run the same decisions, and a seed repeats a run. Page traffic never passes
//! here; data connections find slabs by themselves. How many peers may connect is decided before, in
//! [`connections`](crate::connections).
//!
//! The life of one slab:
//! 1. *Asked for.* `Message::Ask` of an open session keeps room for one slab (`reservations`), which `Lease` with the
//!    same number takes. A `Lease` of its own gets a slab if there is room in the quota and above the headroom, else
//!    `Refused`.
//! 2. *Made.* A slab that was made ahead is taken; else [`Output::Make`], and its memory counts as taken from now on.
//!    [`Input::Made`] or [`Input::MakeFailed`] answers, once. A failure is a `Refused`.
//! 3. *Leased.* [`Output::Attach`] gives it a handle in its session, then `Leased` is sent. From then on it is active.
//! 4. *Recalled.* Under pressure some slabs are sampled, their borrowers are asked for their activity
//!    (`ActivityQuery`, `Activity`), and the least active are asked back (`Recall`). That is repeated only when its
//!    deadline has passed. Pressure never takes a slab from its borrower.
//! 5. *Released.* `Message::Release`: [`Output::Detach`], [`Output::Free`], and `Released` is sent.
//! 6. *Session dead.* [`Input::Ended`], or too much silence. If its borrower asked for that, the slabs linger: they
//!    stay leased without a session. A new session that shows the old one's secret gets them, once [`Input::Gone`]
//!    says that no connection of the old one is left. Else, or when the time is up, they are freed.
//!
//! Invariants: a slab is in one lease, made ahead, being made, or freed; a freed slab never comes back. What was
//! counted as taken from the machine is counted as returned once.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod admission;
pub mod capacity;
pub mod eviction;
pub mod leases;
mod lending;
pub mod preparation;
pub mod random;
mod recalls;
mod reservations;
mod sessions;
mod shares;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use spillway_fabric::control::message::{Hello, Message};
use spillway_fabric::units::SlabHandle;
use spillway_fabric::wire::SessionToken;

use crate::connections::Machine;
use crate::host_memory::MemorySample;
use crate::limits::EVICTION_SAMPLE_PERCENT;
use crate::status::{Counters, RecallCounts};
use capacity::{Capacity, Holdings};
use eviction::Eviction;
use leases::{LeaseBook, SessionId};
use lending::Making;
use preparation::PreparedSlabs;
use random::Random;
use reservations::Reservations;
use sessions::Sessions;
use shares::Needs;

/// A slab's memory, counted from the donor's start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlabId(pub u64);

/// What happened.
#[derive(Clone, Debug, PartialEq)]
pub enum Input {
    /// A control connection has proven the cluster key and said hello.
    Opened(Opening),
    /// The borrower of `session` said something.
    Message {
        /// Which.
        session: SessionId,
        /// What.
        message: Message,
    },
    /// The borrower of `session` said nothing for one more heartbeat interval.
    Quiet {
        /// Which.
        session: SessionId,
    },
    /// The control connection of `session` ended without a goodbye.
    Ended {
        /// Which.
        session: SessionId,
    },
    /// No connection of `session` is left, so nothing of it reaches a slab any more.
    Gone {
        /// Which.
        session: SessionId,
    },
    /// A look at the machine's memory and its pressure.
    Sample(MemorySample),
    /// The slab of an [`Output::Make`] is there.
    Made {
        /// Which.
        slab: SlabId,
    },
    /// The slab of an [`Output::Make`] cannot be made.
    MakeFailed {
        /// Which.
        slab: SlabId,
        /// Why, for people.
        reason: String,
    },
    /// The user lends so much from now on.
    Quota {
        /// At most.
        bytes: u64,
    },
    /// The machine's own programs keep so much from now on.
    Headroom {
        /// At least.
        bytes: u64,
    },
    /// The volumes of one machine together get so much from now on.
    MachineLimit {
        /// At most; `None`: its share while other machines are in need, else all.
        bytes: Option<u64>,
    },
    /// Nothing is to be lent any more, and everything is to come back.
    Drain,
    /// Lend again. What was asked back for the drain may stay.
    Undrain,
    /// The time of the last [`Output::WakeAt`] has come.
    Tick,
}

/// A borrower that wants a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opening {
    /// Its number; none is used twice.
    pub session: SessionId,
    /// What it said.
    pub hello: Hello,
    /// Where its connection comes from.
    pub machine: Machine,
    /// Whether its connection passes descriptors.
    pub passes_descriptors: bool,
    /// A fresh secret, for a session that resumes no other.
    pub resume: SessionToken,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// The session is open: send `Message::Welcome` with this in it.
    Welcome {
        /// Which.
        session: SessionId,
        /// What the donor could lend now.
        free_bytes: u64,
        /// What a later session shows to get this one's slabs.
        resume: SessionToken,
        /// Slabs that it goes on with; a `Held` follows for each.
        held: u32,
    },
    /// There will be no session: send `Message::Rejected` and close.
    Reject {
        /// Which.
        session: SessionId,
        /// Why, for people.
        reason: String,
    },
    /// Send a message. With `Leased` and `Held`, the slab's file goes to a borrower that maps slabs itself.
    Send {
        /// To which.
        session: SessionId,
        /// What.
        message: Message,
    },
    /// The session is over: close its connections, and let none of its handles name a slab any more.
    End {
        /// Which.
        session: SessionId,
        /// Why.
        reason: EndReason,
    },
    /// Make the memory of a slab.
    Make(Make),
    /// From now on `handle` names `slab` in `session`.
    Attach {
        /// What.
        slab: SlabId,
        /// Where.
        session: SessionId,
        /// By which name.
        handle: SlabHandle,
    },
    /// `handle` names nothing in `session` any more.
    Detach {
        /// Where.
        session: SessionId,
        /// Which name.
        handle: SlabHandle,
    },
    /// Give a slab's memory back to the machine.
    Free {
        /// Which.
        slab: SlabId,
    },
    /// Be asked again at this time; `None`: not before something happens.
    WakeAt(Option<Instant>),
    /// Tell people.
    Note(Note),
}

/// A slab to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Make {
    /// What to call it.
    pub slab: SlabId,
    /// How large.
    pub size_bytes: u64,
    /// Which session waits for it; none if it is made ahead of need.
    pub wanted_by: Option<SessionId>,
}

/// Why a session is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EndReason {
    /// Its borrower said so, with these words.
    Goodbye(String),
    /// Its borrower said nothing for so long.
    Silence(Duration),
    /// Its borrower broke the protocol.
    Protocol,
    /// Its borrower opened another one in its place.
    Replaced,
    /// Its connection ended.
    Lost,
}

/// What people should know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// So many recalled slabs are overdue, and are asked for again.
    Overdue(usize),
    /// The borrower of this volume did not come back in time: its slabs are taken back.
    NotBack(String),
    /// A slab cannot be made.
    MakeFailed {
        /// How large.
        size_bytes: u64,
        /// Why.
        reason: String,
    },
}

/// What a Lender is told at its start.
#[derive(Clone, Copy, Debug)]
pub struct LenderConfig {
    /// Most to lend.
    pub quota_bytes: u64,
    /// What stays available for the machine's own programs.
    pub headroom_bytes: u64,
    /// Most to lend to all volumes of one machine; `None`: its share while other machines are in need, else all.
    pub machine_limit_bytes: Option<u64>,
    /// Slabs to keep ready, of each size in use.
    pub prepared_count: usize,
    /// Their size while there is no session, until a borrower has asked for another one.
    pub slab_size_hint_bytes: u64,
    /// Of its randomness.
    pub seed: u64,
}

/// See the module text.
#[derive(Debug)]
pub struct Lender {
    capacity: Capacity,
    leases: LeaseBook,
    sessions: Sessions,
    reservations: Reservations,
    needs: Needs,
    making: BTreeMap<SlabId, Making>,
    slabs_next: u64,
    prepared: PreparedSlabs,
    prepared_count: usize,
    machine_limit_bytes: Option<u64>,
    slab_size_hint_bytes: u64,
    /// Making a slab ahead failed; not tried again before the next sample.
    is_exhausted: bool,
    eviction: Option<Eviction>,
    evictions_next: u32,
    eviction_sample_percent: u64,
    is_draining: bool,
    random: Random,
    counters: Counters,
    wake_at: Option<Instant>,
    /// Of the current input.
    outputs: Vec<Output>,
}

impl Lender {
    /// A donor that lends nothing yet, on a machine whose memory looks like `first`.
    pub fn new(config: LenderConfig, first: MemorySample) -> Self {
        Self {
            capacity: Capacity::new(config.quota_bytes, config.headroom_bytes, first),
            leases: LeaseBook::default(),
            sessions: Sessions::default(),
            reservations: Reservations::default(),
            needs: Needs::default(),
            making: BTreeMap::new(),
            slabs_next: 0,
            prepared: PreparedSlabs::default(),
            prepared_count: config.prepared_count,
            machine_limit_bytes: config.machine_limit_bytes,
            slab_size_hint_bytes: config.slab_size_hint_bytes,
            is_exhausted: false,
            eviction: None,
            evictions_next: 0,
            eviction_sample_percent: EVICTION_SAMPLE_PERCENT,
            is_draining: false,
            random: Random::new(config.seed),
            counters: Counters::default(),
            wake_at: None,
            outputs: Vec::new(),
        }
    }

    /// Evictions ask about so many percent of what is wanted, for experiments; else [`EVICTION_SAMPLE_PERCENT`].
    #[must_use]
    pub fn sampling(mut self, percent: u64) -> Self {
        self.eviction_sample_percent = percent;
        self
    }

    /// Decides what follows from `input`, which came at `now`. Times of inputs do not go backwards.
    pub fn on(&mut self, now: Instant, input: Input) -> Vec<Output> {
        let changes = !is_question(&input);
        self.reservations.expire(now);
        self.needs.expire(now);
        match input {
            Input::Opened(opening) => self.open(now, opening),
            Input::Message { session, message } => self.hear(now, session, message),
            Input::Quiet { session } => self.miss(now, session),
            Input::Ended { session } => self.lose(now, session),
            Input::Gone { session } => self.vacate(now, session),
            Input::Sample(sample) => {
                self.capacity.observe(sample);
                self.is_exhausted = false;
            }
            Input::Made { slab } => self.made(slab),
            Input::MakeFailed { slab, reason } => self.make_failed(slab, &reason),
            Input::Quota { bytes } => self.capacity.set_quota(bytes),
            Input::Headroom { bytes } => self.capacity.set_headroom(bytes),
            Input::MachineLimit { bytes } => self.machine_limit_bytes = bytes,
            Input::Drain => self.is_draining = true,
            Input::Undrain => self.undrain(),
            Input::Tick => {}
        }
        if changes | self.needs.take_new() {
            self.expire_sessions(now);
            self.trim_reservations();
            self.plan_recalls(now);
            self.tend_prepared();
        }
        self.plan_wake();
        std::mem::take(&mut self.outputs)
    }

    fn plan_wake(&mut self) {
        let evicted = self.eviction.as_ref().map(Eviction::deadline);
        let times = [self.leases.recall_due(), evicted, self.sessions.due(), self.reservations.due()];
        let wake_at = times.into_iter().flatten().min();
        if wake_at != self.wake_at {
            self.wake_at = wake_at;
            self.outputs.push(Output::WakeAt(wake_at));
        }
    }

    fn send(&mut self, session: SessionId, message: Message) {
        self.outputs.push(Output::Send { session, message });
    }

    /// Gives a slab back to the machine.
    fn free(&mut self, slab: SlabId, size_bytes: u64) {
        self.capacity.returned(size_bytes);
        self.outputs.push(Output::Free { slab });
    }

    /// What the donor has taken from the machine.
    pub fn holdings(&self) -> Holdings {
        Holdings {
            lent_bytes: self.leases.lent_bytes(),
            recalled_bytes: self.leases.recalled_bytes(),
            prepared_bytes: self.prepared.bytes(),
            reserved_bytes: self.reservations.bytes(),
        }
    }

    /// What it could lend now.
    pub fn free_to_lend_bytes(&self) -> u64 {
        if self.is_draining { 0 } else { self.capacity.lendable_bytes(self.holdings()) }
    }

    /// What it could lend to `machine` now.
    pub fn free_for_bytes(&self, machine: Machine) -> u64 {
        let free_bytes = self.free_to_lend_bytes();
        let left_bytes = match self.limit_bytes(machine) {
            u64::MAX => free_bytes,
            limit_bytes => limit_bytes.saturating_sub(self.lent_to_bytes(machine)),
        };
        free_bytes.min(left_bytes.max(self.unneeded_bytes(machine, free_bytes)))
    }

    /// What all volumes of `machine` hold or have kept for them, those included that may come back.
    fn lent_to_bytes(&self, machine: Machine) -> u64 {
        let lingering = self.sessions.lingering.iter().map(|(id, lingering)| (id, &lingering.session));
        let of_machine = self.sessions.open.iter().chain(lingering).filter(|(_, session)| session.machine == machine);
        let held = |id| self.leases.slabs_held(id) as u64;
        of_machine.map(|(id, open)| held(*id) * open.slab_size_bytes + self.reservations.bytes_of(*id)).sum()
    }

    /// The bounds of lending.
    pub fn capacity(&self) -> &Capacity {
        &self.capacity
    }

    /// Whether it lends nothing any more.
    pub fn is_draining(&self) -> bool {
        self.is_draining
    }

    /// Sessions whose borrowers may come back.
    pub fn lingering_count(&self) -> usize {
        self.sessions.lingering.len()
    }

    /// The sessions that are open, oldest first.
    pub fn open_sessions(&self) -> impl Iterator<Item = SessionId> {
        self.sessions.open.keys().copied()
    }

    /// Slabs that `session` holds.
    pub fn slabs_held(&self, session: SessionId) -> usize {
        self.leases.slabs_held(session)
    }

    /// Slabs lent to all sessions, those whose borrowers may come back included.
    pub fn slabs_lent(&self) -> usize {
        self.leases.slabs_lent()
    }

    /// How recalls went.
    pub fn recalls(&self) -> RecallCounts {
        self.leases.recalls()
    }

    /// What happened since the start.
    pub fn counters(&self) -> Counters {
        self.counters
    }
}

/// Whether an input is only a question or a sign of life, which changes nothing that recalls and prepared slabs are
/// decided from.
fn is_question(input: &Input) -> bool {
    use Message::{Ask, Decline, Ping, Pong, Query};
    matches!(input, Input::Message { message: Query { .. } | Ask { .. } | Decline { .. } | Ping | Pong, .. })
}
