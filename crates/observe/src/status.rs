//! `spillway status`: everything of ours on this machine, asked one by one.
//!
//! A process that does not answer is listed as such: silence is never shown as health.

use std::fmt::Write;
use std::path::PathBuf;

use serde_json::Value;
use spillway_console::failure::Failure;
use spillway_console::output::OutputArguments;
use spillway_control::device_record::DeviceRecord;
use spillway_control::registry::{Found, Registry};
use spillway_control::status_socket;
use spillway_donor::status::{DonorStatus, RecallCounts, SessionStatus};
use spillway_fabric::units::PAGE_SIZE_BYTES;
use spillway_machine::memory::Memory;
use spillway_machine::size::human;
use spillway_machine::swap_list::{self, SwapArea};
use spillway_pager::pager::PagerStatus;
use spillway_report::device::DeviceReport;
use spillway_report::donor::{AgentReport, ClusterSummary, SandboxReport};
use spillway_report::format::Format;
use spillway_report::kind::{Kind, Report};
use spillway_report::run::RunReport;
use spillway_report::status::{Item, StatusReport};
use spillway_volume::disk_writer::NOT_RESERVED;
use spillway_volume::status::{DiskStatus, DonorLinkStatus};

use crate::staying_report::{self, When};
use crate::{bandwidth_report, prefetch_report};

/// Asks one entry.
pub fn ask(found: &Found, areas: &[SwapArea]) -> Item {
    let (state, answer) = match (found.is_alive(), status_socket::ask_status(&found.status_socket())) {
        (true, Ok(answer)) => ("running", answer),
        (true, Err(_)) => ("silent", Value::Null),
        (false, Ok(answer)) => ("orphaned", answer),
        (false, Err(_)) => ("dead", Value::Null),
    };
    let mut item = Item {
        kind: found.kind,
        name: found.name.clone(),
        pid: found.owner.map(|owner| owner.pid),
        state: state.to_owned(),
        report: answer,
        swap: None,
        warnings: Vec::new(),
    };
    let path = match item.read() {
        Ok(Report::Device(report)) => Some(PathBuf::from(report.device.path)),
        Ok(_) => None,
        Err(error) => {
            item.warnings.push(format!("its report cannot be read: {error}"));
            // Swap is known as swap, whichever release serves it.
            DeviceRecord::read(&found.path).and_then(|record| record.path)
        }
    };
    item.swap = areas.iter().find(|area| Some(&area.path) == path.as_ref()).cloned();
    let warnings = &mut item.warnings;
    if state == "dead" {
        warnings.push("its process is gone; `spillway doctor --mend` removes what it left".to_owned());
    }
    if state == "orphaned" {
        let off = if item.swap.is_some() { "swap off" } else { "device off" };
        warnings.push(format!(
            "its keeper is gone, so nothing would start its process again; `spillway {off}` ends it well"
        ));
    }
    if let Some(area) = &item.swap {
        warnings.extend(swap_list::rivals(areas, &area.path, area.priority).iter().map(|rival| {
            let path = rival.path.display();
            format!("pages also go to the swap area {path} (priority {}); `swapoff {path}` stops that", rival.priority)
        }));
    }
    item
}

/// Every entry that `wanted` takes; those of other kinds than `kind` are not even asked, because one may be the
/// process that asks.
pub fn collect(registry: &Registry, kind: Option<Kind>, wanted: &dyn Fn(&Item) -> bool) -> Result<Vec<Item>, Failure> {
    let areas = swap_list::read().map_err(|error| Failure::during("/proc/swaps", error))?;
    let entries = registry.entries().map_err(Failure::failed)?;
    let asked = entries.iter().filter(|found| kind.is_none_or(|kind| found.kind == kind));
    Ok(asked.map(|found| ask(found, &areas)).filter(wanted).collect())
}

/// `spillway status`, `device status` and `swap status`.
pub fn show(output: &OutputArguments, kind: Option<Kind>, wanted: &dyn Fn(&Item) -> bool) -> Result<(), Failure> {
    let registry = Registry::open().map_err(Failure::failed)?;
    let items = collect(&registry, kind, wanted)?;
    let status = StatusReport { format: Format::default(), memory: Memory::read().ok(), items };
    if output.json {
        return spillway_console::output::json(&status);
    }
    if status.items.is_empty() {
        return spillway_console::output::text("nothing is running\n");
    }
    let mut text = String::new();
    for item in &status.items {
        describe(&mut text, item);
    }
    spillway_console::output::text(&text)
}

