//! One run of one server in a place: it is started, asked by clients that are not under its limit, and ended with
//! SIGTERM.
//!
//! Invariant: whatever fails, the server ends first, then its place goes, then its private directory.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;

use rustix::process::Pid;
use spillway_report::run::EndedRunReport;
use spillway_workloads::size::Size;

use super::load::{Served, Times};
use crate::harness::HarnessError;
use crate::harness::interrupt::Interrupt;
use crate::harness::process::{Collected, Running};
use crate::harness::spillway::{Via, pages_in, pages_out};
use crate::harness::storage::PrivateDirectory;
use crate::harness::usage::SwapCount;
use crate::harness::watching::watched;
use crate::harness::working_set::WorkingSet;
use crate::limits::{ANSWER_DEADLINE, SERVER_START_DEADLINE};
use crate::result::{OPERATIONS_PER_SECOND, Unit};
use crate::studies::Context;
use crate::studies::places::{Place, Places, Ready};

/// What a server's run works with.
#[derive(Clone, Copy, Debug)]
pub struct Session<'run> {
    /// Private to the run, on a disk: sockets and files.
    pub directory: &'run Path,
    /// How long clients ask.
    pub times: Times,
    /// Ends everything early.
    pub interrupt: &'run Interrupt,
}

/// A server that can be started in a place and asked.
pub trait Server {
    /// Its name in results.
    fn name(&self) -> &str;

    /// What its rate is counted in.
    fn unit(&self) -> Unit {
        OPERATIONS_PER_SECOND
    }

    /// Memory that suffices for what may have to be lent.
    fn room(&self) -> Size;

    /// Whether its memory grows while clients ask, so that only a run of full length shows the most.
    fn grows(&self) -> bool {
        false
    }

    /// The server as a command in the foreground, its files prepared.
    fn command(&self, session: &Session<'_>) -> Result<Command, HarnessError>;

    /// Loads the server that runs as `running`, warms it up, asks it, and checks what it answers.
    fn serve(&self, running: &mut Running, session: &Session<'_>) -> Result<Served, HarnessError>;

    /// What of it stays local over one of our ways, and why; `None` where all of it can be lent.
    fn stays_local(&self, _via: Via) -> Option<&'static str> {
        None
    }
}

/// What one run showed.
#[derive(Clone, Debug)]
pub struct Turn {
    /// What the clients saw.
    pub served: Served,
    /// See [`pages_moved`].
    pub pages: Option<SwapCount>,
    /// The most local memory seen; `None` under `spillway run`.
    pub peak: Option<Size>,
}

/// Waits until `attempt` gives a value; an error with the server's last words when it ends before.
pub fn await_answer<Value>(
    name: &str,
    running: &mut Running,
    interrupt: &Interrupt,
    mut attempt: impl FnMut() -> Option<Value>,
) -> Result<Value, HarnessError> {
    let answer = interrupt.poll(&format!("the start of {name}"), SERVER_START_DEADLINE, || {
        if running.is_running() { attempt().map(Some) } else { Some(None) }
    })?;
    answer.ok_or_else(|| HarnessError::failed(name, running.last_words()))
}

/// A connection to the server at `socket`, to read from and to write to, on which no wait is longer than
/// [`ANSWER_DEADLINE`].
pub fn connect(socket: &Path) -> io::Result<(UnixStream, UnixStream)> {
    let stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(ANSWER_DEADLINE))?;
    stream.set_write_timeout(Some(ANSWER_DEADLINE))?;
    Ok((stream.try_clone()?, stream))
}

/// Runs `server` in `place`.
pub fn run(
    context: &Context,
    places: &mut Places<'_>,
    server: &dyn Server,
    (place, times): (Place, Times),
) -> Result<Turn, HarnessError> {
    let directory = PrivateDirectory::on_disk(Some(context.shop.directory.path()))?;
    let session = Session { directory: directory.path(), times, interrupt: &context.shop.interrupt };
    let command = server.command(&session)?;
    let mut ready = places.ready(&command, place, server.room())?;
    let before = SwapCount::now();
    let (served, peak) = serve(server, &mut ready, &session)?;
    let told = ready.told(server.name())?;
    Ok(Turn { served, pages: pages_moved(place, before, told.as_ref()), peak })
}

/// Pages that moved during a run in `place`, its loading included: as `spillway run` told, or what the kernel counted
/// on the whole machine since `before`. `None` with all memory local, where that count is of others only.
pub fn pages_moved(place: Place, before: SwapCount, told: Option<&EndedRunReport>) -> Option<SwapCount> {
    match (place, told) {
        (Place::AllLocal, _) => None,
        (_, Some(told)) => Some(SwapCount { pages_in: pages_in(told), pages_out: pages_out(told) }),
        (_, None) => Some(SwapCount::now().since(before)),
    }
}

