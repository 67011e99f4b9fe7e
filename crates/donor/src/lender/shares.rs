//! What each machine may hold of a donor that sets no limit for one machine.
//!
//! As long as no other machine asks, one may hold all: it is often the only one. A machine that finds no room and holds
//! less than its share, of equal shares, is *in need*. Then machines that hold their share get only what is beyond that
//! need, and the one that holds most is asked for as much as is needed. A slab is asked back like under pressure, and
//! never taken.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use super::Lender;
use super::leases::Lease;
use crate::connections::Machine;
use crate::limits::{NEED_BYTES_MAX, NEED_TIME};

/// What a machine found no room for lately.
#[derive(Clone, Copy, Debug)]
struct Need {
    bytes: u64,
    until: Instant,
}

/// The machines in need.
#[derive(Debug, Default)]
pub(super) struct Needs {
    machines: BTreeMap<Machine, Need>,
    is_new: bool,
}

impl Needs {
    fn note(&mut self, machine: Machine, bytes: u64, most_bytes: u64, now: Instant) {
        let need = self.machines.entry(machine).or_insert(Need { bytes: 0, until: now });
        need.bytes = need.bytes.saturating_add(bytes).min(most_bytes);
        need.until = now + NEED_TIME;
        self.is_new = true;
    }

    /// One of them got so much.
    pub(super) fn met(&mut self, machine: Machine, bytes: u64) {
        if let Some(need) = self.machines.get_mut(&machine) {
            need.bytes = need.bytes.saturating_sub(bytes);
        }
    }

    /// Forgets those that ask no more.
    pub(super) fn expire(&mut self, now: Instant) {
        self.machines.retain(|_, need| need.until > now);
    }

    /// Whether there is one since the last look.
    pub(super) fn take_new(&mut self) -> bool {
        std::mem::take(&mut self.is_new)
    }
}

impl Lender {
    /// Most that `machine` may hold now: the fixed limit, or its share while another machine is in need.
    pub(super) fn limit_bytes(&self, machine: Machine) -> u64 {
        match self.machine_limit_bytes {
            Some(limit_bytes) => limit_bytes,
            None if self.needs.machines.keys().any(|other| *other != machine) => self.share_bytes(machine),
            None => u64::MAX,
        }
    }

    /// What of `free_bytes` no other machine is in need of, if there is no fixed limit.
    pub(super) fn unneeded_bytes(&self, machine: Machine, free_bytes: u64) -> u64 {
        if self.machine_limit_bytes.is_some() {
            return 0;
        }
        let others = self.needs.machines.iter().filter(|(other, _)| **other != machine);
        free_bytes.saturating_sub(others.map(|(_, need)| need.bytes).fold(0, u64::saturating_add))
    }

    /// An equal share of all that can be lent, for each machine that has a session or is in need.
    fn share_bytes(&self, machine: Machine) -> u64 {
        let sessions = self.sessions.open.values().chain(self.sessions.lingering.values().map(|it| &it.session));
        let mut machines: BTreeSet<Machine> = sessions.map(|session| session.machine).collect();
        machines.insert(machine);
        machines.extend(self.needs.machines.keys());
        let holdings = self.holdings();
        let all_bytes = holdings.lent_bytes.saturating_add(self.capacity.lendable_bytes(holdings));
        all_bytes / machines.len() as u64
    }

    /// `machine` found no room for a slab.
    pub(super) fn note_need(&mut self, now: Instant, machine: Machine, slab_bytes: u64) {
        if self.machine_limit_bytes.is_some() || self.is_draining {
            return;
        }
        let (held_bytes, share_bytes) = (self.lent_to_bytes(machine), self.share_bytes(machine));
        if held_bytes.saturating_add(slab_bytes) <= share_bytes {
            let most_bytes = (share_bytes - held_bytes).min(NEED_BYTES_MAX.max(slab_bytes));
            self.needs.note(machine, slab_bytes, most_bytes, now);
        }
    }

    /// How much is to be asked back for machines in need, and of which slabs: of the machine that holds most, as far as
    /// that is above its share. What was asked back already, and what is free, will be theirs.
    pub(super) fn wanted_for_needs(&self) -> (u64, Vec<(Lease, u64)>) {
        let needed_bytes: u64 = self.needs.machines.values().map(|need| need.bytes).fold(0, u64::saturating_add);
        let coming_bytes = self.leases.recalled_bytes().saturating_add(self.free_to_lend_bytes());
        let wanted_bytes = needed_bytes.saturating_sub(coming_bytes);
        if wanted_bytes == 0 {
            return (0, Vec::new());
        }
        let others = self.sessions.open.values().map(|session| session.machine);
        let above = |machine: Machine| self.lent_to_bytes(machine).saturating_sub(self.limit_bytes(machine));
        let Some((above_bytes, most)) = others.map(|machine| (above(machine), machine)).max() else {
            return (0, Vec::new());
        };
        let is_of_it = |lease: &Lease| self.sessions.open.get(&lease.session).is_some_and(|it| it.machine == most);
        let lent = self.leases.recallable().into_iter().filter(|(lease, _)| is_of_it(lease)).collect();
        (wanted_bytes.min(above_bytes), lent)
    }
}
