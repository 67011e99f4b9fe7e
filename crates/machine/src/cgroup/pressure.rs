//! The pressure of a memory group of version 1: the kernel counts pressure by groups of version 2, also by those
//! without a controller (`Documentation/accounting/psi.rst`). So the program is in a group of each version.
//!
//! Invariant: the group of version 2 goes before the memory group of its name, by which the remains of dead runs are
//! found.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Instant;

use spillway_sys::proc_text::words::processes;

use super::{make_directory, remove_directory, usage};

/// A group of version 2 that only counts.
#[derive(Clone, Debug)]
pub(super) struct PressureGroup {
    /// Where the hierarchy is mounted.
    root: PathBuf,
    path: PathBuf,
}

impl PressureGroup {
    /// The group at `name` below the hierarchy at `root`, whether it exists or not.
    pub(super) fn at(root: &Path, name: &Path) -> Self {
        Self { root: root.to_owned(), path: root.join(name) }
    }

    /// Makes it; an error where the kernel counts no pressure in it.
    pub(super) fn create(&self) -> io::Result<()> {
        if let Some(parent) = self.path.parent() {
            make_directory(parent)?;
        }
        make_directory(&self.path)?;
        if self.stalled_us().is_some() {
            return Ok(());
        }
        self.remove(Instant::now())?;
        Err(io::Error::new(io::ErrorKind::Unsupported, "the kernel counts no pressure of groups"))
    }

    /// Whether it is there.
    pub(super) fn exists(&self) -> bool {
        self.path.is_dir()
    }

    /// The file that takes the numbers of processes that are to be in it.
    pub(super) fn procs_file(&self) -> PathBuf {
        self.path.join("cgroup.procs")
    }

    /// For how long some thread of it waited for memory, in microseconds.
    pub(super) fn stalled_us(&self) -> Option<u64> {
        usage::some_stalled_us(&fs::read_to_string(self.path.join("memory.pressure")).ok()?)
    }

    /// Moves every process to the root of its hierarchy.
    pub(super) fn release(&self) {
        for pid in processes(&fs::read(self.procs_file()).unwrap_or_default()) {
            // One that ended meanwhile needs no other group.
            let _ = fs::write(self.root.join("cgroup.procs"), pid.to_string());
        }
    }

    /// Removes it once it is empty; one that is not there is removed.
    pub(super) fn remove(&self, deadline: Instant) -> io::Result<()> {
        remove_directory(&self.path, deadline)?;
        if let Some(parent) = self.path.parent() {
            // Stays while other runs have groups.
            let _ = fs::remove_dir(parent);
        }
        Ok(())
    }
}
