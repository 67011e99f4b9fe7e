//! Pages that several programs share since a fork. The kernel counts such a page once for each program, but the page is
//! in memory only once.
//!
//! Only a walk of page tables tells the number of shared pages (`Pss_Anon`, 50 ns a page measured). Walks are therefore
//! rare: one program at a time, and the CPU time of one walk is paid off before the next. During a walk the survey does
//! nothing else, and the kernel holds the lock of the program's mappings. A program that is too large is never walked,
//! and neither are the programs that may share its pages.
//!
//! Between walks the number is estimated:
//! - A fork adds pages: all pages of the child are shared, except those that were written since.
//! - A write to a shared page copies the page and removes one. Each copy costs a minor fault, which the kernel counts.
//! - A page that is given up is missing from its program's count.
//!
//! All three are cheap to ask for. The estimate ([`ForkSharedPages::pages`]) is too high only where a program gives
//! memory up and gets other memory by more pages than faults. The next walk corrects that.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use crate::limits::{COMMON_LOOK_INTERVAL, COMMON_LOOK_SHARE, COMMON_WALK_MAX, COMMON_WALK_NS_PER_PAGE, FAMILY_MAX};
use crate::process::proc_files::Process;
use crate::process::{Survey, TrackedProcess, alert_pages};

/// A program that has forked or is a fork, at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Member {
    /// The number of the process.
    pub(super) process: u32,
    /// The program is a fork: its first pages are shared with its parent.
    pub(super) is_fork: bool,
    /// Minor faults since the program began.
    pub(super) faults: u64,
    /// Anonymous pages that the kernel counts for the program.
    pub(super) resident: i64,
}

/// The estimate of shared pages; see the module text.
#[derive(Debug, Default)]
pub(super) struct ForkSharedPages {
    /// Counts beyond the first one of each page, at the end of the last round of walks.
    excess: i64,
    /// The programs at the end of the last round.
    members: Vec<Member>,
    /// Programs that were walked in this round, each with the number of its pages that count for other programs.
    round: Vec<(Member, i64)>,
    round_at: Option<Instant>,
    /// The time at which the last walk is paid off.
    paid_off_at: Option<Instant>,
    /// CPU time of the last walk of each program.
    costs: Vec<(Member, Duration)>,
}

impl ForkSharedPages {
    /// A program as it was counted. A program that ended since has its pages in that count, and no more faults than
    /// before.
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

