//! What goes wrong: machines are cut off for a while, are switched off with or without a farewell of their kernel, and
//! need their memory themselves. And what changes: borrowers take other donors, donors are drained and lend again.

use std::time::Duration;

use spillway_donor::lender::{Input, Lender};
use spillway_volume::steward::placement::Random;

use super::Cluster;
use crate::events::Event;
use crate::links::Parcel;
use crate::settings::TOGETHER_AFTER;

/// How long machines are cut off, at random: shorter than any patience, longer than that of a copy that can be spared,
/// longer than any.
const CUTS: [Duration; 4] =
    [Duration::from_millis(300), Duration::from_millis(1500), Duration::from_secs(5), Duration::from_secs(45)];

/// How long a machine stays switched off, at most.
const DOWN_MAX: Duration = Duration::from_secs(20);

/// A drain that is undone soon is so within this time, while slabs are looked for, copied and given back.
const DRAIN_SHORT_MAX: Duration = Duration::from_millis(800);

impl Cluster {
    /// Faults of as many machines as at one moment, and plans the next ones.
    pub(crate) fn fault(&mut self) {
        if self.time >= self.settings.storm {
            return;
        }
        let pause = self.draw_up_to(self.settings.fault_interval * 2);
        self.plan_in(pause, Event::Fault);
        let mut machines: Vec<usize> = (0..self.machines.len()).collect();
        for _ in 0..self.settings.faults_at_once.min(machines.len()) {
            let drawn = self.random.below(machines.len());
            let machine = machines.swap_remove(drawn);
            self.fault_of(machine);
        }
    }

    fn fault_of(&mut self, machine: usize) {
        match self.random.below(15) {
            0..=3 => self.cut(machine),
            4 => self.switch_off(machine, true),
            5 => self.switch_off(machine, false),
            6..=8 => self.change_donors(machine),
            9..=10 => self.drain_or_undo(machine),
            _ => self.squeeze(machine),
        }
    }

    fn cut(&mut self, machine: usize) {
        if self.machines[machine].is_cut || self.machines[machine].lender.is_none() {
            return;
        }
        self.report.cuts += 1;
        self.machines[machine].is_cut = true;
        let length = CUTS[self.random.below(CUTS.len())];
        self.plan_in(length, Event::Heal { machine });
        self.beat_links_of(machine);
    }

    /// A machine's own programs need more or less memory than before.
    fn squeeze(&mut self, machine: usize) {
        self.report.squeezes += 1;
        let slabs = self.random.below(self.settings.memory_slabs as usize) as u64;
        self.machines[machine].local_bytes = slabs * self.settings.slab_size_bytes;
    }

    /// A donor is drained, or lends again: half of the drains end within the pause between two faults, before or while
    /// their slabs move.
    fn drain_or_undo(&mut self, machine: usize) {
        let Some(lender) = &self.machines[machine].lender else { return };
        if lender.is_draining() {
            return self.undrain(machine);
        }
        self.report.drains += 1;
        self.feed_lender(machine, Input::Drain);
        if self.random.below(2) == 0 {
            let life = self.machines[machine].life;
            let until = self.draw_up_to(DRAIN_SHORT_MAX);
            self.plan_in(until, Event::Undrain { machine, life });
        }
    }

    /// A donor that is drained lends again.
    pub(crate) fn undrain(&mut self, machine: usize) {
        if self.machines[machine].lender.as_ref().is_some_and(Lender::is_draining) {
            self.report.undone += 1;
            self.feed_lender(machine, Input::Undrain);
        }
    }

    /// A machine is switched off: donor, borrower and everything in its memory. `is_sudden`: its kernel closes no
    /// connection any more.
    pub(crate) fn switch_off(&mut self, machine: usize, is_sudden: bool) {
        if self.machines[machine].lender.is_none() {
            return;
        }
        self.report.crashes += 1;
        for id in self.links_of(machine) {
            let link = self.links.get_mut(&id).expect("it was just there");
            // What was held back was in the memory of the sender.
            let is_donor = link.machine == machine;
            link.held.retain(|parcel| parcel.is_to_donor() == is_donor);
            link.is_mute |= is_sudden;
            if is_donor {
                link.at_donor = None;
            } else {
                link.at_borrower = None;
            }
            if !is_sudden {
                self.send(id, if is_donor { Parcel::ClosedByDonor } else { Parcel::ClosedByBorrower });
            }
        }
        self.machines[machine].switch_off();
        if let Some(community) = &mut self.community {
            community.switch_off(machine);
        }
        self.borrowers[machine].is_alive = false;
        self.beat_links_of(machine);
        let down = self.draw_up_to(DOWN_MAX);
        self.plan_in(down, Event::Restart { machine });
    }

    /// All is well from now on.
    pub(crate) fn calm_down(&mut self) {
        for machine in 0..self.machines.len() {
            self.machines[machine].local_bytes = 0;
            self.heal(machine);
            self.undrain(machine);
            if self.machines[machine].lender.is_none() {
                self.restart(machine);
            }
        }
        self.complete_donors();
        self.plan_in(TOGETHER_AFTER, Event::Together);
    }

    /// A donor looks at the memory of its machine.
    pub(crate) fn sample(&mut self, machine: usize) {
        let sample = self.machines[machine].sample();
        self.feed_lender(machine, Input::Sample(sample));
    }
}
