//! Signals that ask a command to end while it is setting things up or taking them down.
//!
//! They only set a flag; the command looks at it between steps, undoes what it did, and then ends by the same signal,
//! so that a Ctrl-C at any moment leaves nothing attached.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use spillway_sys::signals::is_ignored_by_caller;

/// Signals that end a command; the last one ends no daemon.
const ENDING: [i32; 4] = [SIGINT, SIGTERM, SIGQUIT, SIGHUP];

/// Whether this process is a daemon, which also does what commands do.
static IS_DAEMON: AtomicBool = AtomicBool::new(false);

/// What the signals of this process set: one for all, also for what has no [`Interruption`] at hand.
static LAST: OnceLock<Arc<AtomicUsize>> = OnceLock::new();

/// The last ending signal that came, if they are watched for.
pub fn last_signal() -> Option<i32> {
    LAST.get().and_then(|signal| number(signal.load(Ordering::SeqCst)))
}

fn number(signal: usize) -> Option<i32> {
    i32::try_from(signal).ok().filter(|signal| *signal != 0)
}

/// A signal asked the command to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("interrupted by signal {0}")]
pub struct Interrupted(pub i32);

/// The last ending signal, if one came.
#[derive(Clone, Debug, Default)]
pub struct Interruption {
    signal: Arc<AtomicUsize>,
}

/// Whether SIGHUP came.
#[derive(Clone, Debug, Default)]
pub struct ReloadRequest {
    asked: Arc<AtomicBool>,
}

impl ReloadRequest {
    /// Whether it came since the last look.
    pub fn take(&self) -> bool {
        self.asked.swap(false, Ordering::SeqCst)
    }
}

impl Interruption {
    /// From here on ending signals are noted instead of ending the process.
    pub fn watch() -> io::Result<Self> {
        Self::watch_for(if IS_DAEMON.load(Ordering::SeqCst) { &ENDING[..3] } else { &ENDING })
    }

    /// The same for a daemon, which SIGHUP asks to read its configuration again.
    pub fn watch_daemon() -> io::Result<(Self, ReloadRequest)> {
        let asked = Arc::new(AtomicBool::new(false));
        signal_hook::flag::register(SIGHUP, Arc::clone(&asked))?;
        IS_DAEMON.store(true, Ordering::SeqCst);
        Ok((Self::watch()?, ReloadRequest { asked }))
    }

    /// Signals that the caller ignores (nohup(1)) stay ignored.
    fn watch_for(signals: &[i32]) -> io::Result<Self> {
        let interruption = Self { signal: Arc::clone(LAST.get_or_init(Arc::default)) };
        for signal in signals.iter().copied().filter(|signal| !is_ignored_by_caller(*signal)) {
            let number = usize::try_from(signal).expect("signal numbers are small and positive");
            signal_hook::flag::register_usize(signal, Arc::clone(&interruption.signal), number)?;
        }
        Ok(interruption)
    }

    /// The signal that came.
    pub fn signal(&self) -> Option<i32> {
        number(self.signal.load(Ordering::SeqCst))
    }

    /// Forgets the signal that came, to notice another one.
    pub fn forget(&self) -> Option<i32> {
        number(self.signal.swap(0, Ordering::SeqCst))
    }

    /// An error once a signal came.
    pub fn check(&self) -> Result<(), Interrupted> {
        self.signal().map_or(Ok(()), |signal| Err(Interrupted(signal)))
    }
}

/// Ends this process as `signal` would have ended it, so that the process that waits for it sees the same. Returns
/// only if the signal does not end processes.
pub fn end_by(signal: i32) {
    // The program that died of it has left its core; another one of this process would replace it.
    let none = rustix::process::Rlimit { current: Some(0), maximum: Some(0) };
    let _ = rustix::process::setrlimit(rustix::process::Resource::Core, none);
    let _ = signal_hook::low_level::emulate_default_handler(signal);
    if let Some(signal) = rustix::process::Signal::from_named_raw(signal) {
        let _ = rustix::process::kill_process(rustix::process::getpid(), signal);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_noted_before_a_signal_and_the_number_after() {
        let interruption = Interruption::default();
        assert!(interruption.check().is_ok());
        interruption.signal.store(15, Ordering::SeqCst);
        assert_eq!(interruption.signal(), Some(15));
        assert!(matches!(interruption.check(), Err(Interrupted(15))));
    }
}
