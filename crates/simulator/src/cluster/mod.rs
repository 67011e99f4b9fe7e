//! The machines of a cluster, and what happens next.
//!
//! One event after the other is taken from the queue; a state machine decides, and its outputs become events. Machine
//! `i` has a donor and borrower `i`.

mod calm;
mod changes;
mod copies;
mod faults;
pub(crate) mod members;
mod program;
mod recalls;
mod sessions;
mod shortages;
mod trials;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use spillway_donor::lender::leases::SessionId;
use spillway_donor::lender::{Input as LenderInput, Lender, Output as LenderOutput};
use spillway_donor::limits::SAMPLE_INTERVAL;
use spillway_fabric::control::message::Message;
use spillway_volume::manager::decisions::{MoveJob, PlaceJob};
use spillway_volume::slab_map::slab_entry::DonorSlot;
use spillway_volume::steward::placement::{Random, XorShift};
use spillway_volume::steward::{Input, Note, Output};

use crate::borrower::Borrower;
use crate::community::Community;
use crate::events::{Event, Events};
use crate::links::{Link, LinkId, Parcel};
use crate::machine::Machine;
use crate::recall_watch::RecallWatch;
use crate::report::Report;
use crate::settings::{CALM, DELAY_MAX, LOOK_INTERVAL, PLACE_TIME, REST, Settings};

/// What a machine has to do.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Memory of its own programs.
    pub local_bytes: u64,
    /// What they have elsewhere.
    pub volume_slabs: u32,
}

/// See the module text.
#[derive(Debug)]
pub struct Cluster {
    pub(crate) settings: Settings,
    pub(crate) random: XorShift,
    start: Instant,
    /// Since the start.
    pub time: Duration,
    pub(crate) events: Events,
    pub(crate) machines: Vec<Machine>,
    pub(crate) borrowers: Vec<Borrower>,
    pub(crate) links: BTreeMap<LinkId, Link>,
    pub(crate) links_next: u64,
    identities_next: u64,
    /// How machines know each other, if not by a list.
    pub(crate) community: Option<Community>,
    /// Slabs that donors want back.
    pub(crate) recalls: RecallWatch,
    /// All is well for so long that every machine knows every other one.
    is_together: bool,
    /// What happened so far.
    pub report: Report,
    /// Programs write each slab once, and nothing else.
    pub is_filled_only: bool,
    /// Programs do nothing any more.
    pub is_idle: bool,
    /// How long programs waited for each slab that was mapped.
    pub mapping_times: Vec<Duration>,
    /// How long each recall took that ended.
    pub recall_times: Vec<Duration>,
    /// Real time that Lenders and Stewards took.
    pub decided_in: Duration,
    /// How often they decided.
    pub decisions: u64,
}

impl Cluster {
    /// Every machine is on, and nothing is stored. `start` is any time: only what passes since counts.
    pub fn new(settings: Settings, start: Instant) -> Self {
        let loads = vec![Load { local_bytes: 0, volume_slabs: settings.volume_slabs }; settings.machines as usize];
        let mut cluster = Self::with_loads(settings, &loads, start);
        cluster.plan_in(settings.first_fault, Event::Fault);
        cluster.plan_in(settings.fault_interval, Event::Watch);
        cluster
    }

    /// Nothing goes wrong, and each machine has a load of its own.
    pub fn with_loads(settings: Settings, loads: &[Load], start: Instant) -> Self {
        let mut cluster = Self {
            settings,
            random: XorShift::new(settings.seed.wrapping_mul(0x2545_F491_4F6C_DD1D)),
            start,
            time: Duration::ZERO,
            events: Events::default(),
            machines: (0..settings.machines).map(|_| Machine::new(&settings)).collect(),
            borrowers: Vec::new(),
            links: BTreeMap::new(),
            links_next: 0,
            identities_next: 0,
            community: settings.has_membership.then(|| Community::new(settings.machines as usize)),
            recalls: RecallWatch::default(),
            is_together: false,
            report: Report::default(),
            is_filled_only: false,
            is_idle: false,
            mapping_times: Vec::new(),
            recall_times: Vec::new(),
            decided_in: Duration::ZERO,
            decisions: 0,
        };
        for (machine, load) in loads.iter().enumerate() {
            cluster.machines[machine].local_bytes = load.local_bytes;
            let borrower = cluster.new_borrower(machine, load.volume_slabs);
            cluster.borrowers.push(borrower);
            cluster.begin_life(machine);
            let first = cluster.draw_up_to(SAMPLE_INTERVAL);
            cluster.plan_in(first, Event::Sample { machine });
        }
        cluster
    }

