//! Why a volume could not be started, by what the user can do about it.

use std::io;
use std::path::PathBuf;

use spillway_fabric::file::BackingError;
use spillway_fabric::key::KeyError;

use crate::settings::SettingsError;
use crate::state::header::StateRefused;

/// Why a volume could not be started. The text says what to do.
#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    /// A setting is wrong: change it.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The cluster key cannot be used: name another file.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The memory that a dead process left is not this volume's: start it as it was, or anew.
    #[error(transparent)]
    State(#[from] StateRefused),
    /// The backing file of a volume that goes on is not there any more: bring it back.
    #[error("the backing file {} with the pages of this device is gone", path.display())]
    BackingGone {
        /// Its path.
        path: PathBuf,
    },
    /// The backing file cannot be used.
    #[error(transparent)]
    Backing(#[from] BackingError),
    /// No donor answered, or none may lend: start one, or mend its address or key.
    #[error(
        "no donor can be reached; start one with 'spillway donate', or check the address and the key\n  {}",
        reasons.join("\n  ")
    )]
    NoDonor {
        /// Each donor's address, and why it cannot be reached.
        reasons: Vec<String>,
    },
    /// A system call failed.
    #[error("{context}: {source}")]
    System {
        /// What was being done.
        context: String,
        /// The error.
        source: io::Error,
    },
}

impl VolumeError {
    pub(crate) fn system(context: &str) -> impl FnOnce(io::Error) -> Self + use<> {
        let context = context.to_owned();
        move |source| Self::System { context, source }
    }
}
