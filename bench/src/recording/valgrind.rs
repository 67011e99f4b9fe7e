//! Runs a program under valgrind's `lackey` and converts its log while it comes.
//!
//! The log comes through a pipe whose writing end the tool inherits by number (`--log-fd`), so that the program keeps
//! its standard streams.
//!
//! Invariant: the tool ends with the value that stands for it here, and this program never waits for a log without
//! looking whether its writer still runs.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use spillway_policy::trace::Recorder;

use super::converter::Converter;
use crate::harness::interrupt::Interrupt;
use crate::harness::process::{Running, bound};
use crate::harness::{HarnessError, tool};
use crate::limits::RECORDING_DEADLINE;
use crate::replay::traces::ROOM_BYTES;

/// Bytes of the log between the two: what the tool writes in some 50 ms.
const PIPE_BYTES: usize = 1 << 20;

/// A piece of the log that is shorter is not worth being woken for, as the tool writes each line by itself: this
/// program rests then.
const PIECE_BYTES: usize = PIPE_BYTES / 8;

/// For so long.
const REST: Duration = Duration::from_millis(2);

/// Copies by the processor's string instructions would be a line for each byte. The C library takes loops instead
/// when told so, with the same pages in the same order; programs with another one are recorded too, more slowly.
const LIBRARY_TUNABLES: (&str, &str) = (
    "GLIBC_TUNABLES",
    "glibc.cpu.x86_rep_movsb_threshold=1099511627776:glibc.cpu.x86_rep_stosb_threshold=1099511627776",
);

/// The log's reading end, and what was made of it.
#[derive(Debug)]
struct Log {
    reader: OwnedFd,
    converter: Converter,
}

/// A command line that records, and the end of its log that it has to inherit.
#[derive(Debug)]
struct Prepared {
    arguments: Vec<OsString>,
    writer: OwnedFd,
    log: Log,
}

fn prepare() -> Result<Prepared, HarnessError> {
    let failed = || HarnessError::system::<Errno>("making a pipe");
    // Without CLOEXEC: the tool is to have it. The reading end is not for it, or no process would notice when this
    // program is gone.
    let (reader, writer) = rustix::pipe::pipe().map_err(failed())?;
    rustix::io::fcntl_setfd(&reader, rustix::io::FdFlags::CLOEXEC).map_err(failed())?;
    rustix::fs::fcntl_setfl(&reader, rustix::fs::OFlags::NONBLOCK).map_err(failed())?;
    // Users may be refused a large one; a smaller one is slower.
    let _ = rustix::pipe::fcntl_setpipe_size(&writer, PIPE_BYTES);
    let options =
        ["--tool=lackey", "--basic-counts=no", "--trace-mem=yes", "--trace-syscalls=yes", "--trace-sched=yes"];
    // A forked child would write into the same log.
    let children = "--child-silent-after-fork=yes";
    let mut arguments: Vec<OsString> = options.into_iter().chain([children]).map(OsString::from).collect();
    arguments.push(format!("--log-fd={}", writer.as_raw_fd()).into());
    arguments.push("--".into());
    Ok(Prepared { arguments, writer, log: Log { reader, converter: Converter::new(ROOM_BYTES) } })
}

impl Log {
    /// Reads until the writer does not run any more.
    fn follow(
        &mut self,
        limit: Duration,
        interrupt: &Interrupt,
        mut runs: impl FnMut() -> Result<bool, HarnessError>,
    ) -> Result<(), HarnessError> {
        let end = Instant::now() + limit;
        let (mut buffer, mut held) = (vec![0; PIPE_BYTES], 0);
        loop {
            interrupt.check()?;
            if Instant::now() >= end {
                return Err(HarnessError::TimedOut { what: "recording".to_owned(), limit });
            }
            // Asked before reading: what was written before the end is read.
            let has_ended = !runs()?;
            let length = match rustix::io::read(&self.reader, &mut buffer[held..]) {
                Ok(0) => return Ok(()),
                Ok(length) => length,
                Err(Errno::AGAIN) if has_ended => return Ok(()),
                Err(Errno::AGAIN | Errno::INTR) => 0,
                Err(error) => return Err(HarnessError::system("reading the log of valgrind")(error)),
            };
            let taken = self.converter.take(&buffer[..held + length]);
            buffer.copy_within(taken..held + length, 0);
            // A line that fills the buffer is none of ours.
            held = Some(held + length - taken).filter(|held| *held < buffer.len()).unwrap_or(0);
            if length < PIECE_BYTES && !has_ended {
                std::thread::sleep(REST);
            }
        }
    }
}

