//! What the pager needs of the kernel and the user, one function for each capability.

use spillway_report::run::Way;
use spillway_sys::proc_text::fields;
use spillway_sys::userfaultfd::Features;
use spillway_sys::userfaultfd::access::{Access, Obstacle};

use super::check::{Check, State};
use crate::system::System;

/// The command for what only another kernel has: the newest of Debian 12, whose `linux-image-amd64` is 6.1. Later
/// releases have it.
const NEWER_KERNEL: &str = "sudo apt-get install linux-image-6.12-amd64";

fn good(name: &'static str, detail: impl Into<String>) -> Check {
    Check::good(Way::Pager, name, detail)
}

fn lacking(name: &'static str, state: State, detail: impl Into<String>, mend: &str) -> Check {
    Check::lacking(Way::Pager, name, state, detail, mend)
}

/// Every capability, those that it cannot do without first.
pub(crate) fn all(system: &System) -> Vec<Check> {
    let access = system.user_faults().unwrap_or(NOTHING);
    vec![user_faults(access, system), library(system), forks(access), tracing(system)]
}

/// What is left when the kernel did not even answer.
const NOTHING: Access = Access { scope: None, features: Features(0), follows_forks: false, scans_pages: false };

fn user_faults(access: Access, system: &System) -> Check {
    let name = "userfaultfd";
    if !spillway_stub::IS_SUPPORTED {
        return lacking(name, State::Bad, "programs can be paged on Linux on x86-64 only", "uname -m");
    }
    let Some(obstacle) = access.obstacle() else {
        return good(name, "all faults of a program can be served, and its pages found and moved");
    };
    if obstacle == Obstacle::Absent && is_filtered(system) {
        return Check { mend: None, ..lacking(name, State::Bad, SANDBOX, "") };
    }
    let detail = match obstacle {
        // The permission can be had for good, too.
        Obstacle::UserModeOnly => format!(
            "{obstacle}: the kernel gives this user only faults of user mode. The command gives every user all of them until the next \
             boot; packaging/udev has a rule that gives them to a group for good"
        ),
        _ => obstacle.to_string(),
    };
    lacking(name, State::Bad, detail, obstacle.mend().unwrap_or(NEWER_KERNEL))
}

/// Programs load a library from the directory of Spillway's sockets.
fn library(system: &System) -> Check {
    match system.library_obstacle() {
        None => good("library", "programs can load the pager's library"),
        Some(obstacle) => lacking(
            "library",
            State::Bad,
            format!("{obstacle}; set it to another directory, for all commands"),
            "export SPILLWAY_RUNTIME_DIRECTORY=/var/lib/spillway-run",
        ),
    }
}

/// No command mends that from inside.
const SANDBOX: &str = "userfaultfd(2) is refused, and this process has a filter of system calls (seccomp), as sandboxes and containers have; \
                       start it outside, or let the filter allow that call";

/// Whether a filter of system calls holds for this process, which it has from the process that started it (proc(5)).
fn is_filtered(system: &System) -> bool {
    fields::number_of(&system.text("/proc/self/status").unwrap_or_default(), "Seccomp") == Some(2)
}

/// What is told of forks is decided for the process that serves the faults, so a capability of our own file is enough.
fn forks(access: Access) -> Check {
    let name = "forks under the pager";
    if access.follows_forks {
        return good(name, "the kernel tells of them");
    }
    lacking(
        name,
        State::Optional,
        "the kernel tells of them only to CAP_SYS_PTRACE, so a fork waits until all pages of its program are back; threads, vfork, posix_spawn and exec do not",
        "sudo setcap cap_sys_ptrace+ep $(command -v spillway)",
    )
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

#[cfg(test)]
mod tests {
    use std::fs;

    use spillway_sys::userfaultfd::Scope;

    use super::*;
    use crate::checks::hindrance;

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

    const FULL: Access = Access {
        scope: Some(Scope::Everything),
        features: Features(Features::MOVE.0 | Features::WRITE_PROTECT.0),
        follows_forks: true,
        scans_pages: true,
    };

    #[test]
    fn a_user_that_lacks_only_the_permission_is_given_the_command() {
        let (_directory, system) = system(&[], false);
        let check = user_faults(Access { scope: Some(Scope::UserModeOnly), ..FULL }, &system);
        assert!(check.state == State::Bad && check.mend.unwrap().contains("vm.unprivileged_userfaultfd=1"));
        assert!(check.detail.contains("system calls") && check.detail.contains("packaging/udev"), "{}", check.detail);
    }

    #[test]
    fn with_the_permission_nothing_hinders() {
        let (_directory, system) = system(&[], false);
        assert_eq!(hindrance(&all(&system), Way::Pager).unwrap().name, "userfaultfd");
        let system = system.with_user_faults(FULL);
        assert!(hindrance(&all(&system), Way::Pager).is_none());
    }

    #[test]
    fn a_directory_from_which_no_library_is_loaded_hinders() {
        let (_directory, system) = system(&[], false);
        let system = system.with_user_faults(FULL).with_library_obstacle("/run/x is mounted noexec");
        let all = all(&system);
        let check = hindrance(&all, Way::Pager).unwrap();
        assert!(check.detail.contains("/run/x is mounted noexec") && check.mend.is_some(), "{check:?}");
    }

    #[test]
    fn forks_without_a_listener_are_no_obstacle() {
        assert_eq!(forks(FULL).state, State::Good);
        let check = forks(Access { follows_forks: false, ..FULL });
        assert!(check.state == State::Optional && check.mend.unwrap().contains("cap_sys_ptrace"));
    }

    #[test]
    fn old_kernels_are_named() {
        let (_directory, system) = system(&[], false);
        let detail = |access: Access| user_faults(access, &system).detail;
        assert!(detail(Access { features: Features::WRITE_PROTECT, ..FULL }).contains("6.8"));
        assert!(detail(Access { scans_pages: false, ..FULL }).contains("6.7"));
        assert!(detail(NOTHING).contains("sandbox"));
    }

    #[test]
    fn no_other_kernel_is_advised_in_a_sandbox() {
        for (mode, is_sandbox) in [("0", false), ("2", true)] {
            let status = format!("Name:\tx\nSeccomp:\t{mode}\nSeccomp_filters:\t1\n");
            let (_directory, system) = system(&[("/proc/self/status", &status)], false);
            let check = user_faults(NOTHING, &system);
            assert_eq!((check.mend.is_none(), check.detail.contains("seccomp")), (is_sandbox, is_sandbox), "{mode}");
            assert_eq!(check.state, State::Bad);
            // It is there, so something else is lacking.
            assert!(user_faults(Access { scans_pages: false, ..FULL }, &system).mend.is_some());
        }
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
