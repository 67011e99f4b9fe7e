//! Programs that are held for a moment.
//!
//! - One all of whose threads change mappings without a pause: the kernel lets nothing of it be registered or moved
//!   while any of them is in the middle of a change, and with more threads than CPUs one nearly always is. That it is
//!   so is seen by what does not happen: the budget is exceeded, nothing leaves, and the program is changing its
//!   mappings.
//! - One that fills memory which is not registered yet, such as a new mapping for each block: no fault of its waits
//!   for the budget (rule 15), and on a busy machine the survey gets its next turn when much has come. So programs
//!   are held once the budget is exceeded by more than a part of what is allowed ([`Budget::wants_hold`]).
//!
//! Their threads are held until what is too much has left, by the tracer that starts evictors
//! (`spillway_sys::tracee`). What they are in the middle of they end, as the fault threads go on reading what they
//! tell. The survey looks at everything else meanwhile.

use std::sync::Arc;
use std::time::{Duration, Instant};

use spillway_sys::tracee::{Pause, TraceError};

use crate::address_space::AddressSpace;
#[cfg(doc)]
use crate::budget::Budget;
use crate::evict::take_over::thread_of_evictor;
use crate::limits::{
    HELD_SHARE, HOLD_IDLE_MAX, HOLD_MAX, PAUSE_FAILED_PAUSE, PAUSE_STOP_MAX, RESTLESS_PAGES_MAX, RESTLESS_PATIENCE,
    RESTLESS_SHARE,
};
use crate::page_table::page_indexes::SpaceId;
use crate::pager_state::PagerState;
use crate::process::proc_files::has_ended;
use crate::process::{Survey, TrackedProcess, alert_pages};

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

/// A program whose threads are held.
pub(super) struct Hold {
    pause: Pause,
    space: Arc<AddressSpace>,
    began: Instant,
    /// What was to leave then, and what had left.
    excess_pages: i64,
    out_before: u64,
    /// When pages were last seen to leave, and how many had left by then.
    left: (Instant, u64),
}

impl Hold {
    pub(super) fn space(&self) -> SpaceId {
        self.space.id
    }

    pub(super) fn pause(&mut self) -> &mut Pause {
        &mut self.pause
    }

    /// Whether the program goes on, and if so whether that it was held has helped: enough has left, or it was held for
    /// long. It has not helped if nothing can leave.
    fn is_over(
        &mut self,
        shared: &PagerState,
        (is_evictor_coming, may_come): (bool, bool),
        now: Instant,
    ) -> Option<bool> {
        let (out, budget) = (pages_out(shared), &shared.budget);
        if out != self.left.1 {
            self.left = (now, out);
        }
        // Signals of its threads are passed on by the look at them.
        let has_stopped = self.pause.is_complete();
        let is_idle = has_stopped && now.saturating_duration_since(self.left.0) >= HOLD_IDLE_MAX;
        let can_leave = is_evictor_coming || may_come || !budget.is_stuck();
        if is_idle && (!can_leave || now.saturating_duration_since(self.began) >= HOLD_MAX) {
            return Some(!is_little(out - self.out_before, self.excess_pages));
        }
        // One whose evictor comes could only fill more meanwhile.
        let is_enough = !is_evictor_coming && budget.resident_pages() <= budget.high_pages();
        (is_enough || self.space.is_gone() || now.saturating_duration_since(self.began) >= HOLD_MAX).then_some(true)
    }
}

impl Survey {
    /// Lets programs go on that were held for long enough, and holds those that need it.
    pub(super) fn hold_programs(&mut self, now: Instant) {
        self.end_holds(now);
        let budget = &self.shared.budget;
        let excess_pages = budget.resident_pages() - budget.limit_pages();
        let is_restless = self.restless.is_over(excess_pages, pages_out(&self.shared), now);
        // To start an evictor takes several turns of a busy machine's scheduler, in which programs fill memory. Within
        // the budget that is worth a stop once.
        let is_starting =
            |tracked: &TrackedProcess| tracked.is_without_evictor() && (excess_pages > 0 || tracked.threads_tried == 0);
        let has_little_room = budget.resident_pages() > budget.high_pages() - alert_pages(budget);
        let is_over = budget.wants_hold() || has_little_room && self.tracked.iter().any(is_starting);
        if !is_restless && !is_over {
            return;
        }
        let least_pages = budget.limit_pages() / HELD_SHARE;
        let may_be_held = |tracked: &TrackedProcess| {
            let is_meant = if is_over { tracked.pages > least_pages } else { is_changing(&tracked.space) };
            is_meant && self.may_be_paused(tracked, now)
        };
        let meant: Vec<usize> = (0..self.tracked.len()).filter(|index| may_be_held(&self.tracked[*index])).collect();
        meant.into_iter().for_each(|index| self.hold(index, excess_pages, is_restless, now));
    }

