//! Machines that have the same identity: the file of one was copied to the other, with its disk for instance.
//!
//! Gossip tells machines apart by address, so both are members. A machine that moved to another address has two
//! addresses too, until its former one is found dead. So two are told only when both have been alive for some time.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::identity::{Identity, MachineId};
use crate::limits::TWINS_TOLD_MAX;

/// Living members by machine.
#[derive(Debug, Default)]
pub(crate) struct Twins {
    addresses: BTreeMap<MachineId, BTreeSet<SocketAddr>>,
    /// Machines with several addresses, since when, and whether that was told.
    several: BTreeMap<MachineId, (Instant, bool)>,
}

impl Twins {
    /// `identity` lives.
    pub(crate) fn up(&mut self, now: Instant, identity: &Identity) {
        let addresses = self.addresses.entry(identity.machine).or_default();
        addresses.insert(identity.address);
        if addresses.len() > 1 {
            self.several.entry(identity.machine).or_insert((now, false));
        }
    }

    /// `identity` does not live any more.
    pub(crate) fn down(&mut self, identity: &Identity) {
        let Some(addresses) = self.addresses.get_mut(&identity.machine) else { return };
        addresses.remove(&identity.address);
        if addresses.len() < 2 {
            self.several.remove(&identity.machine);
        }
        if addresses.is_empty() {
            self.addresses.remove(&identity.machine);
        }
    }

    /// Machines to be told now, each once as long as they have several addresses.
    pub(crate) fn take_due(&mut self, now: Instant, patience: Duration) -> Vec<(MachineId, Vec<SocketAddr>)> {
        let mut due = Vec::new();
        for (machine, (since, is_told)) in &mut self.several {
            if !*is_told && now >= *since + patience {
                *is_told = true;
                due.push(*machine);
            }
        }
        due.into_iter().map(|machine| (machine, self.addresses_of(machine))).collect()
    }

    /// When the next one may have to be told.
    pub(crate) fn next(&self, patience: Duration) -> Option<Instant> {
        self.several.values().filter(|(_, is_told)| !is_told).map(|(since, _)| *since + patience).min()
    }

    /// Those that were told and still have several addresses.
    pub(crate) fn told(&self) -> Vec<(MachineId, Vec<SocketAddr>)> {
        let told = self.several.iter().filter(|(_, (_, is_told))| *is_told);
        told.take(TWINS_TOLD_MAX).map(|(machine, _)| (*machine, self.addresses_of(*machine))).collect()
    }

    fn addresses_of(&self, machine: MachineId) -> Vec<SocketAddr> {
        self.addresses.get(&machine).into_iter().flatten().copied().take(TWINS_TOLD_MAX).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(30);

    fn identity(machine: u128, port: u16) -> Identity {
        Identity::new(MachineId(machine), 1, ([127, 0, 0, 1], port).into())
    }

    #[test]
    fn two_with_one_identity_are_told_once_after_some_time() {
        let start = Instant::now();
        let mut twins = Twins::default();
        twins.up(start, &identity(1, 1));
        twins.up(start, &identity(2, 2));
        assert_eq!(twins.next(PATIENCE), None);
        twins.up(start, &identity(1, 3));
        assert_eq!(twins.next(PATIENCE), Some(start + PATIENCE));
        assert!(twins.take_due(start, PATIENCE).is_empty() && twins.told().is_empty());
        let both = vec![(MachineId(1), vec![identity(1, 1).address, identity(1, 3).address])];
        assert_eq!(twins.take_due(start + PATIENCE, PATIENCE), both);
        assert_eq!((twins.take_due(start + PATIENCE, PATIENCE), twins.told()), (vec![], both));
        twins.down(&identity(1, 1));
        assert!(twins.told().is_empty() && twins.next(PATIENCE).is_none());
    }

    #[test]
    fn a_machine_that_moved_is_not_told() {
        let start = Instant::now();
        let mut twins = Twins::default();
        twins.up(start, &identity(1, 1));
        twins.up(start, &identity(1, 3));
        twins.down(&identity(1, 1));
        twins.down(&identity(9, 9));
        assert!(twins.take_due(start + PATIENCE, PATIENCE).is_empty());
    }
}
