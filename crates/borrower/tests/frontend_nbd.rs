//! The NBD front end in real kernels: stock Debian 6.12 and 6.1 in virtual machines, because few hosts have the driver.
//!
//! The two tests that are not ignored boot a machine and run this very program in it, once for each test that is marked to run
//! in a guest. On a machine with the driver they run without one: `cargo test -- --ignored --test-threads=1`.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

#[allow(dead_code)]
mod frontend_support;

use frontend_support::guarded::serve_guarded;
use std::fs;
use std::io::{BufRead, BufReader, Lines};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use frontend_support::exercise::{discard, exercise};
use frontend_support::pressure::{MemoryGroup, SwappedOn};
use frontend_support::{Aligned, PATIENCE, open_direct, queue_setting};
use spillway_borrower::block::BlockChannel;
use spillway_borrower::frontend::limits::{NBD_RECOVERY_WAIT, NBD_TIMEOUT};
use spillway_borrower::frontend::nbd::Nbd;
use spillway_borrower::frontend::nbd_channel::NbdChannel;
use spillway_borrower::frontend::nbd_identity::NbdIdentity;
use spillway_borrower::frontend::{FrontEnd, FrontEndConfig, FrontEndError, nbd_remains};
use spillway_borrower::io_thread::{IoThread, SpinPermit};
use spillway_borrower::local_memory::LocalMemory;
use spillway_borrower::metrics::Metrics;
use spillway_sys::allocation_guard::GuardedAllocator;
use spillway_sys::event::EventFd;
use spillway_sys::mapping::Mapping;
use spillway_sys::memfd::Memfd;
use spillway_sys::swap::{self, SwapDiscard};
use spillway_virtual_machine::{Failure, Kernel, VirtualMachine, emulated};

#[global_allocator]
static ALLOCATOR: GuardedAllocator = GuardedAllocator;

const MIB: u64 = 1 << 20;

/// Connections of every device here: more than one, so that a request can pass from one to another.
const THREADS: usize = 2;

/// Tests that run in the guest, one after the other.
const IN_GUEST: [&str; 10] = [
    "several_threads_see_what_they_wrote_and_discards_read_as_zeroes",
    "requests_of_every_size_arrive_whole",
    "the_queue_is_set_up_for_paging",
    "receive_and_complete_do_not_allocate",
    "a_device_in_use_is_not_detached_and_goes_on",
    "many_devices_come_and_go",
    "a_killed_server_leaves_errors_and_a_mendable_device",
    "a_stopped_server_means_errors_after_a_bounded_time",
    "a_killed_server_is_followed_by_another_under_load",
    "a_limited_program_swaps_and_survives_the_death_of_the_server",
];

/// Emulated, on a loaded host.
const WITHIN: Duration = Duration::from_secs(300);

/// When the kernel must have given a dead server's requests up: each connection may be tried, and its timers are coarse; twice
/// that for a guest that waits for its processors.
const GIVEN_UP_WITHIN: Duration = Duration::from_secs(8 * NBD_TIMEOUT.as_secs());

#[test]
fn the_newest_stock_kernel_pages_through_nbd() {
    emulated(|| {
        run_in_guest(Kernel::Debian612);
    });
}

#[test]
fn an_older_stock_kernel_pages_through_nbd() {
    emulated(|| {
        run_in_guest(Kernel::Debian61);
    });
}

