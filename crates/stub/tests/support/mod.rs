//! A pager in miniature: greets programs, evicts what it is told through their evictors, and serves faults from a
//! table.

#![allow(dead_code, reason = "each test program uses its part")]

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use spillway_stub::greeting::{Address, Listener, Notes, Visitor};
use spillway_stub::head::Head;
use spillway_stub::late_start::{self, ProgramPlaces};
use spillway_stub::protocol::{EvictorStart, EvictorState, Hello, HelloKind, Phase, Verdict, Welcome, outcome};
use spillway_stub::seat::{Seat, Task};
use spillway_sys::call_notices::CallNotices;
use spillway_sys::mapping::{Mapping, PAGE_SIZE_BYTES};
use spillway_sys::tracee::TraceError;
use spillway_sys::userfaultfd::{Fault, Features, Message, PageError, RegisterMode, Userfaultfd, Wake};

/// Far beyond what a busy machine needs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
pub(crate) const PAGE: u64 = PAGE_SIZE_BYTES as u64;

/// How long nothing may happen before one looks elsewhere.
const MOMENT: Duration = Duration::from_millis(2);

pub(crate) fn far() -> Instant {
    Instant::now() + PATIENCE
}

/// The program of the tests, compiled into `directory`.
pub(crate) fn compile(directory: &Path) -> PathBuf {
    let program = directory.join("program");
    // A thread that runs the tests may not read the tree that they were built from.
    let source = directory.join("program.c");
    std::fs::write(&source, include_str!("program.c")).unwrap();
    let status = Command::new("cc").args(["-O1", "-pthread", "-o"]).arg(&program).arg(source).status();
    assert!(status.expect("a C compiler is needed to link Rust programs anyway").success());
    program
}

/// What a program is told and says.
pub(crate) struct Conversation {
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Conversation {
    pub(crate) fn start(mut command: Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                // A test that is over listens no more.
                let _ = sender.send(line);
            }
        });
        Self { input: child.stdin.take(), child, lines }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn tell(&mut self, command: &str) {
        // At once: the program may wait for the page that it reads into, and has the pipe locked meanwhile.
        self.input.as_mut().unwrap().write_all(format!("{command}\n").as_bytes()).unwrap();
    }

    /// The exit status, if the program has ended.
    pub(crate) fn ended(&mut self) -> Option<std::process::ExitStatus> {
        self.child.try_wait().unwrap()
    }

    /// The next line, if it was said.
    pub(crate) fn try_line(&self) -> Option<String> {
        self.lines.try_recv().ok()
    }

    /// The number behind `word`, wherever in a line it comes first; what else is said is passed over.
    pub(crate) fn number_after(&self, word: &str) -> u64 {
        let deadline = far();
        loop {
            if let Some(number) = self.try_number_after(word) {
                return number;
            }
            assert!(Instant::now() < deadline, "the program does not say {word}");
            std::thread::sleep(MOMENT);
        }
    }

    fn try_number_after(&self, word: &str) -> Option<u64> {
        let line = self.try_line()?;
        line.split_once(word).map(|(_, number)| number.trim().parse().unwrap())
    }

    /// What an ended program said on standard error.
    pub(crate) fn complaints(&mut self) -> String {
        let mut text = String::new();
        self.child.stderr.take().expect("it was asked for").read_to_string(&mut text).unwrap();
        text
    }

    /// Ends it at once.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// The exit status, once the program ends.
    pub(crate) fn wait(&mut self) -> std::process::ExitStatus {
        let deadline = far();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < deadline, "the program does not end");
            std::thread::sleep(MOMENT);
        }
    }
}

impl Drop for Conversation {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A program that said hello.
pub(crate) struct Paged {
    pub(crate) places: ProgramPlaces,
    pub(crate) hello: Hello,
    pub(crate) userfaultfd: Userfaultfd,
    /// None before there is an evictor.
    pub(crate) seat: Option<Seat>,
    attempt: u32,
    pub(crate) children: Vec<Userfaultfd>,
    pub(crate) faults: Vec<Fault>,
    pub(crate) events: usize,
    store: HashMap<u64, Vec<u8>>,
    page: Mapping,
    batch: usize,
    taken_batch: usize,
}

/// Waits until something can be read.
pub(crate) fn wait_readable(descriptor: &impl AsFd, what: &str) {
    let timeout = Timespec { tv_sec: 60, tv_nsec: 0 };
    assert_eq!(poll(&mut [PollFd::new(descriptor, PollFlags::IN)], Some(&timeout)).unwrap(), 1, "{what}");
}

/// What programs' userfaultfds tell, but for forks.
pub(crate) const FEATURES: Features = Features(
    Features::REMAP.0
        | Features::REMOVE.0
        | Features::UNMAP.0
        | Features::THREAD.0
        | Features::WRITE_PROTECT.0
        | Features::MOVE.0,
);

pub(crate) struct TinyPager {
    pub(crate) directory: tempfile::TempDir,
    pub(crate) head: Head,
    pub(crate) address: Address,
    listener: Listener,
    library: PathBuf,
    attempts: u32,
}

impl TinyPager {
    pub(crate) fn new() -> Self {
        Self::with_library(spillway_stub::LIBRARY)
    }

