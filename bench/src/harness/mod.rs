//! What the studies and the demo stand on: other programs, and things of the kernel that must be put back.
//!
//! - [`interrupt`]: Ctrl-C as a flag that every wait looks at.
//! - [`process`]: one program, bounded in time, its output read while it runs.
//! - [`tool`]: short helper commands such as `mkswap`, and which package has them; [`go_tool`]: a load generator that
//!   is built by `go install`.
//! - [`cleanup`]: what is to be undone, in reverse order, whatever happens.
//! - [`working_set`]: what a program uses; [`memory_group`]: memory cgroups, versions 1 and 2; [`reclaim_guard`]: why
//!   programs at their limit are not killed.
//! - [`storage`]: directories on a real disk; [`swap_area`]: swap that is on for as long as a value lives.
//! - [`spillway`]: the product, driven as a user would; [`subject`]: the block devices that are compared; [`fio`]: the
//!   program that exercises them; [`usage`]: CPU time and memory of processes; [`cpu_use`]: CPU time by thread;
//!   [`watching`]: a look now and then; [`fault_latency`]: how long the kernel waits for pages, [`read_requests`]: one
//!   by one.
//! - [`trace`]: the kernel's record of events; [`fault_floor`], [`eviction_floor`]: what a fault handled in user
//!   space costs at least, and a page that leaves; [`binding`]: their threads on one CPU.
//! - [`guest`]: a virtual machine with a stock kernel.
//!
//! Invariants: a process that was started here ends here, by its own id; nothing else is ever ended. An interrupt makes
//! every wait return [`HarnessError::Interrupted`], so that values are dropped, and with them undone, on the way out.

pub mod binding;
pub mod cleanup;
pub mod cpu_use;
pub mod eviction_floor;
pub mod fault_floor;
pub mod fault_latency;
pub mod fio;
pub mod go_tool;
pub mod guest;
pub mod interrupt;
pub mod memory_group;
pub mod process;
pub mod read_requests;
pub mod reclaim_guard;
pub mod spillway;
pub mod storage;
pub mod subject;
pub mod swap_area;
pub mod tool;
pub mod trace;
pub mod usage;
pub mod watching;
pub mod working_set;

use std::time::Duration;

/// Why something could not be done. The text says what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum HarnessError {
    /// Ctrl-C, or a request to end.
    #[error("interrupted")]
    Interrupted,
    /// The machine or the user lacks something; the part that needs it is left out.
    #[error("{0}")]
    Missing(String),
    /// It did not end in time and was ended.
    #[error("{what} took longer than {limit:?} and was ended")]
    TimedOut {
        /// What.
        what: String,
        /// Its bound.
        limit: Duration,
    },
    /// It ended badly.
    #[error("{what} failed: {detail}")]
    Failed {
        /// What.
        what: String,
        /// What it said.
        detail: String,
    },
    /// It gave other data than it must.
    #[error("{what} failed: {detail}")]
    Wrong {
        /// What.
        what: String,
        /// What differs.
        detail: String,
    },
    /// A system call failed.
    #[error("{what}: {source}")]
    System {
        /// What was being done.
        what: String,
        /// The error.
        source: std::io::Error,
    },
}

impl HarnessError {
    /// Makes an error of a system call that was part of `what`; for `map_err`.
    pub fn system<Source: Into<std::io::Error>>(what: impl Into<String>) -> impl FnOnce(Source) -> Self {
        move |source| Self::System { what: what.into(), source: source.into() }
    }

    /// Something ended badly.
    pub fn failed(what: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::Failed { what: what.into(), detail: detail.into() }
    }

    /// Something gave other data than it must.
    pub fn wrong(what: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::Wrong { what: what.into(), detail: detail.into() }
    }

    /// Whether everything is to stop, rather than only the part that met it.
    pub fn is_interrupt(&self) -> bool {
        matches!(self, Self::Interrupted)
    }
}
