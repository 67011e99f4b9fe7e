//! What the pager needs of the kernel and the user, one function for each capability.

use super::checks::{Check, State, Way};
use crate::machine::system::System;
use crate::machine::user_faults::{self, UserFaults};

/// `UFFDIO_MOVE`, by which pages leave a program, is in Linux 6.8; `PAGEMAP_SCAN`, by which they are found, in 6.7.
const KERNEL_MIN: (u32, u32) = (6, 8);

/// The command that gives everybody a full userfaultfd until the next boot.
const ALLOW: &str = "sudo sysctl vm.unprivileged_userfaultfd=1";

/// Locked memory that the pager asks for: its pool and tables. With less it works too, but may itself be paged out.
const LOCKED_BYTES_WANTED: u64 = 64 << 20;

fn good(name: &'static str, detail: impl Into<String>) -> Check {
    Check { name, needed_for: Way::Pager, state: State::Good, detail: detail.into(), mend: None }
}

fn lacking(name: &'static str, state: State, detail: impl Into<String>, mend: &str) -> Check {
    Check { name, needed_for: Way::Pager, state, detail: detail.into(), mend: Some(mend.to_owned()) }
}

/// Every capability, those that it cannot do without first.
pub(crate) fn all(system: &System) -> Vec<Check> {
    vec![user_faults(system), kernel(system), tracing(system), memory_locking(system)]
}

fn user_faults(system: &System) -> Check {
    let name = "userfaultfd";
    match user_faults::look(system) {
        UserFaults::Device => good(name, "/dev/userfaultfd can be opened"),
        UserFaults::Everybody => good(name, "allowed to everybody (vm.unprivileged_userfaultfd is 1)"),
        UserFaults::Root => good(name, "allowed to root"),
        UserFaults::UserModeOnly => lacking(
            name,
            State::Bad,
            "only for faults of user mode, which is not enough: a system call that reads or writes memory which is elsewhere would fail. \
             For good, instead of until the next boot, packaging/udev has a rule for /dev/userfaultfd",
            ALLOW,
        ),
        UserFaults::Absent => lacking(
            name,
            State::Bad,
            "this kernel was built without it: no paging without root",
            "apt-get install linux-image-amd64",
        ),
    }
}

fn kernel(system: &System) -> Check {
    let name = "kernel for the pager";
    match system.kernel_version() {
        Some(version) if version >= KERNEL_MIN => good(name, "moves pages (6.8) and finds them (6.7)"),
        Some((major, minor)) => lacking(
            name,
            State::Bad,
            format!("Linux {major}.{minor} is older than 6.8: no UFFDIO_MOVE"),
            "apt-get install linux-image-amd64",
        ),
        None => lacking(name, State::Optional, "its version cannot be understood", "uname -r"),
    }
}

/// Yama lets parents trace their children at 0 and 1 (kernel document `admin-guide/LSM/Yama.rst`).
fn tracing(system: &System) -> Check {
    let name = "ptrace";
    match system.text("/proc/sys/kernel/yama/ptrace_scope").as_deref() {
        None | Some("0" | "1") => good(name, "a program's parent may trace it"),
        Some("2") if system.user_is_root() => good(name, "root may trace"),
        Some(scope) => lacking(
            name,
            State::Optional,
            format!(
                "kernel.yama.ptrace_scope is {scope}: programs get their paging thread when they start, not when memory is short"
            ),
            "sudo sysctl kernel.yama.ptrace_scope=1",
        ),
    }
}

fn memory_locking(system: &System) -> Check {
    let name = "memlock for the pager";
    match rustix::process::getrlimit(rustix::process::Resource::Memlock).current {
        _ if system.user_is_root() => good(name, "root may lock all memory"),
        Some(bytes) if bytes < LOCKED_BYTES_WANTED => lacking(
            name,
            State::Optional,
            format!("{} may be locked: the pager itself may be swapped out", crate::size::human(bytes)),
            "ulimit -l unlimited",
        ),
        _ => good(name, "enough may be locked"),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::doctor::checks::hindrance;

    fn system(files: &[(&str, &str)], root: bool) -> (tempfile::TempDir, System) {
        let directory = tempfile::tempdir().unwrap();
        let system = System::of_files(directory.path().to_path_buf(), root);
        for (path, text) in files {
            let path = system.path(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        (directory, system)
    }

    const NEW: (&str, &str) = ("/proc/sys/kernel/osrelease", "6.8.0\n");
    const FORBIDDEN: (&str, &str) = ("/proc/sys/vm/unprivileged_userfaultfd", "0\n");
    const ALLOWED: (&str, &str) = ("/proc/sys/vm/unprivileged_userfaultfd", "1\n");

    #[test]
    fn a_user_who_lacks_only_the_permission_is_given_the_command() {
        let (_directory, system) = system(&[NEW, FORBIDDEN], false);
        let checks = all(&system);
        let hindrance = hindrance(&checks, Way::Pager).unwrap();
        assert_eq!(hindrance.mend.as_deref(), Some(ALLOW));
        assert!(hindrance.detail.contains("system call"), "{}", hindrance.detail);
    }

    #[test]
    fn with_the_permission_nothing_hinders() {
        for files in [&[NEW, ALLOWED][..], &[NEW, FORBIDDEN, ("/dev/userfaultfd", "")]] {
            let (_directory, system) = system(files, false);
            assert!(hindrance(&all(&system), Way::Pager).is_none());
        }
        let (_directory, system) = system(&[NEW, FORBIDDEN], true);
        assert!(hindrance(&all(&system), Way::Pager).is_none());
    }

    #[test]
    fn old_kernels_are_named() {
        let (_directory, system) = system(&[("/proc/sys/kernel/osrelease", "6.6.1\n"), ALLOWED], false);
        let checks = all(&system);
        assert!(hindrance(&checks, Way::Pager).unwrap().detail.contains("6.8"));
    }

    #[test]
    fn a_strict_kernel_only_costs_a_thread() {
        let scope = |scope, root| {
            let (_directory, system) = system(&[("/proc/sys/kernel/yama/ptrace_scope", scope)], root);
            tracing(&system).state
        };
        assert_eq!((scope("1", false), scope("2", false)), (State::Good, State::Optional));
        assert_eq!((scope("2", true), scope("3", true)), (State::Good, State::Optional));
    }
}
