//! The NBD front end in real kernels: stock Debian 6.12 and 6.1 in virtual machines, because few hosts have the driver.
//!
//! Tests named after a stock kernel boot a machine and run this very program in it, once for each test that is marked
//! to run in a guest. On a machine with the driver they run without one: `cargo test -- --ignored --test-threads=1`.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

#[allow(dead_code)]
mod support;

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use spillway_frontend::front_end::{FrontEnd, FrontEndConfig, FrontEndError};
use spillway_frontend::identity::NbdIdentity;
use spillway_frontend::limits::NBD_TIMEOUT_MARGIN;
use spillway_frontend::nbd::device::Nbd;
use spillway_frontend::nbd::leftovers;
use spillway_sys::allocation_guard::GuardedAllocator;
use spillway_sys::mapping::Mapping;
use spillway_sys::memfd::Memfd;
use spillway_testing::block_devices::{Aligned, open_direct};
use spillway_virtual_machine::{Kernel, VirtualMachine};

use support::busy;
use support::exercise::{discard, exercise, write_and_read_back};
use support::guarded::serve_guarded;
use support::in_guest::{self, Order, ServerProcess, exercise_by_four, exercise_while, serve_until_told};
use support::{PATIENCE, Served, pressure};

#[global_allocator]
static ALLOCATOR: GuardedAllocator = GuardedAllocator;

const MIB: u64 = 1 << 20;

/// Connections of every device here: more than one, so that a request can pass from one to another.
const THREADS: usize = 2;

/// Tests that run in the guest, one after the other.
const IN_GUEST: [&str; 7] = [
    "several_threads_see_what_they_wrote_and_discards_read_as_zeroes",
    "requests_of_every_size_arrive_whole",
    "the_queue_is_set_up_for_paging",
    "receive_and_complete_do_not_allocate",
    "a_device_in_use_is_not_detached_and_goes_on",
    "many_devices_come_and_go",
    "a_killed_server_leaves_errors_and_a_mendable_device",
];

/// The same; these wait for the kernel's timeouts, again and again.
const WITH_TIMEOUTS: [&str; 3] = [
    "a_stopped_server_means_errors_after_a_bounded_time",
    "a_killed_server_is_followed_by_another_under_load",
    "a_limited_program_swaps_and_survives_the_death_of_the_server",
];

/// When the kernel must have given a dead server's requests up: each connection may be tried, and its timers are
/// coarse; twice that for a guest that waits for its processors.
const GIVEN_UP_WITHIN: Duration = Duration::from_secs(8 * (12 + NBD_TIMEOUT_MARGIN.as_secs()));

#[test]
#[ignore = "as much as the older kernel does: `make soak` runs it"]
fn the_newest_stock_kernel_pages_through_nbd() {
    run_in_guest(Kernel::Debian612, &IN_GUEST);
}

#[test]
#[ignore = "waits for a minute or two as the older kernel does: `make soak` runs it"]
fn the_newest_stock_kernel_goes_on_after_the_death_of_nbd_servers() {
    run_in_guest(Kernel::Debian612, &WITH_TIMEOUTS);
}

#[test]
fn an_older_stock_kernel_pages_through_nbd() {
    run_in_guest(Kernel::Debian61, &[&IN_GUEST[..], &WITH_TIMEOUTS].concat());
}

fn run_in_guest(kernel: Kernel, tests: &[&str]) {
    let builder = || VirtualMachine::builder().kernel(kernel).memory_mib(768).modules(&["nbd"]);
    in_guest::run_in_guest(builder, tests, "nbd");
}

fn config(size_bytes: u64, recoverable: bool) -> FrontEndConfig {
    FrontEndConfig {
        name: "test".to_owned(),
        size_bytes,
        threads: THREADS,
        slots_per_thread: 4,
        recoverable,
        answer_deadline: Duration::from_secs(12),
        directory: PathBuf::new(),
    }
}

/// A device served by this process.
fn start(size_bytes: u64) -> Served<Nbd> {
    let (front, channels) = Nbd::open(&config(size_bytes, false)).unwrap();
    Served::start(front, channels, &Arc::new(Mapping::locked(size_bytes as usize).unwrap()))
}

