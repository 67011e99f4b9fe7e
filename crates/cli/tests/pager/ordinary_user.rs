//! The pager for a user without any right but that to `/dev/userfaultfd`, and with the one capability that `doctor`
//! names to him.
//!
//! The test makes a user's view of the machine: a mount namespace of its own, in which the device's node may be
//! opened by every user. Nothing of the machine itself is changed.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::both_ways::programs::MIB;
use crate::both_ways::shares::{assert_held, assert_share};
use crate::both_ways::stage::Stage;
use crate::support::{self, skip};

/// `nobody`, by convention.
const USER: u32 = 65534;

/// A directory that the user may write to, with the program in it: where the tests were built he may not look.
pub(crate) struct Place {
    directory: tempfile::TempDir,
    node: PathBuf,
}

impl Place {
    /// Makes it, or says what is missing.
    pub(crate) fn new(stage: &Stage) -> Option<Self> {
        let directory = support::registry_directory();
        let own = directory.path();
        fs::set_permissions(own, fs::Permissions::from_mode(0o1777)).unwrap();
        support::copy_program(env!("CARGO_BIN_EXE_spillway"), own.join("spillway"));
        // On a disk, because memory file systems often allow no device nodes.
        let node = stage.disk().join("userfaultfd");
        let device = fs::metadata("/dev/userfaultfd").ok().filter(|device| device.file_type().is_char_device());
        let Some(device) = device.filter(|_| support::is_root()) else {
            skip("root, and /dev/userfaultfd");
            return None;
        };
        let kind = rustix::fs::FileType::CharacterDevice;
        rustix::fs::mknodat(rustix::fs::CWD, &node, kind, 0o666.into(), device.rdev()).unwrap();
        fs::set_permissions(&node, fs::Permissions::from_mode(0o666)).unwrap();
        Some(Self { directory, node })
    }

    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    /// A program of the place as the user, for whom the device's node has other permissions than for other users.
    fn as_user(&self, program: &str, arguments: &[&str]) -> Command {
        let become_user = format!("setpriv --reuid={USER} --regid={USER} --clear-groups");
        let script = format!("mount --bind \"$0\" /dev/userfaultfd && exec {become_user} -- \"$@\"");
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", &script]).arg(&self.node).arg(self.path().join(program)).args(arguments);
        command.env("SPILLWAY_RUNTIME_DIRECTORY", self.path().join("r")).current_dir("/");
        command
    }

    /// `spillway run` as the user.
    pub(crate) fn run(&self, options: &[&str], program: &[&str]) -> Command {
        let mut command = self.as_user("spillway", &["run", "--stats"]);
        command.arg(self.path().join("statistics.json")).args(options).arg("--").args(program);
        command
    }

    /// What `doctor` tells the user of forks.
    fn doctor_on_forks(&self) -> Value {
        let said = support::run(&mut self.as_user("spillway", &["doctor", "--json"]));
        let report: Value = serde_json::from_slice(&said.output).unwrap_or_else(|_| panic!("{}", said.errors));
        let checks = report["checks"].as_array().unwrap();
        checks.iter().find(|check| check["name"] == "forks under the pager").unwrap().clone()
    }

    /// Gives programs of the place capabilities by a command; true if that went well.
    pub(crate) fn set_capabilities(&self, command: &str) -> bool {
        let path = format!("{}:/usr/sbin:/sbin:{}", self.path().display(), std::env::var("PATH").unwrap());
        support::run(Command::new("sh").args(["-c", command]).env("PATH", path)).status.success()
    }

    /// Whether a program whose file has `CAP_SYS_PTRACE` has it too, which file systems, mounts, containers and
    /// kernels may forbid.
    pub(crate) fn grants_capabilities(&self) -> bool {
        support::copy_program("/bin/cat", self.path().join("cat"));
        let granted = self.set_capabilities("setcap cap_sys_ptrace+ep $(command -v cat)");
        granted
            && support::run(&mut self.as_user("cat", &["/proc/self/status"]))
                .text()
                .contains("CapEff:\t0000000000080000")
    }

    pub(crate) fn statistics(&self) -> Value {
        serde_json::from_slice(&fs::read(self.path().join("statistics.json")).unwrap()).unwrap()
    }
}

/// A program of the stage, where the user may execute it.
pub(crate) fn program(stage: &Stage, place: &Place, name: &str) -> String {
    let target = place.path().join(name);
    support::copy_program(stage.compile(name, &["-pthread", "-lutil", "-ldl"]), &target);
    target.to_str().unwrap().to_owned()
}

#[test]
fn a_user_with_userfaultfd_needs_no_root() {
    let Some(stage) = Stage::set(&["gcc", "unshare", "setpriv"]) else { return };
    let Some(place) = Place::new(&stage) else { return };
    let exerciser = program(&stage, &place, "exerciser");
    for local in ["50%", "25%"] {
        let options = ["--local", local, "--lend", "384M", "--slab-size", "4M", "--summary"];
        let program = [exerciser.as_str(), "mremap", MIB, "/nonexistent"];
        assert_held(|| {
            let said = support::run(&mut place.run(&options, &program)).done(local);
            assert_eq!(said.text(), "mremap 20480 pages as written\n");
            // He was not asked which way: there is one for him, and he is told why.
            assert!(said.errors.contains("by the pager (no swap device: not root"), "{}", said.errors);
            let statistics = place.statistics();
            assert_eq!(statistics["memory"]["via"]["way"], "pager");
            assert_share(&statistics);
            statistics
        });
    }
    // All that is left is the place of his runs, for him alone.
    let left: Vec<_> = fs::read_dir(place.path().join("r")).unwrap().flatten().map(|file| file.file_name()).collect();
    assert!(left.iter().all(|name| name == "lock"), "{left:?}");
    let metadata = fs::metadata(place.path().join("r")).unwrap();
    assert_eq!((metadata.uid(), metadata.permissions().mode() & 0o777), (USER, 0o700));
}

