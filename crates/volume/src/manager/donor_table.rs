//! The donors of a volume by slot: a bounded set that changes while the volume runs.
//!
//! A slot has one donor from [`add`] until its link is closed; then another donor can have it. A donor that is to be
//! used no more is drained first: [`remove`] tells the Steward, which says when nothing is left there. Then the link's
//! thread says goodbye and frees the slot ([`dismissed`]).
//!
//! Sessions are numbered for all donors together, so that what belongs to the last donor of a slot is never taken for
//! something of the next one.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use spillway_fabric::address::DonorAddress;

use super::ManagerState;
use super::donors::{DonorEntry, Phase};
use crate::limits::DONORS_MAX;
use crate::settings::redundancy::Redundancy;
use crate::slab_map::slab_entry::DonorSlot;
use crate::steward::Input;

/// Why the donors of a volume were not changed. The text says what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DonorChangeError {
    /// It is used already.
    #[error("the donor {0} is used already")]
    AlreadyThere(DonorAddress),
    /// It was removed, and its link is being closed.
    #[error("the donor {0} is just being let go; try again in a second")]
    BeingClosed(DonorAddress),
    /// Every slot is taken.
    #[error("{DONORS_MAX} donors are used, which is the most; remove one first")]
    Full,
    /// It cannot be kept for the next process.
    #[error("the address {0} is too long")]
    LongAddress(DonorAddress),
    /// Pages would leave the machine unsealed, though no user chose that.
    #[error(
        "the donor {0} is reached over a network, but the pages are not sealed, as the first donors were of this machine; \
         start anew with --seal on, or with --seal off if other machines may see the pages"
    )]
    NotSealed(DonorAddress),
    /// It is not used.
    #[error("the donor {address} is not used; those that are: {}", known.join(", "))]
    Unknown {
        /// What was named.
        address: DonorAddress,
        /// The donors.
        known: Vec<String>,
    },
    /// Pages would be nowhere.
    #[error("{0} is the last donor, and there is no disk copy to keep the pages; add another donor first")]
    LastDonor(DonorAddress),
    /// Too few donors would be left for the copies.
    #[error("{redundancy} needs {} donors, and {left} would be left; add another donor first", redundancy.replicas)]
    TooFew {
        /// What was promised.
        redundancy: Redundancy,
        /// Donors that would stay.
        left: usize,
    },
    /// No thread could be started for it.
    #[error("no thread can be started for the donor: {0}")]
    System(String),
}

/// See the module text.
#[derive(Default)]
pub struct DonorTable {
    slots: Mutex<Vec<Option<Arc<DonorEntry>>>>,
    sessions: Arc<AtomicU64>,
    /// Held by the thread that adds or removes a donor.
    change: Mutex<()>,
}

impl DonorTable {
    /// Puts a donor into a slot, which is free.
    pub fn enter(&self, slot: DonorSlot, address: DonorAddress, is_leaving: bool) -> Arc<DonorEntry> {
        let entry = Arc::new(DonorEntry::new(slot, address, Arc::clone(&self.sessions)));
        entry.set_leaving(is_leaving);
        let mut slots = self.slots();
        let index = usize::from(slot.0);
        assert!(index < DONORS_MAX, "a slot is one of {DONORS_MAX}");
        if slots.len() <= index {
            slots.resize_with(index + 1, || None);
        }
        assert!(slots[index].is_none(), "a slot has one donor");
        slots[index] = Some(Arc::clone(&entry));
        entry
    }

    /// The donor in a slot.
    pub fn get(&self, slot: DonorSlot) -> Option<Arc<DonorEntry>> {
        self.slots().get(usize::from(slot.0)).cloned().flatten()
    }

    /// The donors, in the order of their slots.
    pub fn all(&self) -> Vec<Arc<DonorEntry>> {
        self.slots().iter().flatten().cloned().collect()
    }

    /// The donors that have a session, a bit each.
    pub fn connected(&self) -> u64 {
        const { assert!(DONORS_MAX <= 64, "a donor is a bit of a word") };
        let slots = self.slots();
        let connected = slots.iter().flatten().filter(|donor| donor.phase() == Phase::Connected);
        connected.fold(0, |mask, donor| mask | 1 << donor.slot.0)
    }

    fn free_slot(&self) -> Option<DonorSlot> {
        let slots = self.slots();
        let is_free = |slot: &u16| slots.get(usize::from(*slot)).is_none_or(Option::is_none);
        (0..DONORS_MAX as u16).find(is_free).map(DonorSlot)
    }

    fn named(&self, address: &DonorAddress) -> Option<Arc<DonorEntry>> {
        self.slots().iter().flatten().find(|donor| donor.address == *address).cloned()
    }

    fn free(&self, slot: DonorSlot) {
        self.slots()[usize::from(slot.0)] = None;
    }

