//! One block request: what the kernel asks of a device, and how it fails.

use spillway_fabric::units::Priority;

/// What the kernel asks of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockOperation {
    /// Fill the slot's buffer from the device.
    Read,
    /// Store the slot's buffer on the device.
    Write,
    /// The range's content is not needed any more and reads as zeroes.
    Discard,
    /// Everything acknowledged before must survive what the volume promises to survive.
    Flush,
}

/// One request; offsets and lengths are whole pages (the device's logical block is a page).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockRequest {
    /// The buffer pool slot it occupies, which also names it.
    pub slot: usize,
    /// What to do.
    pub operation: BlockOperation,
    /// Bytes from the start of the device.
    pub offset_bytes: u64,
    /// Bytes; at most the slot's size, except for a discard. 0 for a flush.
    pub length_bytes: u64,
    /// Whether a thread waits for it. Block devices are not told which reads are read-ahead: ublk, NBD and FUSE have
    /// no word for it, so what comes from them is [`Priority::Demand`].
    pub priority: Priority,
}

/// How a request failed, as the kernel is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BlockError {
    /// The page's every copy is lost, or the medium failed (`EIO`).
    #[error("input/output error")]
    InputOutput,
    /// There is no room to store the page (`ENOSPC`).
    #[error("no space left for the page")]
    NoSpace,
    /// The request does not lie inside the device, or is not whole pages (`EINVAL`).
    #[error("invalid request")]
    Invalid,
    /// No copy could be reached before the deadline (`ETIMEDOUT`).
    #[error("timed out")]
    TimedOut,
}

impl BlockError {
    /// The errno that front ends answer with.
    pub fn errno(self) -> i32 {
        let errno = match self {
            Self::InputOutput => rustix::io::Errno::IO,
            Self::NoSpace => rustix::io::Errno::NOSPC,
            Self::Invalid => rustix::io::Errno::INVAL,
            Self::TimedOut => rustix::io::Errno::TIMEDOUT,
        };
        errno.raw_os_error()
    }
}
