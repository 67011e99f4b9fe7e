//! Which process is meant: its number and the time it started, because numbers are reused.

use crate::lease::read_unless_leased;
use std::fmt;
use std::fs;
use std::io;
use std::str::FromStr;

use crate::proc_text::{fields, words};
use crate::process_stat::ProcessStat;
use crate::threads::Threads;

/// A process of this machine since it booted. Displays as `PID.START`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ProcessIdentity {
    /// Its number.
    pub pid: u32,
    /// When it started, in clock ticks since the machine booted (`/proc/PID/stat`, field 22).
    pub start_ticks: u64,
}

/// A text that names no process.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not PID.START")]
pub struct ParseIdentityError(String);

impl ProcessIdentity {
    /// This process.
    pub fn current() -> io::Result<Self> {
        Self::of(std::process::id())?
            .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "/proc does not show this process; mount it"))
    }

    /// The process that has the number `pid` now; `None` without one, and for one that has ended and was not waited
    /// for.
    pub fn of(pid: u32) -> io::Result<Option<Self>> {
        match ProcessStat::of_process(pid) {
            Ok(stat) if stat.is_dead() => Ok(None),
            Ok(stat) => Ok(stat.start_ticks().map(|start_ticks| Self { pid, start_ticks })),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            // A process that ends between open and read.
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The same of a process of this user's or of root's; none of another user's, which took the number. Such a process
    /// can let whatever reads its `stat` wait (exec_update_lock), so only its `status` is read.
    pub fn of_trusted(pid: u32) -> io::Result<Option<Self>> {
        if is_trusted(pid) { Self::of(pid) } else { Ok(None) }
    }

    /// Whether it still runs, as a process of this user's or of root's that has this number here.
    pub fn is_alive(self) -> io::Result<bool> {
        Ok(Self::of_trusted(self.pid)? == Some(self))
    }

    /// Whether it may still run, here or under this number in another PID namespace (pid_namespaces(7)), so that what
    /// it left is not to be removed. Where other namespaces may have processes that are not seen here, true.
    pub fn may_be_alive(self) -> io::Result<bool> {
        Ok(self.is_alive()? || !sees_every_process() || nested(self.pid)?.contains(&self))
    }
}

/// The inode of the first PID namespace (`PROC_PID_INIT_INO`, include/linux/proc_ns.h).
const FIRST_PID_NAMESPACE: u64 = 0xEFFF_FFFC;

/// The inode of this process's PID namespace; `None` if /proc does not tell.
pub fn pid_namespace() -> Option<u64> {
    let link = fs::read_link("/proc/self/ns/pid").ok()?;
    link.to_str()?.strip_prefix("pid:[")?.strip_suffix(']')?.parse().ok()
}

/// Whether this process is in the first PID namespace, in which every process of the machine has a number.
pub fn sees_every_process() -> bool {
    pid_namespace() == Some(FIRST_PID_NAMESPACE)
}

/// The processes that have the number `pid` in a PID namespace of their own, below this one. As identities in theirs.
pub fn nested(pid: u32) -> io::Result<Vec<ProcessIdentity>> {
    let here = every_process()?.into_iter().filter(|here| innermost_number(*here) == Some(pid));
    let identities = here.filter_map(|here| ProcessIdentity::of_trusted(here).ok().flatten());
    Ok(identities.map(|identity| ProcessIdentity { pid, ..identity }).collect())
}

/// The number of process or thread `pid` in its own namespace, if that is one below this one.
pub fn innermost_number(pid: u32) -> Option<u32> {
    let status = read_unless_leased(format!("/proc/{pid}/status")).ok()?;
    words::processes(fields::value_of(&status, "NSpid")?).skip(1).last()
}

/// The user as which a process was started. Not the owner of its files in `/proc`: a process can make that root.
pub fn user_of(pid: u32) -> io::Result<u32> {
    let status = status_of(pid)?;
    users_in(&status).next().ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// The users in the text of a `status`: as which it was started, and is, first.
fn users_in(status: &[u8]) -> impl Iterator<Item = u32> {
    fields::value_of(status, "Uid").into_iter().flat_map(words::processes)
}

/// `/proc/PID/status`, which Linux writes without a lock that the process can hold.
pub fn status_of(pid: u32) -> io::Result<Vec<u8>> {
    read_unless_leased(format!("/proc/{pid}/status"))
}

/// Whether the process is, or was started, as this user or as root.
fn is_trusted(pid: u32) -> bool {
    let own = rustix::process::geteuid().as_raw();
    let Ok(status) = status_of(pid) else { return false };
    users_in(&status).any(|user| user == own || user == 0)
}

/// How often the calling thread waited for a page from a device since it started.
pub fn major_fault_count() -> u64 {
    // SAFETY: plain numbers, for which all zeroes are valid.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` is a whole structure that lives across the call, and the kernel writes nothing else.
    let result = unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) };
    assert_eq!(result, 0, "getrusage knows RUSAGE_THREAD and the structure is valid");
    usage.ru_majflt as u64
}

