//! Placements: from a slab that lacks copies to donors that lend them.
//!
//! A slab waits for its placement with a [`Purpose`]; [`PLACEMENTS_MAX`] placements go on at a time. Those that a
//! writer waits for start first, then those that a donor waits for, then the hottest slabs. Each goes through the
//! stages draw, ask, lease for every copy, and ends with one [`Output::Place`] for all of them.
//!
//! A donor that is asked keeps a slab, so the one that is chosen does not refuse it. The others' offers wait a moment
//! for the next placement that draws them, which then asks one question less.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use spillway_fabric::control::message::Message;
use spillway_fabric::site::{Separation, Site};
use spillway_fabric::units::SlabIndex;

use super::donors::{Donors, Offer};
use super::heat::Heat;
use super::pages::Pages;
use super::placement::{self, Candidate, Random, XorShift};
use super::{Lease, Output, StewardConfig};
use crate::limits::{CONTROL_REPLY_DEADLINE, COPIES_MAX, LEASE_DEADLINE_PER_GIBIBYTE, OFFER_USED_TIME, PLACEMENTS_MAX};
use crate::slab_map::slab_entry::{CopyLocations, DonorSlot, Location};

const GIBIBYTE: f64 = (1u64 << 30) as f64;

/// What a copy is for, in the order of urgency.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Purpose {
    /// A request waits: the slab has no copy.
    First,
    /// A donor waits: its copy is to be moved elsewhere.
    Move,
    /// The slab has fewer copies than it should.
    Restore,
}

/// A slab that waits for its placement.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    purpose: Purpose,
    /// Not to be asked: it wants its slab back.
    avoid: Option<DonorSlot>,
}

/// One that was drawn.
#[derive(Clone, Copy, Debug)]
struct Asked {
    donor: DonorSlot,
    /// What it keeps, once it has answered so.
    offer: Offer,
    answer: Option<Answer>,
}

/// What a donor answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    /// It keeps a slab.
    Kept,
    /// It has no room.
    Full,
}

#[derive(Debug)]
enum Stage {
    /// Nothing is under way.
    Idle,
    /// Those that were drawn were asked for their room.
    Asking { drawn: Vec<Asked>, deadline: Instant },
    /// One was asked for a slab.
    Leasing { donor: DonorSlot, request: u32, deadline: Instant },
    /// The leases are being put in place.
    Placing,
}

#[derive(Debug)]
struct Placement {
    purpose: Purpose,
    /// Copies that the slab may have.
    copies_max: usize,
    /// The donor that wants its copy back.
    leaving: Option<DonorSlot>,
    /// Donors that are not asked any more.
    passed: Vec<DonorSlot>,
    leases: Vec<Lease>,
    /// Those that their donors want back while they are put in place.
    wanted_back: Vec<Location>,
    stage: Stage,
}

/// How a placement ended.
#[derive(Debug)]
pub struct Ended {
    /// What it was for.
    pub purpose: Purpose,
    /// What was leased, and its copy index.
    pub leases: Vec<(Lease, Option<usize>)>,
    /// Those of them that their donors want back already.
    pub wanted_back: Vec<Location>,
}

/// What a step of a placement needs.
pub struct Context<'a> {
    /// The time.
    pub now: Instant,
    /// What copies there should be.
    pub config: &'a StewardConfig,
    /// The donors.
    pub donors: &'a mut Donors,
    /// For draws.
    pub random: &'a mut XorShift,
    /// What is used most.
    pub heat: &'a Heat,
    /// The volume.
    pub pages: &'a dyn Pages,
    /// Leases that were asked for and not answered, by donor.
    pub leasing: BTreeMap<DonorSlot, u32>,
    /// What is to be done.
    pub outputs: &'a mut Vec<Output>,
}

impl Context<'_> {
    /// A slab that `donor` keeps is not needed.
    fn decline(&mut self, donor: DonorSlot, offer: Offer) {
        if let Some(session) = self.donors.session(donor) {
            let message = Message::Decline { request: offer.request };
            self.outputs.push(Output::Send { donor, session, message });
        }
    }
}