/// Detaches it, and checks that it is gone.
fn stop(mut server: Served<Nbd>) {
    server.end();
    await_free(&server.path);
}

/// The kernel lets go of a device when its last connection has ended, which takes it a moment.
fn await_free(device: &Path) {
    let deadline = Instant::now() + PATIENCE;
    while is_connected(device) {
        assert!(Instant::now() < deadline, "the device is free");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Whether the kernel has a use for the device.
fn is_connected(device: &Path) -> bool {
    Path::new("/sys/block").join(device.file_name().unwrap()).join("pid").exists()
}

#[test]
#[ignore = "runs in a guest"]
fn several_threads_see_what_they_wrote_and_discards_read_as_zeroes() {
    let server = start(32 * MIB);
    exercise_by_four(&server.path, 32 * MIB, 150, 0x5EED);
    stop(server);
}

#[test]
#[ignore = "runs in a guest"]
fn requests_of_every_size_arrive_whole() {
    let server = start(16 * MIB);
    in_guest::requests_of_every_size(&server.path);
    stop(server);
}

#[test]
#[ignore = "runs in a guest"]
fn the_queue_is_set_up_for_paging() {
    let server = start(8 * MIB);
    let settings = [("max_sectors_kb", "1024"), ("write_cache", "write through")];
    in_guest::assert_queue(&server.path, &settings, THREADS);
    stop(server);
}

#[test]
#[ignore = "runs in a guest"]
fn receive_and_complete_do_not_allocate() {
    let (mut front, channels) = Nbd::open(&config(8 * MIB, false)).unwrap();
    let memory = Mapping::locked(8 << 20).unwrap();
    let served: u32 = std::thread::scope(|scope| {
        let memory = &memory;
        let servers: Vec<_> =
            channels.into_iter().map(|channel| scope.spawn(move || serve_guarded(channel, memory))).collect();
        let device = front.attach().unwrap();
        write_and_read_back(&device, |file| discard(file, 0, 4096));
        front.detach(PATIENCE).unwrap();
        servers.into_iter().map(|server| server.join().unwrap()).sum()
    });
    assert!(served >= 57, "{served}");
}

#[test]
#[ignore = "runs in a guest"]
fn a_device_in_use_is_not_detached_and_goes_on() {
    let mut server = start(8 * MIB);
    busy::refusal_while_open(&mut server);
    busy::refusal_while_swapped_to(&mut server);
    assert_eq!(leftovers::list().unwrap(), [], "it is served");
    busy::refusal_while_another_has_it(&mut server);
    stop(server);
}

#[test]
#[ignore = "runs in a guest"]
fn many_devices_come_and_go() {
    for round in 0..5 {
        let servers: Vec<Served<Nbd>> = (0..3).map(|_| start(4 * MIB)).collect();
        for (number, server) in servers.iter().enumerate() {
            let (file, mut buffer) = (open_direct(&server.path), Aligned::new(4096));
            assert_eq!(buffer.read(&file, 0, 4096), [0; 4096], "round {round}: nothing of the last one");
            buffer.write(&file, 0, &[number as u8 + 1; 4096]);
        }
        for (number, server) in servers.into_iter().enumerate() {
            assert_eq!(Aligned::new(4096).read(&open_direct(&server.path), 0, 4096), [number as u8 + 1; 4096]);
            stop(server);
        }
    }
}

/// Which device a server serves.
fn identity(server: &ServerProcess) -> NbdIdentity {
    identity_in(&server.device).unwrap()
}

fn identity_in(text: &str) -> Option<NbdIdentity> {
    let (index, identifier) = text.split_once(' ')?;
    Some(NbdIdentity { index: index.parse().ok()?, identifier: identifier.to_owned(), connections: THREADS })
}

#[test]
#[ignore = "runs as a process of its own, until it is killed"]
fn serve_until_killed() {
    let order = Order::take();
    let config = config(order.size_bytes, order.recoverable);
    let (front, channels) = match identity_in(&order.device) {
        Some(identity) => Nbd::reconnect(&config, &identity).unwrap(),
        None => Nbd::open(&config).unwrap(),
    };
    let server = Served::start(front, channels, &order.memory);
    let identity = server.front.identity().unwrap();
    serve_until_told(&format!("{} {}", identity.index, identity.identifier));
    stop(server);
}

/// Reads until an error comes, which it must.
fn await_error(device: &Path, within: Duration) {
    let started = Instant::now();
    let (file, mut buffer) = (open_direct(device), Aligned::new(4096));
    while file.read_exact_at(buffer.bytes(), 0).is_ok() {
        assert!(started.elapsed() < within, "a dead server's device answers with errors");
    }
    assert!(started.elapsed() < within, "after {:?}", started.elapsed());
}

/// One device of a dead server, which is ended; its number serves again.
fn mend(identity: &NbdIdentity) {
    let leftovers = leftovers::list().unwrap();
    assert_eq!(leftovers.len(), 1, "{leftovers:?}");
    assert_eq!((leftovers[0].index, leftovers[0].maker.to_string()), (identity.index, identity.identifier.clone()));
    leftovers::end(&leftovers[0]).unwrap();
    assert_eq!(leftovers::list().unwrap(), []);
    let server = start(4 * MIB);
    exercise(&server.path, 0, 4 << 20, 7, 20);
    stop(server);
}

#[test]
#[ignore = "runs in a guest"]
fn a_killed_server_leaves_errors_and_a_mendable_device() {
    let memory = Memfd::create("test", 8 * MIB).unwrap();
    let mut server = ServerProcess::start(&memory, false, None);
    let identity = identity(&server);
    let file = open_direct(&identity.path());
    Aligned::new(4096).write(&file, 0, &[3; 4096]);
    server.kill();
    await_error(&identity.path(), GIVEN_UP_WITHIN);
    drop(file);
    mend(&identity);
}

#[test]
#[ignore = "runs in a guest"]
fn a_stopped_server_means_errors_after_a_bounded_time() {
    let memory = Memfd::create("test", 8 * MIB).unwrap();
    let mut server = ServerProcess::start(&memory, false, None);
    let identity = identity(&server);
    let file = open_direct(&identity.path());
    Aligned::new(4096).write(&file, 0, &[3; 4096]);
    kill_process(Pid::from_child(&server.child), Signal::STOP).unwrap();
    await_error(&identity.path(), GIVEN_UP_WITHIN);
    assert_eq!(leftovers::list().unwrap(), [], "its process lives");
    server.kill();
    drop(file);
    mend(&identity);
}

#[test]
#[ignore = "runs in a guest"]
fn a_killed_server_is_followed_by_another_under_load() {
    let memory = Memfd::create("test", 16 * MIB).unwrap();
    let mut server = ServerProcess::start(&memory, true, None);
    let identity = identity(&server);
    exercise_while(&identity.path(), 16 * MIB, |goes_on| {
        for _ in 0..2 {
            std::thread::sleep(Duration::from_millis(300));
            assert!(goes_on(), "the load goes on");
            server.follow(&memory);
            assert_eq!(leftovers::list().unwrap(), [], "it is served again");
        }
    });
    server.end();
    await_free(&identity.path());
    let gone = Nbd::reconnect(&config(16 * MIB, true), &identity);
    assert!(matches!(gone, Err(FrontEndError::Missing(_))), "{:?}", gone.err());
}

/// The process that [`a_limited_program_swaps_and_survives_the_death_of_the_server`] limits.
#[test]
#[ignore = "runs as a process of its own, under a memory limit"]
fn fill_and_verify() {
    pressure::fill_and_verify();
}

#[test]
#[ignore = "runs in a guest"]
fn a_limited_program_swaps_and_survives_the_death_of_the_server() {
    let memory = Memfd::create("test", 64 * MIB).unwrap();
    let server = ServerProcess::start(&memory, true, None);
    let path = identity(&server).path();
    pressure::swap_through_deaths(server, &memory, &path, 16 * MIB, 1);
    await_free(&path);
}