/// The processes whose parent is `parent`, by ascending number. Some may be left out while others end.
pub fn children(parent: u32) -> io::Result<Vec<u32>> {
    if let Some(mut listed) = listed_children(parent)? {
        listed.sort_unstable();
        return Ok(listed);
    }
    every_child(parent)
}

/// By the kernel's lists, one for each thread; `None` if it has none (`CONFIG_PROC_CHILDREN`), or a thread ended
/// meanwhile. Looking at every process of the machine takes a hundred times as long.
fn listed_children(parent: u32) -> io::Result<Option<Vec<u32>>> {
    let mut listed = Vec::new();
    for thread in Threads::of(parent)?.list()? {
        let Ok(text) = read_unless_leased(format!("/proc/{parent}/task/{thread}/children")) else { return Ok(None) };
        listed.extend(words::processes(&text));
    }
    Ok(Some(listed))
}

/// By looking at every process there is.
fn every_child(parent: u32) -> io::Result<Vec<u32>> {
    let mut found = every_process()?;
    found.retain(|number| ProcessStat::of_process(*number).ok().and_then(|stat| stat.parent()) == Some(parent));
    Ok(found)
}

/// All processes, by ascending number.
pub fn every_process() -> io::Result<Vec<u32>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        found.extend(entry?.file_name().to_str().and_then(|name| name.parse::<u32>().ok()));
    }
    found.sort_unstable();
    Ok(found)
}

/// Whether two processes have one memory, as between vfork and exec (kcmp(2)). Only for processes that one may trace.
pub fn share_memory(one: u32, other: u32) -> io::Result<bool> {
    /// `KCMP_VM`.
    const MEMORY: libc::c_long = 1;
    share(one, other, MEMORY)
}

/// Whether two threads have one table of descriptors, as those of a process mostly do (kcmp(2)). Only for processes
/// that one may trace.
pub fn share_descriptors(one: u32, other: u32) -> io::Result<bool> {
    /// `KCMP_FILES`.
    const DESCRIPTORS: libc::c_long = 2;
    share(one, other, DESCRIPTORS)
}

fn share(one: u32, other: u32, what: libc::c_long) -> io::Result<bool> {
    // SAFETY: the call takes numbers and touches no memory.
    let result = unsafe { libc::syscall(libc::SYS_kcmp, one, other, what, 0, 0) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result == 0) }
}

impl fmt::Display for ProcessIdentity {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}.{}", self.pid, self.start_ticks)
    }
}

impl FromStr for ProcessIdentity {
    type Err = ParseIdentityError;

