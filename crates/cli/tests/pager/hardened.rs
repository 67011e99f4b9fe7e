//! A donor in its sandbox serves as one without does; and a sealed device loses a donor and no byte.

use std::fs;

use landlock::{ABI, Access, AccessFs, CompatLevel, Compatible, Ruleset, RulesetAttr};
use serde_json::Value;
use spillway_report::status::Item;

use crate::both_ways::stage::Stage;
use crate::support::processes::children;
use crate::support::{Running, UNTIL_TOLD, is_root, run};

/// What is lent at least when something happens.
const LENT_BYTES: u64 = 48 << 20;

/// `CapPrm` and `CapEff` of a process that may lock memory only (CAP_IPC_LOCK is 14).
const LOCK_MEMORY_ONLY: u64 = 1 << 14;

/// A line of `/proc/PID/task/TID/status`.
fn field<'text>(status: &'text str, name: &str) -> &'text str {
    let line = status.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name} in {status}"));
    line[name.len()..].trim()
}

/// Every thread of the process that is a donor's has given up what the sandbox takes; so many there are at least.
fn assert_confined(pid: u64, is_donors: impl Fn(&str) -> bool, threads_min: usize) {
    let mut threads = 0;
    for entry in fs::read_dir(format!("/proc/{pid}/task")).expect("the donor lives") {
        // A thread may end while it is looked at.
        let Ok(status) = fs::read_to_string(entry.expect("it can be listed").path().join("status")) else { continue };
        if !is_donors(field(&status, "Name:")) {
            continue;
        }
        assert_eq!((field(&status, "NoNewPrivs:"), field(&status, "Seccomp:")), ("1", "2"), "{status}");
        for rights in ["CapPrm:", "CapEff:"] {
            let left = u64::from_str_radix(field(&status, rights), 16).unwrap();
            assert_eq!(left & !LOCK_MEMORY_ONLY, 0, "{status}");
        }
        threads += 1;
    }
    assert!(threads >= threads_min, "{threads} threads of a donor were found");
}

/// The first donor in `status`.
fn donor(stage: &Stage) -> Item {
    stage.items("donor").first().cloned().expect("a donor is in status")
}

#[test]
fn a_donor_in_its_sandbox_serves_a_program_over_both_transports() {
    if !has_landlock() {
        return spillway_sys::skipping::skip("Landlock");
    }
    let Some(mut stage) = Stage::set(&["gcc"]) else { return };
    let verifier = stage.compile("verifier", &[]);
    stage.donor("160M");
    let before = donor(&stage);
    assert_eq!(before.report["sandbox"], serde_json::json!({"state": "on", "why": []}), "{before:?}");
    let said = run(&mut stage.spillway(&["status"])).done("status");
    assert!(said.text().contains("sandbox on"), "{}", said.text());
    let pid = before.pid.map(u64::from).expect("status has the process");
    assert_confined(pid, |_| true, 3);
    for transport in ["shm", "tcp"] {
        let donors = stage.donor_options();
        let mut options = vec!["--local", "24M", "--lend", "128M", "--slab-size", "4M", "--key", "none"];
        options.extend(["--redundancy", "none", "--transport", transport]);
        options.extend(donors.iter().map(String::as_str));
        let program = [verifier.to_str().unwrap(), "96", UNTIL_TOLD, "5"];
        let mut running = Running::start(&mut stage.run(&options, &program));
        stage.wait_lent(&mut running, LENT_BYTES);
        // Threads that came later inherit it.
        assert_confined(pid, |_| true, 3);
        stage.end_verifier(running);
        stage.wait_returned();
    }
    stage.assert_clean();
}

/// Whether the kernel restricts files, without which no sandbox is whole.
fn has_landlock() -> bool {
    let access = AccessFs::from_all(ABI::V5);
    Ruleset::default().set_compatibility(CompatLevel::HardRequirement).handle_access(access).is_ok()
}

#[test]
fn an_agents_donor_threads_are_in_a_sandbox_and_the_agent_is_not() {
    if !has_landlock() {
        return spillway_sys::skipping::skip("Landlock");
    }
    let Some(stage) = Stage::set(&[]) else { return };
    let listen = format!("unix:{}", stage.disk().join("agent.sock").display());
    let file = stage.disk().join("spillway.toml");
    let sizes = "memory = \"16M\"\nheadroom = \"1M\"\nslab_size = \"4M\"\nkey = \"none\"";
    fs::write(&file, format!("[donor]\n{sizes}\nlisten = [\"{listen}\"]\n")).expect("a file can be written");
    let mut process = Running::start(&mut stage.spillway(&["agent", "--config", file.to_str().unwrap()]));
    let item = process.wait_until("the agent in status", || stage.items("agent").first().cloned());
    assert_eq!(item.report["sandbox"]["state"], "threads", "{item:?}");
    let pid = item.pid.map(u64::from).expect("status has the process");
    assert_confined(pid, |name| name.starts_with("donor-"), 2);
    let main = fs::read_to_string(format!("/proc/{pid}/status")).expect("the agent lives");
    assert_eq!(field(&main, "Seccomp:"), "0", "it starts other programs: {main}");
    process.signal("TERM");
    process.end().done("agent");
    assert!(!stage.disk().join("agent.sock").exists(), "the agent removes it");
}

