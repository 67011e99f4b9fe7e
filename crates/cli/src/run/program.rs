//! The program of a run: found, started inside its memory group, given every signal that was meant for it, and waited
//! for.
//!
//! The program stays in the process group and on the terminal of `run`. So what the terminal sends (Ctrl-C, a new
//! window size) or another process sends to the group reaches it without us. Only signals that were sent to `run`
//! alone are passed on ([`super::group_signals`]). Signals that the caller of `run` ignores or blocks are ignored and
//! blocked in the program.

use std::ffi::{OsStr, OsString};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;
use std::{env, fs};

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags};
use signal_hook::consts::{SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::origin::WithOrigin;
use signal_hook::low_level::siginfo::{Cause, Origin};
use spillway_console::failure::{EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND, Failure};
use spillway_machine::interruption::Interruption;
use spillway_report::run::Ending;
use spillway_sys::callers_limits::CallersLimits;
use spillway_sys::core_dumps::CoreDumps;
use spillway_sys::signals;

use super::group_signals::Witness;

/// Signals that are passed on, if the caller does not ignore them; so are real-time signals.
const PASSED: [i32; 8] = [SIGINT, SIGQUIT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGWINCH, SIGCONT];

/// A program as the user wrote it, and its file.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    file: PathBuf,
    program: Vec<OsString>,
}

impl Found {
    /// Its file.
    pub(crate) fn file(&self) -> &Path {
        &self.file
    }
}

/// What is done to the process that becomes the program.
#[derive(Clone, Debug, Default)]
pub(crate) struct Becoming {
    /// The files through which it enters its memory group.
    pub(crate) procs_files: Vec<PathBuf>,
    /// Variables of the program's environment.
    pub(crate) environment: Vec<(OsString, OsString)>,
    /// The socket at which it hands over what tells of its calls ([`super::calls`]), and whether forks are among them.
    pub(crate) tells_calls: Option<(PathBuf, bool)>,
    /// So are those that matter where pages of shared memory leave.
    pub(crate) tells_shared_memory: bool,
    /// It has no huge pages, which are used as a whole.
    pub(crate) has_small_pages: bool,
}

impl Becoming {
    /// As arguments of the hidden command. The variables are not set for that command itself: one of them may preload
    /// a library.
    fn arguments(&self) -> Vec<OsString> {
        let mut arguments = Vec::new();
        for file in &self.procs_files {
            arguments.extend(["--procs-file".into(), file.clone().into_os_string()]);
        }
        for (name, value) in &self.environment {
            let mut setting = name.clone();
            setting.push("=");
            setting.push(value);
            arguments.extend(["--set".into(), setting]);
        }
        if let Some((socket, has_forks)) = &self.tells_calls {
            arguments.extend(["--tells-calls".into(), socket.clone().into_os_string()]);
            arguments.extend(has_forks.then(|| "--tells-forks".into()));
            arguments.extend(self.tells_shared_memory.then(|| "--tells-shared-memory".into()));
        }
        arguments.extend(self.has_small_pages.then(|| "--small-pages".into()));
        arguments
    }
}

/// What the program may dump, as arguments of the hidden command: what its user wants, and not what this process may.
fn own_core_dumps(before: Option<CoreDumps>) -> Vec<OsString> {
    let Some(CoreDumps { limit_bytes, filter }) = before else { return Vec::new() };
    let mut arguments = vec!["--core-limit".into(), limit_bytes.unwrap_or(u64::MAX).to_string().into()];
    if let Some(mask) = filter {
        arguments.extend(["--core-filter".into(), mask.to_string().into()]);
    }
    arguments
}

/// Looks the program up as the shell does.
pub(crate) fn find(program: &[OsString]) -> Result<Found, Failure> {
    let name = program.first().filter(|name| !name.is_empty());
    let name =
        name.ok_or_else(|| Failure::usage("the program has no name; write it behind the options, or after `--`"))?;
    let file = if name.as_encoded_bytes().contains(&b'/') {
        PathBuf::from(name)
    } else {
        let path = env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into());
        search(name, &path).ok_or_else(|| not_found(name))?
    };
    check_executable(name, &file)?;
    Ok(Found { file, program: program.to_vec() })
}

fn not_found(name: &OsStr) -> Failure {
    let name = name.display();
    Failure::Program { text: format!("{name}: no such program; give its path, or install it"), status: EXIT_NOT_FOUND }
}

