//! A program all of whose threads change mappings without a pause is given one: the kernel lets nothing of it be registered or moved while any of them is in
//! the middle of a change, and with more threads than CPUs one nearly always is.
//!
//! That it is so is seen by what does not happen: the budget is exceeded, nothing leaves, and a program is changing its mappings. Then its threads are
//! held for as long as it takes to take out what is too much, by the tracer that starts agents (`spillway_sys::tracee`). What they are in the middle of they end, as
//! the fault threads go on reading what they tell.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::sleep;
use std::time::{Duration, Instant};

use spillway_sys::tracee::{Pause, TraceError};

use super::{Resident, Survey};
use crate::pager::limits::{
    PAUSE_FAILED_PAUSE, PAUSE_LOOK_INTERVAL, PAUSE_MAX, PAUSE_STOP_MAX, RESTLESS_PATIENCE, RESTLESS_SHARE,
};
use crate::pager::process::has_ended;
use crate::pager::shared::{Shared, Tenant};

/// Since when next to nothing has left though something should, and how many pages had left by then.
#[derive(Debug, Default)]
pub(super) struct Restless(Option<(Instant, u64)>);

impl Restless {
    /// Whether that has lasted for [`RESTLESS_PATIENCE`]: `pages_out` have left by `now`, and `excess_pages` should leave.
    fn is_over(&mut self, excess_pages: i64, pages_out: u64, now: Instant) -> bool {
        let (since, then) = *self.0.get_or_insert((now, pages_out));
        let has_left = (pages_out - then) * RESTLESS_SHARE >= excess_pages.max(0).unsigned_abs();
        if has_left {
            self.0 = Some((now, pages_out));
        }
        !has_left && now.saturating_duration_since(since) >= RESTLESS_PATIENCE
    }
}

impl Survey {
    /// Gives the largest program a pause that needs one, if any does.
    pub(super) fn make_pause(&mut self, now: Instant) {
        let (budget, counters) = (&self.shared.budget, &self.shared.counters);
        let excess_pages = budget.resident_pages() - budget.limit_pages();
        let pages_out = counters.pages_out_clean.get() + counters.pages_out_dirty.get();
        if !self.restless.is_over(excess_pages, pages_out, now) {
            return;
        }
        let restless = self.residents.iter_mut().filter(|resident| may_be_paused(resident, now));
        let Some(resident) = restless.max_by_key(|resident| resident.pages) else { return };
        let (tenant, Some(process)) = (Arc::clone(&resident.tenant), &resident.process) else { return };
        let process = process.number();
        self.restless = Restless::default();
        match Pause::begin(process, tenant.agent_thread.load(Ordering::Relaxed)) {
            Ok(pause) => self.use_pause(&pause, &tenant),
            Err(TraceError::Gone) => {}
            Err(_) if has_ended(process) => {}
            Err(error) => {
                resident.pause_at = now + PAUSE_FAILED_PAUSE;
                let text = "changes its mappings without a pause, so that its pages stay, and cannot be given one";
                self.shared.fail(format!("process {process} {text}: {error}"));
            }
        }
    }

    fn use_pause(&mut self, pause: &Pause, tenant: &Tenant) {
        self.shared.counters.pauses.add(1);
        look_until(PAUSE_STOP_MAX, || pause.is_complete() && !tenant.memory.is_changing());
        let deadline = Instant::now() + PAUSE_MAX;
        let is_enough =
            |shared: &Shared| shared.budget.resident_pages() <= shared.budget.low_pages() || tenant.is_gone();
        while !is_enough(&self.shared) && Instant::now() < deadline {
            // What was told last may not be settled yet at first.
            for resident in self.residents.iter_mut().filter(|resident| resident.tenant.id == tenant.id) {
                resident.registered_at = None;
            }
            self.register_all(Instant::now());
            self.shared.call_eviction();
            look_until(PAUSE_STOP_MAX, || is_enough(&self.shared));
        }
    }
}

fn may_be_paused(resident: &Resident, now: Instant) -> bool {
    let tenant = &resident.tenant;
    let is_changing = || !tenant.lock().unsettled.is_empty() || tenant.memory.is_changing();
    resident.pause_at <= now && resident.process.is_some() && !tenant.is_gone() && !tenant.is_held() && is_changing()
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
}
