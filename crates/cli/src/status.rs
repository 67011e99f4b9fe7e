//! `spillway status`: everything of ours on this machine, asked one by one.
//!
//! A process that does not answer is listed as such: silence is never shown as health.

use std::fmt::Write;

use serde::Serialize;
use serde_json::Value;
use spillway_machine::memory::Memory;
use spillway_machine::size::human;
use spillway_machine::swap_list::{self, SwapArea};
use spillway_volume::disk_writer::NOT_RESERVED;

use crate::arguments::OutputArguments;
use crate::bandwidth_report;
use crate::failure::Failure;
use crate::prefetch_report;
use crate::registry::{Found, Kind, Registry};
use crate::status_socket;
use crate::staying_report;

/// One thing of ours.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Item {
    /// What it is.
    pub(crate) kind: Kind,
    /// Its name.
    pub(crate) name: String,
    /// Whose it is.
    pub(crate) pid: Option<u32>,
    /// `running`, `silent` (its process does not answer), `orphaned` (a device whose keeper is gone, and which is
    /// served all the same) or `dead` (its process is gone and left it).
    pub(crate) state: &'static str,
    /// What it says of itself; null if it says nothing.
    pub(crate) report: Value,
    /// The swap area on a device.
    pub(crate) swap: Option<SwapArea>,
    /// What the user should know.
    pub(crate) warnings: Vec<String>,
}

/// The whole answer; its JSON form is stable.
#[derive(Clone, Debug, Serialize)]
struct Status {
    memory: Option<Memory>,
    items: Vec<Item>,
}

/// Asks one entry.
pub(crate) fn ask(found: &Found, areas: &[SwapArea]) -> Item {
    let (state, report) = match (found.is_alive(), status_socket::ask_status(&found.status_socket())) {
        (true, Ok(report)) => ("running", report),
        (true, Err(_)) => ("silent", Value::Null),
        (false, Ok(report)) => ("orphaned", report),
        (false, Err(_)) => ("dead", Value::Null),
    };
    let path = report.pointer("/device/path").and_then(Value::as_str).unwrap_or_default();
    let swap = areas.iter().find(|area| area.path.as_os_str() == path).cloned();
    let mut warnings = Vec::new();
    if state == "dead" {
        warnings.push("its process is gone; `spillway doctor --mend` removes what it left".to_owned());
    }
    if state == "orphaned" {
        let off = if swap.is_some() { "swap off" } else { "device off" };
        warnings.push(format!(
            "its keeper is gone, so nothing would start its process again; `spillway {off}` ends it well"
        ));
    }
    if let Some(area) = &swap {
        warnings.extend(swap_list::rivals(areas, &area.path, area.priority).iter().map(|rival| {
            let path = rival.path.display();
            format!("pages also go to the swap area {path} (priority {}); `swapoff {path}` stops that", rival.priority)
        }));
    }
    Item {
        kind: found.kind,
        name: found.name.clone(),
        pid: found.owner.map(|owner| owner.pid),
        state,
        report,
        swap,
        warnings,
    }
}

/// Every entry that `wanted` takes; those of other kinds than `kind` are not even asked, because one may be the
/// process that asks.
pub(crate) fn collect(
    registry: &Registry,
    kind: Option<Kind>,
    wanted: &dyn Fn(&Item) -> bool,
) -> Result<Vec<Item>, Failure> {
    let areas = swap_list::read().map_err(|error| Failure::during("/proc/swaps", error))?;
    let entries = registry.entries().map_err(Failure::failed)?;
    let asked = entries.iter().filter(|found| kind.is_none_or(|kind| found.kind == kind));
    Ok(asked.map(|found| ask(found, &areas)).filter(wanted).collect())
}

