//! `spillway doctor`: what this kernel and user can do, the one command that mends each missing thing, and what dead
//! processes of ours left behind.

use std::fmt::Write;

use serde::Serialize;
use spillway_console::failure::Failure;
use spillway_console::output;
use spillway_control::checks::check::{Check, State};
use spillway_control::checks::{self, hindrance};
use spillway_control::mend;
use spillway_control::registry::Registry;
use spillway_control::system::System;
use spillway_device_process::revival;
use spillway_report::run::Way;

use crate::arguments::DoctorArguments;

/// The whole answer; its JSON form is stable.
#[derive(Clone, Debug, Serialize)]
struct Report {
    /// Every capability.
    checks: Vec<Check>,
    /// What dead processes left behind, and devices that were given up.
    remains: Vec<String>,
    /// What `--mend` did, line by line.
    mended: Vec<String>,
}

/// Runs the command; fails if memory can reach programs in no way.
pub(crate) fn execute(arguments: &DoctorArguments) -> Result<(), Failure> {
    if arguments.on_order && !is_ordered() {
        return Ok(());
    }
    let registry = Registry::open().map_err(Failure::failed)?;
    let mut mended = if arguments.mend { mend::mend_all(&registry)? } else { Vec::new() };
    // A mender that a dead run ordered has no more to do.
    if arguments.mend && !arguments.on_order {
        mended.extend(revival::revive_all(&registry)?);
    }
    let mut remains = mend::list(&registry)?;
    remains.extend(revival::list(&registry)?);
    let report = Report { checks: checks::all(&System::this()), remains, mended };
    if arguments.output.json {
        output::json(&report)?;
    } else {
        output::text(&describe(&report))?;
    }
    if arguments.mend && !report.remains.is_empty() {
        return Err(Failure::Failed(format!("could not mend: {}", report.remains.join(", "))));
    }
    match (hindrance(&report.checks, Way::Swap), hindrance(&report.checks, Way::Pager)) {
        (Some(swap), Some(pager)) if !arguments.mend => Err(Failure::Failed(format!(
            "memory can reach programs in no way here: a swap device lacks {}, the pager {}",
            swap.name, pager.name
        ))),
        _ => Ok(()),
    }
}

/// Whether the process that started this one tells it to begin; false at its end.
fn is_ordered() -> bool {
    std::io::stdin().read_line(&mut String::new()).is_ok_and(|length| length > 0)
}

/// What a way can do here.
fn describe_way(text: &mut String, report: &Report, way: Way, name: &str) {
    let _ = match hindrance(&report.checks, way) {
        None => writeln!(text, "{name}: can be used"),
        Some(check) => writeln!(text, "{name}: cannot be used, see {}", check.name),
    };
}

/// Lines for people. Writing to a string cannot fail, so results are dropped.
fn describe(report: &Report) -> String {
    let mut text = String::new();
    for check in &report.checks {
        let mark = match check.state {
            State::Good => "ok     ",
            State::Optional => "without",
            State::Bad => "MISSING",
        };
        let _ = writeln!(text, "{mark} {}: {}", check.name, check.detail);
        if let Some(mend) = &check.mend {
            let _ = writeln!(text, "        mend: {mend}");
        }
    }
    describe_way(&mut text, report, Way::Swap, "swap devices, `run --via swap`");
    describe_way(&mut text, report, Way::Pager, "the pager, `run --via pager`");
    for line in &report.mended {
        let _ = writeln!(text, "{line}");
    }
    match report.remains.as_slice() {
        [] => text.push_str("nothing is left of dead processes\n"),
        remains => {
            for line in remains {
                let _ = writeln!(text, "left behind: {line}");
            }
            text.push_str("        mend: spillway doctor --mend\n");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_see_state_and_command() {
        let check = |state, mend: Option<&str>| Check {
            name: "FUSE",
            needed_for: Way::Swap,
            state,
            detail: "no /dev/fuse".to_owned(),
            mend: mend.map(str::to_owned),
        };
        let report = Report {
            checks: vec![check(State::Bad, Some("modprobe fuse")), check(State::Good, None)],
            remains: vec!["run '7'".to_owned()],
            mended: Vec::new(),
        };
        let text = describe(&report);
        assert!(text.contains("MISSING FUSE: no /dev/fuse\n        mend: modprobe fuse\n"), "{text}");
        assert!(text.contains("swap`: cannot be used, see FUSE\n") && text.contains("pager`: can be used\n"), "{text}");
        assert!(text.contains("left behind: run '7'") && text.contains("doctor --mend"), "{text}");
        let clean = Report { checks: Vec::new(), remains: Vec::new(), mended: Vec::new() };
        assert!(describe(&clean).contains("nothing is left"));
    }
}