    fn from_str(text: &str) -> Result<Self, ParseIdentityError> {
        let error = || ParseIdentityError(text.to_owned());
        let (pid, start_ticks) = text.split_once('.').ok_or_else(error)?;
        Ok(Self { pid: pid.parse().map_err(|_| error())?, start_ticks: start_ticks.parse().map_err(|_| error())? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_counted_from_the_threads_start() {
        let before = major_fault_count();
        assert!(major_fault_count() >= before);
        let of_a_new_thread = std::thread::spawn(major_fault_count).join().unwrap();
        assert!(of_a_new_thread <= 1000, "a thread that does nothing waits for few pages: {of_a_new_thread}");
    }

    #[test]
    fn a_process_of_another_user_is_none_that_is_meant() {
        assert!(is_trusted(std::process::id()));
        if !rustix::process::geteuid().is_root() {
            return crate::skipping::skip("root");
        }
        let mut child = std::process::Command::new("setpriv")
            .args(["--reuid=65534", "--regid=65534", "--clear-groups", "sleep", "60"])
            .spawn()
            .unwrap();
        let pid = child.id();
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while user_of(pid).unwrap() == 0 {
            assert!(std::time::Instant::now() < deadline, "it does not start");
            std::thread::yield_now();
        }
        let identity = ProcessIdentity::of(pid).unwrap().unwrap();
        assert!(!identity.is_alive().unwrap());
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_process_of_another_namespace_is_known_there() {
        assert!(pid_namespace().is_some());
        if !sees_every_process() {
            return crate::skipping::skip("the first PID namespace");
        }
        let namespace = ["--user", "--map-root-user", "--pid", "--fork", "--kill-child", "sleep", "60"];
        let Ok(mut child) = std::process::Command::new("unshare").args(namespace).spawn() else {
            return crate::skipping::skip("unshare");
        };
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
        let mut inside = None;
        while inside.is_none() && std::time::Instant::now() < deadline {
            let there = children(child.id()).unwrap().first().copied();
            inside = there.filter(|pid| innermost_number(*pid) == Some(1)).and_then(|pid| {
                let identity = ProcessIdentity::of(pid).unwrap()?;
                Some(ProcessIdentity { pid: 1, ..identity })
            });
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        let lives = inside.map(|inside| (inside.is_alive().unwrap(), inside.may_be_alive().unwrap()));
        child.kill().unwrap();
        child.wait().unwrap();
        let (is_alive_here, may_be_alive) = lives.expect("unshare starts a process that has the number 1");
        assert!(may_be_alive && !is_alive_here, "number 1 is another process here");
        let inside = inside.unwrap();
        while inside.may_be_alive().unwrap() {
            assert!(std::time::Instant::now() < deadline, "it ends with its parent");
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }

    #[test]
    fn a_child_is_found_and_has_memory_of_its_own() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let own = std::process::id();
        assert!(children(own).unwrap().contains(&child.id()));
        assert!(every_child(own).unwrap().contains(&child.id()), "also where the kernel has no list");
        assert!(share_memory(own, own).unwrap() && !share_memory(own, child.id()).unwrap());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!children(own).unwrap().contains(&child.id()));
        assert!(share_memory(own, u32::MAX >> 1).is_err());
    }

    #[test]
    fn this_process_is_alive_and_its_name_survives_a_round_trip() {
        let me = ProcessIdentity::current().unwrap();
        assert!(me.is_alive().unwrap());
        assert_eq!(me.to_string().parse::<ProcessIdentity>().unwrap(), me);
        let earlier = ProcessIdentity { start_ticks: me.start_ticks - 1, ..me };
        assert!(!earlier.is_alive().unwrap(), "another process with the same number is not the same");
    }

    #[test]
    fn a_process_that_ended_is_not_alive_even_before_it_was_waited_for() {
        let mut child = std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        let identity = ProcessIdentity::of(child.id()).unwrap().expect("cat waits for its input");
        drop(child.stdin.take());
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while identity.is_alive().unwrap() {
            assert!(std::time::Instant::now() < deadline, "cat did not end");
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert!(!identity.is_alive().unwrap());
    }

    #[test]
    fn what_names_no_process_is_refused() {
        for text in ["", "7", "7.", ".7", "7.x", "-7.1"] {
            assert!(text.parse::<ProcessIdentity>().is_err(), "{text}");
        }
    }
}
