//! The Steward among threads: every thread of the manager brings it what happened, and carries out what follows.
//!
//! Under the Steward's lock only what cannot wait is done: flags are set, and jobs are queued, so that every queue
//! has the order of the decisions. Messages are sent after the lock is released, by the thread that brought the input:
//! a donor that does not read holds up that thread alone. Copy indexes change under the assignment lock, which the
//! mover may hold while it waits for a donor; so the manager's thread fills them, and no link thread waits for it.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use spillway_fabric::units::SlabIndex;

use super::ManagerState;
use crate::limits::PLACEMENT_CHOICES;
use crate::slab_map::Volume;
use crate::slab_map::slab_entry::{DonorSlot, Location};
use crate::steward::donors::DonorView;
use crate::steward::{Input, Lease, Note, Output, Steward, StewardConfig};

/// Leases that the manager's thread is to put in place.
#[derive(Clone, Debug)]
pub struct PlaceJob {
    /// Where.
    pub slab: SlabIndex,
    /// What.
    pub leases: Vec<Lease>,
    /// Copies that the slab may have then.
    pub copies_max: usize,
}

/// What the mover is to do.
#[derive(Clone, Debug)]
pub enum MoveJob {
    /// Bring copies up to date.
    Fill(SlabIndex, Vec<(usize, Location)>),
    /// Take a copy away, if it is covered by so many other donors.
    Drop(SlabIndex, Location, usize),
}

struct Decided {
    steward: Steward,
    places: VecDeque<PlaceJob>,
    moves: VecDeque<MoveJob>,
    wake_at: Option<Instant>,
}

/// See the module text.
pub struct Decisions {
    decided: Mutex<Decided>,
    more_moves: Condvar,
}

impl Decisions {
    /// For `volume`; `seed` decides the draws.
    pub fn new(volume: &Volume, seed: u64) -> Self {
        let config = StewardConfig {
            replicas: volume.redundancy.replicas.into(),
            has_disk: volume.redundancy.disk,
            mapping: volume.mapping,
            choices: PLACEMENT_CHOICES,
            seed,
        };
        let steward = Steward::new(config, volume.geometry.slab_count);
        let decided = Decided { steward, places: VecDeque::new(), moves: VecDeque::new(), wake_at: None };
        Self { decided: Mutex::new(decided), more_moves: Condvar::new() }
    }

    /// The time at which the Steward is to be asked again.
    pub fn wake_at(&self) -> Option<Instant> {
        self.decided().wake_at
    }

    /// Leases to be put in place, oldest first.
    pub fn take_place(&self) -> Option<PlaceJob> {
        self.decided().places.pop_front()
    }

    /// The mover's next job; `None` after `patience`.
    pub fn take_move(&self, patience: Duration) -> Option<MoveJob> {
        let mut decided = self.decided();
        if decided.moves.is_empty() {
            (decided, _) = self.more_moves.wait_timeout(decided, patience).unwrap_or_else(PoisonError::into_inner);
        }
        decided.moves.pop_front()
    }

    /// Wakes the mover, to see that the device stops.
    pub fn wake(&self) {
        self.more_moves.notify_all();
    }

    /// What is known of the donor in `slot`, while it has a session.
    pub fn donor(&self, slot: DonorSlot) -> Option<DonorView> {
        self.decided().steward.donor(slot).cloned()
    }

    fn decided(&self) -> MutexGuard<'_, Decided> {
        self.decided.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ManagerState {
    /// Tells the Steward what happened, and does what follows.
    pub fn decide(&self, input: Input) {
        let mut decided = self.decisions.decided();
        let outputs = decided.steward.on(Instant::now(), input, &*self.volume);
        let mut later = Vec::new();
        for output in outputs {
            match output {
                Output::Place { slab, leases, copies_max } => {
                    decided.places.push_back(PlaceJob { slab, leases, copies_max });
                    self.volume.manager_event.signal();
                }
                Output::Fill { slab, copies } => {
                    decided.moves.push_back(MoveJob::Fill(slab, copies));
                    self.decisions.more_moves.notify_one();
                }
                Output::Drop { slab, location, others_min } => {
                    decided.moves.push_back(MoveJob::Drop(slab, location, others_min));
                    self.decisions.more_moves.notify_one();
                }
                Output::WakeAt(wake_at) => {
                    let is_earlier = wake_at.is_some_and(|at| decided.wake_at.is_none_or(|before| at < before));
                    decided.wake_at = wake_at;
                    if is_earlier {
                        self.volume.manager_event.signal();
                    }
                }
                Output::Migrating { slab, is_migrating } => self.volume.slab(slab).set_migrating(is_migrating),
                Output::MappingPossible(is_possible) => self.volume.set_mapping_possible(is_possible),
                Output::Send { .. }
                | Output::GiveBack { .. }
                | Output::Empty { .. }
                | Output::HurryDisk
                | Output::Note(_) => later.push(output),
            }
        }
        drop(decided);
        later.into_iter().for_each(|output| self.carry_out(output));
    }

    fn carry_out(&self, output: Output) {
        match output {
            Output::Send { donor, session, message } => {
                if let Some(session) = self.session_numbered(donor, session) {
                    // A failed send means the session is ending, and its link thread says so.
                    let _ = session.sender.send(&message, None);
                }
            }
            Output::GiveBack { lease } => {
                if let Some(session) = self.session_numbered(lease.location.donor, lease.session) {
                    session.give_back(lease.location.handle);
                }
            }
            Output::Empty { donor } => {
                if let Some(donor) = self.donors.get(donor) {
                    donor.dismiss();
                }
            }
            Output::HurryDisk => {
                if let Some(disk) = &self.volume.disk {
                    disk.backlog.hurry();
                }
            }
            Output::Note(Note::Stuck { slab, donor }) => {
                let address = self.donors.get(donor).map_or_else(String::new, |donor| donor.address.to_string());
                tracing::warn!("slab {slab} cannot leave donor {address} yet: nothing else holds all its pages");
            }
            _ => unreachable!("the others are carried out under the lock"),
        }
    }
}
