//! The names by which mounts and loop devices tell who made them: `spillway:PID.START:NAME`.

use std::fmt;
use std::io;
use std::str::FromStr;

use spillway_sys::fuse::FILESYSTEM_TYPE;
use spillway_sys::proc_text::mounts::Mount;
use spillway_sys::proc_text::unescaped;
use spillway_sys::process::ProcessIdentity;

use crate::front_end::FrontEndError;
use crate::limits::NAME_LENGTH_MAX;

const PREFIX: &str = "spillway";

/// Who made a mount or a loop device, and for which device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ownership {
    /// The process that serves it.
    pub process: ProcessIdentity,
    /// The device's name.
    pub name: String,
}

/// A text that is no ownership of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a name that Spillway gives")]
pub struct NotOurs;

impl Ownership {
    /// This process, for the device `name`: letters, digits and dashes.
    pub fn of_this_process(name: &str) -> Result<Self, FrontEndError> {
        if !is_name(name) {
            return Err(FrontEndError::Invalid(format!(
                "'{name}' cannot name a device; use 1 to {NAME_LENGTH_MAX} letters, digits and dashes"
            )));
        }
        let process = ProcessIdentity::current().map_err(FrontEndError::system("cannot tell this process's start"))?;
        Ok(Self { process, name: name.to_owned() })
    }

    /// The maker of a mount; `None` for a mount that is none of ours, or not this user's. Users of `fusermount` choose
    /// source and type. The user is what the kernel keeps of the process that mounted.
    pub(crate) fn of_mount(mount: &Mount<'_>) -> Option<Self> {
        let is_own = mount.number_of_option("user_id") == Some(rustix::process::geteuid().as_raw().into());
        let is_ours = unescaped(mount.kind).eq(FILESYSTEM_TYPE.bytes()) && is_own;
        let source = is_ours.then(|| String::from_utf8(unescaped(mount.source).collect()).ok())?;
        source?.parse().ok()
    }

    /// Whether its process is gone.
    pub fn is_abandoned(&self) -> io::Result<bool> {
        Ok(!self.process.may_be_alive()?)
    }
}

fn is_name(name: &str) -> bool {
    (1..=NAME_LENGTH_MAX).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

impl fmt::Display for Ownership {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{PREFIX}:{}:{}", self.process, self.name)
    }
}

impl FromStr for Ownership {
    type Err = NotOurs;

    fn from_str(text: &str) -> Result<Self, NotOurs> {
        let rest = text.strip_prefix(PREFIX).and_then(|rest| rest.strip_prefix(':')).ok_or(NotOurs)?;
        let (process, name) = rest.split_once(':').ok_or(NotOurs)?;
        if !is_name(name) {
            return Err(NotOurs);
        }
        Ok(Self { process: process.parse().map_err(|_| NotOurs)?, name: name.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_name_survives_a_round_trip_and_fits_a_loop_device() {
        let name = "n".repeat(NAME_LENGTH_MAX);
        let mut ownership = Ownership::of_this_process(&name).unwrap();
        assert!(!ownership.is_abandoned().unwrap());
        assert_eq!(ownership.to_string().parse::<Ownership>().unwrap(), ownership);
        ownership.process = ProcessIdentity { pid: 1 << 22, start_ticks: 10 << 32 };
        assert!(ownership.to_string().len() <= 63, "{ownership}");
        assert!(ownership.is_abandoned().unwrap());
    }

    #[test]
    fn a_mount_is_its_users_whatever_its_source_says() {
        let of = |user: u32, kind: &str, source: &str| {
            let line = format!("36 35 0:52 / /x rw - {kind} {source} rw,user_id={user},group_id=0");
            Ownership::of_mount(&Mount::parse(line.as_bytes()).unwrap())
        };
        let user = rustix::process::geteuid().as_raw();
        assert_eq!(of(user, FILESYSTEM_TYPE, "spillway:1.2:x").unwrap().name, "x");
        assert_eq!(of(user + 1, FILESYSTEM_TYPE, "spillway:1.2:x"), None, "another user's");
        assert_eq!(of(user, "fuse.sshfs", "spillway:1.2:x"), None);
        assert_eq!(of(user, FILESYSTEM_TYPE, "spillway:1.2:x\\040rw,user_id=0"), None);
        assert_eq!(of(user + 1, FILESYSTEM_TYPE, "spillway:1.2:x,user_id=0"), None);
    }

    #[test]
    fn names_of_others_are_not_ours() {
        for text in ["", "spillway", "spillway:1.2", "spillway:1:a", "spillway:1.2:", "spillway:1.2:a/b", "other:1.2:a"]
        {
            assert_eq!(text.parse::<Ownership>(), Err(NotOurs), "{text}");
        }
        for name in ["", "a b", "../x", &"n".repeat(NAME_LENGTH_MAX + 1)] {
            assert!(matches!(Ownership::of_this_process(name), Err(FrontEndError::Invalid(_))), "{name}");
        }
    }
}
