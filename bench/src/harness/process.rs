//! One program that was started here: its output is read while it runs, its end is waited for with a bound, and it ends
//! with the value that stands for it.
//!
//! Each program gets a process group of its own: Ctrl-C at a terminal then reaches this program only, which ends the
//! others in the right order. `setpriv --pdeathsig`, where present, ends them even if this program is killed outright.
//!
//! Invariant: signals go only to process groups whose leader was started here and is not yet reaped, so a process id
//! that was reused can never be hit.

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, kill_process_group, pidfd_open};

use super::HarnessError;
use super::interrupt::Interrupt;
use crate::limits::{OUTPUT_BYTES_MAX, STOP_DEADLINE};

/// How often a waiting program looks at the interrupt and at its deadline.
const TICK: Duration = Duration::from_millis(20);

/// Between two looks at a program that is stopped: what is measured from that moment takes milliseconds.
const FREEZE_TICK: Duration = Duration::from_micros(200);

/// Bytes collected from a program; what exceeds [`OUTPUT_BYTES_MAX`] is dropped. Clones share the bytes.
#[derive(Clone, Debug, Default)]
pub struct Collected {
    bytes: Arc<Mutex<Vec<u8>>>,
}

impl Collected {
    /// What came so far, as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes.lock().expect("no holder of this lock panics")).into_owned()
    }

    /// The last line that says something; what a failed program most likely said about its failure.
    pub fn last_line(&self) -> String {
        let text = self.text();
        text.lines().rev().map(str::trim).find(|line| !line.is_empty()).unwrap_or("(no message)").to_owned()
    }
}

impl Write for Collected {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let mut collected = self.bytes.lock().expect("no holder of this lock panics");
        let room = OUTPUT_BYTES_MAX - collected.len();
        collected.extend_from_slice(&bytes[..bytes.len().min(room)]);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// A program that ended.
#[derive(Clone, Copy, Debug)]
pub struct Finished {
    /// How it ended.
    pub status: ExitStatus,
    /// From its start to its end.
    pub elapsed: Duration,
}

/// A program that runs.
#[derive(Debug)]
pub struct Running {
    name: String,
    child: Child,
    started: Instant,
    reaped: bool,
    readers: Vec<JoinHandle<()>>,
    /// What it wrote to its standard error.
    pub messages: Collected,
}

/// `program` in such a way that it ends when this process does.
pub fn bound(program: impl AsRef<OsStr>) -> Command {
    if super::tool::find("setpriv").is_none() {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "TERM", "--"]).arg(program);
    command
}

fn pump(mut from: impl Read + Send + 'static, mut to: impl Write + Send + 'static) -> JoinHandle<()> {
    std::thread::spawn(move || {
        let mut buffer = vec![0; 64 * 1024];
        while let Ok(length) = from.read(&mut buffer) {
            if length == 0 || to.write_all(&buffer[..length]).is_err() {
                break;
            }
        }
    })
}

impl Running {
    /// Starts `command`; what it prints goes to `output`.
    pub fn start(name: &str, command: &mut Command, output: impl Write + Send + 'static) -> Result<Self, HarnessError> {
        let messages = Collected::default();
        let command = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let mut child = command.spawn().map_err(HarnessError::system(format!("starting {name}")))?;
        let stdout = child.stdout.take().expect("standard output was asked for as a pipe");
        let stderr = child.stderr.take().expect("standard error was asked for as a pipe");
        let readers = vec![pump(stdout, output), pump(stderr, messages.clone())];
        Ok(Self { name: name.to_owned(), child, started: Instant::now(), reaped: false, readers, messages })
    }

    /// Its process id, while it is not reaped.
    pub fn id(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Whether it still runs.
    pub fn is_running(&mut self) -> bool {
        !self.reaped && matches!(self.ends_within(Duration::ZERO), Ok(false))
    }

    /// Waits until it ends. When `limit` passes, or at an interrupt, it is ended. `tick` is called every
    /// `TICK`.
    pub fn wait(
        mut self,
        limit: Duration,
        interrupt: &Interrupt,
        mut tick: impl FnMut(),
    ) -> Result<Finished, HarnessError> {
        let end = self.started + limit;
        while !self.ends_within(TICK)? {
            tick();
            interrupt.check()?;
            if Instant::now() >= end {
                return Err(HarnessError::TimedOut { what: self.name.clone(), limit });
            }
        }
        let elapsed = self.started.elapsed();
        Ok(Finished { status: self.reap()?, elapsed })
    }

    /// Ends it: SIGTERM, and SIGKILL if that does not help in time.
    pub fn stop(&mut self) {
        if self.reaped {
            return;
        }
        let _ = kill_process_group(self.id(), Signal::TERM);
        if !matches!(self.ends_within(STOP_DEADLINE), Ok(true)) {
            let _ = kill_process_group(self.id(), Signal::KILL);
        }
        let _ = self.reap();
    }

    /// Why one that should still run ended: its last message, once all of them have arrived.
    pub fn last_words(&mut self) -> String {
        self.stop();
        self.messages.last_line()
    }

    /// Ends it at once, as `kill -9` does: a donor that loses its power.
    pub fn kill(&mut self) {
        if !self.reaped {
            let _ = kill_process(self.id(), Signal::KILL);
            let _ = self.reap();
        }
    }

    /// Has it fall silent without an end, as a machine that stands still; when none of its threads ran any more.
    pub fn freeze(&self, interrupt: &Interrupt) -> Result<Instant, HarnessError> {
        kill_process(self.id(), Signal::STOP).map_err(HarnessError::system(format!("stopping {}", self.name)))?;
        let tasks = format!("/proc/{}/task", self.id().as_raw_nonzero());
        let stat =
            |task: std::io::Result<std::fs::DirEntry>| std::fs::read_to_string(task.ok()?.path().join("stat")).ok();
        let is_stopped = |stat: String| stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T'));
        let end = Instant::now() + STOP_DEADLINE;
        loop {
            let mut all = std::fs::read_dir(&tasks).map_err(HarnessError::system(format!("reading {tasks}")))?;
            if all.all(|task| stat(task).is_some_and(is_stopped)) {
                return Ok(Instant::now());
            }
            interrupt.check()?;
            if Instant::now() >= end {
                return Err(HarnessError::TimedOut { what: format!("stopping {}", self.name), limit: STOP_DEADLINE });
            }
            std::thread::sleep(FREEZE_TICK);
        }
    }

    fn ends_within(&self, limit: Duration) -> Result<bool, HarnessError> {
        let failed = || HarnessError::system::<rustix::io::Errno>(format!("waiting for {}", self.name));
        let descriptor = pidfd_open(self.id(), PidfdFlags::empty()).map_err(failed())?;
        let mut descriptors = [PollFd::new(&descriptor, PollFlags::IN)];
        let limit = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: i64::from(limit.subsec_nanos()) };
        match poll(&mut descriptors, Some(&limit)) {
            Ok(count) => Ok(count > 0),
            Err(rustix::io::Errno::INTR) => Ok(false),
            Err(error) => Err(failed()(error)),
        }
    }

