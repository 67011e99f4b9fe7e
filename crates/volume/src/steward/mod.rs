//! The Steward: every decision of a borrower about its copies, as values in and values out.
//!
//! [`Steward::on`] takes the time and one [`Input`], and returns what is to be done as [`Output`]s, in order. It has no
//! clock, no thread, no descriptor and no lock, and its randomness comes from a seed. What it asks of the volume stands
//! in [`Pages`]. So the manager's threads, a property test and a simulated cluster run the same decisions. No page and
//! no request passes here; connections and silence are decided by a [`peer`] for each donor.
//!
//! The life of one copy:
//! 1. *Wanted.* An I/O thread found a slab unmapped ([`Input::Wanted`]), a look found too few copies
//!    ([`Input::Looked`]), or a donor wants its slab back (`Message::Recall`).
//! 2. *Drawn.* [`placing`] draws three donors (more than the power of two choices, `placement`) and asks them (`Ask`);
//!    each keeps a slab. The one with most room is asked for it (`Lease`). One that refuses or says nothing is passed
//!    over, and the draw goes on among the others.
//! 3. *Placed.* All copies that the slab lacked go into its copy indexes at one moment ([`Output::Place`]). What finds
//!    no place is given back.
//! 4. *Filled.* [`moving`] has the pages copied that the slab holds already ([`Output::Fill`]), one slab at a time.
//! 5. *Dropped.* A copy that was moved, or that holds no page, is taken away ([`Output::Drop`]), if every page of it
//!    has another copy. A recalled slab that cannot leave yet is tried again until it can.
//! 6. *Gone.* [`Input::Down`]: the donor's slabs are out of reach. The next look finds which copies are missing.
//!
//! Donors come and go while the volume runs ([`leaving`]): one that is removed gets no slab any more, and all of its
//! slabs are moved as if it had recalled them. Its link is closed when it has none ([`Output::Empty`]).
//!
//! Invariants: a slab is placed by one placement at a time; a leased slab is placed, given back, or gone with its
//! session; what belongs to one session is never used in the next one, whose handles begin anew.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod activity;
pub mod care;
pub mod donors;
pub mod heat;
pub mod leaving;
pub mod moving;
pub mod pages;
pub mod peer;
pub mod placement;
pub mod placing;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time::Instant;

use spillway_fabric::control::message::Message;
use spillway_fabric::site::Site;
use spillway_fabric::units::{DonorId, SlabIndex};

use crate::settings::mapping::MappingPolicy;
use crate::slab_map::slab_entry::{DonorSlot, Location};
use care::{Care, Finding};
use donors::Donors;
use heat::Heat;
use moving::{Moving, Promise, Reason};
use pages::Pages;
use placement::XorShift;
use placing::{Placing, Purpose};

/// A session with a donor; none is used twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionNumber(pub u64);

/// A slab that a donor lent in a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Where it is.
    pub location: Location,
    /// In which session; it ends with that.
    pub session: SessionNumber,
}

