//! Programs under the stub whose pages leave and come back.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::process::Command;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use spillway_stub::late_start::ProgramPlaces;
use spillway_stub::protocol::{AgentState, BATCH_ENTRIES_MAX, outcome};
use spillway_stub::seat::Task;
use spillway_sys::guardian::Guardian;
use support::{Conversation, PAGE, Paged, TinyPager, compile, far};

/// More than half a batch, so that two thirds of the tests' evictions do not end with a batch.
const PAGES: u64 = 300;

/// A pager, and a program whose `PAGES` pages at `memory` are registered.
struct Scene {
    pager: TinyPager,
    conversation: Conversation,
    paged: Paged,
    memory: u64,
}

impl Scene {
    fn new(start_agent_early: bool) -> Self {
        let mut pager = TinyPager::new();
        let mut command = Command::new(compile(pager.directory.path()));
        command.arg(PAGES.to_string());
        let conversation = pager.start(command);
        let mut paged = pager.greet(start_agent_early);
        assert_eq!(paged.places.process, conversation.pid());
        let memory = paged.hear(&conversation, "memory");
        paged.register(memory, PAGES);
        Self { pager, conversation, paged, memory }
    }

    fn pages(&self, range: Range<u64>) -> Vec<u64> {
        range.map(|page| self.memory + page * PAGE).collect()
    }

    /// Evicts pages, each of which is expected to leave.
    fn evict(&mut self, range: Range<u64>) {
        let pages = self.pages(range);
        assert_eq!(self.paged.evict(&self.pager.arena, &pages), vec![outcome::DONE; pages.len()]);
    }

    fn ask(&mut self, command: &str, answer: &str) -> u64 {
        self.conversation.tell(command);
        self.paged.hear(&self.conversation, answer)
    }

    fn start_late(&mut self) {
        let spinning = self.ask("spin", "spinning");
        self.pager.start_late(&mut self.paged, spinning as u32);
    }

    fn end(mut self) {
        self.conversation.tell("exit");
        assert!(self.paged.serve_to_end(&mut self.conversation).success());
    }
}

#[test]
fn evicted_pages_come_back_as_they_were() {
    let mut scene = Scene::new(true);
    for _ in 0..3 {
        scene.evict(0..PAGES);
        assert_eq!(scene.paged.stored() as u64, PAGES);
        assert_eq!(scene.ask("check", "bad"), 0);
        assert_eq!(scene.paged.stored(), 0, "every page was asked for");
        scene.ask("change", "changed");
    }
    assert_eq!(scene.paged.events, 0, "rule 9: dropping staged pages raises no message");
    scene.end();
}

#[test]
fn pages_apart_and_a_full_batch_leave_too() {
    let mut scene = Scene::new(true);
    let apart: Vec<u64> = scene.pages(0..PAGES).into_iter().step_by(3).rev().collect();
    assert_eq!(scene.paged.evict(&scene.pager.arena, &apart), vec![outcome::DONE; apart.len()]);
    // A full batch: what is there leaves, and what is not is absent, each told apart.
    let all: Vec<u64> = (0..BATCH_ENTRIES_MAX as u64).map(|page| scene.memory + page * PAGE).collect();
    let results = scene.paged.evict(&scene.pager.arena, &all[..PAGES as usize]);
    for (page, result) in results.into_iter().enumerate() {
        assert_eq!(result, if page % 3 == 0 { outcome::ABSENT } else { outcome::DONE }, "page {page}");
    }
    assert_eq!(scene.ask("check", "bad"), 0);
    scene.end();
}

#[test]
fn a_clean_page_is_dropped_without_a_copy() {
    let mut scene = Scene::new(true);
    let memory = scene.memory;
    assert_eq!(scene.paged.run(&[Task::evict_drop(memory)]), [outcome::DONE]);
    // The tiny pager has no content for it and gives zeroes, so its words are wrong, which shows that it had left.
    assert_eq!(scene.ask("check", "bad"), PAGE / 8);
    scene.end();
}

#[test]
fn the_agent_starts_on_a_borrowed_thread() {
    let mut scene = Scene::new(false);
    assert_eq!(scene.paged.seat.state(), AgentState::Absent);
    scene.start_late();
    assert_eq!(scene.ask("threads", "threads"), 3, "main, spinning, agent");
    scene.evict(0..PAGES);
    assert_eq!(scene.ask("check", "bad"), 0);
    scene.end();
}

