//! Pages leave and come back; those that cannot leave are told apart.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use spillway_stub::protocol::{BATCH_ENTRIES_MAX, Phase, outcome};
use spillway_stub::seat::Task;
use spillway_sys::skipping::skip;
use spillway_sys::userfaultfd::Wake;

use crate::paged::scene::{HUGE_PAGES, PAGES, Scene};
use crate::support::{PAGE, far};

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
    assert_eq!(scene.paged.evict(&apart), vec![outcome::DONE; apart.len()]);
    // A full batch: what is there leaves, and what is not is absent, each told apart.
    let all: Vec<u64> = (0..BATCH_ENTRIES_MAX as u64).map(|page| scene.memory + page * PAGE).collect();
    let results = scene.paged.evict(&all[..PAGES as usize]);
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
fn nothing_is_moved_while_a_message_about_mappings_waits() {
    // Rules 11 and 14: the kernel refuses, the evictor asks once, and says so of the whole batch.
    let mut scene = Scene::new(true);
    scene.conversation.tell("drop");
    let timeout = Timespec { tv_sec: 60, tv_nsec: 0 };
    let mut wanted = [PollFd::new(&scene.paged.userfaultfd, PollFlags::IN)];
    assert_eq!(poll(&mut wanted, Some(&timeout)).unwrap(), 1, "the program drops a page");
    let tasks: Vec<Task> = scene.pages(1..4).into_iter().map(Task::evict_drop).collect();
    scene.paged.seat().post(0, &tasks);
    assert!(scene.paged.seat().wait(0, Phase::Done, 0, far()).unwrap());
    for index in 0..tasks.len() {
        assert_eq!(scene.paged.seat().result(0, index), outcome::TRY_LATER);
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
    let results = scene.paged.evict(&pages);
    assert_eq!(results, [outcome::DONE, outcome::REFUSED, outcome::DONE]);
    assert_eq!(scene.ask("check", "bad"), 0);
    scene.end();
}

#[test]
fn executable_pages_leave_beside_others() {
    // What translators make code in: the kernel moves it only to memory of the same protection.
    let mut scene = Scene::new(true);
    assert_eq!(scene.ask("execute", "executable"), 0);
    for _ in 0..2 {
        scene.evict(0..PAGES);
        assert_eq!(scene.ask("check", "bad"), 0);
    }
    let apart: Vec<u64> = scene.pages(0..PAGES).into_iter().step_by(5).rev().collect();
    assert_eq!(scene.paged.evict(&apart), vec![outcome::DONE; apart.len()]);
    assert_eq!(scene.ask("lock", "locked"), 0);
    let last = PAGES / 3 - 1;
    let around = [scene.pages(1..2), scene.pages(last..last + 2)].concat();
    scene.ask("change", "changed");
    let results = scene.paged.evict(&around);
    assert_eq!(results, [outcome::REFUSED, outcome::DONE, outcome::DONE], "a locked one, and both sides of the border");
    assert_eq!(scene.ask("check", "bad"), 0);
    scene.end();
}

/// Bytes of huge pages in the mapping of a program that begins at `start`.
fn huge_bytes(process: u32, start: u64) -> u64 {
    let smaps = std::fs::read_to_string(format!("/proc/{process}/smaps")).unwrap();
    let mapping = smaps.split_once(&format!("{start:x}-")).expect("it is mapped").1;
    let kibibytes = mapping.split_once("AnonHugePages:").unwrap().1.split_once(" kB").unwrap().0;
    kibibytes.trim().parse::<u64>().unwrap() * 1024
}

#[test]
fn pages_leave_huge_pages_one_by_one() {
    let mut scene = Scene::with_huge_pages();
    let process = scene.paged.places.process;
    let before = huge_bytes(process, scene.memory);
    if before == 0 {
        return skip("huge pages (transparent_hugepage is never, or no memory in one piece is free)");
    }
    scene.evict(HUGE_PAGES / 2..HUGE_PAGES / 2 + PAGES);
    assert!(huge_bytes(process, scene.memory) < before, "what left was in a huge page");
    assert_eq!(scene.ask("check", "bad"), 0);
    let apart: Vec<u64> = scene.pages(0..HUGE_PAGES).into_iter().step_by(7).collect();
    assert_eq!(scene.paged.evict(&apart), vec![outcome::DONE; apart.len()]);
    scene.ask("change", "changed");
    assert_eq!(scene.ask("check", "bad"), 0);
    scene.end();
}

#[test]
fn pages_leave_while_threads_write_to_them() {
    let mut scene = Scene::new(true);
    scene.ask("churn", "churning");
    let mut evicted = 0;
    for round in 0..200_u64 {
        // Runs and pages alone, wherever the threads are; those that are not back yet are absent.
        let first = round.wrapping_mul(0x9e37_79b9_7f4a_7c15) % PAGES;
        let step = 1 + round % 3;
        let pages: Vec<u64> = (0..40).map(|index| scene.memory + (first + index * step) % PAGES * PAGE).collect();
        for result in scene.paged.evict(&pages) {
            // The threads begin with zeroes, so that a page has nothing else for a moment.
            let has_left = [outcome::DONE, outcome::ZERO].contains(&result);
            assert!(has_left || [outcome::ABSENT, outcome::BUSY].contains(&result), "{result}");
            evicted += usize::from(has_left);
        }
        for _ in 0..10 {
            scene.paged.serve_once();
        }
    }
    assert!(evicted > 200, "only {evicted} pages left");
    assert_eq!(scene.ask("calm", "calm"), 0, "words changed while their pages were away");
    scene.end();
}

#[test]
fn zeroes_that_are_written_while_they_leave_keep_what_is_written() {
    // Linux 6.18 moves such a page now and then and does not say so: about once in five hundred rounds.
    let mut scene = Scene::new(true);
    let pages = scene.pages(0..PAGES);
    let drops: Vec<Task> = pages.iter().copied().map(Task::evict_drop).collect();
    for round in 0..1000 {
        scene.paged.run(&drops);
        scene.paged.userfaultfd.zero_page(pages[0]..pages[0] + PAGES * PAGE, Wake::Waiters).unwrap();
        scene.conversation.tell("change");
        scene.paged.evict(&pages);
        scene.paged.hear(&scene.conversation, "changed");
        scene.paged.fill_all();
        assert_eq!(scene.ask("check", "bad"), 0, "round {round}");
    }
    scene.end();
}

#[test]
fn a_program_that_locks_all_its_memory_keeps_it_and_its_evictor() {
    // The staging area is locked, and filled with zeroes, like all that the program has.
    let mut scene = Scene::new(true);
    scene.evict(0..PAGES);
    assert_eq!(scene.ask("check", "bad"), 0);
    assert_eq!(scene.ask("lock all", "locked"), 0);
    let pages = scene.pages(0..PAGES);
    for _ in 0..2 {
        let results = scene.paged.evict(&pages);
        assert!(results.iter().all(|result| *result != outcome::DONE), "{results:?}");
        assert_eq!(scene.ask("check", "bad"), 0);
    }
    assert_eq!(scene.ask("unlock all", "unlocked"), 0);
    // The first batch finds the staging area full of zeroes, and drops them.
    scene.paged.evict(&pages);
    scene.paged.fill_all();
    scene.evict(0..PAGES);
    assert_eq!(scene.ask("check", "bad"), 0);
    scene.end();
}

#[test]
fn pages_that_are_not_locked_leave_while_the_staging_area_is() {
    // As those of a mapping that was made after all memory had been locked.
    let mut scene = Scene::new(true);
    assert_eq!(scene.ask("lock all", "locked"), 0);
    assert_eq!(scene.ask("unlock", "unlocked"), 0);
    // The first batch finds the staging area full of zeroes, and drops them.
    let pages = scene.pages(0..PAGES);
    scene.paged.evict(&pages);
    scene.paged.fill_all();
    scene.evict(0..PAGES);
    assert_eq!(scene.ask("check", "bad"), 0);
    scene.end();
}