/// `spillway status`, `device status` and `swap status`.
pub(crate) fn show(
    output: &OutputArguments,
    kind: Option<Kind>,
    wanted: &dyn Fn(&Item) -> bool,
) -> Result<(), Failure> {
    let registry = Registry::open().map_err(Failure::failed)?;
    let status = Status { memory: Memory::read().ok(), items: collect(&registry, kind, wanted)? };
    if output.json {
        return crate::output::json(&status);
    }
    if status.items.is_empty() {
        return crate::output::text("nothing is running\n");
    }
    let mut text = String::new();
    for item in &status.items {
        describe(&mut text, item);
    }
    crate::output::text(&text)
}

impl Item {
    /// Whether it is a swap device.
    pub(crate) fn is_swap(&self) -> bool {
        self.swap.is_some()
    }

    /// What it says of itself.
    pub(crate) fn report(&self) -> &Value {
        &self.report
    }

    /// Its name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Bytes of the pages that a device stores at its donors.
    pub(crate) fn stored_bytes(&self) -> u64 {
        self.number("/device/pages_stored") * 4096
    }

    /// The run that a device belongs to.
    pub(crate) fn run(&self) -> Option<&str> {
        self.report.get("run").and_then(Value::as_str)
    }

    fn text(&self, pointer: &str) -> &str {
        self.report.pointer(pointer).and_then(Value::as_str).unwrap_or("-")
    }

    fn number(&self, pointer: &str) -> u64 {
        self.report.pointer(pointer).and_then(Value::as_u64).unwrap_or(0)
    }
}

/// A few lines for people. Writing to a string cannot fail, so results are dropped.
fn describe(text: &mut String, item: &Item) {
    let pid = item.pid.map_or_else(|| "?".to_owned(), |pid| pid.to_string());
    let _ = writeln!(text, "{} {}: {} (process {pid})", item.kind.word(), item.name, item.state);
    if item.report.is_object() {
        match item.kind {
            Kind::Device => describe_device(text, item),
            Kind::Donor => describe_donor(text, item),
            Kind::Agent => {
                describe_donor(text, item);
                describe_cluster(text, item);
            }
            Kind::Run => describe_run(text, item),
        }
    }
    for warning in &item.warnings {
        let _ = writeln!(text, "  warning: {warning}");
    }
}

fn describe_device(text: &mut String, item: &Item) {
    let (path, size) = (item.text("/device/path"), human(item.number("/device/size_bytes")));
    let _ = writeln!(
        text,
        "  {path}, {size}, {}, health: {}",
        item.text("/device/redundancy"),
        item.text("/device/health")
    );
    let _ = writeln!(text, "  front end: {}", item.text("/device/frontend"));
    let (protection, same_filled) = (item.text("/device/protection"), item.number("/device/pages_same_filled"));
    let _ = writeln!(text, "  pages are {protection}; {same_filled} were one word over and over, and did not leave");
    let stored = human(item.number("/device/pages_stored") * 4096);
    let (out, into) = (item.number("/device/traffic/pages_out"), item.number("/device/traffic/pages_in"));
    let lost = item.number("/device/pages_lost");
    let _ = writeln!(text, "  stored {stored}, pages out {out}, in {into}, lost {lost}");
    if let Some(line) = item.report.pointer("/device/bandwidth").and_then(bandwidth_report::describe) {
        let _ = writeln!(text, "  {line}");
    }
    let bursts = item.number("/device/traffic/bursts");
    if bursts > 0 {
        let seconds = item.report.pointer("/device/traffic/awake_seconds").and_then(Value::as_f64).unwrap_or_default();
        let _ = writeln!(text, "  idle CPUs kept awake for {bursts} bursts, {seconds:.1} s in all");
    }
    if let Some(area) = &item.swap {
        let _ = writeln!(
            text,
            "  swap: {} of {} in use, priority {}",
            human(area.used_bytes),
            human(area.size_bytes),
            area.priority
        );
    }
    let blocks = item.text("/device/disk/blocks");
    if blocks.ends_with('%') {
        let _ = writeln!(text, "  the backing file is being filled: {blocks}");
    } else if blocks == NOT_RESERVED {
        let _ = writeln!(
            text,
            "  the backing file takes its blocks as pages are written; a disk that others fill may lack them"
        );
    }
    if let Some(line) = item.report.get("prefetch").and_then(prefetch_report::describe) {
        let _ = writeln!(text, "  {line}");
    }
    describe_donors(text, item.report.pointer("/device/donors"));
    for note in item.report.get("notes").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str) {
        let _ = writeln!(text, "  note: {note}");
    }
}

