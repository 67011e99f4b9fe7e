//! Programs that do not wait for the pager when they start, and those that do because something is not as it is to be.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use spillway_stub::greeting::Address;
use spillway_stub::head::Head;
use spillway_stub::protocol::{HEAD_SUFFIX, outcome};

use crate::paged::scene::PAGES;
use crate::support::{Conversation, FEATURES, PAGE, TinyPager, compile};

/// The program of the tests, with so many pages.
fn program(pager: &TinyPager) -> Command {
    let mut command = Command::new(compile(pager.directory.path()));
    command.arg(PAGES.to_string());
    command
}

#[test]
fn a_program_does_not_wait_and_is_paged_all_the_same() {
    let mut pager = TinyPager::new();
    let notes = pager.let_in();
    let mut conversation = pager.start(program(&pager));
    // No thread has read a word of it.
    let memory = conversation.number_after("memory ");
    conversation.tell("descriptor");
    assert_eq!(conversation.number_after("descriptor "), 3, "standard streams only");
    let mut paged = pager.take_in(&notes);
    assert_eq!(paged.places.process, conversation.pid(), "the kernel says who it is");
    paged.register(memory, PAGES);
    conversation.tell("spin");
    let spinning = paged.hear(&conversation, "spinning");
    assert!(paged.seat.is_none());
    pager.start_late(&mut paged, spinning as u32);
    let pages: Vec<u64> = (0..PAGES).map(|page| memory + page * PAGE).collect();
    assert_eq!(paged.evict(&pages), vec![outcome::DONE; pages.len()]);
    conversation.tell("check");
    assert_eq!(paged.hear(&conversation, "bad"), 0);
    assert_eq!(paged.faults.len(), pages.len(), "each page was asked for once");
    conversation.tell("exit");
    assert!(paged.serve_to_end(&mut conversation).success());
}

/// Of a fork that comes before the pager has read anything the child's memory is told all the same.
#[test]
fn forks_are_told_from_the_first_instruction_on() {
    let mut pager = TinyPager::new();
    let notes = pager.let_in();
    let mut conversation = pager.start(program(&pager));
    assert_ne!(conversation.number_after("memory "), 0);
    conversation.tell("fork");
    let mut paged = pager.take_in(&notes);
    assert_ne!(paged.hear(&conversation, "child"), 0);
    assert_eq!(paged.children.len(), 1, "a fork is announced before the child runs");
    conversation.tell("exit");
    assert_eq!(paged.hear(&conversation, "joined"), 0);
    conversation.tell("exit");
    assert!(paged.serve_to_end(&mut conversation).success());
}

/// Starts a program whose link to the head is what `link` makes it, and lets it be greeted as one that waits.
fn asks(link: impl FnOnce(&TinyPager, &Path)) {
    let mut pager = TinyPager::new();
    let path = format!("{}{HEAD_SUFFIX}", pager.address);
    link(&pager, path.as_ref());
    let mut conversation = pager.start(program(&pager));
    let mut paged = pager.greet(false);
    assert_eq!(paged.hello.head, 0, "it waits for an answer");
    let heads = || maps(&conversation).lines().filter(|line| line.contains("spillway-head")).count();
    assert_ne!(paged.hear(&conversation, "memory"), 0);
    assert_eq!(heads(), 1, "nothing else is mapped: {}", maps(&conversation));
    conversation.tell("exit");
    assert!(paged.serve_to_end(&mut conversation).success());
}

fn maps(conversation: &Conversation) -> String {
    std::fs::read_to_string(format!("/proc/{}/maps", conversation.pid())).unwrap()
}

#[test]
fn a_program_whose_link_leads_elsewhere_asks() {
    // As in another PID namespace, where other processes have these numbers.
    asks(|pager, path| {
        let other = Address::parse(pager.directory.path().join("other").to_str().unwrap()).unwrap();
        let head = Head::create(&other, Some(FEATURES)).unwrap();
        head.let_in().unwrap();
        std::fs::rename(format!("{other}{HEAD_SUFFIX}"), path).unwrap();
        // The link's end is open as long as this process lives.
        std::mem::forget(head);
    });
    asks(|pager, path| {
        let file = pager.directory.path().join("short");
        std::fs::write(&file, "SPILLWAY").unwrap();
        symlink(file, path).unwrap();
    });
    asks(|_, path| symlink("/nowhere", path).unwrap());
}

#[test]
fn a_program_that_cannot_say_hello_in_advance_asks() {
    // The head is there, and no thread reads notes.
    asks(|pager, _| pager.head.let_in().unwrap());
}

/// Loads the library late, when the variables are not where the kernel put them.
const LATE: &str = "
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
int main(int count, char **arguments) {
    if (count != 2 || setenv(\"MOVED\", \"1\", 1) != 0) return 2;
    if (dlopen(arguments[1], RTLD_NOW) == NULL) return 3;
    puts(\"loaded 1\");
    return fflush(stdout);
}
";

#[test]
fn the_address_is_found_where_no_variables_are_handed() {
    let mut pager = TinyPager::new();
    let notes = pager.let_in();
    let (source, program) = (pager.directory.path().join("late.c"), pager.directory.path().join("late"));
    std::fs::write(&source, LATE).unwrap();
    assert!(Command::new("cc").arg("-o").arg(&program).arg(&source).arg("-ldl").status().unwrap().success());
    let mut command = Command::new(&program);
    command.arg(pager.library()).env("SPILLWAY_PAGER", pager.variable());
    let mut conversation = Conversation::start(command);
    assert_eq!(conversation.number_after("loaded "), 1);
    assert!(conversation.wait().success());
    assert_eq!(pager.take_in(&notes).places.process, conversation.pid());
}
