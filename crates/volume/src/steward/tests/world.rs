//! Donors, a volume and a mover as values. The world keeps its own books about a Steward's outputs, and panics when one
//! of them breaks a rule.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use spillway_fabric::control::message::Message;
use spillway_fabric::limits::RESERVATION_TIME;
use spillway_fabric::site::Site;
use spillway_fabric::units::{DonorId, SlabHandle, SlabIndex};

use super::super::care::Finding;
use super::super::pages::Pages;
use super::super::{Input, Lease, Link, Note, Output, SessionNumber, Steward, StewardConfig};
use crate::limits::{COPIES_MAX, PLACEMENT_CHOICES};
use crate::settings::mapping::MappingPolicy;
use crate::slab_map::slab_entry::{CopyLocations, DonorSlot, Location};

/// Slabs of the tests.
pub(super) const SIZE: u64 = 1 << 20;

/// Pages of a slab that holds any.
const PAGES: u64 = 256;

/// A slab: where its copies are, which of them have its pages, and whether it has any.
#[derive(Clone, Debug, Default)]
pub(super) struct Slab {
    pub(super) locations: CopyLocations,
    pub(super) has_pages: [bool; COPIES_MAX],
    pub(super) is_stored: bool,
    pub(super) is_on_disk: bool,
    pub(super) accesses: u64,
}

/// The volume.
#[derive(Debug)]
pub(super) struct Model(pub(super) RefCell<Vec<Slab>>);

impl Pages for Model {
    fn slab_count(&self) -> u32 {
        self.0.borrow().len() as u32
    }

    fn slab_size_bytes(&self) -> u64 {
        SIZE
    }

    fn locations(&self, slab: SlabIndex) -> CopyLocations {
        self.0.borrow()[slab.0 as usize].locations
    }

    fn accesses(&self, slab: SlabIndex) -> u64 {
        self.0.borrow()[slab.0 as usize].accesses
    }
}

/// A donor.
#[derive(Clone, Debug, Default)]
pub(super) struct Donor {
    pub(super) site: Site,
    pub(super) session: Option<SessionNumber>,
    sessions: u64,
    pub(super) room_slabs: u64,
    next_handle: u32,
    /// Questions for which a slab is kept, and how long.
    pub(super) kept: BTreeMap<u32, Instant>,
    /// Handles that are lent in this session.
    pub(super) lent: BTreeSet<SlabHandle>,
    /// It answers nothing.
    pub(super) is_mute: bool,
    pub(super) identity: u128,
}

impl Donor {
    /// Whether a slab can be lent, which is that of a question if one is kept for it.
    fn has_room_for(&mut self, request: u32) -> bool {
        self.kept.remove(&request);
        self.room_slabs > self.kept.len() as u64
    }
}

/// See the module text.
pub(super) struct World {
    pub(super) steward: Steward,
    pub(super) now: Instant,
    pub(super) volume: Model,
    pub(super) donors: Vec<Donor>,
    /// What donors were told and have not answered.
    pub(super) messages: Vec<(DonorSlot, SessionNumber, Message)>,
    pub(super) places: Vec<(SlabIndex, Vec<Lease>, usize)>,
    /// What the mover does.
    pub(super) job: Option<Output>,
    pub(super) wake_at: Option<Instant>,
    pub(super) mapping_possible: bool,
    pub(super) migrating: BTreeSet<SlabIndex>,
    pub(super) notes: Vec<Note>,
    /// The mover takes no copy away.
    pub(super) keeps_copies: bool,
    /// Leases that are in no copy index yet.
    loose: BTreeMap<(DonorSlot, SessionNumber, SlabHandle), ()>,
    /// Donors that were removed, and whether the Steward said that they are empty.
    pub(super) leaving: BTreeMap<usize, bool>,
    has_disk: bool,
}