    /// Whose programs tell of their forks.
    pub(crate) fn without_rights() -> Self {
        Self::with_library(spillway_stub::LIBRARY_TELLING_FORKS)
    }

    fn with_library(content: &[u8]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let address = Address::parse(directory.path().join("pager").to_str().unwrap()).unwrap();
        let library = directory.path().join("libspillway.so");
        std::fs::write(&library, content).unwrap();
        let head = Head::create(&address, Some(FEATURES | Features::FORK)).unwrap();
        Self { listener: Listener::bind(&address).unwrap(), directory, head, address, library, attempts: 0 }
    }

    /// Programs wait for nothing from now on.
    pub(crate) fn let_in(&self) -> Notes {
        let notes = Notes::bind(&self.address, TOKEN).unwrap();
        self.head.let_in().unwrap();
        notes
    }

    /// Takes in a program that did not wait.
    pub(crate) fn take_in(&mut self, notes: &Notes) -> Paged {
        wait_readable(notes, "nobody said hello");
        let note = notes.next().unwrap().expect("there is one");
        let hello = note.hello.unwrap();
        assert_eq!((hello.kind, hello.status), (HelloKind::Program, 0));
        let userfaultfd = Userfaultfd::from_descriptor(note.passed.expect("a program brings one")).unwrap();
        assert_eq!(hello.token, TOKEN);
        Paged::new(places(note.peer.process, &hello, hello.head), hello, userfaultfd)
    }

    pub(crate) fn library(&self) -> &Path {
        &self.library
    }

    /// Starts `command` with the stub.
    pub(crate) fn start(&self, mut command: Command) -> Conversation {
        command.env("LD_PRELOAD", &self.library).env("SPILLWAY_PAGER", self.variable());
        Conversation::start(command)
    }

    /// What programs find in their environment.
    pub(crate) fn variable(&self) -> String {
        format!("{}#{TOKEN:016x}", self.address)
    }

    pub(crate) fn visitor(&self) -> Visitor {
        let deadline = far();
        loop {
            if let Some(visitor) = self.listener.accept().unwrap() {
                return visitor;
            }
            assert!(Instant::now() < deadline, "nobody said hello");
            std::thread::sleep(MOMENT);
        }
    }

    /// A number for an attempt to start an evictor.
    fn next_attempt(&mut self) -> u32 {
        self.attempts += 1;
        self.attempts
    }

    /// Greets the next program.
    pub(crate) fn greet(&mut self, start_evictor: bool) -> Paged {
        self.greet_with(Verdict::Page, Features::FORK, start_evictor, None).0
    }

    /// Greets the next program as the pager of a user without rights does.
    pub(crate) fn greet_without_rights(&mut self, start_evictor: bool) -> (Paged, CallNotices) {
        let (paged, listener) = self.greet_with(Verdict::PageTellingForks, Features::default(), start_evictor, None);
        let listener = listener.expect("a program brings a descriptor");
        (paged, CallNotices::from_descriptor(listener, self.address.fork_probe()).unwrap())
    }

    /// Greets one that a program of such a pager executed.
    pub(crate) fn greet_inheriting(&mut self, notices: &CallNotices) -> Paged {
        let (paged, listener) = self.greet_with(Verdict::PageTellingForks, Features::default(), true, Some(notices));
        assert!(listener.is_none(), "the descriptor is inherited");
        paged
    }