fn search(name: &OsStr, path: &OsStr) -> Option<PathBuf> {
    env::split_paths(path).map(|directory| directory.join(name)).find(|file| is_executable(file))
}

fn is_executable(file: &Path) -> bool {
    fs::metadata(file).is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}

fn check_executable(name: &OsStr, file: &Path) -> Result<(), Failure> {
    if !file.exists() {
        return Err(not_found(name));
    }
    if file.is_dir() {
        let text = format!("{} is a directory; name a program in it", file.display());
        return Err(Failure::Program { text, status: EXIT_NOT_EXECUTABLE });
    }
    if is_executable(file) {
        return Ok(());
    }
    let text = format!("{} is not an executable file; `chmod +x` makes a script one", file.display());
    Err(Failure::Program { text, status: EXIT_NOT_EXECUTABLE })
}

/// The program while it runs.
pub(crate) struct Program {
    target: Arc<Mutex<Option<Pid>>>,
    ended: Receiver<std::io::Result<ExitStatus>>,
    outcome: Mutex<Option<std::io::Result<ExitStatus>>>,
    signals: signal_hook::iterator::Handle,
    forwarder: Option<JoinHandle<()>>,
}

impl Program {
    /// Starts it.
    pub(crate) fn start(found: &Found, becoming: &Becoming, interruption: &Interruption) -> Result<Self, Failure> {
        let target = Arc::new(Mutex::new(None));
        let passed = PASSED.into_iter().chain(libc::SIGRTMIN()..=libc::SIGRTMAX());
        let passed = passed.filter(|signal| !signals::is_ignored_by_caller(*signal));
        let mut watched =
            SignalsInfo::<WithOrigin>::new(passed).map_err(|error| Failure::during("watching for signals", error))?;
        let handle = watched.handle();
        let forward_to = Arc::clone(&target);
        // Without it, where a limit of processes forbids one, all that is sent is passed on.
        let mut witness = Witness::start().ok();
        let forwarder = std::thread::spawn(move || {
            for origin in &mut watched {
                // It is asked in any case, and then knows of this one no more.
                let is_groups = witness.as_mut().is_some_and(|witness| witness.saw(origin.signal));
                if is_for_program(&origin) && !is_groups {
                    pass_on(&forward_to, origin.signal);
                }
            }
        });
        // From here on a signal is passed on; one that came before ends the run.
        interruption.check()?;
        let binary = env::current_exe().map_err(|error| Failure::during("finding this program's file", error))?;
        let mut command = Command::new(binary);
        command.arg("become-program").args(becoming.arguments()).args(own_core_dumps(CoreDumps::before()));
        let limits = CallersLimits::before();
        if !limits.is_empty() {
            command.arg("--limits").arg(limits.to_string());
        }
        command.arg("--file").arg(&found.file).arg("--").args(&found.program);
        signals::keep(&mut command);
        let mut child = command.spawn().map_err(|error| Failure::during("starting the program", error))?;
        *target.lock().expect("no holder panics") = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        if let Some(signal) = interruption.signal() {
            pass_on(&target, signal);
        }
        let (sender, ended) = mpsc::channel();
        let waited_for = Arc::clone(&target);
        std::thread::spawn(move || {
            let status = wait_for_end(&mut child);
            *waited_for.lock().expect("no holder panics") = None;
            // The receiver is gone only when `run` is.
            let _ = sender.send(status);
        });
        Ok(Self { target, ended, outcome: Mutex::new(None), signals: handle, forwarder: Some(forwarder) })
    }

    /// Its process id, while it has not been waited for.
    pub(crate) fn process(&self) -> Option<u32> {
        let target = *self.target.lock().expect("no holder panics");
        target.and_then(|pid| u32::try_from(pid.as_raw_nonzero().get()).ok())
    }

    /// Waits for its end up to `timeout`; true once it has ended.
    pub(crate) fn wait(&self, timeout: Duration) -> bool {
        match self.ended.recv_timeout(timeout) {
            Ok(status) => {
                *self.outcome.lock().expect("no holder panics") = Some(status);
                true
            }
            Err(RecvTimeoutError::Timeout) => false,
            Err(RecvTimeoutError::Disconnected) => true,
        }
    }

