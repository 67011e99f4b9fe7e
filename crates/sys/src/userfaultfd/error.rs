//! What an operation on pages of another process can answer, named by what the caller does next.

use std::io;

/// Why pages were not filled, moved or protected.
#[derive(Debug, thiserror::Error)]
pub enum PageError {
    /// A page is there already (`EEXIST`): another thread filled it; wake its waiters.
    #[error("the page is there already; wake the threads that wait for it")]
    Exists,
    /// No mapping that is registered here covers the whole range (`ENOENT`): unmapped meanwhile, or it spans two
    /// mappings. For a move: a page of the source is missing.
    #[error("no single registered mapping covers the range; look at the process's mappings again")]
    NotMapped,
    /// The process is changing its mappings (`EAGAIN`); nothing was done. Read its messages, then try again.
    #[error("the process is changing its mappings; read its messages and try again later")]
    TryAgain,
    /// A page is pinned, shared with a forked process, or otherwise in use (`EBUSY`).
    #[error("a page is pinned or shared with a forked process; leave it where it is")]
    Busy,
    /// No memory for the page (`ENOMEM`), or the process's limit is reached. For a change of protection: the range is
    /// not mapped.
    #[error("the kernel has no memory for the page; free some and try again")]
    NoMemory,
    /// The process ended (`ESRCH`).
    #[error("the process has ended; forget it")]
    Gone,
    /// The kernel refuses the arguments (`EINVAL`): not page aligned, not registered here, wrong kind of memory, or
    /// not this process's to move.
    #[error("the kernel refuses the range: not registered here, not private anonymous memory, or not of this process")]
    Refused,
    /// Anything else.
    #[error("userfaultfd: {0}")]
    Kernel(#[source] io::Error),
}

impl PageError {
    /// The meaning of an error number. Whether what was to be copied cannot be read (EFAULT): it lies in memory that
    /// is broken, or that came from a device which cannot be read.
    pub fn is_unreadable(&self) -> bool {
        matches!(self, Self::Kernel(error) if error.raw_os_error() == Some(libc::EFAULT))
    }

    pub(super) fn from_number(number: i32) -> Self {
        match number {
            libc::EEXIST => Self::Exists,
            libc::ENOENT => Self::NotMapped,
            libc::EAGAIN => Self::TryAgain,
            libc::EBUSY => Self::Busy,
            libc::ENOMEM => Self::NoMemory,
            libc::ESRCH => Self::Gone,
            libc::EINVAL => Self::Refused,
            other => Self::Kernel(io::Error::from_raw_os_error(other)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_their_meaning() {
        assert!(matches!(PageError::from_number(libc::EEXIST), PageError::Exists));
        assert!(matches!(PageError::from_number(libc::EBUSY), PageError::Busy));
        let unknown = PageError::from_number(libc::EFAULT);
        assert!(
            matches!(&unknown, PageError::Kernel(error) if error.raw_os_error() == Some(libc::EFAULT)),
            "{unknown}"
        );
    }
}
