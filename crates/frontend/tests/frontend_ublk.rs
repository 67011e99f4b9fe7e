//! The ublk front end in a real kernel: a stock Debian 6.12 in a virtual machine, because few hosts have the driver.
//!
//! [`a_stock_kernel_pages_through_ublk`] boots the machine and runs this very program in it, once for each test that
//! is marked to run in a guest. On a machine with the driver they run without one: `cargo test -- --ignored
//! --test-threads=1`.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

#[allow(dead_code)]
mod support;

use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use spillway_block::channel::{BlockChannel, Received};
use spillway_frontend::front_end::{FrontEnd, FrontEndError};
use spillway_frontend::identity::UblkIdentity;
use spillway_frontend::ublk::device::Ublk;
use spillway_frontend::ublk::leftovers;
use spillway_sys::allocation_guard::GuardedAllocator;
use spillway_sys::mapping::Mapping;
use spillway_sys::memfd::Memfd;
use spillway_testing::block_devices::{Aligned, open_direct};
use spillway_virtual_machine::VirtualMachine;

use support::busy;
use support::exercise::{discard, write_and_read_back};
use support::guarded::serve_guarded;
use support::in_guest::{self, Order, ServerProcess, exercise_by_four, exercise_while, serve_until_told};
use support::ublk::{MIB, await_devices, config, start, start_with, stop};
use support::{PATIENCE, Served, pressure};

#[global_allocator]
static ALLOCATOR: GuardedAllocator = GuardedAllocator;

/// Tests that run in the guest, one after the other.
const IN_GUEST: [&str; 14] = [
    "several_threads_see_what_they_wrote_and_discards_read_as_zeroes",
    "requests_of_every_size_arrive_whole",
    "the_queue_is_set_up_for_paging",
    "receive_and_complete_do_not_allocate",
    "a_device_in_use_is_not_detached_and_goes_on",
    "many_devices_come_and_go",
    "a_start_without_a_server_ends_and_leaves_nothing",
    "a_live_device_is_not_taken_over",
    "a_killed_server_leaves_errors_and_a_mendable_device",
    "a_killed_server_is_followed_by_another_under_load",
    "a_server_that_dies_with_every_slot_in_hand_is_followed",
    "a_follower_that_dies_before_it_serves_is_followed",
    "a_device_that_waits_in_vain_is_deleted",
    "a_limited_program_swaps_and_survives_the_death_of_the_server",
];

#[test]
fn a_stock_kernel_pages_through_ublk() {
    in_guest::run_in_guest(|| VirtualMachine::builder().memory_mib(768).modules(&["ublk_drv"]), &IN_GUEST, "ublkb");
}

#[test]
#[ignore = "runs in a guest"]
fn several_threads_see_what_they_wrote_and_discards_read_as_zeroes() {
    let server = start(32 * MIB, 2);
    exercise_by_four(&server.path, 32 * MIB, 150, 0x5EED);
    stop(server);
}

#[test]
#[ignore = "runs in a guest"]
fn requests_of_every_size_arrive_whole() {
    let server = start(16 * MIB, 1);
    in_guest::requests_of_every_size(&server.path);
    stop(server);
}

#[test]
#[ignore = "runs in a guest"]
fn the_queue_is_set_up_for_paging() {
    let server = start(8 * MIB, 2);
    let settings = [("max_hw_sectors_kb", "1024"), ("write_cache", "write back"), ("io_timeout", "1000")];
    in_guest::assert_queue(&server.path, &settings, 2);
    stop(server);
}

#[test]
#[ignore = "runs in a guest"]
fn receive_and_complete_do_not_allocate() {
    let (mut front, channels) = Ublk::add(&config(8 * MIB, 1)).unwrap();
    let memory = Mapping::locked(8 << 20).unwrap();
    let channel = channels.into_iter().next().unwrap();
    let server = std::thread::spawn(move || serve_guarded(channel, &memory));
    let device = front.attach().unwrap();
    write_and_read_back(&device, |file| discard(file, 0, 4096));
    front.detach(PATIENCE).unwrap();
    assert!(server.join().unwrap() >= 58);
    await_devices(0);
}

#[test]
#[ignore = "runs in a guest"]
fn a_device_in_use_is_not_detached_and_goes_on() {
    let mut server = start(8 * MIB, 2);
    let said = busy::refusal_while_open(&mut server);
    assert!(said.contains("this process"), "{said}");
    busy::refusal_while_swapped_to(&mut server);
    assert_eq!(leftovers::list().unwrap(), [], "it is served");
    let (said, other) = busy::refusal_while_another_has_it(&mut server);
    assert!(said.contains(&format!("process {other}")), "{said}");
    stop(server);
}

#[test]
#[ignore = "runs in a guest"]
fn many_devices_come_and_go() {
    let kept = start(MIB, 1);
    for round in 0..12 {
        let server = start(MIB, 1 + round % 2);
        assert_ne!(server.path, kept.path);
        if round % 3 == 0 {
            // Dropped instead of stopped.
            continue;
        }
        stop(server);
    }
    let file = open_direct(&kept.path);
    Aligned::new(4096).write(&file, 0, &[1; 4096]);
    drop(file);
    stop(kept);
    await_devices(0);
}

