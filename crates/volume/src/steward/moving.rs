//! What the mover does next: fills copies that miss pages, and moves slabs that donors want back.
//!
//! It copies one slab at a time, so that faults find the network free, and recalls pass refills: a donor's machine
//! needs that memory. A recalled slab is moved to another donor, not dropped to disk. Only when no other donor has
//! room does it fall back to what else holds its pages: replicas, or the disk once the backlog brought every page
//! there. A slab that nothing else holds stays where it is, and is tried again every [`RECALL_RETRY_PAUSE`]: there may
//! be room then, or the disk may have caught up. Copies at a donor that is removed leave the same way, but only when
//! as many others are there as were promised: that donor needs nothing back.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Instant;

use spillway_fabric::units::SlabIndex;

use super::donors::Donors;
use super::pages::Pages;
use super::{Output, SessionNumber};
use crate::limits::RECALL_RETRY_PAUSE;
use crate::slab_map::slab_entry::{DonorSlot, Location};

/// Something for the mover to do.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Job {
    /// Bring every copy of a slab up to date.
    Refill(SlabIndex),
    /// Bring the copies up to date that were made for a move.
    Fill(SlabIndex, Vec<(usize, Location)>),
    /// Take a copy away, if its pages have so many copies at other donors.
    Drop(SlabIndex, Location, usize),
}

/// Why a copy is brought away from its donor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// The donor wants its memory back: one other copy of each page suffices.
    Recall,
    /// The donor is not used any more: the copies that were promised have to be elsewhere first.
    Removal,
}

/// What copies a volume promises.
#[derive(Clone, Copy, Debug)]
pub struct Promise {
    /// Copies at donors.
    pub replicas: usize,
    /// Whether there is a disk copy.
    pub has_disk: bool,
}

impl Promise {
    /// Copies at donors that the pages of a slab must have besides the one at `leaving`. With a disk, as many as the
    /// slab has found places for.
    fn others_min(self, slab: SlabIndex, leaving: DonorSlot, pages: &dyn Pages) -> usize {
        let locations = pages.locations(slab);
        let others = locations.iter().flatten().filter(|location| location.donor != leaving).count();
        if self.has_disk { self.replicas.min(others) } else { self.replicas }
    }
}

/// How far a recall is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Its turn comes when the slab is in no placement, and no other copy of it is leaving.
    Waiting,
    /// Another donor is looked for.
    Placing,
    /// The pages are copied, or the copy is taken away.
    Leaving,
    /// It could not leave; tried again at this time.
    Stuck(Instant),
}

#[derive(Clone, Copy, Debug)]
struct Recall {
    slab: SlabIndex,
    stage: Stage,
    reason: Reason,
    is_told: bool,
    /// The copy may stay after all, if it does not leave with the try that is under way.
    is_called_off: bool,
}

/// How a drop ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dropped {
    /// A recalled slab has left its donor, or may stay there after all.
    Moved,
    /// A recalled slab cannot leave its donor yet.
    Stuck {
        /// For the first time.
        is_first: bool,
    },
    /// The copy was no recalled one.
    Other,
}

/// See the module text.
#[derive(Debug, Default)]
pub struct Moving {
    jobs: VecDeque<Job>,
    /// The mover is at work.
    is_busy: bool,
    /// On a copy that it takes away, at this donor, of this session.
    dropping: Option<(DonorSlot, Option<SessionNumber>)>,
    recalled: BTreeMap<(DonorSlot, u32), (Location, Recall)>,
}

fn key(location: Location) -> (DonorSlot, u32) {
    (location.donor, location.handle.0)
}

impl Moving {
    /// Copies of `slab` miss pages.
    pub fn refill(&mut self, slab: SlabIndex) {
        self.add(Job::Refill(slab));
    }

    /// A copy holds no page.
    pub fn give_back(&mut self, slab: SlabIndex, location: Location) {
        self.add(Job::Drop(slab, location, 0));
    }

    fn add(&mut self, job: Job) {
        if !self.jobs.contains(&job) {
            self.jobs.push_back(job);
        }
    }

