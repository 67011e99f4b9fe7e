//! Where a thread keeps its list of robust mutexes (get_robust_list(2)): in its control block, whatever libc it has.
//!
//! When the thread ends the kernel itself goes through that list, with no fault served any more. So whoever pages programs must
//! know these places.

use std::io;

/// The address of the list's head in thread `thread`'s memory; `None` if it has none. Only for processes that one may trace.
pub fn robust_list_head(thread: u32) -> io::Result<Option<u64>> {
    let (mut head, mut length) = (0_u64, 0_usize);
    // SAFETY: the kernel writes a pointer and a size to the two places given, which live through the call.
    let result = unsafe { libc::syscall(libc::SYS_get_robust_list, thread, &raw mut head, &raw mut length) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok((head != 0).then_some(head))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thread_has_its_own_list() {
        let own = |_| rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
        let one = robust_list_head(own(())).unwrap();
        let other = std::thread::spawn(move || robust_list_head(own(())).unwrap()).join().unwrap();
        assert!(one.is_some() && other.is_some() && one != other);
        assert!(robust_list_head(u32::MAX >> 1).is_err());
    }
}
