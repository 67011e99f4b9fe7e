//! Why a pager could not be started, by what the user can do about it.

use spillway_volume::error::VolumeError;

/// Why a pager could not be started. The text says what to do.
#[derive(Debug, thiserror::Error)]
pub enum PagerError {
    /// A setting is wrong.
    #[error("{0}")]
    Invalid(String),
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