    fn greet_with(
        &mut self,
        verdict: Verdict,
        more: Features,
        start_evictor: bool,
        asked: Option<&CallNotices>,
    ) -> (Paged, Option<OwnedFd>) {
        let visitor = self.visitor();
        let (hello, descriptor) = visitor.hello(far()).unwrap();
        assert_eq!((hello.kind, hello.status), (HelloKind::Program, 0));
        let userfaultfd = Userfaultfd::from_descriptor(descriptor.expect("a program brings one")).unwrap();
        userfaultfd.agree(FEATURES | more).unwrap();
        let attempt = self.next_attempt();
        let evictor = start_evictor.then_some(EvictorStart { attempt, has_own_directory: true });
        visitor.welcome(&Welcome { verdict, evictor }, Some(self.head.file().as_fd())).unwrap();
        let (ready, listener) = visitor.ready_with_descriptor(far()).unwrap();
        assert_eq!(ready.status, 0);
        let places = places(visitor.process(), &hello, ready.head);
        if let Some(notices) = asked {
            wait_readable(notices, "it finds out who is asked");
            assert!(notices.next().unwrap().is_none(), "that is no fork");
        }
        let mut paged = Paged { attempt, ..Paged::new(places, hello, userfaultfd) };
        if start_evictor {
            self.greet_evictor(&mut paged);
        }
        (paged, listener)
    }

    /// Gives an evictor that starts its userfaultfd, and a seat.
    pub(crate) fn greet_evictor(&self, paged: &mut Paged) {
        let visitor = self.visitor();
        assert_eq!(visitor.process(), paged.places.process);
        paged.welcome_evictor(&visitor);
    }

    /// Starts an evictor on thread `thread`, which is in user code most of the time.
    pub(crate) fn start_late(&mut self, paged: &mut Paged, thread: u32) {
        self.call_late(paged, thread);
        self.greet_evictor(paged);
    }

    /// As [`TinyPager::start_late`], but that the evictor is not greeted.
    pub(crate) fn call_late(&mut self, paged: &mut Paged, thread: u32) {
        let deadline = far();
        paged.attempt = self.next_attempt();
        let start = EvictorStart { attempt: paged.attempt, has_own_directory: false };
        loop {
            match late_start::start_evictor(&paged.places, (thread, None), start, &mut || true, deadline) {
                Ok(()) => return,
                Err(TraceError::Unsuitable(why)) => assert!(Instant::now() < deadline, "{why}"),
                Err(error) => panic!("{error}"),
            }
        }
    }
}

/// What programs of this pager prove themselves with.
const TOKEN: u64 = 0x1234_5678_9abc_def0;

fn places(process: u32, hello: &Hello, head: u64) -> ProgramPlaces {
    ProgramPlaces { process, start_evictor: hello.start_evictor, cell: hello.cell, head }
}

impl Paged {
    pub(crate) fn new(places: ProgramPlaces, hello: Hello, userfaultfd: Userfaultfd) -> Self {
        let page = Mapping::anonymous(PAGE_SIZE_BYTES).unwrap();
        Self {
            places,
            hello,
            userfaultfd,
            seat: None,
            attempt: 0,
            children: Vec::new(),
            faults: Vec::new(),
            events: 0,
            store: HashMap::new(),
            page,
            batch: 0,
            taken_batch: 0,
        }
    }

    /// The same pages, of a child that was forked after they were evicted.
    pub(crate) fn fork(&self, places: ProgramPlaces, userfaultfd: Userfaultfd) -> Self {
        Self { store: self.store.clone(), ..Self::new(places, self.hello, userfaultfd) }
    }

    /// What it shares with its evictor, which has come.
    pub(crate) fn seat(&self) -> &Seat {
        self.seat.as_ref().expect("the evictor was greeted")
    }

    /// Answers the evictor's hello.
    pub(crate) fn welcome_evictor(&mut self, evictor: &Visitor) {
        let (hello, _) = evictor.hello(far()).unwrap();
        assert_eq!((hello.kind, hello.attempt), (HelloKind::Evictor, self.attempt));
        let seat = Seat::create().unwrap();
        let welcome = Welcome { verdict: Verdict::Page, evictor: None };
        evictor.welcome(&welcome, Some(self.userfaultfd.as_fd())).unwrap();
        evictor.welcome(&welcome, Some(seat.file().as_fd())).unwrap();
        assert!(seat.wait_for_evictor(far()).unwrap());
        assert_eq!(seat.state(), EvictorState::Running, "{}", seat.failure());
        self.seat = Some(seat);
        self.batch = 0;
    }

    pub(crate) fn register(&self, start: u64, pages: u64) {
        let mode = RegisterMode::MISSING | RegisterMode::WRITE_PROTECT;
        self.userfaultfd.register(start..start + pages * PAGE, mode).unwrap();
    }

