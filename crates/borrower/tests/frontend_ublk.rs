//! The ublk front end in a real kernel: a stock Debian 6.12 in a virtual machine, because few hosts have the driver.
//!
//! [`a_stock_kernel_pages_through_ublk`] boots the machine and runs this very program in it, once for each test that is
//! marked to run in a guest. On a machine with the driver they run without one: `cargo test -- --ignored --test-threads=1`.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

#[allow(dead_code)]
mod frontend_support;
mod ublk_support;

use frontend_support::guarded::serve_guarded;
use std::fs;
use std::io::{BufRead, BufReader, Lines};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use frontend_support::exercise::{discard, exercise};
use frontend_support::pressure::{MemoryGroup, SwappedOn};
use frontend_support::{Aligned, PATIENCE, open_direct, queue_setting};
use spillway_borrower::block::{BlockChannel, Received};
use spillway_borrower::frontend::ublk::Ublk;
use spillway_borrower::frontend::ublk_identity::UblkIdentity;
use spillway_borrower::frontend::{FrontEnd, FrontEndError, ublk_remains};
use spillway_sys::allocation_guard::GuardedAllocator;
use spillway_sys::mapping::Mapping;
use spillway_sys::memfd::Memfd;
use spillway_sys::swap::{self, SwapDiscard};
use spillway_virtual_machine::{Failure, VirtualMachine, emulated};
use ublk_support::{MIB, Server, config, device_count, serve};

#[global_allocator]
static ALLOCATOR: GuardedAllocator = GuardedAllocator;

/// Tests that run in the guest, one after the other.
const IN_GUEST: [&str; 13] = [
    "several_threads_see_what_they_wrote_and_discards_read_as_zeroes",
    "requests_of_every_size_arrive_whole",
    "the_queue_is_set_up_for_paging",
    "receive_and_complete_do_not_allocate",
    "a_device_in_use_is_not_detached_and_goes_on",
    "many_devices_come_and_go",
    "a_start_that_nobody_serves_ends_and_leaves_nothing",
    "a_live_device_is_not_taken_over",
    "a_killed_server_leaves_errors_and_a_mendable_device",
    "a_killed_server_is_followed_by_another_under_load",
    "a_server_that_dies_with_every_slot_in_hand_is_followed",
    "a_device_that_waits_in_vain_is_deleted",
    "a_limited_program_swaps_and_survives_the_death_of_the_server",
];

/// How often the server of one load is killed.
const KILLS: usize = 3;

/// Emulated, on a loaded host.
const WITHIN: Duration = Duration::from_secs(600);

#[test]
fn a_stock_kernel_pages_through_ublk() {
    emulated(|| {
        let machine = match VirtualMachine::builder().memory_mib(768).modules(&["ublk_drv"]).start() {
            Err(Failure::Missing { what, remedy }) => {
                return frontend_support::skip("a_stock_kernel_pages_through_ublk", &format!("{what} ({remedy})"));
            }
            result => result.unwrap_or_else(|failure| panic!("{failure}")),
        };
        let program = std::env::current_exe().unwrap();
        for test in IN_GUEST {
            let started = Instant::now();
            let script = format!("exec '{}' --exact {test} --ignored --nocapture", program.display());
            let said = machine.run(&script, WITHIN).unwrap_or_else(|failure| panic!("{failure}"));
            assert!(said.status == 0 && said.output.contains("1 passed"), "{test}: {said:#?}\n{}", machine.console());
            println!("in the guest: {test} ({:?})", started.elapsed());
        }
        // I/O errors are what the death of a server without recovery means, and the last test but three provokes them.
        let complaints: Vec<_> =
            machine.complaints().into_iter().filter(|line| !line.contains("ublkb") || line.contains("hung")).collect();
        assert_eq!(complaints, Vec::<String>::new());
        machine.end().unwrap_or_else(|failure| panic!("{failure}"));
    });
}

#[test]
#[ignore = "runs in a guest"]
fn several_threads_see_what_they_wrote_and_discards_read_as_zeroes() {
    let server = Server::start(32 * MIB, 2);
    exercise_by_four(&server.path, 32 * MIB, 150, 0x5EED);
    server.stop();
}