/// Records `program`, which keeps this program's standard streams and may take any time.
pub fn record_here(
    program: &OsStr,
    arguments: &[OsString],
    interrupt: &Interrupt,
) -> Result<(Recorder, ExitStatus), HarnessError> {
    let Prepared { arguments: options, writer, mut log } = prepare()?;
    let mut command = bound(tool::need("valgrind")?);
    command.args(options).arg(program).args(arguments).env(LIBRARY_TUNABLES.0, LIBRARY_TUNABLES.1);
    let waiting = || HarnessError::system::<std::io::Error>("waiting for valgrind");
    let mut child = command.spawn().map_err(HarnessError::system("starting valgrind"))?;
    drop(writer);
    let followed = log.follow(Duration::MAX / 4, &Interrupt::never(), || {
        // Ctrl-C reaches it too, and what was recorded until then is worth keeping; other signals are for it alone.
        Ok(interrupt.check().is_ok() && child.try_wait().map_err(waiting())?.is_none())
    });
    if followed.is_err() || interrupt.check().is_err() {
        let _ = child.kill();
    }
    let status = child.wait().map_err(waiting())?;
    followed.map(|()| (log.converter.into_recorder(), status))
}

/// Records `program`, silently, to its end.
pub fn record(program: &Command, interrupt: &Interrupt) -> Result<Recorder, HarnessError> {
    let Prepared { arguments, writer, mut log } = prepare()?;
    let mut command = bound(tool::need("valgrind")?);
    command.args(arguments).arg(program.get_program()).args(program.get_args());
    command.env(LIBRARY_TUNABLES.0, LIBRARY_TUNABLES.1);
    command.envs(program.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let name = program.get_program().to_string_lossy().into_owned();
    let mut running = Running::start(&name, &mut command, std::io::sink())?;
    drop(writer);
    log.follow(RECORDING_DEADLINE, interrupt, || Ok(running.is_running()))?;
    let messages = running.messages.clone();
    let finished = running.wait(RECORDING_DEADLINE, interrupt, || {})?;
    if !finished.status.success() {
        return Err(HarnessError::failed(name, format!("{} ({})", messages.last_line(), finished.status)));
    }
    Ok(log.converter.into_recorder())
}

#[cfg(test)]
mod tests {
    use std::process::Stdio;

    use super::*;

    fn follow(script: &str, interrupt: &Interrupt) -> (Result<(), HarnessError>, Recorder) {
        let Prepared { writer, mut log, .. } = prepare().unwrap();
        let script = script.replace("LOG", &writer.as_raw_fd().to_string());
        let mut child = Command::new("bash").args(["-c", &script]).stdin(Stdio::piped()).spawn().unwrap();
        drop(writer);
        let followed = log.follow(Duration::from_secs(60), interrupt, || Ok(child.try_wait().unwrap().is_none()));
        let _ = child.kill();
        child.wait().unwrap();
        (followed, log.converter.into_recorder())
    }

    #[test]
    fn a_log_is_followed_to_its_end() {
        let heap = "SYSCALL[1,1](12) sys_brk ( 0x0 ) --> [pre-success] Success";
        let script = format!(
            "(echo '{heap}(0x1000)'; echo '{heap}(0x5000)'; echo ' L 1000,8'; sleep 0.1; printf ' S 20'; sleep 0.1; echo '00,8') >&LOG"
        );
        let (followed, recorder) = follow(&script, &Interrupt::never());
        followed.unwrap();
        assert_eq!(recorder.events(), 2);
    }

    #[test]
    fn a_writer_that_outlives_the_program_is_not_waited_for() {
        // The pipe stays open in a process that the program leaves behind, until this test waits for the program's end.
        let script = "exec 5<&0; cat <&5 >/dev/null & echo nonsense >&LOG";
        let (followed, recorder) = follow(script, &Interrupt::never());
        followed.unwrap();
        assert_eq!(recorder.events(), 0);
    }

    #[test]
    fn an_interrupt_ends_it() {
        let interrupt = Interrupt::never();
        interrupt.raise();
        assert!(follow("sleep 30", &interrupt).0.unwrap_err().is_interrupt());
    }
}
