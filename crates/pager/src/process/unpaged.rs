//! Programs of the run that never said hello: they have all their memory beside the budget, so the user is told
//! which, how much, and why; again whenever one has doubled its memory. The run's first program is told of whatever it
//! has.
//!
//! They are found among the descendants of this process. A program that left its family (a daemon) is not, nor is one
//! that is over before a look.

use spillway_sys::lease::read_unless_leased;
use std::borrow::Cow;
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::Instant;

use spillway_sys::proc_text::mounts::{self, Mount};
use spillway_sys::proc_text::{fields, maps, strings, unescaped};
use spillway_sys::process::children;
use spillway_sys::process::status_of;
use spillway_sys::process_stat::ProcessStat;

use crate::budget::Budget;
use crate::limits::{DESCENDANTS_MAX, FIRST_HELLO_PATIENCE, UNPAGED_BYTES_MIN, UNPAGED_LOOK_INTERVAL, UNPAGED_SHARE};
use crate::process::Survey;
use crate::process::proc_files::{maps_of, name_of};

/// The processes that were looked for and told of.
#[derive(Debug, Default)]
pub(super) struct Unpaged {
    looked_at: Option<Instant>,
    /// How much memory each of them had when the user was told.
    told_bytes: HashMap<u32, u64>,
    /// Since when the first program was seen as what it is, without a hello; `None` once that is settled.
    first: Option<(PathBuf, Instant)>,
    is_first_settled: bool,
}

impl Survey {
    /// Tells of programs that are not paged.
    pub(super) fn tell_of_unpaged(&mut self, now: Instant) {
        let is_early = |at: Instant| now.saturating_duration_since(at) < UNPAGED_LOOK_INTERVAL;
        if self.unpaged.looked_at.is_some_and(is_early) {
            return;
        }
        self.unpaged.looked_at = Some(now);
        let most = untold_bytes_max(&self.shared.budget);
        let processes = descendants(std::process::id());
        self.unpaged.told_bytes.retain(|process, _| processes.contains(process));
        for process in processes {
            if self.is_met(process) {
                self.unpaged.is_first_settled = true;
                continue;
            }
            let is_first = self.is_silent_first(process, now);
            let told_bytes = self.unpaged.told_bytes.get(&process).copied().unwrap_or(0);
            let is_much = |bytes: u64| is_first || bytes > most && bytes >= told_bytes * 2;
            let much_memory = || memory_of(process).filter(|(_, bytes)| is_much(*bytes));
            if much_memory().is_none() {
                continue;
            }
            let Some(cause) = cause(process, &self.run.variable) else { continue };
            // One that executed another program meanwhile, or ended, had the memory before and the environment after
            // that.
            if let Some((name, bytes)) = much_memory() {
                self.unpaged.told_bytes.insert(process, bytes);
                self.unpaged.is_first_settled |= is_first;
                self.shared.fail(format!(
                    "process {process} ({name}) is not paged and has {} MiB beside the budget so far: {cause}; --via swap takes every program",
                    bytes >> 20
                ));
            }
        }
    }

    /// Whether the run's first program has been the same one for long, and said no hello: the loader that starts it
    /// needs a moment.
    fn is_silent_first(&mut self, process: u32, now: Instant) -> bool {
        let unpaged = &mut self.unpaged;
        if unpaged.is_first_settled
            || ProcessStat::of_process(process).ok().and_then(|stat| stat.parent()) != Some(std::process::id())
        {
            return false;
        }
        let Ok(file) = fs::read_link(format!("/proc/{process}/exe")) else { return false };
        match &unpaged.first {
            Some((seen, since)) if *seen == file => now.saturating_duration_since(*since) >= FIRST_HELLO_PATIENCE,
            _ => {
                unpaged.first = Some((file, now));
                false
            }
        }
    }

    fn is_met(&self, process: u32) -> bool {
        let all = self.tracked.iter().chain(&self.newcomers);
        all.into_iter().any(|tracked| tracked.places.process == process)
    }
}

/// How much memory outside of the budget, or of the kind that cannot leave, a program may have without the user being
/// told.
pub(super) fn untold_bytes_max(budget: &Budget) -> u64 {
    UNPAGED_BYTES_MIN.max(budget.bytes() / UNPAGED_SHARE)
}

/// The processes below `process`, but for those of this very program (donors, guardian).
fn descendants(process: u32) -> Vec<u32> {
    let own = fs::read_link("/proc/self/exe").ok();
    let is_own = |number: &u32| fs::read_link(format!("/proc/{number}/exe")).ok() == own;
    let (mut found, mut next) = (Vec::new(), vec![process]);
    while let Some(parent) = next.pop().filter(|_| found.len() < DESCENDANTS_MAX) {
        let below: Vec<u32> =
            children(parent).unwrap_or_default().into_iter().filter(|number| !is_own(number)).collect();
        found.extend(&below);
        next.extend(below);
    }
    found
}

/// A process's name and anonymous memory.
fn memory_of(process: u32) -> Option<(String, u64)> {
    let status = status_of(process).ok()?;
    let name = name_of(fields::value_of(&status, "Name")?);
    Some((name, fields::bytes_of(&status, "RssAnon")?))
}

