//! What lies between: a network that is cut, and a backing file whose disk is full.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::fs::{FallocateFlags, FlockOperation, fallocate};
use spillway_fabric::key::ClusterKey;

use crate::both_ways::stage::Stage;
use crate::support::{Running, UNTIL_TOLD, is_root, run, skip, soak_seconds};

fn ip(arguments: &[&str]) {
    run(Command::new("ip").args(arguments)).done("ip");
}

/// A network namespace with one cable to this one. Dropping it removes both.
struct Namespace {
    name: String,
    cable: String,
    // Released last: tests of other processes that use the same addresses wait.
    _turn: File,
}

/// Addresses of the documentation's test network (RFC 5737): nothing else has them.
const HERE: &str = "198.51.100.1/30";
const THERE: &str = "198.51.100.2/30";
const DONOR: &str = "198.51.100.2:7170";

impl Namespace {
    /// Makes both, or says what is missing.
    fn new() -> Option<Self> {
        if !is_root() {
            skip("root, for a network namespace");
            return None;
        }
        let turn = File::create("/tmp/spillway-test-network.lock").expect("the lock file can be made");
        rustix::fs::flock(&turn, FlockOperation::LockExclusive).expect("the lock can be taken");
        let name = format!("sw{}", std::process::id());
        let cable = format!("{name}a");
        ip(&["netns", "add", &name]);
        let namespace = Self { name: name.clone(), cable: cable.clone(), _turn: turn };
        ip(&["link", "add", &cable, "type", "veth", "peer", "name", "eth0", "netns", &name]);
        ip(&["addr", "add", HERE, "dev", &cable]);
        ip(&["link", "set", &cable, "up"]);
        ip(&["-n", &name, "addr", "add", THERE, "dev", "eth0"]);
        ip(&["-n", &name, "link", "set", "eth0", "up"]);
        Some(namespace)
    }

    fn cut(&self) {
        ip(&["link", "set", &self.cable, "down"]);
    }

    fn mend(&self) {
        ip(&["link", "set", &self.cable, "up"]);
    }

    /// `command`, inside.
    fn inside(&self, command: &Command) -> Command {
        let mut wrapped = Command::new("ip");
        wrapped.args(["netns", "exec", &self.name]).arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            wrapped.env(name, value.unwrap_or_default());
        }
        wrapped
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // Removing the namespace removes the cable; a test that failed half-way may have neither.
        let _ = Command::new("ip").args(["netns", "del", &self.name]).output();
    }
}

/// A cluster key for the donors of a test.
fn new_key(stage: &Stage) -> PathBuf {
    let key = stage.disk().join("key");
    ClusterKey::load_or_create(&key).expect("a key can be made");
    key
}

/// What starts a donor that listens there.
fn donate(stage: &Stage, name: &str, listen: &str, key: &Path) -> Command {
    let mut command = stage.spillway(&["donate", "--name", name, "--memory", "160M", "--headroom", "16M"]);
    command.args(["--slab-size", "4M", "--listen", listen, "--key"]).arg(key);
    command
}

/// Starts a donor inside that is reached over TCP only.
fn start_inside(stage: &Stage, namespace: &Namespace, key: &Path) -> Running {
    let mut donor = Running::start(&mut namespace.inside(&donate(stage, "inside", DONOR, key)));
    donor.wait_until("the donor to listen", || std::net::TcpStream::connect(DONOR).ok());
    // Both namespaces see one file system, where a borrower finds the donor's socket for shared memory.
    let sockets = stage.sockets("inside");
    assert!(!sockets.is_empty(), "the donor offers shared memory to its host");
    sockets.iter().for_each(|socket| std::fs::remove_file(socket).expect("the socket can be removed"));
    donor
}

/// Starts a donor that no cable leads to; gives its address too.
fn start_here(stage: &Stage, key: &Path) -> (Running, String) {
    let socket = stage.registry().with_file_name("here.sock");
    let address = format!("unix:{}", socket.display());
    let mut donor = Running::start(&mut donate(stage, "here", &address, key));
    donor.wait_until("the donor to listen", || std::os::unix::net::UnixStream::connect(&socket).ok());
    (donor, address)
}

fn health(stage: &Stage) -> Option<String> {
    Some(stage.device_now()["health"].as_str()?.to_owned())
}

/// Waits until so many pages lie at donors, the first of whom is at the cable's other end.
fn wait_lent(stage: &Stage, running: &mut Running) {
    running.wait_until("pages to be lent over TCP", || {
        let device = stage.device_now();
        assert_ne!(device["donors"][0]["transport"], "shm", "the socket was removed");
        let is_at_donors = device["donors"].as_array()?.iter().all(|donor| donor["slabs"].as_u64() > Some(0));
        (is_at_donors && device["pages_stored"].as_u64()? > 1024).then_some(())
    });
}

/// Waits until the donor at the cable's other end is back.
fn wait_found_again(stage: &Stage, running: &mut Running) {
    running.wait_until("the donor to be found again", || {
        (stage.device_now()["donors"][0]["state"] == "connected").then_some(())
    });
}

/// Takes `turn` once, and in a soak until its time is over.
fn once_or_for_a_soak(mut turn: impl FnMut()) {
    let until = Instant::now() + Duration::from_secs(soak_seconds(0));
    loop {
        turn();
        if Instant::now() >= until {
            return;
        }
    }
}