/// All placements, see the module text.
#[derive(Debug, Default)]
pub struct Placing {
    waiting: BTreeMap<SlabIndex, Waiting>,
    going_on: BTreeMap<SlabIndex, Placement>,
}

impl Placing {
    /// A request waits for a copy of `slab`.
    pub fn want(&mut self, slab: SlabIndex) {
        self.add(slab, Waiting { purpose: Purpose::First, avoid: None });
    }

    /// `slab` has too few copies.
    pub fn restore(&mut self, slab: SlabIndex) {
        self.add(slab, Waiting { purpose: Purpose::Restore, avoid: None });
    }

    /// The copy of `slab` at `donor` is to go elsewhere.
    pub fn make_room(&mut self, slab: SlabIndex, donor: DonorSlot) {
        self.add(slab, Waiting { purpose: Purpose::Move, avoid: Some(donor) });
    }

    fn add(&mut self, slab: SlabIndex, new: Waiting) {
        let waiting = self.waiting.entry(slab).or_insert(new);
        if new.purpose < waiting.purpose {
            *waiting = new;
        }
    }

    /// Whether a slab is in a placement, or waits for one.
    pub fn is_busy(&self, slab: SlabIndex) -> bool {
        self.waiting.contains_key(&slab) || self.going_on.contains_key(&slab)
    }

    /// A donor said how much it could lend, and whether it keeps a slab; false when no placement waits for that.
    pub fn offered(&mut self, donor: DonorSlot, request: u32, is_reserved: bool) -> bool {
        let asked = self.going_on.values_mut().filter_map(|placement| match &mut placement.stage {
            Stage::Asking { drawn, .. } => Some(drawn),
            _ => None,
        });
        let mut asked = asked.flatten();
        let Some(one) = asked.find(|one| one.donor == donor && one.offer.request == request) else { return false };
        one.answer = Some(if is_reserved { Answer::Kept } else { Answer::Full });
        true
    }

    /// A donor lent a slab; false when no placement waits for it any more.
    pub fn leased(&mut self, lease: Lease, request: u32) -> bool {
        let Some(placement) = self.waits_for(lease.location.donor, request) else { return false };
        placement.leases.push(lease);
        placement.stage = Stage::Idle;
        true
    }

    /// A donor lends no slab.
    pub fn refused(&mut self, donors: &mut Donors, now: Instant, donor: DonorSlot, request: u32) {
        donors.refuses(now, donor);
        if let Some(placement) = self.waits_for(donor, request) {
            placement.passed.push(donor);
            placement.stage = Stage::Idle;
        }
    }

    fn waits_for(&mut self, donor: DonorSlot, request: u32) -> Option<&mut Placement> {
        self.going_on.values_mut().find(|placement| {
            matches!(placement.stage, Stage::Leasing { donor: asked, request: number, .. }
                if asked == donor && number == request)
        })
    }

    /// A donor's session is over, and all that was leased in it. What is being put in place is told by its answer.
    pub fn lose(&mut self, donor: DonorSlot) {
        for placement in self.going_on.values_mut() {
            if matches!(placement.stage, Stage::Placing) {
                continue;
            }
            placement.leases.retain(|lease| lease.location.donor != donor);
            match &mut placement.stage {
                Stage::Asking { drawn, .. } => {
                    drawn.retain(|one| one.donor != donor);
                }
                Stage::Leasing { donor: asked, .. } if *asked == donor => placement.stage = Stage::Idle,
                _ => {}
            }
        }
    }

    /// A donor is to be used no more: it is asked for nothing, and what it lent goes back, except what is being put in
    /// place. The leases that go back.
    pub fn pass_over(&mut self, donor: DonorSlot) -> Vec<Lease> {
        let mut back = Vec::new();
        for placement in self.going_on.values_mut() {
            if matches!(placement.stage, Stage::Placing) {
                continue;
            }
            back.extend(placement.leases.extract_if(.., |lease| lease.location.donor == donor));
            match &mut placement.stage {
                Stage::Asking { drawn, .. } => drawn.retain(|one| one.donor != donor),
                Stage::Leasing { donor: asked, .. } if *asked == donor => placement.stage = Stage::Idle,
                _ => {}
            }
        }
        back
    }

