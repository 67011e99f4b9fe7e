//! A copy of a descriptor that another thread has open (pidfd_getfd(2)): what a program can hand over without any
//! address.
//!
//! The thread may have a table of descriptors of its own, so it is named by a descriptor of the thread
//! (`PIDFD_THREAD`, Linux 6.9).

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Copies descriptor `number` of thread `thread`, which one must be allowed to trace. Fails with `EINVAL` before
/// Linux 6.9.
pub fn take_descriptor(thread: u32, number: i32) -> io::Result<OwnedFd> {
    let target = call(libc::SYS_pidfd_open, i64::from(thread), i64::from(libc::PIDFD_THREAD))?;
    call(libc::SYS_pidfd_getfd, i64::from(target.as_raw_fd()), i64::from(number))
}

/// A system call of two numbers, and a third that is 0, that gives a descriptor.
fn call(name: libc::c_long, first: i64, second: i64) -> io::Result<OwnedFd> {
    // SAFETY: numbers only.
    let result = unsafe { libc::syscall(name, first, second, 0) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel gave a new descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(result as i32) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::{Read, Seek, Write};

    #[test]
    fn a_descriptor_of_another_thread_is_the_same_file() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"passed on").unwrap();
        let own = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
        let number = file.as_raw_fd();
        let taken = std::thread::spawn(move || take_descriptor(own, number)).join().unwrap();
        let Ok(taken) = taken else {
            return crate::skipping::skip("descriptors of threads (Linux 6.9)");
        };
        let (mut taken, mut text) = (File::from(taken), String::new());
        taken.rewind().unwrap();
        taken.read_to_string(&mut text).unwrap();
        assert_eq!(text, "passed on");
        assert!(take_descriptor(own, i32::MAX).is_err() && take_descriptor(u32::MAX >> 1, number).is_err());
    }
}
