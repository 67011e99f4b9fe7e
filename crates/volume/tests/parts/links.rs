//! The thread that keeps a donor connected, against donors that follow a script: refusals, nonsense, silence,
//! farewells.

use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use spillway_fabric::control::host::boot_id;
use spillway_fabric::control::message::{Hello, Message, Welcome};
use spillway_fabric::control::{ControlChannel, ControlReceiver, ControlSender};
use spillway_fabric::limits::{SILENCE_DEADLINE, SOLE_COPY_PATIENCE};
use spillway_fabric::rdma::port::KeptPorts;
use spillway_fabric::site::Site;
use spillway_fabric::units::{BorrowerId, DonorId, SlabHandle, SlabIndex};
use spillway_fabric::wire::{SessionToken, WIRE_VERSION};
use spillway_volume::manager::decisions::Decisions;
use spillway_volume::manager::donor_table::DonorTable;
use spillway_volume::manager::donors::{DonorEntry, Phase};
use spillway_volume::manager::slab_scan::findings::Findings;
use spillway_volume::manager::{ManagerState, SessionResumption, link};
use spillway_volume::settings::redundancy::Redundancy;
use spillway_volume::settings::transport::TransportChoice;
use spillway_volume::settings::wrapper::QueuePairWrapper;
use spillway_volume::slab_map::page_bits::Bit;
use spillway_volume::slab_map::page_index::PageIndex;
use spillway_volume::slab_map::slab_entry::{DonorSlot, Location};
use spillway_volume::slab_map::{Geometry, Volume};
use spillway_volume::state::records::Records;
use spillway_volume::steward::SessionNumber;

const GEOMETRY: Geometry = Geometry { slab_pages: 256, slab_count: 4 };
const PATIENCE: Duration = Duration::from_secs(60);

/// A donor that does `script` with each session: which one it is, and both ends of its channel.
type Script = dyn Fn(usize, &ControlSender, &mut ControlReceiver) + Send + Sync;

/// Where a scripted donor listens, and what it was asked.
struct ScriptedDonor {
    address: String,
    sessions: Arc<AtomicUsize>,
    _directory: tempfile::TempDir,
}

impl ScriptedDonor {
    fn over_unix(script: impl Fn(usize, &ControlSender, &mut ControlReceiver) + Send + Sync + 'static) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("donor.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let accept = move || listener.accept().unwrap().0.into();
        Self::start(format!("unix:{}", path.display()), directory, accept, Box::new(script))
    }

    fn over_tcp(script: impl Fn(usize, &ControlSender, &mut ControlReceiver) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let accept = move || listener.accept().unwrap().0.into();
        Self::start(address, tempfile::tempdir().unwrap(), accept, Box::new(script))
    }

    /// Its thread waits in `accept` until the test's process ends.
    fn start(
        address: String,
        directory: tempfile::TempDir,
        accept: impl Fn() -> std::os::fd::OwnedFd + Send + 'static,
        script: Box<Script>,
    ) -> Self {
        let sessions = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&sessions);
        std::thread::spawn(move || {
            loop {
                // A borrower that hung up in the handshake is none.
                let Ok(channel) = ControlChannel::accept(accept(), None) else { continue };
                let (sender, mut receiver) = channel.split();
                script(counted.fetch_add(1, Ordering::SeqCst), &sender, &mut receiver);
            }
        });
        Self { address, sessions, _directory: directory }
    }

    fn sessions(&self) -> usize {
        self.sessions.load(Ordering::SeqCst)
    }
}

/// The borrower's side: the link's thread, ended when dropped.
struct Linked {
    shared: Arc<ManagerState>,
    donor: Arc<DonorEntry>,
    thread: Option<JoinHandle<()>>,
}

impl Linked {
    fn to(donor: &ScriptedDonor, transport: TransportChoice) -> Self {
        let volume = Arc::new(Volume::new(GEOMETRY, Redundancy::NONE, None).unwrap());
        let decisions = Decisions::new(&volume, 1);
        let donors = DonorTable::default();
        let donor = donors.enter(DonorSlot(0), donor.address.parse().unwrap(), false);
        let shared = Arc::new(ManagerState {
            stays_on_machine: false,
            volume,
            donors,
            queue_pairs: Vec::new(),
            borrower: BorrowerId(1),
            resumption: SessionResumption { records: Records::of_this_process(), linger: Duration::ZERO },
            reunion_until: Instant::now(),
            name: "links".to_owned(),
            key: None,
            transport,
            rdma_ports: KeptPorts::default(),
            wrapper: QueuePairWrapper::default(),
            decisions,
            slab_findings: Findings::default(),
            stopping: AtomicBool::new(false),
        });
        let for_thread = (Arc::clone(&shared), Arc::clone(&donor));
        let thread = Some(std::thread::spawn(move || link::run(&for_thread.0, &for_thread.1)));
        Self { shared, donor, thread }
    }

