//! The pager's threads: loops around the decisions in [`crate::fault`], [`crate::evict`] and [`crate::process`].

pub mod bell;
pub mod courteous_lock;
mod cpus;
pub mod lock;
pub(crate) mod spin;
pub(crate) mod waiting;

use std::collections::HashMap;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{JoinHandle, yield_now};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use spillway_block::cpu_idle::CpuIdleLimit;
use spillway_block::service::Waiting;
use spillway_sys::epoll::{Epoll, Interest};
use spillway_sys::paging_safety::{ask_for_short_turns, give_up_real_time};

use crate::address_space::AddressSpace;
use crate::evict::Eviction;
use crate::fault::Faults;
use crate::fault::messages::Messages;
use crate::limits::{GUESSES_MAX, IDLE_INTERVAL, RETRY_INTERVAL};
use crate::page_table::page_indexes::SpaceId;
use crate::pager_state::PagerState;
use crate::process::Survey;
use crate::threads::cpus::Placement;
use crate::threads::spin::{Company, EvictionPauses, Pause, Spin};
use crate::threads::waiting::{has_events, wait};

/// Starts a thread that runs until the pager stops; one that panics takes the programs down, whose pages it may have
/// lost track of. None has a real-time policy, whatever the run was started with: it would keep evictors and programs
/// from the CPU that it waits for (rule 13).
pub(crate) fn start(
    name: &str,
    shared: &Arc<PagerState>,
    run: impl FnOnce() -> io::Result<()> + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    let shared = Arc::clone(shared);
    let told = name.to_owned();
    std::thread::Builder::new().name(name.to_owned()).spawn(move || {
        let run = || give_up_real_time().and_then(|()| run());
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
        let reason = match result {
            Ok(Ok(())) => return,
            Ok(Err(error)) => error.to_string(),
            Err(payload) => {
                let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
                text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_default()
            }
        };
        shared.fail(format!("the pager's thread {told} ended ({reason}); its programs are killed"));
        shared.kill_programs();
    })
}

/// The number of the fault thread's bell among the descriptors that it waits for; those of address spaces are smaller.
const BELL: u64 = u64::MAX;

/// The address spaces that the fault thread serves, each under its number in the set of descriptors that it waits for
/// ([`PagerState::served`]).
struct Served<'a> {
    set: &'a Epoll,
    spaces: HashMap<u32, (Arc<AddressSpace>, bool)>,
    ready: Vec<u32>,
    /// The program that had something to tell last, or got a page that was read for it, and was not asked again
    /// without success since.
    last: Option<u32>,
    guesses: u32,
}

impl<'a> Served<'a> {
    fn new(shared: &'a PagerState) -> io::Result<Self> {
        let set = &shared.served;
        set.add(&shared.faults, BELL, Interest::Readable)?;
        Ok(Self { set, spaces: HashMap::with_capacity(64), ready: Vec::with_capacity(64), last: None, guesses: 0 })
    }

    /// Takes in programs that came, leaves out programs that went, and listens again to those whose batch has ended.
    fn follow(&mut self, shared: &PagerState) -> io::Result<()> {
        let current = shared.spaces();
        for space in &current {
            let number = space.id.0;
            let listens = || space.is_listened_to.load(Ordering::SeqCst);
            let (_, listens) = self.spaces.entry(number).or_insert_with(|| (Arc::clone(space), listens()));
            if *listens {
                continue;
            }
            let mut state = space.lock_for_faults();
            if state.may_read() {
                self.set.add(space.memory.event(), number.into(), Interest::Readable)?;
                *listens = true;
                // Served once even if the message that it waited with is answered meanwhile, or it would count as
                // waiting for ever.
                self.ready.push(number);
            } else {
                // The end of the batch is signalled to the thread that waits for it.
                state.is_awaited |= state.batch;
            }
        }
        if self.spaces.len() > current.len() {
            self.spaces.retain(|number, _| current.iter().any(|space| space.id == SpaceId(*number)));
        }
        Ok(())
    }

    /// Finds out which address spaces have something to tell; sleeps up to `patience` if no thread has.
    fn look(&mut self, patience: Duration) -> io::Result<()> {
        let ready = &mut self.ready;
        let note = |number: u64| ready.extend(u32::try_from(number));
        self.set.wait(Some(patience), note).map(|_| ())
    }

    /// Asks the program that had something to tell last, or goes on since, without a look at the others. Whether that
    /// was right.
    fn guess(&mut self, messages: &mut Messages, faults: &mut Faults, now: Instant) -> bool {
        let asked = self.last.filter(|_| self.guesses < GUESSES_MAX).and_then(|number| self.spaces.get(&number));
        let is_right =
            asked.is_some_and(|(space, listens)| *listens && !space.is_gone() && messages.guess(space, faults, now));
        if is_right && messages.was_alone() {
            self.guesses += 1;
        } else {
            (self.last, self.guesses) = (None, 0);
        }
        is_right
    }

