//! What every front end does: it attaches a device to the kernel and detaches it.

use std::path::PathBuf;
use std::time::Duration;

use spillway_fabric::units::PAGE_SIZE_BYTES;

use crate::identity::FrontEndIdentity;
use crate::limits::{SLOTS_PER_THREAD_MAX, THREADS_MAX};

/// How to make a device, whichever the front end.
#[derive(Clone, Debug)]
pub struct FrontEndConfig {
    /// Letters, digits and dashes.
    pub name: String,
    /// Bytes of the device, whole pages.
    pub size_bytes: u64,
    /// Channels to make, one for each I/O thread.
    pub threads: usize,
    /// Requests that one thread holds at most; each takes 1 MiB of locked memory.
    pub slots_per_thread: usize,
    /// Whether the device outlives its process and waits for another one to serve it, where the front end can do
    /// that. To be asked for only when the pages outlive the process too.
    pub recoverable: bool,
    /// How long the service takes for a request at most.
    pub answer_deadline: Duration,
    /// Where to make private files, if any are needed; it need not exist.
    pub directory: PathBuf,
}

impl FrontEndConfig {
    /// Whether any front end could make such a device.
    pub(crate) fn check(&self) -> Result<(), FrontEndError> {
        let invalid = |text: String| Err(FrontEndError::Invalid(text));
        if self.size_bytes == 0 || !self.size_bytes.is_multiple_of(PAGE_SIZE_BYTES as u64) {
            return invalid(format!("a device of {} bytes is not whole pages of {PAGE_SIZE_BYTES}", self.size_bytes));
        }
        // The kernel's file sizes are signed.
        if i64::try_from(self.size_bytes).is_err() {
            return invalid(format!("a device of {} bytes is larger than any file", self.size_bytes));
        }
        if !(1..=THREADS_MAX).contains(&self.threads) {
            return invalid(format!("{} I/O threads; use 1 to {THREADS_MAX}", self.threads));
        }
        if !(1..=SLOTS_PER_THREAD_MAX).contains(&self.slots_per_thread) {
            return invalid(format!("{} slots per thread; use 1 to {SLOTS_PER_THREAD_MAX}", self.slots_per_thread));
        }
        Ok(())
    }
}

/// The block device of a front end. Order of life: opening gives the channels -> the caller starts its I/O threads,
/// one for each channel; then [`FrontEnd::attach`], during which the kernel may already send requests ->
/// [`FrontEnd::detach`] while the threads still run -> the channels say
/// [`Closed`](spillway_block::channel::Received::Closed). Dropping detaches as far as possible.
///
/// The NBD server makes no block device, so it needs no root. It goes through the same life:
///
/// ```
/// use std::time::Duration;
///
/// use spillway_block::channel::{BlockChannel, Received};
/// use spillway_frontend::front_end::{FrontEnd, FrontEndConfig};
/// use spillway_frontend::nbd::listener::NbdAddress;
/// use spillway_frontend::nbd::server::{NbdListen, NbdServer};
///
/// let directory = tempfile::tempdir()?;
/// let socket = directory.path().join("disk.socket");
/// let config = FrontEndConfig {
///     name: "disk".to_owned(),
///     size_bytes: 1 << 20,
///     threads: 1,
///     slots_per_thread: 1,
///     recoverable: false,
///     answer_deadline: Duration::from_secs(30),
///     directory: directory.path().to_owned(),
/// };
/// let listen = NbdListen { addresses: vec![NbdAddress::Unix(socket)], exposed: false };
///
/// // A device starts one I/O thread for each channel here.
/// let (mut front_end, mut channels) = NbdServer::open(&config, &listen)?;
/// let path = front_end.attach()?;
/// assert!(path.to_string_lossy().ends_with("disk.socket"));
/// assert_eq!(channels[0].receive()?, Received::Nothing);
///
/// // No client is connected, so the server need not wait.
/// front_end.detach(Duration::ZERO)?;
/// assert_eq!(channels[0].receive()?, Received::Closed);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait FrontEnd: Send {
    /// Makes the block device; returns its path. On an error there is none.
    fn attach(&mut self) -> Result<PathBuf, FrontEndError>;

    /// Removes the block device. While it is open past `deadline`, it fails with [`FrontEndError::Busy`], and
    /// everything stays as it was.
    fn detach(&mut self, deadline: Duration) -> Result<(), FrontEndError>;

    /// Whether the block device, once attached, outlives this process and waits for another one. Most end with it.
    fn outlives_process(&self) -> bool {
        false
    }

    /// What another process needs to take the block device over, should this one die; as soon as it can be told.
    fn recovery(&self) -> Option<FrontEndIdentity> {
        None
    }
}

/// Why a front end could not be started or stopped. The text says what to do.
#[derive(Debug, thiserror::Error)]
pub enum FrontEndError {
    /// A setting is wrong.
    #[error("{0}")]
    Invalid(String),
    /// The kernel or the user lacks something.
    #[error("{0}")]
    Missing(String),
    /// The device is still in use.
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
