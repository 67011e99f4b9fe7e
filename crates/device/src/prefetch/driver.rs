//! The thread that prefetches: it waits for samples, asks [`SwapPrefetch`] what to do, and hands that to the kernel.
//!
//! Asking costs the kernel some microseconds a page, which the program would otherwise pay in its fault; it may wait
//! for pages to leave the cgroup. So the thread does nothing else. Faults that do not wait are sampled only while
//! pages are in flight, since each sample costs the program that faults.

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use spillway_policy::prefetch::selection::PrefetchPolicy;
use spillway_sys::event::EventFd;
use spillway_sys::page_faults::{self, FaultCounters, FaultSample};
use spillway_sys::process_advice;

use super::PrefetchCounts;
use super::decide::SwapPrefetch;
use super::headroom::Subjects;
use super::processes::{Processes, Refusal};
use crate::samples;

/// What this kernel or user lacks for prefetching.
#[derive(Debug, thiserror::Error)]
pub enum PrefetchError {
    /// Faults cannot be sampled.
    #[error(
        "page faults cannot be sampled (perf_event_open: {0}); that needs a kernel with perf events, and root or CAP_PERFMON"
    )]
    NoSamples(io::Error),
    /// Pages of others cannot be asked for.
    #[error(
        "no advice can be given about other processes' memory (process_madvise: {0}); that needs Linux 5.10, root or CAP_SYS_NICE"
    )]
    NoAdvice(io::Error),
    /// The thread could not be started.
    #[error("the prefetching thread cannot be started: {0}")]
    Thread(io::Error),
}

/// Whose faults are sampled.
#[derive(Clone, Copy, Debug)]
pub enum Sampled<'a> {
    /// Those of the programs that the calling thread starts from now on.
    ProgramsStarted,
    /// Those of all processes.
    All,
    /// Those of the processes in a cgroup of version 2, given by its directory.
    Group(BorrowedFd<'a>),
}

impl Sampled<'_> {
    fn counters(self) -> io::Result<FaultCounters> {
        match self {
            Self::ProgramsStarted => FaultCounters::of_programs_started(),
            Self::All => FaultCounters::of_all(),
            Self::Group(directory) => FaultCounters::of_group(directory),
        }
    }
}

/// Whether prefetching can be had here for programs that are started, or what is missing for it.
pub fn probe() -> Result<(), PrefetchError> {
    page_faults::probe().map_err(PrefetchError::NoSamples)?;
    process_advice::probe().map_err(PrefetchError::NoAdvice)
}

/// The same for programs that run already.
pub fn probe_sampled(sampled: Sampled<'_>) -> Result<(), PrefetchError> {
    sampled.counters().map_err(PrefetchError::NoSamples)?;
    process_advice::probe().map_err(PrefetchError::NoAdvice)
}

/// Prefetches while this lives.
#[derive(Debug)]
pub struct Prefetching {
    counts: Arc<Mutex<PrefetchCounts>>,
    stop: Arc<(AtomicBool, EventFd)>,
    thread: Option<JoinHandle<()>>,
}

impl Prefetching {
    /// Starts the thread, which asks for pages by `policy`; `subjects` says for which of the processes that are
    /// sampled, and how much it may ask for.
    pub fn start(
        policy: PrefetchPolicy,
        sampled: Sampled<'_>,
        subjects: Box<dyn Subjects>,
    ) -> Result<Self, PrefetchError> {
        process_advice::probe().map_err(PrefetchError::NoAdvice)?;
        let counters = sampled.counters().map_err(PrefetchError::NoSamples)?;
        let stop = Arc::new((AtomicBool::new(false), EventFd::new().map_err(PrefetchError::Thread)?));
        let counts = Arc::default();
        let driver = Driver {
            counters,
            subjects,
            prefetch: SwapPrefetch::new(policy),
            processes: Processes::default(),
            samples: Vec::new(),
            queue: VecDeque::new(),
            is_sampling_minor: false,
            counts: Arc::clone(&counts),
            stop: Arc::clone(&stop),
        };
        let thread = std::thread::Builder::new().name("prefetch".to_owned());
        let thread = thread.spawn(move || driver.run()).map_err(PrefetchError::Thread)?;
        Ok(Self { counts, stop, thread: Some(thread) })
    }

    /// Whether it goes on; it ends by itself only when the kernel fails it.
    pub fn is_running(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// What was done so far.
    pub fn counts(&self) -> PrefetchCounts {
        *self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Prefetching {
    fn drop(&mut self) {
        self.stop.0.store(true, Ordering::SeqCst);
        self.stop.1.signal();
        if let Some(thread) = self.thread.take() {
            // A panic was told when it happened.
            let _ = thread.join();
        }
    }
}

/// What the thread has.
struct Driver {
    counters: FaultCounters,
    subjects: Box<dyn Subjects>,
    prefetch: SwapPrefetch,
    processes: Processes,
    /// What was taken out of the rings just now.
    samples: Vec<FaultSample>,
    /// What is still to be looked at.
    queue: VecDeque<FaultSample>,
    is_sampling_minor: bool,
    counts: Arc<Mutex<PrefetchCounts>>,
    stop: Arc<(AtomicBool, EventFd)>,
}

impl Driver {
    fn run(mut self) {
        while !self.stop.0.load(Ordering::SeqCst) {
            match samples::wait(&self.counters, &self.stop.1) {
                Ok(true) => {}
                Ok(false) => self.prefetch.on_quiet(),
                Err(error) => return tracing::error!("prefetching for swap ends: {error}"),
            }
            self.take_samples();
            self.switch_minor();
        }
        self.queue_samples();
    }

    /// Takes samples until there are no more. Advice takes so long that the program goes on meanwhile, so what came
    /// since is looked at after each.
    fn take_samples(&mut self) {
        self.queue_samples();
        let own = std::process::id();
        while let Some(sample) = self.queue.pop_front() {
            if sample.process == own {
                continue;
            }
            let Some(room_pages) = self.subjects.room_pages(sample.process) else { continue };
            self.prefetch.set_room(room_pages);
            if self.take(&sample) {
                self.queue_samples();
            }
        }
        self.prefetch.on_all_taken();
    }

    fn queue_samples(&mut self) {
        self.samples.clear();
        let lost = self.counters.drain(&mut self.samples);
        self.prefetch.on_lost(lost);
        self.prefetch.on_queued(&self.samples);
        self.queue.extend(&self.samples);
        *self.counts.lock().unwrap_or_else(PoisonError::into_inner) = self.prefetch.counts();
    }

    /// Takes one sample; whether advice was given.
    fn take(&mut self, sample: &FaultSample) -> bool {
        let mut pages = self.processes.pages(sample.process);
        let advice = self.prefetch.on_sample(sample, &mut pages).to_vec();
        if advice.is_empty() {
            return false;
        }
        // Before the pages come, so that none is used unseen.
        self.switch_minor();
        let prefetch = &mut self.prefetch;
        self.processes.advise(sample.process, &advice, |refusal| {
            prefetch.on_failure();
            if refusal == Refusal::Ended {
                prefetch.forget(sample.process);
            }
        });
        !self.stop.0.load(Ordering::SeqCst)
    }

    fn switch_minor(&mut self) {
        let wanted = self.prefetch.needs_minor_samples();
        if wanted != self.is_sampling_minor {
            match self.counters.sample_minor(wanted) {
                Ok(()) => self.is_sampling_minor = wanted,
                Err(error) => tracing::warn!("faults that do not wait are not sampled: {error}"),
            }
        }
    }
}
