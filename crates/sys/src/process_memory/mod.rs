//! Another process's memory, read from outside (process_vm_readv(2)), and where a thread keeps what the kernel itself
//! reads.
//!
//! No thread reads it itself: another process can make a read wait for ever (`reader`). A read that takes longer than
//! some milliseconds fails ([`io::ErrorKind::WouldBlock`]), and may be tried again. One task reads for all programs of
//! a user, so a program can hold up reads of its own user's programs only. A program whose memory made a task hang is
//! not read for a while, which grows each time.
//!
//! Only for processes that one may trace.

mod reader;

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use self::reader::{HEAD_BYTES, Job, Reader, Unread};
use crate::lease::open_unless_leased;
use crate::process::{ProcessIdentity, user_of};

/// Fills `target` with what stands at `address` of process `pid`.
pub fn read_exact(pid: u32, address: u64, target: &mut [u8]) -> io::Result<()> {
    let job = read(Job::new(pid, &[address], target.len()))?;
    if job.is_read != [true] {
        return Err(io::Error::from_raw_os_error(libc::EFAULT));
    }
    target.copy_from_slice(&job.bytes);
    Ok(())
}

/// The memory that a process had when this was opened, and no other: a program that the process executes later has
/// another memory, maybe with more rights, and nothing of that is read here.
#[derive(Debug)]
pub struct HeldMemory {
    content: Arc<File>,
}

impl HeldMemory {
    /// That of process `pid`, for a process that may trace it.
    pub fn open(pid: u32) -> io::Result<Self> {
        Ok(Self { content: Arc::new(open_unless_leased(format!("/proc/{pid}/mem"))?) })
    }

    /// The file, `/proc/PID/mem`.
    pub fn file(&self) -> &Arc<File> {
        &self.content
    }

    /// Fills `target` with what stands at `address`. An error also for a page that is away: this waits for no
    /// userfaultfd. It does wait for a file system that a program serves itself.
    pub fn read_exact(&self, address: u64, target: &mut [u8]) -> io::Result<()> {
        self.content.read_exact_at(target, address)
    }
}

/// Reads a word of 32 bits at each of `addresses` of process `pid`; `None` for an address that cannot be read. The
/// error is `PermissionDenied` where this user may not read the process (ptrace(2)): that says nothing of addresses.
pub fn read_words(pid: u32, addresses: &[u64]) -> io::Result<Vec<Option<u32>>> {
    let job = read(Job::new(pid, addresses, size_of::<u32>()))?;
    let word = |bytes: &[u8]| u32::from_ne_bytes(bytes.try_into().expect("a word has four bytes"));
    let words = job.bytes.chunks_exact(size_of::<u32>()).map(word);
    Ok(words.zip(job.is_read).map(|(word, is_read)| is_read.then_some(word)).collect())
}

/// Where the robust locks are, and their entries, that threads of process `pid` hold or are just taking: the kernel
/// marks them when the thread ends. `heads` are those of the threads' lists ([`robust_list`]).
pub fn robust_locks(pid: u32, heads: &[u64]) -> io::Result<Vec<u64>> {
    Ok(read(Job::new(pid, heads, HEAD_BYTES).with_locks(LOCKS_MAX))?.locks)
}

/// Robust locks of one process that are looked at.
const LOCKS_MAX: usize = 1024;

/// Tasks at a time: that many users have programs in few runs.
const READERS_MAX: usize = 64;

/// How long it is known whose program a process is.
const USER_KNOWN: Duration = Duration::from_secs(1);

/// How long a program is not read at first after its memory made a task hang, and at most.
const PAUSE_MIN: Duration = Duration::from_secs(4);
const PAUSE_MAX: Duration = Duration::from_secs(600);

/// Processes of which something is remembered.
const KNOWN_MAX: usize = 4096;

/// A program whose memory made a task hang.
#[derive(Debug)]
struct Hung {
    process: ProcessIdentity,
    until: Instant,
    pause: Duration,
}

#[derive(Debug, Default)]
struct Readers {
    /// By user.
    readers: HashMap<u32, Arc<Mutex<Reader>>>,
    /// Whose program a process is, and when that was looked up.
    users: HashMap<u32, (u32, Instant)>,
    hung: HashMap<u32, Hung>,
}

fn readers() -> std::sync::MutexGuard<'static, Readers> {
    static READERS: OnceLock<Mutex<Readers>> = OnceLock::new();
    READERS.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

fn read(job: Job) -> io::Result<Job> {
    let reader = readers().reader_for(job.process(), Instant::now())?;
    let answer = reader.lock().unwrap_or_else(PoisonError::into_inner).read(job);
    match answer {
        Ok(job) if job.is_forbidden => Err(io::ErrorKind::PermissionDenied.into()),
        Ok(job) => Ok(job),
        Err(Unread::Later) => Err(io::ErrorKind::WouldBlock.into()),
        Err(Unread::Hung(process)) => {
            readers().note_hung(process, Instant::now());
            Err(io::ErrorKind::WouldBlock.into())
        }
        Err(Unread::Kernel(error)) => Err(error),
    }
}

