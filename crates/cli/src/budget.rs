//! The local budget of a program under `run`: how much memory its cgroup may have, moment by moment.
//!
//! A share follows the footprint (local plus lent, without cached files) as it grows and shrinks. The decision has no
//! clock and no I/O of its own: [`run`](crate::run) samples the cgroup, asks here, and writes the limit.
//!
//! Invariants: the limit is never below the floor, nor below what is locked plus the floor, because memory that
//! cannot leave would get the program killed; it grows at once and shrinks in steps, so that the writer of the limit,
//! who pages out what is above it, is never busy for long.

use std::time::Duration;

use spillway_policy::sizing::stall_controller::{Reading, StallController};
use spillway_report::run::GroupUsage;

use crate::limits;
use crate::size::LocalBudget;

/// A limit shrinks by at most this part of itself at a time.
const SHRINK_DIVISOR: u64 = 16;

/// A change smaller than this part of the limit is not worth writing.
const IGNORED_DIVISOR: u64 = 64;

/// The kernel's memory counts as locked where it is more than this part of the share: page tables of a program that
/// uses one page here and there are as large as its pages.
const KERNEL_SHARE: u64 = 4;

/// Page tables, stacks and batches of the kernel that a limit must leave room for besides locked memory.
const LOCKED_EXTRA_DIVISOR: u64 = 8;

/// What the cgroup of one program may have.
#[derive(Clone, Debug)]
pub(crate) struct Budget {
    setting: LocalBudget,
    limit_bytes: Option<u64>,
    /// What it got beyond its share because it could not go on.
    relief_bytes: u64,
    /// Of [`LocalBudget::Auto`].
    controller: Option<StallController>,
}

impl Budget {
    /// Before the program starts.
    pub(crate) fn new(setting: LocalBudget) -> Self {
        let limit_bytes = match setting {
            LocalBudget::Fixed(size) => Some(size.bytes.max(limits::BUDGET_FLOOR_BYTES)),
            LocalBudget::Percent(percent) if percent >= 100.0 => None,
            LocalBudget::Percent(_) | LocalBudget::Auto => Some(limits::BUDGET_FLOOR_BYTES),
        };
        Self { setting, limit_bytes, relief_bytes: 0, controller: None }
    }

    /// One that follows what the program loses to page-ins: at most `slowdown`, a share of its time. It begins with
    /// `most_bytes`, and never has less than `least_bytes`.
    pub(crate) fn automatic(slowdown: f64, least_bytes: u64, most_bytes: u64) -> Self {
        let controller = StallController::new(slowdown, least_bytes, most_bytes.max(least_bytes));
        let limit_bytes = Some(controller.limit_bytes());
        Self { setting: LocalBudget::Auto, limit_bytes, relief_bytes: 0, controller: Some(controller) }
    }

    /// The time of the next sample, since the begin; matters to an automatic budget only.
    pub(crate) fn steer(&mut self, now: Duration, usage: &GroupUsage) {
        let (Some(controller), Some(stalled_us)) = (&mut self.controller, usage.stalled_us) else { return };
        controller.observe(Reading {
            now,
            stalled: Duration::from_micros(stalled_us),
            local_bytes: usage.charged_bytes.saturating_sub(usage.file_bytes),
            footprint_bytes: usage.footprint_bytes(),
        });
    }

    /// The limit in force; `None` when all of the footprint may be local.
    pub(crate) fn limit_bytes(&self) -> Option<u64> {
        self.limit_bytes
    }

    /// What the setting means for this footprint.
    fn wanted_bytes(&self, usage: &GroupUsage) -> u64 {
        let share = match self.setting {
            LocalBudget::Fixed(size) => size.bytes,
            LocalBudget::Percent(percent) => (usage.footprint_bytes() as f64 * percent / 100.0) as u64,
            LocalBudget::Auto => self.controller.as_ref().map_or(0, StallController::limit_bytes),
        };
        // Of the kernel's every program has some, for which its share has room.
        let kernel_most = (share / KERNEL_SHARE).max(limits::BUDGET_FLOOR_BYTES / 2);
        let kernel = if usage.kernel_bytes > kernel_most { usage.kernel_bytes } else { 0 };
        let locked = match usage.locked_bytes + kernel {
            0 => 0,
            locked => locked + locked / LOCKED_EXTRA_DIVISOR + limits::BUDGET_FLOOR_BYTES,
        };
        share.max(locked).max(limits::BUDGET_FLOOR_BYTES)
    }

    /// What it has beyond its share because nothing of it could leave.
    pub(crate) fn relief_bytes(&self) -> u64 {
        self.relief_bytes
    }

