//! Whole programs under the pager, with real donors in this process: exact output in a fraction of the memory they
//! need.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::{PoisonError, RwLock, RwLockReadGuard};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketType};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use spillway_block::cpu_idle::KeepAwake;
use spillway_donor::{Donor, DonorConfig};
use spillway_pager::config::PagerConfig;
use spillway_pager::mappings::staying_kinds::SharedMemoryKinds;
use spillway_pager::pager::Pager;
use spillway_pager::statistics::PagerStatistics;
use spillway_policy::prefetch::selection::PrefetchPolicy;
use spillway_policy::replacement::sampled::EagerEviction;
use spillway_volume::settings::VolumeConfig;
use spillway_volume::settings::protection::SealChoice;

const MEBIBYTE: u64 = 1 << 20;

/// Far beyond what a busy machine needs.
const PATIENCE: Duration = Duration::from_secs(240);

/// A donor and a pager over it.
struct World {
    _beside: Option<RwLockReadGuard<'static, ()>>,
    directory: tempfile::TempDir,
    _donor: Donor,
    pager: Pager,
}

/// Held by the one test that must have this process to itself, or shared by the others.
static ALONE: RwLock<()> = RwLock::new(());

impl World {
    fn new(budget_mebibytes: u64) -> Self {
        let beside = ALONE.read().unwrap_or_else(PoisonError::into_inner);
        Self { _beside: Some(beside), ..Self::alone(budget_mebibytes) }
    }

    fn alone(budget_mebibytes: u64) -> Self {
        Self::with(budget_mebibytes, SealChoice::Auto)
    }