/// Why a process is not paged that was not met; none for one that is another pager's, or of which nothing can be known.
fn cause(process: u32, variable: &str) -> Option<Cow<'static, str>> {
    let environment = read_unless_leased(format!("/proc/{process}/environ")).ok()?;
    let text = maps_of(process).ok().filter(|text| !text.is_empty())?;
    let maps_a_file = |part: &str| {
        let is_in = |name: &[u8]| name.windows(part.len()).any(|found| found == part.as_bytes());
        maps::all(&text).any(|mapped| !mapped.has_no_file() && is_in(mapped.name))
    };
    let has = |name: &str| strings::variable(&environment, name);
    let why = match has("SPILLWAY_PAGER") {
        None => Some("it was started with an environment of its own (env -i, sudo), which does not name the pager"),
        Some(other) if other != variable.as_bytes() => None,
        Some(_) if maps_a_file("/libspillway.so") => None,
        // Its own memory comes first, and then that of the program, which loads the library like any other.
        Some(_) if maps_a_file("/valgrind/") => None,
        Some(_) if !maps_a_file("/ld-") && !maps_a_file("/ld.so") => {
            Some("it is a static program, which loads no library")
        }
        Some(_) if has("LD_PRELOAD").is_none() => {
            Some("its environment has lost LD_PRELOAD, by which programs load the pager's library")
        }
        Some(_) => {
            let mut libraries = has("LD_PRELOAD").into_iter().flat_map(|all| all.split(|byte| b": ".contains(byte)));
            let library = Path::new(OsStr::from_bytes(libraries.next().unwrap_or_default()));
            let mounts = |process: &str| read_unless_leased(format!("/proc/{process}/mountinfo")).unwrap_or_default();
            return Some(why_not_loaded(library, &mounts("self"), &mounts(&process.to_string())));
        }
    };
    why.map(Cow::Borrowed)
}

/// Why a loader did not load `library`, by the file systems that this process and the program see, as text
/// (proc_pid_mountinfo(5)). Nothing is opened: the program may have mounted a file system of its own, which lets a
/// visitor wait.
fn why_not_loaded(library: &Path, own_mounts: &[u8], its_mounts: &[u8]) -> Cow<'static, str> {
    let directory = library.parent().unwrap_or(Path::new("/")).display();
    match (mount_of(own_mounts, library), mount_of(its_mounts, library)) {
        (Some(own), Some(its)) if own.device != its.device => Cow::Owned(format!(
            "{directory} is hidden in its mount namespace (bwrap --tmpfs /run); let the sandbox show it (bwrap --ro-bind {0} {0}), or set \
             SPILLWAY_RUNTIME_DIRECTORY to a directory that it shows",
            library.ancestors().nth(2).unwrap_or(Path::new("/")).display()
        )),
        (_, Some(its)) if its.is_mounted("noexec") => Cow::Owned(format!(
            "{directory} is mounted noexec; set SPILLWAY_RUNTIME_DIRECTORY to a directory from which programs may be executed"
        )),
        _ => Cow::Borrowed(
            "its loader did not load the pager's library (a set-user-ID program, another libc, or a directory that the program cannot reach)",
        ),
    }
}

/// The mount on which `path` lies.
fn mount_of<'a>(mountinfo: &'a [u8], path: &Path) -> Option<Mount<'a>> {
    let place = |mount: &Mount<'_>| PathBuf::from(OsString::from_vec(unescaped(mount.point).collect()));
    // The one that was mounted last covers the others.
    mounts::all(mountinfo).filter(|mount| path.starts_with(place(mount))).max_by_key(|mount| mount.point.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_hidden_or_may_not_be_executed_is_told_of() {
        let own = "21 1 8:1 / / rw - ext4 x rw\n25 21 0:22 / /run rw,nosuid - tmpfs x rw\n";
        let library = "/run/spillway/programs.x/libspillway.so";
        let why =
            |library: &str, its: &str| why_not_loaded(Path::new(library), own.as_bytes(), its.as_bytes()).into_owned();
        let hidden = why(library, &own.replace("0:22", "0:99"));
        assert!(hidden.contains("--ro-bind /run/spillway /run/spillway"), "{hidden}");
        assert!(hidden.contains("/run/spillway/programs.x is hidden"), "{hidden}");
        assert!(why(library, &own.replace("nosuid", "noexec,nosuid")).contains("is mounted noexec"));
        assert!(why(library, own).contains("set-user-ID"));
        assert!(why("/running/x.so", &own.replace("0:22", "0:99")).contains("set-user-ID"));
        // The later mount at the same place is the one that is seen.
        let twice = format!("{own}26 25 0:23 / /run rw,noexec - tmpfs x rw\n");
        let seen = mount_of(twice.as_bytes(), Path::new(library)).unwrap();
        assert!(seen.device == (0, 23) && seen.is_mounted("noexec"));
    }

    #[test]
    fn children_and_their_memory_are_found_and_why_they_are_not_paged() {
        let mut child = std::process::Command::new("sleep").arg("60").env_clear().spawn().unwrap();
        let number = child.id();
        assert!(descendants(std::process::id()).contains(&number));
        // Its variables are there once it has become the program.
        let deadline = Instant::now() + std::time::Duration::from_secs(60);
        let wait_until = |is_so: &dyn Fn() -> bool| {
            while !is_so() {
                assert!(Instant::now() < deadline, "it does not start");
                std::thread::yield_now();
            }
        };
        wait_until(&|| memory_of(number).is_some_and(|(name, _)| name == "sleep"));
        wait_until(&|| cause(number, "x#1").is_some_and(|cause| cause.contains("environment of its own")));
        child.kill().unwrap();
        child.wait().unwrap();
        let mut other = std::process::Command::new("sleep").arg("60").env("SPILLWAY_PAGER", "y#1").spawn().unwrap();
        // Another pager's.
        wait_until(&|| cause(other.id(), "x#1").is_none());
        wait_until(&|| {
            cause(other.id(), "y#1").is_some_and(|why| why.contains("LD_PRELOAD") || why.contains("library"))
        });
        other.kill().unwrap();
        other.wait().unwrap();
    }
}
