//! What a Lender knows of each session, and what a hello asks for.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use spillway_fabric::control::message::Hello;
use spillway_fabric::control::silence::Silence;
use spillway_fabric::limits::{SILENCE_DEADLINE, SOLE_COPY_PATIENCE};
use spillway_fabric::units::BorrowerId;
use spillway_fabric::wire::{SessionToken, WIRE_VERSION};

use super::Opening;
use super::leases::SessionId;
use crate::config::is_slab_size;
use crate::connections::Machine;
use crate::limits::{LINGER_MAX, PATIENCE_MAX};

/// All sessions, each in one of three stages.
#[derive(Debug, Default)]
pub(super) struct Sessions {
    /// Welcomed.
    pub(super) open: BTreeMap<SessionId, Session>,
    /// Ended without a goodbye; their slabs are kept for their borrowers to come back.
    pub(super) lingering: BTreeMap<SessionId, Lingering>,
    /// To be welcomed with the slabs of another one, whose connections are still on their way out.
    pub(super) waiting: BTreeMap<SessionId, Waiting>,
}

/// One borrower.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) borrower: BorrowerId,
    /// Where it runs.
    pub(super) machine: Machine,
    pub(super) volume: String,
    pub(super) slab_size_bytes: u64,
    /// What it shows to get its slabs back.
    pub(super) resume: SessionToken,
    /// For how long they are kept when it goes without a goodbye.
    pub(super) linger: Duration,
    /// For how long it may say nothing; `None`: as long as its connection is open.
    pub(super) patience: Option<Duration>,
    pub(super) silence: Silence,
    /// It has read nothing for longer than [`PATIENCE_MAX`].
    pub(super) is_stopped: bool,
}

/// A session whose borrower may come back.
#[derive(Debug)]
pub(super) struct Lingering {
    pub(super) session: Session,
    pub(super) until: Instant,
    /// No connection of it is left.
    pub(super) is_gone: bool,
}

/// A session that is not welcomed yet.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) session: Session,
    pub(super) old: SessionId,
    /// The secret of `old`, as its borrower showed it.
    pub(super) shown: SessionToken,
    pub(super) until: Instant,
}

impl Session {
    pub(super) fn new(machine: Machine, hello: Hello, resume: SessionToken) -> Self {
        Self {
            borrower: hello.borrower,
            machine,
            slab_size_bytes: hello.slab_size_bytes,
            resume,
            linger: Duration::from_secs(hello.linger_seconds.into()).min(LINGER_MAX),
            patience: patience(&hello),
            silence: Silence::default(),
            is_stopped: false,
            volume: hello.volume,
        }
    }

    fn is_resumed_by(&self, borrower: BorrowerId, shown: SessionToken) -> bool {
        self.borrower == borrower && self.resume == shown
    }
}

impl Sessions {
    /// The open session that a borrower shows the secret of.
    pub(super) fn find_open(&self, borrower: BorrowerId, shown: SessionToken) -> Option<SessionId> {
        self.open.iter().find(|(_, session)| session.is_resumed_by(borrower, shown)).map(|(id, _)| *id)
    }

    /// The same of those that linger.
    pub(super) fn find_lingering(&self, borrower: BorrowerId, shown: SessionToken) -> Option<(SessionId, &Lingering)> {
        let mut found = self.lingering.iter().map(|(id, lingering)| (*id, lingering));
        found.find(|(_, lingering)| lingering.session.is_resumed_by(borrower, shown))
    }

    /// When the next of them is given up.
    pub(super) fn due(&self) -> Option<Instant> {
        let lingering = self.lingering.values().map(|lingering| lingering.until);
        lingering.chain(self.waiting.values().map(|waiting| waiting.until)).min()
    }
}

/// Why there can be no such session, if so.
pub(super) fn refusal(opening: &Opening) -> Option<String> {
    let hello = &opening.hello;
    if hello.version != WIRE_VERSION {
        return Some(format!("the donor speaks wire version {WIRE_VERSION}, not {}", hello.version));
    }
    if !is_slab_size(hello.slab_size_bytes) {
        return Some(format!("slabs of {} bytes do not exist", hello.slab_size_bytes));
    }
    if hello.wants_shared_memory && !opening.passes_descriptors {
        return Some("shared memory needs a connection to the donor's UNIX socket".to_owned());
    }
    None
}

/// For how long a borrower is waited for that says nothing: as it asks, up to [`PATIENCE_MAX`]. One that maps slabs
/// itself runs under the same kernel, which closes its connection when it ends; as long as it is open the borrower is
/// there, stopped perhaps (Ctrl-Z), and if it said that pages have no other copy it is waited for until it goes on.
/// Nothing can be asked back from it meanwhile.
fn patience(hello: &Hello) -> Option<Duration> {
    let asked = Duration::from_secs(hello.patience_seconds.into());
    let is_here = hello.wants_shared_memory && asked >= SOLE_COPY_PATIENCE;
    (!is_here).then(|| asked.clamp(SILENCE_DEADLINE, PATIENCE_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello(wants_shared_memory: bool, patience: Duration) -> Hello {
        Hello {
            version: WIRE_VERSION,
            borrower: BorrowerId(1),
            volume: "test".to_owned(),
            slab_size_bytes: 1 << 20,
            wants_shared_memory,
            wants_rdma: false,
            linger_seconds: 0,
            patience_seconds: patience.as_secs() as u16,
            resume: None,
        }
    }

    #[test]
    fn a_borrower_of_this_machine_without_other_copies_may_be_stopped_for_as_long_as_it_likes() {
        assert_eq!(patience(&hello(true, SOLE_COPY_PATIENCE)), None);
        assert_eq!(patience(&hello(true, SOLE_COPY_PATIENCE / 2)), Some(SOLE_COPY_PATIENCE / 2));
        assert_eq!(patience(&hello(true, Duration::ZERO)), Some(SILENCE_DEADLINE));
    }

    #[test]
    fn one_of_another_machine_is_waited_for_as_it_asks_within_bounds() {
        assert_eq!(patience(&hello(false, Duration::ZERO)), Some(SILENCE_DEADLINE));
        assert_eq!(patience(&hello(false, SOLE_COPY_PATIENCE)), Some(SOLE_COPY_PATIENCE));
        assert_eq!(patience(&hello(false, PATIENCE_MAX * 2)), Some(PATIENCE_MAX));
    }
}
