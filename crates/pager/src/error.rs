//! Why a pager could not be started, by what the user can do about it.

use std::path::PathBuf;

use spillway_volume::error::VolumeError;

use crate::limits::{BUDGET_BYTES_MIN, FAULT_THREADS_MAX};

/// Why a pager could not be started. The text says what to do.
#[derive(Debug, thiserror::Error)]
pub enum PagerError {
    /// The budget is too small: give more.
    #[error("a budget of {bytes} bytes is too small; give at least {BUDGET_BYTES_MIN} bytes (16M)")]
    Budget {
        /// The budget that was asked for.
        bytes: u64,
    },
    /// Too few or too many fault threads.
    #[error("{count} fault threads cannot be; take 1 to {FAULT_THREADS_MAX}")]
    FaultThreads {
        /// How many were asked for.
        count: usize,
    },
    /// A file or directory that the pager needs is not there.
    #[error("{} does not exist", path.display())]
    Missing {
        /// Its path.
        path: PathBuf,
    },
    /// The volume behind it could not be started.
    #[error(transparent)]
    Volume(#[from] VolumeError),
    /// A system call failed.
    #[error("{context}: {source}")]
    System {
        /// What was being done.
        context: String,
        /// The error.
        source: std::io::Error,
    },
}

impl PagerError {
    pub(crate) fn system(context: &str) -> impl FnOnce(std::io::Error) -> Self + use<> {
        let context = context.to_owned();
        move |source| Self::System { context, source }
    }
}