/// A session that was opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Its number.
    pub session: SessionNumber,
    /// Who lends.
    pub identity: DonorId,
    /// What it could lend.
    pub free_bytes: u64,
    /// Slabs of this volume that it holds already.
    pub slabs_held: u64,
    /// Where it stands.
    pub site: Site,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// A session is open.
    Up {
        /// With whom.
        donor: DonorSlot,
        /// Which.
        link: Link,
    },
    /// The session is over.
    Down {
        /// With whom.
        donor: DonorSlot,
    },
    /// A donor may be used: it is new in its slot, or its removal is called off.
    Added {
        /// Which.
        donor: DonorSlot,
    },
    /// A donor is to be used no more. Answered by [`Output::Empty`], once nothing of the volume is there.
    Removed {
        /// Which.
        donor: DonorSlot,
    },
    /// The donor says nothing for a while though its session is open, or it was heard again.
    Silent {
        /// Which.
        donor: DonorSlot,
        /// Whether.
        is_silent: bool,
    },
    /// The donor sent too many pages that are not what was written: it gets no slab any more, and its slabs leave it.
    Distrusted {
        /// Which.
        donor: DonorSlot,
    },
    /// The donor said something about slabs.
    Message {
        /// Which.
        donor: DonorSlot,
        /// In which session.
        session: SessionNumber,
        /// What.
        message: Message,
    },
    /// The slab of a `Leased` cannot be used here; it went back already.
    Unusable {
        /// Whose.
        donor: DonorSlot,
        /// In which session.
        session: SessionNumber,
        /// Of the lease.
        request: u32,
    },
    /// A request found the slab without a copy.
    Wanted {
        /// Which.
        slab: SlabIndex,
    },
    /// A look at every slab, in their order.
    Looked {
        /// What was found.
        findings: Vec<Finding>,
    },
    /// An [`Output::Place`] was carried out.
    Placed {
        /// Where.
        slab: SlabIndex,
        /// For each lease, its copy index; `None`: it has no place, or its session has ended.
        copy_indexes: Vec<Option<usize>>,
    },
    /// An [`Output::Fill`] was carried out as far as possible.
    Filled {
        /// Which.
        slab: SlabIndex,
    },
    /// An [`Output::Drop`] was carried out, or not.
    Dropped {
        /// Which.
        slab: SlabIndex,
        /// What.
        location: Location,
        /// Whether the copy is gone, and its slab given back.
        is_gone: bool,
    },
    /// The time of the last [`Output::WakeAt`] has come.
    Tick,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Send a message.
    Send {
        /// To whom.
        donor: DonorSlot,
        /// In which session; if that is over, the message is not sent.
        session: SessionNumber,
        /// What.
        message: Message,
    },
    /// Put leases into empty copy indexes of a slab, together, as long as it has fewer than `copies_max`. Answered by
    /// [`Input::Placed`].
    Place {
        /// Where.
        slab: SlabIndex,
        /// What; at least one.
        leases: Vec<Lease>,
        /// Copies that the slab may have then.
        copies_max: usize,
    },
    /// Bring these copies up to date with the others. Answered by [`Input::Filled`]; one at a time.
    Fill {
        /// Of which slab.
        slab: SlabIndex,
        /// Which, with what was in them.
        copies: Vec<(usize, Location)>,
    },
    /// Take a copy away and give its slab back, if every page of it has another copy. Answered by
    /// [`Input::Dropped`]; one at a time, and none during a fill.
    Drop {
        /// Of which slab.
        slab: SlabIndex,
        /// Which, if it is still there.
        location: Location,
        /// Copies at other donors that every page of it must have; zero: one anywhere, also on the disk.
        others_min: usize,
    },
    /// Give back a slab that no copy index names.
    GiveBack {
        /// Which.
        lease: Lease,
    },
    /// A slab is being moved from one donor to another, or no more.
    Migrating {
        /// Which.
        slab: SlabIndex,
        /// Whether.
        is_migrating: bool,
    },
    /// Whether some donor may have room has changed.
    MappingPossible(bool),
    /// Write what the disk copy lacks now: a recalled slab waits for it.
    HurryDisk,
    /// A removed donor has nothing of the volume, and gets nothing: its link can be closed. Said once.
    Empty {
        /// Which.
        donor: DonorSlot,
    },
    /// Be asked again at this time; `None`: not before something happens.
    WakeAt(Option<Instant>),
    /// Tell people.
    Note(Note),
}

/// What people should know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Note {
    /// A recalled slab cannot leave its donor: nothing else holds all its pages, and no donor has room.
    Stuck {
        /// Which.
        slab: SlabIndex,
        /// Whose.
        donor: DonorSlot,
    },
}

/// What a Steward is told at its start.
#[derive(Clone, Copy, Debug)]
pub struct StewardConfig {
    /// Copies at donors that every slab in use should have.
    pub replicas: usize,
    /// Whether there is a disk copy.
    pub has_disk: bool,
    /// When a slab gets its donor.
    pub mapping: MappingPolicy,
    /// Donors that are drawn and asked for each copy, at least one: [`PLACEMENT_CHOICES`](crate::limits::PLACEMENT_CHOICES)
    /// but for experiments.
    pub choices: usize,
    /// Of its randomness.
    pub seed: u64,
}

impl StewardConfig {
    fn promise(&self) -> Promise {
        Promise { replicas: self.replicas, has_disk: self.has_disk }
    }
}

/// Whether an input may be what a removed donor waited for. Looks come all the time.
fn may_clear(input: &Input) -> bool {
    use Input::{Down, Dropped, Looked, Removed};
    matches!(input, Looked { .. } | Removed { .. } | Dropped { .. } | Down { .. })
}

/// See the module text.
#[derive(Debug)]
pub struct Steward {
    config: StewardConfig,
    donors: Donors,
    placing: Placing,
    moving: Moving,
    care: Care,
    heat: Heat,
    random: XorShift,
    mapping_possible: Option<bool>,
    wake_at: Option<Instant>,
    /// Of the current input.
    outputs: Vec<Output>,
}

impl Steward {
    /// Of a volume of so many slabs, that knows no donor yet.
    pub fn new(config: StewardConfig, slab_count: u32) -> Self {
        Self {
            config,
            donors: Donors::default(),
            placing: Placing::default(),
            moving: Moving::default(),
            care: Care::new(slab_count),
            heat: Heat::new(slab_count),
            random: XorShift::new(config.seed),
            mapping_possible: None,
            wake_at: None,
            outputs: Vec::new(),
        }
    }

