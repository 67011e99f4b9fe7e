//! Another process's memory, read from outside (process_vm_readv(2)), and where a thread keeps what the kernel itself
//! reads.
//!
//! Reading a page that is missing and registered with a userfaultfd waits until that is served, so the thread that
//! serves it must not read. Only for processes that one may trace.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use crate::mapping::Mapping;

/// Copies `length` bytes at `address` of process `pid` to `offset` of `target`. Returns the bytes copied; fewer, when
/// what follows cannot be read.
pub fn read(pid: u32, address: u64, target: &Mapping, offset: usize, length: usize) -> io::Result<usize> {
    assert!(
        offset.checked_add(length).is_some_and(|end| end <= target.length()),
        "range {offset}+{length} lies outside a mapping of {} bytes",
        target.length()
    );
    read_to(pid, address, (target.address() + offset) as *mut libc::c_void, length)
}

/// Fills `target` with what stands at `address` of process `pid`.
pub fn read_exact(pid: u32, address: u64, target: &mut [u8]) -> io::Result<()> {
    if read_to(pid, address, target.as_mut_ptr().cast(), target.len())? == target.len() {
        return Ok(());
    }
    Err(io::Error::from_raw_os_error(libc::EFAULT))
}

/// The memory that a process had when this was opened, and no other: a program that the process executes later has
/// another memory, maybe with more rights, and nothing of that is read here.
#[derive(Debug)]
pub struct HeldMemory {
    content: File,
}

impl HeldMemory {
    /// That of process `pid`, for a process that may trace it.
    pub fn open(pid: u32) -> io::Result<Self> {
        Ok(Self { content: File::open(format!("/proc/{pid}/mem"))? })
    }

    /// Fills `target` with what stands at `address`. An error also for a page that is away: this waits for none.
    pub fn read_exact(&self, address: u64, target: &mut [u8]) -> io::Result<()> {
        self.content.read_exact_at(target, address)
    }
}

/// Words that a record of [`read_records`] has.
pub const RECORD_WORDS: usize = 3;

/// Records that one call reads: `UIO_MAXIOV` of the kernel (`linux/uio.h`).
const RECORDS_MAX: usize = 1024;

/// Reads [`RECORD_WORDS`] words at each of `addresses` of process `pid`; `None` for an address that cannot be read.
/// One call of the kernel where all can be.
pub fn read_records(pid: u32, addresses: &[u64]) -> Vec<Option<[u64; RECORD_WORDS]>> {
    let mut records = vec![[0; RECORD_WORDS]; addresses.len()];
    let mut found = Vec::with_capacity(addresses.len());
    while found.len() < addresses.len() {
        let first = found.len();
        let end = addresses.len().min(first + RECORDS_MAX);
        let complete = read_some(pid, &addresses[first..end], &mut records[first..end]);
        found.extend(records[first..first + complete].iter().copied().map(Some));
        if first + complete < end {
            // The kernel ends at the first address that it cannot read.
            found.push(None);
        }
    }
    found
}

/// Reads records until one cannot be read; how many were.
fn read_some(pid: u32, addresses: &[u64], records: &mut [[u64; RECORD_WORDS]]) -> usize {
    const RECORD_BYTES: usize = size_of::<[u64; RECORD_WORDS]>();
    let remote: Vec<libc::iovec> = addresses.iter().map(|address| part(*address, RECORD_BYTES)).collect();
    // Of a record in two pages, of which the second cannot be read, a part may have come.
    read_parts(pid, &remote, records.as_mut_ptr().cast(), size_of_val(records)).map_or(0, |bytes| bytes / RECORD_BYTES)
}

fn read_to(pid: u32, address: u64, target: *mut libc::c_void, length: usize) -> io::Result<usize> {
    read_parts(pid, &[part(address, length)], target, length)
}

/// A piece of another process's memory.
fn part(address: u64, length: usize) -> libc::iovec {
    libc::iovec { iov_base: address as *mut libc::c_void, iov_len: length }
}

/// Copies `parts` of process `pid`, one behind the other, until one cannot be read or `length` bytes came.
fn read_parts(pid: u32, parts: &[libc::iovec], target: *mut libc::c_void, length: usize) -> io::Result<usize> {
    let local = libc::iovec { iov_base: target, iov_len: length };
    let (pid, count) = (pid.cast_signed(), parts.len() as libc::c_ulong);
    // SAFETY: all callers pass memory of their own that is `length` long and writable; the other addresses are the
    // kernel's to check.
    let read = unsafe { libc::process_vm_readv(pid, &raw const local, 1, parts.as_ptr(), count, 0) };
    if read < 0 { Err(io::Error::last_os_error()) } else { Ok(read.unsigned_abs()) }
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
    use crate::mapping::PAGE_SIZE_BYTES;

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
        wait_until(&|| is_program(b"cat") && top_of_stack().is_some());
        let after = top_of_stack().unwrap() - 8;
        assert!(read_exact(pid, after, &mut word).is_ok() && held.read_exact(after, &mut word).is_err());
        assert!(held.read_exact(before, &mut word).is_err(), "its memory is gone");
        drop(child.stdin.take());
        child.wait().unwrap();
    }

    #[test]
    fn bytes_come_over_as_far_as_they_can_be_read() {
        let pid = std::process::id();
        let source = Mapping::anonymous(PAGE_SIZE_BYTES).unwrap();
        source.write(8, b"remote");
        let target = Mapping::anonymous(PAGE_SIZE_BYTES).unwrap();
        assert_eq!(read(pid, source.address() as u64 + 8, &target, 100, 6).unwrap(), 6);
        let mut bytes = [0; 6];
        target.read(100, &mut bytes);
        assert_eq!(&bytes, b"remote");
        read_exact(pid, source.address() as u64 + 8, &mut bytes).unwrap();
        assert_eq!(&bytes, b"remote");
        assert!(read_exact(pid, 8, &mut bytes).is_err(), "nothing is mapped there");
        assert!(read_exact(u32::MAX >> 1, 8, &mut bytes).is_err(), "no such process");
    }

    #[test]
    fn records_are_read_around_those_that_cannot_be() {
        let pid = std::process::id();
        let words: Vec<u64> = (0..3 * RECORDS_MAX as u64 + 9).collect();
        let at = |index: u64| words.as_ptr() as u64 + index * 8;
        let expected = |index: u64| Some([index, index + 1, index + 2]);
        assert_eq!(
            read_records(pid, &[8, at(0), at(5), 16, 24, at(6), 8]),
            [None, expected(0), expected(5), None, None, expected(6), None]
        );
        let many: Vec<u64> = (0..3 * RECORDS_MAX as u64).collect();
        let found = read_records(pid, &many.iter().map(|index| at(*index)).collect::<Vec<_>>());
        assert!(many.iter().zip(found).all(|(index, found)| found == expected(*index)), "more than one call reads");
        assert_eq!(read_records(pid, &[]), []);
        assert_eq!(read_records(u32::MAX >> 1, &[at(0)]), [None], "no such process");
    }

    #[test]
    fn a_thread_of_glibc_has_a_robust_list_in_its_memory() {
        let thread = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
        let head = robust_list(thread).unwrap().expect("glibc sets one for every thread");
        // The list is empty, so its head points to itself.
        let mut first = [0; 8];
        read_exact(std::process::id(), head, &mut first).unwrap();
        assert_eq!(u64::from_ne_bytes(first), head);
        assert!(robust_list(u32::MAX >> 1).is_err());
    }
}
