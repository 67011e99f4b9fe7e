//! Other users of the machine, beside a run of root: what they hold, flood or leave in the way does not hinder it.

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::both_ways::stage::Stage;
use crate::pager::ordinary_user::Place;
use crate::support::{self, Running, skip};

/// `nobody`, by convention.
const STRANGER: [&str; 4] = ["--reuid=65534", "--regid=65534", "--clear-groups", "--"];

/// The only socket for notes of the runs of a registry.
fn notes_socket(registry: &Path) -> Option<PathBuf> {
    let programs = fs::read_dir(registry).ok()?.flatten().find(|item| {
        let name = item.file_name();
        name.as_encoded_bytes().starts_with(b"programs.")
    })?;
    let names = fs::read_dir(programs.path()).ok()?.flatten().map(|item| item.path());
    names.into_iter().find(|path| path.extension().is_some_and(|ending| ending == "notes"))
}

/// The case notes-flood.
#[test]
fn a_strangers_flood_of_notes_reaches_neither_the_log_nor_programs_that_start() {
    let Some(stage) = Stage::set(&["gcc", "setpriv"]) else { return };
    let Some(place) = Place::new(&stage) else { return };
    let flood = place.path().join("notes");
    support::copy_program(stage.compile("notes", &[]), &flood);
    let script = "while [ ! -e $0 ]; do /bin/true || exit 1; done; echo went on";
    let end = place.path().join("end");
    let registry = place.path().join("r");
    let mut command = stage.run(&["--local", "32M"], &["sh", "-c", script, end.to_str().unwrap()]);
    let mut run = Running::start(command.env("SPILLWAY_RUNTIME_DIRECTORY", &registry));
    let socket = run.wait_until("the socket for notes", || notes_socket(&registry));
    let said = support::run(Command::new("setpriv").args(STRANGER).arg(&flood).arg(&socket).arg("3")).done("the flood");
    let taken: u64 = said.text().split_whitespace().next().unwrap().parse().unwrap();
    assert!(taken > 1000, "the kernel takes them, and throws them away: {taken}");
    File::create(&end).unwrap();
    let said = run.end().done("the run");
    assert_eq!(said.text(), "went on\n");
    assert!(said.errors.len() < 10_000, "{} bytes: {}", said.errors.len(), &said.errors[..2000]);
}

