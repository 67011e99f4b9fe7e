//! Programs of the run that never said hello: they have all their memory beside the budget, so the user is told
//! which, how much, and why; again whenever one has doubled its memory.
//!
//! They are found among the descendants of this process. A program that left its family (a daemon) is not, nor is one
//! that is over before a look.

use std::collections::HashMap;
use std::fs;
use std::time::Instant;

use spillway_sys::proc_text::{fields, maps, strings};
use spillway_sys::process::children;

use crate::budget::Budget;
use crate::limits::{DESCENDANTS_MAX, UNPAGED_BYTES_MIN, UNPAGED_LOOK_INTERVAL, UNPAGED_SHARE};
use crate::process::Survey;
use crate::process::proc_files::{maps_of, status_of};

/// The processes that were looked for and told of.
#[derive(Debug, Default)]
pub(super) struct Unpaged {
    looked_at: Option<Instant>,
    /// How much memory each of them had when the user was told.
    told_bytes: HashMap<u32, u64>,
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
                continue;
            }
            let told_bytes = self.unpaged.told_bytes.get(&process).copied().unwrap_or(0);
            let much_memory = || memory_of(process).filter(|(_, bytes)| *bytes > most && *bytes >= told_bytes * 2);
            if much_memory().is_none() {
                continue;
            }
            let Some(cause) = cause(process, &self.run.variable) else { continue };
            // One that executed another program meanwhile, or ended, had the memory before and the environment after
            // that.
            if let Some((name, bytes)) = much_memory() {
                self.unpaged.told_bytes.insert(process, bytes);
                self.shared.fail(format!(
                    "process {process} ({name}) is not paged and has {} MiB beside the budget so far: {cause}; --via swap takes every program",
                    bytes >> 20
                ));
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
    let name = String::from_utf8_lossy(fields::value_of(&status, "Name")?).into_owned();
    Some((name, fields::bytes_of(&status, "RssAnon")?))
}

/// Why a process is not paged that was not met; none for one that is another pager's, or of which nothing can be known.
fn cause(process: u32, variable: &str) -> Option<&'static str> {
    let environment = fs::read(format!("/proc/{process}/environ")).ok()?;
    let text = maps_of(process).ok().filter(|text| !text.is_empty())?;
    let maps_a_file = |part: &str| {
        let is_in = |name: &[u8]| name.windows(part.len()).any(|found| found == part.as_bytes());
        maps::all(&text).any(|mapped| !mapped.has_no_file() && is_in(mapped.name))
    };
    let has = |name: &str| strings::variable(&environment, name);
    match has("SPILLWAY_PAGER") {
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
        Some(_) => Some(
            "its loader did not load the pager's library (a set-user-ID program, another libc, or a directory that the program cannot reach)",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
