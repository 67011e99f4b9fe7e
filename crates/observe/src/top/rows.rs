//! The rows of the view: programs and devices, their donors, donors on this machine, and what is degraded.

use serde::Serialize;
use spillway_fabric::units::PAGE_SIZE_BYTES;
use spillway_report::kind::{Kind, Report};
use spillway_volume::status::{DeviceStatus, DonorLinkStatus};

use super::counts::Flow;
use crate::observation::{self, Observation, Thing};

/// A program under `run`, or a device that belongs to none.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Program {
    /// The program and its run, or the device.
    pub(crate) name: String,
    /// `pager` or `swap` (how memory reaches a run), `run` (not known), or `device`.
    pub(crate) kind: &'static str,
    /// As `status` has it.
    pub(crate) state: String,
    /// Local memory, of a run.
    pub(crate) local_bytes: Option<u64>,
    /// Memory at donors, or on the disk.
    pub(crate) lent_bytes: u64,
    /// What passes.
    pub(crate) flow: Flow,
    /// As `status` has it; empty if nothing is known.
    pub(crate) health: String,
    /// Whether it is as safe and as fast as asked.
    pub(crate) is_well: bool,
}

/// A donor of a program or device.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Link {
    /// Its address.
    pub(crate) donor: String,
    /// Of which program or device.
    pub(crate) of: String,
    /// `connected`, `connecting` or `lost`.
    pub(crate) state: String,
    /// `shm`, `rdma` or `tcp`.
    pub(crate) transport: String,
    /// Slabs that it holds.
    pub(crate) slabs: u64,
    /// Reads of the last seconds, if they go over a socket.
    pub(crate) p50_us: Option<f64>,
    /// The same.
    pub(crate) p99_us: Option<f64>,
    /// What is wrong; empty if nothing is.
    pub(crate) note: String,
}

/// A donor on this machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Lender {
    /// Its name.
    pub(crate) name: String,
    /// What it lends.
    pub(crate) lent_bytes: u64,
    /// The most that it may.
    pub(crate) quota_bytes: u64,
    /// What it could lend now.
    pub(crate) free_bytes: u64,
    /// Its borrowers.
    pub(crate) borrowers: u64,
    /// Slabs asked back.
    pub(crate) recalls_asked: u64,
    /// Of those, returned.
    pub(crate) recalls_returned: u64,
    /// Of those, the ones that may stay after all.
    pub(crate) recalls_withdrawn: u64,
    /// Of those, past their deadline.
    pub(crate) recalls_overdue: u64,
    /// Whether it lends nothing any more.
    pub(crate) is_draining: bool,
}

impl Program {
    /// What a filter looks at.
    pub(crate) fn text(&self) -> String {
        format!("{} {} {} {}", self.name, self.kind, self.state, self.health)
    }
}

impl Link {
    /// What a filter looks at.
    pub(crate) fn text(&self) -> String {
        format!("{} {} {} {} {}", self.donor, self.of, self.state, self.transport, self.note)
    }
}

/// The device that a run over a swap device has.
fn device_of<'a>(observation: &'a Observation, run: &str) -> Option<&'a Thing> {
    observation.things.iter().find(|thing| thing.kind == Kind::Device && thing.run() == Some(run))
}

/// Runs with what their devices do, and devices that belong to none.
pub(crate) fn programs(observation: &Observation, flow: &dyn Fn(&Thing) -> Flow) -> Vec<Program> {
    let is_shown = |thing: &&Thing| match thing.kind {
        Kind::Run => true,
        Kind::Device => thing.run().is_none_or(|run| !observation.things.iter().any(|other| is_run(other, run))),
        Kind::Donor | Kind::Agent => false,
    };
    let row = |thing: &Thing| {
        let device = if thing.kind == Kind::Run { device_of(observation, &thing.name) } else { None };
        let served = device.unwrap_or(thing);
        let volume = served.volume();
        Program {
            name: thing.title(),
            kind: kind(thing),
            state: thing.state.clone(),
            flow: flow(served),
            health: volume.map(|volume| volume.health.clone()).unwrap_or_default(),
            is_well: thing.state == "running" && volume.is_none_or(observation::is_well),
            ..memory(thing, volume)
        }
    };
    observation.things.iter().filter(is_shown).map(row).collect()
}

fn is_run(thing: &Thing, name: &str) -> bool {
    thing.kind == Kind::Run && thing.name == name
}

fn kind(thing: &Thing) -> &'static str {
    match &thing.report {
        Report::Run(run) => run.via.as_ref().map_or("run", |via| via.way.name()),
        _ if thing.kind == Kind::Run => "run",
        _ => "device",
    }
}

/// Where its memory is: of a run by its own count, of a device what it stores.
fn memory(thing: &Thing, volume: Option<&DeviceStatus>) -> Program {
    let stored_bytes = volume.map_or(0, |volume| volume.pages_stored * PAGE_SIZE_BYTES as u64);
    match &thing.report {
        Report::Run(run) => {
            let usage = &run.usage;
            Program { local_bytes: Some(usage.charged_bytes), lent_bytes: usage.swapped_bytes, ..Program::default() }
        }
        _ => Program { lent_bytes: stored_bytes, ..Program::default() },
    }
}

/// Donors of everything that has some.
pub(crate) fn links(observation: &Observation) -> Vec<Link> {
    let of = |thing: &Thing| {
        let title = match thing.run() {
            Some(run) => observation.things.iter().find(|other| is_run(other, run)).unwrap_or(thing).title(),
            None => thing.title(),
        };
        let donors = thing.volume().map(|volume| volume.donors.as_slice()).unwrap_or_default();
        donors.iter().map(move |donor| link(donor, &title)).collect::<Vec<_>>()
    };
    observation.things.iter().flat_map(of).collect()
}

