//! The files in `packaging/`: systemd reads them without a complaint, and they say what keeps pages safe.
//!
//! - `packaging/fresh_root.rs`: a root without Spillway; `packaging/life.rs`: what becomes of the package in it.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[allow(dead_code)]
mod support;

mod packaging {
    pub(crate) mod fresh_root;
    mod life;
}

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
    let donors = fs::read_to_string(packaging("systemd/spillway-donor.service")).unwrap();
    let (good, complaints) = verify(&donors.replace("/usr/bin/spillway", env!("CARGO_BIN_EXE_spillway")));
    assert!(good && !complaints.lines().any(|line| line.contains("spillway")), "{complaints}");
    // The check can fail: a setting that does not exist is named.
    let (_, complaints) = verify(&here.replace("KillMode=process", "KillMode=gently"));
    assert!(complaints.contains("KillMode") || complaints.contains("gently"), "{complaints}");
}

#[test]
fn a_stop_never_kills_a_server_of_pages() {
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

/// What `promtool` says of files beside each other in a directory of their own.
fn promtool(arguments: &[&str], rules: &str) -> support::Said {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("spillway.rules.yml"), rules).unwrap();
    fs::copy(packaging("prometheus/spillway.rules.test.yml"), directory.path().join("spillway.rules.test.yml"))
        .unwrap();
    support::run(Command::new("promtool").args(arguments).current_dir(directory.path()))
}

#[test]
fn prometheus_takes_the_alerts_and_they_fire_when_they_should() {
    if !has_program("promtool") {
        return skip("promtool, of the package prometheus");
    }
    let rules = fs::read_to_string(packaging("prometheus/spillway.rules.yml")).unwrap();
    promtool(&["check", "rules", "spillway.rules.yml"], &rules).done("the rules");
    promtool(&["test", "rules", "spillway.rules.test.yml"], &rules).done("the tests of the rules");
    // The checks can fail.
    let broken = rules.replace("humanize1024", "humanise");
    assert!(!promtool(&["check", "rules", "spillway.rules.yml"], &broken).status.success());
    let deaf = rules.replace("spillway_device_disk_only > 0", "spillway_device_disk_only > 1");
    assert_ne!(deaf, rules);
    assert!(!promtool(&["test", "rules", "spillway.rules.test.yml"], &deaf).status.success());
}