/// The donors of a device, or of a run by the pager.
fn describe_donors(text: &mut String, donors: Option<&Value>) {
    for donor in donors.and_then(Value::as_array).into_iter().flatten() {
        let field = |name: &str| donor.get(name).and_then(Value::as_str).unwrap_or("-").to_owned();
        let slabs = donor.get("slabs").and_then(Value::as_u64).unwrap_or(0);
        let _ = write!(text, "  donor {}: {} {}, {slabs} slabs", field("address"), field("state"), field("transport"));
        let is_leaving = donor.get("is_leaving").and_then(Value::as_bool) == Some(true);
        let leaving = if is_leaving { ", being removed" } else { "" };
        let _ = write!(text, "{leaving}");
        let by_tcp = donor.get("slabs_by_tcp").and_then(Value::as_u64).unwrap_or(0);
        if by_tcp > 0 {
            let _ = write!(text, ", {by_tcp} of them over tcp: the donor could not register them");
        }
        let _ = write!(text, "{}{}{}", site_of(donor), wrong_pages_of(donor), latency_of(donor));
        let error = field("last_error");
        let _ = if error.is_empty() || error == "-" { writeln!(text) } else { writeln!(text, " ({error})") };
        let reason = field("transport_reason");
        if !reason.is_empty() && reason != "-" {
            let _ = writeln!(text, "    not by RDMA: {reason}");
        }
    }
}

/// How often a donor sent something else than what was written, if it did.
fn wrong_pages_of(donor: &Value) -> String {
    let pages = donor.get("wrong_pages").and_then(Value::as_u64).unwrap_or(0);
    let is_distrusted = donor.get("is_distrusted").and_then(Value::as_bool).unwrap_or(false);
    let consequence = if is_distrusted { ", not trusted any more" } else { "" };
    if pages == 0 { String::new() } else { format!(", {pages} wrong pages{consequence}") }
}

/// Where a donor stands, if it said so.
fn site_of(donor: &Value) -> String {
    let label = |name: &'static str| donor.get(name).and_then(Value::as_str).filter(|label| !label.is_empty());
    let named = ["zone", "rack"].into_iter().filter_map(|name| label(name).map(|label| format!(", {name} {label}")));
    named.collect()
}

/// How fast a donor answers, if something is known of that.
fn latency_of(donor: &Value) -> String {
    let number = |path: &str| donor.pointer(path).and_then(Value::as_f64).unwrap_or(0.0);
    let mut text = String::new();
    let [p50_us, p99_us] = ["/latency/reads/p50_us", "/latency/reads/p99_us"].map(number);
    if p50_us > 0.0 {
        text += &format!(", reads p50 {p50_us:.0} us, p99 {p99_us:.0} us");
    }
    let waiting_ms = number("/latency/waiting_us") / 1e3;
    if waiting_ms >= 1.0 {
        text += &format!(", owes an answer since {waiting_ms:.0} ms");
    }
    let elsewhere = number("/latency/reads_taken_elsewhere");
    if elsewhere > 0.0 {
        text += &format!(", {elsewhere:.0} reads taken elsewhere");
    }
    if donor.pointer("/latency/is_slow").and_then(Value::as_bool) == Some(true) {
        text += ", SLOW";
    }
    text
}