    /// A copy is to leave its donor; false when that is known already.
    pub fn recall(&mut self, slab: SlabIndex, location: Location, reason: Reason) -> bool {
        if let Some((_, recall)) = self.recalled.get_mut(&key(location)) {
            recall.reason = recall.reason.min(reason);
            recall.is_called_off = false;
            return false;
        }
        let recall = Recall { slab, stage: Stage::Waiting, reason, is_told: false, is_called_off: false };
        self.recalled.insert(key(location), (location, recall));
        true
    }

    /// The removal of a donor is called off: its copies may stay. The slabs that are not moved any more.
    pub fn call_off(&mut self, donor: DonorSlot) -> Vec<SlabIndex> {
        let mut stay = Vec::new();
        self.recalled.retain(|_, (location, recall)| {
            if location.donor != donor || recall.reason != Reason::Removal {
                return true;
            }
            let is_under_way = matches!(recall.stage, Stage::Placing | Stage::Leaving);
            recall.is_called_off = is_under_way;
            if !is_under_way {
                stay.push(recall.slab);
            }
            is_under_way
        });
        stay
    }

    /// A donor wants a copy no more that it had recalled: what has not begun to move stays. A donor that `is_leaving`
    /// has its copies brought away all the same, more slowly. The slab, if it is not moved any more.
    pub fn withdraw(&mut self, location: Location, is_leaving: bool) -> Option<SlabIndex> {
        let (_, recall) =
            self.recalled.get_mut(&key(location)).filter(|(_, recall)| recall.reason == Reason::Recall)?;
        if is_leaving {
            recall.reason = Reason::Removal;
            return None;
        }
        recall.is_called_off = true;
        let slab = recall.slab;
        if matches!(recall.stage, Stage::Waiting | Stage::Stuck(_)) || self.unqueue(slab, location) {
            self.recalled.remove(&key(location));
            return Some(slab);
        }
        None
    }

    /// Takes a move out of the queue, if it has not begun; its new copies are given back. Whether it was there.
    fn unqueue(&mut self, slab: SlabIndex, location: Location) -> bool {
        let is_its_drop = |job: &Job| matches!(job, Job::Drop(of, at, _) if *of == slab && *at == location);
        let is_its_fill = |job: &Job| matches!(job, Job::Fill(of, _) if *of == slab);
        let Some(at) = self.jobs.iter().position(is_its_drop) else { return false };
        let Some(before) = at.checked_sub(1).filter(|before| is_its_fill(&self.jobs[*before])) else {
            // Its pages are being copied, or have been.
            return false;
        };
        self.jobs.remove(at);
        if let Some(Job::Fill(_, copies)) = self.jobs.remove(before) {
            copies.into_iter().for_each(|(_, copy)| self.give_back(slab, copy));
        }
        true
    }

    /// Whether a copy is on its way from `donor`.
    pub fn is_leaving_from(&self, donor: DonorSlot) -> bool {
        self.dropping.is_some_and(|(at, _)| at == donor)
            || self.recalled.values().any(|(location, _)| location.donor == donor)
    }

    /// The recalls whose turn has come: slab and donor. `is_busy` says whether a slab is in a placement.
    pub fn next_moves(&mut self, now: Instant, is_busy: impl Fn(SlabIndex) -> bool) -> Vec<(SlabIndex, DonorSlot)> {
        let is_leaving = |recall: &Recall| matches!(recall.stage, Stage::Placing | Stage::Leaving);
        let mut taken: BTreeSet<SlabIndex> =
            self.recalled.values().filter(|(_, recall)| is_leaving(recall)).map(|(_, recall)| recall.slab).collect();
        let mut moves = Vec::new();
        for (location, recall) in self.recalled.values_mut() {
            if matches!(recall.stage, Stage::Stuck(until) if until <= now) {
                recall.stage = Stage::Waiting;
            }
            if recall.stage == Stage::Waiting && !is_busy(recall.slab) && taken.insert(recall.slab) {
                recall.stage = Stage::Placing;
                moves.push((recall.slab, location.donor));
            }
        }
        moves
    }