/// What a run needs to know of the donors, the one at the cable's other end first.
fn options<'a>(key: &'a Path, others: &[&'a str]) -> Vec<&'a str> {
    let mut options = vec!["--local", "24M", "--lend", "128M", "--slab-size", "4M", "--donor", DONOR, "--key"];
    options.push(key.to_str().expect("the path of a test is text"));
    options.extend(others);
    options
}

/// The cable of the only donor is pulled, and the disk has every page.
#[test]
fn a_donor_whose_cable_is_pulled_costs_no_page_of_parent_and_child() {
    let Some(stage) = Stage::set(&["gcc", "ip"]) else { return };
    let Some(namespace) = Namespace::new() else { return };
    let verifier = stage.compile("verifier", &[]);
    let key = new_key(&stage);
    let donor = start_inside(&stage, &namespace, &key);
    let backing = stage.disk().join("backing");
    let options = options(&key, &["--redundancy", "disk", "--backing", backing.to_str().unwrap()]);
    let program = [verifier.to_str().unwrap(), "32", UNTIL_TOLD, "7", "forked"];
    let mut running = Running::start(&mut stage.run(&options, &program));
    wait_lent(&stage, &mut running);
    once_or_for_a_soak(|| {
        namespace.cut();
        running.wait_until("the loss to be told", || health(&stage)?.contains("disk only").then_some(()));
        namespace.mend();
        wait_found_again(&stage, &mut running);
    });
    stage.end_verifier(running);
    stage.wait_returned();
    drop(donor);
    stage.assert_clean();
}

/// The cable of one of two donors is pulled, and the other one has every page too.
#[test]
fn a_pulled_cable_costs_no_page_of_parent_and_child_that_another_donor_has_too() {
    let Some(stage) = Stage::set(&["gcc", "ip"]) else { return };
    let Some(namespace) = Namespace::new() else { return };
    let verifier = stage.compile("verifier", &[]);
    let key = new_key(&stage);
    let inside = start_inside(&stage, &namespace, &key);
    let (here, address) = start_here(&stage, &key);
    let options = options(&key, &["--donor", &address, "--redundancy", "replicas=2"]);
    let program = [verifier.to_str().unwrap(), "32", UNTIL_TOLD, "8", "forked"];
    let mut running = Running::start(&mut stage.run(&options, &program));
    wait_lent(&stage, &mut running);
    once_or_for_a_soak(|| {
        running.wait_until("every page to have two copies", || {
            let slabs = &stage.device_now()["slabs"];
            (slabs["degraded"] == 0 && slabs["migrating"] == 0).then_some(())
        });
        namespace.cut();
        running.wait_until("the loss to be noticed", || {
            (stage.device_now()["donors"][0]["state"].as_str()? != "connected").then_some(())
        });
        namespace.mend();
        wait_found_again(&stage, &mut running);
    });
    stage.end_verifier(running);
    stage.wait_returned();
    drop((inside, here));
    stage.assert_clean();
}

/// A small file system of its own in a file, mounted. Dropping it unmounts.
struct SmallDisk {
    mount: PathBuf,
}

impl SmallDisk {
    fn new(directory: &Path, mebibytes: u64) -> Self {
        let (image, mount) = (directory.join("small.img"), directory.join("small"));
        std::fs::File::create(&image).and_then(|file| file.set_len(mebibytes << 20)).expect("an image can be made");
        std::fs::create_dir(&mount).expect("a directory can be made");
        run(Command::new("mkfs.ext4").arg("-q").arg(&image)).done("mkfs.ext4");
        run(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&mount)).done("mount");
        Self { mount }
    }

    /// Leaves no room at all, within milliseconds: what the verifier writes meanwhile is a part of its backing file
    /// only.
    fn fill(&self) {
        let file = File::create(self.mount.join("filler")).expect("a file can be made");
        let mut end_bytes = 0;
        for step_bytes in [64 << 20, 1 << 20, 4 << 10] {
            while fallocate(&file, FallocateFlags::empty(), end_bytes, step_bytes).is_ok() {
                end_bytes += step_bytes;
            }
        }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // The device's process may still be closing its backing file.
        let deadline = Instant::now() + Duration::from_secs(60);
        let unmounted = || Command::new("umount").arg(&self.mount).status().is_ok_and(|status| status.success());
        while !unmounted() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

#[test]
fn a_full_disk_under_the_backing_file_costs_no_page_while_a_donor_lives() {
    let Some(mut stage) = Stage::set(&["gcc", "mkfs.ext4", "mount"]) else { return };
    if !is_root() {
        return skip("root, for a file system of its own");
    }
    let verifier = stage.compile("verifier", &[]);
    let disk = SmallDisk::new(stage.disk(), 640);
    stage.donor("160M");
    let backing = disk.mount.join("backing");
    let donors = stage.donor_options();
    let mut options = vec!["--local", "24M", "--lend", "128M", "--slab-size", "4M", "--key", "none"];
    options.extend(["--redundancy", "disk", "--backing", backing.to_str().unwrap()]);
    options.extend(donors.iter().map(String::as_str));
    let mut running = Running::start(&mut stage.run(&options, &[verifier.to_str().unwrap(), "64", UNTIL_TOLD, "9"]));
    running.wait_until("the device to be there", || health(&stage));
    disk.fill();
    running.wait_until("the full disk to be told", || {
        health(&stage)?.contains("could not be written to the backing file").then_some(())
    });
    let statistics = stage.end_verifier(running);
    let errors = statistics["device"]["device"]["disk"]["write_errors"].as_u64().unwrap();
    assert!(errors > 0, "{statistics:#}");
    drop(disk);
    stage.assert_clean();
}
