//! A device that serves NBD clients: `device on --listen`.

use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::both_ways::stage::Stage;
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

/// `nobody`, by convention.
const USER: u32 = 65534;

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
fn qemu_keeps_its_images_at_donors() {
    let Some(mut stage) = Stage::set_beside_others(&["qemu-img", "qemu-io"]) else { return };
    let addresses = serve(&mut stage, &[]);
    let (source, target) = (stage.disk().join("in"), stage.disk().join("out"));
    let content: Vec<u8> =
        (0..64_u32 << 20).map(|at| if at % (8 << 20) < 5 << 20 { (at / 59 * 3 + at) as u8 } else { 0 }).collect();
    fs::write(&source, &content).unwrap();
    let convert = |from: &str, to: &str, options: &[&str]| {
        let mut command = Command::new("qemu-img");
        support::run(command.args(["convert", "-f", "raw", "-O", "raw"]).args(options).args([from, to]))
            .done("convert");
    };
    for address in &addresses {
        convert(text(&source), address, &["-n"]);
        convert(address, text(&target), &[]);
        assert!(fs::read(&target).unwrap() == content, "{address}");
    }
    let steps = ["write -P 0x5a 1M 300k", "discard 1M 64k", "flush", "read -P 0 1M 64k", "read -P 0x5a 1088k 236k"];
    let talk = |steps: &[&str]| {
        let steps = steps.iter().flat_map(|step| ["-c", *step]);
        support::run(Command::new("qemu-io").args(["-f", "raw", "-t", "none"]).args(steps).arg(&addresses[0]))
    };
    let said = talk(&steps).done("qemu-io");
    assert!(!said.text().contains("failed"), "{}", said.text());
    // It would tell of other bytes.
    assert!(talk(&["read -P 0x5b 1088k 4k"]).text().contains("verification failed"));
    support::run(&mut stage.spillway(&["device", "off"])).done("device off");
    stage.assert_clean();
}

#[test]
fn a_user_without_any_right_serves_a_disk_from_his_own_donor() {
    let Some(stage) = Stage::set_beside_others(&["nbdcopy"]) else { return };
    let place = support::registry_directory();
    fs::set_permissions(place.path(), fs::Permissions::from_mode(0o1777)).unwrap();
    let binary = place.path().join("spillway");
    // By another process: a program that this one has open for writing cannot be run.
    support::run(Command::new("cp").arg(env!("CARGO_BIN_EXE_spillway")).arg(&binary)).done("cp");
    let as_user = |arguments: &[&str]| {
        let mut command = Command::new(&binary);
        // What root gives up in this way takes all capabilities with it.
        command.args(arguments).uid(USER).gid(USER).current_dir("/");
        command.env("SPILLWAY_RUNTIME_DIRECTORY", place.path().join("r"));
        command
    };
    let socket = |name: &str| place.path().join(name);
    let address = |name: &str| format!("unix:{}", socket(name).display());
    let donate = ["donate", "--key", "none", "--memory", "96M", "--headroom", "16M", "--slab-size", "4M"];
    let mut donor = support::Running::start(as_user(&donate).args(["--listen", &address("donor.sock")]));
    donor.wait_until("a donor to listen", || std::os::unix::net::UnixStream::connect(socket("donor.sock")).ok());
    let on = ["device", "on", "--size", "32M", "--slab-size", "4M", "--key", "none", "--redundancy", "none"];
    let where_to = ["--donor", &address("donor.sock"), "--listen", &address("disk.sock")];
    let served = support::run(as_user(&on).args(where_to)).done("device on").text().trim().to_owned();
    let (source, target) = (stage.disk().join("in"), stage.disk().join("out"));
    let content: Vec<u8> = (0..32_u32 << 20).map(|at| (at / 61 * 7 + at) as u8).collect();
    fs::write(&source, &content).unwrap();
    copy(text(&source), &served);
    copy(&served, text(&target));
    assert!(fs::read(&target).unwrap() == content);
    // Clients have come and gone; the server sees it when it looks.
    support::wait_until("the device to be off", || {
        support::run(&mut as_user(&["device", "off"])).status.success().then_some(())
    });
    donor.signal("TERM");
    donor.end().done("the donor");
    let left: Vec<_> = fs::read_dir(place.path().join("r")).unwrap().flatten().map(|file| file.file_name()).collect();
    assert!(left.iter().all(|name| name == "lock" || name.to_string_lossy().ends_with(".log")), "{left:?}");
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
