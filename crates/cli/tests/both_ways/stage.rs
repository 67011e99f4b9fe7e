//! What a test stands on: the lock, a registry and a disk of its own, donors, and the way out.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Condvar, Mutex, PoisonError};

use rustix::fs::FlockOperation;
use serde_json::Value;
use spillway_pager::statistics::PagerStatistics;
use spillway_report::kind::{Kind, Report};
use spillway_report::run::RunReport;
use spillway_report::status::Item;

use crate::VIA;
use crate::support::{self, Running, Said, has_program, is_root, skip, wait_until};

/// Tests that have a stage at the same time. Most of them wait most of the time; on a larger machine many at once would
/// share one disk and one kernel's swap.
const PLACES: usize = 2;

static FREE_PLACES: (Mutex<usize>, Condvar) = (Mutex::new(PLACES), Condvar::new());

/// A test's turn. One that has all places is alone: the kernel's swap and memory are shared by all.
struct Turn {
    places: usize,
}

impl Turn {
    fn take(places: usize) -> Self {
        let (free, changed) = &FREE_PLACES;
        // A test that failed has cleaned up; the others go on.
        let free = free.lock().unwrap_or_else(PoisonError::into_inner);
        let mut free = changed.wait_while(free, |free| *free < places).unwrap_or_else(PoisonError::into_inner);
        *free -= places;
        Self { places }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        *FREE_PLACES.0.lock().unwrap_or_else(PoisonError::into_inner) += self.places;
        FREE_PLACES.1.notify_all();
    }
}

/// One test's world. Dropping it ends and removes everything that the test started.
pub(crate) struct Stage {
    donors: Vec<Donor>,
    registry: tempfile::TempDir,
    disk: tempfile::TempDir,
    // Released last: other processes' tests, then other threads'.
    _file_lock: Option<File>,
    _turn: Turn,
}

/// A donor process of a test.
pub(crate) struct Donor {
    name: String,
    socket: PathBuf,
    memory: String,
    process: Option<Running>,
}

/// What this machine lacks for lending memory to programs.
fn lacking() -> Option<&'static str> {
    if VIA == "pager" {
        let access =
            spillway_sys::userfaultfd::access::Access::probe().ok().filter(|access| access.obstacle().is_none());
        return access.is_none().then_some("userfaultfd (Linux 6.8, root)");
    }
    let paths = [("/dev/fuse", "FUSE"), ("/dev/loop-control", "loop devices"), ("/proc/swaps", "swap")];
    if !is_root() {
        return Some("root");
    }
    if !fs::read_to_string("/proc/self/mounts").unwrap_or_default().lines().any(|line| line.contains("cgroup")) {
        return Some("memory cgroups");
    }
    paths.iter().find(|(path, _)| !Path::new(path).exists()).map(|(_, name)| *name)
}

impl Stage {
    /// Sets the stage, or says what is missing for it, programs included. Tests of swap are alone; those of the pager
    /// share nothing.
    pub(crate) fn set(programs: &[&str]) -> Option<Self> {
        if VIA == "pager" { Self::set_beside_others(programs) } else { Self::set_alone(programs) }
    }

    /// [`Stage::set`] for a test that needs the machine for itself.
    pub(crate) fn set_alone(programs: &[&str]) -> Option<Self> {
        Self::set_in(programs, PLACES, FlockOperation::LockExclusive)
    }

    /// [`Stage::set`] for a test that uses neither swap nor a limit on memory. Two of swap cannot be at once: the
    /// kernel pages every program to the device of the highest priority, and so to the donors of the other test.
    pub(crate) fn set_beside_others(programs: &[&str]) -> Option<Self> {
        Self::set_in(programs, 1, FlockOperation::LockShared)
    }

    fn set_in(programs: &[&str], places: usize, file_turn: FlockOperation) -> Option<Self> {
        let missing = lacking().or_else(|| programs.iter().copied().find(|program| !has_program(program)));
        if let Some(missing) = missing {
            skip(missing);
            return None;
        }
        let turn = Turn::take(places);
        // One path for every test, wherever their temporary files go: the machine has one swap, which the pager does
        // not use.
        let file_lock = (VIA == "swap").then(|| {
            let file = File::create("/tmp/spillway-end-to-end.lock").expect("the lock file can be made");
            rustix::fs::flock(&file, file_turn).expect("the lock can be taken");
            file
        });
        Some(Self {
            donors: Vec::new(),
            registry: support::registry_directory(),
            disk: support::disk_directory(),
            _file_lock: file_lock,
            _turn: turn,
        })
    }

    /// A directory on a disk.
    pub(crate) fn disk(&self) -> &Path {
        self.disk.path()
    }

    /// The directory of what runs on this stage.
    pub(crate) fn registry(&self) -> PathBuf {
        self.registry.path().join("r")
    }

    /// `spillway` in this stage's registry.
    pub(crate) fn spillway(&self, arguments: &[&str]) -> Command {
        let mut command = support::spillway(&self.registry.path().join("r"));
        command.args(arguments);
        command
    }

