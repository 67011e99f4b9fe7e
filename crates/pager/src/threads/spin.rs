//! Whether a thread looks again for what it waits for, or sleeps.
//!
//! A program that misses pages one after the other pays for waking the fault thread at each of them: the switch, and
//! on a CPU that has nothing else to do its way out of idleness. So that thread looks for a while, if the last fault
//! came soon after the one before. A program that misses a page now and then costs nothing.
//!
//! No thread looks on a CPU that others want. Each look offers the CPU (`sched_yield`), and if another thread takes
//! it, the looking thread sleeps instead. If the other thread took a whole turn, the CPU is not offered again for a
//! while: a thread that sleeps is woken when there is something to do, but one that offered its CPU waits for the
//! other's turn to end. The pager's own threads take it for less.

use std::time::{Duration, Instant};

use spillway_block::service::Waiting;

use crate::limits::{COMPANY_PAUSE, COMPANY_TURN, FAULT_SPIN, IDLE_INTERVAL, LOOKS_MAX, RETRY_INTERVAL, YIELD_QUICK};

/// Whether faults come one after the other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spin {
    worked_at: Instant,
    pays: bool,
}

impl Spin {
    /// Of a thread that has had nothing to do yet.
    pub(crate) fn new(now: Instant) -> Self {
        Self { worked_at: now, pays: false }
    }

    /// There was something to do.
    pub(crate) fn worked(&mut self, now: Instant) {
        self.pays = self.since(now) < FAULT_SPIN;
        self.worked_at = now;
    }

    /// Whether to look again.
    pub(crate) fn goes_on(&self, now: Instant) -> bool {
        self.pays && self.since(now) < FAULT_SPIN
    }

    fn since(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.worked_at)
    }
}

/// Which other threads want this thread's CPU.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Company {
    lost_at: Option<Instant>,
}

impl Company {
    /// Offers the CPU, unless that cost a turn a moment ago. Whether no thread wants it; it was `start` a microsecond
    /// ago at most, and `now` is how late it is.
    pub(crate) fn is_alone(&mut self, start: Instant, now: impl Fn() -> Instant, offer: impl FnOnce()) -> bool {
        if self.lost_at.is_some_and(|at| start.saturating_duration_since(at) < COMPANY_PAUSE) {
            return false;
        }
        offer();
        let end = now();
        let taken = end.saturating_duration_since(start);
        self.lost_at = (taken >= COMPANY_TURN).then_some(end);
        taken < YIELD_QUICK
    }
}

/// What the eviction thread does before it looks again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pause {
    /// Nothing.
    None,
    /// It sleeps until an evictor is done.
    Evictor,
    /// It sleeps until something happens, at most so long.
    Sleep(Duration),
}

/// Which pauses the eviction thread makes.
///
/// While an evictor works it looks, as long as no thread wants its CPU: the evictor may need this very one. What it
/// looks for may also be its own engine, which goes on when it is asked again (over shared memory) and by no thread
/// else's work: then it never sleeps because others want its CPU, or that would be idle once they are done.
#[derive(Debug, Default)]
pub(crate) struct EvictionPauses {
    looks: u32,
    company: Company,
}

impl EvictionPauses {
    /// The thread has another CPU now.
    pub(crate) fn moved(&mut self) {
        self.company = Company::default();
    }

    /// The next one, after a turn that ended with `waiting`; the CPU is offered and the time asked for as in
    /// [`Company::is_alone`].
    pub(crate) fn next(
        &mut self,
        waiting: Waiting,
        is_evictor_at_work: bool,
        now: impl Fn() -> Instant,
        offer: impl FnOnce(),
    ) -> Pause {
        let goes_on = waiting == Waiting::Poll && self.looks < LOOKS_MAX;
        if goes_on && (self.company.is_alone(now(), now, offer) || !is_evictor_at_work) {
            self.looks += 1;
            return Pause::None;
        }
        self.looks = 0;
        match waiting {
            Waiting::Poll if is_evictor_at_work => Pause::Evictor,
            Waiting::Poll | Waiting::Retry => Pause::Sleep(RETRY_INTERVAL),
            Waiting::Nothing | Waiting::Event => Pause::Sleep(IDLE_INTERVAL),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn it_looks_while_faults_come_one_after_the_other() {
        let begin = Instant::now();
        let mut spin = Spin::new(begin);
        assert!(!spin.goes_on(begin), "before the first fault");
        let first = begin + 10 * FAULT_SPIN;
        spin.worked(first);
        assert!(!spin.goes_on(first), "that was a fault alone");
        spin.worked(first + FAULT_SPIN / 2);
        assert!(spin.goes_on(first + FAULT_SPIN));
        assert!(!spin.goes_on(first + 2 * FAULT_SPIN), "not for ever");
        spin.worked(first + 3 * FAULT_SPIN);
        assert!(!spin.goes_on(first + 3 * FAULT_SPIN), "the next one came late");
    }

    #[test]
    fn a_thread_with_company_does_not_offer_the_cpu_again_at_once() {
        let time = Cell::new(Instant::now());
        let now = || time.get();
        let pass = |duration| time.set(time.get() + duration);
        let mut company = Company::default();
        assert!(company.is_alone(now(), now, || pass(YIELD_QUICK / 5)));
        assert!(!company.is_alone(now(), now, || pass(COMPANY_TURN / 2)), "somebody took it");
        assert!(company.is_alone(now(), now, || ()), "for a moment");
        assert!(!company.is_alone(now(), now, || pass(COMPANY_TURN)), "somebody took it");
        assert!(!company.is_alone(now(), now, || panic!("no second offer")));
        pass(COMPANY_PAUSE);
        assert!(company.is_alone(now(), now, || ()), "he may be gone");
    }

    #[test]
    fn the_eviction_thread_sleeps_for_an_evictor_and_not_for_its_own_engine() {
        let begin = Instant::now();
        let time = Cell::new(begin);
        let now = || time.get();
        let lose = || time.set(time.get() + COMPANY_TURN);
        let mut pauses = EvictionPauses::default();
        assert_eq!(pauses.next(Waiting::Poll, true, now, || ()), Pause::None, "nobody wants the CPU");
        assert_eq!(pauses.next(Waiting::Poll, true, now, lose), Pause::Evictor, "somebody took it for a turn");
        assert_eq!(pauses.next(Waiting::Poll, true, now, || panic!("no second offer")), Pause::Evictor);
        // Others may want the CPU, but no other thread moves what it waits for.
        for _ in 0..LOOKS_MAX {
            assert_eq!(pauses.next(Waiting::Poll, false, now, || panic!("no second offer")), Pause::None);
        }
        assert_eq!(pauses.next(Waiting::Poll, false, now, || ()), Pause::Sleep(RETRY_INTERVAL), "not for ever");
        assert_eq!(pauses.next(Waiting::Poll, false, now, || ()), Pause::None, "and then again");
        for waiting in [Waiting::Nothing, Waiting::Event, Waiting::Retry] {
            assert!(matches!(pauses.next(waiting, false, now, || panic!("no offer")), Pause::Sleep(_)));
        }
    }
}
