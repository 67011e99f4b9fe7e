//! What becomes of a program that cannot be paged, and of one that shall not be.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::os::fd::AsFd;
use std::process::{Command, Stdio};

use spillway_stub::greeting::{Address, Listener};
use spillway_stub::protocol::{MESSAGE_WORDS, Verdict, Welcome};

use support::{Conversation, TinyPager, compile, far, wait_readable};

/// The exit status of a program whose paging was refused.
const REFUSED: i32 = 125;

/// A program that would say "memory" if it ran; what it says on standard error comes with its end.
fn start(pager: &TinyPager) -> Conversation {
    let mut command = Command::new(compile(pager.directory.path()));
    command.arg("1").stderr(Stdio::piped());
    pager.start(command)
}

#[test]
fn a_pager_may_let_a_program_run_unpaged() {
    let pager = TinyPager::new();
    let mut conversation = start(&pager);
    let visitor = pager.visitor();
    visitor.hello(far()).unwrap();
    let welcome = Welcome { verdict: Verdict::RunUnpaged, evictor: None };
    visitor.welcome(&welcome, None).unwrap();
    assert_ne!(conversation.number_after("memory "), 0);
    conversation.tell("threads");
    assert_eq!(conversation.number_after("threads "), 1);
    conversation.tell("exit");
    assert!(conversation.wait().success());
}

#[test]
fn a_pager_may_refuse_a_program() {
    let pager = TinyPager::new();
    let mut conversation = start(&pager);
    let visitor = pager.visitor();
    visitor.hello(far()).unwrap();
    let welcome = Welcome { verdict: Verdict::Refuse, evictor: None };
    visitor.welcome(&welcome, None).unwrap();
    assert_eq!(conversation.wait().code(), Some(REFUSED));
    let said = conversation.complaints();
    assert!(said.contains("the pager refused it") && said.contains("--via swap"), "{said}");
}

#[test]
fn a_program_that_may_have_no_more_descriptors_is_told() {
    let pager = TinyPager::new();
    let (library, address) = (pager.library().display(), &pager.address);
    let mut command = Command::new("prlimit");
    command.args(["--nofile=5:5", "env", &format!("LD_PRELOAD={library}"), &format!("SPILLWAY_PAGER={address}")]);
    command.arg(compile(pager.directory.path())).arg("1").stderr(Stdio::piped());
    let mut conversation = Conversation::start(command);
    let visitor = pager.visitor();
    visitor.hello(far()).unwrap();
    let welcome = Welcome { verdict: Verdict::Page, evictor: None };
    visitor.welcome(&welcome, Some(pager.head.file().as_fd())).unwrap();
    assert_eq!(conversation.wait().code(), Some(REFUSED));
    let said = conversation.complaints();
    assert!(said.contains("no descriptor free"), "{said}");
}

#[test]
fn a_pager_of_another_version_is_refused() {
    let pager = TinyPager::new();
    let mut conversation = start(&pager);
    let visitor = pager.visitor();
    visitor.hello(far()).unwrap();
    visitor.send(&[7; MESSAGE_WORDS], None).unwrap();
    assert_eq!(conversation.wait().code(), Some(REFUSED));
    assert!(conversation.complaints().contains("another version"));
}

#[test]
fn a_pager_that_breaks_off_is_no_pager() {
    let pager = TinyPager::new();
    let mut conversation = start(&pager);
    drop(pager.visitor());
    assert_eq!(conversation.wait().code(), Some(REFUSED));
    let said = conversation.complaints();
    assert!(said.contains("the pager broke off"), "{said}");
}

#[test]
fn a_program_without_its_pager_does_not_start() {
    let pager = TinyPager::new();
    let mut command = Command::new(compile(pager.directory.path()));
    command.env("LD_PRELOAD", pager.library()).env("SPILLWAY_PAGER", "/nowhere/at/all").stderr(Stdio::piped());
    let mut conversation = Conversation::start(command);
    assert_eq!(conversation.wait().code(), Some(REFUSED));
    let said = conversation.complaints();
    assert!(said.contains("cannot be reached (error 2)") && !said.contains("memory"), "{said}");
}

#[test]
fn without_the_variable_nothing_happens() {
    let pager = TinyPager::new();
    let mut command = Command::new(compile(pager.directory.path()));
    // A variable whose name only begins alike is another.
    command.env("LD_PRELOAD", pager.library()).env("SPILLWAY_PAGERS", "/x").env_remove("SPILLWAY_PAGER");
    let mut conversation = Conversation::start(command);
    assert_ne!(conversation.number_after("memory "), 0);
    conversation.tell("exit");
    assert!(conversation.wait().success());
}

/// A program that begins below another whose calls a third process is asked about, which lets all of them happen: a
/// sandbox, or one's own pager further out.
#[test]
fn a_program_whose_forks_another_process_is_asked_about_does_not_start() {
    let [mut outer, inner] = [TinyPager::without_rights(), TinyPager::without_rights()];
    let program = compile(inner.directory.path());
    let mut launcher = Command::new("env");
    launcher.arg(format!("SPILLWAY_PAGER={}", inner.address)).arg(program).arg("1").stderr(Stdio::piped());
    let mut conversation = outer.start(launcher);
    let (_outside, notices) = outer.greet_without_rights(false);
    let visitor = inner.visitor();
    visitor.hello(far()).unwrap();
    let welcome = Welcome { verdict: Verdict::PageTellingForks, evictor: None };
    visitor.welcome(&welcome, Some(inner.head.file().as_fd())).unwrap();
    assert!(visitor.ready_with_descriptor(far()).unwrap().1.is_none(), "there is a filter already");
    wait_readable(&notices, "it finds out who is asked");
    assert!(notices.next().unwrap().is_none(), "the other pager says who it is");
    assert_eq!(conversation.wait().code(), Some(REFUSED));
    let said = conversation.complaints();
    assert!(said.contains("another program is asked about its forks"), "{said}");
}

#[test]
fn an_abstract_address_is_found_too() {
    let name = format!("@spillway-refusals-{}", std::process::id());
    let listener = Listener::bind(&Address::parse(&name).unwrap()).unwrap();
    let pager = TinyPager::new();
    let mut command = Command::new(compile(pager.directory.path()));
    command.env("LD_PRELOAD", pager.library()).env("SPILLWAY_PAGER", &name);
    let conversation = Conversation::start(command);
    let deadline = far();
    let visitor = loop {
        if let Some(visitor) = listener.accept().unwrap() {
            break visitor;
        }
        assert!(std::time::Instant::now() < deadline, "nobody said hello");
        std::thread::sleep(std::time::Duration::from_millis(2));
    };
    assert_eq!(visitor.process(), conversation.pid());
    assert!(visitor.hello(deadline).unwrap().1.is_some());
}
