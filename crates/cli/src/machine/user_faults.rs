//! Whether this user may have all page faults of a program handled by another process (userfaultfd).
//!
//! The kernel has two kinds: a full userfaultfd, and one for faults of user mode only. The second is there for everybody and does
//! not suffice: a `read` into a page that is not there is a fault of the kernel, and it would fail instead of waiting.
//! Full ones are given to `CAP_SYS_PTRACE`, to everybody if `vm.unprivileged_userfaultfd` is 1, and to whoever can open
//! `/dev/userfaultfd` (kernel document `admin-guide/mm/userfaultfd.rst`).

use std::fs;

use crate::machine::system::System;

/// The device whose permissions say who may have a full userfaultfd; Linux 6.1 and later.
const DEVICE: &str = "/dev/userfaultfd";

/// The switch that lets everybody have one.
const SWITCH: &str = "/proc/sys/vm/unprivileged_userfaultfd";

/// What the kernel gives this user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UserFaults {
    /// A full userfaultfd, because `/dev/userfaultfd` can be opened.
    Device,
    /// A full one, because everybody may have it.
    Everybody,
    /// A full one, because the user is root.
    Root,
    /// Only one for faults of user mode.
    UserModeOnly,
    /// The kernel was built without it.
    Absent,
}

/// Looks.
pub(crate) fn look(system: &System) -> UserFaults {
    let switch = system.text(SWITCH);
    if fs::File::options().read(true).write(true).open(system.path(DEVICE)).is_ok() {
        return UserFaults::Device;
    }
    match switch.as_deref() {
        None => UserFaults::Absent,
        _ if system.user_is_root() => UserFaults::Root,
        Some("1") => UserFaults::Everybody,
        Some(_) => UserFaults::UserModeOnly,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(device: bool, switch: Option<&str>, root: bool) -> UserFaults {
        let directory = tempfile::tempdir().unwrap();
        let system = System::of_files(directory.path().to_path_buf(), root);
        for (path, text) in device.then_some((DEVICE, "")).into_iter().chain(switch.map(|text| (SWITCH, text))) {
            fs::create_dir_all(system.path(path).parent().unwrap()).unwrap();
            fs::write(system.path(path), text).unwrap();
        }
        look(&system)
    }

    #[test]
    fn each_way_to_a_full_userfaultfd_is_seen() {
        assert_eq!(found(true, Some("0"), false), UserFaults::Device);
        assert_eq!(found(false, Some("1"), false), UserFaults::Everybody);
        assert_eq!(found(false, Some("0"), true), UserFaults::Root);
    }

    #[test]
    fn half_of_one_is_not_taken_for_a_whole() {
        assert_eq!(found(false, Some("0"), false), UserFaults::UserModeOnly);
        assert_eq!(found(false, None, false), UserFaults::Absent);
        assert_eq!(found(false, None, true), UserFaults::Absent);
    }
}