    /// The whole storm and the calm after it.
    ///
    /// # Panics
    /// When a rule of the crate's text is broken.
    pub fn run(&mut self) -> Report {
        self.run_until(self.settings.storm);
        self.calm_down();
        self.run_until(self.settings.storm + CALM);
        self.check_calm();
        self.report.clone()
    }

    /// Lets all happen that is to come until then.
    pub fn run_until(&mut self, until: Duration) {
        while let Some((at, event)) = self.events.next(until) {
            self.time = at;
            self.report.events += 1;
            self.happen(event);
            self.check_step();
        }
        self.time = until;
    }

    /// What holds after every step, and is not checked where it happens.
    fn check_step(&mut self) {
        self.check_recalls();
        if self.is_together {
            self.check_together();
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Connect { borrower, slot } => self.connect(borrower, slot),
            Event::Arrive { link, parcel } => self.arrive(link, parcel),
            Event::Heartbeat { link } => self.heartbeat(link),
            Event::Sample { machine } => {
                self.plan_in(SAMPLE_INTERVAL, Event::Sample { machine });
                self.sample(machine);
            }
            Event::Made { machine, life, slab } if self.machines[machine].life == life => {
                let input = if self.machines[machine].has_memory() {
                    LenderInput::Made { slab }
                } else {
                    LenderInput::MakeFailed { slab, reason: "no memory".to_owned() }
                };
                self.feed_lender(machine, input);
            }
            Event::WakeLender { machine, life } if self.machines[machine].life == life => self.wake_lender(machine),
            Event::Undrain { machine, life } if self.machines[machine].life == life => self.undrain(machine),
            Event::Made { .. } | Event::WakeLender { .. } | Event::Undrain { .. } => {}
            Event::WakeSteward { borrower } => self.wake_steward(borrower),
            Event::Place { borrower } => self.place(borrower),
            Event::Moved { borrower, identity, job } => {
                if self.borrowers[borrower].identity == identity && self.borrowers[borrower].is_alive {
                    self.moved(borrower, job);
                }
            }
            Event::Look { borrower } => {
                self.plan_in(LOOK_INTERVAL, Event::Look { borrower });
                if self.borrowers[borrower].is_alive {
                    let findings = self.borrowers[borrower].volume.findings();
                    self.feed_steward(borrower, Input::Looked { findings });
                }
            }
            Event::Work { borrower } => {
                let pause = self.draw_up_to(self.settings.work_interval * 2);
                self.plan_in(pause, Event::Work { borrower });
                let is_over = self.time >= self.settings.storm + CALM - REST;
                if self.borrowers[borrower].is_alive && !is_over && !self.is_idle {
                    self.work(borrower);
                }
            }
            Event::Fault => self.fault(),
            Event::Heal { machine } => self.heal(machine),
            Event::Restart { machine } => self.restart(machine),
            Event::Datagram { from, to, bytes } => self.hear_datagram(from, to, &bytes),
            Event::WakeMember { machine } => self.wake_member(machine),
            Event::LookAround { machine } => self.look_around(machine),
            Event::Watch => self.watch(),
            Event::Together => self.is_together = true,
        }
    }

    /// How many machines there are.
    pub fn machine_count(&self) -> usize {
        self.machines.len()
    }

    /// The donor's decisions on `machine`, unless it is switched off.
    pub fn lender(&self, machine: usize) -> Option<&Lender> {
        self.machines[machine].lender.as_ref()
    }

