//! Ctrl-C, SIGTERM and SIGHUP as a flag.
//!
//! Nothing is undone in a signal handler. The flag makes every wait return, and the values on the stack undo what they
//! stand for. A second Ctrl-C changes nothing: giving up half way would leave swap areas on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::HarnessError;
use crate::limits::POLL_INTERVAL;

/// Whether to stop. Clones share the flag.
#[derive(Clone, Debug, Default)]
pub struct Interrupt {
    raised: Arc<AtomicBool>,
}

impl Interrupt {
    /// A flag that the signals of a terminal raise.
    pub fn on_signals() -> Result<Self, HarnessError> {
        let interrupt = Self::default();
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register(signal, Arc::clone(&interrupt.raised))
                .map_err(HarnessError::system("setting up the handling of Ctrl-C"))?;
        }
        Ok(interrupt)
    }

    /// A flag that nothing raises: for undoing, which must not be interrupted.
    pub fn never() -> Self {
        Self::default()
    }

    /// Raises the flag.
    pub fn raise(&self) {
        self.raised.store(true, Ordering::SeqCst);
    }

    /// An error once the flag is raised.
    pub fn check(&self) -> Result<(), HarnessError> {
        if self.raised.load(Ordering::SeqCst) { Err(HarnessError::Interrupted) } else { Ok(()) }
    }

    /// Looks at `condition` again and again until it gives a value, for `limit` at most.
    pub fn poll<Value>(
        &self,
        what: &str,
        limit: Duration,
        mut condition: impl FnMut() -> Option<Value>,
    ) -> Result<Value, HarnessError> {
        let end = Instant::now() + limit;
        loop {
            if let Some(value) = condition() {
                return Ok(value);
            }
            self.check()?;
            if Instant::now() >= end {
                return Err(HarnessError::TimedOut { what: what.to_owned(), limit });
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clones_share_the_flag() {
        let interrupt = Interrupt::never();
        let clone = interrupt.clone();
        assert!(clone.check().is_ok());
        interrupt.raise();
        assert!(clone.check().unwrap_err().is_interrupt());
    }

    #[test]
    fn polling_ends_with_the_value_the_interrupt_or_the_limit() {
        let interrupt = Interrupt::never();
        let mut looks = 0;
        let third = interrupt.poll("counting", Duration::from_secs(60), || {
            looks += 1;
            (looks == 3).then_some(looks)
        });
        assert_eq!(third.unwrap(), 3);
        let never = interrupt.poll("waiting for nothing", Duration::ZERO, || None::<()>).unwrap_err();
        assert!(never.to_string().contains("waiting for nothing"), "{never}");
        interrupt.raise();
        assert!(interrupt.poll("x", Duration::from_secs(60), || None::<()>).unwrap_err().is_interrupt());
    }

    #[test]
    fn a_signal_raises_the_flag() {
        let interrupt = Interrupt::on_signals().unwrap();
        signal_hook::low_level::raise(SIGHUP).unwrap();
        let seen = Interrupt::never().poll("the signal", Duration::from_secs(60), || interrupt.check().err());
        assert!(seen.unwrap().is_interrupt());
    }
}