    /// Takes a sample; gives the limit to write if it is to change.
    pub(crate) fn observe(&mut self, usage: &GroupUsage) -> Option<u64> {
        let current = self.limit_bytes?;
        let own = self.wanted_bytes(usage);
        self.relief_bytes = if usage.is_stalled {
            let step = (current / limits::RELIEF_DIVISOR).max(limits::RELIEF_BYTES_MIN);
            // From what it has now, which may still be on its way down.
            current.saturating_sub(own).max(self.relief_bytes) + step
        } else {
            self.relief_bytes - self.relief_bytes.div_ceil(limits::RELIEF_DECAY_DIVISOR)
        };
        let wanted = (own + self.relief_bytes).max(current - current / SHRINK_DIVISOR);
        if wanted.abs_diff(current) <= current / IGNORED_DIVISOR {
            return None;
        }
        assert!(wanted >= limits::BUDGET_FLOOR_BYTES, "the floor holds");
        self.limit_bytes = Some(wanted);
        self.limit_bytes
    }

    /// When to look again: soon while the group is at its limit, for which `at_limit` gives the interval, and sooner
    /// while it cannot go on.
    pub(crate) fn interval(&self, usage: &GroupUsage, at_limit: impl Fn(u64) -> Duration) -> Duration {
        match self.limit_bytes {
            Some(_) if usage.is_stalled => limits::BUDGET_INTERVAL_AT_LIMIT,
            Some(limit) if usage.charged_bytes >= limit - limit / SHRINK_DIVISOR => at_limit(limit),
            _ => limits::BUDGET_INTERVAL,
        }
    }
}

