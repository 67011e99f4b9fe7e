//! A plain device: fio with verification, file systems, and discard.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::both_ways::stage::Stage;
use crate::support::{self, wait_until};

/// A device on two donors; switched off by the stage if the test fails.
fn device_on(stage: &mut Stage, size: &str) -> PathBuf {
    device_over(stage, size, "auto")
}

fn device_over(stage: &mut Stage, size: &str, transport: &str) -> PathBuf {
    device_with(stage, size, &["--transport", transport])
}

fn device_with(stage: &mut Stage, size: &str, more: &[&str]) -> PathBuf {
    stage.donor("320M");
    stage.donor("320M");
    let donors = stage.donor_options();
    let donors: Vec<&str> = donors.iter().map(String::as_str).collect();
    let options = ["device", "on", "--size", size, "--slab-size", "4M", "--redundancy", "none", "--key", "none"];
    let said = support::run(&mut stage.spillway(&[&options[..], more, &donors].concat())).done("device on");
    let path = PathBuf::from(said.text().trim());
    assert!(path.starts_with("/dev"), "{}", path.display());
    path
}

fn device_off(stage: &Stage) {
    support::run(&mut stage.spillway(&["device", "off"])).done("device off");
    stage.assert_clean();
}

/// Pages that the device says it stores.
fn pages_stored(stage: &Stage) -> u64 {
    stage.device()["pages_stored"].as_u64().unwrap()
}

/// Writes by these options, and finds every block as it was written.
pub(super) fn fio(device: &Path, options: &[&str]) {
    let file = format!("--filename={}", device.display());
    let common = [
        "--name=verify",
        &file,
        "--direct=1",
        "--ioengine=libaio",
        "--verify=crc32c",
        "--verify_fatal=1",
        "--verify_state_save=0",
    ];
    support::run(Command::new("fio").args(common).args(options)).done("fio");
}

#[test]
fn fio_finds_what_it_wrote() {
    let Some(mut stage) = Stage::set_beside_others(&["fio"]) else { return };
    let device = device_on(&mut stage, "256M");
    let several = ["--numjobs=4", "--size=64M", "--offset_increment=64M"];
    fio(&device, &[&["--rw=randwrite", "--bs=4k", "--iodepth=16"], &several[..]].concat());
    fio(&device, &[&["--rw=write", "--bs=1M", "--iodepth=4"], &several[..]].concat());
    fio(&device, &[&["--rw=randwrite", "--bsrange=4k-1M", "--iodepth=8"], &several[..]].concat());
    fio(&device, &["--rw=randrw", "--bs=128k", "--iodepth=16", "--size=256M"]);
    fio(&device, &["--rw=randwrite", "--bs=4k", "--iodepth=1", "--size=16M"]);
    device_off(&stage);
}

/// A user who names no donor gets donors of the device's own, is told so, and is rid of them with the device.
#[test]
fn a_device_without_named_donors_starts_its_own() {
    let Some(stage) = Stage::set_beside_others(&["fio"]) else { return };
    let said = support::run(&mut stage.spillway(&["device", "on", "--size", "64M", "--slab-size", "4M"]));
    let said = said.done("device on");
    assert!(said.errors.contains("no --donor was named: 3 donors on this machine"), "{}", said.errors);
    fio(Path::new(said.text().trim()), &["--rw=randwrite", "--bs=4k", "--iodepth=16", "--size=64M"]);
    assert_eq!(stage.device()["redundancy"], "none");
    assert_eq!(stage.lent_bytes(), Some(64 << 20));
    device_off(&stage);
    let said = support::run(&mut stage.spillway(&["swap", "on", "--size", "64M"]));
    assert_eq!(said.status.code(), Some(2), "{}", said.errors);
    assert!(said.errors.contains("a machine that swaps to its own memory gains none"), "{}", said.errors);
    assert!(said.errors.contains("--donor HOST:PORT") && said.errors.contains("[cluster]"), "{}", said.errors);
    stage.assert_clean();
}

#[test]
fn a_transport_that_was_asked_for_is_taken_and_told() {
    for transport in ["tcp", "shm"] {
        let Some(mut stage) = Stage::set_beside_others(&["fio"]) else { return };
        let device = device_over(&mut stage, "64M", transport);
        fio(&device, &["--rw=randwrite", "--bs=16k", "--iodepth=8", "--size=64M"]);
        wait_until("the status to tell the transport of both donors", || {
            let said = support::run(&mut stage.spillway(&["device", "status"])).done("device status").text();
            (said.matches(&format!("connected {transport}")).count() == 2).then_some(())
        });
        // The donors see it from their side, and count what went through a socket.
        let donors = wait_until("both donors to tell of their sessions", || {
            let donors = stage.items("donor");
            donors.iter().all(|donor| donor.report["donor"]["sessions"][0].is_object()).then_some(donors)
        });
        for donor in &donors {
            let session = &donor.report["donor"]["sessions"][0];
            assert_eq!(session["transport"], transport, "{donor:#?}");
            assert_eq!(session["written_bytes"].is_u64(), transport == "tcp", "{donor:#?}");
        }
        device_off(&stage);
    }
}