    /// Another donor was found for a slab that is to move, or none was: `copies` are new and empty. Whether the slab is
    /// not moved any more.
    pub fn placed(
        &mut self,
        slab: SlabIndex,
        copies: Vec<(usize, Location)>,
        promise: Promise,
        pages: &dyn Pages,
    ) -> bool {
        let is_its = |recall: &Recall| recall.slab == slab && recall.stage == Stage::Placing;
        let Some((location, recall)) = self.recalled.values_mut().find(|(_, recall)| is_its(recall)) else {
            // Its donor is gone meanwhile. The new copies are filled all the same.
            self.refill(slab);
            return false;
        };
        if recall.is_called_off {
            // No page was moved yet: the new copies are not needed.
            let location = *location;
            self.recalled.remove(&key(location));
            copies.into_iter().for_each(|(_, copy)| self.give_back(slab, copy));
            return true;
        }
        recall.stage = Stage::Leaving;
        let others_min = match recall.reason {
            Reason::Recall => 0,
            Reason::Removal => promise.others_min(slab, location.donor, pages),
        };
        self.jobs.push_front(Job::Drop(slab, *location, others_min));
        if !copies.is_empty() {
            self.jobs.push_front(Job::Fill(slab, copies));
        }
        false
    }

    /// The mover has filled copies.
    pub fn filled(&mut self) {
        self.is_busy = false;
    }

    /// The session whose copy the mover was told to take away.
    pub fn dropping(&self) -> Option<SessionNumber> {
        self.dropping.and_then(|(_, session)| session)
    }

    /// The mover has taken a copy away, or not.
    pub fn dropped(&mut self, now: Instant, location: Location, is_gone: bool) -> Dropped {
        self.is_busy = false;
        self.dropping = None;
        let Some((_, recall)) = self.recalled.get_mut(&key(location)) else { return Dropped::Other };
        if is_gone || recall.is_called_off {
            self.recalled.remove(&key(location));
            return Dropped::Moved;
        }
        recall.stage = Stage::Stuck(now + RECALL_RETRY_PAUSE);
        let is_first = !std::mem::replace(&mut recall.is_told, true);
        Dropped::Stuck { is_first }
    }

    /// A donor's session is over: it wants nothing back any more. The slabs that it had wanted.
    pub fn lose(&mut self, donor: DonorSlot) -> Vec<SlabIndex> {
        let lost: Vec<_> = self.recalled.iter().filter(|(_, (location, _))| location.donor == donor).collect();
        let slabs = lost.iter().map(|(_, (_, recall))| recall.slab).collect();
        self.recalled.retain(|_, (location, _)| location.donor != donor);
        self.jobs.retain(|job| !matches!(job, Job::Drop(_, location, _) if location.donor == donor));
        slabs
    }

    /// Gives the mover its next job, if it has none.
    pub fn proceed(&mut self, pages: &dyn Pages, donors: &Donors, outputs: &mut Vec<Output>) {
        while !self.is_busy {
            let Some(job) = self.jobs.pop_front() else { return };
            let output = match job {
                Job::Refill(slab) => {
                    let copies = pages.locations(slab).into_iter().enumerate();
                    let copies = copies.filter_map(|(copy_index, location)| Some((copy_index, location?))).collect();
                    Output::Fill { slab, copies }
                }
                Job::Fill(slab, copies) => Output::Fill { slab, copies },
                Job::Drop(slab, location, others_min) => {
                    self.dropping = Some((location.donor, donors.session(location.donor)));
                    Output::Drop { slab, location, others_min }
                }
            };
            self.is_busy = true;
            outputs.push(output);
        }
    }

    /// Whether a donor wants a copy of `slab` back.
    pub fn is_recalled(&self, slab: SlabIndex) -> bool {
        self.recalled.values().any(|(_, recall)| recall.slab == slab)
    }

    /// When a recall is to be tried again.
    pub fn due(&self) -> Option<Instant> {
        let due = |(_, recall): &(Location, Recall)| match recall.stage {
            Stage::Stuck(until) => Some(until),
            Stage::Waiting | Stage::Placing | Stage::Leaving => None,
        };
        self.recalled.values().filter_map(due).min()
    }

    /// Slabs that donors want back.
    pub fn recalls(&self) -> usize {
        self.recalled.len()
    }
}
