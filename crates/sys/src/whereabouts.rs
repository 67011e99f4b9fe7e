//! Where a thread of another process is: `/proc/PID/task/TID/syscall` (proc(5)), for a process that may trace it.

use std::fs;
use std::io;

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
        let text = fs::read_to_string(format!("/proc/{process}/task/{thread}/syscall"))?;
        Self::parse(&text)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, format!("no system call: {text:?}")))
    }

    /// `running`, or `NUMBER ARGUMENT... STACK INSTRUCTION` with all but the number in hexadecimal digits.
    fn parse(text: &str) -> Option<Self> {
        let mut fields = text.split_ascii_whitespace();
        let number = match fields.next()? {
            "running" => return Some(Self::Runs),
            number => number.parse().ok()?,
        };
        if number == -1 {
            return Some(Self::WaitsOutside);
        }
        let mut arguments = [0; 6];
        for argument in &mut arguments {
            *argument = u64::from_str_radix(fields.next()?.strip_prefix("0x")?, 16).ok()?;
        }
        Some(Self::Call(number, arguments))
    }
}

/// At which instruction a thread goes on in user code, when it does; `None` for one that runs. An error as for
/// [`Whereabouts::of_thread`].
pub fn instruction_of(process: u32, thread: u32) -> io::Result<Option<u64>> {
    let text = fs::read_to_string(format!("/proc/{process}/task/{thread}/syscall"))?;
    let last = text.split_ascii_whitespace().next_back().and_then(|field| field.strip_prefix("0x"));
    Ok(last.and_then(|digits| u64::from_str_radix(digits, 16).ok()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_writes_is_understood() {
        let call = "25 0x7f0000001000 0x1001 0x3000 0x3 0x7f0000009000 0x0 0x7ffc0 0x7f01\n";
        let arguments = [0x7f00_0000_1000, 0x1001, 0x3000, 3, 0x7f00_0000_9000, 0];
        assert_eq!(Whereabouts::parse(call), Some(Whereabouts::Call(25, arguments)));
        assert_eq!(Whereabouts::parse("running\n"), Some(Whereabouts::Runs));
        assert_eq!(Whereabouts::parse("-1 0x7ffc0 0x7f01\n"), Some(Whereabouts::WaitsOutside));
        for text in ["", "\n", "walking", "25", "25 0x1000", "25 1 2 3 4 5 6"] {
            assert_eq!(Whereabouts::parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn this_thread_is_in_the_call_that_looks_and_nobody_is_in_none() {
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
