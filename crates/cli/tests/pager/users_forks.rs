//! Forks of programs whose user lacks `CAP_SYS_PTRACE`: the kernel tells the pager of none, so each waits until all
//! pages of its program are back. A copy that no process serves would read zeroes for a page that is away.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use spillway_sys::memory_hierarchy::{Hierarchy, Version};

use crate::VIA;
use crate::both_ways::programs::{MIB, PAGED_BY};
use crate::both_ways::servers::{fill_redis, redis, redis_client, redis_server, write_while_saving};
use crate::both_ways::stage::Stage;
use crate::pager::ordinary_user::{Place, program};
use crate::support::processes::{EndedAtLast, children, executing, pages_away};
use crate::support::{self, Running, UNTIL_TOLD, wait_until};

const OPTIONS: [&str; 6] = ["--local", "25%", "--lend", "384M", "--slab-size", "4M"];

/// What a program wrote, which must have forked, and must have had memory elsewhere if it is `large`.
fn run(place: &Place, program: &[&str], large: bool) -> String {
    let said = support::run(&mut place.run(&OPTIONS, program)).done(program[0]);
    let paging = &place.statistics()["pager"];
    assert!(paging["forks"].as_u64().unwrap() > 0 && paging["forks_refused"] == 0, "{paging:#}");
    assert_eq!(paging["pages_lost"], 0, "{paging:#}");
    assert!(!large || paging["pages_out_dirty"].as_u64().unwrap() > 0, "{paging:#}");
    said.text()
}

#[test]
fn a_users_programs_may_fork() {
    let Some(stage) = Stage::set(&["gcc", "unshare", "setpriv"]) else { return };
    let Some(place) = Place::new(&stage) else { return };
    let peculiarities = program(&stage, &place, "peculiarities");
    for mode in ["spawn", "borrow", "wipe"] {
        let said = support::run(place.run(&OPTIONS, &[&peculiarities, mode, MIB, "/"]).env(PAGED_BY, VIA)).done(mode);
        assert!(said.text().ends_with(&format!("{mode} 20480 pages as written\n")), "{}", said.text());
    }
    let exerciser = program(&stage, &place, "exerciser");
    for mode in ["fork", "exec"] {
        let said = run(&place, &[&exerciser, mode, MIB, "/nonexistent"], true);
        assert_eq!(said, format!("{mode} 20480 pages as written\n"));
    }
}

/// Each signal that came before the pager had heard of a fork would make it fail.
#[test]
fn no_signal_interrupts_a_users_fork() {
    let Some(stage) = Stage::set(&["gcc", "unshare", "setpriv"]) else { return };
    let Some(place) = Place::new(&stage) else { return };
    let storm = program(&stage, &place, "storm");
    assert_eq!(run(&place, &[&storm, "32", "60"], true), "storm of 60 forks\n");
    // Small, so that most signals come while a fork waits to be heard.
    assert_eq!(run(&place, &[&storm, "1", "400"], false), "storm of 400 forks\n");
}