#[test]
fn donors_of_a_runs_own_are_in_a_sandbox_and_a_pager_is_denied_other_calls() {
    if !has_landlock() {
        return spillway_sys::skipping::skip("Landlock");
    }
    let Some(stage) = Stage::set(&["gcc"]) else { return };
    let verifier = stage.compile("verifier", &[]);
    let options = ["--local", "24M", "--lend", "128M", "--slab-size", "4M"];
    let program = [verifier.to_str().unwrap(), "96", UNTIL_TOLD, "5"];
    let mut running = Running::start(&mut stage.run(&options, &program));
    stage.wait_lent(&mut running, LENT_BYTES);
    // `status` says nothing of one that a busy machine keeps from answering in time.
    let donors = running.wait_until("the donors' reports in status", || {
        let donors = stage.items("donor");
        (!donors.is_empty() && donors.iter().all(|donor| donor.report.is_object())).then_some(donors)
    });
    for donor in &donors {
        assert_eq!(donor.report["sandbox"], serde_json::json!({"state": "on", "why": []}), "{donor:?}");
        assert_confined(donor.pid.map(u64::from).expect("status has the process"), |_| true, 3);
    }
    let pager = fs::read_to_string(format!("/proc/{}/status", running.pid())).expect("the run lives");
    assert_eq!((field(&pager, "NoNewPrivs:"), field(&pager, "Seccomp:")), ("1", "2"), "{pager}");
    stage.end_verifier(running);
    stage.assert_clean();
}

#[test]
fn a_donor_without_its_sandbox_says_why() {
    let Some(stage) = Stage::set(&[]) else { return };
    let listen = format!("unix:{}", stage.disk().join("off.sock").display());
    let options = ["donate", "--sandbox", "off", "--key", "none", "--memory", "16M", "--headroom", "1M", "--slab-size"];
    let mut process = Running::start(stage.spillway(&options).args(["4M", "--listen", &listen]));
    // It is listed before it answers.
    let sandbox = process
        .wait_until("the donor's report in status", || stage.items("donor").first()?.report.get("sandbox").cloned());
    assert_eq!(sandbox, serde_json::json!({"state": "off", "why": ["--sandbox off"]}));
    process.signal("TERM");
    process.end().done("donate");
}

#[test]
fn a_device_of_root_keeps_only_the_rights_that_serving_takes() {
    if !is_root() {
        return spillway_sys::skipping::skip("root");
    }
    let Some(mut stage) = Stage::set(&[]) else { return };
    stage.donor("64M");
    let donors = stage.donor_options();
    let listen = format!("unix:{}", stage.disk().join("disk.sock").display());
    let mut command = stage.spillway(&["device", "on", "--size", "16M", "--slab-size", "4M", "--redundancy", "none"]);
    run(command.args(["--key", "none", "--listen", &listen]).args(&donors)).done("device on");
    let device = stage.items("device").first().cloned().expect("the device is in status");
    let pid = device.pid.map(u64::from).expect("status has the process");
    let of_process = |pid: u64| fs::read_to_string(format!("/proc/{pid}/status")).expect("the device's process lives");
    let keeper = of_process(pid);
    assert_eq!(field(&keeper, "NoNewPrivs:"), "1", "{keeper}");
    let serves =
        |pid: &u32| fs::read_to_string(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.contains("--kept"));
    let serving = children(pid as u32).into_iter().find(serves).expect("the keeper has a process that serves");
    let status = of_process(serving.into());
    assert_eq!((field(&status, "NoNewPrivs:"), field(&status, "Seccomp:")), ("1", "2"), "{status}");
    let bound = u64::from_str_radix(field(&status, "CapBnd:"), 16).unwrap();
    // SETUID, NET_RAW, SYS_RAWIO, SYS_BOOT, MKNOD.
    assert!([7, 13, 17, 22, 27].iter().all(|right| bound & 1 << right == 0), "{status}");
    let left = u64::from_str_radix(field(&status, "CapEff:"), 16).unwrap();
    // CHOWN, KILL, SYS_MODULE, SYS_PTRACE: the start's, the keeper's and the menders'.
    assert!([0, 5, 16, 19].iter().all(|right| left & 1 << right == 0), "{status}");
    run(&mut stage.spillway(&["device", "off"])).done("device off");
    stage.assert_clean();
}

#[test]
fn a_donor_is_killed_under_sealed_memory_and_no_byte_is_wrong() {
    let Some(mut stage) = Stage::set(&["gcc"]) else { return };
    let verifier = stage.compile("verifier", &[]);
    let first = stage.donor("160M");
    stage.donor("160M");
    let donors = stage.donor_options();
    let mut options = vec!["--local", "24M", "--lend", "128M", "--slab-size", "4M", "--key", "none", "--seal", "on"];
    options.extend(["--redundancy", "replicas=2", "--transport", "tcp"]);
    options.extend(donors.iter().map(String::as_str));
    let program = [verifier.to_str().unwrap(), "96", UNTIL_TOLD, "5"];
    let mut running = Running::start(&mut stage.run(&options, &program));
    stage.wait_lent(&mut running, LENT_BYTES);
    assert_eq!(stage.device_now()["protection"], "sealed", "{:#}", stage.device_now());
    stage.signal_donor(first, "KILL");
    running.wait_until("the device to miss its donor", || {
        let device = stage.device_now();
        let is_lost = |donor: &Value| donor["state"] != "connected";
        device["donors"].as_array()?.iter().any(is_lost).then_some(())
    });
    let statistics = stage.end_verifier(running);
    let donors = statistics["device"]["device"]["donors"].as_array().cloned().unwrap_or_default();
    assert!(donors.iter().all(|donor| donor["wrong_pages"] == 0), "an honest donor is not blamed: {statistics:#}");
    stage.assert_clean();
}
