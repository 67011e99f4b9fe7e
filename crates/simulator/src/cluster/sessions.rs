//! What happens on links: sessions are opened, kept and lost, and parcels arrive or are held back.

use spillway_donor::lender::{Input as LenderInput, Opening};
use spillway_fabric::control::message::{Hello, Message};
use spillway_fabric::limits::{HEARTBEAT_INTERVAL, SILENCE_DEADLINE, SOLE_COPY_PATIENCE};
use spillway_fabric::units::{BorrowerId, DonorId};
use spillway_fabric::wire::{SessionToken, WIRE_VERSION};
use spillway_volume::limits::{COPIES_MAX, SOLE_COPY_PATIENCE_WITH_DISK};
use spillway_volume::slab_map::slab_entry::{DonorSlot, Location};
use spillway_volume::steward::peer::{Input as PeerInput, Output as PeerOutput, Peer, PeerConfig};
use spillway_volume::steward::placement::Random;
use spillway_volume::steward::{Input, Link as Opened};

use super::Cluster;
use crate::borrower::Place;
use crate::events::Event;
use crate::links::{Link, LinkId, Parcel, Reach};
use crate::machine::Content;
use crate::machine::seen_by_donors;
use crate::settings::{DELAY_MAX, DELAY_MIN, DELAY_RARE};
use crate::volume::Slab;

impl Cluster {
    pub(crate) fn is_cut(&self, link: &Link) -> bool {
        self.machines[link.machine].is_cut || self.machines[link.borrower].is_cut
    }

    /// Whether a request to the donor of `location` arrives.
    pub(crate) fn reach(&self, borrower: usize, location: Location) -> Reach {
        let slot = &self.borrowers[borrower].slots[usize::from(location.donor.0)];
        let link = slot.link.and_then(|link| self.links.get(&link));
        link.map_or(Reach::Fails, |link| link.reach(self.is_cut(link)))
    }

    /// What is in the donor's memory at `location`.
    pub(crate) fn content(&mut self, borrower: usize, location: Location) -> Option<&mut Content> {
        let link = self.borrowers[borrower].slots[usize::from(location.donor.0)].link?;
        let link = self.links.get(&link)?;
        let (machine, session) = (link.machine, link.at_donor?);
        self.machines[machine].slab(session, location.handle)
    }

    /// The time of the Peer of `slot` may have come.
    pub(crate) fn connect(&mut self, borrower: usize, slot: usize) {
        let is_used = self.borrowers[borrower].slots.get(slot).is_some_and(|place| place.place != Place::Free);
        if self.borrowers[borrower].is_alive && is_used {
            self.feed_peer(borrower, slot, PeerInput::Tick);
        }
    }

    /// The Peer of `slot` decides.
    pub(crate) fn feed_peer(&mut self, borrower: usize, slot: usize, input: PeerInput) {
        let (now, settings) = (self.now(), self.settings);
        let config = PeerConfig {
            sole_copy_patience: if settings.has_disk { SOLE_COPY_PATIENCE_WITH_DISK } else { SOLE_COPY_PATIENCE },
            keeps_several_copies: settings.has_disk || settings.replicas > 1,
        };
        let peer = self.borrowers[borrower].slots[slot].peer.get_or_insert_with(|| Peer::new(config, now));
        for output in peer.on(now, input) {
            self.follow_peer(borrower, slot, output);
        }
    }