#[test]
fn a_program_whose_memory_suffices_sees_nothing() {
    // Rule 12: until there is an agent, a program may do what only a single thread may.
    let mut scene = Scene::new(false);
    assert_eq!(scene.ask("threads", "threads"), 1);
    assert_eq!(scene.ask("descriptor", "descriptor"), 3, "standard streams only");
    let result = scene.ask("newuser", "newuser");
    assert_ne!(result, u64::from(libc::EINVAL.unsigned_abs()), "it is taken for a program with several threads");
    scene.end();
}

#[test]
fn the_agent_shares_memory_and_nothing_else() {
    // Rule 7.
    let scene = Scene::new(true);
    let task = format!("/proc/{}/task/{}", scene.paged.places.process, scene.paged.seat.agent_thread());
    let status = std::fs::read_to_string(format!("{task}/status")).unwrap();
    // SIGKILL and SIGSTOP cannot be blocked.
    assert!(status.contains("SigBlk:\tfffffffffffbfeff"), "{status}");
    assert!(status.contains("Name:\tspillway-agent"), "{status}");
    let descriptors: Vec<_> = std::fs::read_dir(format!("{task}/fd"))
        .unwrap()
        .map(|entry| std::fs::read_link(entry.unwrap().path()).unwrap().display().to_string())
        .collect();
    assert_eq!(descriptors, ["anon_inode:[userfaultfd]"]);
    assert_eq!(std::fs::read_link(format!("{task}/cwd")).unwrap().to_str(), Some("/"));
    let staging = scene.paged.seat.staging().expect("an agent that runs has one");
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", scene.paged.places.process)).unwrap();
    assert!(maps.contains(&format!("{:x}-{:x} rw-p", staging.start, staging.end)), "{maps}");
    assert!(scene.paged.hello.library_start < scene.paged.hello.start_agent);
    assert!(maps.contains(&format!("{:x}-", scene.paged.hello.library_start)), "{maps}");
    scene.end();
}

#[test]
fn the_agent_ends_when_asked() {
    let mut scene = Scene::new(true);
    let staging = scene.paged.seat.staging().unwrap();
    assert_eq!(scene.paged.run(&[Task::exit()]), [outcome::DONE]);
    let deadline = far();
    while scene.paged.seat.state() != AgentState::Ended || scene.ask("threads", "threads") != 1 {
        assert!(Instant::now() < deadline, "the agent does not end");
    }
    assert_eq!(scene.paged.events, 0, "its staging area goes without a message");
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", scene.paged.places.process)).unwrap();
    assert!(!maps.contains(&format!("{:x}-", staging.start)), "{maps}");
    // Another one may follow.
    scene.paged.seat.clear();
    let (places, seat) = (scene.paged.places, scene.paged.seat.clone());
    let userfaultfd = scene.paged.userfaultfd.try_clone().unwrap();
    let mut again = Paged::new(places, scene.paged.hello, userfaultfd, seat);
    let spinning = scene.ask("spin", "spinning");
    scene.pager.start_late(&mut again, spinning as u32);
    assert_eq!(again.evict(&scene.pager.arena, &[scene.memory]), [outcome::DONE]);
    scene.conversation.tell("check");
    assert_eq!(again.hear(&scene.conversation, "bad"), 0);
    scene.end();
}

#[test]
fn nothing_is_moved_while_a_message_about_mappings_waits() {
    // Rules 11 and 14: the kernel refuses, the agent asks once, and says so of the whole batch.
    let mut scene = Scene::new(true);
    scene.conversation.tell("drop");
    let timeout = Timespec { tv_sec: 60, tv_nsec: 0 };
    let mut wanted = [PollFd::new(&scene.paged.userfaultfd, PollFlags::IN)];
    assert_eq!(poll(&mut wanted, Some(&timeout)).unwrap(), 1, "the program drops a page");
    let tasks: Vec<Task> = scene.pages(1..4).into_iter().map(Task::evict_drop).collect();
    scene.paged.seat.post(0, &tasks);
    assert!(scene.paged.seat.wait(0, spillway_stub::protocol::Phase::Done, 0, far()).unwrap());
    for index in 0..tasks.len() {
        assert_eq!(scene.paged.seat.result(0, index), outcome::TRY_LATER);
    }
    scene.paged.hear(&scene.conversation, "dropped");
    assert_eq!(scene.paged.events, 1);
    assert_eq!(scene.ask("check", "bad"), PAGE / 8, "only the page that the program dropped reads as zeroes");
    scene.end();
}