    pub(crate) fn stored(&self) -> usize {
        self.store.len()
    }

    /// Has the evictor carry out `tasks`, and returns the results.
    pub(crate) fn run(&mut self, tasks: &[Task]) -> Vec<i32> {
        self.seat().post(self.batch, tasks);
        let deadline = far();
        assert!(self.seat().wait(self.batch, Phase::Moved, 0, deadline).unwrap(), "the evictor does not move");
        // No thread is served meanwhile: a page that leaves is in no table yet.
        assert!(self.seat().wait(self.batch, Phase::Done, 0, deadline).unwrap(), "the evictor does not finish");
        let results = (0..tasks.len()).map(|index| self.seat().result(self.batch, index)).collect();
        self.taken_batch = self.next_batch();
        self.seat().take(self.taken_batch);
        results
    }

    /// The batch that is to be posted now; the next time it is the other one.
    pub(crate) fn next_batch(&mut self) -> usize {
        let batch = self.batch;
        self.batch = 1 - batch;
        batch
    }

    /// Evicts the pages at `addresses`, and keeps their content. Returns the results.
    pub(crate) fn evict(&mut self, addresses: &[u64]) -> Vec<i32> {
        let tasks: Vec<Task> = addresses.iter().map(|address| Task::evict_copy(*address)).collect();
        let results = self.run(&tasks);
        for (index, address) in addresses.iter().enumerate().filter(|(index, _)| results[*index] == outcome::DONE) {
            let mut bytes = vec![0; PAGE_SIZE_BYTES];
            self.seat().read_page(self.taken_batch, index, &self.page, 0);
            self.page.read(0, &mut bytes);
            self.store.insert(*address, bytes);
        }
        results
    }

    /// Brings every page back.
    pub(crate) fn fill_all(&mut self) {
        let addresses: Vec<u64> = self.store.keys().copied().collect();
        for address in addresses {
            self.fill(address);
        }
    }

    /// Serves what waits now, and comes in the next moment.
    pub(crate) fn serve_once(&mut self) {
        let mut messages = Vec::new();
        if self.userfaultfd.read_messages(|message| messages.push(message)).unwrap() == 0 {
            std::thread::sleep(Duration::from_micros(100));
        }
        for message in messages {
            match message {
                Message::Fault(fault) => self.answer(fault),
                Message::Fork(child) => self.children.push(child),
                _ => self.events += 1,
            }
        }
    }

    fn answer(&mut self, fault: Fault) {
        self.faults.push(fault);
        self.fill(fault.address & !(PAGE - 1));
    }

    fn fill(&mut self, address: u64) {
        let result = match self.store.remove(&address) {
            Some(bytes) => {
                self.page.write(0, &bytes);
                self.userfaultfd.copy(address, &self.page, 0, PAGE_SIZE_BYTES, false, Wake::Waiters)
            }
            None => self.userfaultfd.zero_page(address..address + PAGE, Wake::Waiters),
        };
        match result {
            Ok(_) => {}
            Err(PageError::Exists) => self.userfaultfd.wake(address..address + PAGE).unwrap(),
            Err(error) => panic!("a page is not filled: {error}"),
        }
    }

    /// Serves until the program says a line that begins with `word`; returns the number that follows.
    pub(crate) fn hear(&mut self, conversation: &Conversation, word: &str) -> u64 {
        let deadline = far();
        loop {
            if let Some(line) = conversation.try_line() {
                let number = line.strip_prefix(word).unwrap_or_else(|| panic!("{word} is expected, not {line}"));
                return number.trim().parse().unwrap_or(0);
            }
            assert!(Instant::now() < deadline, "the program does not say {word}");
            self.serve_once();
        }
    }

    /// Serves until the program ends, and returns how.
    pub(crate) fn serve_to_end(&mut self, conversation: &mut Conversation) -> std::process::ExitStatus {
        let deadline = far();
        loop {
            if let Some(status) = conversation.ended() {
                return status;
            }
            assert!(Instant::now() < deadline, "the program does not end");
            self.serve_once();
        }
    }

    /// Serves until the program says a number behind `word`, whatever else it says.
    pub(crate) fn hear_number_after(&mut self, conversation: &Conversation, word: &str) -> u64 {
        let deadline = far();
        loop {
            if let Some(number) = conversation.try_number_after(word) {
                return number;
            }
            assert!(Instant::now() < deadline, "the program does not say {word}");
            self.serve_once();
        }
    }
}
