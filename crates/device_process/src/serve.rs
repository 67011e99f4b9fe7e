//! The process that serves one device: holds the [`Device`], answers on its status socket, and ends when told to. Its
//! parent is the device's [keeper](crate::keeper), which owns the entry and has the memory that outlives this
//! process.
//!
//! It serves page-outs of a machine without memory, so before the device starts it is made safe. It never waits for
//! its own swap (`PR_SET_IO_FLUSHER`, set first thing in `main`), and all its memory is locked. It is in a memory
//! group of its own without a limit, and the kernel's out-of-memory killer passes it by. What could not be had is a
//! note in the status.

use std::fs;
use std::io::Write;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use spillway_console::failure::Failure;
use spillway_console::log_writer::ChangeLog;
use spillway_control::device_record::{DeviceRecord, remove_backing};
use spillway_control::donor_change::{self, KeptOut};
use spillway_control::mender::Mender;
use spillway_control::registry::Registry;
use spillway_control::sandbox::{self, Borrower};
use spillway_control::status_socket::{Answer, Question, StatusServer};
use spillway_device::config::DeviceConfig;
use spillway_device::device::{Device, DeviceError, Kept};
use spillway_frontend::front_end::FrontEndError;
use spillway_frontend::fuse;
use spillway_frontend::nbd::server::NbdListen;
use spillway_report::device::DeviceReport;
use spillway_report::format::Format;
use spillway_report::kind::Kind;
use spillway_report::prefetch::PrefetchReport;
use spillway_sys::{core_dumps, paging_safety};
use spillway_volume::settings::VolumeConfig;
use spillway_volume::state::records::Records;
use spillway_volume::state::{DeviceState, keeping};

use crate::handover::{KeeperHandover, LaunchedDevice, Readiness};
use crate::limits;
use crate::prefetch::process::report;

/// How often the process looks at its owner and its signals.
const TURN: Duration = Duration::from_millis(100);

/// What the owner's pipe says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    /// Nothing new.
    Present,
    /// The device lives on without its owner.
    Released,
    /// It died, or gave up.
    Gone,
}

/// Runs the process until the device is stopped; `handed_text` is what its keeper hands over.
pub fn serve(launched_text: &str, handed_text: &str, io_flusher: std::io::Result<()>) -> Result<(), Failure> {
    let launched: LaunchedDevice = serde_json::from_str(launched_text).map_err(Failure::usage)?;
    let handed: KeeperHandover = serde_json::from_str(handed_text).map_err(Failure::usage)?;
    let mut notes = handed.notes.clone();
    if let Err(error) = io_flusher {
        notes.push(format!(
            "PR_SET_IO_FLUSHER was refused ({error}): under extreme pressure paging may wait for itself"
        ));
    }
    let terminate = separate_from_terminal()?;
    if handed.fails {
        return fail_requests(&launched, &handed);
    }
    match Server::start(&launched, &handed, notes, terminate) {
        Ok(mut server) => {
            announce(&Readiness::Ready {
                path: server.path.clone(),
                notes: server.notes.clone(),
                donors_missing: server.device.donors_missing().to_vec(),
            });
            server.run();
            Ok(())
        }
        Err(failure) => {
            announce(&Readiness::Failed(failure.to_string()));
            Err(failure)
        }
    }
}

/// Answers every request of a device that was given up with an error, until its keeper ends this process.
fn fail_requests(launched: &LaunchedDevice, handed: &KeeperHandover) -> Result<(), Failure> {
    let keeper = rustix::process::getppid();
    make_safe(launched, &mut Vec::new());
    let kept = kept(launched, handed)?.ok_or_else(|| Failure::failed("no memory was handed over"))?;
    sandbox::drop_rights_of_start().map_err(|error| Failure::during("giving up rights", error))?;
    // Requests wait at the block device that was there, and not at a new one.
    let kept = Kept { outlives_block_device: false, ..kept };
    let device = match Device::start_failing(config(launched), kept) {
        Err(DeviceError::FrontEnd(FrontEndError::Missing(_) | FrontEndError::Invalid(_))) => return Ok(()),
        started => started.map_err(Failure::failed)?,
    };
    while rustix::process::getppid() == keeper {
        std::thread::sleep(TURN);
    }
    // To be taken over by the process that comes next: not detached.
    std::mem::forget(device);
    Ok(())
}