/// Four threads, each with a quarter of the device.
fn exercise_by_four(device: &Path, size_bytes: u64, operations: u32, seed: u64) {
    std::thread::scope(|scope| {
        for number in 0..4_u64 {
            let quarter = size_bytes / 4;
            scope.spawn(move || exercise(device, number * quarter, quarter as usize, seed + number, operations));
        }
    });
}

#[test]
#[ignore = "runs in a guest"]
fn requests_of_every_size_arrive_whole() {
    let server = Server::start(16 * MIB, 1);
    let file = open_direct(&server.path);
    let mut buffer = Aligned::new(4 << 20);
    // The kernel cuts what is larger than a slot (1 MiB).
    for length in [4096, 8192, 64 << 10, 132 << 10, 1 << 20, (1 << 20) + 4096, 4 << 20] {
        let content: Vec<u8> = (0..length).map(|at: usize| (at / 512 + length / 4096) as u8).collect();
        let offset = 3 * 4096;
        buffer.write(&file, offset, &content);
        assert!(buffer.read(&file, offset, length) == content, "{length} bytes");
    }
    // A buffer that starts inside a page is whole pages all the same.
    let content: Vec<u8> = (0..2 << 20).map(|at: u32| (at / 512) as u8).collect();
    buffer.bytes()[512..512 + (2 << 20)].copy_from_slice(&content);
    file.write_all_at(&buffer.bytes()[512..512 + (2 << 20)], 4096).unwrap();
    assert!(buffer.read(&file, 4096, 2 << 20) == content);
    discard(&file, 4096, 1 << 20);
    assert!(buffer.read(&file, 4096, 1 << 20).iter().all(|&byte| byte == 0));
    assert!(buffer.read(&file, 4096 + (1 << 20), 4096) == &content[1 << 20..(1 << 20) + 4096]);
    file.sync_all().unwrap();
    assert!(file.write_at(&buffer.bytes()[..4096], 16 * MIB).is_err(), "past the end");
    drop(file);
    server.stop();
}

#[test]
#[ignore = "runs in a guest"]
fn the_queue_is_set_up_for_paging() {
    let server = Server::start(8 * MIB, 2);
    let setting = |name| queue_setting(&server.path, name);
    for (name, value) in [
        ("logical_block_size", "4096"),
        ("physical_block_size", "4096"),
        ("discard_granularity", "4096"),
        ("max_hw_sectors_kb", "1024"),
        ("read_ahead_kb", "0"),
        ("rotational", "0"),
        ("write_cache", "write back"),
        ("io_timeout", "1000"),
    ] {
        assert_eq!(setting(name), value, "{name}");
    }
    assert!(setting("scheduler").contains("[none]"));
    assert_ne!(setting("discard_max_bytes"), "0");
    let queues = fs::read_dir(Path::new("/sys/block").join(server.path.file_name().unwrap()).join("mq")).unwrap();
    assert_eq!(queues.count(), 2);
    server.stop();
}

#[test]
#[ignore = "runs in a guest"]
fn receive_and_complete_do_not_allocate() {
    let (mut front, channels) = Ublk::add(&config(8 * MIB, 1)).unwrap();
    let memory = Mapping::locked(8 << 20).unwrap();
    let channel = channels.into_iter().next().unwrap();
    let server = std::thread::spawn(move || serve_guarded(channel, &memory));
    let device = front.attach().unwrap();
    let file = open_direct(&device);
    let mut buffer = Aligned::new(1 << 20);
    for round in 1..20_u8 {
        buffer.write(&file, u64::from(round) * 4096, &[round; 64 * 1024]);
        assert!(buffer.read(&file, u64::from(round) * 4096, 64 * 1024).iter().all(|byte| *byte == round));
        discard(&file, 0, 4096);
    }
    file.sync_all().unwrap();
    drop(file);
    front.detach(PATIENCE).unwrap();
    assert!(server.join().unwrap() >= 58);
    assert_eq!(device_count(), 0);
}