/// Grows beyond the budget, and forks all the time: substitutions, subshells, pipelines, and work in the background.
const SHELL_SCRIPT: &str = "
all=$(seq 1 20000)
for i in 1 2 3 4 5 6 7 8; do all=$all$all; done
echo ${#all}
(echo $(printf '%s' \"$all\" | tr 1 x | tr -d '0-9\n' | wc -c)) | cat
for i in 1 2 3 4; do (sleep 0.1; seq $i) & done
wait
sum=0
for i in 1 2 3 4 5 6 7 8; do sum=$(expr $sum + $(echo $i | tr 1-8 2-9)); done
echo $sum
printf '%s' \"$all\" | cksum
";

#[test]
fn a_users_shell_scripts_fork_beyond_their_budget() {
    let Some(stage) = Stage::set(&["cksum", "unshare", "setpriv"]) else { return };
    let Some(place) = Place::new(&stage) else { return };
    for shell in ["dash", "bash"].into_iter().filter(|shell| support::has_program(shell)) {
        let local = Command::new(shell).args(["-c", SHELL_SCRIPT]).output().unwrap();
        let mut expected: Vec<String> = String::from_utf8(local.stdout).unwrap().lines().map(str::to_owned).collect();
        let mut lines: Vec<String> =
            run(&place, &[shell, "-c", SHELL_SCRIPT], true).lines().map(str::to_owned).collect();
        // What runs in the background comes in any order.
        expected.sort();
        lines.sort();
        assert_eq!(expected.len(), 14, "{expected:?}");
        assert_eq!(lines, expected, "{shell}");
    }
}

/// Fills memory, forks, and lets the child check every page of it and write to its own; then by the ways of the
/// library.
const PYTHON_PROGRAM: &str = "
import hashlib, multiprocessing, os, subprocess
piece = lambda i: hashlib.sha256(str(i).encode()).digest() * 4096
pieces = [piece(i) for i in range(512)]
for turn in range(3):
    child = os.fork()
    if child == 0:
        good = all(one == piece(i) for i, one in enumerate(pieces))
        pieces[:] = [bytes(len(one)) for one in pieces]
        os._exit(0 if good and not any(map(any, pieces)) else 1)
    print('child', turn, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
def is_good(i): return pieces[i] == piece(i)
with multiprocessing.get_context('fork').Pool(3) as pool:
    print('pool', sum(pool.map(is_good, range(len(pieces)))))
print('parent', sum(is_good(i) for i in range(len(pieces))))
shell = 'seq 1000 | sort -r | head -n 2 | tr 9 x; (echo sub | cat)'
print(subprocess.run(shell, shell=True, capture_output=True).stdout)
print(subprocess.run(['cat'], input=b'before', preexec_fn=os.setsid, capture_output=True).stdout)
";

#[test]
fn a_users_python_forks_by_all_its_ways() {
    let Some(stage) = Stage::set(&["/usr/bin/python3", "unshare", "setpriv"]) else { return };
    let Some(place) = Place::new(&stage) else { return };
    let said = run(&place, &["/usr/bin/python3", "-c", PYTHON_PROGRAM], true);
    let children = "child 0 0\nchild 1 0\nchild 2 0\npool 512\nparent 512\n";
    assert_eq!(said, format!("{children}b'xxx\\nxx8\\nsub\\n'\nb'before'\n"));
}

#[test]
fn a_users_redis_saves_what_it_had_at_the_fork() {
    let Some(stage) = Stage::set(&["redis-server", "unshare", "setpriv"]) else { return };
    let Some(place) = Place::new(&stage) else { return };
    let start = |place: &Place, socket: &Path| {
        let arguments = redis_server(place.path(), socket);
        let program: Vec<&str> = arguments.iter().map(String::as_str).collect();
        Running::start(&mut place.run(&OPTIONS, &program))
    };
    let socket = place.path().join("redis.sock");
    let arguments = redis_server(place.path(), &socket);
    let mut server = Running::start(Command::new(&arguments[0]).args(&arguments[1..]));
    let mut client = redis_client(&socket, &mut server);
    let expected = fill_redis(&mut client);
    write_while_saving(&mut client);
    let expected_after = redis(&mut client, "DEBUG DIGEST");
    server.signal("KILL");
    server.end();
    fs::remove_file(&socket).unwrap();

    let mut server = start(&place, &socket);
    let mut client = redis_client(&socket, &mut server);
    assert_eq!(fill_redis(&mut client), expected);
    assert!(redis(&mut client, "BGSAVE").starts_with('+'));
    write_while_saving(&mut client);
    let status = wait_until("the snapshot", || {
        let text = redis(&mut client, "INFO persistence");
        text.contains("rdb_bgsave_in_progress:0").then_some(text)
    });
    assert!(status.contains("rdb_last_bgsave_status:ok"), "{status}");
    assert_eq!(redis(&mut client, "DEBUG DIGEST"), expected_after, "what was written meanwhile");
    assert_eq!(redis(&mut client, "SHUTDOWN NOSAVE"), "");
    server.end().done("redis");
    let paging = &place.statistics()["pager"];
    assert!(paging["forks"] == 1 && paging["pages_out_dirty"].as_u64().unwrap() > 0, "{paging:#}");
    // It reads its snapshot.
    let mut server = start(&place, &socket);
    let mut client = redis_client(&socket, &mut server);
    wait_until("the snapshot to be loaded", || (!redis(&mut client, "DBSIZE").starts_with("-LOADING")).then_some(()));
    assert_eq!(redis(&mut client, "DEBUG DIGEST"), expected);
    assert_eq!(redis(&mut client, "SHUTDOWN NOSAVE"), "");
    server.end().done("redis");
}

/// Threads fork, map, move and drop memory at random, all at once.
#[test]
fn a_users_threads_fork_at_random() {
    let Some(stage) = Stage::set(&["gcc", "unshare", "setpriv"]) else { return };
    let Some(place) = Place::new(&stage) else { return };
    let stress = program(&stage, &place, "stress");
    let file = place.path().join("file");
    let program = [stress.as_str(), "64", "6", "7", "4", file.to_str().unwrap()];
    assert_eq!(run(&place, &program, true), "stress wrong 0\n");
}

/// A copy of a program is not paged, but its own forks are asked for: the run goes on as long as it lives.
#[test]
fn a_users_programs_that_are_left_behind_may_fork() {
    let Some(stage) = Stage::set(&["unshare", "setpriv"]) else { return };
    let Some(place) = Place::new(&stage) else { return };
    let result = place.path().join("result");
    let script = format!("(sleep 1; seq 3 | cat > {}) & echo first", result.display());
    assert_eq!(run(&place, &["sh", "-c", &script], false), "first\n");
    assert_eq!(fs::read_to_string(result).unwrap(), "1\n2\n3\n");
}

/// Leaves a copy of itself behind, which in the end looks at its memory and tries to fork.
const LEFT_BEHIND: &str = "
import errno, os, sys, time
ready, go, result = sys.argv[1:]
pieces = [(bytes([i]) * 4095 + b'.') * 256 for i in range(48)]
if os.fork() > 0: os._exit(0)
with open(ready, 'w') as file: pass
deadline = time.monotonic() + 400
while not os.path.exists(go) and time.monotonic() < deadline: time.sleep(0.01)
said = 'whole' if all(piece == (bytes([i]) * 4095 + b'.') * 256 for i, piece in enumerate(pieces)) else 'wrong'
try:
    if os.fork() == 0: os._exit(0)
    said += ' forked'
except OSError as error: said += ' ' + errno.errorcode[error.errno]
with open(result + '.new', 'w') as file: file.write(said)
os.rename(result + '.new', result)
";

#[test]
fn a_users_copies_outlive_a_run_that_a_signal_ends() {
    let Some(stage) = Stage::set(&["/usr/bin/python3", "unshare", "setpriv"]) else { return };
    let Some(place) = Place::new(&stage) else { return };
    let [ready, go, result] = ["ready", "go", "result"].map(|name| place.path().join(name));
    // What is left behind must not keep the run's output open.
    let script = "exec /usr/bin/python3 -c \"$@\" > /dev/null 2>&1";
    let mut program = vec!["sh", "-c", script, "sh", LEFT_BEHIND];
    program.extend([&ready, &go, &result].map(|path| path.to_str().unwrap()));
    let mut running =
        Running::start(&mut place.run(&["--local", "24M", "--lend", "384M", "--slab-size", "4M"], &program));
    running.wait_until("the copy to be left behind", || ready.exists().then_some(()));
    running.signal("TERM");
    running.end();
    fs::write(&go, "").unwrap();
    let said = wait_until("the copy to tell", || fs::read_to_string(&result).ok());
    assert_eq!(said, "whole ENOSYS");
}

/// Memory of each program, and of each copy.
const FAMILY_MIB: u64 = 32;

/// Pages of the paged program that are elsewhere when the run is killed.
const PAGES_AWAY: usize = 1024;

/// Copies that a user's program forks are not paged, and no process lists them; they belong to the run all the same,
/// and end with it, as does a program beside them that has pages elsewhere.
#[test]
fn a_users_killed_run_takes_copies_along_that_are_not_paged() {
    let Some(stage) = Stage::set(&["gcc", "unshare", "setpriv"]) else { return };
    let Some(place) = Place::new(&stage) else { return };
    let verifier = PathBuf::from(program(&stage, &place, "verifier"));
    let _family = EndedAtLast(&verifier);
    let one = format!("{} {FAMILY_MIB} {UNTIL_TOLD}", verifier.display());
    let script = format!("{one} 23 & exec {one} 24 forking");
    let options = ["--via", "pager", "--local", "16M", "--lend", "256M", "--slab-size", "4M"];
    let mut running = Running::start(&mut place.run(&options, &["sh", "-c", &script]));
    running.wait_until("a paged program beside whole copies", || {
        let away = |pid: &u32| pages_away(*pid, FAMILY_MIB << 20);
        let (parents, others): (Vec<u32>, Vec<u32>) =
            executing(&verifier).iter().partition(|pid| !children(**pid).is_empty());
        let copies = others.iter().filter(|pid| away(pid) == Some(0)).count();
        let paged = others.iter().filter(|pid| away(pid) > Some(PAGES_AWAY)).count();
        (parents.len() == 1 && copies >= 2 && paged == 1).then_some(())
    });
    running.signal("KILL");
    wait_until("every member to end", || executing(&verifier).is_empty().then_some(()));
    let said = running.end();
    assert_eq!(said.status.signal(), Some(9), "{}", said.errors);
    assert!(!said.errors.contains("wrong"), "{}", said.errors);
    wait_until("the guardian to remove what is left", || {
        let left: Vec<_> =
            fs::read_dir(place.path().join("r")).unwrap().flatten().map(|file| file.file_name()).collect();
        left.iter().all(|name| name == "lock").then_some(())
    });
}

/// A memory cgroup with a limit, for programs of a test; gone with it.
struct Group {
    path: PathBuf,
    hierarchy: Hierarchy,
}

impl Group {
    fn new(limit_bytes: u64) -> Option<Self> {
        let hierarchy = Hierarchy::detect()?;
        let path = hierarchy.root.join(format!("spillway-test-{}", std::process::id()));
        let file = if hierarchy.version == Version::V1 { "memory.limit_in_bytes" } else { "memory.max" };
        fs::create_dir(&path).ok()?;
        let group = Self { path, hierarchy };
        fs::write(group.path.join(file), limit_bytes.to_string()).ok().map(|()| group)
    }

    fn add(&self, process: &str) {
        fs::write(self.path.join("cgroup.procs"), process).unwrap();
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let processes = fs::read_to_string(self.path.join("cgroup.procs")).unwrap_or_default();
        for process in processes.lines() {
            // Of a test that failed.
            let _ = fs::write(self.hierarchy.root.join("cgroup.procs"), process);
        }
        let _ = fs::remove_dir(&self.path);
    }
}

/// Waits until it is in its group, then forks: with all of its memory, and with a part.
const CONFINED_PROGRAM: &str = "
import errno, os, sys, time
own, go = sys.argv[1:]
pieces = [(bytes([i % 251]) * 4095 + b'.') * 256 for i in range(160)]
with open(own + '.new', 'w') as file: file.write(str(os.getpid()))
os.rename(own + '.new', own)
while not os.path.exists(go): time.sleep(0.01)
def fork():
    child = os.fork()
    if child == 0: os._exit(sum(piece != (bytes([i % 251]) * 4095 + b'.') * 256 for i, piece in enumerate(pieces)) > 0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
try: print('forked', fork())
except OSError as error: print(errno.errorcode[error.errno])
del pieces[16:]
print('forked', fork())
";

/// The machine has memory for all pages of the program, and the group that it is in has not: it would be killed.
#[test]
fn a_users_fork_that_its_cgroup_has_no_memory_for_fails() {
    let Some(stage) = Stage::set(&["/usr/bin/python3", "unshare", "setpriv"]) else { return };
    let Some(place) = Place::new(&stage) else { return };
    let Some(group) = Group::new(112 << 20) else { return support::skip("a memory cgroup of its own") };
    let [own, go] = ["own", "go"].map(|name| place.path().join(name));
    let arguments = [own.to_str().unwrap(), go.to_str().unwrap()];
    let program = ["/usr/bin/python3", "-c", CONFINED_PROGRAM, arguments[0], arguments[1]];
    let options = ["--local", "32M", "--lend", "384M", "--slab-size", "4M"];
    let mut running = Running::start(&mut place.run(&options, &program));
    group.add(&running.wait_until("the program is there", || fs::read_to_string(&own).ok()));
    fs::write(&go, "").unwrap();
    let said = running.end().done("python");
    assert_eq!(said.text(), "ENOMEM\nforked 0\n", "{}", said.errors);
    assert_eq!(place.statistics()["pager"]["forks_refused"], 1);
}