    /// A donor wants a slab back that is in no copy index yet. The lease that goes back, if a placement has it: the
    /// slab is looked for elsewhere. One that is being put in place is told by [`Ended::wanted_back`].
    pub fn recalled(&mut self, location: Location) -> Option<Lease> {
        for placement in self.going_on.values_mut() {
            let Some(at) = placement.leases.iter().position(|lease| lease.location == location) else { continue };
            if !matches!(placement.stage, Stage::Placing) {
                placement.passed.push(location.donor);
                return Some(placement.leases.remove(at));
            }
            if !placement.wanted_back.contains(&location) {
                placement.wanted_back.push(location);
            }
        }
        None
    }

    /// A donor does not want a slab back after all.
    pub fn withdrawn(&mut self, location: Location) {
        self.going_on.values_mut().for_each(|placement| placement.wanted_back.retain(|other| *other != location));
    }

    /// Whether a placement has a slab of `donor`.
    pub fn has_lease_of(&self, donor: DonorSlot) -> bool {
        self.going_on.values().any(|placement| placement.leases.iter().any(|lease| lease.location.donor == donor))
    }

    /// The leases of a placement were put in place, or found none.
    ///
    /// # Panics
    /// If nothing was to be put in place there.
    pub fn placed(&mut self, slab: SlabIndex, copy_indexes: &[Option<usize>]) -> Ended {
        let placement = self.going_on.remove(&slab).expect("only what was asked for is put in place");
        assert!(
            matches!(placement.stage, Stage::Placing) && placement.leases.len() == copy_indexes.len(),
            "each lease is answered"
        );
        let leases = placement.leases.into_iter().zip(copy_indexes.iter().copied()).collect();
        Ended { purpose: placement.purpose, leases, wanted_back: placement.wanted_back }
    }

    /// Takes every placement as far as it goes, and starts others. Returns those that ended without a lease.
    pub fn proceed(&mut self, context: &mut Context<'_>) -> Vec<(SlabIndex, Purpose)> {
        let mut fruitless = Vec::new();
        context.leasing = self.leasing();
        let slabs: Vec<SlabIndex> = self.going_on.keys().copied().collect();
        slabs.into_iter().for_each(|slab| self.step(slab, context, &mut fruitless));
        while self.going_on.len() < PLACEMENTS_MAX
            && let Some(slab) = self.most_urgent(context.heat)
        {
            let Waiting { purpose, avoid } = self.waiting.remove(&slab).expect("it was just found there");
            let copies_max = if purpose == Purpose::Move { COPIES_MAX } else { context.config.replicas };
            let passed = avoid.into_iter().collect();
            let (leases, wanted_back, stage) = (Vec::new(), Vec::new(), Stage::Idle);
            let placement = Placement { purpose, copies_max, leaving: avoid, passed, leases, wanted_back, stage };
            self.going_on.insert(slab, placement);
            self.step(slab, context, &mut fruitless);
        }
        fruitless
    }

    /// Leases that were asked for and not answered, by donor.
    fn leasing(&self) -> BTreeMap<DonorSlot, u32> {
        let mut leasing = BTreeMap::new();
        for placement in self.going_on.values() {
            if let Stage::Leasing { donor, .. } = placement.stage {
                *leasing.entry(donor).or_default() += 1;
            }
        }
        leasing
    }

    /// The slab that waits and whose turn is next.
    fn most_urgent(&self, heat: &Heat) -> Option<SlabIndex> {
        let waiting = self.waiting.iter().filter(|(slab, _)| !self.going_on.contains_key(slab));
        let rank = |slab: SlabIndex, waiting: &Waiting| (waiting.purpose, -heat.pages_per_s(slab), slab);
        let ranked = waiting.map(|(slab, waiting)| rank(*slab, waiting));
        ranked.min_by(|one, other| one.0.cmp(&other.0).then(one.1.total_cmp(&other.1))).map(|(_, _, slab)| slab)
    }

