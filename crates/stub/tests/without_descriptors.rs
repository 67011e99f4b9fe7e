//! Forks are answered while no descriptor can be had. A test of its own process, whose limit it lowers.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::process::Command;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use spillway_sys::call_notices::NoticeError;

use support::{TinyPager, compile, wait_readable};

/// What `action` gives while this process can have no descriptors.
fn without_descriptors<Result>(action: impl FnOnce() -> Result) -> Result {
    let before = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(0), ..before }).unwrap();
    assert!(std::fs::File::open("/proc/uptime").is_err());
    let result = action();
    setrlimit(Resource::Nofile, before).unwrap();
    result
}

#[test]
fn every_fork_is_answered() {
    let mut pager = TinyPager::without_rights();
    let mut command = Command::new(compile(pager.directory.path()));
    command.arg("1");
    let mut conversation = pager.start(command);
    let (_paged, notices) = pager.greet_without_rights(false);
    assert_ne!(conversation.number_after("memory "), 0);
    // No thread can look at what forks.
    conversation.tell("try fork");
    wait_readable(&notices, "the fork waits");
    let heard = without_descriptors(|| notices.next());
    assert!(matches!(&heard, Err(NoticeError::Refused(..))), "{heard:?}");
    assert_eq!(conversation.number_after("failed "), libc::EAGAIN.unsigned_abs().into());
    // One that was looked at is allowed.
    conversation.tell("fork");
    wait_readable(&notices, "the fork waits");
    let notice = notices.next().unwrap().expect("nobody killed the program");
    without_descriptors(|| notices.allow(notice)).unwrap();
    assert_ne!(conversation.number_after("child "), 0);
    conversation.tell("exit");
    assert_eq!(conversation.number_after("joined "), 0);
    conversation.tell("exit");
    assert!(conversation.wait().success());
}