/// A Ctrl-C for the program must not reach the device that its memory lives on.
pub(super) fn separate_from_terminal() -> Result<Arc<AtomicBool>, Failure> {
    // Fails only for a process that leads a group already, which then has no terminal to lose.
    let _ = rustix::process::setsid();
    let terminate = Arc::new(AtomicBool::new(false));
    let register = || -> std::io::Result<()> {
        signal_hook::flag::register(signal_hook::consts::SIGTERM, Arc::clone(&terminate))?;
        for ignored in [signal_hook::consts::SIGINT, signal_hook::consts::SIGHUP, signal_hook::consts::SIGQUIT] {
            signal_hook::flag::register(ignored, Arc::new(AtomicBool::new(false)))?;
        }
        std::env::set_current_dir("/")
    };
    register().map_err(|error| Failure::during("preparing the device's process", error))?;
    Ok(terminate)
}

/// Tells the launcher, and lets go of its standard output.
pub(super) fn announce(readiness: &Readiness) {
    if let Ok(mut line) = serde_json::to_vec(readiness) {
        line.push(b'\n');
        let mut output = std::io::stdout();
        // A launcher that is gone needs no answer; its pipe says so too.
        let _ = output.write_all(&line).and_then(|()| output.flush());
    }
    release_stdout();
}

/// Lets go of the standard output, whose reader waits for its end.
pub(super) fn release_stdout() {
    if let Ok(nowhere) = fs::File::options().write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stdout(&nowhere);
    }
}

struct Server {
    launched: LaunchedDevice,
    notes: Vec<String>,
    path: PathBuf,
    device: Device,
    sockets: Rc<StatusServer>,
    terminate: Arc<AtomicBool>,
    stopped: bool,
    owner: Owner,
    kept_out: KeptOut,
    changes: ChangeLog,
    keeper: Option<rustix::process::Pid>,
    /// The keeper's.
    entry: PathBuf,
    /// For the run that the device belongs to, if it belongs to one; until it is told.
    mender: Option<Mender>,
}

impl Server {
    fn start(
        launched: &LaunchedDevice,
        handed: &KeeperHandover,
        mut notes: Vec<String>,
        terminate: Arc<AtomicBool>,
    ) -> Result<Self, Failure> {
        let keeper = rustix::process::getppid();
        let registry = Registry::open().map_err(Failure::failed)?;
        let entry = registry.entry_path(Kind::Device, &launched.name);
        let mender = launched.run.is_some().then(Mender::start);
        make_safe(launched, &mut notes);
        let mut record = DeviceRecord {
            path: None,
            temporary_backing: launched.storage.temporary_backing().map(ToOwned::to_owned),
            run: launched.run.clone(),
            released: handed.released,
        };
        let write = |record: &DeviceRecord| record.write(&entry).map_err(|error| Failure::during("device.json", error));
        let kept = kept(launched, handed)?;
        let resumed = kept.as_ref().is_some_and(|kept| kept.state.is_resumed());
        if let Some(kept) = &kept {
            note_starts(kept, &mut notes);
        }
        if !resumed {
            write(&record)?;
        }
        if resumed {
            // What cannot outlive its process, and is in no other process's use. The rest waits for `doctor --mend`.
            let _ = fuse::leftovers::mend();
        }
        // The keeper's memory is open by now: a process with fewer rights may not look into one with more.
        sandbox::drop_rights_of_start().map_err(|error| Failure::during("giving up rights", error))?;
        let device = match kept {
            Some(kept) => Device::start_kept(config(launched), kept),
            None => Device::start(config(launched)),
        };
        let device = device.map_err(|error| {
            // The pages of a device that goes on are still there for the next try.
            if !resumed {
                remove_backing(&record);
            }
            Failure::failed(error)
        })?;
        record.path = Some(device.path().to_path_buf());
        write(&record)?;
        let socket = entry.join("status.sock");
        let sockets = StatusServer::bind(&socket).map_err(|error| Failure::during(socket.display(), error))?;
        core_dumps::hide_from_dumps();
        if let Err(error) = sandbox::deny_calls_of_others(Borrower::Server) {
            notes.push(format!("system calls that serving does not need are not denied: {error}"));
        }
        Ok(Self {
            launched: launched.clone(),
            path: device.path().to_path_buf(),
            notes,
            device,
            sockets: Rc::new(sockets),
            terminate,
            stopped: false,
            kept_out: KeptOut::default(),
            changes: ChangeLog::new(format!("device '{}'", launched.name)),
            owner: if handed.released { Owner::Released } else { Owner::Present },
            keeper,
            entry,
            mender,
        })
    }