    /// Memory that the programs of `machine` use there.
    pub fn local_bytes(&self, machine: usize) -> u64 {
        self.machines[machine].local_bytes
    }

    /// Slabs of others on `machine`.
    pub fn slabs_on(&self, machine: usize) -> u64 {
        self.machines[machine].handles.len() as u64
    }

    /// Slabs that all donors lend.
    pub fn slabs_lent(&self) -> u64 {
        self.machines.iter().map(|machine| machine.handles.len() as u64).sum()
    }

    /// Whether programs have written every slab of every volume.
    pub fn is_filled(&self) -> bool {
        self.borrowers.iter().all(|borrower| borrower.volume.slabs.borrow().iter().all(|slab| slab.is_stored))
    }

    pub(crate) fn plan_in(&mut self, delay: Duration, event: Event) {
        self.events.plan(self.time + delay, event);
    }

    pub(crate) fn draw_up_to(&mut self, longest: Duration) -> Duration {
        Duration::from_micros(self.random.below(longest.as_micros() as usize + 1) as u64)
    }

    pub(crate) fn now(&self) -> Instant {
        self.start + self.time
    }

    fn new_borrower(&mut self, machine: usize, volume_slabs: u32) -> Borrower {
        let count = self.machines.len();
        let mut donors = Vec::new();
        let known = if self.settings.has_membership { 0 } else { self.settings.donors.min(count - 1) };
        while donors.len() < known {
            let drawn = self.random.below(count);
            if drawn != machine && !donors.contains(&drawn) {
                donors.push(drawn);
            }
        }
        self.identities_next += 1;
        Borrower::new(&self.settings, self.identities_next, &donors, volume_slabs)
    }

    /// Donor and borrower of a machine start.
    fn begin_life(&mut self, machine: usize) {
        let seed = self.settings.seed ^ self.identities_next;
        let settings = self.settings;
        self.machines[machine].switch_on(&settings, seed);
        for slot in 0..self.borrowers[machine].slots.len() {
            let pause = self.draw_up_to(DELAY_MAX);
            self.plan_in(pause, Event::Connect { borrower: machine, slot });
        }
        self.join(machine);
        if self.machines[machine].life == 1 {
            self.plan_in(LOOK_INTERVAL, Event::Look { borrower: machine });
            self.plan_in(self.settings.work_interval, Event::Work { borrower: machine });
        }
    }

    pub(crate) fn restart(&mut self, machine: usize) {
        if self.machines[machine].lender.is_none() {
            let volume_slabs = self.settings.volume_slabs;
            self.borrowers[machine] = self.new_borrower(machine, volume_slabs);
            self.begin_life(machine);
        }
    }

    /// The donor's decisions on `machine` hear of something.
    pub fn feed_lender(&mut self, machine: usize, input: LenderInput) {
        let before = self.machines[machine].wake_at;
        let now = self.now();
        let began = Instant::now();
        let outputs = self.machines[machine].feed(now, input);
        self.decided_in += began.elapsed();
        self.decisions += 1;
        for output in outputs {
            self.follow_lender(machine, output);
        }
        let life = self.machines[machine].life;
        let wakes_in = self.machines[machine].wakes_in(now);
        if let Some(wakes_in) = wakes_in.filter(|_| self.machines[machine].wake_at != before) {
            self.plan_in(wakes_in, Event::WakeLender { machine, life });
        }
    }

    fn wake_lender(&mut self, machine: usize) {
        // A later wish replaced the one of this event.
        if self.machines[machine].wake_at.is_some_and(|at| at <= self.now()) {
            self.feed_lender(machine, LenderInput::Tick);
        }
    }