impl World {
    pub(super) fn new(replicas: usize, has_disk: bool, slabs: usize, rooms: &[u64]) -> Self {
        let config =
            StewardConfig { replicas, has_disk, mapping: MappingPolicy::OnDemand, choices: PLACEMENT_CHOICES, seed: 7 };
        let donor =
            |(index, room): (usize, &u64)| Donor { room_slabs: *room, identity: index as u128, ..Donor::default() };
        let mut world = Self {
            steward: Steward::new(config, slabs as u32),
            now: Instant::now(),
            volume: Model(RefCell::new(vec![Slab::default(); slabs])),
            donors: rooms.iter().enumerate().map(donor).collect(),
            messages: Vec::new(),
            places: Vec::new(),
            job: None,
            wake_at: None,
            mapping_possible: false,
            migrating: BTreeSet::new(),
            notes: Vec::new(),
            keeps_copies: false,
            loose: BTreeMap::new(),
            leaving: BTreeMap::new(),
            has_disk,
        };
        (0..rooms.len()).for_each(|donor| world.connect(donor));
        world
    }

    pub(super) fn slab(&self, slab: u32) -> Slab {
        self.volume.0.borrow()[slab as usize].clone()
    }

    /// Donors that have a copy of a slab, by copy index.
    pub(super) fn holders(&self, slab: u32) -> Vec<u16> {
        self.slab(slab).locations.iter().flatten().map(|location| location.donor.0).collect()
    }

    pub(super) fn connect(&mut self, index: usize) {
        let donor = &mut self.donors[index];
        assert!(donor.session.is_none());
        let session = SessionNumber(donor.sessions);
        donor.sessions += 1;
        donor.session = Some(session);
        donor.next_handle = 0;
        let (identity, free_bytes) = (DonorId(donor.identity), donor.room_slabs * SIZE);
        let link = Link { session, identity, free_bytes, slabs_held: 0, site: donor.site.clone() };
        self.feed(Input::Up { donor: DonorSlot(index as u16), link });
    }

    /// A donor is lost with everything that it holds.
    pub(super) fn lose(&mut self, index: usize) {
        let slot = DonorSlot(index as u16);
        let donor = &mut self.donors[index];
        donor.session = None;
        donor.room_slabs += donor.lent.len() as u64;
        donor.lent.clear();
        donor.kept.clear();
        self.loose.retain(|(of, ..), ()| *of != slot);
        self.messages.retain(|(of, ..)| *of != slot);
        self.feed(Input::Down { donor: slot });
        for slab in self.volume.0.borrow_mut().iter_mut() {
            for copy_index in 0..COPIES_MAX {
                if slab.locations[copy_index].is_some_and(|location| location.donor == slot) {
                    slab.locations[copy_index] = None;
                    slab.has_pages[copy_index] = false;
                }
            }
            slab.is_stored &= slab.is_on_disk || slab.has_pages.contains(&true);
        }
    }

    /// A donor in a slot that was never used.
    pub(super) fn new_donor(&mut self, room_slabs: u64) {
        let index = self.donors.len();
        self.donors.push(Donor { room_slabs, identity: index as u128, ..Donor::default() });
        self.add(index);
        self.connect(index);
    }

    /// A donor is to be used no more.
    pub(super) fn remove(&mut self, index: usize) {
        self.leaving.entry(index).or_insert(false);
        self.feed(Input::Removed { donor: DonorSlot(index as u16) });
    }

    /// A donor may be used again: its removal is called off, or it is another one in the same slot.
    pub(super) fn add(&mut self, index: usize) {
        self.leaving.remove(&index);
        self.feed(Input::Added { donor: DonorSlot(index as u16) });
    }

    /// Donors that are empty lose their links.
    pub(super) fn close_empty(&mut self) {
        let empty: Vec<usize> = self.leaving.iter().filter(|(_, is_empty)| **is_empty).map(|(at, _)| *at).collect();
        for index in empty {
            if self.donors[index].session.is_some() {
                self.lose(index);
            }
        }
    }