impl Readers {
    /// The reader of the programs of the user whose program `process` is.
    fn reader_for(&mut self, process: u32, now: Instant) -> io::Result<Arc<Mutex<Reader>>> {
        if let Some(hung) = self.hung.get(&process).filter(|hung| now < hung.until) {
            if hung.process.is_alive()? {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            self.hung.remove(&process);
        }
        let user = match self.users.get(&process) {
            Some((user, at)) if now.saturating_duration_since(*at) < USER_KNOWN => *user,
            _ => {
                let user = user_of(process)?;
                self.users.retain(|_, (_, at)| now.saturating_duration_since(*at) < USER_KNOWN);
                self.users.insert(process, (user, now));
                user
            }
        };
        if self.readers.len() >= READERS_MAX && !self.readers.contains_key(&user) {
            // None of them is used just now, or it is used on.
            self.readers.clear();
        }
        Ok(Arc::clone(self.readers.entry(user).or_default()))
    }

    fn note_hung(&mut self, process: u32, now: Instant) {
        let Ok(Some(identity)) = ProcessIdentity::of(process) else { return };
        if self.hung.len() >= KNOWN_MAX {
            self.hung.retain(|_, hung| now < hung.until);
        }
        let known = self.hung.get(&process).filter(|hung| hung.process == identity);
        let pause = known.map_or(PAUSE_MIN, |hung| (hung.pause * 2).min(PAUSE_MAX));
        self.hung.insert(process, Hung { process: identity, until: now + pause, pause });
    }
}

/// Where thread `thread` has the head of its list of robust futexes (get_robust_list(2)), which lies in its control
/// block. The kernel walks the list when the thread ends, and gets no fault served then; so this page and its
/// neighbours stay where they are. `None` for a thread without a list.
pub fn robust_list(thread: u32) -> io::Result<Option<u64>> {
    let (mut head, mut length) = (0_u64, 0_usize);
    // SAFETY: the kernel writes an address and a length into two words of ours.
    let result =
        unsafe { libc::syscall(libc::SYS_get_robust_list, thread.cast_signed(), &raw mut head, &raw mut length) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok((head != 0).then_some(head)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_is_held_is_not_that_of_the_next_program() {
        // The shell waits for a line, and becomes another program then.
        let mut command = std::process::Command::new("sh");
        command.args(["-c", "read line; exec cat"]).stdin(std::process::Stdio::piped());
        let mut child = command.spawn().unwrap();
        let pid = child.id();
        let top_of_stack = || {
            let text = std::fs::read(format!("/proc/{pid}/maps")).unwrap();
            crate::proc_text::maps::all(&text).find(|mapped| mapped.name == b"[stack]").map(|mapped| mapped.range.end)
        };
        let is_program = |name: &[u8]| std::fs::read(format!("/proc/{pid}/comm")).unwrap().trim_ascii() == name;
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
        let wait_until = |is_so: &dyn Fn() -> bool| {
            while !is_so() {
                assert!(std::time::Instant::now() < deadline, "the shell does not become what it shall");
                std::thread::yield_now();
            }
        };
        wait_until(&|| is_program(b"sh") && top_of_stack().is_some());
        let (before, mut word) = (top_of_stack().unwrap() - 8, [0; 8]);
        let held = HeldMemory::open(pid).unwrap();
        held.read_exact(before, &mut word).unwrap();
        std::io::Write::write_all(child.stdin.as_mut().unwrap(), b"\n").unwrap();
        // The stack moves once more while the kernel starts the program.
        let after = std::cell::Cell::new(0);
        wait_until(&|| {
            after.set(top_of_stack().unwrap_or(8) - 8);
            is_program(b"cat") && read_exact(pid, after.get(), &mut [0; 8]).is_ok()
        });
        assert!(held.read_exact(after.get(), &mut word).is_err());
        assert!(held.read_exact(before, &mut word).is_err(), "its memory is gone");
        drop(child.stdin.take());
        child.wait().unwrap();
    }

    #[test]
    fn bytes_and_words_are_read_and_what_cannot_be_is_an_error() {
        let (pid, words) = (std::process::id(), [1_u32, 2, 3]);
        let address = words.as_ptr() as u64;
        let mut bytes = [0; 8];
        patiently(|| read_exact(pid, address + 4, &mut bytes)).unwrap();
        assert_eq!(bytes, [2_u32.to_ne_bytes(), 3_u32.to_ne_bytes()].concat()[..]);
        assert_eq!(patiently(|| read_words(pid, &[8, address + 8])).unwrap(), [None, Some(3)]);
        let error = patiently(|| read_exact(pid, 8, &mut bytes)).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EFAULT), "nothing is mapped there");
        assert!(patiently(|| read_exact(u32::MAX >> 1, 8, &mut bytes)).is_err(), "no such process");
    }

    /// A busy machine may keep the task from running.
    fn patiently<T>(mut read: impl FnMut() -> io::Result<T>) -> io::Result<T> {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            match read() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && Instant::now() < deadline => {}
                result => return result,
            }
        }
    }

    #[test]
    fn a_thread_of_glibc_has_a_robust_list_in_its_memory() {
        let thread = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
        let head = robust_list(thread).unwrap().expect("glibc sets one for every thread");
        // The list is empty, so its head points to itself.
        let mut first = [0; 8];
        patiently(|| read_exact(std::process::id(), head, &mut first)).unwrap();
        assert_eq!(u64::from_ne_bytes(first), head);
        assert!(robust_list(u32::MAX >> 1).is_err());
    }
}
