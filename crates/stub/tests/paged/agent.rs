//! The agent's start, early and late, what it has of its program, and its end.

use std::time::Instant;

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use spillway_stub::protocol::{AgentState, outcome};
use spillway_stub::seat::Task;
use spillway_sys::userfaultfd::Message;

use crate::scene::{PAGES, Scene};
use crate::support::{PAGE, Paged, far};

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
fn the_agent_tells_its_cpu() {
    let mut scene = Scene::new(true);
    let thread = Pid::from_raw(scene.paged.seat.agent_thread().cast_signed()).unwrap();
    assert_eq!(scene.paged.seat.agent_cpu(), None, "before its first batch");
    let all = sched_getaffinity(Some(thread)).unwrap();
    for cpu in (0..CpuSet::MAX_CPU).filter(|cpu| all.is_set(*cpu)) {
        let mut one = CpuSet::new();
        one.set(cpu);
        sched_setaffinity(Some(thread), &one).unwrap();
        scene.evict(0..PAGES);
        assert_eq!(scene.paged.seat.agent_cpu(), Some(cpu));
        assert_eq!(scene.ask("check", "bad"), 0);
    }
    scene.end();
}

#[test]
fn the_agent_ends_when_asked() {
    let mut scene = Scene::new(true);
    let staging = scene.paged.seat.staging().unwrap();
    assert_eq!(scene.paged.run(&[Task::exit(0)]), [outcome::DONE]);
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
fn the_agent_starts_late_without_rights_too() {
    let mut scene = Scene::without_rights(false);
    scene.start_late();
    scene.evict(0..PAGES);
    assert_eq!(scene.ask("check", "bad"), 0);
    scene.end();
}

#[test]
fn the_agent_does_not_keep_its_program_alive() {
    // Rule 6, second half.
    let mut scene = Scene::new(true);
    scene.evict(0..PAGES);
    scene.conversation.tell("leave");
    assert!(scene.paged.serve_to_end(&mut scene.conversation).success());
}

#[test]
fn an_agent_that_waits_for_a_page_does_not_keep_its_program_alive() {
    // Rule 6, second half: nobody ever answers its fault.
    for command in ["leave", "exit"] {
        let mut scene = Scene::new(true);
        scene.evict(0..PAGES);
        let agent = scene.paged.seat.agent_thread();
        let batch = scene.paged.next_batch();
        scene.paged.seat.post(batch, &[Task::populate(scene.memory, PAGE)]);
        let deadline = far();
        let fault = loop {
            assert!(Instant::now() < deadline, "the agent touches nothing");
            match scene.paged.userfaultfd.read_message().unwrap() {
                Some(Message::Fault(fault)) => break fault,
                _ => std::thread::yield_now(),
            }
        };
        assert_eq!((fault.thread, fault.address), (agent, scene.memory));
        scene.conversation.tell(command);
        assert!(scene.paged.serve_to_end(&mut scene.conversation).success(), "{command}");
    }
}
