//! Forks that the kernel does not tell of: without `CAP_SYS_PTRACE` (docs/pager.md, "Forks without messages").
//!
//! - [`page_in`]: every page of the program comes back before its fork.
//! - [`reservations`]: whether there is memory for that, for all such forks together.

pub mod page_in;
pub mod reservations;
