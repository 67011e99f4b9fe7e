//! A program all of whose threads change mappings without a pause is given one: the kernel lets nothing of it be
//! registered or moved while any of them is in the middle of a change, and with more threads than CPUs one nearly
//! always is.
//!
//! That it is so is seen by what does not happen: the budget is exceeded, nothing leaves, and a program is changing
//! its mappings. Then its threads are held for as long as it takes to take out what is too much, by the tracer that
//! starts evictors (`spillway_sys::tracee`). What they are in the middle of they end, as the fault threads go on
//! reading what they tell.

use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use spillway_stub::protocol::EvictorState;
use spillway_sys::tracee::{Pause, TraceError};

use crate::address_space::AddressSpace;
use crate::limits::{
    PAUSE_FAILED_PAUSE, PAUSE_LOOK_INTERVAL, PAUSE_MAX, PAUSE_STOP_MAX, RESTLESS_PAGES_MAX, RESTLESS_PATIENCE,
    RESTLESS_SHARE,
};
use crate::pager_state::PagerState;
use crate::process::proc_files::has_ended;
use crate::process::{Survey, TrackedProcess};

/// Whether `pages` are next to nothing where `excess_pages` should leave.
fn is_little(pages: u64, excess_pages: i64) -> bool {
    pages < excess_pages.max(0).unsigned_abs().div_ceil(RESTLESS_SHARE).min(RESTLESS_PAGES_MAX)
}

/// Since when next to nothing has left though something should, and how many pages had left by then.
#[derive(Debug, Default)]
pub(super) struct Restless(Option<(Instant, u64)>);

impl Restless {
    /// Whether that has lasted for [`RESTLESS_PATIENCE`]: `pages_out` have left by `now`, and `excess_pages` should
    /// leave.
    fn is_over(&mut self, excess_pages: i64, pages_out: u64, now: Instant) -> bool {
        let (since, then) = *self.0.get_or_insert((now, pages_out));
        let is_little = is_little(pages_out - then, excess_pages);
        if !is_little {
            self.0 = Some((now, pages_out));
        }
        is_little && now.saturating_duration_since(since) >= RESTLESS_PATIENCE
    }
}

/// When a program may be held: one that it did not help waits twice as long each time, since something else keeps its
/// pages (no donor has room, say).
#[derive(Clone, Copy, Debug)]
pub(super) struct Respite {
    due_at: Instant,
    pause: Duration,
}

impl Respite {
    pub(super) fn new(now: Instant) -> Self {
        Self { due_at: now, pause: RESTLESS_PATIENCE }
    }

    fn is_due(&self, now: Instant) -> bool {
        self.due_at <= now
    }

    fn was_held(&mut self, has_helped: bool, now: Instant) {
        if has_helped {
            *self = Self::new(now);
        } else {
            self.pause = (self.pause * 2).min(PAUSE_FAILED_PAUSE);
            self.due_at = now + self.pause;
        }
    }

    fn has_failed(&mut self, now: Instant) {
        self.due_at = now + PAUSE_FAILED_PAUSE;
    }
}

impl Survey {
    /// Gives the largest program a pause that needs one, if any does.
    pub(super) fn make_pause(&mut self, now: Instant) {
        let budget = &self.shared.budget;
        let excess_pages = budget.resident_pages() - budget.limit_pages();
        if !self.restless.is_over(excess_pages, pages_out(&self.shared), now) {
            return;
        }
        let restless = self.tracked.iter().enumerate().filter(|(_, tracked)| self.may_be_paused(tracked, now));
        let Some((index, _)) = restless.max_by_key(|(_, tracked)| tracked.pages) else { return };
        let tracked = &mut self.tracked[index];
        let (Some(process), Some(seat)) = (&tracked.process, &tracked.seat) else { return };
        let (space, process) = (Arc::clone(&tracked.space), process.number());
        let places = tracked.places;
        self.restless = Restless::default();
        // It may have become another program, which is none of this run's business.
        let mut is_ours = |thread| self.proof.is_memory_of(&places, thread);
        match Pause::begin(process, seat.evictor_thread(), &mut is_ours, now + PAUSE_STOP_MAX) {
            Ok(pause) => {
                let has_helped = self.use_pause(&pause, &space, excess_pages);
                drop(pause);
                self.tracked[index].respite.was_held(has_helped, Instant::now());
            }
            Err(TraceError::Gone | TraceError::Another) => {}
            Err(_) if has_ended(process) => {}
            Err(error) => {
                tracked.respite.has_failed(now);
                let text = "changes its mappings without a pause, so that its pages stay, and cannot be given one";
                self.shared.fail(format!("process {process} {text}: {error}"));
            }
        }
    }