/// The case lock-holder, with a stranger that opened the lock of a former version while it could.
#[test]
fn a_lock_that_a_stranger_holds_is_told_and_a_signal_ends_the_wait() {
    let Some(stage) = Stage::set(&["flock", "setpriv", "sleep"]) else { return };
    if !support::is_root() {
        return skip("root");
    }
    let place = support::registry_directory();
    fs::set_permissions(place.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let registry = place.path().join("r");
    fs::create_dir(&registry).unwrap();
    fs::set_permissions(&registry, fs::Permissions::from_mode(0o755)).unwrap();
    let lock = registry.join("lock");
    File::create(&lock).unwrap();
    fs::set_permissions(&lock, fs::Permissions::from_mode(0o644)).unwrap();
    let mut holder = Command::new("setpriv");
    holder.args(STRANGER).args(["flock", "--no-fork", "-x"]).arg(&lock).args(["sleep", "1000"]);
    let holder = Running::start(&mut holder);
    support::wait_until("the lock to be held", || {
        let number = format!(":{} ", fs::metadata(&lock).unwrap().ino());
        fs::read_to_string("/proc/locks").unwrap().lines().any(|line| line.contains(&number)).then_some(())
    });
    let run = || {
        let mut command = stage.run(&["--local", "32M"], &["true"]);
        command.env("SPILLWAY_RUNTIME_DIRECTORY", &registry);
        command
    };
    let said = support::run(&mut run());
    assert_eq!(said.status.code(), Some(1), "{}", said.errors);
    let name = format!("process {} (", holder.pid());
    assert!(said.errors.contains(&name) && said.errors.contains("of user 65534"), "{}", said.errors);
    assert_eq!(fs::metadata(&lock).unwrap().mode() & 0o777, 0o600, "no other stranger can");

    let waiting = Running::start(&mut run());
    support::wait_until("the command to open the lock", || {
        let opened = fs::read_dir(format!("/proc/{}/fd", waiting.pid())).into_iter().flatten().flatten();
        opened.map(|item| item.path()).any(|path| fs::read_link(path).is_ok_and(|to| to == lock)).then_some(())
    });
    waiting.signal("TERM");
    let said = waiting.end();
    assert_eq!(said.status.signal(), Some(15), "{}: {}", said.status, said.errors);
    drop(holder);
    support::run(&mut run()).done("the run, now that the lock is free");
}

/// Sixteen connections of each of twenty users, which say nothing until the file is there.
const SILENT: &str = "
import os, socket, sys, time
kept = []
for user in range(70000, 70020):
    os.seteuid(user)
    for _ in range(16):
        kept.append(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        kept[-1].connect(sys.argv[1])
    os.seteuid(0)
open(sys.argv[2], 'w').close()
while not os.path.exists(sys.argv[3]): time.sleep(0.01)
";

#[test]
fn slow_greetings_give_way() {
    let Some(stage) = Stage::set(&["/usr/bin/python3", "setpriv"]) else { return };
    let Some(place) = Place::new(&stage) else { return };
    let (full, end) = (place.path().join("full"), place.path().join("end"));
    let script =
        "while [ ! -e $0 ]; do sleep 0.01; done; setpriv --reuid=65534 --regid=65534 --clear-groups true; echo went on";
    let registry = place.path().join("r");
    let mut command = stage.run(&["--local", "32M"], &["sh", "-c", script, full.to_str().unwrap()]);
    let mut run = Running::start(command.env("SPILLWAY_RUNTIME_DIRECTORY", &registry));
    let socket = run.wait_until("the socket for programs", || notes_socket(&registry)).with_extension("");
    let mut silent = Command::new("/usr/bin/python3");
    silent.args(["-c", SILENT]).args([&socket, &full, &end]);
    let silent = Running::start(&mut silent);
    let said = run.end().done("the run");
    File::create(&end).unwrap();
    silent.end().done("the silent ones");
    assert_eq!(said.text(), "went on\n");
    assert!(said.errors.contains("it is slow to say hello"), "{}", said.errors);
}

/// Starts a stranger's process that holds the lock of its own memory, as long as the value lives. Its program has the
/// name of ours, and the process that of one that `doctor` looks for.
fn holder(stage: &Stage) -> Running {
    let directory = stage.disk().join("stranger");
    fs::create_dir(&directory).unwrap();
    let program = directory.join("spillway");
    support::copy_program(stage.compile("holds_its_memory", &[]), &program);
    let (mount_point, says) = (directory.join("mount"), directory.join("says"));
    fs::create_dir(&mount_point).unwrap();
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private"]).arg(&program).arg(&mount_point).arg("65534").arg(&says);
    let mut holder = Running::start(&mut command);
    holder.wait_until("the memory to be held", || fs::read(&says).is_ok_and(|said| !said.is_empty()).then_some(()));
    holder
}

#[test]
fn a_stranger_that_holds_its_own_memory_holds_no_command_up() {
    let Some(stage) = Stage::set(&["gcc", "unshare"]) else { return };
    if !support::is_root() {
        return skip("root");
    }
    let held = holder(&stage);
    for command in ["doctor", "uninstall-check", "status"] {
        // What it finds is another test's.
        support::run(&mut stage.spillway(&[command]));
    }
    support::run(&mut stage.run(&["--local", "32M"], &["true"])).done("a run");
    drop(held);
    stage.assert_clean();
}

#[test]
fn a_stranger_that_holds_its_own_memory_does_not_save_programs_of_a_dead_pager() {
    let Some(stage) = Stage::set(&["gcc", "unshare", "sleep"]) else { return };
    if !support::is_root() {
        return skip("root");
    }
    let (number, script) = (stage.disk().join("number"), "sleep 1000 & echo $! > $0; wait");
    let mut run = Running::start(&mut stage.run(&["--local", "32M"], &["sh", "-c", script, number.to_str().unwrap()]));
    let child: u32 = run.wait_until("a child", || fs::read_to_string(&number).ok()?.trim().parse().ok());
    let held = holder(&stage);
    run.signal("KILL");
    support::wait_until("its end", || support::processes::is_gone(child).then_some(()));
    support::wait_until("the run to be taken down", || stage.items("run").is_empty().then_some(()));
    drop((held, run));
    stage.assert_clean();
}

/// The case stats-late.
#[test]
fn figures_that_cannot_be_written_are_told_before_the_program_or_change_nothing() {
    let Some(stage) = Stage::set(&[]) else { return };
    let run = |file: &Path| {
        let mut command = stage.spillway(&["run", "--via", "pager", "--local", "32M", "--stats"]);
        support::run(command.arg(file).args(["--summary", "--", "sh", "-c", "echo worked; exit 3"]))
    };
    let precious = stage.disk().join("precious");
    fs::write(&precious, "kept").unwrap();
    let link = stage.disk().join("link");
    symlink(&precious, &link).unwrap();
    let mut refused = vec![PathBuf::from("/no/such/x"), stage.disk().to_owned()];
    if support::is_root() {
        std::os::unix::fs::lchown(&link, Some(65534), None).unwrap();
        let other = stage.disk().join("other");
        fs::write(&other, "kept").unwrap();
        std::os::unix::fs::chown(&other, Some(65534), None).unwrap();
        refused.extend([link, other]);
    }
    for file in refused {
        let said = run(&file);
        assert_eq!((said.status.code(), said.text().as_str()), (Some(1), ""), "{}", said.errors);
        assert!(said.errors.contains("--stats"), "{}", said.errors);
    }
    assert_eq!(fs::read(&precious).unwrap(), b"kept");
    let said = run(Path::new("/dev/full"));
    assert_eq!((said.status.code(), said.text().as_str()), (Some(3), "worked\n"), "{}", said.errors);
    assert!(said.errors.contains("cannot be written to /dev/full"), "{}", said.errors);
    let file = stage.disk().join("figures");
    assert_eq!(run(&file).status.code(), Some(3));
    assert!(fs::read_to_string(&file).unwrap().contains("wall_seconds"));
    stage.assert_clean();
}

/// Makes a dump of a process, which another process lets have one, and looks for `secret` in all files beside it.
fn assert_no_dump_with(process: u32, directory: &Path, secret: &[u8]) {
    support::run(Command::new("prlimit").args(["--core=unlimited", "--pid", &process.to_string()])).done("prlimit");
    support::signal(process, "ABRT");
    support::wait_until("its end", || support::processes::is_gone(process).then_some(()));
    for item in fs::read_dir(directory).unwrap().flatten().filter(|item| item.file_name() != "key") {
        let Ok(content) = fs::read(item.path()) else { continue };
        let has = content.windows(secret.len()).any(|window| window == secret);
        assert!(!has, "{} has the cluster's key", item.path().display());
    }
}

#[test]
fn dumps_of_donors_and_pagers_have_no_key() {
    let Some(stage) = Stage::set(&["prlimit"]) else { return };
    let directory = stage.disk().join("cores");
    fs::create_dir(&directory).unwrap();
    let key = directory.join("key");
    let digits = "5eC7e7ab".repeat(8).to_lowercase();
    fs::write(&key, format!("{digits}\n")).unwrap();
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    let secret: Vec<u8> =
        (0..32).map(|byte| u8::from_str_radix(&digits[2 * byte..2 * byte + 2], 16).unwrap()).collect();
    // In a sandbox it could make no file, whatever is in it.
    let options = ["donate", "--name", "one", "--sandbox", "off", "--memory", "64M", "--headroom", "16M", "--json"];
    let mut donor = stage.spillway(&options);
    donor.args(["--listen", "127.0.0.1:0", "--slab-size", "4M", "--key"]).arg(&key).current_dir(&directory);
    let mut donor = Running::start(&mut donor);
    let address = donor.wait_until("its address", || {
        let report = stage.items("donor").first()?.read().ok()?;
        report.donor()?.addresses.iter().map(ToString::to_string).find(|text| text.starts_with("127."))
    });
    let mut run = stage.spillway(&["run", "--via", "pager", "--local", "32M", "--donor", &address, "--key"]);
    run.arg(&key).args(["--", "sh", "-c", "echo started; ulimit -c; cat /proc/self/coredump_filter; exec sleep 1000"]);
    let run = Running::start(run.current_dir(&directory));
    support::wait_until("the run", || stage.run_now().map(drop));
    let limits = fs::read_to_string(format!("/proc/{}/limits", run.pid())).unwrap();
    let core = limits.lines().find(|line| line.starts_with("Max core file size")).unwrap();
    assert!(["0", "1"].contains(&core.split_whitespace().nth(4).unwrap()), "{core}");
    assert_no_dump_with(run.pid(), &directory, &secret);
    drop(run);
    assert_no_dump_with(donor.pid(), &directory, &secret);
}
