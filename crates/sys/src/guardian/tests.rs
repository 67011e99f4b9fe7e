//! A forked child plays the process that dies; the test watches what becomes of its program.

use std::ffi::{OsStr, OsString};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::*;

const PATIENCE: Duration = Duration::from_secs(60);

/// A program that lives until it is killed or its input ends.
struct Victim(Child);

impl Victim {
    fn start() -> Self {
        Self(Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap())
    }

    fn pidfd(&self) -> OwnedFd {
        rustix::process::pidfd_open(Pid::from_child(&self.0), PidfdFlags::empty()).unwrap()
    }

    fn is_alive(&mut self) -> bool {
        self.0.try_wait().unwrap().is_none()
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn wait_for_signal_of(victim: &mut Victim) -> Option<i32> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(status) = victim.0.try_wait().unwrap() {
            return status.signal();
        }
        assert!(Instant::now() < deadline, "nobody killed the program");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Forks a child that makes something and keeps it, and waits until it has.
fn fork_until_ready<Kept>(make: impl FnOnce() -> Kept) -> Pid {
    let (mut here, mut there) = UnixStream::pair().unwrap();
    // SAFETY: the child uses memory that glibc keeps usable after a fork, and ends by being killed.
    match unsafe { libc::fork() } {
        0 => {
            let _kept = make();
            there.write_all(b"!").unwrap();
            loop {
                // SAFETY: no memory is touched.
                unsafe { libc::pause() };
            }
        }
        child => {
            drop(there);
            here.read_exact(&mut [0]).unwrap();
            Pid::from_raw(child).unwrap()
        }
    }
}

/// Forks a child that watches `pidfd` with a guardian, or did.
fn fork_watcher(pidfd: OwnedFd, forget: bool) -> Pid {
    fork_until_ready(|| {
        let guardian = Guardian::start(4).unwrap();
        let place = guardian.watch(pidfd).unwrap();
        if forget {
            guardian.forget(place);
        }
        guardian
    })
}

fn kill(process: Pid) {
    rustix::process::kill_process(process, Signal::KILL).unwrap();
    rustix::process::waitpid(Some(process), WaitOptions::empty()).unwrap();
}

#[test]
fn programs_are_killed_when_their_pager_is() {
    let (mut watched, mut other) = (Victim::start(), Victim::start());
    let watcher = fork_watcher(watched.pidfd(), false);
    assert!(watched.is_alive());
    kill(watcher);
    assert_eq!(wait_for_signal_of(&mut watched), Some(libc::SIGKILL));
    assert!(other.is_alive(), "a program that is not listed is left alone");
}

#[test]
fn a_program_that_was_taken_off_the_list_lives_on() {
    let (mut forgotten, mut watched) = (Victim::start(), Victim::start());
    let first = fork_watcher(forgotten.pidfd(), true);
    kill(first);
    // Another guardian that does its work shows that the time was long enough.
    let second = fork_watcher(watched.pidfd(), false);
    kill(second);
    assert_eq!(wait_for_signal_of(&mut watched), Some(libc::SIGKILL));
    assert!(forgotten.is_alive());
}

#[test]
fn an_unlisted_process_is_found_by_what_it_maps() {
    let shared = Memfd::create("guardian-test", PAGE_SIZE_BYTES as u64).unwrap();
    // Only the child maps it: other tests fork this process meanwhile.
    let user = fork_until_ready(|| Mapping::shared(&shared, PAGE_SIZE_BYTES).unwrap());
    let watcher = fork_until_ready(|| Guardian::start_for_users(1, &shared, None).unwrap());
    kill(watcher);
    let deadline = Instant::now() + PATIENCE;
    let (_, status) = loop {
        if let Some(end) = rustix::process::waitpid(Some(user), WaitOptions::NOHANG).unwrap() {
            break end;
        }
        if Instant::now() > deadline {
            kill(user);
            panic!("the process was not killed");
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    assert_eq!(status.terminating_signal(), Some(libc::SIGKILL));
}

/// A program of a directory whose name looks like the columns of `/proc/PID/maps` that name `file`.
fn bystander_named_like(file: &Memfd, directory: &std::path::Path) -> Victim {
    let status = rustix::fs::fstat(file).unwrap();
    let (major, minor) = (rustix::fs::major(status.st_dev), rustix::fs::minor(status.st_dev));
    let named = directory.join(format!(" {major:02x}:{minor:02x} {} ", status.st_ino));
    std::fs::create_dir(&named).unwrap();
    // By a process of its own: a child that another test forks would have the file open for writing (ETXTBSY).
    assert!(Command::new("cp").arg("/bin/cat").arg(named.join("cat")).status().unwrap().success());
    Victim(Command::new(named.join("cat")).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap())
}

#[test]
fn a_process_whose_files_are_named_like_the_programs_file_lives_on() {
    let directory = tempfile::tempdir().unwrap();
    let shared = Memfd::create("guardian-test", PAGE_SIZE_BYTES as u64).unwrap();
    let mut bystander = bystander_named_like(&shared, directory.path());
    let user = fork_until_ready(|| Mapping::shared(&shared, PAGE_SIZE_BYTES).unwrap());
    let mut listed = Victim::start();
    let watcher = fork_until_ready(|| {
        let guardian = Guardian::start_for_users(1, &shared, None).unwrap();
        guardian.watch(listed.pidfd()).unwrap();
        guardian
    });
    kill(watcher);
    // The guardian kills the user after the listed program, in a walk over all processes.
    assert_eq!(wait_for_signal_of(&mut listed), Some(libc::SIGKILL));
    let (_, status) = rustix::process::waitpid(Some(user), WaitOptions::empty()).unwrap().unwrap();
    assert_eq!(status.terminating_signal(), Some(libc::SIGKILL));
    std::thread::sleep(Duration::from_millis(200));
    assert!(bystander.is_alive(), "it maps another file");
}

#[test]
fn the_guardian_becomes_its_successor_when_no_program_is_left() {
    let directory = tempfile::tempdir().unwrap();
    let [told, place] = ["told.new", "told"].map(|name| directory.path().join(name));
    let shared = Memfd::create("guardian-test", PAGE_SIZE_BYTES as u64).unwrap();
    let user = fork_until_ready(|| Mapping::shared(&shared, PAGE_SIZE_BYTES).unwrap());
    // It comes when the user of the file has ended, blocks no signals, and has the environment of the thread that was
    // killed.
    let script = "{ grep State: /proc/$1/status || echo State: gone; ls -l /proc/self/fd/0; echo path ${#PATH}; grep SigBlk /proc/self/status; } >$2; mv $2 $3";
    let number = user.as_raw_nonzero().get().to_string();
    let words = ["sh", "-c", script, "sh", &number, told.to_str().unwrap(), place.to_str().unwrap()];
    let arguments = words.map(OsString::from);
    let watcher = fork_until_ready(|| {
        let successor = Successor::new(OsStr::new("/bin/sh"), &arguments).unwrap();
        Guardian::start_for_users(1, &shared, Some(successor)).unwrap()
    });
    assert!(!place.exists(), "nobody was killed yet");
    kill(watcher);
    let (_, status) = rustix::process::waitpid(Some(user), WaitOptions::empty()).unwrap().unwrap();
    assert_eq!(status.terminating_signal(), Some(libc::SIGKILL));
    let deadline = Instant::now() + PATIENCE;
    while !place.exists() {
        assert!(Instant::now() < deadline, "nobody came after the guardian");
        std::thread::sleep(Duration::from_millis(5));
    }
    let text = std::fs::read_to_string(&place).unwrap();
    assert!(text.contains("State:\tZ") || text.contains("State: gone"), "{text}");
    assert!(text.contains("-> /dev/null") && text.contains("SigBlk:\t0000000000000000"), "{text}");
    assert!(text.contains(&format!("path {}", std::env::var("PATH").unwrap().len())), "{text}");
}

#[test]
fn what_cannot_be_written_for_the_kernel_is_no_successor() {
    let word = OsString::from("a\0b");
    assert!(Successor::new(&word, &[]).is_err());
    assert!(Successor::new(OsStr::new("/bin/true"), &[word]).is_err());
}

#[test]
fn places_are_bounded_and_used_again() {
    let mut victim = Victim::start();
    let guardian = Guardian::start(1).unwrap();
    let place = guardian.watch(victim.pidfd()).unwrap();
    assert_eq!(guardian.watch(victim.pidfd()), None);
    guardian.forget(place);
    assert!(guardian.watch(victim.pidfd()).is_some());
    drop(guardian);
    assert!(victim.is_alive(), "an orderly end kills nobody");
}

#[test]
fn another_guardian_has_the_list_of_the_one_that_was_killed() {
    let mut watched = Victim::start();
    let pidfd = watched.pidfd();
    let watcher = fork_until_ready(|| {
        let mut guardian = Guardian::start(4).unwrap();
        guardian.watch(pidfd).unwrap();
        assert!(!guardian.has_ended());
        rustix::process::pidfd_send_signal(&guardian, Signal::KILL).unwrap();
        let first = guardian.pid();
        while !guardian.has_ended() {
            std::thread::yield_now();
        }
        guardian.start_again().unwrap();
        assert!(guardian.pid() != first && !guardian.has_ended());
        guardian
    });
    assert!(watched.is_alive());
    kill(watcher);
    assert_eq!(wait_for_signal_of(&mut watched), Some(libc::SIGKILL));
}

#[test]
fn the_end_of_the_guardian_is_seen() {
    let guardian = Guardian::start(1).unwrap();
    rustix::process::pidfd_send_signal(&guardian, Signal::KILL).unwrap();
    let timeout = rustix::event::Timespec { tv_sec: 60, tv_nsec: 0 };
    let mut wanted = [rustix::event::PollFd::new(&guardian, rustix::event::PollFlags::IN)];
    assert_eq!(rustix::event::poll(&mut wanted, Some(&timeout)).unwrap(), 1);
    assert!(guardian.has_ended());
}
