//! Pages that several programs have in common since a fork: the kernel counts them for each, and they are in memory
//! once.
//!
//! How many they are only a walk of page tables tells (`Pss_Anon`, 50 ns a page measured), so that is done now and
//! then, one program at a time, each paid off before the next. The survey sees nothing else meanwhile, and the kernel
//! holds the lock of that program's mappings. A program that is too large for that is never walked, and then no
//! process is of those that may share its pages. In between they become more by forks only, whose pages are all
//! another's too, but for those that were written since; and fewer by pages that are written and copied, each of
//! which costs a minor fault, or given up, which are then missing from their program's count. All of that is cheap to
//! ask for, so [`Common::pages`] is too high only by what comes and goes without a trace: memory that is given up
//! while other memory comes by more pages than faults. The next walk mends that.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use crate::limits::{COMMON_LOOK_INTERVAL, COMMON_LOOK_SHARE, COMMON_WALK_MAX, COMMON_WALK_NS_PER_PAGE, FAMILY_MAX};
use crate::process::proc_files::Process;
use crate::process::{Survey, TrackedProcess, alert_pages};

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
    /// Counts beyond the first one of each page, when all were walked.
    excess: i64,
    /// As they were then.
    members: Vec<Member>,
    /// Processes that were walked since, and how many of its pages were others'.
    round: Vec<(Member, i64)>,
    round_at: Option<Instant>,
    /// When the last walk is paid off.
    paid_off_at: Option<Instant>,
    /// What the last walk of each took.
    costs: Vec<(Member, Duration)>,
}

impl Common {
    /// `resident` as it was counted: one that ended since has its pages in that count, and no more faults than before.
    fn member(&self, tracked: &TrackedProcess) -> Option<Member> {
        let process = tracked.process.as_ref()?;
        let known = || of(process.number(), &self.members).map(|known| known.faults);
        Some(Member {
            process: process.number(),
            is_fork: tracked.space.parent.is_some(),
            faults: process.minor_faults().or_else(known).unwrap_or(0),
            resident: tracked.pages,
        })
    }

    /// Whose page table is to be walked now, if any: now and then, and when the last walk is paid off.
    pub(super) fn next_walk(&mut self, family: &[Member], now: Instant) -> Option<u32> {
        let is_paid_off = self.paid_off_at.is_none_or(|at| at <= now);
        if !is_paid_off || family.iter().any(|member| self.cost(member) > COMMON_WALK_MAX) {
            return None;
        }
        if self.round.iter().any(|(walked, _)| of(walked.process, family).is_none()) {
            // What it had may be another's alone now.
            self.round.clear();
        }
        if self.round.is_empty() {
            let is_early = |at: Instant| now.saturating_duration_since(at) < COMMON_LOOK_INTERVAL;
            if self.round_at.is_some_and(is_early) {
                return None;
            }
            self.round_at = Some(now);
        }
        let is_walked = |process: u32| self.round.iter().any(|(walked, _)| walked.process == process);
        family.iter().map(|member| member.process).find(|process| !is_walked(*process))
    }

    /// A walk of `member`, which took `cost` until `now`, found that `others` of its pages are others' share.
    pub(super) fn walked(&mut self, member: Member, others: i64, family: &[Member], now: Instant, cost: Duration) {
        self.paid_off_at = Some(now + cost * COMMON_LOOK_SHARE);
        self.costs.retain(|(known, _)| known.process != member.process && of(known.process, family).is_some());
        self.costs.push((member, cost));
        self.round.push((member, others));
        if family.iter().all(|member| self.round.iter().any(|(walked, _)| walked.process == member.process)) {
            let round = std::mem::take(&mut self.round);
            self.excess = round.iter().map(|(_, others)| others).sum();
            self.members = round.into_iter().map(|(member, _)| member).collect();
        }
    }

    /// What a walk of `member` will take, by the last one.
    fn cost(&self, member: &Member) -> Duration {
        let known = self.costs.iter().find(|(known, _)| known.process == member.process);
        let pages = |member: &Member| member.resident.max(1).unsigned_abs();
        match known {
            Some((then, cost)) => cost.mul_f64(pages(member) as f64 / pages(then) as f64),
            None => Duration::from_nanos(COMMON_WALK_NS_PER_PAGE * pages(member)),
        }
    }

    /// By how much the kernel's count of `family` is too high, at least.
    pub(super) fn pages(&mut self, family: &[Member]) -> i64 {
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
        let is_relative = |tracked: &&TrackedProcess| {
            let space = &tracked.space;
            space.has_forked.load(Ordering::Relaxed) && !space.has_forked_untold.load(Ordering::Relaxed)
        };
        let relatives = self.tracked.iter().filter(is_relative).filter(|tracked| tracked.process.is_some());
        if !(2..=FAMILY_MAX).contains(&relatives.clone().count()) {
            return 0;
        }
        let family: Vec<Member> = relatives.filter_map(|tracked| self.common.member(tracked)).collect();
        if let Some(number) = self.common.next_walk(&family, now) {
            let begun = cpu_time();
            let mut processes = self.tracked.iter().filter_map(|tracked| tracked.process.as_ref());
            let walked = processes.find(|process| process.number() == number).and_then(Process::others_pages);
            // One that ended meanwhile is not counted at the next look, and no member.
            if let (Some(others), Some(member)) = (walked, of(number, &family)) {
                self.common.walked(member, others, &family, now, cpu_time().saturating_sub(begun));
            }
        }
        self.common.pages(&family)
    }
}

