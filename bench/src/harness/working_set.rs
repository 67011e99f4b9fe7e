//! How much memory a program uses with all of it local: as its memory group has it, or, for a user who may not make
//! groups, as `/proc` tells of its processes.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;

use rustix::process::Pid;
use spillway_sys::process_stat::ProcessStat;

use super::HarnessError;
use super::memory_group::MemoryGroup;
use super::usage::{ProcessMemory, numbers_in};
use crate::limits::POLL_INTERVAL;
use spillway_workloads::size::Size;

/// Watches one program.
#[derive(Debug)]
pub enum WorkingSet {
    /// The group that it is in.
    Group(MemoryGroup),
    /// Its process and what that starts.
    Processes,
}

/// Whether this process may make memory groups and swap areas.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// `first` and all processes that come from it.
fn family(first: u32, parents: &BTreeMap<u32, u32>) -> Vec<u32> {
    let comes_from_first = |process: &u32| {
        let mut ancestor = *process;
        while ancestor != first {
            match parents.get(&ancestor) {
                Some(parent) => ancestor = *parent,
                None => return false,
            }
        }
        true
    };
    parents.keys().copied().filter(comes_from_first).collect()
}

fn parents() -> BTreeMap<u32, u32> {
    numbers_in("/proc")
        .filter_map(|process| Some((process, ProcessStat::of_process(process).ok()?.parent()?)))
        .collect()
}

impl WorkingSet {
    /// By a group for root, else by processes.
    pub fn new() -> Result<Self, HarnessError> {
        if is_root() { MemoryGroup::create(None).map(Self::Group) } else { Ok(Self::Processes) }
    }

    /// `command` so that it is watched.
    pub fn enter(&self, command: &Command) -> Command {
        let mut plain = Command::new(command.get_program());
        match self {
            Self::Group(group) => return group.enter(command),
            Self::Processes => plain.args(command.get_args()),
        };
        plain.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        plain
    }

    /// How often it may be looked at: a look at all processes takes milliseconds, one at a group hardly any time.
    pub fn interval(&self) -> Duration {
        match self {
            Self::Group(_) => POLL_INTERVAL,
            Self::Processes => POLL_INTERVAL * 10,
        }
    }

    /// What the program that runs as `process` uses now.
    pub fn now(&self, process: Pid) -> Size {
        match self {
            Self::Group(group) => Size(group.usage().working_bytes),
            Self::Processes => {
                let family = family(process.as_raw_nonzero().get().unsigned_abs(), &parents());
                let pids = family.into_iter().filter_map(|process| Pid::from_raw(i32::try_from(process).ok()?));
                Size(pids.filter_map(ProcessMemory::of).map(|memory| memory.own_bytes).sum())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::interrupt::Interrupt;
    use crate::harness::process::{Collected, Running, bound};

    #[test]
    fn a_family_is_all_that_comes_from_one() {
        let parents = BTreeMap::from([(1, 0), (5, 1), (6, 5), (7, 6), (8, 1)]);
        assert_eq!(family(5, &parents), [5, 6, 7]);
        assert_eq!(family(9, &parents), Vec::<u32>::new());
    }

    #[test]
    fn without_a_group_the_memory_of_children_counts() {
        let watched = WorkingSet::Processes;
        let mut command = bound("sh");
        // A shell whose child holds a text of some MiB until it is ended.
        command.args(["-c", "sh -c 'text=$(head -c 6000000 /dev/zero | tr \"\\0\" x); sleep 100; echo $text'; true"]);
        let running = Running::start("a holder", &mut watched.enter(&command), Collected::default()).unwrap();
        let holds = || (watched.now(running.id()).0 > 5_000_000).then_some(());
        Interrupt::never().poll("the text", Duration::from_secs(60), holds).unwrap();
    }
}