    /// A program writes to a slab, and asks for a donor if it has none.
    pub(super) fn write(&mut self, slab: u32) {
        let is_unmapped = {
            let mut slabs = self.volume.0.borrow_mut();
            let entry = &mut slabs[slab as usize];
            entry.accesses += 1;
            for copy_index in 0..COPIES_MAX {
                entry.has_pages[copy_index] = entry.locations[copy_index].is_some();
            }
            let is_unmapped = entry.locations.iter().all(Option::is_none);
            entry.is_on_disk = self.has_disk;
            entry.is_stored = self.has_disk || !is_unmapped;
            is_unmapped
        };
        if is_unmapped {
            self.feed(Input::Wanted { slab: SlabIndex(slab) });
        }
    }

    pub(super) fn recall(&mut self, donor: usize, handle: SlabHandle) {
        let Some(session) = self.donors[donor].session else { return };
        let message = Message::Recall { slabs: vec![handle], deadline_ms: 1 };
        self.feed(Input::Message { donor: DonorSlot(donor as u16), session, message });
    }

    /// A donor does not want a slab back any more.
    pub(super) fn withdraw(&mut self, donor: usize, handle: SlabHandle) {
        let Some(session) = self.donors[donor].session else { return };
        let message = Message::RecallWithdrawn { slabs: vec![handle] };
        self.feed(Input::Message { donor: DonorSlot(donor as u16), session, message });
    }

    pub(super) fn look(&mut self) {
        let findings = self.volume.0.borrow().iter().map(finding).collect();
        self.feed(Input::Looked { findings });
    }

    pub(super) fn feed(&mut self, input: Input) {
        let is_tick = input == Input::Tick;
        let outputs = self.steward.on(self.now, input, &self.volume);
        outputs.into_iter().for_each(|output| self.apply(output));
        if is_tick {
            assert!(self.wake_at.is_none_or(|at| at > self.now), "it asks for a tick that just came");
        }
    }

    fn apply(&mut self, output: Output) {
        match output {
            Output::Send { donor, session, message } => {
                assert_eq!(
                    self.donors[usize::from(donor.0)].session,
                    Some(session),
                    "{message:?} to a session that is over"
                );
                let asks = matches!(message, Message::Lease { .. } | Message::Ask { .. });
                let is_leaving = self.leaving.contains_key(&usize::from(donor.0));
                assert!(!asks || !is_leaving, "a donor that is to be used no more is asked for a slab");
                self.messages.push((donor, session, message));
            }
            Output::Empty { donor } => {
                let is_told = self.leaving.get_mut(&usize::from(donor.0)).expect("only a removed donor is empty");
                assert!(!std::mem::replace(is_told, true), "said once");
                let slabs = self.volume.0.borrow();
                let there = slabs.iter().flat_map(|slab| slab.locations.into_iter().flatten());
                assert_eq!(there.filter(|location| location.donor == donor).count(), 0, "not empty");
            }
            Output::Place { slab, leases, copies_max } => {
                assert!(self.places.iter().all(|(other, ..)| *other != slab), "one placement for a slab at a time");
                for lease in &leases {
                    let key = (lease.location.donor, lease.session, lease.location.handle);
                    assert!(self.loose.contains_key(&key), "{lease:?} was not lent");
                }
                self.places.push((slab, leases, copies_max));
            }
            Output::Fill { .. } | Output::Drop { .. } => {
                assert!(self.job.is_none(), "the mover does one thing at a time");
                self.job = Some(output);
            }
            Output::GiveBack { lease } => {
                let key = (lease.location.donor, lease.session, lease.location.handle);
                assert!(self.loose.remove(&key).is_some(), "{lease:?} is no loose lease");
                self.take_back(lease.location);
            }
            Output::Migrating { slab, is_migrating } => {
                if is_migrating {
                    self.migrating.insert(slab)
                } else {
                    self.migrating.remove(&slab)
                };
            }
            Output::MappingPossible(possible) => self.mapping_possible = possible,
            Output::HurryDisk => {}
            Output::WakeAt(at) => self.wake_at = at,
            Output::Note(note) => self.notes.push(note),
        }
    }

