//! The borrower's side of a machine: a Steward, a volume, and the slots of the donors that it knows.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use spillway_fabric::units::{SlabHandle, SlabIndex};
use spillway_volume::manager::decisions::PlaceJob;
use spillway_volume::settings::mapping::MappingPolicy;
use spillway_volume::slab_map::slab_entry::DonorSlot;
use spillway_volume::steward::peer::Peer;
use spillway_volume::steward::{Input, Output, SessionNumber, Steward, StewardConfig};

use crate::links::LinkId;
use crate::settings::Settings;
use crate::volume::ModelVolume;

/// What a slot is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// A donor in use.
    Used,
    /// A donor that is being removed.
    Leaving,
    /// No donor.
    Free,
}

/// A donor that a borrower knows.
#[derive(Debug)]
pub(crate) struct Slot {
    /// Whether it is one.
    pub(crate) place: Place,
    /// Its machine.
    pub(crate) machine: usize,
    /// The link to it, open or being opened.
    pub(crate) link: Option<LinkId>,
    /// What decides about that, since it was first tried.
    pub(crate) peer: Option<Peer>,
    sessions: u64,
}

impl Slot {
    /// A slot that was never used.
    pub(crate) fn new(machine: usize) -> Self {
        Self { place: Place::Used, machine, link: None, peer: None, sessions: 0 }
    }

    /// The slot of a donor that is gone. Its sessions are numbered on.
    pub(crate) fn take(&mut self, machine: usize) {
        assert!(self.place == Place::Free && self.link.is_none(), "a slot has one donor");
        (self.place, self.machine, self.peer) = (Place::Used, machine, None);
    }
}

/// See the module text.
#[derive(Debug)]
pub(crate) struct Borrower {
    /// It lives once: its machine's next life has another one.
    pub(crate) identity: u64,
    /// Where it runs: the machine of the same number. `false`: that is switched off.
    pub(crate) is_alive: bool,
    /// What decides.
    pub(crate) steward: Steward,
    /// What it stores.
    pub(crate) volume: ModelVolume,
    /// The donors.
    pub(crate) slots: Vec<Slot>,
    /// Of the manager's thread.
    pub(crate) places: VecDeque<PlaceJob>,
    /// Slabs that a program waits for, since when.
    pub(crate) wanted_since: BTreeMap<SlabIndex, Duration>,
    /// Slabs before this one are filled, if programs only fill.
    pub(crate) filled: usize,
    /// When the Steward wants to be asked again.
    pub(crate) wake_at: Option<Instant>,
}

impl Borrower {
    /// One that knows these donors, and has stored nothing.
    pub(crate) fn new(settings: &Settings, identity: u64, donors: &[usize], volume_slabs: u32) -> Self {
        let config = StewardConfig {
            replicas: settings.replicas.into(),
            has_disk: settings.has_disk,
            mapping: MappingPolicy::OnDemand,
            choices: settings.choices,
            seed: settings.seed ^ identity.wrapping_mul(0x9E37_79B9_7F4A_7C15),
        };
        Self {
            identity,
            is_alive: true,
            steward: Steward::new(config, volume_slabs),
            volume: ModelVolume::new(volume_slabs, settings.slab_size_bytes),
            slots: donors.iter().map(|machine| Slot::new(*machine)).collect(),
            places: VecDeque::new(),
            wanted_since: BTreeMap::new(),
            filled: 0,
            wake_at: None,
        }
    }

    /// Whether the donor in `slot` is reached over `link`; not so in a life before this one.
    pub(crate) fn uses(&self, slot: usize, link: LinkId) -> bool {
        self.slots.get(slot).is_some_and(|slot| slot.link == Some(link))
    }

    /// The number of the next session with the donor in `slot`.
    pub(crate) fn number_session(&mut self, slot: usize) -> SessionNumber {
        let number = SessionNumber(self.slots[slot].sessions);
        self.slots[slot].sessions += 1;
        number
    }

    /// The Steward decides.
    pub(crate) fn feed(&mut self, now: Instant, input: Input) -> Vec<Output> {
        self.steward.on(now, input, &self.volume)
    }

    /// Slabs at the donor in `slot`, by what it calls them.
    pub(crate) fn named_at(&self, slot: usize) -> Vec<(SlabIndex, SlabHandle)> {
        let slabs = self.volume.slabs.borrow();
        let here = |(slab, entry): (u32, &crate::volume::Slab)| {
            let location = entry.locations.into_iter().flatten().find(|other| other.donor == DonorSlot(slot as u16))?;
            Some((SlabIndex(slab), location.handle))
        };
        (0..).zip(slabs.iter()).filter_map(here).collect()
    }
}
