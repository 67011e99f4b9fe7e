//! Records page faults of programs that swap, for `trace record`: the kernel samples each
//! ([`spillway_sys::page_faults`]), and a thread writes the samples down.
//!
//! The kernel tells of major faults on any memory, so pages of files that had left the page cache are among them. It
//! does not tell whether a fault was a write: all count as reads. A process is taken for one address space, also when
//! it executes another program. Samples that the kernel had no room for are counted as missed.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use spillway_policy::prefetch::PageNumber;
use spillway_policy::trace::Kind;
use spillway_policy::trace::fault_log::{FaultLog, NotedFault};
use spillway_sys::event::EventFd;
use spillway_sys::mapping::PAGE_SIZE_BYTES;
use spillway_sys::page_faults::{FaultCounters, FaultSample};

use crate::samples;

/// What this kernel or user lacks for recording.
#[derive(Debug, thiserror::Error)]
pub enum RecordingError {
    /// Faults cannot be sampled.
    #[error(
        "page faults cannot be sampled (perf_event_open: {0}); that needs a kernel with perf events, and root or \
         CAP_PERFMON; `--via pager` needs neither"
    )]
    NoSamples(io::Error),
    /// The thread could not be started.
    #[error("the recording thread cannot be started: {0}")]
    Thread(io::Error),
}

/// Records the faults of the programs that the calling thread starts while this lives.
#[derive(Debug)]
pub struct FaultRecording {
    log: Arc<Mutex<FaultLog>>,
    stop: Arc<(AtomicBool, EventFd)>,
    thread: Option<JoinHandle<Result<(), io::Error>>>,
}

impl FaultRecording {
    /// Begins, with room for `room_bytes` of events. With [`Kind::Faults`] minor faults are recorded too.
    pub fn start(kind: Kind, room_bytes: usize) -> Result<Self, RecordingError> {
        let counters = FaultCounters::of_programs_started().map_err(RecordingError::NoSamples)?;
        if kind == Kind::Faults {
            counters.sample_minor(true).map_err(RecordingError::NoSamples)?;
        }
        let stop = Arc::new((AtomicBool::new(false), EventFd::new().map_err(RecordingError::Thread)?));
        let log = Arc::new(Mutex::new(FaultLog::new(kind, room_bytes)));
        let driver =
            Driver { counters, samples: Vec::new(), began_ns: None, log: Arc::clone(&log), stop: Arc::clone(&stop) };
        let thread = std::thread::Builder::new().name("recording".to_owned());
        let thread = thread.spawn(move || driver.run()).map_err(RecordingError::Thread)?;
        Ok(Self { log, stop, thread: Some(thread) })
    }

    /// Ends the recording and hands over what it has; an error if the kernel failed it meanwhile.
    pub fn finish<Result>(mut self, look: impl FnOnce(&FaultLog) -> Result) -> io::Result<Result> {
        let ended = self.end();
        let result = look(&self.log.lock().unwrap_or_else(PoisonError::into_inner));
        ended.map(|()| result)
    }

    fn end(&mut self) -> io::Result<()> {
        self.stop.0.store(true, Ordering::SeqCst);
        self.stop.1.signal();
        let ended = self.thread.take().map(JoinHandle::join);
        ended.unwrap_or(Ok(Ok(()))).unwrap_or_else(|_| Err(io::Error::other("the recording thread panicked")))
    }
}

impl Drop for FaultRecording {
    fn drop(&mut self) {
        // A recording that is dropped has no reader left.
        let _ = self.end();
    }
}

/// What the thread has.
struct Driver {
    counters: FaultCounters,
    samples: Vec<FaultSample>,
    /// The time of the first sample.
    began_ns: Option<u64>,
    log: Arc<Mutex<FaultLog>>,
    stop: Arc<(AtomicBool, EventFd)>,
}

impl Driver {
    fn run(mut self) -> io::Result<()> {
        while !self.stop.0.load(Ordering::SeqCst) {
            // Minor faults wake only in groups.
            samples::wait(&self.counters, &self.stop.1)?;
            self.take_samples();
        }
        // What came before the end.
        self.take_samples();
        Ok(())
    }

    fn take_samples(&mut self) {
        self.samples.clear();
        let missed = self.counters.drain(&mut self.samples);
        let own = std::process::id();
        let log = &mut *self.log.lock().unwrap_or_else(PoisonError::into_inner);
        for sample in self.samples.iter().filter(|sample| sample.process != own) {
            let began_ns = *self.began_ns.get_or_insert(sample.time_ns);
            let page = PageNumber(sample.address / PAGE_SIZE_BYTES as u64);
            let noted = NotedFault { space: sample.process, thread: sample.thread, page, write: false };
            log.note(noted, sample.time_ns.saturating_sub(began_ns) / 1000);
        }
        if missed > 0 {
            log.missed(missed);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use spillway_sys::skipping::skip;

    use super::*;

    #[test]
    fn the_faults_of_a_program_are_recorded_and_not_those_of_its_starter() {
        let recording = match FaultRecording::start(Kind::Faults, 1 << 20) {
            Ok(recording) => recording,
            Err(error) => return skip(error),
        };
        // Two processes, each with fresh memory of its own.
        Command::new("sh").args(["-c", "sh -c 'exit 0'; exit 0"]).status().unwrap();
        let counts = recording.finish(FaultLog::counts).unwrap();
        assert!(counts.recorded > 50 && counts.without_room == 0, "{counts:?}");
        assert!((2..=4).contains(&counts.spaces) && counts.threads >= counts.spaces, "{counts:?}");
    }

    #[test]
    fn a_recording_that_is_dropped_ends() {
        match FaultRecording::start(Kind::MajorFaults, 1000) {
            Ok(recording) => drop(recording),
            Err(error) => skip(error),
        }
    }
}
