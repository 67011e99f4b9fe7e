//! What the command line asks of the machine it runs on, read from `/proc` and friends.
//!
//! - [`memory`]: how much there is.
//! - [`process`]: who is alive, safely against reused process ids.
//! - [`reserve`]: free pages that the kernel keeps back while the machine swaps to us.
//! - [`swap_list`]: which swap areas are on.
//! - [`filesystem`]: what a path lies on.
//! - [`executable`]: whether the pager's library can be loaded into a program.
//! - [`system`]: where such facts are read from.
//! - [`waiting`]: for what nobody tells of.

pub(crate) mod executable;
pub(crate) mod filesystem;
pub(crate) mod memory;
pub(crate) mod process;
pub(crate) mod reserve;
pub(crate) mod swap_list;
pub(crate) mod system;
pub(crate) mod waiting;

/// Ends a test because something is missing; under `SPILLWAY_NO_SKIP=1`, as in CI, that is a failure.
#[cfg(test)]
pub(crate) fn skip(missing: &str) {
    let forbidden = std::env::var_os("SPILLWAY_NO_SKIP").is_some_and(|value| value == "1");
    assert!(!forbidden, "this machine lacks {missing}, and SPILLWAY_NO_SKIP=1 forbids to skip");
    println!("skipped: this machine lacks {missing}");
}
