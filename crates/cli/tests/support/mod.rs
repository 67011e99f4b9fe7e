//! What both test binaries need: commands with deadlines, scratch directories on a disk, and skips that say what is
//! missing.

pub(crate) mod agents;
pub(crate) mod processes;

use std::ffi::OsStr;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use spillway_report::status::{Item, StatusReport};

/// How long any single step may take: generous, because a loaded machine must not fail a test.
pub(crate) const DEADLINE: Duration = Duration::from_secs(480);

/// Seconds that a verifier works when the test ends it with SIGUSR1: longer than all its waits together.
pub(crate) const UNTIL_TOLD: &str = "3600";

/// How often a wait looks again.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// What a command said, and how it ended.
#[derive(Clone, Debug)]
pub(crate) struct Said {
    /// How it ended.
    pub(crate) status: ExitStatus,
    /// Standard output.
    pub(crate) output: Vec<u8>,
    /// Standard error.
    pub(crate) errors: String,
}

impl Said {
    /// Standard output as text.
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.output).into_owned()
    }

    /// Panics with everything it said unless it ended with 0.
    pub(crate) fn done(self, what: &str) -> Self {
        assert!(self.status.success(), "{what}: {}\nstdout: {}\nstderr: {}", self.status, self.text(), self.errors);
        self
    }
}

/// What `command`, a kind of `spillway status`, lists.
pub(crate) fn status(command: &mut Command) -> Vec<Item> {
    let said = run(command.arg("--json")).done("status");
    serde_json::from_slice::<StatusReport>(&said.output).expect("status is a report").items
}

/// A child that is ended when dropped, whatever happens.
#[derive(Debug)]
pub(crate) struct Running {
    child: Child,
    output: Option<JoinHandle<Vec<u8>>>,
    errors: Option<JoinHandle<Vec<u8>>>,
}

fn read_all(stream: Option<impl Read + Send + 'static>) -> Option<JoinHandle<Vec<u8>>> {
    let mut stream = stream?;
    Some(std::thread::spawn(move || {
        let mut bytes = Vec::new();
        // What was read before an error is shown.
        let _ = stream.read_to_end(&mut bytes);
        bytes
    }))
}

fn collect(reader: &mut Option<JoinHandle<Vec<u8>>>) -> Vec<u8> {
    reader.take().and_then(|reader| reader.join().ok()).unwrap_or_default()
}

impl Running {
    /// Starts a command with its output caught.
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let (output, errors) = (read_all(child.stdout.take()), read_all(child.stderr.take()));
        Self { child, output, errors }
    }

    /// Its process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether it has ended.
    pub(crate) fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// What an ended one said on standard error.
    pub(crate) fn last_errors(&mut self) -> String {
        String::from_utf8_lossy(&collect(&mut self.errors)).into_owned()
    }

    /// Waits until `look` finds something, which it never does once this has ended.
    pub(crate) fn wait_until<T>(&mut self, what: &str, mut look: impl FnMut() -> Option<T>) -> T {
        wait_until(what, || {
            let found = look();
            assert!(found.is_some() || !self.has_ended(), "it ended before {what}: {}", self.last_errors());
            found
        })
    }

    /// Sends it a signal, by `kill(1)`.
    pub(crate) fn signal(&self, name: &str) {
        signal(self.pid(), name);
    }

    /// Waits for its end, and for that of everything that writes to its output.
    pub(crate) fn end(mut self) -> Said {
        let status =
            wait_until("a command to end", || self.child.try_wait().expect("a child of ours can be waited for"));
        wait_until("its output to be closed", || {
            let readers = [&self.output, &self.errors];
            readers.into_iter().flatten().all(JoinHandle::is_finished).then_some(())
        });
        Said {
            status,
            output: collect(&mut self.output),
            errors: String::from_utf8_lossy(&collect(&mut self.errors)).into_owned(),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.has_ended() {
            return;
        }
        // Asked first, so that `run` can take its things down.
        self.signal("TERM");
        let deadline = Instant::now() + DEADLINE;
        while !self.has_ended() && Instant::now() < deadline {
            std::thread::sleep(POLL_INTERVAL);
        }
        // It may have ended between the two.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends a signal to a process of ours.
pub(crate) fn signal(pid: u32, name: &str) {
    // The process may have ended; then there is no process to signal.
    let _ = Command::new("kill").args(["-s", name, &pid.to_string()]).stderr(Stdio::null()).status();
}

/// Sends a signal to a process group of ours.
pub(crate) fn signal_group(leader: u32, name: &str) {
    let _ = Command::new("kill").args(["-s", name, "--", &format!("-{leader}")]).status();
}

/// Waits until `look` finds something; panics at the deadline.
pub(crate) fn wait_until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + DEADLINE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// How long a long test runs; `make soak` sets minutes.
pub(crate) fn soak_seconds(default: u64) -> u64 {
    std::env::var("SPILLWAY_SOAK_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Copies a program that a test starts. Not in this process: a child that another test starts meanwhile would have the
/// copy open for writing, and the kernel would not start it (`ETXTBSY`).
pub(crate) fn copy_program(from: impl AsRef<OsStr>, to: impl AsRef<OsStr>) {
    run(Command::new("cp").arg("--").arg(from).arg(to)).done("cp");
}

/// Runs a command to its end.
pub(crate) fn run(command: &mut Command) -> Said {
    Running::start(command).end()
}

/// The built `spillway`, with a registry of its own.
pub(crate) fn spillway(registry: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_spillway"));
    command.env("SPILLWAY_RUNTIME_DIRECTORY", registry);
    command
}

/// Longest place of a registry: the names of entries and sockets take up to 60 of the 107 bytes that a socket's path
/// may have.
const REGISTRY_PLACE_BYTES_MAX: usize = 40;

/// A short path, because it becomes part of socket paths; sockets may lie in memory.
pub(crate) fn registry_directory() -> tempfile::TempDir {
    let place = std::env::temp_dir();
    let is_short = place.as_os_str().len() <= REGISTRY_PLACE_BYTES_MAX;
    let place = if is_short { place } else { PathBuf::from("/tmp") };
    tempfile::Builder::new().prefix("sw-").tempdir_in(place).expect("a temporary directory can be made")
}

/// A directory on a disk: backing files must not lie in memory.
pub(crate) fn disk_directory() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory beside the build can be made")
}

/// Whether a program is installed.
pub(crate) fn has_program(name: impl AsRef<OsStr>) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .any(|directory: PathBuf| directory.join(name.as_ref()).is_file())
}

pub(crate) use spillway_sys::skipping::skip;

/// Whether the tests run as root.
pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}