    fn with(budget_mebibytes: u64, seal: SealChoice) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("donor.sock");
        let donor = Donor::start(DonorConfig {
            memory_bytes: 1024 * MEBIBYTE,
            headroom_bytes: 0,
            listen: Vec::new(),
            unix_path: Some(socket.clone()),
            key: None,
            machine_limit_bytes: None,
            weights: spillway_fabric::tcp::Weights::default(),
            site: spillway_fabric::site::Site::default(),
            slab_prepared_count: 1,
            slab_size_hint_bytes: 32 * MEBIBYTE,
        })
        .unwrap();
        let preload = directory.path().join("libspillway.so");
        std::fs::write(&preload, spillway_stub::LIBRARY).unwrap();
        let pager = Pager::start(PagerConfig {
            volume: VolumeConfig {
                seal,
                donor_wait: Duration::from_secs(20),
                ..VolumeConfig::new(
                    "pager-test",
                    1024 * MEBIBYTE,
                    32 * MEBIBYTE,
                    vec![format!("unix:{}", socket.display()).parse().unwrap()],
                )
            },
            keep_awake: KeepAwake::default(),
            budget_bytes: budget_mebibytes * MEBIBYTE,
            directory: directory.path().to_owned(),
            token: 0x5eed,
            preload,
            programs_fork: true,
            shared_memory: SharedMemoryKinds::None,
            fault_threads: None,
            prefetch: PrefetchPolicy::default(),
            huge_pages: false,
            eager_eviction: EagerEviction::default(),
            recording: None,
            mender: Vec::new(),
        })
        .unwrap();
        Self { _beside: None, directory, _donor: donor, pager }
    }

    /// Compiles one of the programs beside this file.
    fn compile(&self, name: &str) -> PathBuf {
        let source = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/pager_programs").join(format!("{name}.c"));
        let program = self.directory.path().join(name);
        let status = Command::new("cc").args(["-O1", "-pthread", "-o"]).arg(&program).arg(source).status().unwrap();
        assert!(status.success());
        program
    }

    /// Starts it.
    fn start(&self, name: &str, arguments: &[&str]) -> Running {
        let mut command = Command::new(self.compile(name));
        command.args(arguments).envs(self.pager.environment()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Running(Some(command.spawn().unwrap()))
    }

    /// Runs it to its end; one that hangs is killed, and that fails the test.
    fn run(&self, name: &str, arguments: &[&str]) -> Output {
        let mut running = self.start(name, arguments);
        // Not by waiting for the child: the pager in this process traces it for a moment, and its stops would be
        // taken for its end.
        assert!(running.ends_within(PATIENCE), "{name} hangs: {:#?}", self.pager.statistics());
        running.0.take().unwrap().wait_with_output().unwrap()
    }

    /// Says nothing where programs say hello.
    fn visit_silently(&self) -> OwnedFd {
        let socket = net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
        let address = SocketAddrUnix::new(self.directory.path().join("pager.sock")).unwrap();
        net::connect(&socket, &address).unwrap();
        socket
    }

    /// Stops the survey thread until what is returned goes.
    fn hold_survey(&self) -> Running {
        let mut command = Command::new(self.compile("hold"));
        let mut holder = command.arg(survey_thread().to_string()).stdout(Stdio::piped()).spawn().unwrap();
        let mut said = [0; 5];
        holder.stdout.as_mut().unwrap().read_exact(&mut said).unwrap();
        assert_eq!(&said, b"held\n");
        Running(Some(holder))
    }

    /// Whether so many faults are answered before the survey hears of a program that started before the first of them.
    fn answers_before_the_survey_looks(&self, faults: u64) -> bool {
        let (report, deadline) = (self.pager.statistics(), Instant::now() + PATIENCE);
        let quick = Command::new("true").envs(self.pager.environment()).spawn().unwrap();
        assert!(Running(Some(quick)).ends_within(PATIENCE));
        loop {
            let now = self.pager.statistics();
            if now.programs > report.programs || answered(&now) >= answered(&report) + faults {
                return now.programs == report.programs;
            }
            assert!(Instant::now() < deadline, "nobody goes on: {now:#?}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Runs it; its output must be `expected`.
    fn check(&self, name: &str, arguments: &[&str], expected: &str) {
        let output = self.run(name, arguments);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        let report = self.pager.statistics();
        assert!(output.status.success(), "{:?}: {text}{errors}\n{report:#?}", output.status);
        assert_eq!(text, expected, "{errors}\n{report:#?}");
        assert_eq!(report.failures, Vec::<String>::new());
        println!("{name} {arguments:?}: {report:#?}");
    }
}

/// The thread of this process that surveys; there is one pager in a test's process at a time that needs it.
fn survey_thread() -> u32 {
    let is_survey = |thread: &u32| {
        std::fs::read_to_string(format!("/proc/self/task/{thread}/comm")).is_ok_and(|name| name.contains("survey"))
    };
    let threads = std::fs::read_dir("/proc/self/task").unwrap();
    let numbers = threads.map(|entry| entry.unwrap().file_name().to_str().unwrap().parse().unwrap());
    numbers.filter(is_survey).max().expect("a pager has one")
}

fn answered(report: &PagerStatistics) -> u64 {
    report.fill.count + report.staged.count
}

/// A program that is killed when the test fails.
struct Running(Option<Child>);

impl Running {
    fn ends_within(&self, patience: Duration) -> bool {
        let process = Pid::from_raw(self.0.as_ref().unwrap().id().cast_signed()).unwrap();
        let process = pidfd_open(process, PidfdFlags::empty()).unwrap();
        let timeout = Timespec { tv_sec: patience.as_secs().cast_signed(), tv_nsec: 0 };
        poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&timeout)).unwrap() > 0
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[test]
fn a_program_four_times_its_budget_gives_exact_output() {
    let world = World::new(64);
    world.check("fill", &["256", "1"], "65536 pages, 0 wrong words\n");
    let report = world.pager.statistics();
    assert!(report.pages_out_dirty > 40_000 && report.fill.count + report.pages_prefetched > 40_000, "{report:#?}");
}

/// Staged pages are read while what was made of them is sent.
#[test]
fn a_program_gives_exact_output_with_sealed_pages() {
    let beside = ALONE.read().unwrap_or_else(PoisonError::into_inner);
    let world = World { _beside: Some(beside), ..World::with(64, SealChoice::On) };
    world.check("fill", &["256", "1"], "65536 pages, 0 wrong words\n");
    let (status, report) = (world.pager.status().device, world.pager.statistics());
    assert_eq!((status.protection.as_str(), status.donors[0].wrong_pages), ("sealed", 0));
    assert!(report.pages_out_dirty > 40_000 && report.fill.count + report.pages_prefetched > 40_000, "{report:#?}");
}

/// A page of zeroes that is shared costs the thread that writes to it another fault, and a program with threads on
/// several CPUs an interrupt of each.
#[test]
fn fresh_memory_that_comes_along_is_the_programs_own() {
    let world = World::new(64);
    let output = world.run("first_touches", &["256"]);
    let faults: u64 = String::from_utf8_lossy(&output.stdout).trim_end().parse().unwrap();
    let report = world.pager.statistics();
    // A quarter of it is touched before any of it is paged; the pager's answers may count too.
    assert!(report.zero.count > 0 && faults < report.zero.count + 65536 / 2, "{faults} faults: {report:#?}");
}

/// Reading what was never written takes no memory without a pager, and none of donors with one.
#[test]
fn pages_of_zeroes_are_not_sent() {
    let world = World::new(32);
    world.check("zeroes", &["768"], "0 wrong words\n");
    let report = world.pager.statistics();
    // A ninth of its pages has a word in the end, and a third for a while.
    let (pages, stored) = (768 * 256, report.pages_out_dirty);
    assert!(report.pages_out_zero > pages / 2 && stored < pages * 2 / 3, "{report:#?}");
    assert!(report.lent_bytes <= pages * 4096 / 3, "{report:#?}");
}

/// It forks before the pager has read its hello.
#[test]
fn the_child_of_a_program_that_forks_at_once_is_paged() {
    let world = World::new(64);
    let output = world.run("fill", &["256", "1", "child"]);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "65536 pages, 0 wrong words\n");
    let report = world.pager.statistics();
    assert!(report.programs == 2 && report.pages_out_dirty > 40_000, "{report:#?}");
}

#[test]
fn threads_share_one_budget() {
    let world = World::new(64);
    world.check("fill", &["192", "6"], "49152 pages, 0 wrong words\n");
}

#[test]
fn children_and_parents_keep_their_own_copies() {
    let world = World::new(64);
    world.check("forks", &["96", "3"], "0 wrong words, 0 children failed\n");
    assert!(world.pager.statistics().programs >= 5, "{:#?}", world.pager.statistics());
}

#[test]
fn mappings_that_come_grow_move_and_go_keep_their_content() {
    let world = World::new(32);
    world.check("churn", &["1500", "4"], "0 wrong words\n");
    assert!(world.pager.statistics().pages_out_dirty > 0);
}

/// Rule 13: the survey may wait for `/proc` or for a child, and no fault waits for the survey.
#[test]
fn faults_are_answered_while_the_survey_is_held_up() {
    // Of several pagers in this process another's survey could be held.
    let _alone = ALONE.write().unwrap_or_else(PoisonError::into_inner);
    let world = World::alone(16);
    let mut program = world.start("wander", &["64"]);
    let child = program.0.as_mut().unwrap();
    child.stdout.as_mut().unwrap().read_exact(&mut [0; 6]).unwrap();
    let held = world.hold_survey();
    assert!(world.answers_before_the_survey_looks(20_000), "the survey is waited for: {:#?}", world.pager.statistics());
    assert!(!program.ends_within(Duration::ZERO), "it read a wrong word");
    drop(held);
}

/// A process that can reach the socket may connect and say nothing.
#[test]
fn callers_that_say_nothing_hold_nothing_up() {
    let world = World::new(64);
    let deadline = Instant::now() + PATIENCE;
    loop {
        let silent: Vec<OwnedFd> = (0..40).map(|_| world.visit_silently()).collect();
        let before = world.pager.statistics().programs;
        let quick = Command::new("true").envs(world.pager.environment()).spawn().unwrap();
        assert!(Running(Some(quick)).ends_within(PATIENCE));
        while world.pager.statistics().programs == before {
            assert!(Instant::now() < deadline, "the survey hears of no program");
            std::thread::sleep(Duration::from_millis(1));
        }
        // A survey that waited for a silent caller has left it alone before it went on. (On a busy machine so has one
        // that did not.)
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        if poll(&mut [PollFd::new(&silent[0], PollFlags::IN)], Some(&now)).unwrap() == 0 {
            break;
        }
        assert!(Instant::now() < deadline, "silent callers are waited for");
    }
    world.check("fill", &["128", "1"], "32768 pages, 0 wrong words\n");
}
