//! `spillway status --wait`: waits until every slab has all its copies again, after a donor was lost or recalled
//! memory, and shows how far that is.
//!
//! The processes that serve pages do it by themselves, whether this command runs or not.

use std::time::{Duration, Instant};

use spillway_console::failure::Failure;
use spillway_console::progress::Progress;
use spillway_console::progress_line::ProgressLine;
use spillway_control::registry::Registry;
use spillway_machine::interruption::Interruption;
use spillway_machine::size::human;
use spillway_report::kind::{Kind, Report};
use spillway_report::status::Item;

use crate::{limits, status};

/// Between two looks.
const PAUSE: Duration = Duration::from_millis(300);

/// Waits for the devices and runs of this machine.
pub fn wait(is_shown: bool) -> Result<(), Failure> {
    let interruption = Interruption::watch().map_err(|error| Failure::during("watching for signals", error))?;
    let registry = Registry::open().map_err(Failure::failed)?;
    let mut lacking_bytes = look(&registry)?;
    let mut progress = Progress::new("copied", Instant::now(), lacking_bytes);
    let mut line = ProgressLine::new("missing copies", is_shown);
    while lacking_bytes > 0 {
        let now = Instant::now();
        progress.look(now, lacking_bytes);
        line.show_bytes(now, &progress);
        if progress.rest(now) >= limits::MOVE_STALL_MAX {
            return Err(Failure::Failed(format!(
                "{} still lack a copy, and nothing was copied for {} s: no donor has room; add another donor. The \
                 copies are made as soon as there is room",
                human(lacking_bytes),
                limits::MOVE_STALL_MAX.as_secs(),
            )));
        }
        interruption.check()?;
        std::thread::sleep(PAUSE);
        lacking_bytes = look(&registry)?;
    }
    Ok(())
}

fn look(registry: &Registry) -> Result<u64, Failure> {
    let lacking = |item: &Item| match item.read() {
        Ok(report) => Ok(lacking_bytes(&report)),
        // Only these have copies.
        Err(error) if [Kind::Device, Kind::Run].contains(&item.kind) => {
            Err(Failure::during(format!("the {} {}", item.kind.word(), item.name), error))
        }
        Err(_) => Ok(0),
    };
    status::collect(registry, None, &|_| true)?.iter().map(lacking).sum()
}

/// Bytes of the slabs that lack a copy, or are being moved, by the report of a device or a run.
fn lacking_bytes(report: &Report) -> u64 {
    report.volume().map_or(0, |volume| (volume.slabs.degraded + volume.slabs.migrating) * volume.slab_size_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observation::examples;

    #[test]
    fn what_lacks_is_seen_in_the_report_of_a_device_and_of_a_run() {
        let device = examples::device("swap", 0).report;
        let slabs = &device.volume().unwrap().slabs;
        assert_eq!((slabs.degraded, slabs.migrating), (1, 0));
        assert_eq!(lacking_bytes(&device), 32 << 20);
        assert_eq!(lacking_bytes(&examples::run("7", 0).report), 32 << 20);
        assert_eq!(lacking_bytes(&Report::None), 0);
    }
}