    fn follow_lender(&mut self, machine: usize, output: LenderOutput) {
        match output {
            LenderOutput::Welcome { session, free_bytes, .. } => {
                let id = self.machines[machine].sessions[&session];
                self.send(id, Parcel::Welcome { free_bytes });
            }
            LenderOutput::Send { session, message } => {
                match &message {
                    Message::Recall { slabs, .. } => self.note_recalls(machine, session, slabs),
                    Message::RecallWithdrawn { slabs } => self.note_withdrawn(machine, session, slabs),
                    _ => {}
                }
                if let Some(id) = self.machines[machine].sessions.get(&session).copied() {
                    self.send(id, Parcel::ToBorrower(message));
                }
            }
            LenderOutput::Reject { session, .. } => self.end_at_donor(machine, session, Parcel::Rejected),
            LenderOutput::End { session, .. } => {
                self.end_at_donor(machine, session, Parcel::ClosedByDonor);
                self.feed_lender(machine, LenderInput::Gone { session });
            }
            LenderOutput::Make(make) => {
                let life = self.machines[machine].life;
                self.plan_in(self.settings.make_time(), Event::Made { machine, life, slab: make.slab });
            }
            LenderOutput::Detach { session, handle } => self.note_returned(machine, session, handle),
            LenderOutput::Attach { .. }
            | LenderOutput::Free { .. }
            | LenderOutput::WakeAt(_)
            | LenderOutput::Note(_) => {}
        }
    }

    pub(crate) fn end_at_donor(&mut self, machine: usize, session: SessionId, parcel: Parcel) {
        let Some(id) = self.machines[machine].sessions.remove(&session) else { return };
        self.send(id, parcel);
        if let Some(link) = self.links.get_mut(&id) {
            link.at_donor = None;
        }
        self.bury(id);
    }

    pub(crate) fn feed_steward(&mut self, borrower: usize, input: Input) {
        let before = self.borrowers[borrower].wake_at;
        let now = self.now();
        let began = Instant::now();
        let outputs = self.borrowers[borrower].feed(now, input);
        self.decided_in += began.elapsed();
        self.decisions += 1;
        for output in outputs {
            self.follow_steward(borrower, output);
        }
        if let Some(at) = self.borrowers[borrower].wake_at.filter(|at| Some(*at) != before) {
            self.plan_in(at.saturating_duration_since(now), Event::WakeSteward { borrower });
        }
    }

    fn wake_steward(&mut self, borrower: usize) {
        let is_due = self.borrowers[borrower].wake_at.is_some_and(|at| at <= self.now());
        if is_due && self.borrowers[borrower].is_alive {
            self.feed_steward(borrower, Input::Tick);
        }
    }

    fn follow_steward(&mut self, borrower: usize, output: Output) {
        match output {
            Output::Send { donor, message, .. } => self.tell_donor(borrower, donor, message),
            Output::GiveBack { lease } => {
                self.tell_donor(borrower, lease.location.donor, Message::Release { slab: lease.location.handle });
            }
            Output::Place { slab, leases, copies_max } => {
                self.borrowers[borrower].places.push_back(PlaceJob { slab, leases, copies_max });
                self.plan_in(PLACE_TIME, Event::Place { borrower });
            }
            Output::Fill { slab, copies } => {
                self.plan_move(borrower, self.settings.copy_time(), MoveJob::Fill(slab, copies));
            }
            Output::Drop { slab, location, others_min } => {
                self.plan_move(borrower, PLACE_TIME, MoveJob::Drop(slab, location, others_min));
            }
            Output::Empty { donor } => self.let_go(borrower, donor),
            Output::WakeAt(at) => self.borrowers[borrower].wake_at = at,
            Output::Note(Note::Stuck { slab, donor }) => self.note_stuck(borrower, slab, donor),
            Output::Migrating { is_migrating, .. } => self.report.moves += u64::from(!is_migrating),
            Output::MappingPossible(_) | Output::HurryDisk => {}
        }
    }

    fn plan_move(&mut self, borrower: usize, time: Duration, job: MoveJob) {
        let identity = self.borrowers[borrower].identity;
        self.plan_in(time, Event::Moved { borrower, identity, job });
    }

    pub(crate) fn tell_donor(&mut self, borrower: usize, donor: DonorSlot, message: Message) {
        let slot = &self.borrowers[borrower].slots[usize::from(donor.0)];
        let link = slot.link.filter(|link| self.links[link].at_borrower.is_some());
        if let Some(link) = link {
            self.send(link, Parcel::ToDonor(message));
        }
    }
}