    /// Whether an evictor of its could take pages out, but for its changes.
    fn may_be_paused(&self, tracked: &TrackedProcess, now: Instant) -> bool {
        let (space, Some(seat)) = (&tracked.space, &tracked.seat) else { return false };
        let is_changing = || !space.lock().mapping_events.is_empty() || space.memory.is_changing();
        tracked.respite.is_due(now)
            && tracked.whole.is_none()
            && tracked.process.is_some()
            && seat.state() == EvictorState::Running
            && !space.is_gone()
            && !space.is_held()
            && is_changing()
    }

    /// Takes out what is too much while its threads are held, as long as something leaves. Whether it helped.
    fn use_pause(&mut self, pause: &Pause, space: &AddressSpace, excess_pages: i64) -> bool {
        self.shared.counters.pauses.add(1);
        let (before, deadline) = (pages_out(&self.shared), Instant::now() + PAUSE_MAX);
        look_until(PAUSE_STOP_MAX, || pause.is_complete() && !space.memory.is_changing());
        let is_enough =
            |shared: &PagerState| shared.budget.resident_pages() <= shared.budget.low_pages() || space.is_gone();
        let mut step_before = None;
        while !is_enough(&self.shared) && Instant::now() < deadline && step_before != Some(pages_out(&self.shared)) {
            step_before = Some(pages_out(&self.shared));
            self.register_at_once(space);
            self.shared.call_eviction();
            look_until(PAUSE_STOP_MAX, || is_enough(&self.shared));
        }
        !is_little(pages_out(&self.shared) - before, excess_pages)
    }
}

fn pages_out(shared: &PagerState) -> u64 {
    let counters = &shared.counters;
    counters.pages_out_clean.get() + counters.pages_out_dirty.get() + counters.pages_out_zero.get()
}

fn look_until(patience: Duration, is_over: impl Fn() -> bool) {
    let deadline = Instant::now() + patience;
    while !is_over() && Instant::now() < deadline {
        sleep(PAUSE_LOOK_INTERVAL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_is_due_when_next_to_nothing_has_left_for_a_while() {
        let (start, mut restless) = (Instant::now(), Restless::default());
        let share = RESTLESS_SHARE;
        assert!(!restless.is_over(80, 5, start), "from now on");
        let later = start + RESTLESS_PATIENCE;
        assert!(!restless.is_over(80, 5, later - Duration::from_millis(1)));
        assert!(restless.is_over(80, 5, later) && restless.is_over(80, 5, later), "until one is made");
        assert!(restless.is_over(80, 5 + 80 / share - 1, later), "too little left");
        assert!(!restless.is_over(80, 5 + 80 / share, later), "enough left");
        assert!(!restless.is_over(80, 5 + 80 / share, later + RESTLESS_PATIENCE / 2), "once more from then on");
        assert!(!restless.is_over(0, 5 + 80 / share, later + 2 * RESTLESS_PATIENCE), "nothing is too much");
        assert!(!restless.is_over(80, 5 + 80 / share, later + 2 * RESTLESS_PATIENCE));
    }

    #[test]
    fn eviction_at_work_is_not_next_to_nothing_however_much_should_leave() {
        assert!(is_little(RESTLESS_PAGES_MAX - 1, i64::MAX) && !is_little(RESTLESS_PAGES_MAX, i64::MAX));
        assert!(is_little(0, 1) && !is_little(1, 1) && !is_little(0, 0) && !is_little(0, -5));
    }

    #[test]
    fn who_is_held_in_vain_is_held_ever_less_often() {
        let start = Instant::now();
        let (mut now, mut respite) = (start, Respite::new(start));
        assert!(respite.is_due(now));
        for doublings in 1..20 {
            respite.was_held(false, now);
            let pause = (RESTLESS_PATIENCE * (1 << doublings)).min(PAUSE_FAILED_PAUSE);
            assert!(!respite.is_due(now + pause - Duration::from_millis(1)) && respite.is_due(now + pause));
            now += pause;
        }
        assert!(now - start > 10 * PAUSE_FAILED_PAUSE);
        respite.was_held(true, now);
        assert!(respite.is_due(now), "it helped");
        respite.was_held(false, now);
        assert!(respite.is_due(now + 2 * RESTLESS_PATIENCE), "from the beginning");
        respite.has_failed(now);
        assert!(!respite.is_due(now + PAUSE_FAILED_PAUSE / 2));
    }
}
