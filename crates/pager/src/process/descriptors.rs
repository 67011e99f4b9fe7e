//! Descriptors of objects of memfd_create(2) that are open anywhere on the machine.
//!
//! A descriptor reads zeroes from a hole, and the kernel tells of nothing that is done with it. It is in the table of
//! a thread, or on its way in the queue of a UNIX socket (`SCM_RIGHTS`). The kernel says of each socket how many
//! are in its queue, or in those of connections that wait to be accepted (`unix_show_fdinfo` in net/unix/af_unix.c).
//! Which these are it does not say, so any of them may be of the object. All that is read is made of what the kernel
//! has in memory: no file system is asked, as one in user space might wait for a program of the run.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::Path;

use spillway_sys::lease::read_unless_leased;
use spillway_sys::proc_text::fields::number_of;
use spillway_sys::process::{every_process, share_descriptors};
use spillway_sys::threads::Threads;

/// How links to objects of memfd_create(2) begin, and those to sockets.
const MEMFD: &str = "/memfd:";
const SOCKET: &str = "socket:[";

/// What holds a descriptor, or may. Of two the greater one is the better news for the user.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Holder {
    /// This process may not be looked at.
    Unknown(u32),
    /// A socket of this process has descriptors in its queue.
    Queue(u32),
    /// This process has one.
    Process(u32),
}

impl std::fmt::Display for Holder {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unknown(process) => {
                write!(formatter, "process {process} cannot be looked at, and may have a descriptor of it")
            }
            Self::Process(process) => write!(formatter, "process {process} has a descriptor of it"),
            Self::Queue(process) => write!(
                formatter,
                "a socket of process {process} has descriptors in its queue, of which one may be of it"
            ),
        }
    }
}

/// What holds a descriptor of the memfd with this inode, or may; none: nothing does.
pub(super) fn holder_of(inode: u64) -> io::Result<Option<Holder>> {
    // Those that are started meanwhile are looked at as well.
    let mut seen = HashSet::new();
    let mut found = None;
    loop {
        let mut fresh = every_process()?;
        fresh.retain(|process| !seen.contains(process));
        if fresh.is_empty() {
            return Ok(found);
        }
        for process in fresh {
            seen.insert(process);
            match held_by(process, inode) {
                Ok(holder) => found = found.max(holder),
                // It has ended.
                Err(error) if is_end(&error) => {}
                // With more rights than this one, say, or of another security module's domain.
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    found = found.max(Some(Holder::Unknown(process)));
                }
                Err(error) => return Err(error),
            }
        }
    }
}

fn held_by(process: u32, inode: u64) -> io::Result<Option<Holder>> {
    let mut found = None;
    for thread in Threads::of(process)?.list()? {
        // Of threads that have the first one's table, that is enough.
        if thread != process && share_descriptors(process, thread).unwrap_or(false) {
            continue;
        }
        match held_by_thread(process, &Path::new("/proc").join(format!("{process}/task/{thread}")), inode) {
            Err(error) if is_end(&error) => {}
            other => found = found.max(other?),
        }
    }
    Ok(found)
}

fn held_by_thread(process: u32, thread: &Path, inode: u64) -> io::Result<Option<Holder>> {
    let mut found = None;
    for entry in fs::read_dir(thread.join("fd"))? {
        let entry = entry?;
        let link = match fs::read_link(entry.path()) {
            Ok(link) => link,
            // Closed meanwhile.
            Err(error) if is_end(&error) => continue,
            Err(error) => return Err(error),
        };
        let link = link.as_os_str().as_encoded_bytes();
        if !link.starts_with(MEMFD.as_bytes()) && !link.starts_with(SOCKET.as_bytes()) {
            continue;
        }
        let about = match read_unless_leased(thread.join("fdinfo").join(entry.file_name())) {
            Ok(about) => about,
            Err(error) if is_end(&error) => continue,
            Err(error) => return Err(error),
        };
        if link.starts_with(MEMFD.as_bytes()) && number_of(&about, "ino") == Some(inode) {
            return Ok(Some(Holder::Process(process)));
        }
        if link.starts_with(SOCKET.as_bytes()) && number_of(&about, "scm_fds").is_some_and(|count| count > 0) {
            found = Some(Holder::Queue(process));
        }
    }
    Ok(found)
}

fn is_end(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error())
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd, AsRawFd};
    use std::os::unix::net::{UnixListener, UnixStream};

    use rustix::fs::{MemfdFlags, memfd_create};
    use spillway_sys::passed_descriptor;

    use super::*;

    fn is_root() -> bool {
        rustix::process::geteuid().is_root()
    }

    #[test]
    fn a_memfd_is_held_by_its_process_until_it_is_closed() {
        if !is_root() {
            println!("skipped: root may look at the descriptors of all processes");
            return;
        }
        let file = memfd_create("held", MemfdFlags::CLOEXEC).unwrap();
        let inode = rustix::fs::fstat(&file).unwrap().st_ino;
        assert_eq!(held_by(std::process::id(), inode).unwrap(), Some(Holder::Process(std::process::id())));
        let copy = rustix::io::fcntl_dupfd_cloexec(&file, 3).unwrap();
        drop(file);
        assert_eq!(holder_of(inode).unwrap(), Some(Holder::Process(std::process::id())));
        drop(copy);
        assert_ne!(holder_of(inode).unwrap(), Some(Holder::Process(std::process::id())));
    }

    /// Of this process alone: other tests beside this one may pass descriptors on.
    #[test]
    fn descriptors_on_their_way_are_seen_in_the_queue_of_a_socket() {
        let count = |socket: &dyn AsRawFd| {
            let about = fs::read_to_string(format!("/proc/self/fdinfo/{}", socket.as_raw_fd())).unwrap();
            number_of(&about, "scm_fds").unwrap()
        };
        let file = memfd_create("on its way", MemfdFlags::CLOEXEC).unwrap();
        let (one, other) = UnixStream::pair().unwrap();
        assert_eq!((count(&one), count(&other)), (0, 0));
        passed_descriptor::send(one.as_fd(), &[7], Some(file.as_fd())).unwrap();
        assert_eq!((count(&one), count(&other)), (0, 1));
        passed_descriptor::receive(other.as_fd(), &mut [0]).unwrap();
        assert_eq!(count(&other), 0);
        // In a connection that was not accepted yet.
        let folder = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(folder.path().join("socket")).unwrap();
        let stream = UnixStream::connect(folder.path().join("socket")).unwrap();
        passed_descriptor::send(stream.as_fd(), &[7], Some(file.as_fd())).unwrap();
        assert_eq!(count(&listener), 1);
    }
}
