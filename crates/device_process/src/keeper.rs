//! The process that outlives the one that serves a device: keeps its memory, and starts it again when it dies.
//!
//! It owns the device's entry, and holds and locks the memory in which the device's state lies. The serving process
//! is its child, of the same program. A child that ends well ends the keeper too. One that dies while it serves is
//! started again, and goes on with the memory, after a pause that grows. Where lives served nothing too often
//! (`restarts`), the device is given up: the keeper keeps the pages, has another process fail requests that
//! would wait else, says so in `status`, and waits for a SIGHUP (try again, [`crate::revival`]) or for `off`.
//!
//! Whatever this process does could happen while the machine's swap is dead, so it does next to nothing: all its
//! memory, its program included, is locked, and it never waits for I/O of its own.

use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::Signal;
use spillway_console::failure::Failure;
use spillway_console::log_writer;
use spillway_control::device_record::DeviceRecord;
use spillway_control::own_donors::OwnDonors;
use spillway_control::registry::{Entry, Registry};
use spillway_control::status_socket::{Answer, Question, StatusServer};
use spillway_machine::cgroup::OwnGroup;
use spillway_machine::memory::Memory;
use spillway_machine::reserve::Reserve;
use spillway_report::device::DeviceReport;
use spillway_report::format::Format;
use spillway_report::kind::Kind;
use spillway_sys::child::{self, ChildProcess, ChildSteps};
use spillway_sys::memory_hierarchy::Hierarchy;
use spillway_sys::paging_safety;
use spillway_volume::state::keeping::KeptMemory;
use spillway_volume::state::records::Milestone;
use spillway_volume::status::DeviceStatus;

use crate::handover::{KeeperHandover, LaunchedDevice, Readiness};
use crate::limits::{RESTART_PAUSE_MAX, RESTARTS_MAX};
use crate::prefetch::keeping::KeptPrefetching;
use crate::restarts::{Life, Next, Restarts};
use crate::serve;

/// How often the keeper looks at its signals.
const TURN: Duration = Duration::from_millis(100);

/// Runs until the device is stopped, or cannot be served any more.
pub fn keep(launched_text: &str) -> Result<(), Failure> {
    let launched: LaunchedDevice = serde_json::from_str(launched_text).map_err(Failure::usage)?;
    let signals = Signals::watch()?;
    match Keeper::prepare(&launched) {
        Ok(keeper) => keeper.run(&signals),
        Err(failure) => {
            serve::announce(&Readiness::Failed(failure.to_string()));
            Err(failure)
        }
    }
}

/// What this process was asked to do.
struct Signals {
    terminate: Arc<AtomicBool>,
    again: Arc<AtomicBool>,
}

impl Signals {
    fn watch() -> Result<Self, Failure> {
        let again = Arc::new(AtomicBool::new(false));
        let register = || signal_hook::flag::register(signal_hook::consts::SIGHUP, Arc::clone(&again));
        let terminate = serve::separate_from_terminal()?;
        register().map_err(|error| Failure::during("preparing the device's keeper", error))?;
        Ok(Self { terminate, again })
    }
}

struct Keeper {
    launched: LaunchedDevice,
    launched_text: String,
    memory: Option<KeptMemory>,
    notes: Vec<String>,
    log: PathBuf,
    own_donors: Option<OwnDonors>,
    prefetching: Option<KeptPrefetching>,
    _reserve: Option<Reserve>,
    // Dropped last: until then the name is taken.
    group: Option<OwnGroup>,
    entry: Entry,
}

/// How a child's life ended, and what follows from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// It did what it was told.
    Done,
    /// Another one is to go on.
    Again,
    /// Nothing of it can go on; what it left is for menders.
    Lost,
}

fn verdict(status: ExitStatus, is_serving: bool) -> Verdict {
    match status.code() {
        Some(0) => Verdict::Done,
        _ if is_serving => Verdict::Again,
        // It failed to start, and said so.
        Some(1 | 2) => Verdict::Done,
        _ => Verdict::Lost,
    }
}

