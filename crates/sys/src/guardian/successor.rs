//! What a guardian becomes when it has done its work: a program that clears up after the process that was killed.

use std::ffi::{CString, OsStr, OsString, c_char};
use std::io;
use std::os::unix::ffi::OsStrExt;

/// A program with its arguments and the environment of this process, made ready beforehand: a copy of a threaded
/// process may make system calls only.
#[derive(Debug)]
pub struct Successor {
    program: CString,
    arguments: Words,
    environment: Words,
}

/// Texts as `execve` takes them.
#[derive(Debug)]
struct Words {
    /// To each of the texts, and zero behind them.
    pointers: Vec<*const c_char>,
    /// Never changed, so that the pointers are good as long as this value.
    _texts: Vec<CString>,
}

// SAFETY: the pointers are to heap memory that the same value owns and no thread changes; they are bound to no thread.
unsafe impl Send for Words {}
// SAFETY: as above, and all access is by reading.
unsafe impl Sync for Words {}

impl Words {
    fn new(texts: impl IntoIterator<Item = OsString>) -> io::Result<Self> {
        let texts = texts.into_iter().map(|text| CString::new(text.as_bytes())).collect::<Result<Vec<_>, _>>()?;
        let end = std::iter::once(std::ptr::null());
        Ok(Self { pointers: texts.iter().map(|text| text.as_ptr()).chain(end).collect(), _texts: texts })
    }
}

impl Successor {
    /// The file `program`; the first of the `arguments` is its name. Only a text with a zero byte inside is an error.
    pub fn new(program: &OsStr, arguments: &[OsString]) -> io::Result<Self> {
        let join = |(mut name, value): (OsString, OsString)| {
            name.push("=");
            name.push(value);
            name
        };
        Ok(Self {
            program: CString::new(program.as_bytes())?,
            arguments: Words::new(arguments.iter().cloned())?,
            environment: Words::new(std::env::vars_os().map(join))?,
        })
    }

    /// Makes this process that program, without input and output and with no signal blocked; returns if it cannot be
    /// had.
    pub(super) fn take_over(&self) {
        // SAFETY: system calls on memory that this value owns, which lives through them. The process is a copy with
        // one thread.
        unsafe {
            let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC);
            if null >= 0 {
                // A thread that reads the output of the process that was killed is not to wait for this one.
                (0..3).for_each(|standard| _ = libc::dup2(null, standard));
            }
            let mask = 0_u64;
            libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const mask, 0, size_of::<u64>());
            libc::execve(self.program.as_ptr(), self.arguments.pointers.as_ptr(), self.environment.pointers.as_ptr());
        }
    }
}
