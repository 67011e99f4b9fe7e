//! Advice about another process's memory (process_madvise(2), Linux 5.10).
//!
//! The advice that memory will be needed makes the kernel read its pages from swap into the swap cache, without
//! waiting for them; the process finds them there. They count in the cgroup of that process, and the kernel takes
//! other pages from it to make room, in the thread that advises. Needs `CAP_SYS_NICE` and the right to trace.

use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::process::{Pid, PidfdFlags};

/// Ranges of one call at most (`UIO_MAXIOV`).
pub const RANGES_MAX: usize = 1024;

/// The ranges of addresses will be needed. Returns the bytes of those that the kernel took, from the first on; it
/// stops at a range that is not mapped as a whole.
pub fn will_need(process: BorrowedFd<'_>, ranges: &[Range<u64>]) -> io::Result<u64> {
    let vector: Vec<libc::iovec> = ranges
        .iter()
        .map(|range| libc::iovec {
            iov_base: range.start as *mut libc::c_void,
            iov_len: (range.end - range.start) as usize,
        })
        .collect();
    // SAFETY: the kernel reads a list of ours that is as long as said; the addresses are another process's, and it
    // checks them.
    let taken = unsafe {
        libc::syscall(
            libc::SYS_process_madvise,
            process.as_raw_fd(),
            vector.as_ptr(),
            vector.len(),
            libc::MADV_WILLNEED,
            0,
        )
    };
    u64::try_from(taken).map_err(|_| io::Error::last_os_error())
}

/// Whether this process may advise about another one's memory, tried on its parent without a range; an error says
/// what the kernel lacks or refuses.
pub fn probe() -> io::Result<()> {
    let process = rustix::process::getppid().unwrap_or(Pid::INIT);
    let process = rustix::process::pidfd_open(process, PidfdFlags::empty())?;
    will_need(std::os::fd::AsFd::as_fd(&process), &[]).map(drop)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::mapping::{Mapping, PAGE_SIZE_BYTES};

    #[test]
    fn mapped_ranges_are_taken_up_to_one_that_is_not() {
        let itself = rustix::process::pidfd_open(rustix::process::getpid(), PidfdFlags::empty()).unwrap();
        let memory = Mapping::anonymous(8 * PAGE_SIZE_BYTES).unwrap();
        let page = |number: u64| {
            let start = memory.address() as u64 + number * PAGE_SIZE_BYTES as u64;
            start..start + PAGE_SIZE_BYTES as u64
        };
        match will_need(itself.as_fd(), &[page(1), page(5)]) {
            Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => {
                return crate::skipping::skip("process_madvise(2), Linux 5.10");
            }
            taken => assert_eq!(taken.unwrap(), 2 * PAGE_SIZE_BYTES as u64),
        }
        let nothing_there = 0..PAGE_SIZE_BYTES as u64;
        assert_eq!(
            will_need(itself.as_fd(), &[page(1), nothing_there.clone(), page(2)]).unwrap(),
            PAGE_SIZE_BYTES as u64,
            "those before it"
        );
        let error = will_need(itself.as_fd(), &[nothing_there]).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOMEM));
    }

    #[test]
    fn root_may_advise_its_parent() {
        if !rustix::process::geteuid().is_root() {
            return crate::skipping::skip("root");
        }
        match probe() {
            Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => {
                crate::skipping::skip("process_madvise(2), Linux 5.10");
            }
            result => result.unwrap(),
        }
    }
}
