//! What programs do to their surroundings, and surroundings do to programs: namespaces, hidden directories, mounts
//! without the right to execute, memory that was only read.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::both_ways::stage::Stage;
use crate::support::{self, Running, skip};

const OPTIONS: [&str; 6] = ["--local", "24M", "--lend", "128M", "--slab-size", "4M"];

/// Grows beyond its budget, waits for its agent, and enters a mount namespace, which Linux refuses to a thread that
/// shares its directory with another one.
const ENTERS: &str = "
import ctypes, os
memory = bytearray(40 << 20)
def name(thread):
    try:
        return open(f'/proc/self/task/{thread}/comm').read()
    except OSError:
        return ''
turn = 0
while turn == 0 or not any(name(thread) == 'spillway-evict\\n' for thread in os.listdir('/proc/self/task')):
    turn = turn % 250 + 1
    memory[::4096] = bytes([turn]) * (len(memory) // 4096)
libc = ctypes.CDLL(None, use_errno=True)
namespace = os.open('/proc/self/ns/mnt', os.O_RDONLY)
print(libc.setns(namespace, 0x20000), os.strerror(ctypes.get_errno()), set(memory[::4096]) == {turn})
";

/// The case `setns-mount`.
#[test]
fn a_grown_program_enters_a_mount_namespace() {
    let Some(stage) = Stage::set(&["/usr/bin/python3"]) else { return };
    if !support::is_root() {
        return skip("root");
    }
    let said = support::run(&mut stage.run(&OPTIONS, &["/usr/bin/python3", "-c", ENTERS])).done("setns");
    assert_eq!(said.text(), "0 Success True\n", "{}", said.errors);
    assert!(stage.statistics()["pager"]["pages_out_dirty"].as_u64().unwrap() > 1000);
    stage.assert_clean();
}

/// The case `zero-pages`: what was only read takes no room at donors, of which there is too little for it.
#[test]
fn memory_that_was_only_read_is_not_sent() {
    let Some(stage) = Stage::set(&["gcc"]) else { return };
    let program = stage.compile("never_written", &[]);
    let said = support::run(&mut stage.run(&OPTIONS, &[program.to_str().unwrap(), "384", "48"])).done("the program");
    assert_eq!(said.text(), "wrong 0\n");
    let statistics = stage.statistics();
    let stored = statistics["device"]["device"]["traffic"]["pages_out"].as_u64().unwrap();
    assert!(stored < (96 << 20) / 4096, "{stored} pages were stored: {statistics:#}");
    stage.assert_clean();
}

/// Mounts over the directory `$0`, as `bwrap --tmpfs /run` does over that of the pager's library, and becomes the rest.
const HIDE: &str = "mount -t tmpfs -o \"$1\" hidden \"$0\" && shift && exec \"$@\"";

/// Holds memory until the file is there.
const HOLDS: &str = "
import os, sys, time
memory = bytearray(b'x') * (32 << 20)
while not os.path.exists(sys.argv[1]): time.sleep(0.01)
";

/// What the run that is under way tells to have failed.
fn failures(stage: &Stage) -> Option<String> {
    Some(stage.pager_now()?.failures.join("; "))
}

/// What a run tells of a program, which it ends when that was told.
fn told(stage: &Stage, running: Running, end: &Path, expected: &str) -> String {
    let mut running = running;
    running.wait_until(expected, || failures(stage).filter(|failures| failures.contains(expected)));
    fs::write(end, "").unwrap();
    running.end().done(expected).errors
}

#[test]
fn a_sandbox_that_hides_the_pagers_library_is_told_of() {
    let Some(stage) = Stage::set(&["/usr/bin/python3", "unshare", "mount"]) else { return };
    if !support::is_root() {
        return skip("root");
    }
    let (hidden, end) = (stage.registry(), stage.disk().join("end"));
    let program = ["/usr/bin/python3", "-c", HOLDS, end.to_str().unwrap()];
    let hide =
        ["unshare", "--mount", "--propagation", "private", "sh", "-c", HIDE, hidden.to_str().unwrap(), "size=1M"];
    let running = Running::start(&mut stage.run(&OPTIONS, &[&hide[..], &program].concat()));
    let errors = told(&stage, running, &end, "hidden in its mount namespace");
    let advice = format!("--ro-bind {0} {0}", hidden.display());
    assert!(errors.contains(&advice), "{errors}");
    stage.assert_clean();
}

/// However small it is: the user wanted that one to be paged.
#[test]
fn a_first_program_that_never_says_hello_is_told_of() {
    let Some(stage) = Stage::set(&["gcc"]) else { return };
    let loader = stage.compile("own_loader", &["-static", "-nostdlib", "-ffreestanding", "-fno-stack-protector"]);
    let own = stage.disk().join("ld-own");
    fs::rename(loader, &own).unwrap();
    let program = stage.compile("never_written", &[&format!("-Wl,--dynamic-linker={}", own.display())]);
    let end = stage.disk().join("end");
    let options = ["--local", "256M", "--lend", "64M", "--slab-size", "4M"];
    let running = Running::start(&mut stage.run(&options, &[program.to_str().unwrap(), end.to_str().unwrap()]));
    told(&stage, running, &end, "(never_written) is not paged");
    stage.assert_clean();
}

/// The case `run-noexec`, which is how Debian mounts `/run`, and a name that a library cannot have.
#[test]
fn a_library_lies_elsewhere_where_programs_cannot_load_it_from_the_runtime_directory() {
    let Some(stage) = Stage::set(&["unshare", "mount"]) else { return };
    if !support::is_root() {
        return skip("root");
    }
    let run = stage.run(&OPTIONS, &["grep", "-m1", "libspillway", "/proc/self/maps"]);
    for (directory, mounted) in [(stage.registry(), "noexec,mode=755"), (stage.disk().join("a b:c"), "mode=755")] {
        fs::create_dir_all(&directory).unwrap();
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c", HIDE]).arg(&directory).arg(mounted);
        command.arg(run.get_program()).args(run.get_args());
        command.envs(run.get_envs().filter_map(|(name, value)| Some((name, value?))));
        let said = support::run(command.env("SPILLWAY_RUNTIME_DIRECTORY", &directory));
        assert_eq!(said.status.code(), Some(0), "{}", said.errors);
        let mapped = said.text();
        let library = mapped.split_ascii_whitespace().last().unwrap();
        assert!(Path::new(library).starts_with("/var/lib/spillway-libraries-0"), "{mapped}");
        assert!(!Path::new(library).exists(), "it goes with its run");
    }
    stage.assert_clean();
}
