//! The loop device over FUSE in a real kernel: content, concurrency, discard, use by others, and what a killed server
//! leaves.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

#[allow(dead_code)]
mod support;

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::mount::{MountFlags, UnmountFlags};
use spillway_frontend::front_end::FrontEndError;
use spillway_frontend::fuse::leftovers;
use spillway_sys::child;
use spillway_sys::loop_device::{self, Detached};
use spillway_sys::proc_text::mounts;
use spillway_sys::skipping::skip;
use spillway_sys::swap::{self, SwapDiscard};
use spillway_testing::block_devices::{Aligned, can_run, open_direct, swap_lock};

use support::exercise::exercise;
use support::pressure::{self, SwappedOn};
use support::{PATIENCE, Server, Way, is_bound, is_bound_to, queue_setting, ways};

const MIB: u64 = 1 << 20;

#[test]
fn several_threads_see_what_they_wrote_and_discards_read_as_zeroes() {
    if can_run() {
        ways().into_iter().for_each(see_what_several_threads_wrote);
    }
}

fn see_what_several_threads_wrote(way: Way) {
    let server = Server::start(way, "random", 32 * MIB, 2);
    let device = Arc::new(server.path.clone());
    let threads: Vec<_> = (0..4_u64)
        .map(|number| {
            let device = Arc::clone(&device);
            std::thread::spawn(move || exercise(&device, number * 8 * MIB, 8 << 20, 0x5EED + number, 300))
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    server.stop();
}

#[test]
fn the_queue_is_set_up_for_paging() {
    if can_run() {
        ways().into_iter().for_each(look_at_the_queue);
    }
}

fn look_at_the_queue(way: Way) {
    let server = Server::start(way, "queue", 8 * MIB, 1);
    let device = &server.path;
    assert!(queue_setting(device, "max_sectors_kb").parse::<u32>().unwrap() <= 512);
    assert_eq!(queue_setting(device, "read_ahead_kb"), "0");
    assert_eq!(queue_setting(device, "rq_affinity"), "2");
    assert_eq!(queue_setting(device, "rotational"), "0");
    assert_eq!(queue_setting(device, "logical_block_size"), "4096");
    assert!(queue_setting(device, "scheduler").contains("[none]") || queue_setting(device, "scheduler") == "none");
    assert_ne!(queue_setting(device, "discard_max_bytes"), "0");
    // A buffer that starts inside a page must still reach us as whole pages.
    let file = open_direct(device);
    let mut buffer = Aligned::new((2 << 20) + 4096);
    let content: Vec<u8> = (0..2 << 20).map(|at: u32| (at / 512) as u8).collect();
    buffer.bytes()[512..512 + (2 << 20)].copy_from_slice(&content);
    file.write_all_at(&buffer.bytes()[512..512 + (2 << 20)], 4096).unwrap();
    assert!(buffer.read(&file, 4096, 2 << 20) == content);
    assert!(file.write_at(buffer.bytes(), 8 * MIB).is_err(), "past the end");
    drop(file);
    server.stop();
}

#[test]
fn a_device_in_use_is_not_detached_and_goes_on() {
    if can_run() {
        ways().into_iter().for_each(detach_a_device_in_use);
    }
}

fn detach_a_device_in_use(way: Way) {
    let mut server = Server::start(way, "busy", 8 * MIB, 1);
    let file = open_direct(&server.path);
    assert!(matches!(server.detach(), Err(FrontEndError::Busy(_))));
    let mut buffer = Aligned::new(4096);
    buffer.write(&file, 4096, &[9; 4096]);
    assert_eq!(buffer.read(&file, 4096, 4096), [9; 4096]);
    // A process that asks claims it for a moment (another look for leftovers), so one answer proves nothing.
    let give_up = Instant::now() + Duration::from_secs(30);
    while server.front.is_open().unwrap() {
        assert!(Instant::now() < give_up, "open, but nobody claims it");
        std::thread::sleep(Duration::from_millis(1));
    }
    drop(file);
    assert!(is_bound(&server.path), "the refused detach was taken back");

    swap::make(&server.path, "test", [1; 16]).unwrap();
    swap::on(&server.path, None, SwapDiscard::Always).unwrap();
    let open = server.front.is_open();
    let refused = server.detach();
    swap::off(&server.path).unwrap();
    assert!(open.unwrap(), "swap claims it");
    assert!(matches!(refused, Err(FrontEndError::Busy(_))));
    assert_eq!(leftovers::list().unwrap().iter().filter(|leftover| is_mine(leftover, "busy")).count(), 0);
    server.stop();
}

#[test]
fn a_dropped_device_leaves_nothing() {
    if can_run() {
        ways().into_iter().for_each(drop_a_device);
    }
}

fn drop_a_device(way: Way) {
    let server = Server::start(way, "dropped", 8 * MIB, 1);
    let (device, directory) = (server.path.clone(), server.directory().to_owned());
    drop(server);
    assert!(!is_bound_to(&device, &directory));
    assert!(!directory.exists());
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(!mounts.contains(directory.to_str().unwrap()));
}

#[test]
fn the_kernels_switch_for_rings_stays_as_it_was() {
    if !can_run() || !ways().contains(&Way::Rings) {
        return;
    }
    // Under the lock, so that no other test is just mounting.
    let switch = || {
        let file = File::open("/sys/module/fuse/parameters/enable_uring").unwrap();
        rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).unwrap();
        std::io::read_to_string(file).unwrap()
    };
    let before = switch();
    let servers = ["switch-0", "switch-1"].map(|name| Server::start(Way::Rings, name, 8 * MIB, 1));
    assert_eq!(switch(), before);
    servers.into_iter().for_each(Server::stop);
}

#[test]
fn a_mount_waits_for_another_that_has_switched_rings_on() {
    if !can_run() || !ways().contains(&Way::Rings) {
        return;
    }
    let mut switch = File::options().read(true).write(true).open("/sys/module/fuse/parameters/enable_uring").unwrap();
    rustix::fs::flock(&switch, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let before = std::io::read_to_string(&switch).unwrap();
    switch.write_all(b"Y").unwrap();
    let server = std::thread::spawn(|| Server::start(Way::Rings, "waiting", 8 * MIB, 1));
    std::thread::sleep(Duration::from_millis(50));
    let waits = !server.is_finished();
    switch.write_all(before.trim().as_bytes()).unwrap();
    drop(switch);
    server.join().unwrap().stop();
    assert!(waits, "mounted while another process was about to switch rings off");
}

#[test]
fn settings_that_make_no_sense_are_refused_and_leave_nothing() {
    use spillway_frontend::front_end::FrontEndConfig;
    use spillway_frontend::fuse::device::LoopFuse;
    let directory = tempfile::tempdir().unwrap();
    let good = FrontEndConfig {
        name: "odd".to_owned(),
        size_bytes: MIB,
        threads: 1,
        slots_per_thread: 1,
        recoverable: false,
        answer_deadline: Duration::from_secs(12),
        directory: directory.path().to_owned(),
    };
    for bad in [
        FrontEndConfig { size_bytes: 0, ..good.clone() },
        FrontEndConfig { size_bytes: 4097, ..good.clone() },
        FrontEndConfig { size_bytes: 1 << 63, ..good.clone() },
        FrontEndConfig { threads: 0, ..good.clone() },
        FrontEndConfig { slots_per_thread: 1000, ..good.clone() },
        FrontEndConfig { name: "a/b".to_owned(), ..good },
    ] {
        assert!(matches!(LoopFuse::mount(&bad), Err(FrontEndError::Invalid(_))), "{bad:?}");
    }
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
}

/// Runs a program to its end; its output on failure.
fn run(program: &str, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Unmounts also when an assertion failed, before the device goes.
struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

#[test]
fn a_filesystem_keeps_its_files() {
    if can_run() {
        ways().into_iter().for_each(keep_files);
    }
}

fn keep_files(way: Way) {
    if Command::new("mkfs.ext4").arg("-V").output().is_err() {
        skip("mkfs.ext4");
        return;
    }
    let server = Server::start(way, "files", 32 * MIB, 2);
    let device = server.path.to_str().unwrap().to_owned();
    run("mkfs.ext4", &["-q", "-F", &device]);
    let directory = tempfile::tempdir().unwrap();
    let content = |number: usize| -> Vec<u8> { (0..50_000).map(|at| ((at * (number + 3)) >> 4) as u8).collect() };
    for remounted in [false, true] {
        run("mount", &["-o", "discard", &device, directory.path().to_str().unwrap()]);
        let mounted = Mounted(directory.path().to_owned());
        for number in 0..40 {
            let file = directory.path().join(format!("file-{number}"));
            if remounted {
                assert!(std::fs::read(&file).unwrap() == content(number), "file {number}");
            } else {
                std::fs::write(&file, content(number)).unwrap();
            }
        }
        drop(mounted);
    }
    run("fsck.ext4", &["-f", "-n", &device]);
    server.stop();
}

fn is_mine(leftover: &leftovers::Leftover, name: &str) -> bool {
    leftover.ownership.name == name
}

/// The process that [`a_killed_server_leaves_errors_and_mendable_remains`] starts and kills.
#[test]
#[ignore = "runs as a process of its own, until it is killed"]
fn serve_until_killed() {
    let name = std::env::var("SPILLWAY_TEST_SERVER").expect("another test starts this one");
    let size_mib: u64 = std::env::var("SPILLWAY_TEST_MIB").map_or(8, |text| text.parse().unwrap());
    let threads = std::env::var("SPILLWAY_TEST_THREADS").map_or(1, |text| text.parse().unwrap());
    let way = if std::env::var_os("SPILLWAY_TEST_RINGS").is_some() { Way::Rings } else { Way::Device };
    let server = Server::start(way, &name, size_mib * MIB, threads);
    println!("\nserving {} {}", server.path.display(), server.directory().display());
    let mut line = String::new();
    let _ = std::io::stdin().read_line(&mut line);
}

#[test]
fn a_killed_server_leaves_errors_and_mendable_remains() {
    if can_run() {
        for way in ways() {
            let was_ours = (0..KILLED_MAX).any(|attempt| kill_a_server(way, attempt));
            assert!(was_ours, "another process mended first, {KILLED_MAX} times");
        }
    }
}

/// Servers that are killed until no other process has mended what one left: tests of programs run `doctor` all the
/// time, which mends what it finds on the machine.
const KILLED_MAX: usize = 20;

/// Kills a server and mends what it left; whether no other process has mended any of it.
fn kill_a_server(way: Way, attempt: usize) -> bool {
    let name = format!("killed-{}-{attempt}", std::process::id());
    let mut command = Command::new(std::env::current_exe().unwrap());
    if way == Way::Rings {
        command.env("SPILLWAY_TEST_RINGS", "1");
    }
    let mut child = command
        .args(["--exact", "serve_until_killed", "--ignored", "--nocapture"])
        .env("SPILLWAY_TEST_SERVER", &name)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let line = lines.map(Result::unwrap).find(|line| line.starts_with("serving ")).expect("the server starts");
    let mut words = line.split(' ').skip(1).map(PathBuf::from);
    let (device, directory) = (words.next().unwrap(), words.next().unwrap());
    let file = open_direct(&device);
    let mut buffer = Aligned::new(4096);
    buffer.write(&file, 0, &[3; 4096]);

    child.kill().unwrap();
    child.wait().unwrap();
    let deadline = Instant::now() + PATIENCE;
    while file.read_exact_at(buffer.bytes(), 0).is_ok() {
        assert!(Instant::now() < deadline, "a dead server's device answers with errors");
    }
    let left = || leftovers::list().unwrap().into_iter().filter(|leftover| is_mine(leftover, &name)).count();
    let listed = left();
    drop(file);
    let mine = |mended: &leftovers::Mended| is_mine(&mended.leftover, &name);
    let mended: Vec<_> = leftovers::mend().unwrap().into_iter().filter(mine).collect();
    // What another process mends is gone only when that has ended.
    let deadline = Instant::now() + PATIENCE;
    while left() > 0 {
        assert!(Instant::now() < deadline, "left of {listed}: {mended:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(!is_bound_to(&device, &directory));
    assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 0, "the mount's directory is removed");
    std::fs::remove_dir(&directory).unwrap();
    listed == 2 && mended.len() == 2 && mended.iter().all(|mended| mended.result.is_ok())
}

/// A mount of a filesystem that no process serves, as `fusermount` makes one for `user`, who chooses source and type.
struct Unserved {
    place: PathBuf,
    _directory: tempfile::TempDir,
}

impl Unserved {
    fn new(source: &str, user: u32) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mounted = Self { place: directory.path().join("place"), _directory: directory };
        std::fs::create_dir(&mounted.place).unwrap();
        mounted.mount(source, user);
        mounted
    }

    fn mount(&self, source: &str, user: u32) {
        let device = File::options().read(true).write(true).open("/dev/fuse").unwrap();
        let options = format!("fd={},rootmode=40000,user_id={user},group_id={user}", device.as_raw_fd());
        let options = std::ffi::CString::new(options).unwrap();
        let kind = spillway_sys::fuse::FILESYSTEM_TYPE;
        rustix::mount::mount(source, &self.place, kind, MountFlags::NODEV, options.as_c_str()).unwrap();
    }

    /// The number of what is mounted there, by the list of mounts.
    fn id(&self) -> Option<u64> {
        let list = std::fs::read("/proc/self/mountinfo").unwrap();
        let place = self.place.as_os_str().as_encoded_bytes();
        mounts::all(&list).filter(|mount| mount.point == place).last().map(|mount| mount.id)
    }

    fn unmount(&self) {
        rustix::mount::unmount(&self.place, UnmountFlags::DETACH).unwrap();
    }
}

impl Drop for Unserved {
    fn drop(&mut self) {
        while self.id().is_some() {
            self.unmount();
        }
    }
}

#[test]
fn a_mount_of_another_user_with_our_name_and_type_is_left_alone() {
    if !can_run() {
        return;
    }
    let name = format!("others-{}", std::process::id());
    let source = format!("spillway:4194304.1:{name}");
    let others = Unserved::new(&source, 65534);
    let id = others.id().unwrap();
    // So is a loop device over a file that is none of a filesystem of ours.
    let file = tempfile::tempfile_in("/var/tmp").unwrap();
    file.set_len(MIB).unwrap();
    let device = loop_device::attach(file.as_fd(), &source, 4096).unwrap();
    let listed = leftovers::list().unwrap();
    assert!(!listed.iter().any(|leftover| is_mine(leftover, &name)), "{listed:?}");
    let mended = leftovers::mend().unwrap();
    assert!(!mended.iter().any(|mended| is_mine(&mended.leftover, &name)), "{mended:?}");
    assert_eq!(others.id(), Some(id));
    let binding = loop_device::status(&device).unwrap().expect("it is bound").binding;
    assert_eq!(binding.name, source);
    assert_eq!(loop_device::detach(&device, &binding).unwrap(), Detached::Done);
}

/// A mount goes between the look and the removal, and another one comes where it was: of another user, of this one
/// without our name, or on top of it.
#[test]
fn what_came_in_the_place_of_a_mount_is_left_alone() {
    if !can_run() {
        return;
    }
    let name = format!("replaced-{}", std::process::id());
    let source = format!("spillway:4194304.1:{name}");
    for (other_source, user, is_on_top) in
        [(source.as_str(), 65534, false), ("sshfs", 0, false), ("sshfs", 0, true), (source.as_str(), 65534, true)]
    {
        let mounted = Unserved::new(&source, 0);
        let listed = leftovers::list().unwrap();
        let leftover = listed.into_iter().find(|leftover| is_mine(leftover, &name)).expect("it is ours");
        if !is_on_top {
            mounted.unmount();
        }
        mounted.mount(other_source, user);
        let id = mounted.id();
        let error = leftovers::remove(&leftover).unwrap_err().to_string();
        assert!(error.contains("left alone") || error.contains("denied"), "{error}");
        assert_eq!(mounted.id(), id, "{other_source} of {user}");
    }
    let mounted = Unserved::new(&source, 0);
    std::fs::set_permissions(mounted.place.parent().unwrap(), PermissionsExt::from_mode(0o777)).unwrap();
    let listed = leftovers::list().unwrap();
    let leftover = listed.into_iter().find(|leftover| is_mine(leftover, &name)).expect("it is ours");
    let error = leftovers::remove(&leftover).unwrap_err().to_string();
    assert!(error.contains("other users can change"), "{error}");
    std::fs::set_permissions(mounted.place.parent().unwrap(), PermissionsExt::from_mode(0o700)).unwrap();
    leftovers::remove(&leftover).unwrap();
    assert!(mounted.id().is_none() && !mounted.place.exists());
}

/// A memory cgroup (version 1) that is removed at the end.
struct MemoryGroup(PathBuf);

impl MemoryGroup {
    fn new(limit_bytes: u64) -> Option<Self> {
        let directory = Path::new("/sys/fs/cgroup/memory").join(format!("spillway-front-test-{}", std::process::id()));
        std::fs::create_dir(&directory).ok()?;
        let group = Self(directory);
        std::fs::write(group.0.join("memory.limit_in_bytes"), limit_bytes.to_string()).ok()?;
        Some(group)
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        let deadline = Instant::now() + PATIENCE;
        while std::fs::remove_dir(&self.0).is_err() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// The process that [`a_limited_program_swaps_to_the_device_and_reads_back_what_it_wrote`] limits.
#[test]
#[ignore = "runs as a process of its own, under a memory limit"]
fn fill_and_verify() {
    pressure::fill_and_verify();
}

#[test]
fn a_limited_program_swaps_to_the_device_and_reads_back_what_it_wrote() {
    if can_run() {
        ways().into_iter().for_each(swap_a_limited_program);
    }
}

fn swap_a_limited_program(way: Way) {
    let Some(group) = MemoryGroup::new(24 << 20) else {
        return skip("a memory cgroup (version 1)");
    };
    let procs = File::options().write(true).open(group.0.join("cgroup.procs")).unwrap();
    let server = Server::start(way, "swap", 96 * MIB, 2);
    let _alone = swap_lock();
    swap::make(&server.path, "test", [2; 16]).unwrap();
    swap::on(&server.path, Some(100), SwapDiscard::Pages).unwrap();
    let swapped_on = SwappedOn(server.path.clone());

    let steps = child::ChildSteps { cgroups: vec![procs], ..child::ChildSteps::default() };
    let mut program = child::spawn(pressure::filler(64 << 20), steps).unwrap();
    let mut most_bytes = 0;
    let deadline = Instant::now() + 2 * PATIENCE;
    let status = loop {
        most_bytes = pressure::used_bytes(&server.path).max(most_bytes);
        if let Some(status) = program.try_wait().unwrap() {
            break status;
        }
        if Instant::now() > deadline {
            program.signal(rustix::process::Signal::KILL).unwrap();
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    drop(swapped_on);
    assert_eq!(child::exit_code(status), 0, "the program saw what it wrote");
    assert!(most_bytes > 16 << 20, "it was swapped: {most_bytes} bytes at most");
    server.stop();
}