#[test]
#[ignore = "runs in a guest"]
fn a_device_in_use_is_not_detached_and_goes_on() {
    let mut server = Server::start(8 * MIB, 2);
    let file = open_direct(&server.path);
    let refused = server.detach().unwrap_err();
    assert!(matches!(&refused, FrontEndError::Busy(text) if text.contains("this process")), "{refused}");
    let mut buffer = Aligned::new(4096);
    buffer.write(&file, 4096, &[9; 4096]);
    assert_eq!(buffer.read(&file, 4096, 4096), [9; 4096]);
    drop(file);

    swap::make(&server.path, "test", [1; 16]).unwrap();
    swap::on(&server.path, None, SwapDiscard::Always).unwrap();
    let refused = server.detach();
    swap::off(&server.path).unwrap();
    assert!(matches!(refused, Err(FrontEndError::Busy(_))));
    assert_eq!(ublk_remains::list().unwrap(), [], "it is served");

    let mut other = Command::new("sleep").arg("1000").stdin(fs::File::open(&server.path).unwrap()).spawn().unwrap();
    let refused = server.detach().unwrap_err();
    other.kill().unwrap();
    let expected = format!("process {}", other.id());
    other.wait().unwrap();
    assert!(matches!(&refused, FrontEndError::Busy(text) if text.contains(&expected)), "{refused}");
    server.stop();
}

#[test]
#[ignore = "runs in a guest"]
fn many_devices_come_and_go() {
    let kept = Server::start(MIB, 1);
    for round in 0..12 {
        let server = Server::start(MIB, 1 + round % 2);
        assert_ne!(server.path, kept.path);
        if round % 3 == 0 {
            // Dropped instead of stopped.
            continue;
        }
        server.stop();
    }
    let file = open_direct(&kept.path);
    Aligned::new(4096).write(&file, 0, &[1; 4096]);
    drop(file);
    kept.stop();
    assert_eq!(device_count(), 0);
}

#[test]
#[ignore = "runs in a guest"]
fn a_start_that_nobody_serves_ends_and_leaves_nothing() {
    let (mut front, channels) = Ublk::add(&config(MIB, 2)).unwrap();
    assert_eq!(device_count(), 1);
    let error = front.attach().unwrap_err();
    assert!(matches!(&error, FrontEndError::System { source, .. } if source.kind() == std::io::ErrorKind::TimedOut));
    drop(channels);
    drop(front);
    await_devices(0);
    // What was never attached goes too.
    drop(Ublk::add(&config(MIB, 1)).unwrap());
    await_devices(0);
    let bad = ublk_support::config(4097, 1);
    assert!(matches!(Ublk::add(&bad), Err(FrontEndError::Invalid(_))));
}

