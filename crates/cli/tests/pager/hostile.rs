//! Programs that mean harm: a program of the run that says hello with addresses of another one, and becomes that one,
//! which has more rights.
//!
//! The other program (`bait`) has its set-user-ID bit, belongs to root, and leaves a mark if anything makes it
//! execute a function that it never calls. It lies in a directory that the impostor names as `/proc/PID/maps` writes
//! the file that shows a program of the run, and has a page where the impostor had that file. Other programs
//! are far beyond the budget meanwhile, so that the pager starts agents all the time.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use spillway_stub::protocol::{HEAD_BYTES, MAGIC, MESSAGE_WORDS, VERSION};

use crate::both_ways::stage::Stage;
use crate::pager::ordinary_user::{self, Place};
use crate::support::{self, skip, soak_seconds};

/// The bait, its addresses, and the directory for marks; all can be reached by every user.
struct Trap {
    bait: PathBuf,
    taken: String,
    room: String,
    base: String,
    impostor: PathBuf,
    marks: PathBuf,
}

impl Trap {
    fn set(stage: &Stage, place: &Path) -> Self {
        let marks = place.join("marks");
        fs::create_dir(&marks).unwrap();
        fs::set_permissions(&marks, fs::Permissions::from_mode(0o777)).unwrap();
        let define = format!("-DMARKS=\"{}\"", marks.display());
        // In a directory that every user may rename.
        let named = place.join("named");
        fs::create_dir(&named).unwrap();
        // The attacker renames it, in a directory with the sticky bit.
        std::os::unix::fs::chown(&named, Some(65534), None).unwrap();
        let (bait, impostor) = (named.join("bait"), place.join("impostor"));
        support::copy_program(stage.compile("bait", &["-no-pie", "-fno-pie", &define]), &bait);
        support::copy_program(stage.compile("impostor", &[]), &impostor);
        let said = support::run(Command::new(&bait).arg("addresses")).done("the bait").text();
        let [taken, room, base] = said.split_whitespace().collect::<Vec<_>>()[..] else { panic!("{said}") };
        fs::set_permissions(&bait, fs::Permissions::from_mode(0o4755)).unwrap();
        let [taken, room, base] = [taken, room, base].map(str::to_owned);
        Self { taken, room, base, bait, impostor, marks }
    }

    /// A program beyond every budget, and the impostor beside it for as long as the test lasts.
    fn script(&self, exerciser: &str, become_user: &str) -> String {
        let numbers = format!("{MAGIC} {VERSION} {MESSAGE_WORDS} {HEAD_BYTES}");
        let (bait, impostor, seconds) = (self.bait.display(), self.impostor.display(), soak_seconds(4).min(60));
        format!(
            "while :; do {exerciser} mremap 48 /nonexistent > /dev/null || exit 1; done & other=$!
            env -u LD_PRELOAD {become_user} {impostor} {numbers} {bait} {} {} {seconds} {}; status=$?
            kill $other; wait $other; exit $status",
            self.taken, self.room, self.base
        )
    }

    fn assert_untouched(&self, said: &str) {
        assert!(said.contains("tries "), "{said}");
        let mark = self.marks.join("taken");
        assert!(!mark.exists(), "code of another's choice ran as user {}", fs::read_to_string(mark).unwrap());
    }
}

const OPTIONS: [&str; 6] = ["--local", "16M", "--lend", "256M", "--slab-size", "4M"];

#[test]
fn a_pager_of_root_is_no_way_to_roots_rights() {
    let Some(stage) = Stage::set(&["gcc", "setpriv"]) else { return };
    let Some(place) = Place::new(&stage) else { return };
    let trap = Trap::set(&stage, place.path());
    let exerciser = ordinary_user::program(&stage, &place, "exerciser");
    let script = trap.script(&exerciser, "setpriv --reuid=65534 --regid=65534 --clear-groups");
    let mut run = stage.run(&OPTIONS, &["sh", "-c", &script]);
    let said = support::run(run.env("SPILLWAY_RUNTIME_DIRECTORY", place.path().join("r"))).done("the run");
    trap.assert_untouched(&said.text());
    assert!(stage.statistics()["pager"]["pages_out_dirty"].as_u64().unwrap() > 0, "agents were started");
}