    /// How it ended, after [`Program::wait`] said that it has.
    pub(crate) fn ending(&self) -> Result<Ending, Failure> {
        match self.outcome.lock().expect("no holder panics").take() {
            Some(Ok(status)) => Ok(status.into()),
            Some(Err(error)) => Err(Failure::during("waiting for the program", error)),
            None => Err(Failure::failed("the program has not ended")),
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.signals.close();
        if let Some(forwarder) = self.forwarder.take() {
            // It ends with its signals.
            let _ = forwarder.join();
        }
        *self.target.lock().expect("no holder panics") = None;
    }
}

/// Waits until a child has ended, and no sooner: the pager stops threads of the program for a moment (ptrace), which
/// a plain wait would take for news, and take it away from the pager.
fn wait_for_end(child: &mut Child) -> std::io::Result<ExitStatus> {
    let pid = Pid::from_child(child);
    let process = rustix::process::pidfd_open(pid, PidfdFlags::empty())?;
    loop {
        let mut ready = [PollFd::new(&process, PollFlags::IN)];
        match rustix::event::poll(&mut ready, None) {
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
            Ok(_) => return child.wait(),
        }
    }
}

/// Whether a signal was sent by another process, and not by the terminal to all of its group.
fn is_for_program(origin: &Origin) -> bool {
    matches!(origin.cause, Cause::Sent(_))
}

fn pass_on(target: &Mutex<Option<Pid>>, signal: i32) {
    let target = target.lock().expect("no holder panics");
    if let Some(pid) = *target {
        // It may end at the same moment; it has not been waited for, so the id is still its own.
        let _ = signals::send(pid, signal);
    }
}

#[cfg(test)]
mod tests {
    use rustix::process::Signal;

    use super::*;
    use crate::run::become_program::setting;

    fn status(text: &str) -> u8 {
        find(&[text.into()]).unwrap_err().exit_status()
    }

    #[test]
    fn programs_are_found_as_the_shell_does() {
        assert!(find(&["sh".into()]).unwrap().file.is_absolute());
        assert_eq!(find(&["/bin/sh".into()]).unwrap().file, Path::new("/bin/sh"));
        assert_eq!(status("no-such-program-anywhere"), EXIT_NOT_FOUND);
        assert_eq!(status("/no/such/program"), EXIT_NOT_FOUND);
        assert_eq!(status("/etc/passwd"), EXIT_NOT_EXECUTABLE);
        assert_eq!(status("/tmp/"), EXIT_NOT_EXECUTABLE);
        assert!(find(&["/tmp/".into()]).unwrap_err().to_string().contains("is a directory"));
        assert_eq!(status(""), 2);
        assert!(find(&[]).is_err());
    }

    #[test]
    fn only_directories_of_the_path_are_searched() {
        assert_eq!(search(OsStr::new("sh"), OsStr::new("/proc:/sys")), None);
        assert!(search(OsStr::new("sh"), OsStr::new("/proc:/bin")).is_some());
    }

    #[test]
    fn variables_survive_the_command_line() {
        let becoming = Becoming {
            procs_files: vec!["/x/procs".into()],
            environment: vec![("A".into(), "b=c d".into())],
            tells_calls: Some(("/x/calls".into(), true)),
            tells_shared_memory: false,
            has_small_pages: false,
        };
        let arguments = becoming.arguments();
        assert_eq!(arguments[..4], ["--procs-file", "/x/procs", "--set", "A=b=c d"]);
        assert_eq!(arguments[4..], ["--tells-calls", "/x/calls", "--tells-forks"]);
        assert_eq!(setting(&arguments[3]), Some((OsStr::new("A"), OsStr::new("b=c d"))));
        assert_eq!(setting(&"nothing".into()), None);
        assert!(Becoming::default().arguments().is_empty());
    }

    #[test]
    fn a_child_that_only_stops_has_not_ended() {
        let script = "kill -s STOP $$; exit 4";
        let mut child = Command::new("sh").args(["-c", script]).spawn().unwrap();
        let pid = Pid::from_child(&child);
        let waiting = std::thread::spawn(move || wait_for_end(&mut child));
        let deadline = std::time::Instant::now() + Duration::from_secs(60);
        let is_stopped = || {
            let text = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap_or_default();
            text.contains(") T ")
        };
        while !is_stopped() {
            assert!(std::time::Instant::now() < deadline, "the child does not stop");
            std::thread::yield_now();
        }
        assert!(!waiting.is_finished());
        rustix::process::kill_process(pid, Signal::CONT).unwrap();
        assert_eq!(waiting.join().unwrap().unwrap().code(), Some(4));
    }
}
