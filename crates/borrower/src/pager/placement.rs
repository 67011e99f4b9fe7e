//! Which CPUs the eviction thread and an agent run on: not on the same one, as long as another one is free.
//!
//! The two work at the same time: one takes pages out while the other writes those before. But who sleeps is woken by the other, and onto his CPU
//! where CPUs share no cache, or where one that is idle counts as taken (a virtual machine's whose host has something else to do). Then both take turns
//! on one CPU while another one is idle. So if that was so for some batches, the eviction thread leaves that CPU, and neither may run where the other is.
//!
//! All of that is undone when nothing has left for a while, and when one of them has to wait for a CPU: then others want it, and it is not tried again
//! soon. What the kernel counts as waiting is in `/proc/PID/task/TID/schedstat` (its `Documentation/scheduler/sched-stats.rst`); without that nothing is
//! done. Nothing of the program's own is bound.
//!
//! [`Apart`] decides, without I/O; [`Placement`] does it.

use std::ffi::CStr;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};

use spillway_stub::protocol::AGENT_NAME;

use super::limits::{APART_CHECK_INTERVAL, APART_PAUSE, APART_REST, APART_WAIT_SHARE, SHARED_BATCHES_MAX};
use super::program::AgentSeen;

/// What the thread is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    /// Leave this CPU, and not come back.
    Avoid(usize),
    /// Run where the scheduler likes.
    Anywhere,
}

/// When a thread stays away from another one's CPU.
#[derive(Debug)]
struct Apart {
    /// Batches in a row that both had the same CPU.
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
        Self { shared: 0, away: None, batch_at: now, try_at: now }
    }

    /// A batch has ended whose agent ran on `agent_cpu`, and this thread runs on `own_cpu`; `waited` says how long it has waited for a CPU since it began.
    fn batch_ended(
        &mut self,
        agent_cpu: usize,
        own_cpu: usize,
        waited: impl FnOnce() -> Option<Duration>,
        now: Instant,
    ) -> Option<Order> {
        self.batch_at = now;
        self.shared = if agent_cpu == own_cpu { self.shared + 1 } else { 0 };
        let is_due = |away: &Away| now.saturating_duration_since(away.checked_at) >= APART_CHECK_INTERVAL;
        if let Some(away) = self.away.filter(is_due) {
            return self.check(away, waited()?, now);
        }
        if self.shared < SHARED_BATCHES_MAX || now < self.try_at {
            return None;
        }
        // The agent may have followed.
        self.shared = 0;
        self.away = Some(Away { checked_at: now, waited: waited()? });
        Some(Order::Avoid(own_cpu))
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
        self.away = None;
        self.shared = 0;
        Some(Order::Anywhere)
    }
}

/// See the module text; of the thread that made it.
#[derive(Debug)]
pub(super) struct Placement {
    apart: Apart,
    /// `None`: the kernel does not tell how long threads wait, and they stay where they are.
    own_times: Option<File>,
    /// The same of the agent with this number, if it is one.
    agent_times: Option<(u32, Option<File>)>,
    bounds: Vec<Bound>,
}

impl Placement {
    /// Of the calling thread.
    pub(super) fn new(now: Instant) -> Self {
        let own_times = File::open("/proc/thread-self/schedstat").ok();
        Self { apart: Apart::new(now), own_times, agent_times: None, bounds: Vec::with_capacity(2) }
    }

    /// A batch of `agent` has ended. Whether the calling thread may have another CPU now.
    pub(super) fn batch_ended(&mut self, agent: AgentSeen, now: Instant) -> bool {
        if self.agent_times.as_ref().is_none_or(|(thread, _)| *thread != agent.thread) {
            self.agent_times = Some((agent.thread, times_of(agent)));
        }
        let (Some(own), Some((_, Some(others)))) = (&self.own_times, &self.agent_times) else { return false };
        let waited = || Some(waited(own)? + waited(others)?);
        let order = self.apart.batch_ended(agent.cpu, sched_getcpu(), waited, now);
        self.obey(order, Pid::from_raw(agent.thread.cast_signed()));
        order.is_some()
    }

