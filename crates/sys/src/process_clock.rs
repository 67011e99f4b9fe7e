//! How long all threads of a process have run: its clock of POSIX (clock_getcpuclockid(3)). Anyone may read it.

use std::io;
use std::time::Duration;

/// No process has a number as high (`PID_MAX_LIMIT` in the kernel's `include/linux/threads.h`). The number of a clock
/// has the process in its upper bits, so a higher one would name another clock.
const PROCESS_END: u32 = 1 << 22;

/// The CPU time of a process, ended threads included; an error when it has ended.
pub fn work_of(process: u32) -> io::Result<Duration> {
    let process = libc::pid_t::try_from(process).ok().filter(|_| process < PROCESS_END);
    let process = process.ok_or(io::ErrorKind::NotFound)?;
    let mut clock = 0;
    // SAFETY: the kernel's library writes one clock number to where `clock` lies.
    let error = unsafe { libc::clock_getcpuclockid(process, &raw mut clock) };
    if error != 0 {
        return Err(io::Error::from_raw_os_error(error));
    }
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes one time to where `time` lies.
    if unsafe { libc::clock_gettime(clock, &raw mut time) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_grows_while_it_is_done_and_ends_with_the_process() {
        let own = std::process::id();
        let before = work_of(own).unwrap();
        while work_of(own).unwrap() < before + Duration::from_millis(5) {}
        assert!(
            [PROCESS_END - 1, PROCESS_END, u32::MAX >> 1, u32::MAX].into_iter().all(|absent| work_of(absent).is_err())
        );
    }
}