fn link(donor: &DonorLinkStatus, of: &str) -> Link {
    let latency = &donor.latency;
    let known = |microseconds: f64| (microseconds > 0.0).then_some(microseconds);
    let mut notes = Vec::new();
    if latency.is_slow {
        notes.push("slow".to_owned());
    }
    // As `status` tells it.
    if latency.waiting_us >= 1e3 {
        notes.push(format!("owes {:.0} ms", latency.waiting_us / 1e3));
    }
    if !donor.last_error.is_empty() && donor.state != "connected" {
        notes.push(donor.last_error.clone());
    }
    Link {
        donor: donor.address.clone(),
        of: of.to_owned(),
        state: donor.state.clone(),
        transport: donor.transport.clone(),
        slabs: donor.slabs,
        p50_us: known(latency.reads.p50_us),
        p99_us: known(latency.reads.p99_us),
        note: notes.join(", "),
    }
}

/// Donors on this machine, the agent's among them.
pub(crate) fn lenders(observation: &Observation) -> Vec<Lender> {
    let row = |thing: &Thing| {
        let donor = thing.donor()?;
        Some(Lender {
            name: thing.name.clone(),
            lent_bytes: donor.lent_bytes,
            quota_bytes: donor.quota_bytes,
            free_bytes: donor.free_to_lend_bytes,
            borrowers: donor.sessions.len() as u64,
            recalls_asked: donor.recalls.asked,
            recalls_returned: donor.recalls.returned,
            recalls_withdrawn: donor.recalls.withdrawn,
            recalls_overdue: donor.recalls.overdue,
            is_draining: donor.draining,
        })
    };
    observation.things.iter().filter_map(row).collect()
}

/// What is degraded, in words.
pub(crate) fn troubles(observation: &Observation) -> Vec<String> {
    let mut troubles = Vec::new();
    for thing in &observation.things {
        let title = format!("{} {}", thing.kind.word(), thing.title());
        if thing.state != "running" {
            troubles.push(format!("{title} is {}", thing.state));
        }
        if let Some(volume) = thing.volume().filter(|volume| !observation::is_well(volume)) {
            troubles.push(format!("{title}: {}", volume.health));
        }
        if let Some(overdue) = thing.donor().map(|donor| donor.recalls.overdue).filter(|overdue| *overdue > 0) {
            troubles.push(format!("{title}: {overdue} slabs that it asked back are overdue"));
        }
        troubles.extend(thing.warnings.iter().map(|warning| format!("{title}: {warning}")));
    }
    troubles
}

#[cfg(test)]
mod tests {
    use spillway_report::run::{Choice, Way};

    use super::*;
    use crate::observation::examples;

    fn rows(observation: &Observation) -> Vec<Program> {
        programs(observation, &|thing| Flow { pages_in: thing.name.len() as f64, ..Flow::default() })
    }

    #[test]
    fn a_run_over_a_swap_device_and_its_device_are_one_row() {
        let mut device = examples::device("run-77-device", 10);
        if let Report::Device(report) = &mut device.report {
            report.run = Some("77".to_owned());
            report.device.health = "disk only".to_owned();
        }
        let mut run = examples::run("77", 0);
        run.program = Some("sort".to_owned());
        if let Report::Run(figures) = &mut run.report {
            (figures.pager, figures.via) = (None, Some(Choice { way: Way::Swap, reason: String::new() }));
        }
        let observation = Observation { memory: None, things: vec![run, device] };
        let rows = rows(&observation);
        assert_eq!(rows.len(), 1);
        assert_eq!((rows[0].name.as_str(), rows[0].kind, rows[0].is_well), ("sort 77", "swap", false));
        assert_eq!(
            (rows[0].flow.pages_in, rows[0].lent_bytes),
            (13.0, 40 << 20),
            "the device's flow, the run's memory"
        );
        assert!(links(&observation).iter().all(|link| link.of == "sort 77"));
        let alone = Observation { memory: None, things: observation.things[1..].to_vec() };
        assert_eq!(super::tests::rows(&alone)[0].kind, "device", "its run is gone");
    }

    #[test]
    fn what_is_wrong_is_told_in_words() {
        let mut observation = examples::observation(10);
        observation.things[0].state = "silent".to_owned();
        if let Report::Device(report) = &mut observation.things[1].report {
            report.device.health = "1 slabs wait for a copy".to_owned();
            report.device.donors[0].latency.is_slow = true;
            report.device.donors[0].latency.waiting_us = 2e6;
            report.device.donors[1].last_error = "timed out".to_owned();
        }
        observation.things[1].warnings.push("another area".to_owned());
        let troubles = troubles(&observation);
        assert_eq!(
            troubles,
            [
                "run 4711 is silent",
                "device swap: 1 slabs wait for a copy",
                "device swap: another area",
                "donor lender: 1 slabs that it asked back are overdue"
            ]
        );
        let notes: Vec<_> =
            links(&observation).into_iter().filter(|link| link.of == "swap").map(|link| link.note).collect();
        assert_eq!(notes, ["slow, owes 2000 ms", "timed out"]);
        assert!(!rows(&observation)[0].is_well && !rows(&observation)[1].is_well);
    }

    #[test]
    fn lenders_tell_their_recalls() {
        let lenders = lenders(&examples::observation(1));
        assert_eq!(lenders.len(), 1);
        let Lender { recalls_asked, recalls_returned, recalls_withdrawn, recalls_overdue, borrowers, .. } = lenders[0];
        assert_eq!((recalls_asked, recalls_returned, recalls_withdrawn, recalls_overdue, borrowers), (7, 3, 2, 1, 1));
    }
}