/// A few lines for people. Writing to a string cannot fail, so results are dropped.
fn describe(text: &mut String, item: &Item) {
    let pid = item.pid.map_or_else(|| "?".to_owned(), |pid| pid.to_string());
    let _ = writeln!(text, "{} {}: {} (process {pid})", item.kind.word(), item.name, item.state);
    match item.read() {
        // A warning tells of what cannot be read.
        Ok(Report::None) | Err(_) => {}
        Ok(Report::Device(report)) => describe_device(text, &report, item.swap.as_ref()),
        Ok(Report::Donor(report)) => describe_donor(text, &report.donor, report.sandbox.as_ref()),
        Ok(Report::Agent(report)) => describe_agent(text, &report),
        Ok(Report::Run(report)) => describe_run(text, &report),
    }
    for warning in &item.warnings {
        let _ = writeln!(text, "  warning: {warning}");
    }
}

fn describe_device(text: &mut String, report: &DeviceReport, swap: Option<&SwapArea>) {
    let device = &report.device;
    let (path, size) = (&device.path, human(device.size_bytes));
    let _ = writeln!(text, "  {path}, {size}, {}, health: {}", device.redundancy, device.health);
    let _ = writeln!(text, "  front end: {}", device.frontend);
    let (protection, same_filled) = (&device.protection, device.pages_same_filled);
    let _ = writeln!(text, "  pages are {protection}; {same_filled} were one word over and over, and did not leave");
    let stored = human(device.pages_stored * PAGE_SIZE_BYTES as u64);
    let (traffic, lost) = (&device.traffic, device.pages_lost);
    let _ = writeln!(text, "  stored {stored}, pages out {}, in {}, lost {lost}", traffic.pages_out, traffic.pages_in);
    if let Some(bound) = &device.bandwidth {
        let _ = writeln!(text, "  {}", bandwidth_report::describe(bound));
    }
    if traffic.bursts > 0 {
        let (bursts, seconds) = (traffic.bursts, traffic.awake_seconds);
        let _ = writeln!(text, "  idle CPUs kept awake for {bursts} bursts, {seconds:.1} s in all");
    }
    if let Some(area) = swap {
        let _ = writeln!(
            text,
            "  swap: {} of {} in use, priority {}",
            human(area.used_bytes),
            human(area.size_bytes),
            area.priority
        );
    }
    if let Some(DiskStatus { blocks, .. }) = &device.disk {
        if blocks.ends_with('%') {
            let _ = writeln!(text, "  the backing file is being filled: {blocks}");
        } else if blocks == NOT_RESERVED {
            let _ = writeln!(
                text,
                "  the backing file takes its blocks as pages are written; a disk that others fill may lack them"
            );
        }
    }
    if let Some(line) = report.prefetch.as_ref().and_then(prefetch_report::describe) {
        let _ = writeln!(text, "  {line}");
    }
    device.donors.iter().for_each(|donor| describe_link(text, donor));
    for note in &report.notes {
        let _ = writeln!(text, "  note: {note}");
    }
}

/// A donor of a device, or of a run by the pager.
fn describe_link(text: &mut String, donor: &DonorLinkStatus) {
    let DonorLinkStatus { address, state, slabs, slabs_by_tcp, .. } = donor;
    let transport = if donor.transport.is_empty() { "-" } else { &donor.transport };
    let _ = write!(text, "  donor {address}: {state} {transport}, {slabs} slabs");
    if donor.is_leaving {
        let _ = write!(text, ", being removed");
    }
    if *slabs_by_tcp > 0 {
        let _ = write!(text, ", {slabs_by_tcp} of them over tcp: the donor could not register them");
    }
    let _ = write!(text, "{}{}{}", site_of(donor), wrong_pages_of(donor), latency_of(donor));
    let error = &donor.last_error;
    let _ = if error.is_empty() { writeln!(text) } else { writeln!(text, " ({error})") };
    if !donor.transport_reason.is_empty() {
        let _ = writeln!(text, "    not by RDMA: {}", donor.transport_reason);
    }
}

/// How often a donor sent something else than what was written, if it did.
fn wrong_pages_of(donor: &DonorLinkStatus) -> String {
    let pages = donor.wrong_pages;
    let consequence = if donor.is_distrusted { ", not trusted any more" } else { "" };
    if pages == 0 { String::new() } else { format!(", {pages} wrong pages{consequence}") }
}

/// Where a donor stands, if it said so.
fn site_of(donor: &DonorLinkStatus) -> String {
    let labels = [("zone", &donor.zone), ("rack", &donor.rack)].into_iter().filter(|(_, label)| !label.is_empty());
    labels.map(|(name, label)| format!(", {name} {label}")).collect()
}