    fn take_back(&mut self, location: Location) {
        let donor = &mut self.donors[usize::from(location.donor.0)];
        assert!(donor.lent.remove(&location.handle), "{location:?} is not lent");
        donor.room_slabs += 1;
    }

    /// The donor answers one message; whether it did.
    pub(super) fn answer(&mut self, index: usize) -> bool {
        let (slot, session, message) = self.messages.remove(index);
        let donor = &mut self.donors[usize::from(slot.0)];
        if donor.session != Some(session) || donor.is_mute {
            return false;
        }
        donor.kept.retain(|_, until| *until > self.now);
        let answer = match message {
            Message::Ask { request } => {
                let is_reserved = donor.room_slabs > donor.kept.len() as u64;
                if is_reserved {
                    assert!(donor.kept.insert(request, self.now + RESERVATION_TIME).is_none(), "a number is used once");
                }
                Message::Offered { request, free_bytes: donor.room_slabs * SIZE, is_reserved }
            }
            Message::Decline { request } => {
                donor.kept.remove(&request);
                return true;
            }
            Message::Query { request } => {
                let held = donor.lent.len() as u32;
                Message::Free { request, free_bytes: donor.room_slabs * SIZE, slabs_held: held }
            }
            Message::Lease { request } if !donor.has_room_for(request) => {
                Message::Refused { request, full: true, reason: "full".to_owned() }
            }
            Message::Lease { request } => {
                donor.room_slabs -= 1;
                let slab = SlabHandle(donor.next_handle);
                donor.next_handle += 1;
                donor.lent.insert(slab);
                self.loose.insert((slot, session, slab), ());
                Message::Leased { request, slab, key: None }
            }
            _ => return false,
        };
        self.feed(Input::Message { donor: slot, session, message: answer });
        true
    }

    /// The manager's thread puts leases in place.
    pub(super) fn place(&mut self) {
        let (slab, leases, copies_max) = self.places.remove(0);
        let mut copy_indexes = Vec::new();
        for lease in leases {
            let is_open = self.donors[usize::from(lease.location.donor.0)].session == Some(lease.session);
            let mut slabs = self.volume.0.borrow_mut();
            let entry = &mut slabs[slab.0 as usize];
            let copies = entry.locations.iter().flatten().count();
            let free = entry.locations.iter().position(Option::is_none);
            let free = free.filter(|_| is_open && copies < copies_max);
            if let Some(copy_index) = free {
                let held = entry.locations.iter().flatten().any(|other| other.donor == lease.location.donor);
                assert!(!held, "no donor holds two copies of a slab");
                entry.locations[copy_index] = Some(lease.location);
                entry.has_pages[copy_index] = false;
                self.loose.remove(&(lease.location.donor, lease.session, lease.location.handle));
            }
            copy_indexes.push(free);
        }
        self.feed(Input::Placed { slab, copy_indexes });
    }

    /// The mover ends its job.
    pub(super) fn move_on(&mut self) {
        match self.job.take() {
            Some(Output::Fill { slab, copies }) => {
                self.fill(slab, &copies);
                self.feed(Input::Filled { slab });
            }
            Some(Output::Drop { slab, location, others_min }) => {
                let is_gone = self.drop_covered(slab, location, others_min);
                self.feed(Input::Dropped { slab, location, is_gone });
            }
            other => panic!("{other:?} is no job"),
        }
    }

    fn fill(&mut self, slab: SlabIndex, copies: &[(usize, Location)]) {
        let mut slabs = self.volume.0.borrow_mut();
        let entry = &mut slabs[slab.0 as usize];
        let has_source = entry.is_on_disk || entry.has_pages.contains(&true);
        for (copy_index, location) in copies {
            if entry.locations[*copy_index] == Some(*location) && has_source {
                entry.has_pages[*copy_index] = true;
            }
        }
    }