    fn step(&mut self, slab: SlabIndex, context: &mut Context<'_>, fruitless: &mut Vec<(SlabIndex, Purpose)>) {
        let Some(placement) = self.going_on.get_mut(&slab) else { return };
        placement.time_out(context);
        placement.choose_among_answers(context);
        if !matches!(placement.stage, Stage::Idle) {
            return;
        }
        if !placement.is_satisfied(slab, context.pages, context.config.replicas) {
            if placement.draw(slab, context) {
                // All may have offered a slab to a placement before.
                return placement.choose_among_answers(context);
            }
            context.donors.need(&placement.taken(&context.pages.locations(slab)));
        }
        if placement.leases.is_empty() {
            fruitless.push((slab, placement.purpose));
            self.going_on.remove(&slab);
            return;
        }
        placement.stage = Stage::Placing;
        let (leases, copies_max) = (placement.leases.clone(), placement.copies_max);
        context.outputs.push(Output::Place { slab, leases, copies_max });
    }

    /// When the next answer is overdue.
    pub fn due(&self) -> Option<Instant> {
        let due = |placement: &Placement| match placement.stage {
            Stage::Asking { deadline, .. } | Stage::Leasing { deadline, .. } => Some(deadline),
            Stage::Idle | Stage::Placing => None,
        };
        self.going_on.values().filter_map(due).min()
    }
}

impl Placement {
    /// Whether the slab has as many copies as it should have, without the one that is to leave: a move that was tried
    /// before may have made its copy already.
    fn is_satisfied(&self, slab: SlabIndex, pages: &dyn Pages, replicas: usize) -> bool {
        let locations = pages.locations(slab);
        let staying = self.staying(&locations).count();
        let copies = locations.iter().flatten().count() + self.leases.len();
        staying + self.leases.len() >= replicas || copies >= COPIES_MAX
    }

    /// The donors of the copies that stay: all but the one that is moved.
    fn staying(&self, locations: &CopyLocations) -> impl Iterator<Item = DonorSlot> {
        let leaving = self.leaving.filter(|_| self.purpose == Purpose::Move);
        locations.iter().flatten().map(|location| location.donor).filter(move |donor| Some(*donor) != leaving)
    }

    /// Passes over those whose answer is overdue.
    fn time_out(&mut self, context: &mut Context<'_>) {
        match &mut self.stage {
            Stage::Asking { drawn, deadline } if *deadline <= context.now => {
                for late in drawn.iter().filter(|one| one.answer.is_none()) {
                    context.donors.refuses(context.now, late.donor);
                    self.passed.push(late.donor);
                }
                drawn.retain(|one| one.answer.is_some());
            }
            Stage::Leasing { donor, deadline, .. } if *deadline <= context.now => {
                context.donors.refuses(context.now, *donor);
                self.passed.push(*donor);
                self.stage = Stage::Idle;
            }
            _ => {}
        }
    }

    /// Once all that were asked have answered, takes the slab of the one with most room. The others' are not needed.
    fn choose_among_answers(&mut self, context: &mut Context<'_>) {
        let Stage::Asking { drawn, .. } = &self.stage else { return };
        if drawn.iter().any(|one| one.answer.is_none()) {
            return;
        }
        let room = |one: &Asked| context.donors.view(one.donor).map_or(0, |view| view.free_bytes);
        let kept = || drawn.iter().filter(|one| one.answer == Some(Answer::Kept));
        let Some(best) = kept().max_by_key(|one| room(one)).copied() else {
            self.passed.extend(drawn.iter().map(|one| one.donor));
            self.stage = Stage::Idle;
            return;
        };
        let others: Vec<Asked> = kept().filter(|one| one.donor != best.donor).copied().collect();
        for other in others {
            let size_bytes = context.pages.slab_size_bytes();
            if let Some(unneeded) = context.donors.keep_offer(other.donor, other.offer, size_bytes) {
                context.decline(other.donor, unneeded);
            }
        }
        self.lease(best.donor, Some(best.offer.request), context);
    }

