//! Whether programs fill memory that is not registered, of which only counting tells.
//!
//! At the budget all that programs had at the last whole look is registered, and every page of it that comes is known
//! when it comes. So most programs there are calm for long, and counting them each millisecond takes more of a CPU
//! than all that the counts find (docs/decisions/pager-survey.md).

use std::time::{Duration, Instant};

use spillway_fabric::units::PAGE_SIZE_BYTES;

use crate::limits::{CALM_SHARE, GROWING, GROWTH_BYTES_PER_SECOND, GROWTH_PAGES, LOOK_INTERVAL_MAX, LOOK_INTERVAL_MIN};

/// How long programs can grow at full speed until `room_pages` are used up: the time until the next look at them.
pub(super) fn interval(room_pages: i64) -> Duration {
    let bytes = room_pages.max(0).unsigned_abs() * PAGE_SIZE_BYTES as u64;
    Duration::from_secs_f64(bytes as f64 / GROWTH_BYTES_PER_SECOND as f64).clamp(LOOK_INTERVAL_MIN, LOOK_INTERVAL_MAX)
}

/// When programs last grew.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Growth {
    grew_at: Option<Instant>,
}

impl Growth {
    /// Programs have `counted_pages`; by what came and left since the last look it should be `expected_pages`.
    pub(super) fn counted(&mut self, counted_pages: i64, expected_pages: i64, now: Instant) {
        if counted_pages - expected_pages > GROWTH_PAGES {
            self.grew_at = Some(now);
        }
    }

    /// The shortest time until the next look: longer while programs are calm, as it takes them at full speed to pass
    /// the budget by a part of it ([`CALM_SHARE`]).
    pub(super) fn interval_min(self, limit_pages: i64, now: Instant) -> Duration {
        let is_growing = self.grew_at.is_some_and(|at| now.saturating_duration_since(at) < GROWING);
        if is_growing { LOOK_INTERVAL_MIN } else { interval(limit_pages / CALM_SHARE) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A budget in pages, of which calm programs are looked at some milliseconds apart.
    const LIMIT_PAGES: i64 = (256 << 20) / PAGE_SIZE_BYTES as i64;

    #[test]
    fn programs_are_looked_at_more_often_when_little_room_is_left() {
        assert_eq!(interval(-5), LOOK_INTERVAL_MIN);
        assert_eq!(interval(i64::from(u32::MAX)), LOOK_INTERVAL_MAX);
        let pages = i64::try_from(GROWTH_BYTES_PER_SECOND / PAGE_SIZE_BYTES as u64 / 100).unwrap();
        assert!((interval(pages).as_secs_f64() - 0.01).abs() < 0.001);
    }

    #[test]
    fn programs_that_grew_are_looked_at_often_for_a_while() {
        let now = Instant::now();
        let mut growth = Growth::default();
        let calm = growth.interval_min(LIMIT_PAGES, now);
        assert!(calm > LOOK_INTERVAL_MIN * 2, "{calm:?}");
        growth.counted(100 + GROWTH_PAGES, 100, now);
        assert_eq!(growth.interval_min(LIMIT_PAGES, now), calm, "what may have been in flight");
        growth.counted(101 + GROWTH_PAGES, 100, now);
        assert_eq!(growth.interval_min(LIMIT_PAGES, now), LOOK_INTERVAL_MIN);
        growth.counted(100, 5000, now + GROWING / 2);
        assert_eq!(growth.interval_min(LIMIT_PAGES, now + GROWING / 2), LOOK_INTERVAL_MIN);
        assert_eq!(growth.interval_min(LIMIT_PAGES, now + GROWING), calm);
    }

    #[test]
    fn a_small_budget_has_no_calm() {
        let small = (16 << 20) / PAGE_SIZE_BYTES as i64;
        assert_eq!(Growth::default().interval_min(small, Instant::now()), LOOK_INTERVAL_MIN);
    }
}
