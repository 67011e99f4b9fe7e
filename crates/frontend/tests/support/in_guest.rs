//! What the tests of front ends do in guests: this very program runs there, once for each test, and as a server that
//! is killed.
//!
//! One guest serves many tests, because booting it costs more than most of them.

use std::io::{BufRead, BufReader, Lines};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use spillway_sys::mapping::Mapping;
use spillway_sys::memfd::Memfd;
use spillway_sys::skipping::skip;
use spillway_testing::block_devices::{Aligned, open_direct};
use spillway_virtual_machine::{Builder, Failure, emulated};

use super::exercise::{discard, exercise};

/// How long one test may take in a guest that is emulated on a loaded host.
const WITHIN: Duration = Duration::from_secs(600);

const MIB: u64 = 1 << 20;

/// Boots a machine and runs `tests` of this program in it. What its kernel may complain of contains `expected`.
pub(crate) fn run_in_guest(builder: impl Fn() -> Builder, tests: &[&str], expected: &str) {
    emulated(|| {
        let machine = match builder().start() {
            Err(Failure::Missing { what, remedy }) => return skip(format_args!("{what} ({remedy})")),
            result => result.unwrap_or_else(|failure| panic!("{failure}")),
        };
        let program = std::env::current_exe().unwrap();
        for test in tests {
            let started = Instant::now();
            let script = format!("exec '{}' --exact {test} --ignored --nocapture", program.display());
            let said = machine.run(&script, WITHIN).unwrap_or_else(|failure| panic!("{failure}"));
            assert!(said.status == 0 && said.output.contains("1 passed"), "{test}: {said:#?}\n{}", machine.console());
            println!("in the guest: {test} ({:?})", started.elapsed());
        }
        // I/O errors are what the death of a server without recovery means.
        let complaints = machine.complaints().into_iter();
        let complaints: Vec<_> = complaints.filter(|line| !line.contains(expected) || line.contains("hung")).collect();
        assert_eq!(complaints, Vec::<String>::new());
        machine.end().unwrap_or_else(|failure| panic!("{failure}"));
    });
}

/// This program as a server over shared memory, until it is killed or its input ends.
pub(crate) struct ServerProcess {
    pub(crate) child: Child,
    /// What it serves, in its own words.
    pub(crate) device: String,
    /// Kept open: a test that cannot write its result has failed.
    _output: Lines<BufReader<ChildStdout>>,
}

impl ServerProcess {
    /// Starts one; with `device` it takes that one over.
    pub(crate) fn start(memory: &Memfd, recoverable: bool, device: Option<&str>) -> Self {
        Self::start_as("serve_until_killed", memory, recoverable, device)
    }

    /// Starts the test `role` as a process of its own.
    pub(crate) fn start_as(role: &str, memory: &Memfd, recoverable: bool, device: Option<&str>) -> Self {
        let descriptor = memory.as_fd().as_raw_fd();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", role, "--ignored", "--nocapture"])
            .env("SPILLWAY_TEST_MEMORY", format!("/proc/{}/fd/{descriptor}", std::process::id()))
            .env("SPILLWAY_TEST_RECOVERABLE", if recoverable { "yes" } else { "no" })
            .env("SPILLWAY_TEST_DEVICE", device.unwrap_or_default())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap()).lines();
        let line =
            output.by_ref().map(Result::unwrap).find(|line| line.starts_with("serving ")).expect("the server starts");
        Self { child, device: line["serving ".len()..].to_owned(), _output: output }
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Another one goes on with its device.
    pub(crate) fn follow(&mut self, memory: &Memfd) {
        self.kill();
        let next = Self::start(memory, true, Some(&self.device));
        assert_eq!(next.device, self.device);
        *self = next;
    }

    /// Lets it detach its device.
    pub(crate) fn end(mut self) {
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

/// What [`ServerProcess::start`] hands to the server.
pub(crate) struct Order {
    pub(crate) memory: Arc<Mapping>,
    pub(crate) size_bytes: u64,
    pub(crate) recoverable: bool,
    /// Empty for a new device.
    pub(crate) device: String,
}

impl Order {
    /// In the server's process.
    pub(crate) fn take() -> Self {
        let memory = std::env::var("SPILLWAY_TEST_MEMORY").expect("another test starts this one");
        let memory = std::fs::File::options().read(true).write(true).open(memory).unwrap();
        let memory = Memfd::open(memory.into()).unwrap();
        let size_bytes = memory.length_bytes();
        Self {
            memory: Arc::new(Mapping::shared(&memory, size_bytes as usize).unwrap()),
            size_bytes,
            recoverable: std::env::var("SPILLWAY_TEST_RECOVERABLE").unwrap() == "yes",
            device: std::env::var("SPILLWAY_TEST_DEVICE").unwrap(),
        }
    }
}

/// Says what is served, and waits until the parent has had enough.
pub(crate) fn serve_until_told(device: &str) {
    println!("\nserving {device}");
    let mut line = String::new();
    let _ = std::io::stdin().read_line(&mut line);
}

/// Four threads, each with a quarter of the device.
pub(crate) fn exercise_by_four(device: &Path, size_bytes: u64, operations: u32, seed: u64) {
    std::thread::scope(|scope| {
        for number in 0..4_u64 {
            let quarter = size_bytes / 4;
            scope.spawn(move || exercise(device, number * quarter, quarter as usize, seed + number, operations));
        }
    });
}

/// Every byte is compared with what was written, while `meanwhile` lets servers die.
pub(crate) fn exercise_while(device: &Path, size_bytes: u64, meanwhile: impl FnOnce(&dyn Fn() -> bool)) {
    let is_enough = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let load = scope.spawn(|| {
            for seed in 0xDEAD.. {
                exercise_by_four(device, size_bytes, 60, seed);
                if is_enough.load(Ordering::SeqCst) {
                    break;
                }
                discard(&open_direct(device), 0, size_bytes);
            }
        });
        meanwhile(&|| !load.is_finished());
        is_enough.store(true, Ordering::SeqCst);
    });
}

/// Requests up to four slots' size, from aligned and other buffers, on a device of 16 MiB.
pub(crate) fn requests_of_every_size(device: &Path) {
    let file = open_direct(device);
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
}

/// Settings of a device's queue, and how many queues it has.
pub(crate) fn assert_queue(device: &Path, settings: &[(&str, &str)], queues: usize) {
    let setting = |name| super::queue_setting(device, name);
    let common = [
        ("logical_block_size", "4096"),
        ("physical_block_size", "4096"),
        ("discard_granularity", "4096"),
        ("read_ahead_kb", "0"),
        ("rotational", "0"),
    ];
    for (name, value) in common.iter().chain(settings) {
        assert_eq!(setting(name), *value, "{name}");
    }
    assert!(setting("scheduler").contains("[none]"));
    assert_ne!(setting("discard_max_bytes"), "0");
    let found = std::fs::read_dir(Path::new("/sys/block").join(device.file_name().unwrap()).join("mq")).unwrap();
    assert_eq!(found.count(), queues);
}
