//! A device that its keeper has given up is tried again: by `doctor --mend`, and before `swap off` brings its pages
//! back, which fail or wait without a process that serves them.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;
use spillway_console::failure::Failure;
use spillway_control::device_record::DeviceRecord;
use spillway_control::registry::{Found, Registry};
use spillway_control::status_socket;
use spillway_machine::waiting::wait_until;
use spillway_report::kind::Kind;

use crate::limits;

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
    // Every release of keepers says this by the same field.
    match status_socket::ask_status(&found.status_socket()) {
        Ok(report) if report.get("given_up") == Some(&Value::Bool(true)) => Served::GivenUp,
        Ok(_) => Served::Yes,
        Err(_) => Served::Silent,
    }
}

/// Makes sure that a process serves the device; one that is served is left alone.
pub fn revive(found: &Found) -> Result<(), Failure> {
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

/// The devices that were given up.
fn given_up(registry: &Registry) -> Result<Vec<Found>, Failure> {
    let entries = registry.entries().map_err(Failure::failed)?;
    let living = entries.into_iter().filter(|found| found.kind == Kind::Device && found.is_alive());
    Ok(living.filter(|found| ask(found) == Served::GivenUp).collect())
}

/// The devices that were given up, in words.
pub fn list(registry: &Registry) -> Result<Vec<String>, Failure> {
    Ok(given_up(registry)?
        .iter()
        .map(|found| format!("{}, which was given up and fails requests", found.title()))
        .collect())
}

/// Tries all devices that were given up again; gives one line for each.
pub fn revive_all(registry: &Registry) -> Result<Vec<String>, Failure> {
    let tried = given_up(registry)?.into_iter().map(|found| match revive(&found) {
        Ok(()) => {
            let path = DeviceRecord::read(&found.path).and_then(|record| record.path).unwrap_or_default();
            format!("the {} is served again, at {}", found.title(), path.display())
        }
        Err(failure) => failure.to_string(),
    });
    Ok(tried.collect())
}

/// What was given up is said until the keeper has heard. Said again after a silence, it was given up again.
fn wait_served(mut ask: impl FnMut() -> Served, patience: Duration) -> bool {
    let (mut was_silent, mut served) = (false, false);
    wait_until(Instant::now() + patience, || {
        let now = ask();
        was_silent |= now == Served::Silent;
        served = now == Served::Yes;
        served || (was_silent && now == Served::GivenUp)
    });
    served
}

#[cfg(test)]
mod tests {
    use spillway_control::test_support::temporary_registry;

    use super::*;

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
        let mut again = [Served::GivenUp, Served::Silent, Served::GivenUp].into_iter();
        assert!(!wait_served(|| again.next().unwrap(), Duration::from_secs(60)));
    }

    #[test]
    fn a_device_that_does_not_say_that_it_was_given_up_is_left_alone() {
        let (_directory, registry) = temporary_registry();
        let _entry = registry.claim(Kind::Device, "silent").unwrap();
        // The owner is this process, which a HUP would end.
        revive(&registry.find(Kind::Device, "silent").unwrap()).unwrap();
        assert_eq!(revive_all(&registry).unwrap(), Vec::<String>::new());
        assert_eq!(list(&registry).unwrap(), Vec::<String>::new());
    }
}