    /// The thread is about to sleep; how long it may at most.
    pub(super) fn rests(&mut self, now: Instant) -> Duration {
        let (patience, order) = self.apart.rests(now);
        self.obey(order, None);
        patience
    }

    fn obey(&mut self, order: Option<Order>, agent: Option<Pid>) {
        let Some(order) = order else { return };
        self.bounds.drain(..).for_each(Bound::undo);
        if let Order::Avoid(cpu) = order {
            self.bounds.extend(Bound::new(None, cpu));
            // Where this thread has gone.
            let cpu = sched_getcpu();
            self.bounds.extend(agent.and_then(|agent| Bound::new(Some(agent), cpu)));
        }
    }
}

impl Drop for Placement {
    fn drop(&mut self) {
        self.obey(Some(Order::Anywhere), None);
    }
}

/// A thread that may not run on one of its CPUs.
#[derive(Debug)]
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

    /// Gives the thread back the CPUs that it had, unless somebody else has bound it since.
    fn undo(self) {
        if sched_getaffinity(self.thread).is_ok_and(|now| now == self.now) {
            // Where the machine's CPUs have changed meanwhile the kernel has chosen by itself.
            let _ = sched_setaffinity(self.thread, &self.before);
        }
    }
}

/// Where the kernel tells how long `agent` has waited for a CPU, if that is an agent.
fn times_of(agent: AgentSeen) -> Option<File> {
    let directory = format!("/proc/{}/task/{}", agent.process, agent.thread);
    let name = fs::read(format!("{directory}/comm")).ok()?;
    let is_agent = CStr::from_bytes_until_nul(AGENT_NAME).is_ok_and(|agent| name.trim_ascii_end() == agent.to_bytes());
    if is_agent { File::open(format!("{directory}/schedstat")).ok() } else { None }
}