    /// The process to walk now, if any: a round begins after each interval, and the last walk must be paid off.
    pub(super) fn next_walk(&mut self, family: &[Member], now: Instant) -> Option<u32> {
        let is_paid_off = self.paid_off_at.is_none_or(|at| at <= now);
        if !is_paid_off || family.iter().any(|member| self.cost(member) > COMMON_WALK_MAX) {
            return None;
        }
        if self.round.iter().any(|(walked, _)| of(walked.process, family).is_none()) {
            // Pages of the program that ended may belong to one other program alone now.
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

    /// Takes in a walk of `member` that took `cost` and ended at `now`: `others` of its pages count for other programs.
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

    /// The expected CPU time of a walk of `member`, by its last walk.
    fn cost(&self, member: &Member) -> Duration {
        let known = self.costs.iter().find(|(known, _)| known.process == member.process);
        let pages = |member: &Member| member.resident.max(1).unsigned_abs();
        match known {
            Some((then, cost)) => cost.mul_f64(pages(member) as f64 / pages(then) as f64),
            None => Duration::from_nanos(COMMON_WALK_NS_PER_PAGE * pages(member)),
        }
    }

    /// Pages by which the kernel's count of `family` is too high, at least.
    pub(super) fn pages(&mut self, family: &[Member]) -> i64 {
        for gone in self.members.extract_if(.., |then| of(then.process, family).is_none()) {
            // Pages of the program that ended may belong to one other program alone now.
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
    /// Pages by which `resident`, the kernel's count of all programs, is too high.
    pub(super) fn common_pages(&mut self, resident: i64, now: Instant) -> i64 {
        let budget = &self.shared.budget;
        if resident <= budget.high_pages() - alert_pages(budget) {
            return 0;
        }
        // A child that is not paged is not counted, so pages shared with such a child count in full.
        let is_relative = |tracked: &&TrackedProcess| {
            let space = &tracked.space;
            space.has_forked.load(Ordering::Relaxed) && !space.has_forked_untold.load(Ordering::Relaxed)
        };
        let relatives = self.tracked.iter().filter(is_relative).filter(|tracked| tracked.process.is_some());
        if !(2..=FAMILY_MAX).contains(&relatives.clone().count()) {
            return 0;
        }
        let family: Vec<Member> = relatives.filter_map(|tracked| self.fork_shared_pages.member(tracked)).collect();
        if let Some(number) = self.fork_shared_pages.next_walk(&family, now) {
            let begun = cpu_time();
            let mut processes = self.tracked.iter().filter_map(|tracked| tracked.process.as_ref());
            let walked = processes.find(|process| process.number() == number).and_then(Process::others_pages);
            // A program that ended meanwhile is no member at the next look.
            if let (Some(others), Some(member)) = (walked, of(number, &family)) {
                self.fork_shared_pages.walked(member, others, &family, now, cpu_time().saturating_sub(begun));
            }
        }
        self.fork_shared_pages.pages(&family)
    }
}

fn of(process: u32, members: &[Member]) -> Option<Member> {
    members.iter().find(|member| member.process == process).copied()
}

/// CPU time of this thread. Waiting for a CPU or for a lock does not count.
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

    impl ForkSharedPages {
        /// All of `family` is walked; the first has `excess` pages of others.
        fn looked(&mut self, family: &[Member], excess: i64) {
            for (index, member) in family.iter().enumerate() {
                self.walked(*member, if index == 0 { excess } else { 0 }, family, Instant::now(), NO_TIME);
            }
        }
    }

    #[test]
    fn a_page_that_both_have_counts_once() {
        let mut shared = ForkSharedPages::default();
        let (parent, child) = (member(1, 500, 1000), member(2, 10, 990));
        shared.looked(&[parent, child], 990);
        assert_eq!(shared.pages(&[parent, child]), 990);
        // The child writes 100 of its pages, the parent gives 50 up.
        assert_eq!(shared.pages(&[member(1, 500, 950), member(2, 110, 990)]), 840);
        // What comes is counted as it is.
        assert_eq!(shared.pages(&[member(1, 500, 2000), child]), 990);
        assert_eq!(shared.pages(&[member(1, 9000, 1000), child]), 0, "never less than nothing");
        assert_eq!(shared.pages(&[parent, child]), 990);
    }

    #[test]
    fn a_new_child_has_nothing_of_its_own_but_what_it_wrote() {
        let mut shared = ForkSharedPages::default();
        let (parent, child) = (member(1, 500, 1000), member(2, 10, 1000));
        assert_eq!(shared.pages(&[parent, child]), 990);
        let other = member(3, 0, 1000);
        assert_eq!(shared.pages(&[parent, child, other]), 1990);
        assert_eq!(shared.pages(&[parent, member(2, 110, 1000), other]), 1890, "and it writes more");
        assert_eq!(shared.pages(&[parent, other]), 990, "what the one had that is gone may be another's alone");
        assert_eq!(shared.pages(&[parent]), 0);
    }

    #[test]
    fn a_program_that_runs_another_has_nothing_in_common_any_more() {
        let mut shared = ForkSharedPages::default();
        shared.looked(&[member(1, 0, 100), member(2, 0, 100)], 100);
        // Its pages are gone from its count, and so it is another member.
        assert_eq!(shared.pages(&[member(1, 0, 100), member(3, 300, 200)]), 0);
    }

    #[test]
    fn walks_are_of_one_program_each_and_paid_off_before_the_next() {
        let mut shared = ForkSharedPages::default();
        let family = [member(1, 0, 1000), member(2, 0, 1000)];
        let mut now = Instant::now();
        assert_eq!(shared.next_walk(&family, now), Some(1));
        let cost = Duration::from_millis(1);
        shared.walked(family[0], 500, &family, now, cost);
        assert_eq!(shared.next_walk(&family, now + cost), None);
        now += cost * COMMON_LOOK_SHARE;
        assert_eq!(shared.next_walk(&family, now), Some(2));
        assert_eq!(shared.pages(&family), 1000, "as it was guessed until all were walked");
        shared.walked(family[1], 400, &family, now, NO_TIME);
        assert_eq!(shared.pages(&family), 900);
        assert_eq!(shared.next_walk(&family, now), None, "now and then");
        now += COMMON_LOOK_INTERVAL;
        assert_eq!(shared.next_walk(&family, now), Some(1));
    }

    /// Whatever walks take, they take no more of the time than their share.
    #[test]
    fn walks_of_all_together_have_a_bound() {
        let mut shared = ForkSharedPages::default();
        let costs = [3, 700, 19_000].map(Duration::from_micros);
        let family = [1, 2, 3].map(|process| member(process, 0, 100_000));
        let start = Instant::now();
        let (mut now, mut spent, mut walks) = (start, NO_TIME, 0);
        while now < start + Duration::from_secs(20) {
            if let Some(process) = shared.next_walk(&family, now) {
                let cost = costs[process as usize - 1];
                now += cost;
                spent += cost;
                walks += 1;
                shared.walked(family[process as usize - 1], 0, &family, now, cost);
            }
            now += Duration::from_millis(1);
        }
        assert!(walks >= 3 * 10, "each is walked again and again: {walks}");
        assert!(spent * COMMON_LOOK_SHARE <= now - start + costs[2] * COMMON_LOOK_SHARE, "{spent:?}");
    }

    #[test]
    fn programs_that_would_take_long_are_not_walked_and_counted_as_guessed() {
        let mut shared = ForkSharedPages::default();
        let pages_max = i64::try_from(COMMON_WALK_MAX.as_nanos()).unwrap() / COMMON_WALK_NS_PER_PAGE.cast_signed();
        let mut family = [member(1, 500, pages_max + 1), member(2, 10, 1000)];
        let now = Instant::now();
        assert_eq!(shared.next_walk(&family, now), None);
        assert_eq!(shared.pages(&family), 990);
        // It was small when it was walked, and took long all the same: many mappings, or a slow machine.
        family[0].resident = 1000;
        assert_eq!(shared.next_walk(&family, now), Some(1));
        shared.walked(family[0], 7, &family, now, COMMON_WALK_MAX + Duration::from_millis(1));
        assert_eq!(shared.next_walk(&family, now + Duration::from_secs(60)), None);
        family[0].resident = 100;
        assert_eq!(shared.next_walk(&family, now + Duration::from_secs(60)), Some(2), "it gave most of its memory up");
        shared.walked(family[1], 3, &family, now, NO_TIME);
        assert_eq!(shared.pages(&family), 0, "10 common pages, and 900 of the first are gone since");
    }

    #[test]
    fn a_program_that_comes_or_goes_between_walks_makes_them_begin_anew() {
        let mut shared = ForkSharedPages::default();
        let family = [member(1, 0, 1000), member(2, 0, 1000)];
        let mut now = Instant::now();
        assert_eq!(shared.next_walk(&family, now), Some(1));
        shared.walked(family[0], 500, &family, now, NO_TIME);
        now += COMMON_LOOK_INTERVAL;
        let other = [family[1], member(3, 0, 1000)];
        assert_eq!(shared.next_walk(&other, now), Some(2));
        shared.walked(other[0], 20, &other, now, NO_TIME);
        assert_eq!(shared.next_walk(&other, now), Some(3));
        shared.walked(other[1], 30, &other, now, NO_TIME);
        assert_eq!(shared.pages(&other), 50);
    }
}