    fn run(&mut self) {
        let sockets = Rc::clone(&self.sockets);
        while !self.stopped {
            self.look_around();
            // In use it stays on; an orphan tries again at the next turn, and answers in between.
            if self.terminate.swap(false, Ordering::SeqCst) {
                let _ = self.stop(Device::stop);
            } else if self.owner == Owner::Gone {
                let _ = self.stop(Device::stop_if_unused);
            }
            if !self.stopped {
                sockets.serve(TURN, &mut |question| self.answer(question));
            }
        }
    }

    /// Sees whether the launcher let the device go or died, and whether the keeper is still there.
    fn look_around(&mut self) {
        self.changes.look(|| Some(self.device.status()));
        if self.owner == Owner::Present {
            self.owner = look_at_owner();
            match self.owner {
                Owner::Gone => self.mend_for_dead_run(),
                Owner::Released => self.note_released(),
                Owner::Present => {}
            }
        }
        if self.owner != Owner::Gone && rustix::process::getppid() != self.keeper {
            tracing::error!("the keeper of this device died: it ends when it is no longer in use");
            self.owner = Owner::Gone;
        }
    }

    /// For the process that comes after this one, whose launcher is gone by then.
    fn note_released(&self) {
        let record = DeviceRecord::read(&self.entry).map(|record| DeviceRecord { released: true, ..record });
        if let Some(Err(error)) = record.map(|record| record.write(&self.entry)) {
            tracing::warn!("device.json: {error}");
        }
    }

    fn answer(&mut self, question: &Question) -> Answer {
        match question {
            Question::Ping => Answer::done(),
            Question::Cluster => Answer::no_cluster(),
            Question::Donor(change) => donor_change::carry_out(change, self.device.volume(), &mut self.kept_out),
            Question::Status => Answer::status(&DeviceReport {
                format: Format::default(),
                run: self.launched.run.clone(),
                follows: self.launched.storage.follows.clone(),
                notes: self.notes.clone(),
                given_up: false,
                prefetch: self.prefetch(),
                device: self.device.status(),
            }),
            Question::Stop => {
                self.stop(Device::stop).map_or_else(|error| Answer::refused(error.to_string()), |()| Answer::done())
            }
        }
    }

    fn prefetch(&self) -> Option<PrefetchReport> {
        self.launched.machine_swap.then(|| report(self.launched.prefetch.as_ref(), &self.entry))
    }

    fn stop(&mut self, stop: fn(&mut Device) -> Result<(), DeviceError>) -> Result<(), DeviceError> {
        if !self.stopped {
            stop(&mut self.device)?;
            self.stopped = true;
            if let Some(record) = DeviceRecord::read(&self.entry) {
                remove_backing(&record);
            }
        }
        Ok(())
    }

    /// The run that this device belongs to died without taking it down. Its remains are mended by a process of its own,
    /// because bringing pages back must not wait for the process that serves them.
    fn mend_for_dead_run(&mut self) {
        if let Some(mender) = self.mender.take() {
            mender.order();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(mender) = self.mender.take() {
            mender.dismiss();
        }
    }
}

/// Whether the launcher still holds its end of standard input, and what it wrote.
fn look_at_owner() -> Owner {
    let input = std::io::stdin();
    let mut ready = [PollFd::from_borrowed_fd(input.as_fd(), PollFlags::IN)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    match rustix::event::poll(&mut ready, Some(&now)) {
        Ok(0) | Err(_) => return Owner::Present,
        Ok(_) => {}
    }
    let mut line = [0; 16];
    match rustix::io::read(&input, &mut line) {
        Ok(0) => Owner::Gone,
        Ok(_) => Owner::Released,
        Err(_) => Owner::Present,
    }
}

/// Everything that keeps paging from waiting for paging, see the module text; what is refused becomes a note. The
/// memory group and its place in the order of out-of-memory kills are the keeper's, and inherited.
fn make_safe(launched: &LaunchedDevice, notes: &mut Vec<String>) {
    // A program under a limit leaves the machine its free pages; a machine that is full has only these.
    if launched.machine_swap
        && let Err(error) = paging_safety::use_memory_reserves()
    {
        notes.push(format!(
            "the kernel's memory reserves are not for this process ({error}): a machine without a free page may stop; run as root with all its capabilities"
        ));
    }
    if paging_safety::avoid_out_of_memory_kill().is_err() {
        notes.push(
            "the kernel may kill this process when memory is short; run as root with all its capabilities".to_owned(),
        );
    }
    if let Err(error) = paging_safety::reserve_heap(limits::HEAP_RESERVE_BYTES) {
        notes.push(format!("the heap is not reserved ({error}): mapping slabs may wait for memory"));
    }
    // When first touched: windows onto donors' slabs reserve far more address space than is ever used of it, and
    // everything that the I/O threads use is touched before they start.
    if let Err(error) = paging_safety::lock_all_memory(true) {
        notes.push(format!("memory cannot be locked ({error}); run as root, or raise `ulimit -l`"));
    }
}

/// The memory that the keeper has for this device.
fn kept(launched: &LaunchedDevice, handed: &KeeperHandover) -> Result<Option<Kept>, Failure> {
    let Some(path) = &handed.memory else { return Ok(None) };
    let memory = keeping::open(path).map_err(|error| Failure::during("the keeper's memory", error))?;
    let state = DeviceState::open(memory, &config(launched).volume).map_err(Failure::failed)?;
    end_on_panic(state.records());
    Ok(Some(Kept { state, outlives_block_device: launched.outlives_block_device }))
}

/// A thread that panics leaves its requests unanswered. Where another process goes on with the device, it is better
/// to end.
fn end_on_panic(records: Records) {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        usual(panic);
        if records.is_serving() {
            std::process::abort();
        }
    }));
}

