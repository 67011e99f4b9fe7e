//! Things that are observed, for tests: one of each kind.

use spillway_machine::memory::Memory;
use spillway_report::kind::{Kind, Report};
use spillway_report::test_support::{device_report, donor_report, donor_status, run_report};

use super::{Observation, Thing};

/// A thing that runs.
pub(crate) fn thing(kind: Kind, name: &str, report: Report) -> Thing {
    Thing {
        kind,
        name: name.to_owned(),
        pid: Some(7),
        program: None,
        state: "running".to_owned(),
        warnings: Vec::new(),
        swap_used_bytes: None,
        report,
    }
}

/// A run by the pager.
pub(crate) fn run(name: &str, pages_in: u64) -> Thing {
    thing(Kind::Run, name, Report::Run(Box::new(run_report(pages_in))))
}

/// A swap device.
pub(crate) fn device(name: &str, pages_in: u64) -> Thing {
    let report = Report::Device(Box::new(device_report(name, pages_in)));
    Thing { swap_used_bytes: Some(123 << 20), ..thing(Kind::Device, name, report) }
}

/// A machine with one of each.
pub(crate) fn observation(pages_in: u64) -> Observation {
    let donor = donor_report(donor_status(96 << 20));
    Observation {
        memory: Some(Memory { total_bytes: 8 << 30, available_bytes: 3 << 30 }),
        things: vec![run("4711", pages_in), device("swap", pages_in), thing(Kind::Donor, "lender", donor)],
    }
}
