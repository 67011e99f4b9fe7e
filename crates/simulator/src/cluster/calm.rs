//! What holds when all has been well for long enough.

use spillway_fabric::units::SlabHandle;

use super::Cluster;
use crate::links::LinkId;
use crate::machine::Machine;

impl Cluster {
    /// What holds when all has been well for long enough.
    pub(crate) fn check_calm(&self) {
        for (index, borrower) in self.borrowers.iter().enumerate() {
            self.check_removals(index);
            assert_eq!(borrower.steward.recalls_under_way(), 0, "every recall of borrower {index} ends");
            for (number, slab) in borrower.volume.slabs.borrow().iter().enumerate().filter(|(_, slab)| slab.is_stored) {
                let copies = slab.valid_copies();
                assert_eq!(copies, usize::from(self.settings.replicas), "borrower {index}, slab {number}: {slab:?}");
            }
        }
        for (index, machine) in self.machines.iter().enumerate() {
            self.check_leases(index, machine);
        }
    }

    /// Every lease of a donor is a copy of a borrower.
    fn check_leases(&self, index: usize, machine: &Machine) {
        let mut lent: Vec<(LinkId, SlabHandle)> =
            machine.handles.keys().map(|(session, handle)| (machine.sessions[session], *handle)).collect();
        let mut named = Vec::new();
        for borrower in &self.borrowers {
            for (slot, donor) in borrower.slots.iter().enumerate().filter(|(_, slot)| slot.machine == index) {
                let handles = borrower.named_at(slot).into_iter().map(|(_, handle)| handle);
                named.extend(handles.map(|handle| (donor.link.expect("a copy needs a session"), handle)));
            }
        }
        // A lease that is on its way may be in neither.
        lent.sort_unstable();
        named.sort_unstable();
        let lost: Vec<_> = lent.iter().filter(|lease| !named.contains(lease)).collect();
        assert!(lost.len() <= 2, "donor {index} lends what no borrower knows: {lost:?}");
        assert!(named.iter().all(|copy| lent.contains(copy)), "donor {index} does not know what borrowers use");
    }
}