/// How often a memory group at this limit is looked at, so that its statistics are never so old that the kernel finds
/// nothing to page out.
pub(crate) fn interval_at_limit(limit_bytes: u64) -> Duration {
    let intervals = limit_bytes / limits::BUDGET_BYTES_PER_INTERVAL;
    let interval = limits::BUDGET_INTERVAL_AT_LIMIT.saturating_mul(u32::try_from(intervals).unwrap_or(u32::MAX));
    interval.clamp(limits::BUDGET_INTERVAL_AT_LIMIT, limits::BUDGET_INTERVAL_AT_LIMIT_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// A program of `footprint` bytes whose kernel keeps as much local as the limit allows.
    fn sample(budget: &Budget, footprint: u64) -> GroupUsage {
        let charged = footprint.min(budget.limit_bytes().unwrap_or(u64::MAX));
        GroupUsage { charged_bytes: charged, swapped_bytes: footprint - charged, ..GroupUsage::default() }
    }

    fn settle(budget: &mut Budget, footprint: u64) -> u64 {
        for _ in 0..200 {
            let usage = sample(budget, footprint);
            budget.observe(&usage);
        }
        budget.limit_bytes().unwrap()
    }

    fn percent(percent: f64) -> Budget {
        Budget::new(LocalBudget::Percent(percent))
    }

    #[test]
    fn a_share_follows_a_growing_and_a_shrinking_footprint() {
        let mut budget = percent(25.0);
        assert_eq!(budget.limit_bytes(), Some(limits::BUDGET_FLOOR_BYTES));
        for footprint in [100, 400, 1000, 200, 800, 64] {
            let limit = settle(&mut budget, footprint * MIB);
            let wanted = (footprint * MIB / 4).max(limits::BUDGET_FLOOR_BYTES);
            assert!(limit.abs_diff(wanted) <= wanted / 32, "{footprint} MiB: {limit} instead of {wanted}");
        }
    }

    #[test]
    fn an_automatic_budget_follows_stalls() {
        let mut budget = Budget::automatic(0.05, 16 * MIB, 8192 * MIB);
        let mut stalled_us = 0;
        for look in 0..30_000 {
            let now = Duration::from_millis(look * 5);
            // Half of its memory is idle.
            let usage = GroupUsage { stalled_us: Some(stalled_us), ..sample(&budget, 1000 * MIB) };
            stalled_us += if usage.charged_bytes < 500 * MIB { 4000 } else { 0 };
            budget.steer(now, &usage);
            budget.observe(&usage);
        }
        let limit = budget.limit_bytes().unwrap() / MIB;
        assert!((500..640).contains(&limit), "{limit} MiB");
        // Without a word of stalls it stays.
        budget.steer(Duration::from_secs(1000), &sample(&budget, 1000 * MIB));
        assert_eq!(budget.limit_bytes().unwrap() / MIB, limit);
    }

    #[test]
    fn page_tables_are_followed_like_locked_memory() {
        let mut budget = Budget::new("32M".parse().unwrap());
        let usage = GroupUsage { charged_bytes: 32 * MIB, kernel_bytes: 7 * MIB, ..GroupUsage::default() };
        assert_eq!(budget.observe(&usage), None, "every program has some");
        let usage = GroupUsage { kernel_bytes: 30 * MIB, ..usage };
        assert!(budget.observe(&usage).is_some_and(|limit| limit >= (30 + 8) * MIB));
        assert_eq!(budget.relief_bytes(), 0);
    }

    #[test]
    fn what_cannot_leave_gets_room_and_gives_it_back() {
        let mut budget = Budget::new("32M".parse().unwrap());
        // Nothing of 96 MiB can leave, and the kernel has no number for it.
        let mut looks = 0;
        while budget.limit_bytes().unwrap() < 96 * MIB {
            let usage =
                GroupUsage { charged_bytes: budget.limit_bytes().unwrap(), is_stalled: true, ..GroupUsage::default() };
            assert!(budget.observe(&usage).is_some_and(|limit| limit > usage.charged_bytes), "each look brings more");
            looks += 1;
        }
        assert!(looks < 20 && budget.relief_bytes() >= 64 * MIB);
        for _ in 0..2000 {
            let usage = GroupUsage { charged_bytes: 32 * MIB, ..GroupUsage::default() };
            budget.observe(&usage);
        }
        assert_eq!(budget.relief_bytes(), 0);
        assert!(budget.limit_bytes().unwrap() <= 33 * MIB);
    }

    #[test]
    fn growth_is_followed_at_once_and_shrinking_in_steps() {
        let mut budget = percent(50.0);
        let usage = sample(&budget, 1000 * MIB);
        assert_eq!(budget.observe(&usage), Some(500 * MIB));
        let usage = sample(&budget, 100 * MIB);
        assert_eq!(budget.observe(&usage), Some(500 * MIB - 500 * MIB / SHRINK_DIVISOR));
    }

    #[test]
    fn a_steady_footprint_changes_nothing() {
        let mut budget = percent(50.0);
        settle(&mut budget, 512 * MIB);
        let usage = sample(&budget, 513 * MIB);
        assert_eq!(budget.observe(&usage), None);
    }

    #[test]
    fn cached_files_earn_no_budget() {
        let mut budget = percent(50.0);
        let usage = GroupUsage { charged_bytes: 600 * MIB, file_bytes: 500 * MIB, ..GroupUsage::default() };
        assert_eq!(budget.observe(&usage), Some(50 * MIB));
    }

    #[test]
    fn locked_memory_always_fits() {
        let usage = GroupUsage { charged_bytes: 200 * MIB, locked_bytes: 160 * MIB, ..GroupUsage::default() };
        for mut budget in [percent(25.0), Budget::new("32M".parse().unwrap())] {
            let limit = budget.observe(&usage).unwrap();
            assert!(limit > 160 * MIB + limits::BUDGET_FLOOR_BYTES);
        }
    }

    #[test]
    fn a_fixed_budget_stays_and_is_never_below_the_floor() {
        let mut budget = Budget::new("64M".parse().unwrap());
        for footprint in [1, 50, 5000] {
            assert_eq!(settle(&mut budget, footprint * MIB), 64 * MIB);
        }
        assert_eq!(Budget::new("1M".parse().unwrap()).limit_bytes(), Some(limits::BUDGET_FLOOR_BYTES));
    }

    #[test]
    fn everything_local_means_no_limit() {
        let mut budget = percent(100.0);
        let usage = sample(&budget, 1000 * MIB);
        assert_eq!((budget.limit_bytes(), budget.observe(&usage)), (None, None));
        assert_eq!(budget.interval(&usage, interval_at_limit), limits::BUDGET_INTERVAL);
    }

    #[test]
    fn the_kernel_is_watched_closely_at_the_limit_only() {
        let mut budget = percent(50.0);
        settle(&mut budget, 400 * MIB);
        let at_limit = sample(&budget, 400 * MIB);
        assert_eq!(budget.interval(&at_limit, interval_at_limit), limits::BUDGET_INTERVAL_AT_LIMIT_MAX);
        let stalled = GroupUsage { is_stalled: true, ..at_limit };
        assert_eq!(
            budget.interval(&stalled, interval_at_limit),
            limits::BUDGET_INTERVAL_AT_LIMIT,
            "it waits for the next look"
        );
        assert_eq!(budget.interval(&sample(&budget, 100 * MIB), interval_at_limit), limits::BUDGET_INTERVAL);
    }

    #[test]
    fn small_groups_are_watched_most_closely() {
        let milliseconds = |limit: u64| interval_at_limit(limit).as_millis();
        assert_eq!([0, 8, 31, 64, 160, 1 << 20].map(|mib| milliseconds(mib * MIB)), [1, 1, 1, 4, 10, 10]);
    }
}