/// Case `foreign-read`: what the pager wants to read of a program lies in memory that is never served. Another program
/// is paged meanwhile, and the user is told of memory that is not.
#[test]
fn a_program_whose_memory_cannot_be_read_holds_no_other_up() {
    let Some(stage) = Stage::set(&["gcc"]) else { return };
    if !support::is_root() {
        return skip("root");
    }
    let [unserved, exerciser] = [("unserved", "-pthread"), ("exerciser", "-pthread")]
        .map(|(name, option)| stage.compile(name, &[option]).to_str().unwrap().to_owned());
    let paged = stage.disk().join("paged");
    let script = format!(
        "{unserved} paged | {{ read word; env -u LD_PRELOAD {unserved} alone 40 | {{ read word
            until test -e {}; do {exerciser} mremap 48 /nonexistent || exit 1; done; sleep 1; }}; }}",
        paged.display()
    );
    let mut running = support::Running::start(&mut stage.run(&OPTIONS, &["sh", "-c", &script]));
    running.wait_until("pages of the other program to leave", || (pages_out(&stage)? > 4096).then_some(()));
    fs::write(paged, "").unwrap();
    let said = running.end().done("the run");
    assert!(said.errors.contains("(unserved) is not paged"), "{}", said.errors);
}

/// Pages that left the programs of the run so far: a program of a moment has ended on a busy machine before the pager
/// has looked at it.
fn pages_out(stage: &Stage) -> Option<u64> {
    stage.pager_now().map(|pager| pager.pages_out_dirty)
}

/// The pager waits for a function that it calls in a program, which is the program's own. Others are paged meanwhile.
#[test]
fn programs_whose_functions_never_return_hold_no_other_user_up() {
    let Some(stage) = Stage::set(&["gcc", "setpriv"]) else { return };
    let Some(place) = Place::new(&stage) else { return };
    let [neighbour, exerciser] = ["neighbour", "exerciser"].map(|name| ordinary_user::program(&stage, &place, name));
    // Each child costs the pager half a second.
    let script = format!(
        "setpriv --reuid=65534 --regid=65534 --clear-groups {neighbour} borrowed 60 {} & other=$!
        while kill -0 $other 2> /dev/null; do {exerciser} mremap 48 /nonexistent > /dev/null || exit 1; done",
        soak_seconds(6).min(20)
    );
    let mut run = stage.run(&["--local", "32M", "--lend", "256M", "--slab-size", "4M"], &["sh", "-c", &script]);
    support::run(run.env("SPILLWAY_RUNTIME_DIRECTORY", place.path().join("r"))).done("the run");
    let statistics = stage.statistics();
    assert!(statistics["pager"]["pages_out_dirty"].as_u64().unwrap() > 4096, "{statistics:#}");
}

/// Any program can ask to trace any other, and the kernel refuses. All pages of the other came back for that.
#[test]
fn what_may_not_be_traced_is_paged_on_when_another_user_tries() {
    let Some(stage) = Stage::set(&["gcc"]) else { return };
    if !support::is_root() {
        return skip("root");
    }
    let program = stage.compile("neighbour", &[]);
    let options = ["--local", "24M", "--lend", "256M", "--slab-size", "4M"];
    let said = support::run(&mut stage.run(&options, &[program.to_str().unwrap(), "tracing", "128"])).done("the run");
    let most: u64 = said.text().trim().parse().unwrap();
    assert!(most < 96, "{most} of 128 MiB were there: {:#}", stage.statistics());
}

