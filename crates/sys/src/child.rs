//! Starting a program with steps that only the new process can take, before its first instruction runs.
//!
//! Between fork and exec a process of a threaded parent may only do what is async-signal-safe, so everything is
//! prepared before: cgroups are entered by writing `0` ("the process that writes this") to a `cgroup.procs` that is
//! open already. The program is inside its budget before it allocates anything.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus};

use rustix::process::{Pid, PidfdFlags, Signal};

/// What the new process does before it becomes the program.
#[derive(Debug, Default)]
pub struct ChildSteps {
    /// Files `cgroup.procs`, open for writing, of the cgroups to enter (one for each hierarchy).
    pub cgroups: Vec<File>,
    /// The signal it gets when the *thread* that started it ends.
    pub parent_death_signal: Option<Signal>,
    /// Whether it leads a process group of its own (the terminal's signals then no longer reach it).
    pub new_process_group: bool,
    /// Whether its out-of-memory adjustment is 0 again, when its parent is one that must not be killed for memory.
    pub reset_out_of_memory_adjustment: bool,
}

/// A program that was started.
#[derive(Debug)]
pub struct ChildProcess {
    child: Child,
    descriptor: OwnedFd,
}

/// Starts `command` with `steps` taken first. A step that fails fails the start.
pub fn spawn(mut command: Command, steps: ChildSteps) -> io::Result<ChildProcess> {
    if steps.new_process_group {
        command.process_group(0);
    }
    let parent = rustix::process::getpid();
    // SAFETY: the closure runs in the forked child and makes system calls only (write, open, prctl, getppid); it
    // neither allocates nor takes locks, because all it uses was made before.
    unsafe { command.pre_exec(move || take_steps(&steps, parent)) };
    let mut child = command.spawn()?;
    // The child is not waited for yet, so its number is its own.
    let pid = Pid::from_child(&child);
    match rustix::process::pidfd_open(pid, PidfdFlags::empty()) {
        Ok(descriptor) => Ok(ChildProcess { child, descriptor }),
        Err(errno) => {
            let _ = child.kill();
            let _ = child.wait();
            Err(errno.into())
        }
    }
}

fn take_steps(steps: &ChildSteps, parent: Pid) -> io::Result<()> {
    for mut cgroup in &steps.cgroups {
        cgroup.write_all(b"0")?;
    }
    if steps.reset_out_of_memory_adjustment {
        let flags = rustix::fs::OFlags::WRONLY | rustix::fs::OFlags::CLOEXEC;
        let file = rustix::fs::open(c"/proc/self/oom_score_adj", flags, rustix::fs::Mode::empty())?;
        rustix::io::write(&file, b"0")?;
    }
    if let Some(signal) = steps.parent_death_signal {
        rustix::process::set_parent_process_death_signal(Some(signal))?;
        // A parent that ended before the call above sends nothing.
        if rustix::process::getppid() != Some(parent) {
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
    }
    Ok(())
}

impl ChildProcess {
    /// Its number.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends it a signal; never reaches another process that got its number.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        Ok(rustix::process::pidfd_send_signal(&self.descriptor, signal)?)
    }

    /// Waits for its end.
    pub fn wait(&mut self) -> io::Result<ExitStatus> {
        self.child.wait()
    }

    /// Its end, if it has ended.
    pub fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        self.child.try_wait()
    }

    /// The pipes that its [`Command`] asked for.
    pub fn pipes(&mut self) -> &mut Child {
        &mut self.child
    }
}

impl AsFd for ChildProcess {
    /// Becomes readable when the process has ended.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// The exit status to end with when a program's end is passed on, as shells do: its own, or 128 and its signal.
pub fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    // Statuses have eight bits, signals at most seven.
    code.map_or(1, |code| code as u8)
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::process::Stdio;
    use std::time::{Duration, Instant};

    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn the_end_of_a_program_is_passed_on() {
        for (script, expected) in [("exit 0", 0), ("exit 7", 7), ("exit 255", 255), ("kill -TERM $$", 143)] {
            let mut child = spawn(shell(script), ChildSteps::default()).unwrap();
            assert_eq!(exit_code(child.wait().unwrap()), expected, "{script}");
        }
    }

    #[test]
    fn steps_come_before_the_program() {
        let procs = tempfile::NamedTempFile::new().unwrap();
        let steps = ChildSteps {
            cgroups: vec![procs.reopen().unwrap()],
            parent_death_signal: Some(Signal::KILL),
            new_process_group: true,
            reset_out_of_memory_adjustment: true,
        };
        let mut command = shell("echo $$; cut -d' ' -f5 /proc/$$/stat; cat /proc/self/oom_score_adj");
        command.stdout(Stdio::piped());
        let mut child = spawn(command, steps).unwrap();
        let mut output = String::new();
        child.pipes().stdout.take().unwrap().read_to_string(&mut output).unwrap();
        assert!(child.wait().unwrap().success());
        let pid = child.pid();
        assert_eq!(output, format!("{pid}\n{pid}\n0\n"), "it leads its own group");
        assert_eq!(std::fs::read_to_string(procs.path()).unwrap(), "0");
    }

    #[test]
    fn a_failed_step_and_a_missing_program_are_errors() {
        let closed = File::open("/dev/null").unwrap();
        let steps = ChildSteps { cgroups: vec![closed], ..ChildSteps::default() };
        assert!(spawn(shell("exit 0"), steps).is_err(), "cgroup.procs is not open for writing");
        assert!(spawn(Command::new("/nonexistent/program"), ChildSteps::default()).is_err());
    }

    #[test]
    fn the_descriptor_tells_of_the_end() {
        let mut child = spawn(shell("exec sleep 1000"), ChildSteps::default()).unwrap();
        assert!(child.try_wait().unwrap().is_none());
        child.signal(Signal::KILL).unwrap();
        let started = Instant::now();
        let mut waiting = [PollFd::new(&child, PollFlags::IN)];
        let timeout = Timespec { tv_sec: 60, tv_nsec: 0 };
        assert_eq!(poll(&mut waiting, Some(&timeout)).unwrap(), 1);
        assert!(started.elapsed() < Duration::from_secs(60));
        assert_eq!(exit_code(child.wait().unwrap()), 137);
    }
}
