//! What is to be undone, the last first.
//!
//! Invariant: every action runs exactly once, also when an earlier one failed or the thread panics; a failure is shown
//! with what is left for the user to do by hand, never swallowed.

use std::fmt;

use super::HarnessError;

type Action = Box<dyn FnOnce() -> Result<(), HarnessError> + Send>;

/// Actions that run when this is dropped.
#[derive(Default)]
pub struct Cleanup {
    actions: Vec<(String, Action)>,
}

impl Cleanup {
    /// Adds an action; `what` names it, best as the command that does the same by hand.
    pub fn push(
        &mut self,
        what: impl Into<String>,
        action: impl FnOnce() -> Result<(), HarnessError> + Send + 'static,
    ) {
        self.actions.push((what.into(), Box::new(action)));
    }

    /// Keeps `value` until its turn, then drops it.
    pub fn keep(&mut self, what: impl Into<String>, value: impl Send + 'static) {
        self.push(what, move || {
            drop(value);
            Ok(())
        });
    }

    /// Runs everything now; gives what failed.
    pub fn run(&mut self) -> Vec<String> {
        let mut failures = Vec::new();
        while let Some((what, action)) = self.actions.pop() {
            if let Err(error) = action() {
                failures.push(format!("could not undo '{what}': {error}"));
            }
        }
        failures
    }
}

impl fmt::Debug for Cleanup {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_list().entries(self.actions.iter().map(|(what, _)| what)).finish()
    }
}

impl Drop for Cleanup {
    fn drop(&mut self) {
        for failure in self.run() {
            eprintln!("spillway-bench: {failure}");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    fn noting(log: &Arc<Mutex<Vec<u32>>>, number: u32) -> impl FnOnce() -> Result<(), HarnessError> + Send + 'static {
        let log = Arc::clone(log);
        move || {
            log.lock().unwrap().push(number);
            if number == 2 { Err(HarnessError::Missing("two".to_owned())) } else { Ok(()) }
        }
    }

    #[test]
    fn the_last_is_undone_first_and_a_failure_stops_nothing() {
        let log = Arc::new(Mutex::new(Vec::new()));
        let mut cleanup = Cleanup::default();
        (1..=3).for_each(|number| cleanup.push(format!("step {number}"), noting(&log, number)));
        let failures = cleanup.run();
        assert_eq!(*log.lock().unwrap(), [3, 2, 1]);
        assert_eq!(failures, ["could not undo 'step 2': two"]);
        drop(cleanup);
        assert_eq!(log.lock().unwrap().len(), 3, "nothing runs twice");
    }

    #[test]
    fn a_panic_undoes_too() {
        let log = Arc::new(Mutex::new(Vec::new()));
        let in_thread = Arc::clone(&log);
        let thread = std::thread::spawn(move || {
            let mut cleanup = Cleanup::default();
            cleanup.push("step", noting(&in_thread, 7));
            panic!("on purpose");
        });
        assert!(thread.join().is_err());
        assert_eq!(*log.lock().unwrap(), [7]);
    }

    #[test]
    fn what_is_kept_lives_until_its_turn() {
        let (kept, seen) = (Arc::new(()), Arc::new(Mutex::new(0)));
        let (weak, count) = (Arc::downgrade(&kept), Arc::clone(&seen));
        let mut cleanup = Cleanup::default();
        cleanup.keep("value", kept);
        let look = weak.clone();
        cleanup.push("look", move || {
            *count.lock().expect("no other thread panics") = look.strong_count();
            Ok(())
        });
        drop(cleanup);
        assert_eq!((*seen.lock().unwrap(), weak.strong_count()), (1, 0));
    }
}