#[test]
#[ignore = "runs in a guest"]
fn a_start_without_a_server_ends_and_leaves_nothing() {
    let (mut front, channels) = Ublk::add(&config(MIB, 2)).unwrap();
    await_devices(1);
    let error = front.attach().unwrap_err();
    assert!(matches!(&error, FrontEndError::System { source, .. } if source.kind() == std::io::ErrorKind::TimedOut));
    drop(channels);
    drop(front);
    await_devices(0);
    // What was never attached goes too.
    drop(Ublk::add(&config(MIB, 1)).unwrap());
    await_devices(0);
    let bad = support::ublk::config(4097, 1);
    assert!(matches!(Ublk::add(&bad), Err(FrontEndError::Invalid(_))));
}

#[test]
#[ignore = "runs in a guest"]
fn a_live_device_is_not_taken_over() {
    let server = start_with(&config(MIB, 1));
    let identity = server.front.identity();
    let refusal = |config| Ublk::recover(&config, identity).err().unwrap();
    assert!(matches!(refusal(config(MIB, 1)), FrontEndError::Invalid(text) if text.contains("recoverable")));
    stop(server);
    assert!(matches!(refusal(config(MIB, 1)), FrontEndError::Missing(_)));

    let recoverable = support::ublk::recoverable(MIB, 1);
    let server = start_with(&recoverable);
    let identity = server.front.identity();
    assert!(matches!(Ublk::recover(&recoverable, identity), Err(FrontEndError::Busy(_))));
    assert!(matches!(Ublk::recover(&config(2 * MIB, 1), identity), Err(FrontEndError::Invalid(_))));
    let file = open_direct(&server.path);
    Aligned::new(4096).write(&file, 0, &[1; 4096]);
    drop(file);
    stop(server);
}

/// Which device a server serves.
fn identity(server: &ServerProcess) -> UblkIdentity {
    UblkIdentity { device_id: server.device.parse().unwrap() }
}

#[test]
#[ignore = "runs as a process of its own, until it is killed"]
fn serve_until_killed() {
    let order = Order::take();
    let config =
        if order.recoverable { support::ublk::recoverable(order.size_bytes, 2) } else { config(order.size_bytes, 2) };
    let (front, channels) = match order.device.parse() {
        Ok(device_id) => Ublk::recover(&config, UblkIdentity { device_id }).unwrap(),
        Err(_) => Ublk::add(&config).unwrap(),
    };
    let server = Served::start(front, channels, &order.memory);
    serve_until_told(&server.front.identity().device_id.to_string());
    stop(server);
}

#[test]
#[ignore = "runs in a guest"]
fn a_killed_server_leaves_errors_and_a_mendable_device() {
    let memory = Memfd::create("test", 8 * MIB).unwrap();
    let mut server = ServerProcess::start(&memory, false, None);
    let identity = identity(&server);
    let file = open_direct(&identity.path());
    let mut buffer = Aligned::new(4096);
    buffer.write(&file, 0, &[3; 4096]);
    server.kill();
    let deadline = Instant::now() + PATIENCE;
    while file.read_exact_at(buffer.bytes(), 0).is_ok() {
        assert!(Instant::now() < deadline, "a dead server's device answers with errors");
    }
    drop(file);
    let leftovers = leftovers::list().unwrap();
    assert_eq!(leftovers.len(), 1, "{leftovers:?}");
    assert_eq!((leftovers[0].identity, leftovers[0].maker_pid), (identity, server.child.id()));
    assert!(!leftovers[0].is_waited_for);
    leftovers::delete(identity).unwrap();
    assert_eq!(leftovers::list().unwrap(), []);
    await_devices(0);
}

#[test]
#[ignore = "runs in a guest"]
fn a_killed_server_is_followed_by_another_under_load() {
    let memory = Memfd::create("test", 16 * MIB).unwrap();
    let mut server = ServerProcess::start(&memory, true, None);
    let identity = identity(&server);
    exercise_while(&identity.path(), 16 * MIB, |goes_on| {
        // Should a server fail to start, the load ends with errors instead of waiting for ever.
        let _given_up = GivenUp(identity);
        for _ in 0..3 {
            std::thread::sleep(Duration::from_millis(300));
            assert!(goes_on(), "the load goes on");
            server.follow(&memory);
        }
    });
    server.end();
    await_devices(0);
}

/// The process that [`a_server_that_dies_with_every_slot_in_hand_is_followed`] kills: it takes requests and answers
/// none.
#[test]
#[ignore = "runs as a process of its own, until it is killed"]
fn serve_nothing_until_killed() {
    let (mut front, channels) = Ublk::add(&support::ublk::recoverable(8 * MIB, 1)).unwrap();
    let mut channel = channels.into_iter().next().unwrap();
    let identity = front.identity();
    let attaching = std::thread::spawn(move || front.attach().map(|_| std::mem::forget(front)));
    let mut held = 0;
    let slots = channel.pool().slot_count();
    while held < slots {
        match channel.receive().unwrap() {
            // Reads of the process that looks at a new device; the attachment waits for their answers.
            Received::Request(request) if !attaching.is_finished() => channel.complete(request.slot, Ok(())).unwrap(),
            Received::Request(_) => held += 1,
            _ if attaching.is_finished() && held == 0 => {
                println!("\nserving {}", identity.device_id);
                std::thread::sleep(Duration::from_millis(100));
            }
            _ => std::thread::sleep(Duration::from_millis(1)),
        }
    }
    println!("\nholding");
    std::thread::sleep(Duration::from_secs(1000));
}