    /// Serves the thread that has something to tell; how many did. No thread is asked for this turn if it `is_quiet`:
    /// the end of a sleep has just told that no thread has.
    fn serve(
        &mut self,
        shared: &PagerState,
        messages: &mut Messages,
        faults: &mut Faults,
        (is_quiet, now): (bool, Instant),
    ) -> io::Result<usize> {
        if self.ready.is_empty() && !is_quiet {
            // While a program waits for a page that is on its way, its thread has no other fault; those of others are
            // found by the look.
            if !faults.is_awaited() && self.guess(messages, faults, now) {
                return Ok(1);
            }
            self.look(Duration::ZERO)?;
        }
        if self.ready.iter().any(|number| !self.spaces.contains_key(number)) {
            // A program came quietly.
            self.follow(shared)?;
        }
        let count = self.ready.len();
        for number in self.ready.drain(..) {
            // One that has waited is in the list twice, if its messages are still there.
            let Some((space, listens)) = self.spaces.get_mut(&number).filter(|(_, listens)| *listens) else {
                continue;
            };
            if space.is_gone() || !messages.serve(space, faults, Instant::now()) {
                self.set.remove(space.memory.event())?;
                *listens = false;
            } else {
                // Of many that come at once others wait long enough.
                self.last = messages.was_alone().then_some(number);
            }
        }
        Ok(count)
    }
}

/// How a fault thread spends the time in which it has nothing to do.
struct Leisure {
    spin: Spin,
    company: Company,
}

impl Leisure {
    fn new(now: Instant) -> Self {
        Self { spin: Spin::new(now), company: Company::default() }
    }

    /// How long to sleep; `None`: look again instead.
    fn patience(&mut self, waiting: Waiting, has_put_off: bool, now: Instant) -> Option<Duration> {
        match waiting {
            Waiting::Poll => None,
            Waiting::Retry => Some(RETRY_INTERVAL),
            _ if has_put_off => Some(RETRY_INTERVAL),
            _ if self.spin.goes_on(now) && self.company.is_alone(now, Instant::now, yield_now) => None,
            Waiting::Nothing | Waiting::Event => Some(IDLE_INTERVAL),
        }
    }
}

/// The first fault thread: reads all messages, and answers.
pub(crate) fn serve_faults(
    shared: &PagerState,
    (mut messages, mut faults): (Messages, Faults),
    mut cpu_idle: CpuIdleLimit,
) -> io::Result<()> {
    let mut served = Served::new(shared)?;
    let mut leisure = Leisure::new(Instant::now());
    let mut is_quiet = false;
    while !shared.is_stopping() {
        // Once for all of a turn: a look at the clock is 30 ns, and a turn takes some microseconds.
        let now = Instant::now();
        if shared.faults.clear() {
            served.follow(shared)?;
            messages.fetch_wanted(&mut faults);
        }
        let has_served = served.serve(shared, &mut messages, &mut faults, (std::mem::take(&mut is_quiet), now))? > 0;
        let has_answered = faults.answer_shared();
        messages.apply_events(now);
        let waiting = faults.poll(now);
        let filled = faults.take_filled();
        served.last = filled.map(|page_table| page_table.0).or(served.last);
        // Not for messages alone: what is answered here waits for no other thread's CPU.
        (0..shared.fault_pool.take_demands()).for_each(|_| cpu_idle.asked(now));
        if has_served || has_answered {
            leisure.spin.worked(now);
            continue;
        }
        if filled.is_some() {
            // A thread that goes on may miss the next page at once. Whether it pays to wait for that is told by
            // faults alone.
            continue;
        }
        let has_put_off = faults.has_put_off() || messages.are_unsettled();
        let Some(patience) = leisure.patience(waiting, has_put_off, now) else { continue };
        let patience = cpu_idle.rest(now).unwrap_or(patience).min(patience);
        if has_events(faults.engine()) {
            if faults.arm() {
                continue;
            }
            let slept = shared.faults.sleep(|| wait(&[served.set.as_fd()], faults.engine(), patience));
            is_quiet = slept.transpose()? == Some(false);
        } else {
            shared.faults.sleep(|| served.look(patience)).transpose()?;
        }
    }
    Ok(())
}

/// A fault thread besides the first, woken by the bell of that number: answers what is left to it.
pub(crate) fn help_with_faults(shared: &PagerState, bell: usize, mut faults: Faults) -> io::Result<()> {
    let bell = &shared.fault_pool.bells()[bell];
    let mut leisure = Leisure::new(Instant::now());
    while !shared.is_stopping() {
        bell.clear();
        let has_answered = faults.answer_shared();
        let now = Instant::now();
        let waiting = faults.poll(now);
        if has_answered {
            shared.counters.faults_helped.add(1);
            leisure.spin.worked(now);
            continue;
        }
        let Some(patience) = leisure.patience(waiting, faults.has_put_off(), now) else { continue };
        if faults.arm() {
            continue;
        }
        bell.sleep(|| wait(&[bell.as_fd()], faults.engine(), patience)).transpose()?;
    }
    Ok(())
}

