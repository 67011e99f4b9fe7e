//! The evictor's start, early and late, what it has of its program, and its end.

use std::ops::Range;
use std::time::{Duration, Instant};

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use spillway_stub::protocol::{
    BATCH_ENTRIES_MAX, CALL_STACK_END, EVICTOR_STACK_END, EvictorState, HEAD_BYTES, outcome,
};
use spillway_stub::seat::Task;
use spillway_sys::userfaultfd::Message;

use crate::paged::scene::{PAGES, Scene};
use crate::support::{PAGE, Paged, far};

#[test]
fn the_evictor_starts_on_a_borrowed_thread() {
    let mut scene = Scene::new(false);
    assert!(scene.paged.seat.is_none());
    scene.start_late();
    assert_eq!(scene.ask("threads", "threads"), 3, "main, spinning, evictor");
    scene.evict(0..PAGES);
    assert_eq!(scene.ask("check", "bad"), 0);
    scene.end();
}

#[test]
fn a_program_whose_memory_suffices_sees_nothing() {
    // Rule 12: until there is an evictor, a program may do what only a single thread may.
    let mut scene = Scene::new(false);
    assert_eq!(scene.ask("threads", "threads"), 1);
    assert_eq!(scene.ask("descriptor", "descriptor"), 3, "standard streams only");
    let result = scene.ask("newuser", "newuser");
    assert_ne!(result, u64::from(libc::EINVAL.unsigned_abs()), "it is taken for a program with several threads");
    scene.end();
}

#[test]
fn the_evictor_has_no_descriptor_of_the_program_and_no_signal() {
    // Rule 7.
    let scene = Scene::new(true);
    let task = format!("/proc/{}/task/{}", scene.paged.places.process, scene.paged.seat().evictor_thread());
    let status = std::fs::read_to_string(format!("{task}/status")).unwrap();
    // SIGKILL and SIGSTOP cannot be blocked.
    assert!(status.contains("SigBlk:\tfffffffffffbfeff"), "{status}");
    assert!(status.contains("Name:\tspillway-evict"), "{status}");
    let descriptors: Vec<_> = std::fs::read_dir(format!("{task}/fd"))
        .unwrap()
        .map(|entry| std::fs::read_link(entry.unwrap().path()).unwrap().display().to_string())
        .collect();
    assert_eq!(descriptors, ["anon_inode:[userfaultfd]"]);
    let staging = scene.paged.seat().staging().expect("an evictor that runs has one");
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", scene.paged.places.process)).unwrap();
    assert!(maps.contains(&format!("{:x}-{:x} rw-p", staging.start, staging.end)), "{maps}");
    scene.end();
}

