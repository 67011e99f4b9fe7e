//! Pages that several programs have in common since a fork: the kernel counts them for each, and they are in memory once.
//!
//! How many they are only a walk of page tables tells (`Pss_Anon`, 50 ns a page measured), so that is done now and then. In between they
//! become more by forks only, whose pages are all another's too, but for those that were written since; and fewer by pages that are
//! written and copied, each of which costs a minor fault, or given up, which are then missing from their program's count. All of
//! that is cheap to ask for, so [`Common::pages`] is too high only by what comes and goes without a trace: memory that is given up
//! while other memory comes by more pages than faults. The next walk mends that.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::{Resident, Survey, alert_pages};
use crate::pager::limits::{COMMON_LOOK_INTERVAL, COMMON_LOOK_SHARE, FAMILY_MAX};
use crate::pager::process::Process;

/// A program that has forked or is a fork, at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Member {
    /// Its process.
    pub(super) process: u32,
    /// It is a fork itself: what it begins with is another one's too.
    pub(super) is_fork: bool,
    /// Minor faults since it began.
    pub(super) faults: u64,
    /// Anonymous pages that the kernel counts for it.
    pub(super) resident: i64,
}

/// What is known of common pages.
#[derive(Debug, Default)]
pub(super) struct Common {
    /// Counts beyond the first one of each page, when it was looked.
    excess: i64,
    /// As they were then.
    members: Vec<Member>,
    looked_at: Option<Instant>,
    /// How long that took.
    cost: Duration,
}

impl Common {
    /// Whether page tables are to be walked: now and then, and when the last walk is paid off.
    pub(super) fn wants_look(&self, now: Instant) -> bool {
        let pause = COMMON_LOOK_INTERVAL.max(self.cost * COMMON_LOOK_SHARE);
        self.looked_at.is_none_or(|at| now.saturating_duration_since(at) >= pause)
    }

    /// A walk that took `cost` found that `family` has `excess` pages fewer than the kernel's counts say together.
    pub(super) fn looked(&mut self, family: Vec<Member>, excess: i64, now: Instant, cost: Duration) {
        *self = Self { excess, members: family, looked_at: Some(now), cost };
    }

    /// By how much the kernel's count of `family` is too high, at least.
    pub(super) fn pages(&mut self, family: &[Member]) -> i64 {
        let of = |process: u32, members: &[Member]| members.iter().find(|member| member.process == process).copied();
        for gone in self.members.extract_if(.., |then| of(then.process, family).is_none()) {
            // What it had may be another's alone now.
            self.excess -= gone.resident;
        }
        for new in family {
            if of(new.process, &self.members).is_none() {
                let written = new.faults.cast_signed();
                self.excess += if new.is_fork { (new.resident - written).max(0) } else { 0 };
                self.members.push(*new);
            }
        }
        self.excess = self.excess.max(0);
        let lost = self.members.iter().filter_map(|then| {
            let now = of(then.process, family)?;
            Some(now.faults.saturating_sub(then.faults).cast_signed() + (then.resident - now.resident).max(0))
        });
        (self.excess - lost.sum::<i64>()).max(0)
    }
}

impl Survey {
    /// By how much `resident`, the kernel's count of all programs, is too high.
    pub(super) fn common_pages(&mut self, resident: i64, now: Instant) -> i64 {
        let budget = &self.shared.budget;
        if resident <= budget.high_pages() - alert_pages(budget) {
            return 0;
        }
        // A child that is not paged is not counted either, so what is shared with one counts in full.
        let is_relative = |resident: &&Resident| {
            let tenant = &resident.tenant;
            tenant.has_forked.load(Ordering::Relaxed) && !tenant.has_forked_untold.load(Ordering::Relaxed)
        };
        let relatives = self.residents.iter().filter(is_relative);
        let relatives: Vec<(&Process, bool)> = relatives
            .filter_map(|resident| Some((resident.process.as_ref()?, resident.tenant.parent.is_some())))
            .collect();
        if !(2..=FAMILY_MAX).contains(&relatives.len()) {
            return 0;
        }
        let family: Vec<Member> = relatives.iter().filter_map(|(process, is_fork)| member(process, *is_fork)).collect();
        if self.common.wants_look(now) {
            let begun = Instant::now();
            // What one that ended has is gone, and found at the next look.
            let excess: i64 = relatives.iter().filter_map(|(process, _)| process.others_pages()).sum();
            self.common.looked(family.clone(), excess, now, begun.elapsed());
        }
        self.common.pages(&family)
    }
}

fn member(process: &Process, is_fork: bool) -> Option<Member> {
    let (faults, resident) = (process.minor_faults()?, process.resident_pages()?);
    Some(Member { process: process.number(), is_fork, faults, resident })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(process: u32, faults: u64, resident: i64) -> Member {
        Member { process, is_fork: process > 1, faults, resident }
    }

    const NO_TIME: Duration = Duration::ZERO;

    #[test]
    fn a_page_that_both_have_counts_once() {
        let mut common = Common::default();
        let (parent, child) = (member(1, 500, 1000), member(2, 10, 990));
        common.looked(vec![parent, child], 990, Instant::now(), NO_TIME);
        assert_eq!(common.pages(&[parent, child]), 990);
        // The child writes 100 of its pages, the parent gives 50 up.
        assert_eq!(common.pages(&[member(1, 500, 950), member(2, 110, 990)]), 840);
        // What comes is counted as it is.
        assert_eq!(common.pages(&[member(1, 500, 2000), child]), 990);
        assert_eq!(common.pages(&[member(1, 9000, 1000), child]), 0, "never less than nothing");
        assert_eq!(common.pages(&[parent, child]), 990);
    }

    #[test]
    fn a_new_child_has_nothing_of_its_own_but_what_it_wrote() {
        let mut common = Common::default();
        let (parent, child) = (member(1, 500, 1000), member(2, 10, 1000));
        assert_eq!(common.pages(&[parent, child]), 990);
        let other = member(3, 0, 1000);
        assert_eq!(common.pages(&[parent, child, other]), 1990);
        assert_eq!(common.pages(&[parent, member(2, 110, 1000), other]), 1890, "and it writes more");
        assert_eq!(common.pages(&[parent, other]), 990, "what the one had that is gone may be another's alone");
        assert_eq!(common.pages(&[parent]), 0);
    }

    #[test]
    fn a_program_that_runs_another_has_nothing_in_common_any_more() {
        let mut common = Common::default();
        common.looked(vec![member(1, 0, 100), member(2, 0, 100)], 100, Instant::now(), NO_TIME);
        // Its pages are gone from its count, and so it is another member.
        assert_eq!(common.pages(&[member(1, 0, 100), member(3, 300, 200)]), 0);
    }

    #[test]
    fn looks_are_paid_off_before_the_next() {
        let mut common = Common::default();
        let start = Instant::now();
        assert!(common.wants_look(start));
        common.looked(Vec::new(), 0, start, NO_TIME);
        assert!(!common.wants_look(start) && common.wants_look(start + COMMON_LOOK_INTERVAL));
        let cost = COMMON_LOOK_INTERVAL;
        common.looked(Vec::new(), 0, start, cost);
        assert!(!common.wants_look(start + cost) && common.wants_look(start + cost * COMMON_LOOK_SHARE));
    }
}