/// The eviction thread.
pub fn evict(shared: &PagerState, mut eviction: Eviction) -> io::Result<()> {
    let (mut pauses, mut placement) = (EvictionPauses::default(), Placement::new(Instant::now()));
    while !shared.is_stopping() {
        shared.eviction.clear();
        let now = Instant::now();
        let waiting = eviction.turn(now);
        if eviction.take_evictor_seen().is_some_and(|evictor| placement.batch_ended(evictor, now)) {
            pauses.moved();
        }
        let patience = match pauses.next(waiting, eviction.is_evictor_at_work(), Instant::now, yield_now) {
            Pause::None => continue,
            Pause::Evictor => {
                eviction.await_evictor(RETRY_INTERVAL);
                // Its program may have been stopped.
                placement.rests(Instant::now());
                continue;
            }
            Pause::Sleep(patience) => patience.min(placement.rests(Instant::now())),
        };
        if eviction.arm() {
            continue;
        }
        shared.eviction.sleep(|| wait(&[shared.eviction.as_fd()], eviction.engine(), patience)).transpose()?;
    }
    Ok(())
}

/// The survey thread.
pub(crate) fn survey(shared: &PagerState, mut survey: Survey) -> io::Result<()> {
    // Programs fill what is not registered until it looks. Where that is refused it looks later.
    let _ = ask_for_short_turns();
    let (mut is_called, mut has_visitors, mut looks_at) = (true, true, Instant::now());
    while !shared.is_stopping() {
        let now = Instant::now();
        is_called |= shared.survey.clear();
        if is_called || has_visitors || looks_at <= now {
            survey.keep_guarded()?;
            looks_at = now + survey.look(now, is_called, has_visitors);
        }
        let patience = looks_at.saturating_duration_since(Instant::now());
        let timeout = Timespec { tv_sec: 0, tv_nsec: patience.subsec_nanos().into() };
        let mut waits = vec![PollFd::new(&shared.survey, PollFlags::IN), PollFd::new(survey.guardian(), PollFlags::IN)];
        let listeners = waits.len();
        waits.extend(survey.call_listeners().map(|listener| PollFd::from_borrowed_fd(listener, PollFlags::IN)));
        waits.extend(survey.opening_signals().map(|signals| PollFd::from_borrowed_fd(signals, PollFlags::IN)));
        let visitors = waits.len();
        waits.extend(survey.visitors().map(|visitor| PollFd::from_borrowed_fd(visitor, PollFlags::IN)));
        let others = waits.len();
        waits.extend(survey.notes().map(|notes| PollFd::new(notes, PollFlags::IN)));
        let slept = shared.survey.sleep(|| poll(&mut waits, Some(&timeout)));
        let is_ready = |wait: &PollFd<'_>| !wait.revents().is_empty();
        has_visitors = match slept {
            Some(Ok(_)) => waits[visitors..others].iter().any(is_ready),
            // No thread has looked.
            None | Some(Err(rustix::io::Errno::INTR)) => true,
            Some(Err(error)) => return Err(error.into()),
        };
        is_called = waits[..listeners].iter().any(is_ready) || has_visitors;
        let (has_calls, has_notes) =
            (waits[listeners..visitors].iter().any(is_ready), waits[others..].iter().any(is_ready));
        is_called |= has_notes && survey.read_notes();
        if is_called {
            looks_at = Instant::now();
        } else if has_calls {
            // Their programs wait, and a look at everything takes longer than most of them.
            let now = Instant::now();
            looks_at = looks_at.min(now + survey.hear_calls(now));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use spillway_policy::prefetch::selection::PrefetchPolicy;
    use spillway_sys::paging_safety::use_memory_reserves;
    use spillway_sys::process_stat::ProcessStat;
    use spillway_sys::skipping::skip;

    use super::*;
    use crate::budget::Budget;
    use crate::fault::pool::FaultPool;
    use crate::page_table::PageIndexes;
    use crate::page_table::page_indexes::CachePages;
    use crate::page_table::volume_pages::VolumePages;

    /// The policy of the calling thread (sched(7)).
    fn policy() -> i32 {
        let thread = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
        ProcessStat::of_thread(std::process::id(), thread).unwrap().policy().unwrap()
    }

    /// Rule 13.
    #[test]
    fn no_thread_inherits_a_real_time_policy() {
        let page_indexes = PageIndexes { volume_pages: VolumePages::new(1), cache_pages: CachePages::default() };
        let fault_pool = FaultPool::new(1, PrefetchPolicy::default()).unwrap();
        let shared = Arc::new(PagerState::new(page_indexes, Budget::new(1 << 20, 1 << 17), fault_pool).unwrap());
        let (tell, told) = std::sync::mpsc::channel();
        // A thread of its own, because it keeps the policy.
        let starter = std::thread::spawn(move || {
            let has_policy = use_memory_reserves().is_ok() && policy() != 0;
            let run = move || tell.send(policy()).map_err(io::Error::other);
            start("faults", &shared, run).unwrap().join().unwrap();
            has_policy
        });
        assert_eq!(told.recv().unwrap(), 0, "SCHED_OTHER");
        if !starter.join().unwrap() {
            skip("the right to a real-time policy (CAP_SYS_NICE)");
        }
    }
}
