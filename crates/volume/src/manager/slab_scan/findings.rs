//! The last look at all slabs, shared by the threads that need one.
//!
//! A look reads every page bit: 14 MB for a device of 64 GiB. Status has to be exact, so it always looks, and leaves
//! what it found here; the manager, which looks all the time and checks again before it acts, takes that instead of
//! looking once more while it is fresh. And it rests after each look in proportion to what the look took, so that a
//! device of any size costs at most [`SLAB_SCAN_SHARE`](crate::limits::SLAB_SCAN_SHARE) of a CPU.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use super::examine;
use crate::limits::SLAB_SCAN_INTERVAL;
use crate::manager::ManagerState;
use crate::steward::care::Finding;

/// The findings of one look, by slab, and its end.
#[derive(Debug, Default)]
pub struct Findings {
    last: Mutex<Option<(Instant, Vec<Finding>)>>,
}

impl Findings {
    /// Looks at every slab; the others may use what is found.
    pub fn look(&self, shared: &ManagerState) -> Vec<Finding> {
        let connected = shared.donors.connected();
        let findings = shared.volume.geometry.slabs().map(|slab| examine(shared, slab, connected)).collect();
        self.remember(findings, Instant::now())
    }

    /// As [`Findings::look`], unless another thread looked a moment ago.
    pub fn recent(&self, shared: &ManagerState) -> Vec<Finding> {
        self.taken_since(Instant::now().checked_sub(SLAB_SCAN_INTERVAL)).unwrap_or_else(|| self.look(shared))
    }

    fn remember(&self, findings: Vec<Finding>, now: Instant) -> Vec<Finding> {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some((now, findings.clone()));
        findings
    }

    /// What was found after `since`. It is used once: a caller that asks twice wants to know what changed.
    fn taken_since(&self, since: Option<Instant>) -> Option<Vec<Finding>> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let fresh = last.take_if(|(taken, _)| since.is_some_and(|since| *taken > since));
        fresh.map(|(_, findings)| findings)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn finding(stored: u64) -> Finding {
        Finding { stored, ..Finding::default() }
    }

    #[test]
    fn a_fresh_look_is_used_once_and_an_old_one_never() {
        let (survey, start) = (Findings::default(), Instant::now());
        assert_eq!(survey.taken_since(Some(start)), None, "nobody looked yet");
        let later = start + Duration::from_secs(1);
        assert_eq!(survey.remember(vec![finding(7)], later), [finding(7)]);
        assert_eq!(survey.taken_since(Some(later)), None, "too old");
        assert_eq!(survey.taken_since(Some(start)), Some(vec![finding(7)]));
        assert_eq!(survey.taken_since(Some(start)), None, "used already");
        survey.remember(vec![finding(8)], later);
        assert_eq!(survey.taken_since(None), None, "the clock began a moment ago: nothing counts as fresh");
    }
}