    /// `spillway run` by this test binary's way with a program, which reports into [`Stage::statistics`].
    pub(crate) fn run(&self, options: &[&str], program: &[&str]) -> Command {
        let mut command = self.spillway(&["run", "--via", VIA, "--stats"]);
        command.arg(self.disk().join("statistics.json")).args(options).arg("--").args(program);
        command
    }

    /// Starts a program far beyond its budget, on one donor that outlives the run and has the only copies.
    pub(crate) fn run_on_a_donor(&mut self, program: &[&str]) -> Running {
        self.donor("160M");
        let donors = self.donor_options();
        let mut options = vec!["--local", "24M", "--lend", "128M", "--slab-size", "4M", "--key", "none"];
        options.extend(["--redundancy", "none"]);
        options.extend(donors.iter().map(String::as_str));
        Running::start(&mut self.run(&options, program))
    }

    /// What the last run told.
    pub(crate) fn statistics(&self) -> Value {
        let text = fs::read(self.disk().join("statistics.json")).expect("the run wrote its statistics");
        serde_json::from_slice(&text).expect("statistics are JSON")
    }

    /// Lets a verifier under `run` look at every page once more, and checks what it found; gives what the run told.
    pub(crate) fn end_verifier(&self, running: Running) -> Value {
        running.signal("USR1");
        let said = running.end().done("the verifier");
        assert!(said.text().contains("wrong 0"), "{}", said.text());
        let statistics = self.statistics();
        assert_eq!(statistics["device"]["device"]["pages_lost"], 0, "{statistics:#}");
        statistics
    }

    /// One of the C programs, at a path of this stage's own. It is compiled once for all tests beside the build, and
    /// again when a source has changed.
    pub(crate) fn compile(&self, name: &str, options: &[&str]) -> PathBuf {
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/both_ways/programs");
        let files = fs::read_dir(&sources).expect("sources can be listed").flatten();
        let contents: BTreeMap<_, _> = files.map(|file| (file.path(), fs::read(file.path()).ok())).collect();
        let mut hasher = DefaultHasher::new();
        (options, contents).hash(&mut hasher);
        let compiled = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{:016x}", hasher.finish()));
        let binary = self.disk().join(name);
        let _of_another_call = fs::remove_file(&binary);
        if !compiled.exists() {
            let mut compiler = Command::new("gcc");
            compiler.args(["-O2", "-Werror=int-conversion", "-o"]).arg(&binary).arg(sources.join(format!("{name}.c")));
            support::run(compiler.args(options)).done("gcc");
            // Options with a path are for one test.
            if options.iter().any(|option| option.contains('/')) {
                return binary;
            }
            fs::rename(&binary, &compiled).expect("both lie beside the build");
        }
        // A copy that this process had open for writing could not be executed while another thread forks.
        fs::hard_link(compiled, &binary).expect("both lie beside the build");
        binary
    }

    /// Starts a donor; gives its number.
    pub(crate) fn donor(&mut self, memory: &str) -> usize {
        let number = self.donors.len();
        let socket = self.registry.path().join(format!("{number}.sock"));
        self.donors.push(Donor { name: format!("d{number}"), socket, memory: memory.to_owned(), process: None });
        self.start_donor(number);
        number
    }

    /// Starts a donor again that has ended.
    pub(crate) fn start_donor(&mut self, number: usize) {
        let Donor { name, socket, memory, .. } = &self.donors[number];
        let listen = format!("unix:{}", socket.display());
        // A killed donor leaves its entry, which no other process mends in this registry meanwhile.
        support::run(&mut self.spillway(&["doctor", "--mend", "--json"]));
        let mut command = self.spillway(&["donate", "--key", "none", "--headroom", "16M", "--slab-size", "4M"]);
        command.args(["--name", name, "--memory", memory, "--listen", &listen]);
        let socket = socket.clone();
        let mut process = Running::start(&mut command);
        process.wait_until("a donor to listen", || std::os::unix::net::UnixStream::connect(&socket).ok());
        self.donors[number].process = Some(process);
    }

    /// Sends a donor a signal; after KILL it is gone.
    pub(crate) fn signal_donor(&mut self, number: usize, name: &str) {
        let process = self.donors[number].process.as_ref().expect("the donor runs");
        process.signal(name);
        if name == "KILL" {
            self.donors[number].process.take().expect("the donor runs").end();
        }
    }

    /// The sockets of the entry of a donor, by its name; none before it has one.
    pub(crate) fn sockets(&self, donor: &str) -> Vec<PathBuf> {
        let entry = self.registry.path().join("r").join(format!("donor-{donor}"));
        let files = fs::read_dir(entry).into_iter().flatten().map(|file| file.expect("it can be listed").path());
        files.filter(|path| path.ends_with("donor.sock")).collect()
    }