impl Keeper {
    fn prepare(launched: &LaunchedDevice) -> Result<Self, Failure> {
        let registry = Registry::open().map_err(Failure::failed)?;
        let entry = registry.claim(Kind::Device, &launched.name)?;
        // Before this process locks its memory and gets the kernel's protection, which are not theirs.
        let (launched, own_donors) = with_own_donors(launched, &entry)?;
        let mut notes = Vec::new();
        let group = own_group(&launched.name, &mut notes);
        let memory = if launched.local_memory {
            None
        } else {
            Some(KeptMemory::make(&serve::config(&launched).volume).map_err(Failure::failed)?)
        };
        let prefetching = launched.prefetch.as_ref();
        let prefetching = prefetching.map(|plan| KeptPrefetching::new(plan, entry.path(), &mut notes));
        let reserve = if launched.machine_swap { raise_reserve(&entry, &mut notes) } else { None };
        // Refusals are noted by the child, which needs the same.
        let _ = paging_safety::avoid_out_of_memory_kill();
        let _ = paging_safety::lock_all_memory(false);
        let launched_text = serde_json::to_string(&launched).map_err(|error| Failure::during("device", error))?;
        let log = registry.log_path(Kind::Device, &launched.name);
        Ok(Self {
            launched,
            launched_text,
            memory,
            notes,
            log,
            own_donors,
            prefetching,
            _reserve: reserve,
            group,
            entry,
        })
    }

    fn run(mut self, signals: &Signals) -> Result<(), Failure> {
        let mut restarts = Restarts::default();
        loop {
            let started = Instant::now();
            let died = match self.serve_once(signals, restarts.have_been()) {
                Ok(status) => match verdict(status, self.memory.as_ref().is_some_and(KeptMemory::is_serving)) {
                    Verdict::Done if status.success() => {
                        if !restarts.have_been() {
                            // It has nothing to tell about a device that ended well.
                            let _ = std::fs::remove_file(&self.log);
                        }
                        self.own_donors.into_iter().for_each(OwnDonors::end);
                        return Ok(());
                    }
                    Verdict::Done => return Err(Failure::failed("the device's process could not start")),
                    Verdict::Lost => return self.leave_to_menders(&ending(status)),
                    Verdict::Again => format!("the device's process died ({})", ending(status)),
                },
                // The machine may be short of memory just now; the pages are not to be lost for that.
                Err(failure) if restarts.have_been() => failure.to_string(),
                Err(failure) => return Err(failure),
            };
            tracing::error!("{died}; another one goes on with its pages");
            match restarts.after(self.life(started.elapsed())) {
                Next::Start(pause) => std::thread::sleep(pause),
                Next::GiveUp if self.wait_for_orders(signals, &died) => restarts.try_again(),
                Next::GiveUp => return self.leave_to_menders("it was told to end"),
            }
        }
    }

    /// One life of the serving process, and how it ended.
    fn serve_once(&mut self, signals: &Signals, again: bool) -> Result<ExitStatus, Failure> {
        let failed = |error| Failure::during("starting the device's process", error);
        self.memory.iter().for_each(|memory| memory.records().begin_life());
        // The socket of a dead child is in the way of the next one.
        let _ = std::fs::remove_file(self.entry.status_socket());
        let mut child = self.spawn(again, false).map_err(failed)?;
        if !again {
            // From here on the launcher hears the child only, and its end.
            serve::release_stdout();
        }
        loop {
            if let Some(status) = child.try_wait().map_err(failed)? {
                return Ok(status);
            }
            self.prefetching.iter_mut().for_each(KeptPrefetching::look);
            if signals.terminate.swap(false, Ordering::SeqCst) {
                // It may have ended just now.
                let _ = child.signal(Signal::TERM);
            }
            let mut waiting = [PollFd::new(&child, PollFlags::IN)];
            let timeout = Timespec { tv_sec: 0, tv_nsec: TURN.subsec_nanos().into() };
            // A signal cuts the wait short.
            let _ = rustix::event::poll(&mut waiting, Some(&timeout));
        }
    }

