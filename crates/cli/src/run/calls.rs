//! How the pager comes to hear of the calls that its programs make ([`spillway_sys::call_filter`]): the process that
//! is to become the program installs the filter, hands over the descriptor that tells of calls, and goes on when the
//! pager has it.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use spillway_console::failure::Failure;
use spillway_sys::call_filter::{Asked, install};
use spillway_sys::passed_descriptor;

use super::program::Program;

/// In the run's own folder, which only its user may enter.
const NAME: &str = "calls.sock";

/// How often it is looked whether the process has ended before it said anything.
const INTERVAL: Duration = Duration::from_millis(100);

fn failed(error: io::Error) -> Failure {
    Failure::during("hearing of the program's system calls", error)
}

/// Where the descriptor is handed over; its file goes with it.
pub(crate) struct Socket {
    listener: UnixListener,
    path: PathBuf,
}

/// What the process said.
pub(crate) enum Told {
    /// This tells of its calls. It waits.
    Listener(OwnedFd, Waits),
    /// It could not install a filter, and goes on without.
    Refused(io::Error),
    /// It has ended.
    Ended,
}

/// A process that waits before it becomes the program.
pub(crate) struct Waits(UnixStream);

impl Waits {
    /// A process hears of its calls now.
    pub(crate) fn goes_on(mut self) -> Result<(), Failure> {
        self.0.write_all(&[0]).map_err(failed)
    }
}

impl Socket {
    /// In `directory`.
    pub(crate) fn bind(directory: &Path) -> Result<Self, Failure> {
        let path = directory.join(NAME);
        let listener = UnixListener::bind(&path).map_err(|error| Failure::during(path.display(), error))?;
        Ok(Self { listener, path })
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Waits for what the process has to say.
    pub(crate) fn hear(self, program: &Program) -> Result<Told, Failure> {
        let patience = Timespec { tv_sec: 0, tv_nsec: i64::from(INTERVAL.subsec_nanos()) };
        while !is_ready(&self.listener, patience).map_err(failed)? {
            if program.wait(Duration::ZERO) {
                return Ok(Told::Ended);
            }
        }
        let (stream, _) = self.listener.accept().map_err(failed)?;
        let mut word = [0; 4];
        let (length, listener) = passed_descriptor::receive(stream.as_fd(), &mut word).map_err(failed)?;
        Ok(match listener {
            Some(listener) => Told::Listener(listener, Waits(stream)),
            None if length == word.len() => Told::Refused(io::Error::from_raw_os_error(i32::from_ne_bytes(word))),
            None => Told::Ended,
        })
    }
}

fn is_ready(listener: &UnixListener, patience: Timespec) -> io::Result<bool> {
    let mut waits = [PollFd::new(listener, PollFlags::IN)];
    match poll(&mut waits, Some(&patience)) {
        Err(rustix::io::Errno::INTR) => Ok(false),
        result => Ok(result? > 0),
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // It goes with the run's folder at the latest.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Installs the filter in this process, and hands over what tells of calls at `socket`.
pub(crate) fn tell(socket: &Path, has_forks: bool, has_shared_memory: bool) -> Result<(), Failure> {
    let mut stream = UnixStream::connect(socket).map_err(failed)?;
    match install(Asked::on_this_kernel(has_forks, has_shared_memory)) {
        Ok(listener) => {
            passed_descriptor::send(stream.as_fd(), &[0; 4], Some(listener.as_fd())).map_err(failed)?;
            stream.read_exact(&mut [0]).map_err(failed)
        }
        Err(error) => stream.write_all(&error.raw_os_error().unwrap_or(0).to_ne_bytes()).map_err(failed),
    }
}

/// What it means that no filter could be installed.
pub(crate) fn without(error: &io::Error) -> String {
    let cause = match error.raw_os_error() {
        Some(16) => {
            "another program is asked about its system calls already (a sandbox, or another `spillway run`)".to_owned()
        }
        _ => error.to_string(),
    };
    format!(
        "the pager does not hear of some system calls of this program: {cause}; a program that uses guard pages (MADV_GUARD_INSTALL, glibc 2.42), \
         a userfaultfd of its own, or mremap over several mappings may fail or see wrong memory; start it outside of the sandbox, or use --via swap"
    )
}