fn describe_donor(text: &mut String, item: &Item) {
    if let Some(url) = item.report.get("metrics").and_then(Value::as_str) {
        let _ = writeln!(text, "  metrics: {url}");
    }
    if let Some(path) = item.report.get("web_socket").and_then(Value::as_str) {
        let _ = writeln!(text, "  metrics: curl --unix-socket {path} http://localhost/metrics");
    }
    if item.report.get("donor").is_none_or(Value::is_null) {
        return;
    }
    let number = |name: &str| human(item.number(&format!("/donor/{name}")));
    let _ = writeln!(
        text,
        "  lent {} of {}, {} free{}",
        number("lent_bytes"),
        number("quota_bytes"),
        number("free_to_lend_bytes"),
        if item.report.pointer("/donor/draining").and_then(Value::as_bool) == Some(true) {
            ", DRAINING (`spillway drain --undo` lends again)"
        } else {
            ""
        }
    );
    describe_recalls(text, item);
    describe_sandbox(text, item);
    let sessions = item.report.pointer("/donor/sessions").and_then(Value::as_array);
    sessions.into_iter().flatten().for_each(|session| describe_session(text, session));
}

/// Slabs that a donor asked back, if there were any.
fn describe_recalls(text: &mut String, item: &Item) {
    let count = |name: &str| item.number(&format!("/donor/recalls/{name}"));
    if count("asked") > 0 {
        let [asked, returned, withdrawn, overdue] = ["asked", "returned", "withdrawn", "overdue"].map(count);
        let _ = writeln!(
            text,
            "  asked back {asked} slabs: {returned} returned, {withdrawn} may stay after all, {overdue} overdue"
        );
    }
}

/// Whether a donor's process has given up what it does not need, and why not.
fn describe_sandbox(text: &mut String, item: &Item) {
    let Some(state) = item.report.pointer("/sandbox/state").and_then(Value::as_str) else { return };
    let why = item.report.pointer("/sandbox/why").and_then(Value::as_array).cloned().unwrap_or_default();
    let why: Vec<&str> = why.iter().filter_map(Value::as_str).collect();
    let why = if why.is_empty() { String::new() } else { format!(": {}", why.join("; ")) };
    let _ = writeln!(text, "  sandbox {state}{why}");
}

/// The cluster of an agent, if it belongs to one.
fn describe_cluster(text: &mut String, item: &Item) {
    let Some(cluster) = item.report.get("cluster").filter(|cluster| cluster.is_object()) else { return };
    let name = cluster.get("name").and_then(Value::as_str).unwrap_or("-");
    let machines = cluster.get("machines").and_then(Value::as_u64).unwrap_or(0);
    let _ = writeln!(text, "  cluster {name}: {machines} machines; `spillway cluster` shows them");
    let warnings = cluster.get("warnings").and_then(Value::as_array);
    for warning in warnings.into_iter().flatten().filter_map(Value::as_str) {
        let _ = writeln!(text, "  warning: {warning}");
    }
}

/// One borrower of a donor.
fn describe_session(text: &mut String, session: &Value) {
    let word = |name: &str| session.get(name).and_then(Value::as_str).unwrap_or("-");
    let bytes = |name: &str| session.get(name).and_then(Value::as_u64);
    let lent = human(bytes("lent_bytes").unwrap_or(0));
    let _ = write!(text, "  volume {} of {}: {}, {lent} lent", word("volume"), word("peer"), word("transport"));
    // Over shared memory the donor cannot count.
    let _ = match (bytes("read_bytes"), bytes("written_bytes")) {
        (Some(read), Some(written)) => write!(text, ", read {}, written {}", human(read), human(written)),
        _ => write!(text, ", pages counted by the borrower"),
    };
    let _ = match bytes("weight") {
        Some(weight) => writeln!(text, ", weight {weight}"),
        // The borrower moves its pages itself.
        None => writeln!(text, ", no weight"),
    };
}

/// The bound of what a run borrows, if it has one.
fn lend_of(item: &Item) -> String {
    let bound = item.report.get("lend_bytes_max").and_then(Value::as_u64);
    bound.map(|bytes| format!(" of at most {}", human(bytes))).unwrap_or_default()
}