#[test]
fn every_front_ends_module_is_loaded_and_every_directory_is_made() {
    let modules = fs::read_to_string(packaging("modules-load.d/spillway.conf")).unwrap();
    for module in ["ublk_drv", "nbd", "loop", "fuse", "ib_uverbs"] {
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

/// What `dpkg-deb` says of a package.
fn dpkg_deb(arguments: &[&str], package: &Path) -> String {
    support::run(Command::new("dpkg-deb").args(arguments).arg(package)).done("dpkg-deb").text()
}

#[test]
fn the_package_and_the_tarball_have_everything_and_the_same() {
    if let Some(missing) = ["dpkg-deb", "strip"].into_iter().find(|program| !has_program(program)) {
        return skip(missing);
    }
    let directory = support::disk_directory();
    let mut build = Command::new(packaging("build"));
    build.arg(env!("CARGO_BIN_EXE_spillway")).arg(directory.path()).env("GZIP_LEVEL", "1");
    let said = support::run(&mut build).done("packaging/build").text();
    let paths: Vec<&Path> = said.lines().map(Path::new).collect();
    let [package, tarball] = paths[..] else { panic!("{said}") };

    let contents = dpkg_deb(&["--contents"], package);
    // Mode, owner, size, date, time, path.
    let listed: Vec<Vec<&str>> = contents.lines().map(|line| line.split_whitespace().collect()).collect();
    let files: Vec<_> = listed.iter().filter(|fields| !fields[0].starts_with('d')).map(|fields| fields[5]).collect();
    for file in [
        "./usr/bin/spillway",
        "./usr/lib/systemd/system/spillway.service",
        "./usr/lib/systemd/system/spillway-donor.service",
        "./usr/lib/udev/rules.d/90-spillway.rules",
        "./usr/lib/sysusers.d/spillway.conf",
        "./usr/lib/tmpfiles.d/spillway.conf",
        "./usr/lib/modules-load.d/spillway.conf",
        "./etc/spillway/spillway.toml",
        "./usr/share/bash-completion/completions/spillway",
        "./usr/share/zsh/vendor-completions/_spillway",
        "./usr/share/fish/vendor_completions.d/spillway.fish",
        "./usr/share/man/man1/spillway-run.1.gz",
        "./usr/share/man/man5/spillway.toml.5.gz",
        "./usr/share/man/man8/spillway-agent.8.gz",
        "./usr/share/spillway/prometheus/spillway.rules.yml",
        "./usr/share/spillway/grafana/spillway.json",
        "./usr/share/doc/spillway/README.md",
    ] {
        assert!(files.contains(&file), "{file} is missing: {contents}");
    }
    for fields in &listed {
        let is_program = fields[5] == "./usr/bin/spillway" || fields[0].starts_with('d');
        let mode = if is_program { "rwxr-xr-x" } else { "rw-r--r--" };
        assert_eq!((&fields[0][1..], fields[1]), (mode, "root/root"), "{fields:?}");
    }
    let mut in_tarball: Vec<String> = support::run(Command::new("tar").arg("--list").arg("--file").arg(tarball))
        .done("tar")
        .text()
        .lines()
        .filter(|path| !path.ends_with('/'))
        .map(str::to_owned)
        .collect();
    in_tarball.sort();
    let mut files: Vec<String> = files.into_iter().map(str::to_owned).collect();
    files.sort();
    assert_eq!(in_tarball, files);

    let information = dpkg_deb(&["--field"], package);
    let version = format!("Version: {}\n", env!("CARGO_PKG_VERSION"));
    assert!(information.contains(&version) && information.contains("Depends: libc6 (>= 2."), "{information}");
    assert!(!["@VERSION@", "@GLIBC@", "@SIZE_KIB@"].iter().any(|mark| information.contains(mark)), "{information}");
    let unpacked = directory.path().join("unpacked");
    support::run(Command::new("dpkg-deb").arg("--raw-extract").arg(package).arg(&unpacked)).done("dpkg-deb");
    the_unpacked_package_works(&unpacked);
}

/// Its program runs, its unit and its configuration are what that program takes, its scripts are scripts.
fn the_unpacked_package_works(unpacked: &Path) {
    let program = unpacked.join("usr/bin/spillway");
    let said = support::run(Command::new(&program).arg("--version")).done("the packaged program");
    assert_eq!(said.text(), format!("spillway {}\n", env!("CARGO_PKG_VERSION")));
    assert_eq!(fs::read_to_string(unpacked.join("DEBIAN/conffiles")).unwrap(), "/etc/spillway/spillway.toml\n");
    for script in ["postinst", "prerm", "postrm"] {
        support::run(Command::new("sh").arg("-n").arg(unpacked.join("DEBIAN").join(script))).done(script);
    }
    let completions = unpacked.join("usr/share/bash-completion/completions/spillway");
    let script = format!(". '{}'; complete -p spillway", completions.display());
    assert!(support::run(Command::new("bash").args(["-c", &script])).done("completions").text().contains("spillway"));
    let configuration = unpacked.join("etc/spillway/spillway.toml");
    let check = |path: &Path| support::run(Command::new(&program).args(["agent", "--check", "--config"]).arg(path));
    assert!(check(&configuration).errors.contains("names no role"), "it does nothing until it is told to");
    let text = fs::read_to_string(&configuration).unwrap();
    let used: String = text
        .lines()
        .map(|line| line.strip_prefix('#').filter(|rest| !rest.starts_with(' ')).unwrap_or(line))
        .map(|line| format!("{line}\n"))
        .collect();
    // The example lends more than this machine may have.
    fs::write(&configuration, used.replace("\"16G\"", "\"64M\"").replace("\"4G\"", "\"16M\"")).unwrap();
    check(&configuration).done("the configuration with every table taken in");
    if has_program("man") {
        let page = unpacked.join("usr/share/man/man5/spillway.toml.5.gz");
        let said = support::run(Command::new("man").args(["--warnings", "--local-file"]).arg(page)).done("man");
        assert!(said.errors.is_empty() && said.text().contains("insecure_listen"), "{}", said.errors);
    } else {
        skip("man");
    }
}