    /// Decides what follows from `input`, which came at `now`. Times of inputs do not go backwards.
    pub fn on(&mut self, now: Instant, input: Input, pages: &dyn Pages) -> Vec<Output> {
        let clears = may_clear(&input);
        match input {
            Input::Up { donor, link } => self.donors.up(now, donor, link),
            Input::Down { donor } => self.lose(donor),
            Input::Added { donor } => self.remain(donor),
            Input::Removed { donor } => self.leave(donor),
            Input::Silent { donor, is_silent } => self.donors.silent(donor, is_silent),
            Input::Distrusted { donor } => {
                self.donors.distrust(donor);
                (0..pages.slab_count()).for_each(|slab| self.leave_distrusted(SlabIndex(slab), pages));
            }
            Input::Message { donor, session, message } => {
                if self.donors.session(donor) == Some(session) {
                    self.hear(now, donor, session, message, pages);
                }
            }
            Input::Unusable { donor, session, request } => {
                if self.donors.session(donor) == Some(session) {
                    self.placing.refused(&mut self.donors, now, donor, request);
                }
            }
            Input::Wanted { slab } => self.placing.want(slab),
            Input::Looked { findings } => self.look(now, &findings, pages),
            Input::Placed { slab, copy_indexes } => self.placed(slab, &copy_indexes, pages),
            Input::Filled { .. } => self.moving.filled(),
            Input::Dropped { slab, location, is_gone } => self.dropped(now, slab, location, is_gone),
            Input::Tick => {}
        }
        if clears {
            self.clear_leaving(pages);
        }
        self.proceed(now, pages);
        std::mem::take(&mut self.outputs)
    }

    fn hear(&mut self, now: Instant, donor: DonorSlot, session: SessionNumber, message: Message, pages: &dyn Pages) {
        match message {
            Message::Free { free_bytes, .. } => self.donors.told_free(now, donor, free_bytes),
            Message::Offered { request, free_bytes, is_reserved } => {
                self.donors.told_free(now, donor, free_bytes);
                if !self.placing.offered(donor, request, is_reserved) && is_reserved {
                    // The placement gave up waiting.
                    self.outputs.push(Output::Send { donor, session, message: Message::Decline { request } });
                }
            }
            Message::Leased { request, slab: handle, .. } => {
                let lease = Lease { location: Location { donor, handle }, session };
                if !self.placing.leased(lease, request) {
                    // The placement gave up waiting, and asked another donor.
                    self.outputs.push(Output::GiveBack { lease });
                    return;
                }
                self.donors.lent(donor, pages.slab_size_bytes());
            }
            Message::Refused { request, .. } => self.placing.refused(&mut self.donors, now, donor, request),
            Message::Recall { slabs, .. } => {
                slabs.into_iter().for_each(|handle| self.recall(Location { donor, handle }, pages));
            }
            Message::RecallWithdrawn { slabs } => {
                slabs.into_iter().for_each(|handle| self.withdraw(Location { donor, handle }));
            }
            Message::ActivityQuery { request, slabs } => {
                let values = activity::of_slabs(&mut self.heat, now, donor, slabs, pages);
                self.outputs.push(Output::Send { donor, session, message: Message::Activity { request, values } });
            }
            // The link answers everything else.
            _ => {}
        }
    }

    fn recall(&mut self, location: Location, pages: &dyn Pages) {
        if let Some(slab) = pages.find(location) {
            self.bring_away(slab, location, Reason::Recall);
        } else if let Some(lease) = self.placing.recalled(location) {
            self.donors.returned(location.donor);
            self.outputs.push(Output::GiveBack { lease });
        }
        // Others were released meanwhile, or are recalled twice.
    }

    /// A recalled copy may stay. One at a donor that is removed, or not trusted, leaves all the same.
    fn withdraw(&mut self, location: Location) {
        if self.donors.is_distrusted(location.donor) {
            return;
        }
        self.placing.withdrawn(location);
        let is_leaving = self.donors.view(location.donor).is_some_and(|view| view.is_leaving);
        if let Some(slab) = self.moving.withdraw(location, is_leaving) {
            self.outputs.push(Output::Migrating { slab, is_migrating: false });
        }
    }

    /// Copies of `slab` at donors that are not trusted are moved to others, as if these wanted them back.
    fn leave_distrusted(&mut self, slab: SlabIndex, pages: &dyn Pages) {
        for location in pages.locations(slab).into_iter().flatten() {
            if self.donors.is_distrusted(location.donor) {
                self.bring_away(slab, location, Reason::Recall);
            }
        }
    }

    fn bring_away(&mut self, slab: SlabIndex, location: Location, reason: Reason) {
        if self.moving.recall(slab, location, reason) {
            self.outputs.push(Output::Migrating { slab, is_migrating: true });
        }
    }

