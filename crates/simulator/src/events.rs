//! What is to come, in the order of time; of two events at one moment the one that was planned first.

use std::collections::BTreeMap;
use std::time::Duration;

use spillway_donor::lender::SlabId;
use spillway_volume::manager::decisions::MoveJob;

use crate::links::{LinkId, Parcel};

/// Something that happens.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    /// A borrower tries a donor, by its slot.
    Connect { borrower: usize, slot: usize },
    /// Something arrives at one end of a link.
    Arrive { link: LinkId, parcel: Parcel },
    /// One more heartbeat interval on a link that may be silent.
    Heartbeat { link: LinkId },
    /// A donor's look at the memory of its machine.
    Sample { machine: usize },
    /// A slab is made, or cannot be.
    Made { machine: usize, life: u32, slab: SlabId },
    /// A Lender wants to be asked again.
    WakeLender { machine: usize, life: u32 },
    /// A Steward wants to be asked again.
    WakeSteward { borrower: usize },
    /// A manager's thread puts leases in place.
    Place { borrower: usize },
    /// A mover ends its job.
    Moved { borrower: usize, identity: u64, job: MoveJob },
    /// A manager's look at all slabs.
    Look { borrower: usize },
    /// A program uses its memory.
    Work { borrower: usize },
    /// Something goes wrong.
    Fault,
    /// A machine is reachable again.
    Heal { machine: usize },
    /// A donor that was drained lends again.
    Undrain { machine: usize, life: u32 },
    /// A machine is switched on again.
    Restart { machine: usize },
    /// A datagram of the membership arrives.
    Datagram { from: usize, to: usize, bytes: Vec<u8> },
    /// A membership wants to be asked again.
    WakeMember { machine: usize },
    /// An agent tells of itself, and looks for donors.
    LookAround { machine: usize },
    /// A look at every recall.
    Watch,
    /// From now on every machine knows every other one.
    Together,
}

/// See the module text.
#[derive(Debug, Default)]
pub(crate) struct Events {
    planned: BTreeMap<(Duration, u64), Event>,
    number: u64,
}

impl Events {
    /// Plans `event` for a time since the start.
    pub(crate) fn plan(&mut self, at: Duration, event: Event) {
        self.number += 1;
        self.planned.insert((at, self.number), event);
    }

    /// The next event up to `until`, and its time.
    pub(crate) fn next(&mut self, until: Duration) -> Option<(Duration, Event)> {
        let entry = self.planned.first_entry().filter(|entry| entry.key().0 <= until)?;
        let ((at, _), event) = entry.remove_entry();
        Some((at, event))
    }
}
