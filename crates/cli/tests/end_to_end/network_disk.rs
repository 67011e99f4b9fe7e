//! A device that serves NBD clients: `device on --listen`.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::stage::Stage;
use crate::support;

/// Serves a device on two donors at a UNIX socket and on loopback; the addresses that it prints.
fn serve(stage: &mut Stage, options: &[&str]) -> Vec<String> {
    stage.donor("160M");
    stage.donor("160M");
    let donors = stage.donor_options();
    let socket = format!("unix:{}", socket(stage).display());
    let mut command = stage.spillway(&["device", "on", "--size", "64M", "--slab-size", "4M", "--key", "none"]);
    command
        .args(["--redundancy", "replicas=2", "--listen", &socket, "--listen", "127.0.0.1:0"])
        .args(options)
        .args(donors);
    let said = support::run(&mut command).done("device on");
    said.text().trim().split(' ').map(str::to_owned).collect()
}

/// Where clients find it.
fn socket(stage: &Stage) -> PathBuf {
    stage.registry().with_file_name("disk.sock")
}

fn copy(from: &str, to: &str) {
    support::run(Command::new("nbdcopy").args([from, to])).done("nbdcopy");
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn nbd_clients_keep_their_data_with_donors_and_a_killed_one_costs_nothing() {
    let Some(mut stage) = Stage::set_beside_others(&["nbdcopy", "nbdinfo", "fio"]) else { return };
    let addresses = serve(&mut stage, &[]);
    let (source, target) = (stage.disk().join("in"), stage.disk().join("out"));
    // Two thirds of data, then nothing.
    let content: Vec<u8> =
        (0..64_u32 << 20).map(|at| if at < 40 << 20 { (at / 61 * 7 + at) as u8 } else { 0 }).collect();
    fs::write(&source, &content).unwrap();
    copy(text(&source), &addresses[0]);
    copy(&addresses[1], text(&target));
    assert!(fs::read(&target).unwrap() == content);
    stage.signal_donor(0, "KILL");
    copy(&addresses[0], text(&target));
    assert!(fs::read(&target).unwrap() == content, "after the death of a donor");

    let device = stage.device();
    assert!(device["frontend"].as_str().unwrap().contains("nbd server"), "{device}");
    let size = support::run(Command::new("nbdinfo").arg("--size").arg(&addresses[0])).done("nbdinfo");
    assert_eq!(size.text().trim(), (64 << 20).to_string());
    support::run(&mut stage.spillway(&["device", "off"])).done("device off");
    assert!(!socket(&stage).exists());
    stage.assert_clean();
}

#[test]
fn a_connected_client_keeps_the_device_on() {
    let Some(mut stage) = Stage::set_beside_others(&["nbdcopy"]) else { return };
    let addresses = serve(&mut stage, &["--connections", "4"]);
    // A copy whose other end is never read.
    let pipe = stage.disk().join("pipe");
    support::run(Command::new("mkfifo").arg(&pipe)).done("mkfifo");
    let script = format!("exec nbdcopy --connections=2 '{}' - >'{}'", addresses[0], pipe.display());
    let client = support::Running::start(Command::new("sh").args(["-c", &script]));
    let mut reader = fs::File::open(&pipe).unwrap();
    reader.read_exact(&mut [0; 1]).unwrap();
    let said = support::run(&mut stage.spillway(&["device", "off"]));
    assert_eq!(said.status.code(), Some(1), "{}", said.errors);
    assert!(said.errors.contains("connected"), "{}", said.errors);
    assert_eq!(stage.items("device").len(), 1);
    drop((reader, client));
    // The server sees a client's end when it comes to look at the connection.
    support::wait_until("the device to be off", || {
        support::run(&mut stage.spillway(&["device", "off"])).status.success().then_some(())
    });
    stage.assert_clean();
}

#[test]
fn where_others_could_connect_nothing_listens_unasked() {
    let Some(stage) = Stage::set_beside_others(&[]) else { return };
    let mut command = stage.spillway(&["device", "on", "--size", "16M", "--local-memory", "--listen", "0.0.0.0:0"]);
    let said = support::run(&mut command);
    assert_eq!(said.status.code(), Some(1), "{}", said.errors);
    assert!(said.errors.contains("--insecure-listen") && said.errors.contains("UNIX socket"), "{}", said.errors);
    stage.assert_clean();
    support::run(command.arg("--insecure-listen")).done("insisting");
    support::run(&mut stage.spillway(&["device", "off"])).done("device off");
    stage.assert_clean();
}