fn describe_run(text: &mut String, item: &Item) {
    let number = |name: &str| human(item.number(name));
    let (footprint, local, lent) =
        (number("/footprint_bytes"), number("/usage/charged_bytes"), number("/usage/swapped_bytes"));
    let _ = writeln!(
        text,
        "  footprint {footprint}, local {local}, lent {lent}{}, budget {}",
        lend_of(item),
        item.text("/local")
    );
    let outside = item.number("/outside_bytes_max");
    if outside > 0 {
        let _ = writeln!(text, "  in other memory groups, beside the budget: up to {}", human(outside));
    }
    let _ = writeln!(text, "  program {}, volume {} at donors", item.text("/program"), item.text("/volume"));
    let _ = writeln!(text, "  memory comes by {} ({})", item.text("/via/way"), item.text("/via/reason"));
    if let Some(line) = item.report.pointer("/pager/device/bandwidth").and_then(bandwidth_report::describe) {
        let _ = writeln!(text, "  {line}");
    }
    if let Some(line) = item.report.get("prefetch").and_then(prefetch_report::describe) {
        let _ = writeln!(text, "  {line}");
    }
    if item.report.pointer("/pager/pager").is_some() {
        describe_pager(text, item);
    }
}

fn describe_pager(text: &mut String, item: &Item) {
    let count = |kind: &str| item.number(&format!("/pager/pager/{kind}"));
    let _ = writeln!(
        text,
        "  health: {}; faults: {} filled, {} staged, {} zero, {} first writes; pages out: {} written, {} clean",
        item.text("/pager/device/health"),
        count("fill/count"),
        count("staged/count"),
        count("zero/count"),
        count("write/count"),
        count("pages_out_dirty"),
        count("pages_out_clean"),
    );
    for line in item
        .report
        .pointer("/pager/pager")
        .map(|pager| staying_report::describe(pager, "staying"))
        .into_iter()
        .flatten()
    {
        let _ = writeln!(text, "  {line}");
    }
    describe_donors(text, item.report.pointer("/pager/device/donors"));
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn item(kind: Kind, report: Value) -> Item {
        Item { kind, name: "x".to_owned(), pid: Some(7), state: "running", report, swap: None, warnings: Vec::new() }
    }

    #[test]
    fn people_read_what_matters_of_a_device() {
        let donor = json!({"address": "a:1", "state": "lost", "transport": "tcp", "slabs": 3, "zone": "east", "rack": "", "last_error": "timed out",
                "is_leaving": true, "latency": {
                "reads": {"p50_us": 90.2, "p99_us": 510000.0}, "waiting_us": 2500.0, "is_slow": true, "reads_taken_elsewhere": 4}});
        let report = json!({"notes": ["careful"], "device": {
            "path": "/dev/loop0", "size_bytes": 1 << 30, "redundancy": "disk", "health": "disk only", "donors": [donor],
            "frontend": "nbd (one socket from the kernel; no ublk: not loaded)",
            "disk": {"blocks": "40 %"}}});
        let mut text = String::new();
        describe(&mut text, &item(Kind::Device, report));
        for expected in [
            "/dev/loop0, 1 GiB, disk, health: disk only",
            "front end: nbd (one socket from the kernel; no ublk: not loaded)\n",
            "donor a:1: lost tcp, 3 slabs, being removed, zone east, reads p50 90 us, p99 510000 us, owes an answer since 2 ms, 4 reads taken elsewhere, SLOW (timed out)",
            "note: careful",
            "being filled: 40 %",
        ] {
            assert!(text.contains(expected), "{text}");
        }
    }

    #[test]
    fn blocks_that_are_not_reserved_are_told() {
        let describe = |blocks: &str| {
            let mut text = String::new();
            super::describe(&mut text, &item(Kind::Device, json!({"device": {"disk": {"blocks": blocks}}})));
            text
        };
        assert!(describe("not reserved").contains("takes its blocks as pages are written"));
        assert!(!describe("all").contains("blocks"));
    }

    #[test]
    fn a_donor_tells_bytes_only_where_it_counted_them() {
        let session = |transport: &str, bytes: Value| {
            json!({"volume": "v", "peer": "p:1", "transport": transport, "lent_bytes": 32 << 20,
                "read_bytes": bytes, "written_bytes": bytes, "weight": bytes.is_u64().then_some(4)})
        };
        let report = json!({"donor": {"lent_bytes": 64 << 20, "quota_bytes": 1 << 30, "free_to_lend_bytes": 0, "draining": true,
            "recalls": {"asked": 7, "returned": 3, "withdrawn": 2, "overdue": 1}, "sessions": [session("tcp", json!(2 << 20)), session("shm", Value::Null)]}});
        let mut text = String::new();
        describe(&mut text, &item(Kind::Donor, report));
        for expected in [
            "lent 64 MiB of 1 GiB, 0 B free, DRAINING",
            "  asked back 7 slabs: 3 returned, 2 may stay after all, 1 overdue\n",
            "volume v of p:1: tcp, 32 MiB lent, read 2 MiB, written 2 MiB, weight 4\n",
            "volume v of p:1: shm, 32 MiB lent, pages counted by the borrower, no weight\n",
        ] {
            assert!(text.contains(expected), "{text}");
        }
    }

    #[test]
    fn an_agent_tells_where_its_metrics_are_and_lends_nothing_that_it_does_not() {
        let mut text = String::new();
        describe(&mut text, &item(Kind::Agent, json!({"donor": null, "metrics": "http://127.0.0.1:7071/metrics"})));
        assert_eq!(text, "agent x: running (process 7)\n  metrics: http://127.0.0.1:7071/metrics\n");
    }

    #[test]
    fn a_run_tells_how_its_memory_comes_and_what_the_pager_did() {
        let donor = json!({"address": "a:1", "state": "connected", "transport": "shm", "slabs": 3});
        let report = json!({"local": "50%", "footprint_bytes": 64 << 20, "via": {"way": "pager", "reason": "asked for"},
            "pager": {"device": {"health": "ok", "donors": [donor]}, "pager": {"fill": {"count": 7}, "staying": {"memfd_bytes": 5 << 20}}}});
        let mut text = String::new();
        describe(&mut text, &item(Kind::Run, report));
        for expected in [
            "memory comes by pager (asked for)",
            "health: ok; faults: 7 filled",
            "donor a:1: connected shm",
            "5 MiB of memfd",
        ] {
            assert!(text.contains(expected), "{text}");
        }
    }

    #[test]
    fn a_run_tells_what_it_prefetches() {
        let report = json!({"local": "50%", "via": {"way": "swap", "reason": "asked for"},
            "prefetch": {"policy": "streams", "is_active": true, "samples": {"major": 3}, "pages_asked": 64}});
        let mut text = String::new();
        describe(&mut text, &item(Kind::Run, report));
        assert!(text.contains("\n  prefetching: streams; 3 samples"), "{text}");
    }

    #[test]
    fn silence_is_not_health() {
        let (_directory, registry) = Registry::temporary();
        let _entry = registry.claim(Kind::Device, "silent").unwrap();
        let items = collect(&registry, Some(Kind::Device), &|_| true).unwrap();
        assert_eq!((items.len(), items[0].state), (1, "silent"));
        assert!(collect(&registry, Some(Kind::Device), &Item::is_swap).unwrap().is_empty());
    }

    /// What is told of a swap device on `/dev/loop0` that is served, of an owner who lives or not.
    fn asked(owner_lives: bool, paths: &[&str]) -> Item {
        let area = |path: &&str| SwapArea { path: path.into(), size_bytes: 1 << 30, used_bytes: 0, priority: 5 };
        let areas: Vec<_> = paths.iter().map(area).collect();
        let answer = crate::status_socket::Answer::status(&json!({"device": {"path": "/dev/loop0"}}));
        let (_directory, registry) = Registry::temporary();
        let entry = registry.claim(Kind::Device, "swap").unwrap();
        let server = crate::status_socket::StatusServer::bind(&entry.status_socket()).unwrap();
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
}