fn run_in_guest(kernel: Kernel) {
    let machine = match VirtualMachine::builder().kernel(kernel).memory_mib(768).modules(&["nbd"]).start() {
        Err(Failure::Missing { what, remedy }) => return frontend_support::skip("NBD", &format!("{what} ({remedy})")),
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
    // I/O errors are what the death of a server without recovery means.
    let complaints = machine.complaints().into_iter();
    let complaints: Vec<_> = complaints.filter(|line| !line.contains("nbd") || line.contains("hung")).collect();
    assert_eq!(complaints, Vec::<String>::new());
    machine.end().unwrap_or_else(|failure| panic!("{failure}"));
}

fn config(size_bytes: u64, recoverable: bool) -> FrontEndConfig {
    FrontEndConfig {
        name: "test".to_owned(),
        size_bytes,
        threads: THREADS,
        slots_per_thread: 4,
        recoverable,
        directory: PathBuf::new(),
    }
}

/// A device served by this process.
struct Server {
    front: Nbd,
    path: PathBuf,
    threads: Vec<IoThread>,
    stop: Arc<EventFd>,
}

impl Server {
    fn start(size_bytes: u64) -> Self {
        let (front, channels) = Nbd::open(&config(size_bytes, false)).unwrap();
        Self::serve(front, channels, &Arc::new(Mapping::locked(size_bytes as usize).unwrap()))
    }

    fn serve(mut front: Nbd, channels: Vec<NbdChannel>, memory: &Arc<Mapping>) -> Self {
        let (stop, permit) = (Arc::new(EventFd::new().unwrap()), SpinPermit::default());
        let start = |channel: NbdChannel| {
            let pool = Arc::clone(channel.pool());
            let service = LocalMemory::new(Arc::clone(memory), Arc::new(Metrics::default()), pool);
            let (channel, service) = (Box::new(channel), Box::new(service));
            IoThread::start("test-io".to_owned(), channel, service, Arc::clone(&stop), permit.clone(), Arc::default())
                .unwrap()
        };
        let threads = channels.into_iter().map(start).collect();
        let path = front.attach().unwrap();
        Self { front, path, threads, stop }
    }

    fn detach(&mut self) -> Result<(), FrontEndError> {
        self.front.detach(Duration::from_millis(100))
    }

    /// Detaches; the channels close by themselves.
    fn stop(mut self) {
        self.front.detach(PATIENCE).unwrap();
        self.threads.iter_mut().for_each(IoThread::join);
        assert!(!is_connected(&self.path), "the device is free");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Also after a failed assertion: end the device while the threads still serve, then end them.
        let _ = self.front.detach(Duration::from_secs(5));
        self.stop.signal();
        self.threads.iter_mut().for_each(IoThread::join);
    }
}

/// Whether the kernel has a use for the device.
fn is_connected(device: &Path) -> bool {
    Path::new("/sys/block").join(device.file_name().unwrap()).join("pid").exists()
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
fn several_threads_see_what_they_wrote_and_discards_read_as_zeroes() {
    let server = Server::start(32 * MIB);
    exercise_by_four(&server.path, 32 * MIB, 150, 0x5EED);
    server.stop();
}

#[test]
#[ignore = "runs in a guest"]
fn requests_of_every_size_arrive_whole() {
    let server = Server::start(16 * MIB);
    let file = open_direct(&server.path);
    let mut buffer = Aligned::new(4 << 20);
    // The kernel cuts what is larger than a slot (1 MiB).
    for length in [4096, 8192, 64 << 10, 132 << 10, 1 << 20, (1 << 20) + 4096, 4 << 20] {
        let content: Vec<u8> = (0..length).map(|at: usize| (at / 512 + length / 4096) as u8).collect();
        buffer.write(&file, 3 * 4096, &content);
        assert!(buffer.read(&file, 3 * 4096, length) == content, "{length} bytes");
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
    let server = Server::start(8 * MIB);
    let setting = |name| queue_setting(&server.path, name);
    for (name, value) in [
        ("logical_block_size", "4096"),
        ("physical_block_size", "4096"),
        ("discard_granularity", "4096"),
        ("max_sectors_kb", "1024"),
        ("read_ahead_kb", "0"),
        ("rotational", "0"),
        ("write_cache", "write through"),
    ] {
        assert_eq!(setting(name), value, "{name}");
    }
    assert!(setting("scheduler").contains("[none]"));
    assert_ne!(setting("discard_max_bytes"), "0");
    let queues = fs::read_dir(Path::new("/sys/block").join(server.path.file_name().unwrap()).join("mq")).unwrap();
    assert_eq!(queues.count(), THREADS);
    server.stop();
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
        let file = open_direct(&device);
        let mut buffer = Aligned::new(1 << 20);
        for round in 1..20_u8 {
            buffer.write(&file, u64::from(round) * 4096, &[round; 64 * 1024]);
            assert!(buffer.read(&file, u64::from(round) * 4096, 64 * 1024).iter().all(|byte| *byte == round));
            discard(&file, 0, 4096);
        }
        drop(file);
        front.detach(PATIENCE).unwrap();
        servers.into_iter().map(|server| server.join().unwrap()).sum()
    });
    assert!(served >= 57, "{served}");
}

#[test]
#[ignore = "runs in a guest"]
fn a_device_in_use_is_not_detached_and_goes_on() {
    let mut server = Server::start(8 * MIB);
    let file = open_direct(&server.path);
    assert!(matches!(server.detach(), Err(FrontEndError::Busy(_))), "this process has it open");
    let mut buffer = Aligned::new(4096);
    buffer.write(&file, 4096, &[9; 4096]);
    assert_eq!(buffer.read(&file, 4096, 4096), [9; 4096]);
    drop(file);

    swap::make(&server.path, "test", [1; 16]).unwrap();
    swap::on(&server.path, None, SwapDiscard::Always).unwrap();
    let refused = server.detach();
    swap::off(&server.path).unwrap();
    assert!(matches!(refused, Err(FrontEndError::Busy(_))));
    assert_eq!(nbd_remains::list().unwrap(), [], "it is served");

    let mut other = Command::new("sleep").arg("1000").stdin(fs::File::open(&server.path).unwrap()).spawn().unwrap();
    let refused = server.detach();
    other.kill().unwrap();
    other.wait().unwrap();
    assert!(matches!(refused, Err(FrontEndError::Busy(_))), "another process has it open");
    server.stop();
}

#[test]
#[ignore = "runs in a guest"]
fn many_devices_come_and_go() {
    for round in 0..5 {
        let servers: Vec<Server> = (0..3).map(|_| Server::start(4 * MIB)).collect();
        for (number, server) in servers.iter().enumerate() {
            let (file, mut buffer) = (open_direct(&server.path), Aligned::new(4096));
            assert_eq!(buffer.read(&file, 0, 4096), [0; 4096], "round {round}: nothing of the last one");
            buffer.write(&file, 0, &[number as u8 + 1; 4096]);
        }
        for (number, server) in servers.into_iter().enumerate() {
            assert_eq!(Aligned::new(4096).read(&open_direct(&server.path), 0, 4096), [number as u8 + 1; 4096]);
            server.stop();
        }
    }
}

/// This program as a server over shared memory, until it is killed or its input ends.
struct ServerProcess {
    child: Child,
    identity: NbdIdentity,
    /// Kept open: a test that cannot write its result has failed.
    _output: Lines<BufReader<ChildStdout>>,
}

impl ServerProcess {
    /// Starts one; with `identity` it takes that device over.
    fn start(memory: &Memfd, recoverable: bool, identity: Option<&NbdIdentity>) -> Self {
        let descriptor = memory.as_fd().as_raw_fd();
        let taken = identity.map_or(String::new(), |identity| format!("{} {}", identity.index, identity.identifier));
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "serve_until_killed", "--ignored", "--nocapture"])
            .env("SPILLWAY_TEST_MEMORY", format!("/proc/{}/fd/{descriptor}", std::process::id()))
            .env("SPILLWAY_TEST_RECOVERABLE", if recoverable { "yes" } else { "no" })
            .env("SPILLWAY_TEST_DEVICE", taken)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap()).lines();
        let line =
            output.by_ref().map(Result::unwrap).find(|line| line.starts_with("serving ")).expect("the server starts");
        let identity = identity_in(line.trim_start_matches("serving ")).unwrap();
        Self { child, identity, _output: output }
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    fn freeze(&self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
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

fn identity_in(text: &str) -> Option<NbdIdentity> {
    let (index, identifier) = text.split_once(' ')?;
    Some(NbdIdentity { index: index.parse().ok()?, identifier: identifier.to_owned(), connections: THREADS })
}

#[test]
#[ignore = "runs as a process of its own, until it is killed"]
fn serve_until_killed() {
    let memory = std::env::var("SPILLWAY_TEST_MEMORY").expect("another test starts this one");
    let memory = fs::File::options().read(true).write(true).open(memory).unwrap();
    let memory = Memfd::open(memory.into()).unwrap();
    let mapping = Arc::new(Mapping::shared(&memory, memory.length_bytes() as usize).unwrap());
    let config = config(memory.length_bytes(), std::env::var("SPILLWAY_TEST_RECOVERABLE").unwrap() == "yes");
    let (front, channels) = match identity_in(&std::env::var("SPILLWAY_TEST_DEVICE").unwrap()) {
        Some(identity) => Nbd::reconnect(&config, &identity).unwrap(),
        None => Nbd::open(&config).unwrap(),
    };
    let server = Server::serve(front, channels, &mapping);
    let identity = server.front.identity().unwrap();
    println!("\nserving {} {}", identity.index, identity.identifier);
    let mut line = String::new();
    let _ = std::io::stdin().read_line(&mut line);
    server.stop();
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
    let remains = nbd_remains::list().unwrap();
    assert_eq!(remains.len(), 1, "{remains:?}");
    assert_eq!((remains[0].index, remains[0].maker.to_string()), (identity.index, identity.identifier.clone()));
    nbd_remains::end(&remains[0]).unwrap();
    assert_eq!(nbd_remains::list().unwrap(), []);
    let server = Server::start(4 * MIB);
    exercise(&server.path, 0, 4 << 20, 7, 20);
    server.stop();
}

#[test]
#[ignore = "runs in a guest"]
fn a_killed_server_leaves_errors_and_a_mendable_device() {
    let memory = Memfd::create("test", 8 * MIB).unwrap();
    let mut server = ServerProcess::start(&memory, false, None);
    let file = open_direct(&server.identity.path());
    Aligned::new(4096).write(&file, 0, &[3; 4096]);
    server.kill();
    await_error(&server.identity.path(), GIVEN_UP_WITHIN);
    drop(file);
    mend(&server.identity);
}

#[test]
#[ignore = "runs in a guest"]
fn a_stopped_server_means_errors_after_a_bounded_time() {
    let memory = Memfd::create("test", 8 * MIB).unwrap();
    let mut server = ServerProcess::start(&memory, false, None);
    let file = open_direct(&server.identity.path());
    Aligned::new(4096).write(&file, 0, &[3; 4096]);
    server.freeze();
    await_error(&server.identity.path(), GIVEN_UP_WITHIN);
    assert_eq!(nbd_remains::list().unwrap(), [], "its process lives");
    server.kill();
    drop(file);
    mend(&server.identity);
}

#[test]
#[ignore = "runs in a guest"]
fn a_killed_server_is_followed_by_another_under_load() {
    let memory = Memfd::create("test", 16 * MIB).unwrap();
    let mut server = ServerProcess::start(&memory, true, None);
    let identity = server.identity.clone();
    let is_enough = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Every byte is compared with what was written, across all deaths.
            for seed in 0xDEAD.. {
                exercise_by_four(&identity.path(), 16 * MIB, 60, seed);
                if is_enough.load(Ordering::SeqCst) {
                    break;
                }
                discard(&open_direct(&identity.path()), 0, 16 * MIB);
            }
        });
        for _ in 0..2 {
            std::thread::sleep(Duration::from_millis(300));
            server.kill();
            server = ServerProcess::start(&memory, true, Some(&identity));
            assert_eq!(server.identity, identity);
            assert_eq!(nbd_remains::list().unwrap(), [], "it is served again");
        }
        is_enough.store(true, Ordering::SeqCst);
    });
    server.end();
    assert!(!is_connected(&identity.path()));
    let gone = Nbd::reconnect(&config(16 * MIB, true), &identity);
    assert!(matches!(gone, Err(FrontEndError::Missing(_))), "{:?}", gone.err());
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
    let group = MemoryGroup::new(24 << 20);
    let memory = Memfd::create("test", 96 * MIB).unwrap();
    let mut server = ServerProcess::start(&memory, true, None);
    let path = server.identity.path();
    swap::make(&path, "test", [2; 16]).unwrap();
    swap::on(&path, Some(100), SwapDiscard::Pages).unwrap();
    let swapped_on = SwappedOn(path.clone());
    let mut program = group.start(
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "fill_and_verify", "--ignored"])
            .env("SPILLWAY_TEST_FILL", (56 << 20).to_string())
            .stdout(Stdio::null()),
    );
    let used_bytes = || swap::areas().unwrap().iter().find(|area| area.path == path).map_or(0, |area| area.used_bytes);
    let (mut most_bytes, mut kills) = (0, 0);
    let give_up = Instant::now() + 4 * NBD_RECOVERY_WAIT;
    let status = loop {
        most_bytes = used_bytes().max(most_bytes);
        if let Some(status) = program.try_wait().unwrap() {
            break status;
        }
        if most_bytes > 16 << 20 && kills < 2 {
            server.kill();
            server = ServerProcess::start(&memory, true, Some(&server.identity));
            kills += 1;
        }
        assert!(Instant::now() < give_up, "the program goes on after {kills} deaths of the server");
        std::thread::sleep(Duration::from_millis(10));
    };
    assert!(status.success(), "the program saw what it wrote: {status}");
    assert!(most_bytes > 16 << 20, "it was swapped: {most_bytes} bytes at most");
    assert!(kills > 0);
    drop(swapped_on);
    server.end();
    assert!(!is_connected(&path));
}