    fn donor(&self) -> &DonorEntry {
        &self.donor
    }

    fn wait_until(&self, what: &str, done: impl Fn(&DonorEntry) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !done(self.donor()) {
            assert!(Instant::now() < deadline, "{what}: {:?}", self.donor().status(None));
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Linked {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::SeqCst);
        link::say_goodbye_to_all(&self.shared.donors.all());
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(std::thread::panicking() || ended.is_ok(), "the link's thread panicked");
        }
    }
}

fn hear_hello(receiver: &mut ControlReceiver) -> Hello {
    match receiver.receive(PATIENCE) {
        Ok((Message::Hello(hello), None)) => hello,
        other => panic!("{other:?} instead of a hello"),
    }
}

fn welcome(host: [u8; 16], unix_path: String) -> Message {
    Message::Welcome(Welcome {
        version: WIRE_VERSION,
        donor: DonorId(7),
        token: SessionToken([1; 32]),
        free_bytes: 5 << 20,
        host,
        unix_path,
        data_port: 0,
        resume: SessionToken([2; 32]),
        site: Site::default(),
        held: 0,
    })
}

fn greet(sender: &ControlSender, receiver: &mut ControlReceiver) {
    hear_hello(receiver);
    sender.send(&welcome([0; 16], String::new()), None).unwrap();
}

/// Answers heartbeats until the borrower leaves.
fn stay(sender: &ControlSender, receiver: &mut ControlReceiver) {
    while let Ok((message, _)) = receiver.receive(PATIENCE) {
        if message == Message::Ping && sender.send(&Message::Pong, None).is_err() {
            return;
        }
    }
}

#[test]
fn a_rejection_is_told_in_the_donors_words_and_tried_again() {
    let donor = ScriptedDonor::over_unix(|number, sender, receiver| {
        hear_hello(receiver);
        if number < 2 {
            sender.send(&Message::Rejected { reason: "the house is full".to_owned() }, None).unwrap();
        } else {
            sender.send(&welcome([0; 16], String::new()), None).unwrap();
            stay(sender, receiver);
        }
    });
    let linked = Linked::to(&donor, TransportChoice::Auto);
    linked.wait_until("the reason", |donor| donor.status(None).last_error.contains("the house is full"));
    linked.wait_until("the third attempt", |donor| donor.phase() == Phase::Connected);
    assert_eq!(linked.donor().status(None).last_error, "", "a success ends the complaint");
    linked.wait_until("the Steward to know", |donor| linked.shared.decisions.donor(donor.slot).is_some());
    let view = linked.shared.decisions.donor(DonorSlot(0)).unwrap();
    assert_eq!((view.free_bytes, view.refused_until), (5 << 20, None));
}

#[test]
fn donors_that_speak_out_of_turn_are_left_and_the_reason_is_told() {
    for too_early in [Message::Pong, Message::Free { request: 1, free_bytes: 1, slabs_held: 0 }] {
        let donor = ScriptedDonor::over_unix(move |_, sender, receiver| {
            hear_hello(receiver);
            sender.send(&too_early, None).unwrap();
        });
        let linked = Linked::to(&donor, TransportChoice::Auto);
        linked.wait_until("the reason", |donor| donor.status(None).last_error.contains("instead of a welcome"));
        assert!(linked.donor().session().is_none());
    }
    let donor = ScriptedDonor::over_unix(|_, sender, receiver| {
        greet(sender, receiver);
        sender.send(&Message::Lease { request: 1 }, None).unwrap();
        stay(sender, receiver);
    });
    let linked = Linked::to(&donor, TransportChoice::Auto);
    linked.wait_until("the reason", |donor| donor.status(None).last_error.contains("spoke out of turn"));
}

#[test]
fn a_farewell_loses_the_donor_with_its_places_and_the_next_session_is_a_new_one() {
    let (leave, told) = std::sync::mpsc::channel::<()>();
    let told = std::sync::Mutex::new(told);
    let donor = ScriptedDonor::over_unix(move |number, sender, receiver| {
        greet(sender, receiver);
        if number == 0 {
            told.lock().unwrap().recv().unwrap();
            sender.send(&Message::Goodbye { reason: "closing time".to_owned() }, None).unwrap();
        } else {
            stay(sender, receiver);
        }
    });
    let linked = Linked::to(&donor, TransportChoice::Auto);
    linked.wait_until("the first session", |donor| donor.phase() == Phase::Connected);
    let slab = linked.shared.volume.slab(SlabIndex(2));
    slab.fill(0, Location { donor: DonorSlot(0), handle: SlabHandle(9) });
    linked.shared.volume.report_trouble(DonorSlot(0));
    leave.send(()).unwrap();
    linked.wait_until("the second session", |donor| {
        donor.session().is_some_and(|session| session.number == SessionNumber(1))
    });
    linked.wait_until("the place is emptied", |_| slab.is_unmapped());
    linked.wait_until("the new session", |donor| donor.session().is_some());
    assert!(donor.sessions() >= 2);
    assert!(!linked.shared.volume.is_suspect(DonorSlot(0)), "what happened before says nothing of the new session");
}

