//! `add-donor` and `remove-donor`: other donors for a device or a run, while it is in use.
//!
//! The process that serves the pages does it ([`donor_change`](spillway_control::donor_change)), and is asked over its status
//! socket. Adding takes a moment. Removing goes on in that process for as long as slabs are moved; this command shows
//! how far it is, and ends with it.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use spillway_console::failure::Failure;
use spillway_console::output::{self, OutputArguments};
use spillway_console::progress::Progress;
use spillway_console::progress_line::ProgressLine;
use spillway_console::say;
use spillway_control::registry::{Found, Registry};
use spillway_control::status_socket::{self, DonorChange, Question};
use spillway_fabric::address::DonorAddress;
use spillway_machine::interruption::Interruption;
use spillway_observe::status;
use spillway_report::kind::{Kind, Report};
use spillway_report::status::Item;

use crate::arguments::{AddDonorArguments, RemoveDonorArguments};

/// Which things a command means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Among {
    /// Swap devices of the machine.
    Swap,
    /// Every device, and runs.
    All,
}

/// `add-donor`.
pub(crate) fn add(among: Among, arguments: &AddDonorArguments) -> Result<(), Failure> {
    let found = find(&Registry::open().map_err(Failure::failed)?, among, &arguments.device)?;
    let change = DonorChange::Add(arguments.address.to_string());
    ask(&found, &Question::Donor(change))?;
    tell(&arguments.output, &found, &arguments.address, "added")
}

/// `remove-donor`: shows how far it is, until the donor is gone.
pub(crate) fn remove(among: Among, arguments: &RemoveDonorArguments) -> Result<(), Failure> {
    let interruption = Interruption::watch().map_err(|error| Failure::during("watching for signals", error))?;
    let found = find(&Registry::open().map_err(Failure::failed)?, among, &arguments.device)?;
    let address = arguments.address.to_string();
    ask(&found, &Question::Donor(DonorChange::Remove(address.clone())))?;
    let mut progress: Option<Progress> = None;
    let mut line = ProgressLine::new(format!("removing donor {address}"), !arguments.output.json);
    loop {
        let report = status_socket::ask_status(&found.status_socket()).map_err(Failure::failed)?;
        let report = Report::read(found.kind, &report).map_err(|error| Failure::during(found.title(), error))?;
        let left_bytes = match departure(&report, &address) {
            Departure::Gone => {
                drop(line);
                return tell(&arguments.output, &found, &arguments.address, "removed");
            }
            Departure::CalledOff => {
                return Err(Failure::Failed(format!("the donor {address} is not removed: `add-donor` called it off")));
            }
            Departure::UnderWay { left_bytes } => left_bytes,
        };
        let now = Instant::now();
        let progress = progress.get_or_insert_with(|| Progress::new("moved", now, left_bytes));
        progress.look(now, left_bytes);
        line.show_bytes(now, progress);
        if progress.rest(now) >= spillway_observe::limits::MOVE_STALL_MAX {
            return Err(stalled(&found, &address, left_bytes));
        }
        if let Some(signal) = interruption.signal() {
            drop(line);
            say!("spillway: the removal goes on; `spillway status` shows it, and `add-donor` calls it off");
            return Err(Failure::Interrupted(signal));
        }
        std::thread::sleep(PAUSE);
    }
}

/// Between two looks.
const PAUSE: Duration = Duration::from_millis(100);

fn stalled(found: &Found, address: &str, left_bytes: u64) -> Failure {
    Failure::Failed(format!(
        "{} cannot leave the donor {address}: no other donor of the {} has room, and its disk lacks pages, if it has one; \
         add another donor. The removal goes on as soon as there is room, and `add-donor` calls it off",
        spillway_machine::size::human(left_bytes),
        found.title(),
    ))
}

fn tell(arguments: &OutputArguments, found: &Found, address: &DonorAddress, done: &str) -> Result<(), Failure> {
    if arguments.json {
        return output::json(&json!({"name": found.name, "donor": address.to_string(), done: true}));
    }
    output::text(&format!("the donor {address} is {done}\n"))
}