/// How fast a donor answers, if something is known of that.
fn latency_of(donor: &DonorLinkStatus) -> String {
    let latency = &donor.latency;
    let mut text = String::new();
    if latency.reads.p50_us > 0.0 {
        text += &format!(", reads p50 {:.0} us, p99 {:.0} us", latency.reads.p50_us, latency.reads.p99_us);
    }
    let waiting_ms = latency.waiting_us / 1e3;
    if waiting_ms >= 1.0 {
        text += &format!(", owes an answer since {waiting_ms:.0} ms");
    }
    if latency.reads_taken_elsewhere > 0 {
        text += &format!(", {} reads taken elsewhere", latency.reads_taken_elsewhere);
    }
    if latency.is_slow {
        text += ", SLOW";
    }
    text
}

fn describe_agent(text: &mut String, report: &AgentReport) {
    if let Some(url) = &report.metrics {
        let _ = writeln!(text, "  metrics: {url}");
    }
    if let Some(path) = &report.web_socket {
        let _ = writeln!(text, "  metrics: curl --unix-socket {} http://localhost/metrics", path.display());
    }
    if let Some(donor) = &report.donor {
        describe_donor(text, donor, report.sandbox.as_ref());
    }
    if let Some(cluster) = &report.cluster {
        describe_cluster(text, cluster);
    }
}

fn describe_donor(text: &mut String, donor: &DonorStatus, sandbox: Option<&SandboxReport>) {
    let _ = writeln!(
        text,
        "  lent {} of {}, {} free{}",
        human(donor.lent_bytes),
        human(donor.quota_bytes),
        human(donor.free_to_lend_bytes),
        if donor.draining { ", DRAINING (`spillway drain --undo` lends again)" } else { "" }
    );
    let RecallCounts { asked, returned, withdrawn, overdue } = donor.recalls;
    if asked > 0 {
        let _ = writeln!(
            text,
            "  asked back {asked} slabs: {returned} returned, {withdrawn} may stay after all, {overdue} overdue"
        );
    }
    if let Some(SandboxReport { state, why }) = sandbox {
        let why = if why.is_empty() { String::new() } else { format!(": {}", why.join("; ")) };
        let _ = writeln!(text, "  sandbox {state}{why}");
    }
    donor.sessions.iter().for_each(|session| describe_session(text, session));
}

/// The cluster of an agent.
fn describe_cluster(text: &mut String, cluster: &ClusterSummary) {
    let ClusterSummary { name, machines, warnings, .. } = cluster;
    let _ = writeln!(text, "  cluster {name}: {machines} machines; `spillway cluster` shows them");
    for warning in warnings {
        let _ = writeln!(text, "  warning: {warning}");
    }
}

/// One borrower of a donor.
fn describe_session(text: &mut String, session: &SessionStatus) {
    let SessionStatus { volume, peer, transport, .. } = session;
    let _ = write!(text, "  volume {volume} of {peer}: {transport}, {} lent", human(session.lent_bytes));
    // Over shared memory the donor cannot count.
    let _ = match (session.read_bytes, session.written_bytes) {
        (Some(read), Some(written)) => write!(text, ", read {}, written {}", human(read), human(written)),
        _ => write!(text, ", pages counted by the borrower"),
    };
    let _ = match session.weight {
        Some(weight) => writeln!(text, ", weight {weight}"),
        // The borrower moves its pages itself.
        None => writeln!(text, ", no weight"),
    };
}

fn describe_run(text: &mut String, run: &RunReport) {
    let (footprint, local, lent) =
        (human(run.footprint_bytes), human(run.usage.charged_bytes), human(run.usage.swapped_bytes));
    let bound = run.lend_bytes_max.map(|bytes| format!(" of at most {}", human(bytes))).unwrap_or_default();
    let _ = writeln!(text, "  footprint {footprint}, local {local}, lent {lent}{bound}, budget {}", run.local);
    if run.outside_bytes_max > 0 {
        let outside = human(run.outside_bytes_max);
        let _ = writeln!(text, "  in other memory groups, beside the budget: up to {outside}");
    }
    let _ = writeln!(text, "  program {}, volume {} at donors", run.program, run.volume);
    if let Some(via) = &run.via {
        let _ = writeln!(text, "  memory comes by {} ({})", via.way.name(), via.reason);
    }
    if let Some(bound) = run.pager.as_ref().and_then(|pager| pager.device.bandwidth.as_ref()) {
        let _ = writeln!(text, "  {}", bandwidth_report::describe(bound));
    }
    if let Some(line) = run.prefetch.as_ref().and_then(prefetch_report::describe) {
        let _ = writeln!(text, "  {line}");
    }
    if let Some(pager) = &run.pager {
        describe_pager(text, pager);
    }
}

