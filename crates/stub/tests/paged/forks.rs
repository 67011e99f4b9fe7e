//! Forks and execs of programs whose pages were evicted.

use std::time::Instant;

use spillway_stub::late_start::ProgramPlaces;
use spillway_stub::protocol::outcome;
use spillway_stub::seat::Task;

use crate::paged::scene::{PAGES, Scene};
use crate::support::{PAGE, Paged, far, wait_readable};

/// Forks the program; the child talks from now on.
fn fork(scene: &mut Scene) -> (u32, Paged) {
    let child = scene.ask("fork", "child") as u32;
    let userfaultfd = scene.paged.children.pop().expect("a fork is announced before the child runs");
    let places = ProgramPlaces { process: child, ..scene.paged.places };
    let paged = scene.paged.fork(places, userfaultfd);
    (child, paged)
}

#[test]
fn a_forked_child_has_an_evictor_of_its_own() {
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
    assert_eq!(child.evict(&pages), vec![outcome::DONE; pages.len()]);
    scene.conversation.tell("check");
    assert_eq!(child.hear(&scene.conversation, "bad"), 0);
    scene.conversation.tell("exit");
    assert_eq!(scene.paged.hear(&scene.conversation, "joined"), 0);
    assert_eq!(scene.ask("check", "bad"), 0, "the parent keeps what it had");
    scene.end();
}

#[test]
fn a_fork_waits_for_a_pager_that_has_no_messages_about_forks() {
    let mut scene = Scene::without_rights(true);
    let notices = scene.notices.take().expect("a program brings a descriptor");
    scene.evict(0..PAGES);
    scene.conversation.tell("fork");
    wait_readable(&notices, "the fork waits");
    let notice = notices.next().unwrap().expect("nobody killed the program");
    assert_eq!((notice.process, notice.thread), (scene.conversation.pid(), scene.conversation.pid()));
    scene.paged.fill_all();
    let fork = notices.allow(notice).unwrap();
    let child = scene.paged.hear(&scene.conversation, "child") as u32;
    assert_ne!(child, scene.conversation.pid());
    let deadline = far();
    while !fork.is_over() {
        assert!(Instant::now() < deadline, "the fork is not over though there is a child");
    }
    let faults = scene.paged.faults.len();
    // The parent leaves some again: the child, which is not paged, has them all the same.
    let pages = scene.pages(0..8);
    assert_eq!(scene.paged.run(&[Task::populate(pages[0], 8 * PAGE)]), [outcome::DONE]);
    scene.evict(0..8);
    assert_eq!(scene.ask("check", "bad"), 0);
    assert_eq!(scene.paged.faults.len(), faults, "the child is served by nobody");
    // Threads are no forks: no thread is asked.
    scene.ask("spin", "spinning");
    // What the child executes is paged, and asks the same pager.
    scene.conversation.tell("exec");
    let mut next = scene.pager.greet_inheriting(&notices);
    next.hear(&scene.conversation, "memory");
    scene.conversation.tell("fork");
    wait_readable(&notices, "a fork of the child waits");
    let notice = notices.next().unwrap().expect("nobody killed the program");
    assert_eq!(notice.process, child);
    notices.allow(notice).unwrap();
    next.hear(&scene.conversation, "child");
    scene.conversation.tell("exit");
    assert_eq!(next.hear(&scene.conversation, "joined"), 0);
    scene.conversation.tell("exit");
    assert_eq!(scene.paged.hear(&scene.conversation, "joined"), 0);
    assert_eq!(scene.ask("check", "bad"), 0);
    scene.end();
}

#[test]
fn a_fork_can_be_refused() {
    let mut scene = Scene::without_rights(true);
    let notices = scene.notices.take().expect("a program brings a descriptor");
    scene.conversation.tell("try fork");
    wait_readable(&notices, "the fork waits");
    let notice = notices.next().unwrap().expect("nobody killed the program");
    notices.refuse(notice).unwrap();
    assert_eq!(scene.paged.hear(&scene.conversation, "failed"), u64::from(libc::ENOMEM.unsigned_abs()));
    scene.end();
}

#[test]
fn pages_that_a_fork_shared_leave_after_they_were_populated() {
    // Rule 2.
    let mut scene = Scene::new(true);
    let (_, mut child) = fork(&mut scene);
    let pages = scene.pages(0..8);
    assert_eq!(scene.paged.evict(&pages), vec![outcome::BUSY; 8], "shared pages do not move");
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
    assert_eq!(scene.paged.evict(&pages), vec![outcome::BUSY; 8], "also when the child is gone");
    assert_eq!(scene.paged.run(&[Task::populate(pages[0], 8 * PAGE)]), [outcome::DONE]);
    assert_eq!(scene.paged.evict(&pages), vec![outcome::DONE; 8]);
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
