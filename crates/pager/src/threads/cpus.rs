//! Which CPUs the eviction thread and an evictor run on: not on the same one, as long as another one is free.
//!
//! The two work at the same time: one takes pages out while the other writes those before. But a sleeping thread is
//! woken by the other, and the scheduler may put it on the waker's CPU though another one is idle
//! (docs/decisions/pager-eviction.md). Then both take turns on one. So if that was so for some batches, the eviction
//! thread leaves that CPU, and neither may run where the other was then.
//!
//! All of that is undone when nothing has left for a while, and when one of them has to wait for a CPU: then others
//! want it, and it is not tried again soon. Where the kernel does not tell how long threads wait ([`ThreadTimes`])
//! nothing is done. Nothing of the program's own is bound.
//!
//! [`Apart`] decides, without I/O; [`Placement`] does it.

use spillway_sys::lease::read_unless_leased;
use std::ffi::CStr;
use std::time::{Duration, Instant};

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
use spillway_stub::protocol::EVICTOR_NAME;
use spillway_sys::thread_times::ThreadTimes;

use crate::limits::{APART_CHECK_INTERVAL, APART_PAUSE, APART_REST, APART_WAIT_SHARE, SHARED_BATCHES_MAX};
use crate::process::memory::EvictorSeen;

/// What the thread is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    /// Leave this CPU, and not come back.
    Avoid(usize),
    /// Run where the scheduler likes.
    Anywhere,
}

/// An evictor: its process and its thread.
type Whose = (u32, u32);

/// When a thread and an evictor stay away from one another's CPU.
#[derive(Debug)]
struct Apart {
    /// The evictor of the last batch.
    evictor: Option<Whose>,
    /// Batches in a row in which it had this thread's CPU.
    shared: u32,
    away: Option<Away>,
    batch_at: Instant,
    try_at: Instant,
}

#[derive(Clone, Copy, Debug)]
struct Away {
    checked_at: Instant,
    waited: Duration,
}

impl Apart {
    fn new(now: Instant) -> Self {
        Self { evictor: None, shared: 0, away: None, batch_at: now, try_at: now }
    }

    /// A batch of `evictor` has ended, which ran on `evictor_cpu`, and this thread runs on `own_cpu`; `waited` says
    /// how long both have waited for a CPU since they began.
    fn batch_ended(
        &mut self,
        evictor: Whose,
        (evictor_cpu, own_cpu): (usize, usize),
        waited: impl FnOnce() -> Option<Duration>,
        now: Instant,
    ) -> Option<Order> {
        self.batch_at = now;
        if self.evictor.replace(evictor) != Some(evictor) {
            self.shared = 0;
            return self.come_back();
        }
        self.shared = if evictor_cpu == own_cpu { self.shared + 1 } else { 0 };
        let is_due = |away: &Away| now.saturating_duration_since(away.checked_at) >= APART_CHECK_INTERVAL;
        if let Some(away) = self.away.filter(is_due) {
            return self.check(away, waited()?, now);
        }
        if self.shared < SHARED_BATCHES_MAX || now < self.try_at {
            return None;
        }
        self.shared = 0;
        if self.away.is_none() {
            self.away = Some(Away { checked_at: now, waited: waited()? });
        }
        // With more than two CPUs both may have come to a third one.
        Some(Order::Avoid(own_cpu))
    }

    /// There is no other CPU, or one of them may not be bound.
    fn failed(&mut self, now: Instant) {
        self.away = None;
        self.try_at = now + APART_PAUSE;
    }

    fn check(&mut self, away: Away, waited: Duration, now: Instant) -> Option<Order> {
        let elapsed = now.saturating_duration_since(away.checked_at);
        if waited.saturating_sub(away.waited) * APART_WAIT_SHARE <= elapsed {
            self.away = Some(Away { checked_at: now, waited });
            return None;
        }
        self.try_at = now + APART_PAUSE;
        self.come_back()
    }

    /// The thread is about to sleep: how long it may, and what it is to do before.
    fn rests(&mut self, now: Instant) -> (Duration, Option<Order>) {
        let rested = now.saturating_duration_since(self.batch_at);
        match self.away {
            None => (Duration::MAX, None),
            Some(_) if rested >= APART_REST => (Duration::MAX, self.come_back()),
            Some(_) => (APART_REST - rested, None),
        }
    }

    fn come_back(&mut self) -> Option<Order> {
        self.shared = 0;
        self.away.take().map(|_| Order::Anywhere)
    }
}

