//! The files in `packaging/`: systemd reads them without a complaint, and they say what keeps pages safe.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[allow(dead_code)]
mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use support::{has_program, skip};

fn packaging(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging").join(file)
}

fn unit() -> String {
    fs::read_to_string(packaging("systemd/spillway.service")).unwrap()
}

/// The values of one setting.
fn values<'a>(text: &'a str, setting: &str) -> Vec<&'a str> {
    text.lines().filter_map(|line| line.strip_prefix(setting)?.strip_prefix('=')).collect()
}

/// What systemd says of a unit with this text, and whether it takes it.
fn verify(text: &str) -> (bool, String) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("spillway.service");
    fs::write(&path, text).unwrap();
    let said = support::run(Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&path));
    (said.status.success(), said.errors)
}

#[test]
fn systemd_takes_the_unit_without_a_complaint() {
    if !has_program("systemd-analyze") {
        return skip("systemd-analyze");
    }
    let here = unit().replace("/usr/bin/spillway", env!("CARGO_BIN_EXE_spillway"));
    let (good, complaints) = verify(&here);
    let ours: Vec<&str> = complaints.lines().filter(|line| line.contains("spillway")).collect();
    assert!(good && ours.is_empty(), "{complaints}");
    // The check can fail: a setting that does not exist is named.
    let (_, complaints) = verify(&here.replace("KillMode=process", "KillMode=gently"));
    assert!(complaints.contains("KillMode") || complaints.contains("gently"), "{complaints}");
}

#[test]
fn a_stop_never_kills_who_serves_pages() {
    let unit = unit();
    assert_eq!(values(&unit, "KillMode"), ["process"]);
    assert_eq!(values(&unit, "SendSIGKILL"), ["no"]);
    assert_eq!(values(&unit, "TimeoutStopSec"), ["infinity"]);
    assert_eq!(values(&unit, "MemorySwapMax"), ["0"]);
    assert_eq!(values(&unit, "LimitMEMLOCK"), ["infinity"]);
    // Real-time is what opens the kernel's reserves to the process that frees memory.
    assert!(values(&unit, "CapabilityBoundingSet")[0].contains("CAP_SYS_NICE"));
    assert_ne!(values(&unit, "RestrictRealtime"), ["yes"]);
    assert!(values(&unit, "After")[0].contains("network-online.target"), "swap goes off before the network does");
}

#[test]
fn the_unit_starts_commands_that_exist() {
    let unit = unit();
    let directory = tempfile::tempdir().unwrap();
    let configuration = directory.path().join("spillway.toml");
    fs::write(&configuration, "[donor]\nmemory = \"64M\"\n").unwrap();
    let check = values(&unit, "ExecStartPre")[0]
        .replace("/usr/bin/spillway", env!("CARGO_BIN_EXE_spillway"))
        .replace("/etc/spillway/spillway.toml", configuration.to_str().unwrap());
    let words: Vec<&str> = check.split(' ').collect();
    let said = support::run(Command::new(words[0]).args(&words[1..]));
    assert!(said.status.success(), "{}", said.errors);
    let start = values(&unit, "ExecStart")[0];
    assert!(start.starts_with("/usr/bin/spillway agent --config "), "{start}");
}

#[test]
fn every_front_ends_module_is_loaded_and_every_directory_is_made() {
    let modules = fs::read_to_string(packaging("modules-load.d/spillway.conf")).unwrap();
    for module in ["ublk_drv", "nbd", "loop", "fuse"] {
        assert!(modules.lines().any(|line| line == module), "{module}");
    }
    let directories = fs::read_to_string(packaging("tmpfiles.d/spillway.conf")).unwrap();
    for line in directories.lines().filter(|line| !line.starts_with('#')) {
        let fields: Vec<&str> = line.split(' ').collect();
        assert!(
            matches!(fields[..], ["d", path, mode, "root", "root", "-"] if path.starts_with('/') && mode.len() == 4)
        );
    }
    for directory in ["/run/spillway", "/var/lib/spillway", "/etc/spillway"] {
        assert!(directories.contains(&format!("d {directory} ")), "{directory}");
    }
}

#[test]
fn the_group_that_may_use_the_pagers_devices_is_made() {
    let rules = fs::read_to_string(packaging("udev/90-spillway.rules")).unwrap();
    let rules: Vec<&str> = rules.lines().filter(|line| !line.starts_with('#')).collect();
    let rule = |device| format!(r#"KERNEL=="{device}", SUBSYSTEM=="misc", GROUP="spillway", MODE="0660""#);
    assert_eq!(rules, [rule("userfaultfd"), rule("cpu_dma_latency")]);
    let groups = fs::read_to_string(packaging("sysusers.d/spillway.conf")).unwrap();
    assert!(groups.lines().any(|line| line == "g spillway -"), "{groups}");
}
