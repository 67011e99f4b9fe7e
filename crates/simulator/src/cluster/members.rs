//! How machines of the cluster find each other: the membership of each one, and what its agent does with it.
//!
//! A borrower without a list takes machines that lend, as they become known, until it has as many donors as it wants.
//! As in the product, a machine that is taken for dead stays its donor: the session tells whether it lives.

use spillway_fabric::membership::Input;
use spillway_volume::steward::placement::{Random, XorShift};

use super::Cluster;
use crate::borrower::Place;
use crate::community::{Wish, profile};
use crate::events::Event;
use crate::settings::{DELAY_MAX, DELAY_MIN, DELAY_RARE, LOOK_AROUND_INTERVAL, LOSS_PER_MILLE, TOGETHER_AFTER};

/// How long a datagram is on its way; `None`: for ever. They overtake each other.
pub(crate) fn way_of_datagram(random: &mut XorShift) -> Option<std::time::Duration> {
    let delay = DELAY_MIN + DELAY_MAX.mul_f64(random.below(1000) as f64 / 1000.0);
    let factor = if random.below(DELAY_RARE) == 0 { random.below(20) as u32 + 1 } else { 1 };
    (random.below(1000) >= LOSS_PER_MILLE).then_some(delay * factor)
}

impl Cluster {
    /// The agent of a machine starts.
    pub(crate) fn join(&mut self, machine: usize) {
        let (now, seed, site) = (self.now(), self.settings.seed, self.settings.site(machine));
        let is_first = self.machines[machine].life == 1;
        let Some(community) = &mut self.community else { return };
        let wishes = community.switch_on(now, machine, seed, &site);
        self.grant(machine, wishes);
        if is_first {
            self.plan_in(DELAY_MAX, Event::LookAround { machine });
        }
    }

    fn grant(&mut self, machine: usize, wishes: Vec<Wish>) {
        for wish in wishes {
            match wish {
                Wish::Wake { at } => {
                    self.plan_in(at.saturating_duration_since(self.now()), Event::WakeMember { machine });
                }
                Wish::Datagram { to, bytes } if !self.is_apart(machine, to) => {
                    if let Some(delay) = way_of_datagram(&mut self.random) {
                        self.plan_in(delay, Event::Datagram { from: machine, to, bytes });
                    }
                }
                Wish::Datagram { .. } => {}
            }
        }
    }

    fn is_apart(&self, one: usize, other: usize) -> bool {
        self.machines[one].is_cut || self.machines[other].is_cut
    }

    pub(crate) fn hear_datagram(&mut self, from: usize, to: usize, bytes: &[u8]) {
        if self.is_apart(from, to) {
            return;
        }
        self.report.datagrams += 1;
        let now = self.now();
        let Some(community) = &mut self.community else { return };
        let wishes = community.feed(now, to, Input::Datagram(bytes));
        self.grant(to, wishes);
    }

    pub(crate) fn wake_member(&mut self, machine: usize) {
        let now = self.now();
        let Some(community) = &mut self.community else { return };
        let wishes = community.wake(now, machine);
        self.grant(machine, wishes);
    }

    /// An agent tells what its machine lends, and its borrower takes as many donors as it wants.
    pub(crate) fn look_around(&mut self, machine: usize) {
        self.plan_in(LOOK_AROUND_INTERVAL, Event::LookAround { machine });
        let Some(lender) = &self.machines[machine].lender else { return };
        let mut told = profile(machine, &self.settings.site(machine));
        told.lent_bytes = lender.holdings().lent_bytes;
        told.quota_bytes = told.lent_bytes + lender.free_to_lend_bytes();
        told.is_draining = lender.is_draining();
        told.used_bytes = self.borrowers[machine].volume.copies() * self.settings.slab_size_bytes;
        let now = self.now();
        let Some(community) = &mut self.community else { return };
        let wishes = community.feed(now, machine, Input::Profile(told));
        self.grant(machine, wishes);
        for _ in self.slots_in(machine, Place::Used).len()..self.settings.donors {
            self.add_donor(machine);
        }
    }

    /// Machines that a borrower knows to lend.
    pub(crate) fn known_donors(&self, borrower: usize) -> Vec<usize> {
        match &self.community {
            Some(community) => community.lenders(borrower),
            None => (0..self.machines.len()).collect(),
        }
    }

    /// Every machine knows every other one, so long after the last fault.
    pub(crate) fn check_together(&self) {
        let Some(community) = &self.community else { return };
        assert!(
            community.agrees(),
            "{} pairs of machines do not know each other {TOGETHER_AFTER:?} after the last fault",
            community.wrong()
        );
    }
}