    fn drop_covered(&mut self, slab: SlabIndex, location: Location, others_min: usize) -> bool {
        {
            let mut slabs = self.volume.0.borrow_mut();
            let entry = &mut slabs[slab.0 as usize];
            let Some(copy_index) = entry.locations.iter().position(|other| *other == Some(location)) else {
                return false;
            };
            let others = (0..COPIES_MAX).filter(|other| *other != copy_index && entry.has_pages[*other]).count();
            let is_covered = if others_min == 0 { others > 0 || entry.is_on_disk } else { others >= others_min };
            let is_needed = entry.has_pages[copy_index] && entry.is_stored && !is_covered;
            if is_needed || self.keeps_copies {
                return false;
            }
            entry.locations[copy_index] = None;
            entry.has_pages[copy_index] = false;
        }
        self.take_back(location);
        true
    }

    /// Another donor has a copy of a slab of which the Steward knows nothing.
    pub(super) fn copy_unasked(&mut self, slab: u32) {
        let holders = self.holders(slab);
        let slot = (0..).find(|slot| !holders.contains(slot)).expect("there are more donors than copies");
        let donor = &mut self.donors[usize::from(slot)];
        let handle = SlabHandle(donor.next_handle);
        donor.next_handle += 1;
        donor.room_slabs -= 1;
        donor.lent.insert(handle);
        let mut slabs = self.volume.0.borrow_mut();
        let entry = &mut slabs[slab as usize];
        let place = entry.locations.iter().position(Option::is_none).expect("a slab has few copies");
        entry.locations[place] = Some(Location { donor: DonorSlot(slot), handle });
        entry.has_pages[place] = true;
    }

    /// Does all that is to be done, until nothing is, or time must pass.
    pub(super) fn settle(&mut self) {
        for _ in 0..10_000 {
            if !self.places.is_empty() {
                self.place();
            } else if self.job.is_some() {
                self.move_on();
            } else if !self.messages.is_empty() {
                self.answer(0);
            } else {
                return;
            }
        }
        panic!("it never settles");
    }

    /// Lets time pass, with looks as the manager's thread has them.
    pub(super) fn pass(&mut self, time: Duration) {
        let until = self.now + time;
        while self.now < until {
            self.now += Duration::from_millis(100);
            if self.wake_at.is_some_and(|at| at <= self.now) {
                self.feed(Input::Tick);
            }
            self.look();
            self.settle();
        }
    }

    /// What holds whenever nothing is under way.
    pub(super) fn check_settled(&self) {
        assert!(self.loose.is_empty(), "leased for nothing: {:?}", self.loose);
        let named: BTreeSet<(DonorSlot, SlabHandle)> = self
            .volume
            .0
            .borrow()
            .iter()
            .flat_map(|slab| slab.locations.into_iter().flatten())
            .map(|location| (location.donor, location.handle))
            .collect();
        let lent: BTreeSet<(DonorSlot, SlabHandle)> = (0..)
            .zip(&self.donors)
            .flat_map(|(slot, donor)| donor.lent.iter().map(move |handle| (DonorSlot(slot), *handle)))
            .collect();
        assert_eq!(named, lent, "every lent slab has a place, and every place a lent slab");
        for (slot, donor) in (0..).map(DonorSlot).zip(&self.donors) {
            let held = self.steward.donor(slot).map(|view| view.slabs_held);
            assert_eq!(held, donor.session.map(|_| donor.lent.len() as u64), "it knows what {slot:?} holds");
        }
    }
}

fn finding(slab: &Slab) -> Finding {
    let copies = slab.locations.iter().flatten().count();
    let misses = (0..COPIES_MAX).any(|copy| slab.locations[copy].is_some() && !slab.has_pages[copy]);
    let stored = if slab.is_stored { PAGES } else { 0 };
    Finding { copies, stored, missing: if misses { stored } else { 0 }, lost: 0 }
}