    fn lose(&mut self, donor: DonorSlot) {
        self.donors.down(donor);
        self.placing.lose(donor);
        for slab in self.moving.lose(donor) {
            self.outputs.push(Output::Migrating { slab, is_migrating: false });
        }
    }

    fn placed(&mut self, slab: SlabIndex, copy_indexes: &[Option<usize>], pages: &dyn Pages) {
        let ended = self.placing.placed(slab, copy_indexes);
        for (lease, copy_index) in &ended.leases {
            if copy_index.is_none() && self.donors.session(lease.location.donor) == Some(lease.session) {
                self.donors.returned(lease.location.donor);
                self.outputs.push(Output::GiveBack { lease: *lease });
            }
        }
        let filled = ended.leases.iter().filter_map(|(lease, copy_index)| Some(((*copy_index)?, lease.location)));
        let copies = filled.collect();
        self.placement_ended(slab, ended.purpose, copies, pages);
        ended.wanted_back.into_iter().for_each(|location| self.recall(location, pages));
    }

    /// A placement has found what it could: `copies` are new and empty.
    fn placement_ended(
        &mut self,
        slab: SlabIndex,
        purpose: Purpose,
        copies: Vec<(usize, Location)>,
        pages: &dyn Pages,
    ) {
        match purpose {
            Purpose::First => {}
            Purpose::Restore if copies.is_empty() => {}
            Purpose::Restore => self.moving.refill(slab),
            Purpose::Move => {
                if self.moving.placed(slab, copies, self.config.promise(), pages) {
                    self.outputs.push(Output::Migrating { slab, is_migrating: false });
                }
            }
        }
    }

    fn dropped(&mut self, now: Instant, slab: SlabIndex, location: Location, is_gone: bool) {
        let is_same_session = self.donors.session(location.donor) == self.moving.dropping();
        if is_gone && is_same_session {
            self.donors.returned(location.donor);
        }
        match self.moving.dropped(now, location, is_gone) {
            moving::Dropped::Moved => self.outputs.push(Output::Migrating { slab, is_migrating: false }),
            moving::Dropped::Stuck { is_first } => {
                if is_first {
                    self.outputs.push(Output::Note(Note::Stuck { slab, donor: location.donor }));
                }
                if self.config.has_disk {
                    self.outputs.push(Output::HurryDisk);
                }
            }
            moving::Dropped::Other => {}
        }
    }

    /// Goes on with whatever the input made possible.
    fn proceed(&mut self, now: Instant, pages: &dyn Pages) {
        self.warm(now, pages);
        for (slab, donor) in self.moving.next_moves(now, |slab| self.placing.is_busy(slab)) {
            self.placing.make_room(slab, donor);
        }
        let mut context = placing::Context {
            now,
            config: &self.config,
            donors: &mut self.donors,
            random: &mut self.random,
            heat: &self.heat,
            pages,
            leasing: BTreeMap::new(),
            outputs: &mut self.outputs,
        };
        for (slab, purpose) in self.placing.proceed(&mut context) {
            self.placement_ended(slab, purpose, Vec::new(), pages);
        }
        self.moving.proceed(pages, &self.donors, &mut self.outputs);
        let possible = self.donors.has_room(now, pages.slab_size_bytes(), self.config.has_disk);
        if self.mapping_possible != Some(possible) {
            self.mapping_possible = Some(possible);
            self.outputs.push(Output::MappingPossible(possible));
        }
        self.donors.ask_free(now, pages.slab_size_bytes(), &mut self.outputs);
        self.plan_wake(now);
    }

    /// Keeps the averages up to date, for donors that ask; and wants hot slabs, if mapping follows activity.
    fn warm(&mut self, now: Instant, pages: &dyn Pages) {
        if !self.heat.is_due(now) {
            return;
        }
        let (placing, by_activity) = (&mut self.placing, self.config.mapping == MappingPolicy::ByActivity);
        let want = |slab| {
            if by_activity && pages.locations(slab).iter().all(Option::is_none) {
                placing.want(slab);
            }
        };
        self.heat.look(now, |slab| pages.accesses(slab), want);
    }

    fn plan_wake(&mut self, now: Instant) {
        let times = [self.placing.due(), self.moving.due(), self.donors.due(), self.heat.due()];
        let wake_at = times.into_iter().flatten().min().map(|due| due.max(now));
        if wake_at != self.wake_at {
            self.wake_at = wake_at;
            self.outputs.push(Output::WakeAt(wake_at));
        }
    }

    /// What is known of the donor in `slot`, while it has a session.
    pub fn donor(&self, slot: DonorSlot) -> Option<&donors::DonorView> {
        self.donors.view(slot)
    }

    /// Slabs that donors want back and that have not left them yet.
    pub fn recalls_under_way(&self) -> usize {
        self.moving.recalls()
    }
}