#[test]
fn with_the_capability_that_doctor_names_a_users_programs_may_fork() {
    let Some(stage) = Stage::set(&["gcc", "unshare", "setpriv", "setcap"]) else { return };
    let Some(place) = Place::new(&stage) else { return };
    if !place.grants_capabilities() {
        return skip("capabilities by files (CAP_SYS_PTRACE in the bounding set, a file system that has them)");
    }
    let advice = place.doctor_on_forks();
    let command = advice["mend"].as_str().and_then(|mend| mend.strip_prefix("sudo ")).unwrap();
    assert!(place.set_capabilities(command), "{command}");
    assert_eq!(place.doctor_on_forks()["state"], "good");
    let exerciser = program(&stage, &place, "exerciser");
    for local in ["50%", "25%"] {
        let options = ["--via", "pager", "--local", local, "--lend", "384M", "--slab-size", "4M"];
        let said = support::run(&mut place.run(&options, &[&exerciser, "fork", MIB, "/nonexistent"])).done(local);
        assert_eq!(said.text(), "fork 20480 pages as written\n");
        let statistics = place.statistics();
        assert_share(&statistics);
        // The capability is the pager's; its programs have the user's rights.
        let rights = ["sh", "-c", "grep CapEff: /proc/self/status && exec grep CapPrm: /proc/self/status"];
        let said = support::run(&mut place.run(&options, &rights)).done("rights");
        let masks: Vec<_> =
            said.text().lines().map(|line| line.split_whitespace().nth(1).unwrap().to_owned()).collect();
        assert_eq!(masks, ["0000000000000000"; 2]);
    }
}

#[test]
fn a_user_without_the_right_is_told_the_command() {
    let Some(stage) = Stage::set(&["gcc"]) else { return };
    let Some(place) = Place::new(&stage) else { return };
    if fs::read_to_string("/proc/sys/vm/unprivileged_userfaultfd").is_ok_and(|text| text.trim() != "0") {
        return skip("a kernel that forbids userfaultfd to users");
    }
    for way in ["auto", "pager"] {
        let mut command = Command::new(place.path().join("spillway"));
        command.args(["run", "--via", way, "--", "true"]).uid(USER).gid(USER).current_dir("/");
        let said = support::run(command.env("SPILLWAY_RUNTIME_DIRECTORY", place.path().join("r")));
        assert_eq!(said.status.code(), Some(1), "{}", said.errors);
        for part in ["vm.unprivileged_userfaultfd=1", "sudo spillway run"] {
            assert!(said.errors.contains(part), "{way}: {}", said.errors);
        }
    }
}

/// Installs a filter that answers userfaultfd(2) with an error, and becomes the program that is named behind it
/// (seccomp(2), bpf(2): load the call's number; if it is 323, return the error; else allow it).
const SANDBOX: &str = "
import ctypes, os, struct, sys
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, FILTER = 38, 22, 2
LOAD, EQUAL, RETURN, ALLOW, ERROR = 0x20, 0x15, 0x06, 0x7fff0000, 0x00050000
steps = [(LOAD, 0, 0, 0), (EQUAL, 0, 1, 323), (RETURN, 0, 0, ERROR | int(sys.argv[1])), (RETURN, 0, 0, ALLOW)]
code = ctypes.create_string_buffer(b''.join(struct.pack('HBBI', *step) for step in steps))
program = ctypes.create_string_buffer(struct.pack('HxxxxxxP', len(steps), ctypes.addressof(code)))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
assert libc.prctl(PR_SET_SECCOMP, FILTER, program, 0, 0) == 0
os.execv(sys.argv[2], sys.argv[2:])
";

#[test]
fn a_user_in_a_sandbox_that_forbids_it_is_not_sent_for_another_kernel() {
    let Some(stage) = Stage::set(&["/usr/bin/python3"]) else { return };
    let Some(place) = Place::new(&stage) else { return };
    for error in [rustix::io::Errno::PERM, rustix::io::Errno::NOSYS] {
        for way in ["auto", "pager"] {
            let mut command = Command::new("/usr/bin/python3");
            command.args(["-c", SANDBOX, &error.raw_os_error().to_string()]).arg(place.path().join("spillway"));
            command.args(["run", "--via", way, "--", "true"]).uid(USER).gid(USER).current_dir("/");
            let said = support::run(command.env("SPILLWAY_RUNTIME_DIRECTORY", place.path().join("r")));
            assert_eq!(said.status.code(), Some(1), "{}", said.errors);
            for part in ["seccomp", "start it outside", "sudo spillway run"] {
                assert!(said.errors.contains(part), "{way}, {error}: {}", said.errors);
            }
            assert!(!said.errors.contains("apt-get") && !said.errors.contains("sysctl"), "{}", said.errors);
        }
    }
}
