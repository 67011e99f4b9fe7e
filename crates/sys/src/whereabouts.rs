//! Where a thread of another process is: `/proc/PID/task/TID/syscall` (proc(5)), for a process that may trace it.

use crate::lease::read_unless_leased;
use std::io;

use crate::proc_text::words::{self, Call};

/// One look at a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whereabouts {
    /// It runs, in user code or in the kernel.
    Runs,
    /// It waits, though in no system call: for a page that user code touched, say.
    WaitsOutside,
    /// It waits in a system call of this number, with these arguments.
    Call(i64, [u64; 6]),
}

impl Whereabouts {
    /// Of a thread now; an error when it ended, or when it may not be traced.
    pub fn of_thread(process: u32, thread: u32) -> io::Result<Self> {
        let text = read_unless_leased(format!("/proc/{process}/task/{thread}/syscall"))?;
        match words::call(&text) {
            Some(Call::Runs) => Ok(Self::Runs),
            Some(Call::Outside) => Ok(Self::WaitsOutside),
            Some(Call::Number(number, arguments)) => Ok(Self::Call(number, arguments)),
            None => Err(io::Error::new(io::ErrorKind::InvalidData, "no system call stands in a file of that name")),
        }
    }
}

/// At which instruction a thread goes on in user code, when it does; `None` for one that runs. An error as for
/// [`Whereabouts::of_thread`].
pub fn instruction_of(process: u32, thread: u32) -> io::Result<Option<u64>> {
    Ok(words::instruction(&read_unless_leased(format!("/proc/{process}/task/{thread}/syscall"))?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_thread_is_in_the_call_that_looks_and_no_thread_is_in_none() {
        let (process, thread) = (std::process::id(), rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs());
        let own = Whereabouts::of_thread(process, thread).unwrap();
        assert!(matches!(own, Whereabouts::Call(libc::SYS_read, _)), "{own:?}");
        let (tell, told) = std::sync::mpsc::channel();
        let waiter = std::thread::spawn(move || {
            tell.send(rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs()).unwrap();
            std::thread::park();
        });
        let number = told.recv().unwrap();
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while !matches!(Whereabouts::of_thread(process, number), Ok(Whereabouts::Call(libc::SYS_futex, _))) {
            assert!(std::time::Instant::now() < deadline, "a parked thread waits in futex(2)");
            std::thread::yield_now();
        }
        waiter.thread().unpark();
        waiter.join().unwrap();
        assert!(Whereabouts::of_thread(process, u32::MAX >> 1).is_err());
    }
}