/// Whether this machine's idle CPUs can be kept awake, as `doctor` says.
fn can_keep_awake(stage: &Stage) -> bool {
    let said = support::run(&mut stage.spillway(&["doctor", "--json"])).text();
    let report: serde_json::Value = serde_json::from_str(&said).unwrap();
    let checks = report["checks"].as_array().unwrap();
    let check = checks.iter().find(|check| check["name"] == "idle CPUs");
    check.unwrap_or_else(|| panic!("{report:#}"))["state"] == "good"
}

#[test]
fn idle_cpus_are_kept_awake_during_bursts_unless_that_is_not_wanted() {
    for wanted in ["never", "bursts"] {
        let Some(mut stage) = Stage::set_beside_others(&["fio"]) else { return };
        let device = device_with(&mut stage, "64M", &["--keep-awake", wanted]);
        let bursts = |stage: &Stage| stage.device()["traffic"]["bursts"].as_u64().unwrap();
        // On a busy machine requests may come too rarely for a burst, so several rounds may be needed.
        let round = || fio(&device, &["--rw=randwrite", "--bs=4k", "--iodepth=4", "--size=16M"]);
        if wanted == "bursts" && can_keep_awake(&stage) {
            wait_until("a burst", || {
                round();
                (bursts(&stage) > 0).then_some(())
            });
            let said = support::run(&mut stage.spillway(&["status"])).done("status").text();
            assert!(said.contains("idle CPUs kept awake for"), "{said}");
        } else {
            round();
            assert_eq!(bursts(&stage), 0);
        }
        device_off(&stage);
    }
}

/// Jobs of fio that discard what they write, as sections of one command, so that they run at the same time. (fio 3.33
/// fails to write after a random discard if a job begins elsewhere than at 0, so only the first one is at random.)
const DISCARDING_JOBS: [&[&str]; 3] = [
    &["--name=random", "--rw=randtrimwrite", "--bsrange=4k-1M", "--iodepth=8", "--size=64M"],
    &["--name=large", "--rw=trimwrite", "--bs=1M", "--iodepth=4", "--offset=64M", "--size=64M"],
    &["--name=small", "--rw=trimwrite", "--bs=4k", "--iodepth=16", "--offset=128M", "--size=16M"],
];

#[test]
fn fio_finds_what_it_wrote_between_discards_of_the_same_range() {
    let Some(mut stage) = Stage::set_beside_others(&["fio"]) else { return };
    let device = device_on(&mut stage, "192M");
    let file = format!("--filename={}", device.display());
    // Each block is discarded, written, perhaps discarded again, and at last read: what it was written with, or zeroes.
    let options = ["--direct=1", "--ioengine=libaio", "--verify=crc32c", "--verify_fatal=1", "--verify_state_save=0"];
    let discards = ["--trim_percentage=30", "--trim_backlog=16", "--trim_verify_zero=1", "--output-format=json"];
    let mut command = Command::new("fio");
    for job in DISCARDING_JOBS {
        command.args(job).arg(&file).args(options).args(discards);
    }
    // Twice, so that the second round finds the pages of the first one.
    for round in ["first", "second"] {
        let said = support::run(&mut command).done(round);
        let report: serde_json::Value = serde_json::from_slice(&said.output).unwrap();
        let jobs = report["jobs"].as_array().unwrap();
        assert_eq!(jobs.len(), DISCARDING_JOBS.len());
        for job in jobs {
            let count = |direction: &str| job[direction]["total_ios"].as_u64().unwrap();
            assert!(count("write") > 0 && count("read") == count("write"), "every block was looked at: {job:#}");
            assert!(count("trim") > count("write"), "some were discarded after they were written: {job:#}");
        }
    }
    assert_eq!(stage.device()["pages_lost"], 0);
    device_off(&stage);
}

#[test]
fn discarded_ranges_read_as_zero_and_go_back_to_donors() {
    let Some(mut stage) = Stage::set_beside_others(&["fio", "blkdiscard"]) else { return };
    let device = device_on(&mut stage, "128M");
    fio(&device, &["--rw=write", "--bs=1M", "--iodepth=4", "--size=128M", "--do_verify=0"]);
    let full = pages_stored(&stage);
    assert_eq!(full, 128 << 20 >> 12);
    support::run(Command::new("blkdiscard").args(["--offset", "67108864", "--length", "67108864"]).arg(&device))
        .done("blkdiscard");
    let mut half = Vec::new();
    let said = support::run(Command::new("dd").arg(format!("if={}", device.display())).args([
        "bs=1M",
        "skip=64",
        "iflag=direct",
    ]))
    .done("dd");
    half.extend(said.output);
    assert_eq!(half.len(), 64 << 20);
    assert!(half.iter().all(|byte| *byte == 0), "a discarded range is not zero");
    assert!(pages_stored(&stage) <= full / 2, "discarded pages are still stored");
    device_off(&stage);
}