    fn slots(&self) -> MutexGuard<'_, Vec<Option<Arc<DonorEntry>>>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self) -> MutexGuard<'_, ()> {
        self.change.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Uses another donor from now on, or again one whose removal has not ended; then `None`, else the donor, whose link
/// `start` begins.
pub fn add(
    shared: &ManagerState,
    address: &DonorAddress,
    start: impl FnOnce(&Arc<DonorEntry>) -> std::io::Result<()>,
) -> Result<(), DonorChangeError> {
    let table = &shared.donors;
    let _change = table.change();
    let records = &shared.resumption.records;
    if let Some(donor) = table.named(address) {
        if !donor.is_leaving() {
            return Err(DonorChangeError::AlreadyThere(address.clone()));
        }
        if !donor.call_off() {
            return Err(DonorChangeError::BeingClosed(address.clone()));
        }
        records.set_leaving(donor.slot, false);
        shared.decide(Input::Added { donor: donor.slot });
        tracing::info!("donor {address} is not removed after all");
        return Ok(());
    }
    if shared.stays_on_machine && !address.is_of_this_machine() {
        return Err(DonorChangeError::NotSealed(address.clone()));
    }
    let slot = table.free_slot().ok_or(DonorChangeError::Full)?;
    if !records.take_place(slot, &address.to_string()) {
        return Err(DonorChangeError::LongAddress(address.clone()));
    }
    let donor = table.enter(slot, address.clone(), false);
    shared.decide(Input::Added { donor: slot });
    if let Err(error) = start(&donor) {
        table.free(slot);
        records.free_place(slot);
        return Err(DonorChangeError::System(error.to_string()));
    }
    tracing::info!("donor {address} is added");
    Ok(())
}

/// Has a donor drained, and then let go. What is under way already is no mistake.
pub fn remove(shared: &ManagerState, address: &DonorAddress) -> Result<(), DonorChangeError> {
    let table = &shared.donors;
    let _change = table.change();
    let Some(donor) = table.named(address) else {
        let known = table.all().iter().map(|donor| donor.address.to_string()).collect();
        return Err(DonorChangeError::Unknown { address: address.clone(), known });
    };
    if donor.is_leaving() {
        return Ok(());
    }
    let left = table.all().iter().filter(|other| other.slot != donor.slot && !other.is_leaving()).count();
    check_rest(shared.volume.redundancy, left, address)?;
    donor.set_leaving(true);
    shared.resumption.records.set_leaving(donor.slot, true);
    tracing::info!("donor {address} is removed as soon as it holds nothing of this volume");
    shared.decide(Input::Removed { donor: donor.slot });
    Ok(())
}

fn check_rest(redundancy: Redundancy, left: usize, address: &DonorAddress) -> Result<(), DonorChangeError> {
    let needed = usize::from(redundancy.replicas);
    match left {
        // The disk has every page.
        _ if redundancy.disk && needed == 1 => Ok(()),
        0 if needed == 1 => Err(DonorChangeError::LastDonor(address.clone())),
        _ if left < needed => Err(DonorChangeError::TooFew { redundancy, left }),
        _ => Ok(()),
    }
}

/// The link of a donor that was removed has ended: its slot is free.
pub fn dismissed(shared: &ManagerState, donor: &DonorEntry) {
    let _change = shared.donors.change();
    shared.volume.set_silent(donor.slot, false);
    shared.volume.latencies.forget(donor.slot);
    shared.volume.trust.forget(donor.slot);
    shared.resumption.records.free_place(donor.slot);
    shared.donors.free(donor.slot);
    tracing::info!("donor {} is removed", donor.address);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> DonorAddress {
        text.parse().unwrap()
    }

    #[test]
    fn a_freed_slot_is_used_again_and_its_sessions_are_others() {
        let table = DonorTable::default();
        let first = table.enter(DonorSlot(0), address("a:1"), false);
        table.enter(DonorSlot(2), address("c:1"), true);
        assert_eq!((table.free_slot(), table.all().len()), (Some(DonorSlot(1)), 2));
        assert!(table.named(&address("c:1")).unwrap().is_leaving() && table.get(DonorSlot(1)).is_none());
        let before = first.number_session();
        table.free(DonorSlot(0));
        let second = table.enter(table.free_slot().unwrap(), address("b:1"), false);
        assert_eq!(second.slot, DonorSlot(0));
        assert_ne!(second.number_session(), before);
        (0..DONORS_MAX as u16).map(DonorSlot).filter(|slot| table.get(*slot).is_none()).for_each(|slot| {
            table.enter(slot, address("x:1"), false);
        });
        assert_eq!((table.free_slot(), table.all().len(), table.connected()), (None, DONORS_MAX, 0));
    }

    #[test]
    fn what_stays_must_hold_the_promised_copies() {
        let check = |text: &str, left| check_rest(text.parse().unwrap(), left, &address("a:1"));
        assert!(check("none", 1).is_ok() && check("disk", 0).is_ok() && check("replicas=2", 2).is_ok());
        assert!(check("none", 0).unwrap_err().to_string().contains("last donor"));
        assert!(check("replicas=2", 1).unwrap_err().to_string().contains("needs 2 donors"));
        assert!(check("disk+replicas=2", 1).is_err());
    }
}