    fn follow_peer(&mut self, borrower: usize, slot: usize, output: PeerOutput) {
        match output {
            PeerOutput::Connect => self.dial(borrower, slot),
            PeerOutput::LookForSoleCopies => {
                let is_sole = self.depends_on(borrower, slot);
                self.feed_peer(borrower, slot, PeerInput::Found { is_sole });
            }
            PeerOutput::Silent(is_silent) => {
                self.feed_steward(borrower, Input::Silent { donor: DonorSlot(slot as u16), is_silent });
            }
            PeerOutput::GiveUp(_) => self.lose_session(borrower, slot),
            PeerOutput::WakeAt(Some(at)) => {
                self.plan_in(at.saturating_duration_since(self.now()), Event::Connect { borrower, slot });
            }
            // Heartbeats are events of the link; requests fail or wait by themselves.
            PeerOutput::Ping
            | PeerOutput::Patience(_)
            | PeerOutput::WaitedFor(_)
            | PeerOutput::WakeAt(None)
            | PeerOutput::Over => {}
        }
    }

    fn dial(&mut self, borrower: usize, slot: usize) {
        let machine = self.borrowers[borrower].slots[slot].machine;
        let is_down = self.machines[machine].lender.is_none();
        if is_down || self.machines[machine].is_cut || self.machines[borrower].is_cut {
            return self.feed_peer(borrower, slot, PeerInput::Ended);
        }
        let id = LinkId(self.links_next);
        self.links_next += 1;
        self.links.insert(id, Link::new(borrower, slot, machine));
        self.borrowers[borrower].slots[slot].link = Some(id);
        self.send(id, Parcel::Hello);
        self.plan_in(HEARTBEAT_INTERVAL, Event::Heartbeat { link: id });
    }

    /// Sends a parcel; it is held back while one of the machines is cut off.
    pub(crate) fn send(&mut self, id: LinkId, parcel: Parcel) {
        let delay = DELAY_MIN + self.draw_up_to(DELAY_MAX);
        let factor = if self.random.below(DELAY_RARE) == 0 { self.random.below(20) as u32 + 1 } else { 1 };
        let Some(link) = self.links.get(&id) else { return };
        let is_cut = self.is_cut(link);
        let link = self.links.get_mut(&id).expect("it was just there");
        if is_cut {
            return link.held.push(parcel);
        }
        let way = usize::from(parcel.is_to_donor());
        let at = (self.time + delay * factor).max(link.last[way]);
        link.last[way] = at;
        self.events.plan(at, Event::Arrive { link: id, parcel });
    }

    pub(crate) fn arrive(&mut self, id: LinkId, parcel: Parcel) {
        let Some(link) = self.links.get(&id) else { return };
        if self.is_cut(link) {
            let link = self.links.get_mut(&id).expect("it was just there");
            return link.held.push(parcel);
        }
        let is_gone = if parcel.is_to_donor() {
            self.machines[link.machine].lender.is_none()
        } else {
            !self.borrowers[link.borrower].is_alive || !self.borrowers[link.borrower].uses(link.slot, id)
        };
        if is_gone {
            return;
        }
        self.report.messages += 1;
        match parcel {
            Parcel::Hello => self.hear_hello(id),
            Parcel::Welcome { free_bytes } => self.hear_welcome(id, free_bytes),
            Parcel::Rejected => self.end_at_borrower(id),
            Parcel::ToDonor(message) => self.hear_at_donor(id, message),
            Parcel::ToBorrower(message) => self.hear_at_borrower(id, message),
            Parcel::ClosedByBorrower => {
                let link = &self.links[&id];
                let (machine, session) = (link.machine, link.at_donor);
                if let Some(session) = session {
                    self.feed_lender(machine, LenderInput::Ended { session });
                }
            }
            Parcel::ClosedByDonor => self.end_at_borrower(id),
        }
        self.bury(id);
    }

    pub(crate) fn bury(&mut self, id: LinkId) {
        let is_over = |link: &Link| link.is_over() && !self.borrowers[link.borrower].uses(link.slot, id);
        if self.links.get(&id).is_some_and(is_over) {
            self.links.remove(&id);
        }
    }