#[test]
fn a_file_system_keeps_a_tree_of_files() {
    let Some(mut stage) = Stage::set_beside_others(&["mkfs.ext4", "fsck.ext4", "mount", "cp", "diff"]) else { return };
    let device = device_on(&mut stage, "256M");
    let tree = stage.disk().join("tree");
    make_tree(&tree);
    let place = stage.disk().join("mounted");
    fs::create_dir(&place).unwrap();
    support::run(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&device)).done("mkfs");
    let mount = Mount::new(&device, &place);
    support::run(Command::new("cp").arg("-r").arg(&tree).arg(&place)).done("cp");
    // In use it cannot be switched off, and stays as it was.
    let said = support::run(&mut stage.spillway(&["device", "off"]));
    assert_eq!(said.status.code(), Some(1), "{}", said.errors);
    support::run(Command::new("diff").arg("-r").arg(&tree).arg(place.join("tree"))).done("diff");
    drop(mount);
    support::run(Command::new("fsck.ext4").args(["-f", "-n"]).arg(&device)).done("fsck");
    let mount = Mount::new(&device, &place);
    support::run(Command::new("diff").arg("-r").arg(&tree).arg(place.join("tree"))).done("diff after fsck");
    fs::remove_dir_all(place.join("tree")).unwrap();
    support::run(Command::new("fstrim").arg(&place)).done("fstrim");
    drop(mount);
    support::run(Command::new("fsck.ext4").args(["-f", "-n"]).arg(&device)).done("second fsck");
    device_off(&stage);
}

/// A mounted file system, unmounted when dropped.
struct Mount<'a>(&'a Path);

impl<'a> Mount<'a> {
    fn new(device: &Path, place: &'a Path) -> Self {
        support::run(Command::new("mount").arg(device).arg(place)).done("mount");
        Self(place)
    }
}

impl Drop for Mount<'_> {
    fn drop(&mut self) {
        let said = support::run(Command::new("umount").arg(self.0));
        if !said.status.success() {
            eprintln!("umount: {}", said.errors);
        }
    }
}

fn make_tree(root: &Path) {
    for folder in 0..20_u32 {
        let folder_path = root.join(format!("folder{folder}/deeper"));
        fs::create_dir_all(&folder_path).unwrap();
        for file in 0..25_u32 {
            let line = format!("{folder} {file} {}\n", folder * 7919 + file);
            fs::write(folder_path.join(format!("file{file}")), line.repeat((file * file * 13 + 1) as usize)).unwrap();
        }
    }
}

#[test]
fn a_device_that_is_on_cannot_be_switched_on_again() {
    let Some(mut stage) = Stage::set_beside_others(&[]) else { return };
    device_on(&mut stage, "64M");
    let donors = stage.donor_options();
    let options = ["device", "on", "--size", "64M", "--redundancy", "none", "--key", "none", &donors[0], &donors[1]];
    let said = support::run(&mut stage.spillway(&options));
    assert_eq!(said.status.code(), Some(1));
    assert!(said.errors.contains("already on") && said.errors.contains("--name"), "{}", said.errors);
    assert_eq!(stage.items("device").len(), 1);
    device_off(&stage);
}

#[test]
fn full_and_read_only_places_for_a_backing_file_are_refused() {
    let Some(mut stage) = Stage::set_beside_others(&["mkfs.ext4", "mount", "truncate"]) else { return };
    stage.donor("96M");
    let donors = stage.donor_options();
    let image = stage.disk().join("image");
    support::run(Command::new("truncate").args(["--size", "512M"]).arg(&image)).done("truncate");
    support::run(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&image)).done("mkfs");
    let place = stage.disk().join("mounted");
    fs::create_dir(&place).unwrap();
    let backing = place.join("backing");
    let refused = |size: &str| {
        let options = ["device", "on", "--size", size, "--slab-size", "4M", "--key", "none", &donors[0], &donors[1]];
        let said = support::run(stage.spillway(&options).arg("--backing").arg(&backing));
        assert_eq!(said.status.code(), Some(1), "{}", said.errors);
        assert!(said.output.is_empty(), "{}", said.text());
        said.errors
    };
    let mount = Mount::new(&image, &place);
    let errors = refused("400M");
    assert!(errors.contains("free"), "{errors}");
    support::run(Command::new("mount").args(["-o", "remount,ro"]).arg(&place)).done("remount");
    let errors = refused("64M");
    assert!(errors.to_lowercase().contains("read-only") || errors.contains("os error 30"), "{errors}");
    assert!(!backing.exists());
    drop(mount);
    stage.assert_clean();
}