/// Starts the server, asks it, and ends it.
fn serve(
    server: &dyn Server,
    ready: &mut Ready,
    session: &Session<'_>,
) -> Result<(Served, Option<Size>), HarnessError> {
    let mut running = Running::start(server.name(), &mut ready.command, Collected::default())?;
    let process = running.id();
    let (outcome, peak) =
        with_peak(ready.working_set().map(|set| (set, process)), || server.serve(&mut running, session));
    let lives = running.is_running();
    running.stop();
    match outcome {
        // What clients say of a server that is gone says less than its own last words.
        Err(error @ (HarnessError::System { .. } | HarnessError::Wrong { .. })) if !lives => {
            Err(HarnessError::failed(server.name(), format!("{error}: {}", running.messages.last_line())))
        }
        outcome => Ok((outcome?, peak)),
    }
}

/// Does `work`, and meanwhile looks at the most memory that a process uses.
fn with_peak<Value>(
    watched_process: Option<(&WorkingSet, Pid)>,
    work: impl FnOnce() -> Value,
) -> (Value, Option<Size>) {
    let Some((working_set, process)) = watched_process else { return (work(), None) };
    let mut most = Size(0);
    let value = watched(working_set.interval(), || most = most.max(working_set.now(process)), work);
    (value, Some(most))
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::Duration;

    use super::*;
    use crate::harness::cpu_use::{CLIENTS, CpuUse};
    use crate::harness::memory_group::MemoryGroup;
    use crate::harness::tool;
    use crate::studies::tests::context;

    pub(in super::super) const TIMES: Times =
        Times { warm_up: Duration::from_millis(100), measured: Duration::from_millis(300) };

    /// Runs `server` once with all memory local, if the machine has `program` and memory groups.
    pub(in super::super) fn serves_all_local(server: &dyn Server, program: &str) {
        if let Err(error) = tool::need(program).and_then(|_| MemoryGroup::create(None)) {
            return spillway_sys::skipping::skip_because(error);
        }
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        let context = context(directory.path(), 1);
        let mut places = Places::new(&context, "disk");
        let turn = run(&context, &mut places, server, (Place::AllLocal, TIMES)).unwrap();
        assert!(turn.served.rate > 1.0 && turn.served.p99_us > 0.0, "{turn:?}");
        // Servers of tests beside this one count as well, and may have ended meanwhile.
        assert!(turn.served.cpu.seconds.contains_key(CLIENTS), "{turn:?}");
        assert!(turn.peak.is_some_and(|peak| peak.0 > 4 << 20), "{turn:?}");
        let left = std::fs::read_dir(context.shop.directory.path()).unwrap().count();
        assert_eq!(left, 0, "the private directory is gone");
    }

    #[test]
    fn pages_come_from_the_report_or_from_the_kernels_count() {
        let told = EndedRunReport::default();
        let now = SwapCount::now();
        let swap = Place::Swap(crate::harness::subject::Subject::Zram, Size(1));
        assert_eq!(pages_moved(Place::AllLocal, now, None), None);
        let over_device = pages_moved(Place::Spillway(Via::Swap, Size(1), 1), now, Some(&told));
        assert_eq!(over_device, Some(SwapCount::default()));
        assert!(pages_moved(swap, now, None).is_some());
    }

    /// A server that is a script.
    struct Script(&'static str);

    impl Server for Script {
        fn name(&self) -> &str {
            "a script"
        }

        fn room(&self) -> Size {
            Size(1 << 20)
        }

        fn command(&self, _session: &Session<'_>) -> Result<Command, HarnessError> {
            let mut command = Command::new("sh");
            command.args(["-c", self.0]);
            Ok(command)
        }

        fn serve(&self, running: &mut Running, session: &Session<'_>) -> Result<Served, HarnessError> {
            await_answer("a script", running, session.interrupt, || {
                session.directory.join("socket").exists().then_some(())
            })?;
            Ok(Served { rate: 1.0, p99_us: 1.0, cpu: CpuUse::default() })
        }
    }

    #[test]
    fn a_server_that_ends_early_is_told_with_its_last_words() {
        if let Err(error) = MemoryGroup::create(None) {
            return spillway_sys::skipping::skip_because(error);
        }
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        let context = context(directory.path(), 1);
        let mut places = Places::new(&context, "disk");
        let script = Script("echo no room here >&2; exit 1");
        let error = run(&context, &mut places, &script, (Place::AllLocal, TIMES)).unwrap_err().to_string();
        assert!(error.contains("no room here"), "{error}");
    }
}