fn ask(found: &Found, question: &Question) -> Result<Option<Value>, Failure> {
    let failed = |error: status_socket::AskError| Failure::Failed(format!("the {}: {error}", found.title()));
    status_socket::ask(&found.status_socket(), question, spillway_control::limits::STATUS_DEADLINE).map_err(failed)
}

/// How far a removal is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Departure {
    /// The donor is used no more.
    Gone,
    /// It stays.
    CalledOff,
    /// It still holds so much.
    UnderWay { left_bytes: u64 },
}

/// What the report of a device or a run says of a donor that is being removed.
fn departure(report: &Report, address: &str) -> Departure {
    let Some(volume) = report.volume() else { return Departure::Gone };
    match volume.donors.iter().find(|donor| donor.address == address) {
        None => Departure::Gone,
        Some(donor) if !donor.is_leaving => Departure::CalledOff,
        Some(donor) => Departure::UnderWay { left_bytes: donor.slabs * volume.slab_size_bytes },
    }
}

/// The device or run that `name` means. A run over a swap device means that device.
fn find(registry: &Registry, among: Among, name: &str) -> Result<Found, Failure> {
    let wanted = |item: &Item| match among {
        Among::Swap => item.is_swap() && item.run().is_none(),
        Among::All => true,
    };
    let items = status::collect(registry, Some(Kind::Device), &wanted)?;
    let named =
        items.iter().find(|item| item.name == name).or_else(|| items.iter().find(|i| i.run().as_deref() == Some(name)));
    let of_device = named.and_then(|item| registry.find(Kind::Device, &item.name));
    let run = || registry.find(Kind::Run, name).filter(|_| among == Among::All);
    of_device.or_else(run).ok_or_else(|| {
        let what = if among == Among::Swap { "swap device" } else { "device or run" };
        let known: Vec<&str> = items.iter().map(|item| item.name.as_str()).collect();
        let known = if known.is_empty() { "none is on".to_owned() } else { format!("there is {}", known.join(", ")) };
        Failure::Failed(format!("no {what} '{name}' is on; {known} (`spillway status` shows all)"))
    })
}

#[cfg(test)]
mod tests {
    use spillway_control::test_support::temporary_registry;
    use spillway_report::test_support;

    use super::*;

    #[test]
    fn a_removal_is_seen_in_the_report_of_a_device_and_of_a_run() {
        let leaving = |is_leaving| {
            let mut report = test_support::device_report("swap", 0);
            report.device.donors[0].is_leaving = is_leaving;
            report
        };
        let device = |is_leaving| Report::Device(Box::new(leaving(is_leaving)));
        let mut run = Report::Run(Box::new(test_support::run_report(0)));
        if let Report::Run(run) = &mut run {
            run.pager.as_mut().unwrap().device = leaving(true).device;
        }
        let under_way = Departure::UnderWay { left_bytes: 64 << 20 };
        assert_eq!((departure(&device(true), "a:1"), departure(&run, "a:1")), (under_way, under_way));
        assert_eq!(departure(&device(false), "a:1"), Departure::CalledOff);
        assert_eq!(departure(&device(true), "c:1"), Departure::Gone);
    }

    #[test]
    fn what_is_not_there_is_named_with_what_is() {
        let (_directory, registry) = temporary_registry();
        let text = find(&registry, Among::Swap, "far").unwrap_err().to_string();
        assert!(text.contains("no swap device 'far'") && text.contains("none is on"), "{text}");
        let _device = registry.claim(Kind::Device, "disk").unwrap();
        let _run = registry.claim(Kind::Run, "job").unwrap();
        let text = find(&registry, Among::All, "far").unwrap_err().to_string();
        assert!(text.contains("no device or run 'far'") && text.contains("there is disk"), "{text}");
        assert_eq!(find(&registry, Among::All, "disk").unwrap().kind, Kind::Device);
        assert_eq!(find(&registry, Among::All, "job").unwrap().kind, Kind::Run);
        assert!(find(&registry, Among::Swap, "disk").is_err(), "no swap area");
    }
}