fn note_starts(kept: &Kept, notes: &mut Vec<String>) {
    let before = kept.state.records().count_start();
    if before > 0 {
        notes.push(format!("its process died and was started again, {before} times so far; its log says why"));
    }
}

pub(super) fn config(launched: &LaunchedDevice) -> DeviceConfig {
    DeviceConfig {
        volume: VolumeConfig { fill_backing: launched.machine_swap, ..launched.storage.volume(&launched.name) },
        keep_awake: launched.storage.keep_awake,
        front_end: launched.storage.frontend,
        listen: listen(launched),
        io_threads: launched.connections,
        local_memory: launched.local_memory,
    }
}

/// Where to serve NBD clients, if that was asked for.
fn listen(launched: &LaunchedDevice) -> Option<NbdListen> {
    let addresses = launched.listen.clone();
    (!addresses.is_empty()).then_some(NbdListen { addresses, exposed: launched.insecure_listen })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What an earlier release's launcher wrote.
    const LAUNCHED: &str = r#"{"name":"test","size_bytes":67108864,"slab_size_bytes":1048576,
        "donors":["unix:/run/a.sock","host:7"],"follows":null,"own_donors":null,"key_file":null,
        "redundancy":"replicas=2","backing":null,"backing_temporary":false,"mapping":"demand","transport":"auto",
        "seal":"auto","check":"on","keep_awake":"bursts","frontend":"auto","listen":["unix:/run/a.sock"],
        "insecure_listen":false,"bandwidth_bytes_per_second":null,"connections":3,"machine_swap":false,
        "local_memory":false,"outlives_block_device":false,"run":null,"prefetch":null}"#;

    #[test]
    fn what_the_launcher_says_arrives() {
        let launched: LaunchedDevice = serde_json::from_str(LAUNCHED).unwrap();
        let written: serde_json::Value = serde_json::to_value(&launched).unwrap();
        assert_eq!(written, serde_json::from_str::<serde_json::Value>(LAUNCHED).unwrap());
        let config = config(&launched);
        assert_eq!(config.volume.donors.len(), 2);
        assert_eq!(config.volume.redundancy.replicas, 2);
        assert_eq!((config.volume.size_bytes, config.volume.name.as_str()), (64 << 20, "test"));
        assert_eq!((config.listen.map(|listen| listen.addresses.len()), config.io_threads), (Some(1), Some(3)));
    }

    #[test]
    fn nonsense_from_the_launcher_is_refused() {
        for (good, bad) in [("\"host:7\"", "\"x\""), ("replicas=2", "raid"), ("[\"unix:/run/a.sock\"]", "[\"x\"]")] {
            let text = LAUNCHED.replace(good, bad);
            assert!(matches!(serve(&text, "{}", Ok(())), Err(Failure::Usage(_))), "{text}");
        }
        assert!(matches!(serve("{", "{}", Ok(())), Err(Failure::Usage(_))));
    }
}
