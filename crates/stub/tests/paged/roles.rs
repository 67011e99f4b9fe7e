//! Tests whose programs, pagers and users are this file's own executable, started anew.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use spillway_stub::protocol::outcome;
use spillway_sys::guardian::Guardian;

use crate::paged::scene::PAGES;
use crate::support::{self, Conversation, PAGE, TinyPager, compile};

/// The tests of pagers without rights, once more, as a user without any: only `/dev/userfaultfd` is theirs.
#[test]
fn an_ordinary_user_pages_programs() {
    if !rustix::process::geteuid().is_root() {
        // The tests without rights run as this user anyway.
        return spillway_sys::skipping::skip("root, who alone can become another user");
    }
    let directory = tempfile::tempdir().unwrap();
    let everybody = std::fs::Permissions::from_mode(0o777);
    std::fs::set_permissions(directory.path(), everybody).unwrap();
    std::fs::copy(std::env::current_exe().unwrap(), directory.path().join("tests")).unwrap();
    // In a mount namespace of its own, so that the machine's device stays as it is.
    let script = "set -e
        cd \"$1\"
        mknod device c 10 \"$(stat -c %T /dev/userfaultfd | xargs -I{} printf %d 0x{})\"
        chmod 666 device
        mount --bind device /dev/userfaultfd
        TMPDIR=\"$1\" exec setpriv --reuid 65534 --regid 65534 --clear-groups --bounding-set -all --inh-caps -all \\
            ./tests --nocapture without_rights a_fork_waits a_fork_can_be_refused";
    let output = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "sh", "-c", script, "sh"])
        .arg(directory.path())
        .output()
        .unwrap();
    let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).join("\n");
    assert!(output.status.success() && said.contains("3 passed"), "{said}");
}

const ROLE: &str = "SPILLWAY_STUB_TEST_ROLE";

/// Arguments of this test binary that run one test of this module, wherever the module lies.
fn only(test: &str) -> [String; 3] {
    let (_, module) = module_path!().split_once("::").expect("this module lies in a crate");
    ["--exact".to_owned(), "--nocapture".to_owned(), format!("{module}::{test}")]
}

/// A program of Rust's standard library: this file's own, started anew with a role.
#[test]
fn a_program_of_the_standard_library_is_paged() {
    if std::env::var(ROLE).is_ok_and(|role| role == "program") {
        return play_program();
    }
    let mut pager = TinyPager::new();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(only("a_program_of_the_standard_library_is_paged")).env(ROLE, "program");
    let mut conversation = pager.start(command);
    let mut paged = pager.greet(true);
    let memory = paged.hear_number_after(&conversation, "memory ");
    paged.register(memory, 64);
    let pages: Vec<u64> = (0..64).map(|page| memory + page * PAGE).collect();
    assert_eq!(paged.evict(&pages), vec![outcome::DONE; 64]);
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
    command.args(only("a_killed_pager_takes_its_programs_along")).env(ROLE, &output);
    // What a killed pager leaves behind goes with this test's directory.
    command.env("TMPDIR", directory.path());
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

/// The pager that will be killed: its program waits for a page, and no thread serves it.
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
    let guardian = Guardian::start_for_users(4, pager.head.file(), None).unwrap();
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
    assert_eq!(paged.evict(&pages), vec![outcome::DONE; pages.len()]);
    conversation.tell("check");
    let mut wanted = [PollFd::from_borrowed_fd(paged.userfaultfd.as_fd(), PollFlags::IN)];
    let timeout = Timespec { tv_sec: 60, tv_nsec: 0 };
    assert_eq!(poll(&mut wanted, Some(&timeout)).unwrap(), 1, "the program asks for a page");
    println!("program {}", conversation.pid());
    std::thread::sleep(support::PATIENCE);
}