/// See the module text; of the thread that made it.
#[derive(Debug)]
pub(super) struct Placement {
    apart: Apart,
    /// `None`: the kernel does not tell how long threads wait, and they stay where they are.
    own_times: Option<ThreadTimes>,
    /// The same of the evictor that was asked about last, if it is one.
    evictor_times: Option<(Whose, Option<ThreadTimes>)>,
    bounds: Vec<Bound>,
}

impl Placement {
    /// Of the calling thread.
    pub(super) fn new(now: Instant) -> Self {
        let own_times = ThreadTimes::own().ok();
        Self { apart: Apart::new(now), own_times, evictor_times: None, bounds: Vec::with_capacity(2) }
    }

    /// A batch of `evictor` has ended. Whether the calling thread was given other CPUs.
    pub(super) fn batch_ended(&mut self, evictor: EvictorSeen, now: Instant) -> bool {
        let EvictorSeen { process, thread, cpu } = evictor;
        let (own, times) = (&self.own_times, &mut self.evictor_times);
        let waited_by = |times: &ThreadTimes| times.read().ok().map(|times| times.waited);
        let waited = || Some(waited_by(own.as_ref()?)? + waited_by(times_of(times, (process, thread))?)?);
        let order = self.apart.batch_ended((process, thread), (cpu, sched_getcpu()), waited, now);
        let evictor = Pid::from_raw(thread.cast_signed());
        order.is_some_and(|order| self.obey(order, evictor, now))
    }

    /// The thread is about to sleep; how long it may at most.
    pub(super) fn rests(&mut self, now: Instant) -> Duration {
        let (patience, order) = self.apart.rests(now);
        if let Some(order) = order {
            self.obey(order, None, now);
        }
        patience
    }

    /// Whether that was possible.
    fn obey(&mut self, order: Order, evictor: Option<Pid>, now: Instant) -> bool {
        self.bounds.drain(..).for_each(Bound::undo);
        let Order::Avoid(cpu) = order else { return true };
        let both = Bound::new(None, cpu).and_then(|own| {
            // Where this thread has gone.
            let theirs = evictor.and_then(|evictor| Bound::new(Some(evictor), sched_getcpu()));
            if theirs.is_none() {
                own.undo();
            }
            Some([own, theirs?])
        });
        let is_possible = both.is_some();
        self.bounds.extend(both.into_iter().flatten());
        if !is_possible {
            self.apart.failed(now);
        }
        is_possible
    }
}

impl Drop for Placement {
    fn drop(&mut self) {
        self.obey(Order::Anywhere, None, Instant::now());
    }
}

/// A thread that may not run on one of its CPUs.
#[derive(Clone, Copy, Debug)]
struct Bound {
    /// `None`: the calling one.
    thread: Option<Pid>,
    before: CpuSet,
    now: CpuSet,
}

impl Bound {
    /// Keeps `thread` away from `cpu`. `None`: it has no other one, or may not be bound.
    fn new(thread: Option<Pid>, cpu: usize) -> Option<Self> {
        let before = sched_getaffinity(thread).ok()?;
        let mut now = before;
        if cpu < CpuSet::MAX_CPU {
            now.unset(cpu);
        }
        let is_possible = now.count() > 0 && now != before;
        (is_possible && sched_setaffinity(thread, &now).is_ok()).then_some(Self { thread, before, now })
    }

    /// Gives the thread back the CPUs that it had, unless another program has bound it since. One of those that it has
    /// now may be off meanwhile.
    fn undo(self) {
        let is_ours = |now: CpuSet| (0..CpuSet::MAX_CPU).all(|cpu| self.now.is_set(cpu) || !now.is_set(cpu));
        if sched_getaffinity(self.thread).is_ok_and(is_ours) {
            // Where the machine's CPUs have changed meanwhile the kernel has chosen by itself.
            let _ = sched_setaffinity(self.thread, &self.before);
        }
    }
}

/// Where the kernel tells how long `evictor` has waited for a CPU, if that is an evictor; looked up once for each.
fn times_of(known: &mut Option<(Whose, Option<ThreadTimes>)>, evictor: Whose) -> Option<&ThreadTimes> {
    if known.as_ref().is_none_or(|(whose, _)| *whose != evictor) {
        *known = Some((evictor, open_times(evictor)));
    }
    known.as_ref()?.1.as_ref()
}