#[test]
fn a_donor_that_falls_silent_is_lost() {
    let donor = ScriptedDonor::over_unix(|_, sender, receiver| {
        greet(sender, receiver);
        // Hears everything and says nothing, until the borrower has had enough.
        while receiver.receive(PATIENCE).is_ok() {}
    });
    let linked = Linked::to(&donor, TransportChoice::Auto);
    linked.wait_until("the session", |donor| donor.phase() == Phase::Connected);
    linked.wait_until("the loss", |donor| donor.phase() == Phase::Lost);
    assert!(
        linked.donor().status(None).last_error.contains("sent nothing in time"),
        "{:?}",
        linked.donor().status(None)
    );
}

/// A donor that says nothing more once it greeted, until it is told to answer again.
fn speechless(speaks: &Arc<AtomicBool>) -> ScriptedDonor {
    let speaks = Arc::clone(speaks);
    ScriptedDonor::over_unix(move |_, sender, receiver| {
        greet(sender, receiver);
        while let Ok((message, _)) = receiver.receive(PATIENCE) {
            if message == Message::Ping && speaks.load(Ordering::SeqCst) && sender.send(&Message::Pong, None).is_err() {
                return;
            }
        }
    })
}

#[test]
fn a_silent_donor_with_the_only_copy_of_a_page_is_waited_for() {
    let speaks = Arc::new(AtomicBool::new(true));
    let donor = speechless(&speaks);
    let linked = Linked::to(&donor, TransportChoice::Auto);
    linked.wait_until("the session", |donor| donor.phase() == Phase::Connected);
    let volume = &linked.shared.volume;
    volume.slab(SlabIndex(2)).fill(0, Location { donor: DonorSlot(0), handle: SlabHandle(9) });
    let page = PageIndex(2 * GEOMETRY.slab_pages + 3);
    volume.bits.set(Bit::Copy(0), page, 1);
    speaks.store(false, Ordering::SeqCst);
    linked.wait_until("the silence to be noticed", |donor| volume.is_silent(donor.slot));
    // Longer than any other donor would get; the session is the same all the time.
    let until = Instant::now() + 2 * SILENCE_DEADLINE;
    linked.wait_until("a while", |_| Instant::now() > until);
    assert_eq!((linked.donor().phase(), donor.sessions()), (Phase::Connected, 1));
    assert!(!linked.shared.is_within_reach(DonorSlot(0)), "others' copies are not given up because of this one");
    speaks.store(true, Ordering::SeqCst);
    linked.wait_until("it to be heard again", |donor| !volume.is_silent(donor.slot));
    assert_eq!((linked.donor().phase(), donor.sessions()), (Phase::Connected, 1));
    assert!(!volume.bits.any(Bit::Lost, page, 1));
    // As soon as something else has the page, it is given up like any other.
    speaks.store(false, Ordering::SeqCst);
    linked.wait_until("the silence to be noticed", |donor| volume.is_silent(donor.slot));
    volume.bits.set(Bit::Disk, page, 1);
    linked.wait_until("the loss", |_| donor.sessions() > 1);
    assert!(!volume.bits.any(Bit::Lost, page, 1));
}

#[test]
fn a_donor_that_hangs_up_is_lost_at_once_whatever_it_has() {
    let (leave, told) = std::sync::mpsc::channel::<()>();
    let told = std::sync::Mutex::new(told);
    let donor = ScriptedDonor::over_unix(move |number, sender, receiver| {
        let hello = hear_hello(receiver);
        assert_eq!(u64::from(hello.patience_seconds), SOLE_COPY_PATIENCE.as_secs(), "nothing else has its pages");
        sender.send(&welcome([0; 16], String::new()), None).unwrap();
        if number == 0 {
            told.lock().unwrap().recv().unwrap();
        } else {
            stay(sender, receiver);
        }
    });
    let linked = Linked::to(&donor, TransportChoice::Auto);
    linked.wait_until("the session", |donor| donor.phase() == Phase::Connected);
    let volume = &linked.shared.volume;
    volume.slab(SlabIndex(1)).fill(0, Location { donor: DonorSlot(0), handle: SlabHandle(9) });
    let page = PageIndex(GEOMETRY.slab_pages);
    volume.bits.set(Bit::Copy(0), page, 1);
    leave.send(()).unwrap();
    linked.wait_until("the next session", |_| donor.sessions() > 1);
    linked.wait_until("the page to be told", |_| volume.bits.any(Bit::Lost, page, 1));
}

