//! How the kernel reaches a device: front ends that turn its block requests into [`BlockChannel`](crate::block::BlockChannel)s.
//!
//! - [`limits`]: every bound of the front ends, with its origin.
//! - [`fuse_protocol`]: bytes of FUSE requests and replies, without I/O.
//! - [`fuse_channel`]: one I/O thread's end of a one-file FUSE filesystem.
//! - [`loop_fuse`]: a loop device with direct I/O over that file, for kernels without ublk and NBD.
//! - [`ownership`]: the names by which mounts and loop devices tell who made them.
//! - [`remains`]: what a killed process left behind, and its removal.

pub mod fuse_channel;
pub mod fuse_protocol;
pub mod limits;
pub mod loop_fuse;
pub mod ownership;
pub mod remains;

/// Why a front end could not be started or stopped. The text says what to do.
#[derive(Debug, thiserror::Error)]
pub enum FrontEndError {
    /// A setting is wrong.
    #[error("{0}")]
    Invalid(String),
    /// The kernel or the user lacks something.
    #[error("{0}")]
    Missing(String),
    /// Somebody still uses the device.
    #[error("{0}")]
    Busy(String),
    /// A system call failed.
    #[error("{context}: {source}")]
    System {
        /// What was being done.
        context: String,
        /// The error.
        source: std::io::Error,
    },
}

impl FrontEndError {
    /// Wraps an error of the system with what was being done.
    pub(crate) fn system(context: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        move |source| Self::System { context: context.into(), source }
    }
}