fn describe_pager(text: &mut String, PagerStatus { device, pager }: &PagerStatus) {
    let _ = writeln!(
        text,
        "  health: {}; faults: {} filled, {} staged, {} zero, {} first writes; pages out: {} written, {} clean",
        device.health,
        pager.fill.count,
        pager.staged.count,
        pager.zero.count,
        pager.write.count,
        pager.pages_out_dirty,
        pager.pages_out_clean,
    );
    for line in staying_report::describe(pager, When::Now) {
        let _ = writeln!(text, "  {line}");
    }
    device.donors.iter().for_each(|donor| describe_link(text, donor));
}

#[cfg(test)]
mod tests {
    use serde::Serialize;
    use serde_json::json;
    use spillway_control::test_support::temporary_registry;
    use spillway_report::prefetch::{PrefetchReport, Samples};
    use spillway_report::test_support;

    use super::*;

    fn described(kind: Kind, report: impl Serialize) -> String {
        let (name, state, report) = ("x".to_owned(), "running".to_owned(), json!(report));
        let mut text = String::new();
        describe(&mut text, &Item { kind, name, pid: Some(7), state, report, swap: None, warnings: Vec::new() });
        text
    }

    fn device(change: impl FnOnce(&mut DeviceReport)) -> String {
        let mut report = test_support::device_report("x", 1);
        change(&mut report);
        described(Kind::Device, report)
    }

    #[test]
    fn people_read_what_matters_of_a_device() {
        let text = device(|report| {
            report.notes = vec!["careful".to_owned()];
            let device = &mut report.device;
            (device.path, device.health) = ("/dev/loop0".to_owned(), "disk only".to_owned());
            device.frontend = "nbd (one socket from the kernel; no ublk: not loaded)".to_owned();
            device.disk.as_mut().unwrap().blocks = "40 %".to_owned();
            let donor = &mut device.donors[0];
            (donor.state, donor.zone, donor.last_error) =
                ("lost".to_owned(), "east".to_owned(), "timed out".to_owned());
            (donor.is_leaving, donor.latency.is_slow, donor.latency.waiting_us) = (true, true, 2500.0);
        });
        for expected in [
            "/dev/loop0, 1 GiB, disk, health: disk only",
            "front end: nbd (one socket from the kernel; no ublk: not loaded)\n",
            "donor a:1: lost tcp, 2 slabs, being removed, zone east, reads p50 80 us, p99 400 us, owes an answer since 2 ms, 3 reads taken elsewhere, SLOW (timed out)",
            "note: careful",
            "being filled: 40 %",
        ] {
            assert!(text.contains(expected), "{text}");
        }
    }

    #[test]
    fn blocks_that_are_not_reserved_are_told() {
        let text = |blocks: &str| device(|report| report.device.disk.as_mut().unwrap().blocks = blocks.to_owned());
        assert!(text("not reserved").contains("takes its blocks as pages are written"));
        assert!(!text("all").contains("blocks"));
    }

    #[test]
    fn a_donor_tells_bytes_only_where_it_counted_them() {
        let mut donor = test_support::donor_status(32 << 20);
        donor.draining = true;
        donor.sessions[0].weight = Some(4);
        let shm = "shm".to_owned();
        let (read_bytes, written_bytes, weight) = (None, None, None);
        donor.sessions.push(SessionStatus {
            transport: shm,
            read_bytes,
            written_bytes,
            weight,
            ..donor.sessions[0].clone()
        });
        let text = described(Kind::Donor, json!({ "donor": donor }));
        for expected in [
            "lent 32 MiB of 1 GiB, 512 MiB free, DRAINING",
            "  asked back 7 slabs: 3 returned, 2 may stay after all, 1 overdue\n",
            "volume v of p:1: tcp, 32 MiB lent, read 4 KiB, written 8 KiB, weight 4\n",
            "volume v of p:1: shm, 32 MiB lent, pages counted by the borrower, no weight\n",
        ] {
            assert!(text.contains(expected), "{text}");
        }
    }

