//! No core dump of a process that has keys or pages of others in its memory.
//!
//! A limit keeps the kernel from making one, also by a program that it would be piped to (`core_pattern`). Should
//! another process raise the limit, or use `gcore`, then no memory is in it (core(5), `coredump_filter`). Programs that
//! are executed inherit both, so what was before is kept for the user's own.

use std::io;
use std::sync::OnceLock;

use rustix::process::{DumpableBehavior, Resource, Rlimit, getrlimit, set_dumpable_behavior, setrlimit};

/// Which memory is dumped, as a mask; this user's file, and inherited.
const FILTER: &str = "/proc/self/coredump_filter";

/// A limit that is too small for a file. It is 1, not 0: the kernel takes 0 for files only, and 1 also for programs
/// that dumps are piped to (`do_coredump` in fs/coredump.c).
const LIMIT_BYTES: u64 = 1;

/// What this process might dump before it was forbidden.
static BEFORE: OnceLock<CoreDumps> = OnceLock::new();

/// What a process may dump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoreDumps {
    /// The limit of a core file; `None`: none.
    pub limit_bytes: Option<u64>,
    /// The mask; `None` where this kernel has none.
    pub filter: Option<u64>,
}

impl CoreDumps {
    /// Of this process now.
    pub fn now() -> Self {
        let filter = std::fs::read_to_string(FILTER).ok();
        let filter = filter.and_then(|text| u64::from_str_radix(text.trim(), 16).ok());
        Self { limit_bytes: getrlimit(Resource::Core).current, filter }
    }

    /// What this process might dump before [`CoreDumps::forbid`]; `None` if it was not called.
    pub fn before() -> Option<Self> {
        BEFORE.get().copied()
    }

    /// Nothing of this process is dumped from here on.
    pub fn forbid() -> io::Result<()> {
        let before = *BEFORE.get_or_init(Self::now);
        let limit = getrlimit(Resource::Core).maximum.map_or(LIMIT_BYTES, |bytes| bytes.min(LIMIT_BYTES));
        Self { limit_bytes: Some(limit), filter: before.filter.map(|_| 0) }.set()
    }

    /// Makes it so in this process.
    pub fn set(self) -> io::Result<()> {
        let maximum = getrlimit(Resource::Core).maximum;
        setrlimit(Resource::Core, Rlimit { current: self.limit_bytes.or(maximum), maximum })?;
        // A container may have no such file; the limit is there.
        self.filter.map_or(Ok(()), |mask| std::fs::write(FILTER, format!("{mask:#x}")))
    }
}

/// The same for a process of root that serves: the kernel dumps nothing of it, and no process without the right to
/// trace all looks into its memory. Root only, as such a process of a user could not read its own files in `/proc`.
pub fn hide_from_dumps() {
    if rustix::process::geteuid().is_root() {
        // Refused by no kernel; the limit is there.
        let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_before_comes_back() {
        let before = CoreDumps::now();
        CoreDumps::forbid().unwrap();
        assert_eq!(CoreDumps::before(), Some(before));
        let now = CoreDumps::now();
        assert!(now.limit_bytes.is_some_and(|bytes| bytes <= 1) && now.filter.is_none_or(|mask| mask == 0), "{now:?}");
        before.set().unwrap();
        assert_eq!(CoreDumps::now(), before);
    }
}