    fn reap(&mut self) -> Result<ExitStatus, HarnessError> {
        let status = self.child.wait().map_err(HarnessError::system(format!("waiting for {}", self.name)))?;
        self.reaped = true;
        // A background process that it left behind may hold the pipes open: only finished readers are waited for
        // longer.
        let end = Instant::now() + Duration::from_secs(1);
        while self.readers.iter().any(|reader| !reader.is_finished()) && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(status)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, output: &Collected) -> Running {
        Running::start("a script", bound("sh").args(["-c", script]), output.clone()).unwrap()
    }

    #[test]
    fn output_status_and_messages_arrive() {
        let output = Collected::default();
        let running = shell("echo out; echo first >&2; echo last >&2; exit 3", &output);
        let messages = running.messages.clone();
        let finished = running.wait(Duration::from_secs(60), &Interrupt::never(), || {}).unwrap();
        assert_eq!(finished.status.code(), Some(3));
        assert_eq!((output.text().as_str(), messages.last_line().as_str()), ("out\n", "last"));
    }

    #[test]
    fn a_limit_ends_it_and_its_children() {
        let output = Collected::default();
        let running = shell("sleep 100 & echo $!; wait", &output);
        let told = || output.text().contains('\n').then_some(());
        Interrupt::never().poll("its child's number", Duration::from_secs(60), told).unwrap();
        let error = running.wait(Duration::from_millis(300), &Interrupt::never(), || {}).unwrap_err();
        assert!(matches!(error, HarnessError::TimedOut { .. }), "{error}");
        let child: i32 = output.text().trim().parse().unwrap();
        let gone = || rustix::process::test_kill_process(Pid::from_raw(child)?).is_err().then_some(());
        Interrupt::never().poll("the end of its child", Duration::from_secs(60), gone).unwrap();
    }

    #[test]
    fn an_interrupt_ends_it() {
        let interrupt = Interrupt::never();
        let running = shell("sleep 100", &Collected::default());
        let raise = interrupt.clone();
        let error = running.wait(Duration::from_secs(60), &interrupt, move || raise.raise()).unwrap_err();
        assert!(error.is_interrupt());
    }

    #[test]
    fn a_killed_one_does_not_run() {
        let mut running = shell("sleep 100", &Collected::default());
        assert!(running.is_running());
        running.kill();
        assert!(!running.is_running());
        running.stop();
    }

    #[test]
    fn a_frozen_one_says_nothing_and_can_be_killed() {
        let output = Collected::default();
        let mut running = shell("while :; do echo x; sleep 0.01; done", &output);
        let said = || (!output.text().is_empty()).then_some(());
        Interrupt::never().poll("its first word", Duration::from_secs(60), said).unwrap();
        running.freeze(&Interrupt::never()).unwrap();
        let silent = || {
            let before = output.text().len();
            std::thread::sleep(Duration::from_millis(100));
            (output.text().len() == before).then_some(())
        };
        Interrupt::never().poll("silence", Duration::from_secs(60), silent).unwrap();
        assert!(running.is_running());
        running.kill();
        assert!(!running.is_running());
    }

    #[test]
    fn last_words_are_complete() {
        for _ in 0..20 {
            let mut running = shell("echo why >&2; exit 1", &Collected::default());
            let ended =
                Interrupt::never().poll("its end", Duration::from_secs(60), || (!running.is_running()).then_some(()));
            ended.unwrap();
            assert_eq!(running.last_words(), "why");
        }
    }

    #[test]
    fn what_cannot_start_says_its_name() {
        let error = Running::start("nonsense", &mut Command::new("/nonexistent/program"), Collected::default());
        assert!(error.unwrap_err().to_string().contains("starting nonsense"));
    }

    #[test]
    fn too_much_output_is_cut() {
        let mut collected = Collected::default();
        for _ in 0..5 {
            collected.write_all(&vec![b'x'; OUTPUT_BYTES_MAX / 2]).unwrap();
        }
        assert_eq!(collected.text().len(), OUTPUT_BYTES_MAX);
        assert_eq!(Collected::default().last_line(), "(no message)");
    }
}