    fn hold(&mut self, index: usize, excess_pages: i64, is_restless: bool, now: Instant) {
        let tracked = &mut self.tracked[index];
        let Some(process) = &tracked.process else { return };
        let (space, process) = (Arc::clone(&tracked.space), process.number());
        let Some(evictor) = spared(tracked, process) else { return };
        let places = tracked.places;
        self.restless = Restless::default();
        // It may have become another program, which is none of this run's business.
        let mut is_ours = |thread| self.proof.is_memory_of(&places, thread);
        // Not from when the look began, which may be long ago on a busy machine.
        match Pause::begin(process, evictor, &mut is_ours, Instant::now() + PAUSE_STOP_MAX) {
            Ok(pause) => {
                self.shared.counters.pauses.add(1);
                let out_before = pages_out(&self.shared);
                let left = (now, out_before);
                self.holds.push(Hold { pause, space, began: now, excess_pages, out_before, left });
            }
            Err(TraceError::Gone | TraceError::Another) => {}
            Err(_) if has_ended(process) => {}
            Err(error) => {
                tracked.respite.has_failed(now);
                if is_restless {
                    let text = "changes its mappings without a pause, so that its pages stay, and cannot be given one";
                    self.shared.fail(format!("process {process} {text}: {error}"));
                }
            }
        }
    }

    /// Programs that are still held have what they filled last registered, so that it may leave.
    fn end_holds(&mut self, now: Instant) {
        let mut holds = std::mem::take(&mut self.holds);
        holds.retain_mut(|hold| {
            let mut tracked = self.tracked.iter_mut().find(|tracked| tracked.space.id == hold.space.id);
            let evictor = tracked.as_ref().map(|tracked| (tracked.is_evictor_coming(), tracked.is_without_evictor()));
            let Some(has_helped) = hold.is_over(&self.shared, evictor.unwrap_or_default(), now) else { return true };
            if let Some(tracked) = &mut tracked {
                tracked.respite.was_held(has_helped, now);
            }
            false
        });
        for hold in &mut holds {
            self.follow_threads(hold);
            self.register_at_once(&hold.space);
        }
        self.holds = holds;
    }

    /// Threads that began, or came out of a call, since the program is held are held too.
    fn follow_threads(&self, hold: &mut Hold) {
        let tracked = self.tracked.iter().find(|tracked| tracked.space.id == hold.space.id);
        let Some((tracked, process)) = tracked.and_then(|tracked| Some((tracked, tracked.process.as_ref()?))) else {
            return;
        };
        let Some(evictor) = spared(tracked, process.number()) else { return };
        let mut is_ours = |thread| self.proof.is_memory_of(&tracked.places, thread);
        // Without success they go on as before.
        let _ = hold.pause.follow(evictor, &mut is_ours, Instant::now() + PAUSE_STOP_MAX);
    }

    /// Whether it is not held, and an evictor of its could take pages out, now or soon.
    fn may_be_paused(&self, tracked: &TrackedProcess, now: Instant) -> bool {
        let space = &tracked.space;
        tracked.respite.is_due(now)
            && tracked.whole.is_none()
            && tracked.process.is_some()
            && (tracked.has_evictor() || tracked.is_evictor_coming() || tracked.is_without_evictor())
            && !space.is_gone()
            && !space.is_held()
            && self.holds.iter().all(|hold| hold.space.id != space.id)
    }
}

/// The evictor among the threads of a program, which is not held; 0 if it was not started. `None`: it was, a moment
/// ago, and has no name yet.
fn spared(tracked: &TrackedProcess, process: u32) -> Option<u32> {
    thread_of_evictor(process).or_else(|| (tracked.attempt == 0).then_some(0))
}

fn is_changing(space: &AddressSpace) -> bool {
    !space.lock().mapping_events.is_empty() || space.memory.is_changing()
}

fn pages_out(shared: &PagerState) -> u64 {
    let counters = &shared.counters;
    counters.pages_out_clean.get() + counters.pages_out_dirty.get() + counters.pages_out_zero.get()
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
    fn a_process_that_is_held_without_gain_is_held_ever_less_often() {
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