    /// `--donor ADDRESS` for each donor.
    pub(crate) fn donor_options(&self) -> Vec<String> {
        let address = |donor: &Donor| format!("unix:{}", donor.socket.display());
        self.donors.iter().flat_map(|donor| ["--donor".to_owned(), address(donor)]).collect()
    }

    /// What `spillway status` lists.
    pub(crate) fn status(&self) -> Vec<Item> {
        support::status(&mut self.spillway(&["status"]))
    }

    /// Bytes that the donors lend together, as soon as each of them tells: `status` says nothing of one that a busy
    /// machine keeps from answering in time.
    pub(crate) fn lent_bytes(&self) -> Option<u64> {
        let donors = self.items("donor");
        let lent = |item: &Item| Some(item.read().ok()?.donor()?.lent_bytes);
        if donors.is_empty() { None } else { donors.iter().map(lent).sum() }
    }

    /// Waits until every slab is back at its donor.
    pub(crate) fn wait_returned(&self) {
        wait_until("the donors to have all their memory again", || (self.lent_bytes()? == 0).then_some(()));
    }

    /// The items of one kind in `status`.
    pub(crate) fn items(&self, kind: &str) -> Vec<Item> {
        self.status().into_iter().filter(|item| item.kind.word() == kind).collect()
    }

    /// The report of the run, as soon as it answers.
    pub(crate) fn run_now(&self) -> Option<RunReport> {
        match self.items("run").first()?.read().expect("this release wrote it") {
            Report::Run(report) => Some(*report),
            _ => None,
        }
    }

    /// What the run's pager did so far.
    pub(crate) fn pager_now(&self) -> Option<PagerStatistics> {
        Some(self.run_now()?.pager?.pager)
    }

    /// Waits until so much of a run's program is lent that losing something means something.
    pub(crate) fn wait_lent(&self, running: &mut Running, least_bytes: u64) {
        running.wait_until("pages to be lent", || (self.run_now()?.usage.swapped_bytes > least_bytes).then_some(()));
    }

    /// What lies under the program, as it tells of itself: a device of its own, or the pager's volume. Null while
    /// nothing answers: `status` says nothing of a process that a busy machine keeps from answering in time.
    pub(crate) fn device_now(&self) -> Value {
        // Other donors than the run's need not be asked for a device: one that is stopped does not answer for a while.
        let (question, kind) = match VIA {
            "pager" => (&["status"][..], Kind::Run),
            _ => (&["device", "status"][..], Kind::Device),
        };
        let items = support::status(&mut self.spillway(question));
        let report = items.iter().find(|item| item.kind == kind).and_then(|item| item.read().ok());
        report.as_ref().and_then(Report::volume).map(|volume| serde_json::json!(volume)).unwrap_or_default()
    }

    /// [`Stage::device_now`], as soon as there is something.
    pub(crate) fn device(&self) -> Value {
        wait_until("the device to tell of itself", || Some(self.device_now()).filter(Value::is_object))
    }

    /// Nothing but donors may be left: no entry, no device of a process that is gone.
    pub(crate) fn assert_clean(&self) {
        let mut left = self.status();
        left.retain(|item| item.kind != Kind::Donor);
        assert!(left.is_empty(), "left behind: {left:#?}");
        // Loop devices, mounts and memory groups of the last run; those of other processes are not ours to judge.
        let Ok(text) = fs::read(self.disk().join("statistics.json")) else { return };
        if text.is_empty() {
            // The run was killed before it wrote them.
            return;
        }
        let statistics: Value = serde_json::from_slice(&text).expect("statistics are JSON");
        let name = statistics["device"]["device"]["name"].as_str().expect("the device told its name").to_owned();
        // The kernel lets go of a memory group a moment after the last process in it.
        wait_until(&format!("everything of {name} to be gone"), || {
            let said = support::run(&mut self.spillway(&["doctor", "--json"]));
            let report: Value = serde_json::from_slice(&said.output).expect("doctor's report is JSON");
            let mut remains = report["remains"].as_array().expect("remains are a list").iter();
            (!remains.any(|line| line.as_str().is_some_and(|line| line.contains(&name)))).then_some(())
        });
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        // A stopped process ends at nothing but KILL.
        for process in self.donors.iter().filter_map(|donor| donor.process.as_ref()) {
            process.signal("CONT");
        }
        for device in ["swap", "device"] {
            if self.registry.path().join("r").join(format!("device-{device}")).exists() {
                let kind = if fs::read_to_string("/proc/swaps").unwrap_or_default().contains("/dev/loop") {
                    "swap"
                } else {
                    "device"
                };
                let said = support::run(&mut self.spillway(&[kind, "off", "--name", device]));
                report_failure(&said, "taking a device down");
            }
        }
        self.donors.clear();
        let said = support::run(&mut self.spillway(&["doctor", "--mend", "--json"]));
        report_failure(&said, "mending");
    }
}

/// While a test already fails, a second panic would end everything.
fn report_failure(said: &Said, what: &str) {
    if !said.status.success() {
        eprintln!("{what}: {}\n{}", said.status, said.errors);
    }
}