#[test]
fn a_locked_page_is_refused_and_its_neighbours_leave() {
    let mut scene = Scene::new(true);
    assert_eq!(scene.ask("lock", "locked"), 0);
    let pages = scene.pages(0..3);
    let results = scene.paged.evict(&scene.pager.arena, &pages);
    assert_eq!(results, [outcome::DONE, outcome::REFUSED, outcome::DONE]);
    assert_eq!(scene.ask("check", "bad"), 0);
    scene.end();
}

/// Forks the program; the child talks from now on.
fn fork(scene: &mut Scene) -> (u32, Paged) {
    let child = scene.ask("fork", "child") as u32;
    let userfaultfd = scene.paged.children.pop().expect("a fork is announced before the child runs");
    let places = ProgramPlaces { process: child, ..scene.paged.places };
    let seat = scene.pager.next_seat();
    let paged = scene.paged.fork(places, userfaultfd, seat);
    (child, paged)
}

#[test]
fn a_forked_child_has_an_agent_of_its_own() {
    let mut scene = Scene::new(true);
    scene.evict(0..PAGES / 2);
    let (_, mut child) = fork(&mut scene);
    scene.conversation.tell("check");
    assert_eq!(child.hear(&scene.conversation, "bad"), 0, "the child is served what was evicted before the fork");
    scene.conversation.tell("change");
    child.hear(&scene.conversation, "changed");
    scene.conversation.tell("spin");
    let spinning = child.hear(&scene.conversation, "spinning");
    scene.pager.start_late(&mut child, spinning as u32);
    let pages = scene.pages(0..PAGES);
    assert_eq!(child.evict(&scene.pager.arena, &pages), vec![outcome::DONE; pages.len()]);
    scene.conversation.tell("check");
    assert_eq!(child.hear(&scene.conversation, "bad"), 0);
    scene.conversation.tell("exit");
    assert_eq!(scene.paged.hear(&scene.conversation, "joined"), 0);
    assert_eq!(scene.ask("check", "bad"), 0, "the parent keeps what it had");
    scene.end();
}

#[test]
fn pages_that_a_fork_shared_leave_after_they_were_populated() {
    // Rule 2.
    let mut scene = Scene::new(true);
    let (_, mut child) = fork(&mut scene);
    let pages = scene.pages(0..8);
    assert_eq!(scene.paged.evict(&scene.pager.arena, &pages), vec![outcome::BUSY; 8], "shared pages do not move");
    scene.conversation.tell("exit");
    let deadline = far();
    let joined = loop {
        child.serve_once();
        scene.paged.serve_once();
        if let Some(line) = scene.conversation.try_line() {
            break line;
        }
        assert!(Instant::now() < deadline, "the child does not end");
    };
    assert_eq!(joined, "joined 0");
    assert_eq!(scene.paged.evict(&scene.pager.arena, &pages), vec![outcome::BUSY; 8], "also when the child is gone");
    assert_eq!(scene.paged.run(&[Task::populate(pages[0], 8 * PAGE)]), [outcome::DONE]);
    assert_eq!(scene.paged.evict(&scene.pager.arena, &pages), vec![outcome::DONE; 8]);
    assert_eq!(scene.ask("check", "bad"), 0);
    scene.end();
}

#[test]
fn a_program_that_executes_another_says_hello_again() {
    let mut scene = Scene::new(true);
    scene.evict(0..PAGES);
    scene.conversation.tell("exec");
    let mut next = scene.pager.greet(true);
    assert_eq!(next.places.process, scene.paged.places.process);
    let memory = next.hear(&scene.conversation, "memory");
    next.register(memory, PAGES);
    scene.paged = next;
    scene.memory = memory;
    scene.evict(0..PAGES);
    assert_eq!(scene.ask("check", "bad"), 0);
    scene.end();
}

const ROLE: &str = "SPILLWAY_STUB_TEST_ROLE";