/// What a process of a run has of `CAP_SYS_PTRACE` (capabilities(7)), by thread, with the thread's name.
fn tracing_rights(process: &str) -> Vec<(String, bool)> {
    let threads = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let rights = threads.filter_map(|thread| {
        let status = fs::read_to_string(thread.path().join("status")).ok()?;
        let field = |name: &str| status.lines().find_map(|line| Some(line.strip_prefix(name)?.trim().to_owned()));
        let sets = ["CapPrm:", "CapEff:", "CapInh:", "CapAmb:"]
            .map(|name| u64::from_str_radix(&field(name).unwrap(), 16).unwrap());
        Some((field("Name:")?, sets.iter().any(|set| set >> 19 & 1 == 1)))
    });
    rights.collect()
}

#[test]
fn nothing_of_a_run_keeps_the_capability_but_what_makes_one_call_with_it() {
    let Some(stage) = Stage::set(&["gcc", "unshare", "setpriv", "setcap"]) else { return };
    let Some(place) = Place::new(&stage) else { return };
    if !place.grants_capabilities() || !place.set_capabilities("setcap cap_sys_ptrace+ep $(command -v spillway)") {
        return skip("capabilities by files (CAP_SYS_PTRACE in the bounding set, a file system that has them)");
    }
    let ready = place.path().join("ready");
    let script = format!("touch {} && sleep 600", ready.display());
    let options = [&["--via", "pager"], &OPTIONS[..]].concat();
    let mut running = support::Running::start(&mut place.run(&options, &["sh", "-c", &script]));
    running.wait_until("the program to start", || ready.exists().then_some(()));
    let name = place.path().join("spillway");
    let own = fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let processes = own.filter(|number| fs::read_link(format!("/proc/{number}/exe")).is_ok_and(|exe| exe == name));
    let rights: Vec<(String, bool)> = processes.flat_map(|number| tracing_rights(&number)).collect();
    let keepers: Vec<&String> = rights.iter().filter(|(_, has)| *has).map(|(name, _)| name).collect();
    assert_eq!(keepers, ["spillway-forks"], "{rights:?}");
    assert!(rights.len() > 6, "pager, guardian and donors: {rights:?}");
    running.signal("TERM");
    running.end();
}

/// The case `arena-privilege`.
#[test]
fn a_child_that_gives_up_its_rights_shares_nothing_and_is_paged() {
    let Some(stage) = Stage::set(&["gcc"]) else { return };
    if !support::is_root() {
        return skip("root");
    }
    let program = stage.compile("rights", &[]);
    for when in ["before", "after"] {
        let program = [program.to_str().unwrap(), "48", when];
        let said = support::run(&mut stage.run(&["--local", "24M", "--lend", "256M", "--slab-size", "4M"], &program));
        let said = said.done(when);
        assert_eq!(said.text(), "child sees 0 bad 0\nparent bad 0\n", "{when}");
        // On a busy machine memory comes faster than pages leave, which is told, too.
        let is_other = |line: &&str| {
            !["no --donor was named", "the budget of ", "was exceeded for"].iter().any(|part| line.contains(part))
        };
        let complaints: Vec<&str> = said.errors.lines().filter(is_other).collect();
        assert!(complaints.is_empty(), "{when}: it has its agent: {complaints:?}");
        let statistics = stage.statistics();
        // Both have twice the budget. A child whose memory could not leave would have all of its 48 MiB at once; on a
        // busy machine two writers get ahead of the pager for a moment.
        let peak = statistics["pager"]["local_bytes_peak"].as_u64().unwrap();
        assert_eq!(statistics["pager"]["programs"], 2);
        // What a fork shares cannot leave before one of the two has written to it.
        assert!(when == "after" || peak < 48 << 20, "{when}: {peak} bytes: {statistics:#}");
    }
}