fn of(process: u32, members: &[Member]) -> Option<Member> {
    members.iter().find(|member| member.process == process).copied()
}

/// What this thread has used of a CPU: waiting for one, or for a lock, costs nothing.
pub(super) fn cpu_time() -> Duration {
    let used = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(used).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(process: u32, faults: u64, resident: i64) -> Member {
        Member { process, is_fork: process > 1, faults, resident }
    }

    const NO_TIME: Duration = Duration::ZERO;

    impl Common {
        /// All of `family` is walked; the first has `excess` pages of others.
        fn looked(&mut self, family: &[Member], excess: i64) {
            for (index, member) in family.iter().enumerate() {
                self.walked(*member, if index == 0 { excess } else { 0 }, family, Instant::now(), NO_TIME);
            }
        }
    }

    #[test]
    fn a_page_that_both_have_counts_once() {
        let mut common = Common::default();
        let (parent, child) = (member(1, 500, 1000), member(2, 10, 990));
        common.looked(&[parent, child], 990);
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
        common.looked(&[member(1, 0, 100), member(2, 0, 100)], 100);
        // Its pages are gone from its count, and so it is another member.
        assert_eq!(common.pages(&[member(1, 0, 100), member(3, 300, 200)]), 0);
    }

    #[test]
    fn walks_are_of_one_program_each_and_paid_off_before_the_next() {
        let mut common = Common::default();
        let family = [member(1, 0, 1000), member(2, 0, 1000)];
        let mut now = Instant::now();
        assert_eq!(common.next_walk(&family, now), Some(1));
        let cost = Duration::from_millis(1);
        common.walked(family[0], 500, &family, now, cost);
        assert_eq!(common.next_walk(&family, now + cost), None);
        now += cost * COMMON_LOOK_SHARE;
        assert_eq!(common.next_walk(&family, now), Some(2));
        assert_eq!(common.pages(&family), 1000, "as it was guessed until all were walked");
        common.walked(family[1], 400, &family, now, NO_TIME);
        assert_eq!(common.pages(&family), 900);
        assert_eq!(common.next_walk(&family, now), None, "now and then");
        now += COMMON_LOOK_INTERVAL;
        assert_eq!(common.next_walk(&family, now), Some(1));
    }

    /// Whatever walks take, they take no more of the time than their share.
    #[test]
    fn walks_of_all_together_have_a_bound() {
        let mut common = Common::default();
        let costs = [3, 700, 19_000].map(Duration::from_micros);
        let family = [1, 2, 3].map(|process| member(process, 0, 100_000));
        let start = Instant::now();
        let (mut now, mut spent, mut walks) = (start, NO_TIME, 0);
        while now < start + Duration::from_secs(20) {
            if let Some(process) = common.next_walk(&family, now) {
                let cost = costs[process as usize - 1];
                now += cost;
                spent += cost;
                walks += 1;
                common.walked(family[process as usize - 1], 0, &family, now, cost);
            }
            now += Duration::from_millis(1);
        }
        assert!(walks >= 3 * 10, "each is walked again and again: {walks}");
        assert!(spent * COMMON_LOOK_SHARE <= now - start + costs[2] * COMMON_LOOK_SHARE, "{spent:?}");
    }

    #[test]
    fn programs_that_would_take_long_are_not_walked_and_counted_as_guessed() {
        let mut common = Common::default();
        let pages_max = i64::try_from(COMMON_WALK_MAX.as_nanos()).unwrap() / COMMON_WALK_NS_PER_PAGE.cast_signed();
        let mut family = [member(1, 500, pages_max + 1), member(2, 10, 1000)];
        let now = Instant::now();
        assert_eq!(common.next_walk(&family, now), None);
        assert_eq!(common.pages(&family), 990);
        // It was small when it was walked, and took long all the same: many mappings, or a slow machine.
        family[0].resident = 1000;
        assert_eq!(common.next_walk(&family, now), Some(1));
        common.walked(family[0], 7, &family, now, COMMON_WALK_MAX + Duration::from_millis(1));
        assert_eq!(common.next_walk(&family, now + Duration::from_secs(60)), None);
        family[0].resident = 100;
        assert_eq!(common.next_walk(&family, now + Duration::from_secs(60)), Some(2), "it gave most of its memory up");
        common.walked(family[1], 3, &family, now, NO_TIME);
        assert_eq!(common.pages(&family), 0, "10 common pages, and 900 of the first are gone since");
    }

    #[test]
    fn who_comes_or_goes_between_walks_makes_them_begin_anew() {
        let mut common = Common::default();
        let family = [member(1, 0, 1000), member(2, 0, 1000)];
        let mut now = Instant::now();
        assert_eq!(common.next_walk(&family, now), Some(1));
        common.walked(family[0], 500, &family, now, NO_TIME);
        now += COMMON_LOOK_INTERVAL;
        let other = [family[1], member(3, 0, 1000)];
        assert_eq!(common.next_walk(&other, now), Some(2));
        common.walked(other[0], 20, &other, now, NO_TIME);
        assert_eq!(common.next_walk(&other, now), Some(3));
        common.walked(other[1], 30, &other, now, NO_TIME);
        assert_eq!(common.pages(&other), 50);
    }
}