/// The kernel forgets a deleted device when the last ring that knows it is gone, which takes it a moment.
fn await_devices(count: usize) {
    let deadline = Instant::now() + PATIENCE;
    while device_count() != count {
        assert!(Instant::now() < deadline, "{} devices instead of {count}", device_count());
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
#[ignore = "runs in a guest"]
fn a_live_device_is_not_taken_over() {
    let server = Server::start_with(&config(MIB, 1), None);
    let identity = server.front.identity();
    let refusal = |config| Ublk::recover(&config, identity).err().unwrap();
    assert!(matches!(refusal(config(MIB, 1)), FrontEndError::Invalid(text) if text.contains("recoverable")));
    server.stop();
    assert!(matches!(refusal(config(MIB, 1)), FrontEndError::Missing(_)));

    let recoverable = ublk_support::recoverable(MIB, 1);
    let server = Server::start_with(&recoverable, None);
    let identity = server.front.identity();
    assert!(matches!(Ublk::recover(&recoverable, identity), Err(FrontEndError::Busy(_))));
    assert!(matches!(Ublk::recover(&config(2 * MIB, 1), identity), Err(FrontEndError::Invalid(_))));
    let file = open_direct(&server.path);
    Aligned::new(4096).write(&file, 0, &[1; 4096]);
    drop(file);
    server.stop();
}

/// A process that serves a device from memory of its parent, until it is killed or its input ends.
struct ServerProcess {
    child: Child,
    identity: UblkIdentity,
    /// Kept open: a test that cannot write its result has failed.
    _output: Lines<BufReader<ChildStdout>>,
}

impl ServerProcess {
    /// Starts one; with `identity` it takes that device over.
    fn start(memory: &Memfd, recoverable: bool, identity: Option<UblkIdentity>) -> Self {
        let descriptor = rustix::fd::AsFd::as_fd(memory).as_raw_fd();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "serve_until_killed", "--ignored", "--nocapture"])
            .env("SPILLWAY_TEST_MEMORY", format!("/proc/{}/fd/{descriptor}", std::process::id()))
            .env("SPILLWAY_TEST_RECOVERABLE", if recoverable { "yes" } else { "no" })
            .env("SPILLWAY_TEST_DEVICE", identity.map_or(String::new(), |identity| identity.device_id.to_string()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap()).lines();
        let line =
            output.by_ref().map(Result::unwrap).find(|line| line.starts_with("serving ")).expect("the server starts");
        let identity = UblkIdentity { device_id: line["serving ".len()..].parse().unwrap() };
        Self { child, identity, _output: output }
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Lets it detach its device.
    fn end(mut self) {
        drop(self.child.stdin.take());
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
#[ignore = "runs as a process of its own, until it is killed"]
fn serve_until_killed() {
    let memory = std::env::var("SPILLWAY_TEST_MEMORY").expect("another test starts this one");
    let memory = fs::File::options().read(true).write(true).open(memory).unwrap();
    let memory = Memfd::open(memory.into()).unwrap();
    let size_bytes = memory.length_bytes();
    let mapping = Arc::new(Mapping::shared(&memory, size_bytes as usize).unwrap());
    let is_recoverable = std::env::var("SPILLWAY_TEST_RECOVERABLE").unwrap() == "yes";
    let config = if is_recoverable { ublk_support::recoverable(size_bytes, 2) } else { config(size_bytes, 2) };
    let device = std::env::var("SPILLWAY_TEST_DEVICE").unwrap();
    let (front, channels) = match device.parse() {
        Ok(device_id) => Ublk::recover(&config, UblkIdentity { device_id }).unwrap(),
        Err(_) => Ublk::add(&config).unwrap(),
    };
    let server = serve(front, channels, &mapping);
    println!("\nserving {}", server.front.identity().device_id);
    let mut line = String::new();
    let _ = std::io::stdin().read_line(&mut line);
    server.stop();
}

#[test]
#[ignore = "runs in a guest"]
fn a_killed_server_leaves_errors_and_a_mendable_device() {
    let memory = Memfd::create("test", 8 * MIB).unwrap();
    let mut server = ServerProcess::start(&memory, false, None);
    let file = open_direct(&server.identity.path());
    let mut buffer = Aligned::new(4096);
    buffer.write(&file, 0, &[3; 4096]);
    server.kill();
    let deadline = Instant::now() + PATIENCE;
    while file.read_exact_at(buffer.bytes(), 0).is_ok() {
        assert!(Instant::now() < deadline, "a dead server's device answers with errors");
    }
    drop(file);
    let remains = ublk_remains::list().unwrap();
    assert_eq!(remains.len(), 1, "{remains:?}");
    assert_eq!((remains[0].identity, remains[0].maker_pid), (server.identity, server.child.id()));
    assert!(!remains[0].is_waited_for);
    ublk_remains::delete(server.identity).unwrap();
    assert_eq!(ublk_remains::list().unwrap(), []);
    assert_eq!(device_count(), 0);
}

#[test]
#[ignore = "runs in a guest"]
fn a_killed_server_is_followed_by_another_under_load() {
    let memory = Memfd::create("test", 16 * MIB).unwrap();
    let mut server = ServerProcess::start(&memory, true, None);
    let identity = server.identity;
    let is_enough = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let load = scope.spawn(|| {
            // Every byte is compared with what was written, across all deaths.
            for seed in 0xDEAD.. {
                exercise_by_four(&identity.path(), 16 * MIB, 60, seed);
                if is_enough.load(Ordering::SeqCst) {
                    break;
                }
                discard(&open_direct(&identity.path()), 0, 16 * MIB);
            }
        });
        // Should a server fail to start, the load ends with errors instead of waiting for ever.
        let _given_up = GivenUp(identity);
        for _ in 0..KILLS {
            std::thread::sleep(Duration::from_millis(300));
            assert!(!load.is_finished(), "the load goes on");
            server.kill();
            server = ServerProcess::start(&memory, true, Some(identity));
            assert_eq!(server.identity, identity);
        }
        is_enough.store(true, Ordering::SeqCst);
    });
    server.end();
    assert_eq!(device_count(), 0);
}

/// The process that [`a_server_that_dies_with_every_slot_in_hand_is_followed`] kills: it takes requests and answers none.
#[test]
#[ignore = "runs as a process of its own, until it is killed"]
fn serve_nothing_until_killed() {
    let (mut front, channels) = Ublk::add(&ublk_support::recoverable(8 * MIB, 1)).unwrap();
    let mut channel = channels.into_iter().next().unwrap();
    let identity = front.identity();
    let attaching = std::thread::spawn(move || front.attach().map(|_| std::mem::forget(front)));
    let mut held = 0;
    let slots = channel.pool().slot_count();
    while held < slots {
        match channel.receive().unwrap() {
            // Reads of whoever looks at a new device; the attachment waits for their answers.
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
    let server = ServerProcess::start(&memory, true, Some(identity));
    for reader in readers {
        reader.join().unwrap().unwrap();
    }
    server.end();
    assert_eq!(device_count(), 0);
}

/// When a test panics, nobody waits for its device any more.
struct GivenUp(UblkIdentity);

impl Drop for GivenUp {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let _ = ublk_remains::delete(self.0);
        }
    }
}

#[test]
#[ignore = "runs in a guest"]
fn a_device_that_waits_in_vain_is_deleted() {
    let memory = Memfd::create("test", 8 * MIB).unwrap();
    let mut server = ServerProcess::start(&memory, true, None);
    server.kill();
    let reader = std::thread::spawn({
        let path = server.identity.path();
        // It waits for a server, and gets an error in the end.
        move || open_direct(&path).read_exact_at(Aligned::new(4096).bytes(), 0).is_err()
    });
    let deadline = Instant::now() + PATIENCE;
    while !ublk_remains::list().unwrap().iter().any(|remain| remain.is_waited_for) {
        assert!(Instant::now() < deadline, "the kernel notices the death: {:?}", ublk_remains::list());
        std::thread::sleep(Duration::from_millis(10));
    }
    match ublk_remains::delete(server.identity) {
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
    let bytes: usize = std::env::var("SPILLWAY_TEST_FILL").expect("another test starts this one").parse().unwrap();
    let mut words: Vec<u64> = vec![0; bytes / 8];
    let word_at = |at: usize, round: u64| (at as u64).wrapping_mul(round ^ 0x9E37_79B9_7F4A_7C15);
    for round in 1..=2_u64 {
        words.iter_mut().enumerate().for_each(|(at, word)| *word = word_at(at, round));
        let wrong = words.iter().enumerate().filter(|(at, word)| **word != word_at(*at, round));
        assert_eq!(wrong.count(), 0, "round {round}");
    }
}

#[test]
#[ignore = "runs in a guest"]
fn a_limited_program_swaps_and_survives_the_death_of_the_server() {
    let group = MemoryGroup::new(16 << 20);
    let memory = Memfd::create("test", 64 * MIB).unwrap();
    let mut server = ServerProcess::start(&memory, true, None);
    let path = server.identity.path();
    swap::make(&path, "test", [2; 16]).unwrap();
    swap::on(&path, Some(100), SwapDiscard::Pages).unwrap();
    let swapped_on = SwappedOn(path.clone());
    let _given_up = GivenUp(server.identity);
    let mut program = group.start(
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "fill_and_verify", "--ignored"])
            .env("SPILLWAY_TEST_FILL", (40 << 20).to_string())
            .stdout(Stdio::null()),
    );
    let used_bytes = || swap::areas().unwrap().iter().find(|area| area.path == path).map_or(0, |area| area.used_bytes);
    let (mut most_bytes, mut kills) = (0, 0);
    let status = loop {
        most_bytes = used_bytes().max(most_bytes);
        if let Some(status) = program.try_wait().unwrap() {
            break status;
        }
        if most_bytes > 8 << 20 && kills < 3 {
            server.kill();
            server = ServerProcess::start(&memory, true, Some(server.identity));
            kills += 1;
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    assert!(status.success(), "the program saw what it wrote: {status}");
    assert!(most_bytes > 8 << 20, "it was swapped: {most_bytes} bytes at most");
    assert!(kills > 0);
    drop(swapped_on);
    server.end();
    assert_eq!(device_count(), 0);
}