fn open_times((process, thread): Whose) -> Option<ThreadTimes> {
    let name = read_unless_leased(format!("/proc/{process}/task/{thread}/comm")).ok()?;
    let is_evictor =
        CStr::from_bytes_until_nul(EVICTOR_NAME).is_ok_and(|evictor| name.trim_ascii_end() == evictor.to_bytes());
    if is_evictor { ThreadTimes::of_thread(process, thread).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use spillway_sys::skipping::skip;

    use super::*;

    const EVICTOR: Whose = (1, 2);
    const NONE: fn() -> Option<Duration> = || Some(Duration::ZERO);

    /// One of which a batch of [`EVICTOR`] has ended.
    fn begun(now: Instant) -> Apart {
        let mut apart = Apart::new(now);
        assert_eq!(apart.batch_ended(EVICTOR, (3, 3), NONE, now), None, "the first of an evictor");
        apart
    }

    /// One that has just left CPU 3, and when.
    fn away() -> (Apart, Instant) {
        let now = Instant::now();
        let mut apart = begun(now);
        for _ in 1..SHARED_BATCHES_MAX {
            assert_eq!(apart.batch_ended(EVICTOR, (3, 3), NONE, now), None);
        }
        assert_eq!(apart.batch_ended(EVICTOR, (3, 3), NONE, now), Some(Order::Avoid(3)));
        (apart, now)
    }

    #[test]
    fn it_leaves_a_cpu_that_both_have_had_for_a_while() {
        let now = Instant::now();
        let mut apart = begun(now);
        for batch in 0..4 * SHARED_BATCHES_MAX {
            let own_cpu = if (batch + 1).is_multiple_of(SHARED_BATCHES_MAX) { 4 } else { 3 };
            assert_eq!(apart.batch_ended(EVICTOR, (3, own_cpu), NONE, now), None, "not again and again the same one");
        }
        away();
    }

    #[test]
    fn it_leaves_again_when_they_meet_and_knows_since_when_it_waits() {
        let (mut apart, begin) = away();
        for _ in 1..SHARED_BATCHES_MAX {
            assert_eq!(apart.batch_ended(EVICTOR, (5, 5), NONE, begin), None);
        }
        let later = begin + APART_CHECK_INTERVAL / 2;
        assert_eq!(apart.batch_ended(EVICTOR, (5, 5), || Some(APART_CHECK_INTERVAL), later), Some(Order::Avoid(5)));
        let due = begin + APART_CHECK_INTERVAL;
        assert_eq!(apart.batch_ended(EVICTOR, (5, 5), || Some(APART_CHECK_INTERVAL), due), Some(Order::Anywhere));
    }

    #[test]
    fn it_comes_back_where_others_want_the_cpu_and_does_not_leave_again_soon() {
        let (mut apart, begin) = away();
        let late = begin + APART_CHECK_INTERVAL;
        let little = APART_CHECK_INTERVAL / APART_WAIT_SHARE;
        assert_eq!(apart.batch_ended(EVICTOR, (3, 4), || Some(little), late), None, "it waited no more than others do");
        let later = late + APART_CHECK_INTERVAL;
        let much = 2 * little + Duration::from_nanos(1);
        assert_eq!(apart.batch_ended(EVICTOR, (3, 4), || Some(much), later), Some(Order::Anywhere));
        for _ in 0..2 * SHARED_BATCHES_MAX {
            assert_eq!(apart.batch_ended(EVICTOR, (3, 3), NONE, later), None, "not soon");
        }
        assert_eq!(apart.batch_ended(EVICTOR, (3, 3), NONE, later + APART_PAUSE), Some(Order::Avoid(3)));
    }

    #[test]
    fn where_it_cannot_leave_it_does_not_try_again_soon() {
        let (mut apart, begin) = away();
        apart.failed(begin);
        for _ in 0..4 * SHARED_BATCHES_MAX {
            assert_eq!(apart.batch_ended(EVICTOR, (3, 3), NONE, begin), None);
        }
        assert_eq!(apart.rests(begin + 2 * APART_REST), (Duration::MAX, None), "there is nothing to undo");
    }

    #[test]
    fn it_comes_back_when_nothing_leaves_any_more() {
        let (mut apart, begin) = away();
        assert_eq!(apart.rests(begin + APART_REST / 4), (APART_REST * 3 / 4, None));
        assert_eq!(apart.rests(begin + APART_REST), (Duration::MAX, Some(Order::Anywhere)));
        assert_eq!(apart.rests(begin + 2 * APART_REST), (Duration::MAX, None), "once");
    }

    #[test]
    fn it_comes_back_when_another_program_has_its_turn() {
        let (mut apart, begin) = away();
        assert_eq!(apart.batch_ended((1, 7), (3, 4), NONE, begin), Some(Order::Anywhere));
        for batch in 0..4 * SHARED_BATCHES_MAX {
            assert_eq!(apart.batch_ended((1, batch % 2), (3, 3), NONE, begin), None, "they take turns");
        }
    }

    #[test]
    fn where_the_kernel_does_not_tell_nothing_is_tried() {
        let now = Instant::now();
        let mut apart = Apart::new(now);
        assert!((0..4 * SHARED_BATCHES_MAX).all(|_| apart.batch_ended(EVICTOR, (3, 3), || None, now).is_none()));
    }

    /// Runs `test` on a thread of its own, because it is bound, with what it may run on, and another thread of that
    /// name beside it.
    fn with_thread(name: &str, test: impl FnOnce(CpuSet, Pid) + Send) {
        let (tell, told) = channel();
        let (end, ended) = channel::<()>();
        std::thread::scope(|threads| {
            let beside = move || {
                tell.send(rustix::thread::gettid()).unwrap();
                // Until the test is over, however it ends.
                let _ = ended.recv();
            };
            std::thread::Builder::new().name(name.to_owned()).spawn_scoped(threads, beside).unwrap();
            threads.spawn(move || {
                let _end = end;
                let all = sched_getaffinity(None).unwrap();
                if all.count() < 2 {
                    return skip("a second CPU");
                }
                test(all, told.recv().unwrap());
            });
        });
    }

    fn mask(thread: Option<Pid>) -> CpuSet {
        sched_getaffinity(thread).unwrap()
    }

    /// A batch of `evictor` has ended that had the calling thread's CPU.
    fn shared_batch(placement: &mut Placement, evictor: Pid) -> bool {
        let thread = evictor.as_raw_nonzero().get().cast_unsigned();
        let seen = EvictorSeen { process: std::process::id(), thread, cpu: sched_getcpu() };
        placement.batch_ended(seen, Instant::now())
    }

    #[test]
    fn two_threads_leave_each_other_and_get_back_what_they_had() {
        with_thread("spillway-evict", |all, evictor| {
            let mut placement = Placement::new(Instant::now());
            if placement.own_times.is_none() {
                return skip("schedstat of threads");
            }
            let both = || [mask(None), mask(Some(evictor))];
            // This thread may change its CPU in between, and then they start again.
            assert!((0..1000).any(|_| shared_batch(&mut placement, evictor)), "they are never kept apart");
            assert!(both().iter().all(|mask| mask.count() + 1 == all.count()));
            assert_ne!(both()[0], both()[1], "each leaves the other's");
            assert!(placement.rests(Instant::now()) <= APART_REST);
            assert_ne!(both(), [all, all], "until it rests");
            assert_eq!(placement.rests(Instant::now() + APART_REST), Duration::MAX);
            assert_eq!(both(), [all, all]);
            let now = Instant::now();
            assert!(placement.obey(Order::Avoid(sched_getcpu()), Some(evictor), now));
            drop(placement);
            assert_eq!(both(), [all, all]);
        });
    }

    #[test]
    fn only_evictors_are_bound() {
        with_thread("another", |all, other| {
            let mut placement = Placement::new(Instant::now());
            assert!((0..1000).all(|_| !shared_batch(&mut placement, other)), "it has another name");
            assert_eq!([mask(None), mask(Some(other))], [all, all]);
        });
        assert!(open_times((std::process::id(), 0)).is_none(), "there is no such thread");
    }

    #[test]
    fn what_another_process_has_bound_stays_so() {
        with_thread("spillway-evict", |_, evictor| {
            let (mut placement, mut foreign, now) = (Placement::new(Instant::now()), CpuSet::new(), Instant::now());
            let cpu = sched_getcpu();
            assert!(placement.obey(Order::Avoid(cpu), Some(evictor), now));
            foreign.set(cpu);
            sched_setaffinity(None, &foreign).unwrap();
            placement.obey(Order::Anywhere, None, now);
            assert_eq!(mask(None), foreign);
            // There is no other one left, and none of such a number; nor is the evictor bound then.
            let theirs = mask(Some(evictor));
            for cpu in [sched_getcpu(), usize::MAX] {
                assert!(!placement.obey(Order::Avoid(cpu), Some(evictor), now));
                assert_eq!((mask(None), mask(Some(evictor))), (foreign, theirs));
            }
        });
    }

    #[test]
    fn both_are_bound_or_none_is() {
        with_thread("spillway-evict", |all, _| {
            let mut placement = Placement::new(Instant::now());
            assert!(!placement.obey(Order::Avoid(sched_getcpu()), None, Instant::now()));
            assert_eq!(mask(None), all);
        });
    }
}