#[test]
#[ignore = "runs in a guest"]
fn a_server_that_dies_with_every_slot_in_hand_is_followed() {
    let mut holder = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "serve_nothing_until_killed", "--ignored", "--nocapture"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(holder.stdout.take().unwrap()).lines().map(Result::unwrap);
    let line = lines.find(|line| line.starts_with("serving ")).expect("the server starts");
    let identity = UblkIdentity { device_id: line["serving ".len()..].parse().unwrap() };
    let _given_up = GivenUp(identity);
    let readers: Vec<_> = (0..16_u64)
        .map(|number| {
            let path = identity.path();
            std::thread::spawn(move || open_direct(&path).read_exact_at(Aligned::new(4096).bytes(), number << 16))
        })
        .collect();
    assert!(lines.any(|line| line == "holding"), "all slots are taken");
    holder.kill().unwrap();
    holder.wait().unwrap();
    let memory = Memfd::create("test", 8 * MIB).unwrap();
    let server = ServerProcess::start(&memory, true, Some(&identity.device_id.to_string()));
    for reader in readers {
        reader.join().unwrap().unwrap();
    }
    server.end();
    await_devices(0);
}

/// The processes that [`a_follower_that_dies_before_it_serves_is_followed`] kills.
fn take_over_and_serve(queues: usize) {
    let identity = UblkIdentity { device_id: Order::take().device.parse().unwrap() };
    let (_front, mut channels) = Ublk::recover(&support::ublk::recoverable(8 * MIB, 2), identity).unwrap();
    for channel in channels.iter_mut().take(queues) {
        assert!(matches!(channel.receive().unwrap(), Received::Nothing));
    }
    serve_until_told(&identity.device_id.to_string());
}

#[test]
#[ignore = "runs as a process of its own, until it is killed"]
fn take_over_and_serve_nothing() {
    take_over_and_serve(0);
}

#[test]
#[ignore = "runs as a process of its own, until it is killed"]
fn take_over_and_serve_one_queue() {
    take_over_and_serve(1);
}

/// Linux 6.12 keeps the queues for a follower that died before it served, and stops at a null pointer when only some
/// queues have had a server.
#[test]
#[ignore = "runs in a guest"]
fn a_follower_that_dies_before_it_serves_is_followed() {
    let memory = Memfd::create("test", 8 * MIB).unwrap();
    let mut server = ServerProcess::start(&memory, true, None);
    let identity = identity(&server);
    let _given_up = GivenUp(identity);
    let file = open_direct(&identity.path());
    let mut buffer = Aligned::new(4096);
    buffer.write(&file, 0, &[7; 4096]);
    server.kill();
    for role in ["take_over_and_serve_nothing", "take_over_and_serve_one_queue", "take_over_and_serve_nothing"] {
        ServerProcess::start_as(role, &memory, true, Some(&server.device)).kill();
    }
    server.follow(&memory);
    file.read_exact_at(buffer.bytes(), 0).unwrap();
    assert!(buffer.bytes().iter().all(|&byte| byte == 7));
    drop(file);
    server.end();
    await_devices(0);
}

/// When a test panics, no process waits for its device any more.
struct GivenUp(UblkIdentity);

impl Drop for GivenUp {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let _ = leftovers::delete(self.0);
        }
    }
}

#[test]
#[ignore = "runs in a guest"]
fn a_device_that_waits_in_vain_is_deleted() {
    let memory = Memfd::create("test", 8 * MIB).unwrap();
    let mut server = ServerProcess::start(&memory, true, None);
    let identity = identity(&server);
    server.kill();
    let reader = std::thread::spawn({
        let path = identity.path();
        // It waits for a server, and gets an error in the end.
        move || open_direct(&path).read_exact_at(Aligned::new(4096).bytes(), 0).is_err()
    });
    let deadline = Instant::now() + PATIENCE;
    while !leftovers::list().unwrap().iter().any(|leftover| leftover.is_waited_for) {
        assert!(Instant::now() < deadline, "the kernel notices the death: {:?}", leftovers::list());
        std::thread::sleep(Duration::from_millis(10));
    }
    match leftovers::delete(identity) {
        // The reader may still have it open.
        Ok(()) | Err(FrontEndError::Busy(_)) => {}
        Err(error) => panic!("{error}"),
    }
    assert!(reader.join().unwrap());
    await_devices(0);
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
    let identity = identity(&server);
    let _given_up = GivenUp(identity);
    pressure::swap_through_deaths(server, &memory, &identity.path(), 16 * MIB, 3);
    await_devices(0);
}