    /// What the child that died last did, as it noted itself.
    fn life(&self, lived: Duration) -> Life {
        let reached = |milestone| self.memory.as_ref().is_some_and(|memory| memory.records().has_reached(milestone));
        Life {
            lived,
            was_ready: reached(Milestone::Ready),
            was_asked: reached(Milestone::Asked),
            has_answered: reached(Milestone::Answered),
        }
    }

    fn spawn(&self, again: bool, fails: bool) -> std::io::Result<ChildProcess> {
        let record = DeviceRecord::read(self.entry.path());
        let handed = KeeperHandover {
            memory: self.memory.as_ref().map(KeptMemory::path),
            notes: self.notes.clone(),
            released: record.is_some_and(|record| record.released),
            fails,
        };
        // The same program, even if its file was replaced meanwhile.
        let mut command = Command::new("/proc/self/exe");
        command.arg("serve-device").arg(&self.launched_text).arg("--kept").arg(serde_json::to_string(&handed)?);
        if again {
            command.stdout(Stdio::null());
        }
        child::spawn(command, ChildSteps::default())
    }

    /// Keeps the pages without serving them; true when it is to be tried again.
    fn wait_for_orders(&mut self, signals: &Signals, died: &str) -> bool {
        let health = format!(
            "given up: {died}, as did {RESTARTS_MAX} before it that served nothing either, and it is not started any more; \
             its pages are kept, and requests fail. See {}; mend the cause, and `spillway doctor --mend` tries again",
            log_writer::place(&self.log),
        );
        tracing::error!("{health}");
        self.prefetching.iter_mut().for_each(KeptPrefetching::pause);
        let mut substitute = Substitute::default();
        let _ = std::fs::remove_file(self.entry.status_socket());
        let Ok(socket) = StatusServer::bind(&self.entry.status_socket()) else { return false };
        let report = self.report(health);
        let mut stopped = false;
        let is_tried_again = loop {
            substitute.look(self);
            socket.serve(TURN, &mut |question| match question {
                Question::Ping => Answer::done(),
                Question::Cluster => Answer::no_cluster(),
                Question::Donor(_) => Answer::refused("no process serves it, see its status"),
                Question::Status => Answer::status(&report),
                Question::Stop => {
                    stopped = true;
                    Answer::done()
                }
            });
            if stopped || signals.terminate.swap(false, Ordering::SeqCst) {
                break false;
            }
            if signals.again.swap(false, Ordering::SeqCst) {
                break true;
            }
        };
        substitute.end();
        is_tried_again
    }

    fn report(&self, health: String) -> DeviceReport {
        let path = DeviceRecord::read(self.entry.path()).and_then(|record| record.path).unwrap_or_default();
        DeviceReport {
            format: Format::default(),
            run: self.launched.run.clone(),
            follows: self.launched.storage.follows.clone(),
            notes: self.notes.clone(),
            given_up: true,
            prefetch: None,
            device: DeviceStatus {
                name: self.launched.name.clone(),
                path: path.display().to_string(),
                size_bytes: self.launched.storage.size_bytes,
                slab_size_bytes: self.launched.storage.slab_size_bytes,
                redundancy: self.launched.storage.redundancy.to_string(),
                health,
                ..DeviceStatus::default()
            },
        }
    }

    /// Ends without taking the entry along: the process that mends it knows what the device left.
    fn leave_to_menders(self, reason: &str) -> Result<(), Failure> {
        drop(self.prefetching);
        // Without the group the entry's mender has less to do; a refusal is its work then.
        drop(self.group);
        self.entry.abandon();
        Err(Failure::Failed(format!("the device ended: {reason}")))
    }
}