/// Where the stack of a thread is that waits in a system call, or will.
fn stack_pointer(process: u32, thread: u32) -> u64 {
    let deadline = far();
    loop {
        // The call's number, six arguments, the stack pointer, the place in the program (proc(5)); fewer words while
        // it runs.
        let call = std::fs::read_to_string(format!("/proc/{process}/task/{thread}/syscall")).unwrap();
        if let Some(pointer) = call.split_ascii_whitespace().nth(7) {
            return u64::from_str_radix(pointer.trim_start_matches("0x"), 16).unwrap();
        }
        assert!(Instant::now() < deadline, "the evictor never waits: {call}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The mappings of a program: addresses, and the line that tells of them.
fn mappings(process: u32) -> Vec<(Range<u64>, String)> {
    let maps = std::fs::read_to_string(format!("/proc/{process}/maps")).unwrap();
    let address = |text: &str| u64::from_str_radix(text, 16).unwrap();
    let parse = |line: &str| {
        let (start, end) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
        (address(start)..address(end), line.to_owned())
    };
    maps.lines().map(parse).collect()
}

#[test]
fn the_evictors_stack_lies_in_the_data_of_the_library() {
    // Rule 7: in memory of the program it would be evicted by the evictor itself, which would wait for it for ever.
    for starts_early in [true, false] {
        let mut scene = Scene::new(starts_early);
        if !starts_early {
            scene.start_late();
        }
        scene.evict(0..PAGES);
        let (places, seat) = (&scene.paged.places, scene.paged.seat());
        let pointer = stack_pointer(places.process, seat.evictor_thread());
        let begin = places.cell;
        let stack = begin + CALL_STACK_END as u64..begin + EVICTOR_STACK_END as u64;
        assert!(stack.contains(&pointer), "{pointer:x} is not in {stack:x?}");
        let mapping = mappings(places.process).into_iter().find(|(range, _)| range.contains(&pointer)).unwrap().1;
        let library = scene.pager.library().to_str().unwrap();
        assert!(mapping.contains(" rw-p ") && mapping.ends_with(library), "a mapping of a file: {mapping}");
        assert_eq!(scene.ask("check", "bad"), 0);
        scene.end();
    }
}

#[test]
fn the_hello_says_where_all_of_the_library_is() {
    // Rule 7: the survey excludes what the hello says, and the head.
    let scene = Scene::new(true);
    let (hello, head) = (&scene.paged.hello, scene.paged.places.head);
    let library = hello.library_start..hello.library_end;
    let head = head..head + HEAD_BYTES as u64;
    let seat = scene.paged.seat().mapped().expect("an evictor that runs has one");
    let name = scene.pager.library().to_str().unwrap();
    let mut found = (0, 0);
    for (range, line) in mappings(scene.paged.places.process) {
        let is_within = |own: &Range<u64>| own.start <= range.start && range.end <= own.end;
        if line.ends_with(name) {
            assert!(is_within(&library), "{line} is not in {library:x?}");
            found.0 += 1;
        }
        if line.contains("memfd:spillway-") {
            assert!(is_within(&head) || is_within(&seat), "{line} is not in {head:x?} or {seat:x?}");
            found.1 += 1;
        }
    }
    assert!(found.0 > 1 && found.1 > 1, "{found:?}");
    assert!(library.contains(&hello.start_evictor));
    scene.end();
}

/// All memory that a pager may take out of the program of `scene`.
fn pageable(scene: &Scene) -> Vec<Range<u64>> {
    let (places, hello, seat) = (&scene.paged.places, &scene.paged.hello, scene.paged.seat());
    let staging = seat.staging().expect("an evictor that runs has one");
    let excluded = [hello.library_start..hello.library_end, staging];
    let is_excluded = |range: &Range<u64>| excluded.iter().any(|one| one.start < range.end && range.start < one.end);
    let is_pageable = |line: &str| line.contains(" rw-p 00000000 00:00 0") && !line.ends_with("[stack]");
    let all = mappings(places.process).into_iter().filter(|(_, line)| is_pageable(line));
    all.map(|(range, _)| range).filter(|range| !is_excluded(range)).collect()
}

#[test]
fn the_evictor_needs_nothing_that_it_takes_out() {
    // Rule 7: a fault of its own would be answered by no thread, since all wait for its batch.
    let mut scene = Scene::new(true);
    let evictor = scene.paged.seat().evictor_thread();
    let ranges = pageable(&scene);
    assert!(ranges.iter().any(|range| range.contains(&scene.memory)) && ranges.len() > 1, "{ranges:x?}");
    ranges.iter().for_each(|range| scene.paged.register(range.start, (range.end - range.start) / PAGE));
    let all: Vec<u64> = ranges.into_iter().flat_map(|range| range.step_by(PAGE as usize)).collect();
    for round in 0..2 {
        let results: Vec<i32> = all.chunks(BATCH_ENTRIES_MAX).flat_map(|pages| scene.paged.evict(pages)).collect();
        assert!(results.iter().all(|result| [outcome::DONE, outcome::ABSENT].contains(result)), "{results:?}");
        let left = results.iter().filter(|result| **result == outcome::DONE).count() as u64;
        assert!(if round == 0 { left > PAGES } else { left == 0 }, "round {round}: {left} pages left");
    }
    assert_eq!(scene.ask("check", "bad"), 0);
    assert!(scene.paged.faults.len() as u64 > PAGES, "the program asked for its pages");
    assert!(scene.paged.faults.iter().all(|fault| fault.thread != evictor), "and the evictor for none");
    scene.paged.fill_all();
    scene.end();
}

#[test]
fn the_evictor_tells_its_cpu() {
    let mut scene = Scene::new(true);
    let thread = Pid::from_raw(scene.paged.seat().evictor_thread().cast_signed()).unwrap();
    assert_eq!(scene.paged.seat().evictor_cpu(), None, "before its first batch");
    let all = sched_getaffinity(Some(thread)).unwrap();
    for cpu in (0..CpuSet::MAX_CPU).filter(|cpu| all.is_set(*cpu)) {
        let mut one = CpuSet::new();
        one.set(cpu);
        sched_setaffinity(Some(thread), &one).unwrap();
        scene.evict(0..PAGES);
        assert_eq!(scene.paged.seat().evictor_cpu(), Some(cpu));
        assert_eq!(scene.ask("check", "bad"), 0);
    }
    scene.end();
}

#[test]
fn the_evictor_ends_when_asked() {
    let mut scene = Scene::new(true);
    let staging = scene.paged.seat().staging().unwrap();
    assert_eq!(scene.paged.run(&[Task::exit(0)]), [outcome::DONE]);
    let deadline = far();
    while scene.paged.seat().state() != EvictorState::Ended || scene.ask("threads", "threads") != 1 {
        assert!(Instant::now() < deadline, "the evictor does not end");
    }
    assert_eq!(scene.paged.events, 0, "its staging area goes without a message");
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", scene.paged.places.process)).unwrap();
    assert!(!maps.contains(&format!("{:x}-", staging.start)), "{maps}");
    // Another one may follow.
    let places = scene.paged.places;
    let userfaultfd = scene.paged.userfaultfd.try_clone().unwrap();
    let mut again = Paged::new(places, scene.paged.hello, userfaultfd);
    let spinning = scene.ask("spin", "spinning");
    scene.pager.start_late(&mut again, spinning as u32);
    assert_eq!(again.evict(&[scene.memory]), [outcome::DONE]);
    scene.conversation.tell("check");
    assert_eq!(again.hear(&scene.conversation, "bad"), 0);
    scene.end();
}

#[test]
fn the_evictor_starts_late_without_rights_too() {
    let mut scene = Scene::without_rights(false);
    scene.start_late();
    scene.evict(0..PAGES);
    assert_eq!(scene.ask("check", "bad"), 0);
    scene.end();
}

#[test]
fn the_evictor_does_not_keep_its_program_alive() {
    // Rule 6, second half.
    let mut scene = Scene::new(true);
    scene.evict(0..PAGES);
    scene.conversation.tell("leave");
    assert!(scene.paged.serve_to_end(&mut scene.conversation).success());
}

#[test]
fn an_evictor_that_waits_for_a_page_does_not_keep_its_program_alive() {
    // Rule 6, second half: no thread ever answers its fault.
    for command in ["leave", "exit"] {
        let mut scene = Scene::new(true);
        scene.evict(0..PAGES);
        let evictor = scene.paged.seat().evictor_thread();
        let batch = scene.paged.next_batch();
        scene.paged.seat().post(batch, &[Task::populate(scene.memory, PAGE)]);
        let deadline = far();
        let fault = loop {
            assert!(Instant::now() < deadline, "the evictor touches nothing");
            match scene.paged.userfaultfd.read_message().unwrap() {
                Some(Message::Fault(fault)) => break fault,
                _ => std::thread::yield_now(),
            }
        };
        assert_eq!((fault.thread, fault.address), (evictor, scene.memory));
        scene.conversation.tell(command);
        assert!(scene.paged.serve_to_end(&mut scene.conversation).success(), "{command}");
    }
}
