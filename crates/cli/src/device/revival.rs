//! A device that its keeper has given up, because its process died too often, is tried once more before its pages are
//! brought back: without a process the kernel would wait for them for ever.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use crate::failure::Failure;
use crate::limits;
use crate::machine::waiting::wait_until;
use crate::registry::Found;
use crate::status_socket;

/// Whether a process serves a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Served {
    /// A process does.
    Yes,
    /// Its keeper waits for orders.
    GivenUp,
    /// No process answers just now.
    Silent,
}

fn ask(found: &Found) -> Served {
    match status_socket::ask_status(&found.status_socket()) {
        Ok(report) if report.pointer("/given_up").and_then(Value::as_bool) == Some(true) => Served::GivenUp,
        Ok(_) => Served::Yes,
        Err(_) => Served::Silent,
    }
}

/// Makes sure that a process serves the device; one that is served is left alone.
pub(crate) fn revive(found: &Found) -> Result<(), Failure> {
    if ask(found) != Served::GivenUp {
        return Ok(());
    }
    let Some(keeper) = found.owner else { return Ok(()) };
    keeper.signal(Signal::HUP);
    if wait_served(|| ask(found), limits::REVIVAL_DEADLINE) {
        return Ok(());
    }
    let (title, pid) = (found.title(), keeper.pid);
    Err(Failure::Failed(format!(
        "the {title} has no process that serves it, and starting one failed again; its log beside {} says why. Nothing was \
         changed, and its pages are kept; mend the cause and try again. `kill -9 {pid}` and `spillway doctor --mend` give \
         them up",
        found.path.display()
    )))
}

/// What was given up is said until the keeper has heard, so only the deadline ends the wait.
fn wait_served(mut ask: impl FnMut() -> Served, patience: Duration) -> bool {
    wait_until(Instant::now() + patience, || ask() == Served::Yes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::{Kind, Registry};

    #[test]
    fn a_device_that_comes_back_is_waited_for_through_silence() {
        let mut answers = [Served::GivenUp, Served::Silent, Served::Silent, Served::Yes].into_iter();
        assert!(wait_served(|| answers.next().unwrap(), Duration::from_secs(60)));
        assert_eq!(answers.next(), None);
    }

    #[test]
    fn one_that_stays_away_is_not_waited_for_for_ever() {
        assert!(!wait_served(|| Served::GivenUp, Duration::from_millis(50)));
        assert!(!wait_served(|| Served::Silent, Duration::ZERO));
    }

    #[test]
    fn a_device_that_does_not_say_that_it_was_given_up_is_left_alone() {
        let (_directory, registry) = Registry::temporary();
        let _entry = registry.claim(Kind::Device, "silent").unwrap();
        // The owner is this process, which a HUP would end.
        revive(&registry.find(Kind::Device, "silent").unwrap()).unwrap();
    }
}
