//! What processes that other machines speak to give up once they have started.
//!
//! A donor's process gives up the most: other files, other programs, most system calls, and rights.
//!
//! A donor reads what strangers send. So a mistake in it must not give them this machine:
//! - *rights*: of a process of root, only that to lock memory stays;
//! - *files* (Landlock): the registry and its own sockets may be changed, system files and the key's directory read;
//! - *system calls* (seccomp): those in `calls`; another one fails with `EPERM`, which the log of audit does not
//!   show.
//!
//! Rights and files are restricted before the donor's threads start, because the kernel has them for each thread;
//! system calls afterwards, for all threads at once. Then the process tries what it must not be able to do, so that
//! `status` tells what is, and not what was meant.

mod calls;
mod denied_calls;

use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use landlock::{
    ABI, Access, AccessFs, BitFlags, CompatLevel, Compatible, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetError,
    RulesetStatus, path_beneath_rules,
};
use rustix::thread::{CapabilitySet, CapabilitySets};
use serde::{Deserialize, Serialize};
use spillway_console::failure::Failure;
use spillway_report::donor::SandboxReport;

/// The newest rights to files that are asked for; an older kernel restricts those that it knows.
const FILES_ABI: ABI = ABI::V5;

/// What a donor reads while it runs: memory and pressure, its group, the libraries and devices of RDMA, and what the
/// names of machines are looked up with.
const READ: [&str; 14] = [
    "/proc",
    "/sys",
    "/usr/lib",
    "/usr/lib64",
    "/lib",
    "/lib64",
    "/etc/ld.so.cache",
    "/etc/libibverbs.d",
    "/etc/hosts",
    "/etc/host.conf",
    "/etc/nsswitch.conf",
    "/etc/resolv.conf",
    "/run/systemd/resolve",
    "/dev/urandom",
];

/// What it writes besides its registry: its own settings, RDMA's devices.
const WRITTEN: [&str; 3] = ["/proc/self", RDMA_DEVICES, "/dev/null"];

/// The kernel makes the files of RDMA devices here.
const RDMA_DEVICES: &str = "/dev/infiniband";

/// Whether a donor is put into a sandbox.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SandboxChoice {
    /// As far as the kernel can; `status` says how far.
    #[default]
    Auto,
    /// Refuse to start without.
    On,
    /// For debugging.
    Off,
}

impl FromStr for SandboxChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "on" => Ok(Self::On),
            "off" => Ok(Self::Off),
            _ => Err(format!("'{text}' is no choice of a sandbox; write auto, on or off")),
        }
    }
}

impl std::fmt::Display for SandboxChoice {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            Self::Auto => "auto",
            Self::On => "on",
            Self::Off => "off",
        })
    }
}

/// How far a process is in its sandbox, for `status`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sandbox {
    /// `on`; `threads`, if the threads that serve others are in it and the rest of the process is not; `partly on`; or
    /// `off`.
    pub state: &'static str,
    /// Why it is not on, or not all of it.
    pub(crate) why: Vec<String>,
}

impl Sandbox {
    /// For `status`.
    pub fn report(&self) -> SandboxReport {
        SandboxReport { state: self.state.to_owned(), why: self.why.clone() }
    }

    /// None, for this reason.
    pub fn off(why: &str) -> Self {
        Self { state: "off", why: vec![why.to_owned()] }
    }

    /// What was put on, `missing` being what could not.
    fn of_missing(missing: Vec<String>, parts: usize) -> Self {
        let state = match missing.len() {
            0 => "on",
            count if count < parts => "partly on",
            _ => "off",
        };
        Self { state, why: missing }
    }

    /// For people.
    pub fn describe(&self) -> String {
        if self.why.is_empty() { self.state.to_owned() } else { format!("{} ({})", self.state, self.why.join("; ")) }
    }
}

/// What of a process is in its sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// All of it.
    Process,
    /// The threads that serve others: the process starts programs, which must not be in it.
    Threads,
}

/// Why a sandbox is one of threads.
const THREADS_ONLY: &str = "the threads that serve other machines; the agent itself starts programs";

/// Files that a process in a sandbox needs besides those that each one does.
#[derive(Clone, Debug, Default)]
pub struct Places {
    /// Directories in which files are made and removed.
    pub changed: Vec<PathBuf>,
    /// Directories in which sockets are made and removed.
    pub sockets: Vec<PathBuf>,
    /// Files and directories that are read.
    pub read: Vec<PathBuf>,
    /// The file that takes the process back into the memory group that it came from.
    pub group_to_return_to: Option<PathBuf>,
    /// The directory below which its own empty memory group is removed.
    pub groups: Option<PathBuf>,
}

