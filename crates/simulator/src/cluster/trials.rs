//! Single troubles in a cluster that was well before, for tests.

use std::time::{Duration, Instant};

use spillway_volume::limits::COPIES_MAX;
use spillway_volume::steward::placement::Random;

use super::{Cluster, Load};
use crate::settings::{CALM, REST, Settings};

/// Programs have written every slab by then, and every copy is there.
const SETTLED_AFTER: Duration = Duration::from_secs(40);

/// The longest patience for a machine that vanished has passed, and what it had is counted.
const COUNTED_AFTER: Duration = Duration::from_secs(45);

/// What became of slabs when two machines were switched off, of borrowers that go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fate {
    /// Slabs of which every copy lay on the two.
    pub on_both: u64,
    /// Copies that lay on the two.
    pub copies_lost: u64,
    /// Slabs that are lost.
    pub lost: u64,
}

impl Cluster {
    /// Nothing goes wrong by itself.
    pub fn without_faults(settings: Settings, start: Instant) -> Self {
        let loads = vec![Load { local_bytes: 0, volume_slabs: settings.volume_slabs }; settings.machines as usize];
        Self::with_loads(settings, &loads, start)
    }

    /// Programs write until every copy is there; then they rest.
    pub fn settle(&mut self) {
        self.is_filled_only = true;
        self.run_until(self.time + SETTLED_AFTER);
        self.is_idle = true;
        self.run_until(self.time + REST);
        self.check_calm();
    }

    /// Slabs that hold something.
    pub fn slabs_stored(&self) -> u64 {
        let stored = |borrower: &crate::borrower::Borrower| {
            borrower.volume.slabs.borrow().iter().filter(|slab| slab.is_stored).count() as u64
        };
        self.borrowers.iter().map(stored).sum()
    }

    /// Switches two machines off at one moment, and waits until their borrowers have given them up. `is_sudden`: their
    /// kernels close no connection any more.
    pub fn lose_two_at_once(&mut self, is_sudden: bool) -> Fate {
        let first = self.random.below(self.machines.len());
        let second = (first + 1 + self.random.below(self.machines.len() - 1)) % self.machines.len();
        let (mut on_both, mut copies_lost) = (0, 0);
        for (number, borrower) in self.borrowers.iter().enumerate() {
            if number == first || number == second {
                continue;
            }
            for slab in borrower.volume.slabs.borrow().iter().filter(|slab| slab.is_stored) {
                let copies = (0..COPIES_MAX).filter(|copy| slab.valid[*copy]).filter_map(|copy| slab.locations[copy]);
                let machines = copies.map(|location| borrower.slots[usize::from(location.donor.0)].machine);
                let (gone, kept): (Vec<_>, Vec<_>) =
                    machines.partition(|machine| *machine == first || *machine == second);
                copies_lost += gone.len() as u64;
                on_both += u64::from(kept.is_empty());
            }
        }
        let before = self.report.slabs_lost;
        self.switch_off(first, is_sudden);
        self.switch_off(second, is_sudden);
        self.run_until(self.time + COUNTED_AFTER);
        Fate { on_both, copies_lost, lost: self.report.slabs_lost - before }
    }

    /// All machines are on again; every copy comes back.
    pub fn mend(&mut self) {
        self.calm_down();
        self.run_until(self.time + CALM);
        self.check_calm();
    }
}
