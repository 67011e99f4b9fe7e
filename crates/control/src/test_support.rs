//! For tests of this crate and of those above it.
//!
//! Behind the feature `test-support`, which only tests ask for, so no shipped program has it.

use tempfile::TempDir;

use crate::registry::Registry;

/// A registry that is gone with its directory.
pub fn temporary_registry() -> (TempDir, Registry) {
    let directory = tempfile::tempdir().expect("a temporary directory can be made");
    let registry = Registry::at(directory.path().join("registry")).expect("it is this process's own");
    (directory, registry)
}