/// A sandbox that is being put on.
pub struct Restricting {
    missing: Vec<String>,
}

/// Parts of a sandbox that can be missing, see the module text.
const PARTS: usize = 3;

impl Restricting {
    /// Files other than `places` are out of reach from here on, for this thread and those that it starts.
    pub fn files(places: &Places) -> Self {
        make_rdma_directory();
        let missing = match restrict_files(places) {
            Ok(RulesetStatus::FullyEnforced) => None,
            Ok(RulesetStatus::PartiallyEnforced) => {
                Some("this kernel's Landlock does not know all rights to files".to_owned())
            }
            Ok(RulesetStatus::NotEnforced) => {
                Some("files are not restricted: this kernel has no Landlock (add landlock to lsm=)".to_owned())
            }
            Err(error) => Some(format!("files are not restricted: {error}")),
        };
        Self { missing: missing.into_iter().collect() }
    }

    /// System calls are restricted from here on, for all threads or for this one and those that it starts; then all of
    /// it is tried out.
    pub fn calls(mut self, reach: Reach) -> Sandbox {
        let restricted = match reach {
            Reach::Process => calls::restrict_process(),
            Reach::Threads => calls::restrict_thread(),
        };
        self.missing.extend(restricted.err().map(|error| format!("system calls are not restricted: {error}")));
        self.missing.extend(rights_left().map(|left| format!("the process still has rights: {left}")));
        let sandbox = Sandbox::of_missing(self.missing, PARTS);
        let sandbox = if sandbox.state == "on" { sandbox.try_out() } else { sandbox };
        if sandbox.state == "on" && reach == Reach::Threads {
            return Sandbox { state: "threads", why: vec![THREADS_ONLY.to_owned()] };
        }
        sandbox
    }
}

/// Makes the directory of RDMA's devices if there is none yet. A sandbox names directories that exist, and the kernel
/// makes and removes one of its own with the first and last device. It uses one that exists, and leaves it.
fn make_rdma_directory() {
    // Refused without root: devices that come later are then no donor's in a sandbox.
    let _ = std::fs::DirBuilder::new().mode(0o755).create(RDMA_DEVICES);
}

impl Sandbox {
    /// Tries what must not work.
    fn try_out(self) -> Self {
        let can_read = std::fs::read_dir("/").map(drop);
        let can_execute = std::process::Command::new("/proc/self/exe").arg("--version").spawn().map(drop);
        let is_denied =
            |tried: &io::Result<()>| tried.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied);
        let tried = [(can_read, "it can list /"), (can_execute, "it can start a program")];
        let holes = tried.iter().filter(|(tried, _)| !is_denied(tried)).map(|(_, hole)| (*hole).to_owned());
        Self::of_missing(holes.collect(), PARTS)
    }
}

/// What a process that serves a device needs: as `CapabilityBoundingSet` in packaging/systemd/spillway.service.
const SERVING: CapabilitySet = CapabilitySet::SYS_ADMIN
    .union(CapabilitySet::IPC_LOCK)
    .union(CapabilitySet::SYS_RESOURCE)
    .union(CapabilitySet::NET_ADMIN)
    .union(CapabilitySet::SYS_MODULE)
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::CHOWN)
    .union(CapabilitySet::KILL)
    .union(CapabilitySet::SYS_PTRACE)
    .union(CapabilitySet::SYS_NICE);

/// A process of root that serves a device keeps what that takes, and gains nothing by a program that it executes.
/// Before it has threads, which inherit this.
pub fn bound_rights_of_server() -> io::Result<()> {
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let now = rustix::thread::capabilities(None)?;
    for right in CapabilitySet::all().difference(SERVING).iter() {
        // A right that this kernel does not know is in no set.
        if rustix::thread::capability_is_in_bounding_set(right).unwrap_or(false) {
            rustix::thread::remove_capability_from_bounding_set(right)?;
        }
    }
    let left = CapabilitySets {
        effective: now.effective & SERVING,
        permitted: now.permitted & SERVING,
        inheritable: now.inheritable & SERVING,
    };
    rustix::thread::set_capabilities(None, left)?;
    Ok(rustix::thread::set_no_new_privs(true)?)
}

/// Of them, those that only the start takes, or that only the keeper and the menders need: modules, owners of files,
/// signals to other users' processes and a look into them.
const SERVING_STARTS: CapabilitySet =
    CapabilitySet::SYS_MODULE.union(CapabilitySet::CHOWN).union(CapabilitySet::KILL).union(CapabilitySet::SYS_PTRACE);