/// A program of Rust's standard library: this file's own, started anew with a role.
#[test]
fn a_program_of_the_standard_library_is_paged() {
    if std::env::var(ROLE).is_ok_and(|role| role == "program") {
        return play_program();
    }
    let mut pager = TinyPager::new();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "--nocapture", "a_program_of_the_standard_library_is_paged"]).env(ROLE, "program");
    let mut conversation = pager.start(command);
    let mut paged = pager.greet(true);
    let memory = paged.hear_number_after(&conversation, "memory ");
    paged.register(memory, 64);
    let pages: Vec<u64> = (0..64).map(|page| memory + page * PAGE).collect();
    assert_eq!(paged.evict(&pager.arena, &pages), vec![outcome::DONE; 64]);
    conversation.tell("go on");
    assert_eq!(paged.hear_number_after(&conversation, "sum "), (0..64 * PAGE / 8).sum::<u64>());
    assert_eq!(paged.faults.len(), 64, "each page was asked for once");
    assert!(paged.serve_to_end(&mut conversation).success());
}

fn play_program() {
    // A vector of this size has a mapping of its own, whose whole pages lie after the allocator's note.
    let numbers: Vec<u64> = (0..66 * PAGE / 8).collect();
    let first_page = (numbers.as_ptr() as u64).next_multiple_of(PAGE);
    let skipped = ((first_page - numbers.as_ptr() as u64) / 8) as usize;
    println!("memory {first_page}");
    std::io::stdin().read_line(&mut String::new()).unwrap();
    let count = (64 * PAGE / 8) as usize;
    let sum: u64 = numbers[skipped..skipped + count].iter().map(|number| number - skipped as u64).sum();
    println!("sum {sum}");
}

/// Rule 6: a program that waits for a page when its pager is killed never reads zeroes, but is killed.
#[test]
fn a_killed_pager_takes_its_programs_along() {
    if let Ok(output) = std::env::var(ROLE) {
        return play_pager(&output);
    }
    let directory = tempfile::tempdir().unwrap();
    let output = directory.path().join("output");
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "--nocapture", "a_killed_pager_takes_its_programs_along"]).env(ROLE, &output);
    let mut pager = Conversation::start(command);
    let program = pager.number_after("program ");
    let pidfd: OwnedFd = rustix::process::pidfd_open(
        rustix::process::Pid::from_raw(program as i32).unwrap(),
        rustix::process::PidfdFlags::empty(),
    )
    .unwrap();
    pager.kill();
    let timeout = Timespec { tv_sec: 60, tv_nsec: 0 };
    assert_eq!(poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&timeout)).unwrap(), 1, "the program is killed");
    let said = std::fs::read_to_string(&output).unwrap();
    assert!(said.contains("memory") && !said.contains("bad"), "it read on without its pager: {said}");
}

/// The pager that will be killed: its program waits for a page, and nobody serves it.
fn play_pager(output: &str) {
    let mut pager = TinyPager::new();
    let program = compile(pager.directory.path());
    let mut command = Command::new("sh");
    // The program's words go to a file that outlives this pager.
    command.args(["-c", "exec \"$0\" 300 > \"$1\"", program.to_str().unwrap(), output]);
    let mut conversation = pager.start(command);
    let shell = pager.greet(false);
    let mut paged = pager.greet(true);
    drop(shell);
    let guardian = Guardian::start(4).unwrap();
    let pid = rustix::process::Pid::from_raw(conversation.pid() as i32).unwrap();
    let pidfd = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).unwrap();
    guardian.watch(pidfd).unwrap();
    let memory = loop {
        let said = std::fs::read_to_string(output).unwrap();
        match said.strip_prefix("memory ").and_then(|rest| rest.strip_suffix('\n')) {
            Some(number) => break number.parse().unwrap(),
            None => paged.serve_once(),
        }
    };
    paged.register(memory, PAGES);
    let pages: Vec<u64> = (0..PAGES).map(|page| memory + page * PAGE).collect();
    assert_eq!(paged.evict(&pager.arena, &pages), vec![outcome::DONE; pages.len()]);
    conversation.tell("check");
    let mut wanted = [PollFd::from_borrowed_fd(paged.userfaultfd.as_fd(), PollFlags::IN)];
    let timeout = Timespec { tv_sec: 60, tv_nsec: 0 };
    assert_eq!(poll(&mut wanted, Some(&timeout)).unwrap(), 1, "the program asks for a page");
    println!("program {}", conversation.pid());
    std::thread::sleep(support::PATIENCE);
}
