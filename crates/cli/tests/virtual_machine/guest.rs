//! A machine with our programs in it, and what tests do there again and again.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;
use std::time::{Duration, Instant};

use serde_json::Value;
use spillway_virtual_machine::builder::quoted;
use spillway_virtual_machine::machine::Job;
use spillway_virtual_machine::{Builder, Disk, Failure, Said, VirtualMachine};

use crate::support::{self, has_program, is_root, skip};
use crate::virtual_machine::front_ends::FrontEnd;

/// How long one command may take: Redis in half its memory took 208 s, emulated on a host with ten times as much to
/// do as it can.
pub(crate) const WITHIN: Duration = Duration::from_secs(900);

/// Options that every device and donor of these tests has; slabs are small, like everything here.
pub(crate) const SLABS: &str = "--slab-size 4M";

/// Programs that run in guests, in one directory.
struct Programs(tempfile::TempDir);

impl Programs {
    /// Links the built binaries and compiles the C programs, or names what is missing.
    fn make() -> Result<Self, String> {
        let spillway = Path::new(env!("CARGO_BIN_EXE_spillway"));
        let bench = spillway.with_file_name("spillway-bench");
        if !bench.exists() {
            return Err("the program spillway-bench (make test-binaries)".to_owned());
        }
        let missing = ["gcc", "redis-server", "redis-cli", "fio", "nbd-client", "setpriv", "sysctl"]
            .into_iter()
            .find(|program| !has_program(program));
        if let Some(missing) = missing {
            return Err(missing.to_owned());
        }
        let directory = support::disk_directory();
        let redis = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/virtual_machine/redis.sh");
        for program in [spillway, &bench, &redis] {
            let link = directory.path().join(program.file_name().expect("it is a file"));
            std::os::unix::fs::symlink(program, link).expect("a link can be made");
        }
        for name in ["verifier", "exerciser"] {
            let source =
                Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/both_ways/programs").join(format!("{name}.c"));
            let binary = directory.path().join(name);
            support::run(Command::new("gcc").args(["-O2", "-Werror=int-conversion", "-o"]).arg(binary).arg(source))
                .done("gcc");
        }
        Ok(Self(directory))
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

/// A machine of a test.
pub(crate) struct Guest {
    machine: VirtualMachine,
    programs: Rc<Programs>,
}

/// A machine of this size for this front end. Its disk is for backing files.
pub(crate) fn builder(front_end: FrontEnd, memory_mib: u32) -> Builder {
    let builder = VirtualMachine::builder().kernel(front_end.kernel).modules(front_end.modules);
    builder.memory_mib(memory_mib).disk(Disk::files(2048))
}

/// What the failure to start means: a capability is missing, or the test fails.
fn unless_missing<T>(started: Result<T, Failure>) -> Option<T> {
    match started {
        Ok(started) => Some(started),
        Err(failure) => {
            skip(failure.missing().unwrap_or_else(|| panic!("{failure}")));
            None
        }
    }
}

fn programs() -> Option<Rc<Programs>> {
    // Guests read the host's files as the tests' user, and pass on what they may.
    if !is_root() {
        skip("root");
        return None;
    }
    Programs::make().map(Rc::new).map_err(|missing| skip(&missing)).ok()
}

impl Guest {
    /// Boots a machine, or says what is missing for it.
    pub(crate) fn boot(builder: Builder) -> Option<Self> {
        let programs = programs()?;
        let machine = unless_missing(builder.start())?;
        Some(Self { machine, programs })
    }

    /// Boots two machines with a network between them.
    pub(crate) fn boot_pair(first: Builder, second: Builder) -> Option<[Self; 2]> {
        let programs = programs()?;
        let machines = unless_missing(first.start_pair(second))?;
        Some(machines.map(|machine| Self { machine, programs: Rc::clone(&programs) }))
    }

    fn script(&self, text: &str) -> String {
        let programs = quoted(&self.programs.path().to_string_lossy());
        format!("set -e; export PATH={programs}:$PATH; cd /disk; {text}")
    }

    /// Runs a script to its end, whatever it is. How long it took is told with `--nocapture`, and where the test fails.
    pub(crate) fn run(&self, script: &str) -> Said {
        let begun = Instant::now();
        let said = self.machine.run(&self.script(script), WITHIN).unwrap_or_else(|failure| panic!("{failure}"));
        println!("{:5.1} s: {script}", begun.elapsed().as_secs_f64());
        said
    }

    /// What a script writes that must end with 0.
    pub(crate) fn said(&self, script: &str) -> String {
        let said = self.run(script);
        self.assert_done(script, &said);
        said.output
    }

    /// What a script writes on the host, where nothing is emulated. What is `/disk` in guests is a directory of its
    /// own there.
    pub(crate) fn said_on_host(&self, script: &str) -> String {
        // Short, because a socket's path is.
        let disk = support::registry_directory();
        let script = self.script(script).replace("/disk", &disk.path().to_string_lossy());
        support::run(Command::new("bash").args(["-c", &script])).done(&script).text()
    }

    /// Starts a script that goes on beside others.
    pub(crate) fn start(&self, script: &str) -> Job {
        self.machine.spawn(&self.script(script)).unwrap_or_else(|failure| panic!("{failure}"))
    }

    /// Waits for a script's end, which must be with 0; gives what it wrote.
    pub(crate) fn end_of(&self, job: &Job) -> String {
        self.end_within(job, WITHIN)
    }

    /// As [`Guest::end_of`], for what takes longer than other scripts.
    pub(crate) fn end_within(&self, job: &Job, within: Duration) -> String {
        let said = self.machine.end_of(job, within).unwrap_or_else(|failure| panic!("{failure}"));
        self.assert_done("a started script", &said);
        said.output
    }

    /// Waits for a script's end, whatever it is; gives its status.
    pub(crate) fn machine_end(&self, job: &Job) -> i32 {
        self.machine.end_of(job, WITHIN).unwrap_or_else(|failure| panic!("{failure}")).status
    }

    fn assert_done(&self, script: &str, said: &Said) {
        let Said { status, output, errors } = said;
        let complaints = self.machine.complaints();
        let logs = if *status == 0 { String::new() } else { self.logs() };
        assert_eq!(
            *status, 0,
            "{script}\nstdout: {output}\nstderr: {errors}\nthe kernel: {complaints:#?}\nour logs: {logs}"
        );
    }

    /// What our processes in the guest logged at last, as far as the guest still answers.
    pub(crate) fn logs(&self) -> String {
        let script = self.script(
            "set +e; spillway status; tail -n 60 /run/spillway/*.log; [ ! -d /run/systemd/system ] || { systemctl list-jobs; \
             systemctl status --no-pager spillway; journalctl --no-pager -n 100; }",
        );
        self.machine.run(&script, WITHIN).map_or_else(|failure| failure.to_string(), |said| said.output)
    }

    /// The folder that guest and host share; `/share` there.
    pub(crate) fn share(&self) -> PathBuf {
        self.machine.share()
    }

    /// Starts a donor; it listens when this returns. `address` is `unix:/PATH` or `HOST:PORT`.
    pub(crate) fn donor(&self, name: &str, memory: &str, address: &str, key: &str) -> Job {
        let job = self.start(&format!(
            "echo $$ >/run/{name}.pid; exec spillway donate --name {name} --memory {memory} --headroom 16M {SLABS} \
             --key {key} --listen {address}"
        ));
        let connect = match address.strip_prefix("unix:") {
            Some(path) => format!("[ -S {path} ]"),
            None => format!("bash -c '</dev/tcp/{}' 2>/dev/null", address.replace(':', "/")),
        };
        self.wait_for(&format!("{{ {connect}; }} && kill -0 $(cat /run/{name}.pid)"));
        job
    }

    /// Sends a donor a signal.
    pub(crate) fn signal_donor(&self, name: &str, signal: &str) {
        self.said(&format!("kill -{signal} $(cat /run/{name}.pid)"));
    }

    /// Ends a donor well.
    pub(crate) fn end_donor(&self, name: &str, donor: &Job) {
        self.signal_donor(name, "TERM");
        self.end_of(donor);
    }

    /// Waits in the guest until a condition of the shell holds.
    pub(crate) fn wait_for(&self, condition: &str) {
        self.said(&format!(
            "tries=0; until {condition}; do tries=$((tries + 1)); \
             [ $tries -lt 1500 ] || {{ echo 'waited in vain for {}' >&2; exit 1; }}; sleep 0.2; done",
            condition.replace('\'', "")
        ));
    }

    /// Items of one kind in `spillway status`.
    pub(crate) fn items(&self, kind: &str) -> Vec<Value> {
        let status: Value = serde_json::from_str(&self.said("spillway status --json")).expect("status is JSON");
        let items = status["items"].as_array().expect("items are a list");
        items.iter().filter(|item| item["kind"] == kind).cloned().collect()
    }

    /// The report of the one device.
    pub(crate) fn device(&self) -> Value {
        let devices = self.items("device");
        assert_eq!(devices.len(), 1, "{devices:#?}");
        devices[0]["report"]["device"].clone()
    }

    /// A field of `/proc/meminfo`, in MiB.
    pub(crate) fn memory_mib(&self, field: &str) -> u64 {
        let text = self.said(&format!("grep -w {field} /proc/meminfo"));
        text.split_ascii_whitespace().nth(1).and_then(|number| number.parse::<u64>().ok()).expect("it is told") >> 10
    }

    /// Neither the product nor the kernel has anything to complain of; ends the machine.
    pub(crate) fn finish(self) {
        self.finish_after(&[]);
    }

    /// As [`Guest::finish`], when the kernel must complain of what was done to it: of the first of `expected` surely.
    pub(crate) fn finish_after(self, expected: &[&str]) {
        let said = self.said("spillway doctor --json");
        let report: Value = serde_json::from_str(&said).expect("doctor's report is JSON");
        assert_eq!(report["remains"].as_array().map(Vec::len), Some(0), "left behind: {report:#}");
        let complaints = self.machine.complaints();
        assert!(complaints.iter().all(|line| expected.iter().any(|part| line.contains(part))), "{complaints:#?}");
        let seen = |part: &&str| complaints.iter().any(|line| line.contains(part));
        assert!(expected.first().is_none_or(seen), "{expected:?} was to be seen: {complaints:#?}");
        self.machine.end().unwrap_or_else(|failure| panic!("{failure}"));
    }
}