    #[test]
    fn an_agent_tells_where_its_metrics_are_and_lends_nothing_that_it_does_not() {
        let metrics = Some("http://127.0.0.1:7071/metrics".to_owned());
        let text = described(Kind::Agent, AgentReport { metrics, ..AgentReport::default() });
        assert_eq!(text, "agent x: running (process 7)\n  metrics: http://127.0.0.1:7071/metrics\n");
    }

    #[test]
    fn a_run_tells_how_its_memory_comes_and_what_the_pager_did() {
        let mut run = test_support::run_report(7);
        run.pager.as_mut().unwrap().pager.staying.memfd_bytes = 5 << 20;
        let text = described(Kind::Run, run);
        for expected in [
            "memory comes by pager (asked for)",
            "health: ok; faults: 7 filled",
            "donor a:1: connected tcp",
            "5 MiB of memfd",
        ] {
            assert!(text.contains(expected), "{text}");
        }
    }

    #[test]
    fn a_run_tells_what_it_prefetches() {
        let (policy, samples) = ("streams".to_owned(), Samples { major: 3, ..Samples::default() });
        let prefetch = Some(PrefetchReport { policy, is_active: true, samples, ..PrefetchReport::default() });
        let text = described(Kind::Run, RunReport { prefetch, ..test_support::run_report(7) });
        assert!(text.contains("\n  prefetching: streams; 3 samples"), "{text}");
    }

    #[test]
    fn silence_is_not_health() {
        let (_directory, registry) = temporary_registry();
        let _entry = registry.claim(Kind::Device, "silent").unwrap();
        let items = collect(&registry, Some(Kind::Device), &|_| true).unwrap();
        assert_eq!((items.len(), items[0].state.as_str()), (1, "silent"));
        assert!(collect(&registry, Some(Kind::Device), &Item::is_swap).unwrap().is_empty());
    }

    /// What is told of a swap device on `/dev/loop0` that is served, of an owner who lives or not.
    fn asked(owner_lives: bool, paths: &[&str]) -> Item {
        let mut report = test_support::device_report("swap", 0);
        report.device.path = "/dev/loop0".to_owned();
        asked_for(&json!(report), owner_lives, paths)
    }

    /// The same of a process that answers with `answer`.
    fn asked_for(answer: &Value, owner_lives: bool, paths: &[&str]) -> Item {
        let area = |path: &&str| SwapArea { path: path.into(), size_bytes: 1 << 30, used_bytes: 0, priority: 5 };
        let areas: Vec<_> = paths.iter().map(area).collect();
        let answer = spillway_control::status_socket::Answer::status(answer);
        let (_directory, registry) = temporary_registry();
        let entry = registry.claim(Kind::Device, "swap").unwrap();
        let server = spillway_control::status_socket::StatusServer::bind(&entry.status_socket()).unwrap();
        let found = registry.find(Kind::Device, "swap").unwrap();
        let found = Found { owner: found.owner.filter(|_| owner_lives), ..found };
        std::thread::scope(|scope| {
            let asking = scope.spawn(|| ask(&found, &areas));
            while !asking.is_finished() {
                server.serve(spillway_machine::limits::POLL_INTERVAL, &mut |_| answer.clone());
            }
            asking.join().unwrap()
        })
    }

    #[test]
    fn rivals_of_a_swap_device_are_warned_of() {
        let item = asked(true, &["/dev/loop0", "/swapfile"]);
        assert!(item.is_swap() && item.state == "running");
        assert!(item.warnings[0].contains("/swapfile"), "{:?}", item.warnings);
    }

    #[test]
    fn a_device_that_is_served_without_its_keeper_is_not_called_dead() {
        let item = asked(false, &["/dev/loop0"]);
        assert!(item.is_swap() && item.state == "orphaned");
        assert!(item.warnings[0].contains("`spillway swap off`"), "{:?}", item.warnings);
        assert!(asked(false, &[]).warnings[0].contains("`spillway device off`"));
    }

    #[test]
    fn a_report_that_cannot_be_read_is_told_with_what_to_do_and_not_shown_as_zeroes() {
        for (answer, expected) in [
            (json!({"device": {"size_bytes": "many"}}), "another release of spillway wrote it"),
            (json!({"format": 1000}), "use the release that wrote it"),
        ] {
            let item = asked_for(&answer, true, &[]);
            assert!(item.warnings[0].contains(expected), "{:?}", item.warnings);
            assert!(item.read().unwrap_err().to_string().contains(expected));
            let mut text = String::new();
            describe(&mut text, &item);
            assert_eq!(text.lines().count(), 2, "its state and the warning: {text}");
            assert_eq!(json!(item)["report"], answer, "other programs may know it");
        }
    }
}