    fn hear_hello(&mut self, id: LinkId) {
        let (machine, borrower) = (self.links[&id].machine, self.links[&id].borrower);
        let session = self.machines[machine].enter(id);
        self.links.get_mut(&id).expect("it is there").at_donor = Some(session);
        let sole = !self.settings.has_disk;
        let hello = Hello {
            version: WIRE_VERSION,
            borrower: BorrowerId(self.borrowers[borrower].identity.into()),
            volume: format!("volume-{borrower}"),
            slab_size_bytes: self.settings.slab_size_bytes,
            wants_shared_memory: false,
            wants_rdma: false,
            linger_seconds: 0,
            patience_seconds: if sole { SOLE_COPY_PATIENCE } else { SILENCE_DEADLINE }.as_secs() as u16,
            resume: None,
        };
        let resume = SessionToken([0; 32]);
        let opening = Opening { session, hello, machine: seen_by_donors(borrower), passes_descriptors: false, resume };
        self.feed_lender(machine, LenderInput::Opened(opening));
    }

    fn hear_welcome(&mut self, id: LinkId, free_bytes: u64) {
        let (borrower, slot, machine) = (self.links[&id].borrower, self.links[&id].slot, self.links[&id].machine);
        let session = self.borrowers[borrower].number_session(slot);
        self.links.get_mut(&id).expect("it is there").at_borrower = Some(session);
        let identity = DonorId(machine as u128);
        let link = Opened { session, identity, free_bytes, slabs_held: 0, site: self.settings.site(machine) };
        self.feed_steward(borrower, Input::Up { donor: DonorSlot(slot as u16), link });
        self.feed_peer(borrower, slot, PeerInput::Welcomed);
        self.feed_peer(borrower, slot, PeerInput::Connected);
    }

    fn hear_at_donor(&mut self, id: LinkId, message: Message) {
        let link = &self.links[&id];
        if let Some(session) = link.at_donor {
            let machine = link.machine;
            self.feed_lender(machine, LenderInput::Message { session, message });
        }
    }

    fn hear_at_borrower(&mut self, id: LinkId, message: Message) {
        let link = self.links.get_mut(&id).expect("it is there");
        let Some(session) = link.at_borrower else { return };
        let (borrower, donor) = (link.borrower, DonorSlot(link.slot as u16));
        let slot = link.slot;
        self.feed_peer(borrower, slot, PeerInput::Heard);
        if message == Message::Ping {
            return self.send(id, Parcel::ToDonor(Message::Pong));
        }
        self.feed_steward(borrower, Input::Message { donor, session, message });
    }

    /// The links of a machine's donor, and of its borrower.
    pub(crate) fn links_of(&self, machine: usize) -> Vec<LinkId> {
        let is_its = |link: &Link| link.machine == machine || link.borrower == machine;
        self.links.iter().filter(|(_, link)| is_its(link)).map(|(id, _)| *id).collect()
    }

    /// Both ends of every link of a machine look whether the other one is there.
    pub(crate) fn beat_links_of(&mut self, machine: usize) {
        self.links_of(machine).into_iter().for_each(|link| self.plan_in(HEARTBEAT_INTERVAL, Event::Heartbeat { link }));
    }

    /// One more interval on a link: while nothing passes, both ends count it. Healthy links are left alone: they would
    /// only say Ping and Pong.
    pub(crate) fn heartbeat(&mut self, id: LinkId) {
        let Some(link) = self.links.get(&id) else { return };
        let is_silent = self.is_cut(link) || link.is_mute;
        let is_opening = link.at_borrower.is_none();
        if !is_silent && !is_opening {
            return;
        }
        let (machine, borrower, slot, at_donor) = (link.machine, link.borrower, link.slot, link.at_donor);
        self.plan_in(HEARTBEAT_INTERVAL, Event::Heartbeat { link: id });
        if let Some(session) = at_donor.filter(|_| is_silent) {
            self.feed_lender(machine, LenderInput::Quiet { session });
        }
        if self.borrowers[borrower].is_alive && self.borrowers[borrower].uses(slot, id) {
            self.feed_peer(borrower, slot, PeerInput::Quiet);
        }
        self.bury(id);
    }

