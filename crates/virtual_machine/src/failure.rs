//! What can go wrong, by what is to be done about it.

use std::path::{Path, PathBuf};
use std::time::Duration;

/// Why a machine could not be had, or did not do what it was told.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// A test skips (or fails, where skipping is forbidden); a developer installs it.
    #[error("this machine lacks {what}: {remedy}")]
    Missing {
        /// What is missing.
        what: String,
        /// The command that mends it.
        remedy: String,
    },
    /// A program of the host failed.
    #[error("{program}: {status}\n{errors}")]
    Program {
        /// Its command line.
        program: String,
        /// How it ended.
        status: String,
        /// What it said.
        errors: String,
    },
    /// A file of the host could not be used.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The kernel's package has no such module.
    #[error(
        "the kernel {kernel} has no module '{module}'; add it to MODULES in crates/virtual_machine/src/module_tree.rs if its package does"
    )]
    NoModule {
        /// The kernel.
        kernel: &'static str,
        /// The module.
        module: String,
    },
    /// The guest did not do something in time and was ended.
    #[error("the guest did not {what} within {} s and was ended; it complained: {complaints:?}; end of its console:\n{console}", after.as_secs())]
    Deadline {
        /// What was waited for.
        what: String,
        /// How long.
        after: Duration,
        /// The kernel's complaints.
        complaints: Vec<String>,
        /// The end of its console.
        console: String,
    },
    /// The guest ended without being told to: a panic, or QEMU failed.
    #[error("the guest ended by itself ({status}); it complained: {complaints:?}; end of its console:\n{console}")]
    Died {
        /// How QEMU ended.
        status: String,
        /// The kernel's complaints.
        complaints: Vec<String>,
        /// The end of its console, and what QEMU said.
        console: String,
    },
}

impl Failure {
    /// Whether something is missing on this machine, so that a test may skip.
    pub fn missing(&self) -> Option<&str> {
        match self {
            Self::Missing { what, .. } => Some(what),
            _ => None,
        }
    }

    /// For a file that could not be used.
    pub(crate) fn file(path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::File { path, source }
    }
}