#[test]
fn questions_are_answered_and_recalls_of_unknown_slabs_change_nothing() {
    let (answers, heard) = std::sync::mpsc::channel();
    let donor = ScriptedDonor::over_unix(move |_, sender, receiver| {
        greet(sender, receiver);
        sender.send(&Message::Recall { slabs: vec![SlabHandle(77)], deadline_ms: 1 }, None).unwrap();
        sender.send(&Message::Ping, None).unwrap();
        let slabs = vec![SlabHandle(3), SlabHandle(77)];
        sender.send(&Message::ActivityQuery { request: 5, slabs }, None).unwrap();
        while let Ok((message, _)) = receiver.receive(PATIENCE) {
            match message {
                Message::Ping => sender.send(&Message::Pong, None).unwrap(),
                other => drop(answers.send(other)),
            }
        }
    });
    let linked = Linked::to(&donor, TransportChoice::Auto);
    assert_eq!(heard.recv_timeout(PATIENCE), Ok(Message::Pong));
    let values = vec![(SlabHandle(3), 0), (SlabHandle(77), 0)];
    assert_eq!(heard.recv_timeout(PATIENCE), Ok(Message::Activity { request: 5, values }));
    assert_eq!(linked.donor().phase(), Phase::Connected);
    drop(linked);
    assert!(matches!(heard.recv_timeout(PATIENCE), Ok(Message::Goodbye { .. })), "a stop says so");
}

/// A donor at a TCP address that says it is on this host, and where its UNIX socket is.
fn donor_on_this_host() -> (ScriptedDonor, ScriptedDonor) {
    let local = ScriptedDonor::over_unix(|_, sender, receiver| {
        assert!(hear_hello(receiver).wants_shared_memory);
        sender.send(&welcome(boot_id().unwrap(), String::new()), None).unwrap();
        stay(sender, receiver);
    });
    let path = PathBuf::from(local.address.trim_start_matches("unix:")).display().to_string();
    let remote = ScriptedDonor::over_tcp(move |_, sender, receiver| {
        assert!(!hear_hello(receiver).wants_shared_memory);
        sender.send(&welcome(boot_id().unwrap(), path.clone()), None).unwrap();
        stay(sender, receiver);
    });
    (remote, local)
}

#[test]
fn on_one_host_shared_memory_is_taken_unless_a_socket_is_asked_for() {
    for (transport, expected, is_local) in [
        (TransportChoice::Auto, "shm", true),
        (TransportChoice::Shm, "shm", true),
        (TransportChoice::Tcp, "tcp", false),
    ] {
        let (remote, local) = donor_on_this_host();
        let linked = Linked::to(&remote, transport);
        linked.wait_until("the session", |donor| donor.phase() == Phase::Connected);
        assert_eq!(linked.donor().status(None).transport, expected, "{transport}");
        assert_eq!(local.sessions() > 0, is_local, "{transport}");
    }
}

#[test]
fn a_socket_can_be_asked_for_at_a_unix_address_too() {
    let donor = ScriptedDonor::over_unix(|_, sender, receiver| {
        assert!(!hear_hello(receiver).wants_shared_memory);
        sender.send(&welcome(boot_id().unwrap(), String::new()), None).unwrap();
        stay(sender, receiver);
    });
    let linked = Linked::to(&donor, TransportChoice::Tcp);
    linked.wait_until("the session", |donor| donor.phase() == Phase::Connected);
    assert_eq!(linked.donor().status(None).transport, "tcp");
}

#[test]
fn shared_memory_that_cannot_be_had_is_an_error_where_nothing_else_is_wanted() {
    let elsewhere = |_, sender: &ControlSender, receiver: &mut ControlReceiver| {
        hear_hello(receiver);
        sender.send(&welcome([9; 16], "/nowhere/donor.sock".to_owned()), None).unwrap();
        stay(sender, receiver);
    };
    let donor = ScriptedDonor::over_tcp(elsewhere);
    let linked = Linked::to(&donor, TransportChoice::Shm);
    linked.wait_until("the reason", |donor| donor.status(None).last_error.contains("--transport auto"));
    assert!(linked.donor().session().is_none());
    let donor = ScriptedDonor::over_tcp(elsewhere);
    let linked = Linked::to(&donor, TransportChoice::Auto);
    linked.wait_until("a socket", |donor| donor.phase() == Phase::Connected);
    assert_eq!(linked.donor().status(None).transport, "tcp");
}