/// The process that serves a device gives up what its further life does not take. Before it has threads; a process that
/// goes on after a crash is the keeper's child, and has all that serving takes.
pub fn drop_rights_of_start() -> io::Result<()> {
    let now = rustix::thread::capabilities(None)?;
    let left = CapabilitySets {
        effective: now.effective - SERVING_STARTS,
        permitted: now.permitted - SERVING_STARTS,
        inheritable: now.inheritable - SERVING_STARTS,
    };
    Ok(rustix::thread::set_capabilities(None, left)?)
}

pub use self::denied_calls::Borrower;

/// From here on, for all threads of this process and programs that it starts later, calls that no borrower needs fail
/// with `EPERM`, and no program is executed with more rights than the process has.
pub fn deny_calls_of_others(borrower: Borrower) -> io::Result<()> {
    denied_calls::deny(borrower).map_err(io::Error::other)
}

/// Gives up all rights of root but that to lock memory, for this thread and those that it starts.
pub fn give_up_rights() -> io::Result<()> {
    let kept = CapabilitySet::IPC_LOCK;
    let now = rustix::thread::capabilities(None)?;
    let left = CapabilitySets {
        effective: now.effective & kept,
        permitted: now.permitted & kept,
        inheritable: CapabilitySet::empty(),
    };
    Ok(rustix::thread::set_capabilities(None, left)?)
}

/// Rights of this thread that a donor does not need.
fn rights_left() -> Option<String> {
    let left = rustix::thread::capabilities(None).map(|sets| sets.permitted - CapabilitySet::IPC_LOCK);
    match left {
        Ok(left) if left.is_empty() => None,
        Ok(left) => Some(format!("{left:?}")),
        Err(error) => Some(error.to_string()),
    }
}

fn restrict_files(places: &Places) -> Result<RulesetStatus, RulesetError> {
    let all = AccessFs::from_all(FILES_ABI);
    let reading = AccessFs::ReadFile | AccessFs::ReadDir;
    let changing: BitFlags<AccessFs> = all & !AccessFs::Execute;
    let ruleset = Ruleset::default()
        .handle_access(all)?
        .create()?
        .add_rules(path_beneath_rules(READ, reading))?
        .add_rules(path_beneath_rules(&places.read, reading))?
        .add_rules(path_beneath_rules(
            WRITTEN,
            reading | AccessFs::WriteFile | AccessFs::Truncate | AccessFs::IoctlDev,
        ))?
        // Of other groups nothing can be changed: the kernel removes a group only if it is empty.
        .add_rules(path_beneath_rules(&places.group_to_return_to, AccessFs::WriteFile | AccessFs::Truncate))?
        .add_rules(path_beneath_rules(&places.groups, AccessFs::RemoveDir))?
        .add_rules(path_beneath_rules(&places.sockets, AccessFs::MakeSock | AccessFs::RemoveFile))?
        .add_rules(path_beneath_rules(&places.changed, changing))?;
    Ok(ruleset.restrict_self()?.ruleset)
}

/// Whether this kernel can restrict files, by some of the rights at least.
pub(crate) fn kernel_restricts_files() -> bool {
    let first = AccessFs::from_all(ABI::V1);
    Ruleset::default().set_compatibility(CompatLevel::HardRequirement).handle_access(first).is_ok()
}

/// The directory of a file.
pub fn directory_of(path: &Path) -> PathBuf {
    path.parent().map_or_else(|| PathBuf::from("/"), Path::to_path_buf)
}

/// A sandbox that was demanded and is not there.
pub fn demanded(choice: SandboxChoice, sandbox: &Sandbox) -> Result<(), Failure> {
    if choice == SandboxChoice::On && sandbox.state != "on" {
        let why = sandbox.describe();
        return Err(Failure::Failed(format!("the sandbox is {why}; --sandbox auto does without what is missing")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_told_and_demanded() {
        let states = [0, 1, 3].map(|count| Sandbox::of_missing(vec!["x".to_owned(); count], PARTS));
        assert_eq!(states.each_ref().map(|sandbox| sandbox.state), ["on", "partly on", "off"]);
        assert_eq!(states[1].describe(), "partly on (x)");
        assert!(demanded(SandboxChoice::On, &states[0]).is_ok() && demanded(SandboxChoice::Auto, &states[2]).is_ok());
        let refused = demanded(SandboxChoice::On, &states[1]).unwrap_err().to_string();
        assert!(refused.contains("--sandbox auto"), "{refused}");
    }

    #[test]
    fn choices_are_words() {
        for text in ["auto", "on", "off"] {
            assert_eq!(text.parse::<SandboxChoice>().unwrap().to_string(), text);
        }
        assert!("yes".parse::<SandboxChoice>().unwrap_err().contains("auto"));
    }
}