    /// Whether a slab would be lost with a donor.
    fn depends_on(&self, borrower: usize, slot: usize) -> bool {
        let slabs = self.borrowers[borrower].volume.slabs.borrow();
        let has_other = |slab: &Slab| {
            (0..COPIES_MAX).any(|at| {
                let location = slab.locations[at].filter(|_| slab.valid[at]);
                location.is_some_and(|location| {
                    usize::from(location.donor.0) != slot && self.reach(borrower, location) == Reach::Open
                })
            })
        };
        let is_here = |slab: &Slab| {
            let here = |at: usize| slab.locations[at].is_some_and(|location| usize::from(location.donor.0) == slot);
            (0..COPIES_MAX).any(|at| slab.valid[at] && here(at))
        };
        slabs.iter().any(|slab| slab.is_stored && !slab.is_on_disk && is_here(slab) && !has_other(slab))
    }

    /// A borrower gives a session up, or notices that it has ended.
    pub(crate) fn lose_session(&mut self, borrower: usize, slot: usize) {
        if let Some(id) = self.borrowers[borrower].slots[slot].link {
            self.send(id, Parcel::ClosedByBorrower);
            self.end_at_borrower(id);
            self.bury(id);
        }
    }

    fn end_at_borrower(&mut self, id: LinkId) {
        let link = self.links.get_mut(&id).expect("it is there");
        let (borrower, slot, was_open) = (link.borrower, link.slot, link.at_borrower.take().is_some());
        self.borrowers[borrower].slots[slot].link = None;
        if was_open {
            self.report.sessions_lost += 1;
            self.feed_steward(borrower, Input::Down { donor: DonorSlot(slot as u16) });
            self.forget_donor(borrower, slot);
        }
        self.feed_peer(borrower, slot, PeerInput::Ended);
    }

    /// Every copy at a lost donor is gone; a slab that had no other one is lost.
    fn forget_donor(&mut self, borrower: usize, slot: usize) {
        let replicas = usize::from(self.settings.replicas);
        let mut slabs = self.borrowers[borrower].volume.slabs.borrow_mut();
        for slab in slabs.iter_mut() {
            let here = |location: &Option<Location>| location.is_some_and(|it| usize::from(it.donor.0) == slot);
            let Some(copy_index) = slab.locations.iter().position(here) else { continue };
            if !slab.remove(copy_index) {
                continue;
            }
            slab.lost_since_whole += 1;
            if slab.is_stored && !slab.is_on_disk && slab.valid_copies() == 0 {
                assert!(slab.lost_since_whole >= replicas, "{slab:?} was promised to survive this");
                slab.is_stored = false;
                self.report.slabs_lost += 1;
            }
        }
    }

    pub(crate) fn heal(&mut self, machine: usize) {
        self.machines[machine].is_cut = false;
        let ids: Vec<LinkId> = self.links.keys().copied().collect();
        for id in ids {
            let link = &self.links[&id];
            if self.is_cut(link) || link.held.is_empty() {
                continue;
            }
            let held = std::mem::take(&mut self.links.get_mut(&id).expect("it was just there").held);
            held.into_iter().for_each(|parcel| self.send(id, parcel));
            // The heartbeats of both ends are among what travels now.
            let session = self.links[&id].at_borrower;
            if session.is_some() {
                self.send(id, Parcel::ToDonor(Message::Ping));
            }
        }
        self.break_silence(machine);
    }

    /// Both ends of every link of a machine hear each other again.
    fn break_silence(&mut self, machine: usize) {
        for id in self.links_of(machine) {
            let link = &self.links[&id];
            if !self.is_cut(link) && !link.is_mute && link.at_donor.is_some() && link.at_borrower.is_some() {
                self.send(id, Parcel::ToBorrower(Message::Ping));
            }
        }
    }
}