/// The second number: nanoseconds that the thread was ready to run and did not.
fn waited(times: &File) -> Option<Duration> {
    let mut text = [0; 64];
    let length = times.read_at(&mut text, 0).ok()?;
    let text = str::from_utf8(&text[..length]).ok()?;
    Some(Duration::from_nanos(text.split_ascii_whitespace().nth(1)?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use spillway_sys::skipping::skip;

    use super::*;

    const NONE: fn() -> Option<Duration> = || Some(Duration::ZERO);

    /// One that has just left CPU 3, and when.
    fn away() -> (Apart, Instant) {
        let now = Instant::now();
        let mut apart = Apart::new(now);
        for _ in 1..SHARED_BATCHES_MAX {
            assert_eq!(apart.batch_ended(3, 3, NONE, now), None);
        }
        assert_eq!(apart.batch_ended(3, 3, NONE, now), Some(Order::Avoid(3)));
        (apart, now)
    }

    #[test]
    fn it_leaves_a_cpu_that_both_have_had_for_a_while() {
        let now = Instant::now();
        let mut apart = Apart::new(now);
        for batch in 0..4 * SHARED_BATCHES_MAX {
            let own_cpu = if (batch + 1).is_multiple_of(SHARED_BATCHES_MAX) { 4 } else { 3 };
            assert_eq!(apart.batch_ended(3, own_cpu, NONE, now), None, "not again and again the same one");
        }
        away();
    }

    #[test]
    fn it_leaves_again_when_the_agent_follows() {
        let (mut apart, now) = away();
        for _ in 1..SHARED_BATCHES_MAX {
            assert_eq!(apart.batch_ended(5, 5, NONE, now), None);
        }
        assert_eq!(apart.batch_ended(5, 5, NONE, now), Some(Order::Avoid(5)));
    }

    #[test]
    fn it_comes_back_where_others_want_the_cpu_and_does_not_leave_again_soon() {
        let (mut apart, begin) = away();
        let late = begin + APART_CHECK_INTERVAL;
        let little = APART_CHECK_INTERVAL / APART_WAIT_SHARE;
        assert_eq!(apart.batch_ended(3, 4, || Some(little), late), None, "it waited no more than others do");
        let later = late + APART_CHECK_INTERVAL;
        let much = 2 * little + Duration::from_nanos(1);
        assert_eq!(apart.batch_ended(3, 4, || Some(much), later), Some(Order::Anywhere));
        for _ in 0..2 * SHARED_BATCHES_MAX {
            assert_eq!(apart.batch_ended(3, 3, NONE, later), None, "not soon");
        }
        assert_eq!(apart.batch_ended(3, 3, NONE, later + APART_PAUSE), Some(Order::Avoid(3)));
    }

    #[test]
    fn it_comes_back_when_nothing_leaves_any_more() {
        let (mut apart, begin) = away();
        assert_eq!(apart.rests(begin + APART_REST / 4), (APART_REST * 3 / 4, None));
        assert_eq!(apart.rests(begin + APART_REST), (Duration::MAX, Some(Order::Anywhere)));
        assert_eq!(apart.rests(begin + 2 * APART_REST), (Duration::MAX, None), "once");
    }

    #[test]
    fn where_the_kernel_does_not_tell_nothing_is_tried() {
        let now = Instant::now();
        let mut apart = Apart::new(now);
        assert!((0..4 * SHARED_BATCHES_MAX).all(|_| apart.batch_ended(3, 3, || None, now).is_none()));
    }

    /// Runs `test` on a thread of its own, because it is bound, with what it may run on, and another thread beside it.
    fn with_threads(test: impl FnOnce(CpuSet, Pid) + Send) {
        let (tell, told) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        std::thread::scope(|threads| {
            threads.spawn(move || {
                tell.send(rustix::thread::gettid()).unwrap();
                // Until the test is over, however it ends.
                let _ = ended.recv();
            });
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

    #[test]
    fn two_threads_leave_each_other_and_get_back_what_they_had() {
        with_threads(|all, other| {
            let mut placement = Placement::new(Instant::now());
            let cpu = sched_getcpu();
            placement.obey(Some(Order::Avoid(cpu)), Some(other));
            let (own, others) = (sched_getaffinity(None).unwrap(), sched_getaffinity(Some(other)).unwrap());
            assert!(!own.is_set(cpu) && own.count() + 1 == all.count());
            assert!(others.is_set(cpu) && others.count() + 1 == all.count());
            placement.obey(None, None);
            assert_eq!(sched_getaffinity(None).unwrap(), own, "until it is told");
            placement.obey(Some(Order::Anywhere), None);
            assert_eq!((sched_getaffinity(None).unwrap(), sched_getaffinity(Some(other)).unwrap()), (all, all));
            placement.obey(Some(Order::Avoid(cpu)), Some(other));
            drop(placement);
            assert_eq!((sched_getaffinity(None).unwrap(), sched_getaffinity(Some(other)).unwrap()), (all, all));
        });
    }

    #[test]
    fn what_somebody_else_has_bound_stays_so() {
        with_threads(|_, other| {
            let (mut placement, mut foreign) = (Placement::new(Instant::now()), CpuSet::new());
            let cpu = sched_getcpu();
            placement.obey(Some(Order::Avoid(cpu)), Some(other));
            foreign.set(cpu);
            sched_setaffinity(None, &foreign).unwrap();
            placement.obey(Some(Order::Anywhere), None);
            assert_eq!(sched_getaffinity(None).unwrap(), foreign);
            // There is no other one left, and none of such a number.
            for cpu in [sched_getcpu(), usize::MAX] {
                placement.obey(Some(Order::Avoid(cpu)), None);
                assert_eq!(sched_getaffinity(None).unwrap(), foreign);
            }
        });
    }

    #[test]
    fn only_agents_are_bound() {
        let process = std::process::id();
        let thread = rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned();
        assert!(times_of(AgentSeen { process, thread, cpu: 0 }).is_none(), "it has another name");
        assert!(times_of(AgentSeen { process, thread: 0, cpu: 0 }).is_none(), "there is no such thread");
    }

    #[test]
    fn the_kernel_tells_how_long_a_thread_waited_for_a_cpu() {
        let Ok(times) = File::open("/proc/thread-self/schedstat") else { return skip("schedstat of threads") };
        let before = waited(&times).unwrap();
        assert!(waited(&times).unwrap() >= before);
    }
}