    /// Draws among the donors that are left, and asks them; false when there is none.
    fn draw(&mut self, slab: SlabIndex, context: &mut Context<'_>) -> bool {
        let candidates = self.candidates(slab, context);
        let drawn = placement::draw(&candidates, context.config.choices, context.random as &mut dyn Random);
        match drawn[..] {
            [] => return false,
            // A question would change nothing.
            [only] => self.lease(only, None, context),
            _ => self.ask(&drawn, context),
        }
        true
    }

    /// Donors that the slab is not put to: they have a copy, lease one, or said no.
    fn taken(&self, locations: &CopyLocations) -> Vec<DonorSlot> {
        let there = locations.iter().flatten().map(|location| location.donor);
        let leased = self.leases.iter().map(|lease| lease.location.donor);
        there.chain(leased).chain(self.passed.iter().copied()).collect()
    }

    fn candidates(&self, slab: SlabIndex, context: &Context<'_>) -> Vec<Candidate> {
        let locations = context.pages.locations(slab);
        let taken = self.taken(&locations);
        // Two addresses may lead to one donor, which would then hold both copies.
        let identities: Vec<_> =
            taken.iter().filter_map(|donor| context.donors.view(*donor)).map(|view| view.identity).collect();
        let size_bytes = context.pages.slab_size_bytes();
        let is_taken = |donor, identity| taken.contains(&donor) || identities.contains(&identity);
        let fits = |(donor, view): &(DonorSlot, &super::donors::DonorView)| {
            let may_lend = view.may_be_used() && view.free_bytes >= size_bytes && !view.is_refused(context.now);
            may_lend && !is_taken(*donor, view.identity)
        };
        let others = self.staying(&locations).chain(self.leases.iter().map(|lease| lease.location.donor));
        let sites: Vec<&Site> = others.filter_map(|donor| context.donors.view(donor)).map(|view| &view.site).collect();
        let candidate = |(donor, view): (DonorSlot, &super::donors::DonorView)| {
            let nearest = sites.iter().map(|site| view.site.separation(site)).min();
            Candidate { donor, slabs_held: view.slabs_held, separation: nearest.unwrap_or(Separation::Zones) }
        };
        context.donors.open().filter(fits).map(candidate).collect()
    }

    fn ask(&mut self, drawn: &[DonorSlot], context: &mut Context<'_>) {
        let mut asked = Vec::new();
        for donor in drawn.iter().copied() {
            if let Some(offer) = context.donors.take_offer(context.now, donor) {
                asked.push(Asked { donor, offer, answer: Some(Answer::Kept) });
                continue;
            }
            let Some(session) = context.donors.session(donor) else { continue };
            let request = context.donors.number();
            context.outputs.push(Output::Send { donor, session, message: Message::Ask { request } });
            let offer = Offer { request, until: context.now + OFFER_USED_TIME };
            asked.push(Asked { donor, offer, answer: None });
        }
        self.stage = Stage::Asking { drawn: asked, deadline: context.now + CONTROL_REPLY_DEADLINE };
    }

    /// Asks for a slab: for the one that is kept, if there is one.
    fn lease(&mut self, donor: DonorSlot, kept: Option<u32>, context: &mut Context<'_>) {
        let Some(session) = context.donors.session(donor) else { return };
        let request = kept.unwrap_or_else(|| context.donors.number());
        context.outputs.push(Output::Send { donor, session, message: Message::Lease { request } });
        // A donor makes one slab after the other.
        let turn = context.leasing.entry(donor).or_default();
        *turn += 1;
        let deadline = context.now + lease_deadline(context.pages.slab_size_bytes()) * *turn;
        self.stage = Stage::Leasing { donor, request, deadline };
    }
}

/// How long a donor may take to lend a slab.
fn lease_deadline(slab_size_bytes: u64) -> Duration {
    CONTROL_REPLY_DEADLINE + LEASE_DEADLINE_PER_GIBIBYTE.mul_f64(slab_size_bytes as f64 / GIBIBYTE)
}
