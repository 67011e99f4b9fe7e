//! Which processes are looked at: one with its descendants, or those of a cgroup.

use std::fs;
use std::path::{Path, PathBuf};

use spillway_console::failure::Failure;
use spillway_sys::lease::read_unless_leased;
use spillway_sys::proc_text::words::processes;

/// Where processes come from.
#[derive(Clone, Debug)]
pub(super) enum Members {
    /// One, and those that it started, and they.
    Process(u32),
    /// Those of a cgroup, and of groups in it.
    Group(PathBuf),
}

impl Members {
    /// The processes now.
    pub(super) fn now(&self) -> Vec<u32> {
        let mut found = Vec::new();
        match self {
            Self::Process(process) => family(*process, &mut found),
            Self::Group(path) => group(path, &mut found),
        }
        found
    }

    /// Fails with what to do if there is nothing to look at.
    pub(super) fn check(&self) -> Result<(), Failure> {
        match self {
            Self::Process(process) if !Path::new(&format!("/proc/{process}")).exists() => {
                Err(Failure::Usage(format!("there is no process {process}; `ps` lists them")))
            }
            Self::Group(path) if !path.join("cgroup.procs").exists() => Err(Failure::Usage(format!(
                "{} is no cgroup; give its directory, such as /sys/fs/cgroup/system.slice/x.service",
                path.display()
            ))),
            _ => Ok(()),
        }
    }
}

fn family(process: u32, found: &mut Vec<u32>) {
    if found.contains(&process) {
        return;
    }
    found.push(process);
    let Ok(threads) = fs::read_dir(format!("/proc/{process}/task")) else { return };
    for thread in threads.flatten() {
        let children = read_unless_leased(thread.path().join("children")).unwrap_or_default();
        processes(&children).for_each(|child| family(child, found));
    }
}

fn group(path: &Path, found: &mut Vec<u32>) {
    found.extend(processes(&read_unless_leased(path.join("cgroup.procs")).unwrap_or_default()));
    let Ok(entries) = fs::read_dir(path) else { return };
    for entry in entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
        group(&entry.path(), found);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_its_children_with_it() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let own = Members::Process(std::process::id()).now();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(own.contains(&std::process::id()) && own.contains(&child.id()), "{own:?}");
    }

    #[test]
    fn what_is_not_there_is_named() {
        let told = Members::Process(u32::MAX >> 1).check().unwrap_err().to_string();
        assert!(told.contains("no process"), "{told}");
        let told = Members::Group("/tmp".into()).check().unwrap_err().to_string();
        assert!(told.contains("no cgroup"), "{told}");
        assert!(Members::Group("/tmp/no-such".into()).now().is_empty());
    }
}
