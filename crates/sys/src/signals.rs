//! Signals as the caller of this program set them, and whether one was meant for all of a process group.
//!
//! Rust ignores SIGPIPE before `main`, and its [`Command`] gives every child the default for it and an empty mask. So
//! what the caller set is noted before that, by a constructor, and [`keep`] gives it to a program.

use std::io;
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::OnceLock;

use rustix::process::Pid;

/// What the caller of this program set.
#[derive(Clone, Copy)]
struct Inherited {
    /// Signals that are ignored, by their bits.
    ignored: u64,
    /// Those that are blocked.
    blocked: libc::sigset_t,
}

static INHERITED: OnceLock<Inherited> = OnceLock::new();

/// The C library calls this before `main`.
#[used]
#[unsafe(link_section = ".init_array")]
static NOTE: extern "C" fn() = note;

extern "C" fn note() {
    let _ = INHERITED.set(Inherited::now());
}

impl Inherited {
    fn now() -> Self {
        let ignored = (1..=libc::SIGRTMAX()).filter(|signal| is_ignored(*signal)).map(bit).sum();
        let mut blocked = no_signals();
        // SAFETY: changes nothing, and writes to a set of ours.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &raw mut blocked) };
        Self { ignored, blocked }
    }

    fn ignores(&self, signal: i32) -> bool {
        self.ignored & bit(signal) != 0
    }
}

fn inherited() -> &'static Inherited {
    INHERITED.get_or_init(Inherited::now)
}

/// The bit of a signal, whose number is 1 to 64.
fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}

fn no_signals() -> libc::sigset_t {
    // SAFETY: a set of signals is bits, and all zeroes is the empty one on Linux.
    unsafe { std::mem::zeroed() }
}

fn is_ignored(signal: i32) -> bool {
    // SAFETY: an action is numbers and an address, for which zeroes are good; nothing changes.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: as above. The C library refuses its own signals.
    let result = unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut action) };
    result == 0 && action.sa_sigaction == libc::SIG_IGN
}

/// Whether the caller of this program ignored `signal`; nohup(1) does so with SIGHUP, a shell with SIGINT and SIGQUIT
/// of what it starts in its background.
pub fn is_ignored_by_caller(signal: i32) -> bool {
    inherited().ignores(signal)
}

/// Makes sure that this process hears of the end of its children, also where the caller ignored SIGCHLD: the kernel
/// forgets them then.
pub fn hear_of_children() {
    if inherited().ignores(libc::SIGCHLD) {
        // SAFETY: the default for this signal runs no code.
        unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
    }
}

/// From here on a file beyond this process's limit is an error of the call (EFBIG), and ends no process.
pub fn ignore_file_limit() {
    // SAFETY: to ignore a signal runs no code.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// Gives the program that `command` becomes the dispositions and the mask of this process's caller.
pub fn keep(command: &mut Command) {
    let inherited = *inherited();
    // The rest stays as it is: what this process handles gets the default, and what it ignores stays ignored.
    let restored = [libc::SIGPIPE, libc::SIGCHLD, libc::SIGXFSZ].map(|signal| (signal, inherited.ignores(signal)));
    let restore = move || {
        for (signal, is_ignored) in restored {
            // SAFETY: neither disposition runs code of ours.
            unsafe { libc::signal(signal, if is_ignored { libc::SIG_IGN } else { libc::SIG_DFL }) };
        }
        // SAFETY: reads a set of ours.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const inherited.blocked, std::ptr::null_mut()) };
        Ok(())
    };
    // SAFETY: the closure makes async-signal-safe calls only, after those with which `Command` sets its own defaults.
    unsafe { command.pre_exec(restore) };
}

/// Makes all signals wait in the program that `command` becomes, but for those that no program can block.
pub fn block_all(command: &mut Command) {
    let block = || {
        let mut all = no_signals();
        // SAFETY: fills a set of ours, and reads it.
        unsafe {
            libc::sigfillset(&raw mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, std::ptr::null_mut());
        }
        Ok(())
    };
    // SAFETY: the closure makes async-signal-safe calls only.
    unsafe { command.pre_exec(block) };
}

/// What a process does that is asked which signals came to its process group. It blocks all signals ([`block_all`]),
/// and answers for each byte of `asked`, the number of a signal, with a byte: 1 if this one was waiting, which it
/// takes. Returns when there is no more to be asked.
pub fn witness(mut asked: impl Read, mut answers: impl Write) -> io::Result<()> {
    let mut signal = [0];
    while asked.read(&mut signal)? == 1 {
        answers.write_all(&[u8::from(take(signal[0].into()))])?;
        answers.flush()?;
    }
    Ok(())
}

/// Sends a process a signal, which may be a real-time one.
pub fn send(process: Pid, signal: i32) -> io::Result<()> {
    // SAFETY: numbers only.
    let result = unsafe { libc::kill(process.as_raw_nonzero().get(), signal) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Takes a blocked signal that waits; false if none does.
fn take(signal: i32) -> bool {
    let mut wanted = no_signals();
    // SAFETY: changes a set of ours; a number that is no signal is refused.
    unsafe { libc::sigaddset(&raw mut wanted, signal) };
    let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: reads a set and a time of ours, and writes nothing.
    unsafe { libc::sigtimedwait(&raw const wanted, std::ptr::null_mut(), &raw const now) == signal }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_that_waits_is_taken_once() {
        let thread = std::thread::spawn(|| {
            let mut wanted = no_signals();
            // SAFETY: sets of ours; the signal is sent to this thread, which blocks it.
            unsafe {
                libc::sigaddset(&raw mut wanted, libc::SIGWINCH);
                libc::pthread_sigmask(libc::SIG_BLOCK, &raw const wanted, std::ptr::null_mut());
                libc::pthread_kill(libc::pthread_self(), libc::SIGWINCH);
            }
            [take(libc::SIGWINCH), take(libc::SIGWINCH), take(libc::SIGUSR1)]
        });
        assert_eq!(thread.join().unwrap(), [true, false, false]);
    }

    #[test]
    fn what_the_caller_ignores_is_known_and_kept() {
        assert!(!is_ignored_by_caller(libc::SIGSEGV));
        let mut command = Command::new("grep");
        keep(command.args(["-h", "SigIgn", "/proc/self/status"]));
        let said = command.output().unwrap();
        let text = String::from_utf8(said.stdout).unwrap();
        let ignored = u64::from_str_radix(text.trim_start_matches("SigIgn:").trim(), 16).unwrap();
        assert_eq!(ignored & bit(libc::SIGPIPE) != 0, is_ignored_by_caller(libc::SIGPIPE), "{text}");
    }
}