/// The cases `other-user` and `user-namespace`.
#[test]
fn programs_that_become_another_user_are_paged() {
    let Some(stage) = Stage::set(&["gcc", "setpriv", "chroot", "unshare"]) else { return };
    let Some(place) = Place::new(&stage) else { return };
    let exerciser = ordinary_user::program(&stage, &place, "exerciser");
    let become_user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
    // Another user before the program starts, with a shell between, in another root directory, and in a user
    // namespace without any right.
    let shell = format!("exec setpriv --reuid=65534 --regid=65534 --clear-groups {exerciser} mremap 48 /nonexistent");
    let starts: [Vec<&str>; 4] = [
        become_user.to_vec(),
        vec!["sh", "-c", &shell],
        [&["chroot", "--userspec=65534:65534", "/"][..]].concat(),
        vec!["unshare", "--user", "--map-user=65534", "--pid", "--fork"],
    ];
    for start in starts {
        let own = [exerciser.as_str(), "mremap", "48", "/nonexistent"];
        let program = if start[0] == "sh" { start.clone() } else { [&start[..], &own].concat() };
        let mut run = stage.run(&["--local", "50%", "--lend", "256M", "--slab-size", "4M"], &program);
        let said = support::run(run.env("SPILLWAY_RUNTIME_DIRECTORY", place.path().join("r"))).done(start[0]);
        assert_eq!(said.text(), "mremap 12288 pages as written\n", "{start:?}");
        let statistics = stage.statistics();
        assert!(statistics["pager"]["pages_out_dirty"].as_u64().unwrap() > 1000, "{start:?}: {statistics:#}");
        assert_eq!(statistics["pager"]["failures"], serde_json::json!([]), "{start:?}");
    }
}

/// A program that gives up rights, or enters another root directory, when it runs already and has no agent yet.
const LATE: &str = "
import os, signal, sys
told = []
signal.signal(signal.SIGUSR1, lambda *_: told.append(1))
exec(sys.argv[1])
while True:
    numbers = [str(number) for number in range(600000)]
    if told:
        break
print(len(numbers))
";

/// What [`LATE`] said with such a change, after it was told to end: when `is_ready`, by the status.
fn run_late(stage: &Stage, change: &str, is_ready: impl Fn() -> bool) -> support::Said {
    let program = ["/usr/bin/python3", "-c", LATE, change];
    let options = ["--local", "24M", "--lend", "128M", "--slab-size", "4M"];
    let mut running = support::Running::start(&mut stage.run(&options, &program));
    running.wait_until(change, || is_ready().then_some(()));
    running.signal("USR1");
    let said = running.end().done(change);
    assert_eq!(said.text(), "600000\n", "{change}");
    said
}

/// The case `agent-start`, but for [`a_program_without_threads_of_its_pid_namespace_is_told_of`].
#[test]
fn programs_that_become_another_user_late_are_paged() {
    let Some(stage) = Stage::set(&["/usr/bin/python3"]) else { return };
    if !support::is_root() {
        return skip("root");
    }
    for change in [
        "os.setgid(65534); os.setuid(65534)",
        "os.chroot('/proc')",
        "os.chroot('/proc'); os.setgid(65534); os.setuid(65534)",
        "os.close(0); os.close(2)",
    ] {
        run_late(&stage, change, || pages_out(&stage) > Some(1000));
        let statistics = stage.statistics();
        assert_eq!(statistics["pager"]["failures"], serde_json::json!([]), "{change}");
    }
}

/// The rest of `agent-start`. After this call Linux starts no thread in the process, so there can be no agent: the
/// user is told, and children are paged.
#[test]
fn a_program_without_threads_of_its_pid_namespace_is_told_of() {
    let Some(stage) = Stage::set(&["/usr/bin/python3"]) else { return };
    if !support::is_root() {
        return skip("root");
    }
    // os.unshare is there from Python 3.12 on.
    let change = "import ctypes; assert ctypes.CDLL(None).unshare(0x20000000) == 0";
    let failures = || stage.pager_now()?.failures.pop();
    let said = run_late(&stage, change, || failures().is_some());
    assert!(said.errors.contains("unshare(CLONE_NEWPID)") && said.errors.contains("--via swap"), "{}", said.errors);
}