/// A process that answers with errors, for a block device that outlived its process: requests would wait for ever. It
/// is started again as long as it is needed.
#[derive(Default)]
struct Substitute {
    child: Option<ChildProcess>,
    /// When it was started, or could not be.
    tried: Option<Instant>,
    /// The block device is gone, and no request waits.
    is_done: bool,
}

impl Substitute {
    fn look(&mut self, keeper: &Keeper) {
        let ended = self.child.as_mut().map(|child| child.try_wait().ok().flatten());
        let is_there = matches!(ended, Some(None));
        self.is_done |= ended.flatten().is_some_and(|status| status.success());
        let is_rested = self.tried.is_none_or(|tried| tried.elapsed() >= RESTART_PAUSE_MAX);
        let is_needed = keeper.memory.as_ref().is_some_and(|memory| memory.records().has_front_end());
        if is_there || self.is_done || !is_rested || !is_needed {
            return;
        }
        self.tried = Some(Instant::now());
        match keeper.spawn(true, true) {
            Ok(child) => self.child = Some(child),
            Err(error) => tracing::error!("no process fails the requests meanwhile, so they wait: {error}"),
        }
    }

    /// Nothing of it is to be undone: the next process takes the device over.
    fn end(self) {
        if let Some(mut child) = self.child {
            // It may have ended by itself.
            let _ = child.signal(Signal::KILL);
            let _ = child.wait();
        }
    }
}

/// Starts the device's own donors, if it has any, and names them to the device.
fn with_own_donors(launched: &LaunchedDevice, entry: &Entry) -> Result<(LaunchedDevice, Option<OwnDonors>), Failure> {
    let Some(plan) = &launched.own_donors else { return Ok((launched.clone(), None)) };
    let prefix = format!("device-{}-", std::process::id());
    let own = OwnDonors::start(plan, &prefix, entry.path(), &|| Ok(()))?;
    Ok((LaunchedDevice { storage: launched.storage.with_own(&own), ..launched.clone() }, Some(own)))
}

fn raise_reserve(entry: &Entry, notes: &mut Vec<String>) -> Option<Reserve> {
    match Memory::read().and_then(|memory| Reserve::raise(entry.path(), memory.total_bytes)) {
        Ok(reserve) => {
            notes.extend(reserve.as_ref().map(Reserve::note));
            reserve
        }
        Err(error) => {
            notes
                .push(format!("vm.min_free_kbytes cannot be raised ({error}): a machine without a free page may stop"));
            None
        }
    }
}

fn own_group(name: &str, notes: &mut Vec<String>) -> Option<OwnGroup> {
    let hierarchy = Hierarchy::detect()?;
    match OwnGroup::enter(&hierarchy, &format!("device-{name}")) {
        Ok(group) => Some(group),
        Err(error) => {
            notes.push(format!("no memory group of its own ({error}): a limit on its starter applies to it too"));
            None
        }
    }
}

fn ending(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit status {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "unknown".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_serving_process_is_started_again() {
        let ended = |raw| ExitStatus::from_raw(raw);
        assert_eq!(verdict(ended(0), true), Verdict::Done);
        assert_eq!(verdict(ended(9), true), Verdict::Again, "killed");
        assert_eq!(verdict(ended(6), true), Verdict::Again, "aborted by a panic");
        assert_eq!(verdict(ended(1 << 8), true), Verdict::Again, "could not go on");
        assert_eq!(verdict(ended(1 << 8), false), Verdict::Done, "never started");
        assert_eq!(verdict(ended(9), false), Verdict::Lost);
    }

    #[test]
    fn what_is_handed_over_arrives() {
        let handed = KeeperHandover {
            memory: Some("/proc/7/fd/3".into()),
            notes: vec!["a".to_owned()],
            released: true,
            fails: true,
        };
        let text = serde_json::to_string(&handed).unwrap();
        assert_eq!(serde_json::from_str::<KeeperHandover>(&text).unwrap(), handed);
    }
}
