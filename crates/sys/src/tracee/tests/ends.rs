//! Ends of threads, and new programs, while they are held.

use std::ffi::CString;
use std::fs;

use super::pauses::held;
use super::*;
use crate::tracee::ends::while_reaping;

/// Noted by a child for the test.
fn note_thread(memory: &Mapping, index: usize) {
    word(memory, THREADS + 4 * index).store(rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs(), SeqCst);
}

/// A thread that a child noted.
fn noted(child: &Child, index: usize) -> stop::Thread {
    let noted = word(&child.memory, THREADS + 4 * index);
    wait_until("it is noted", || noted.load(SeqCst) != 0);
    stop::Thread { process: child.pid, thread: noted.load(SeqCst) }
}

/// For a child: another thread, that counts.
fn spawn_counting_callers(memory: &Mapping, index: usize) {
    let memory = std::ptr::from_ref(memory) as usize;
    std::thread::spawn(move || {
        // SAFETY: the child has it as long as it lives.
        let memory = unsafe { &*(memory as *const Mapping) };
        note_thread(memory, index);
        loop {
            count(memory);
        }
    });
}

/// A child of three threads: its first and another count, the last becomes another program, that sleeps, when it is
/// told to.
fn child_that_becomes_another_program() -> Child {
    let child = Child::fork(|memory| {
        spawn_counting_callers(memory, 1);
        let address = std::ptr::from_ref(memory) as usize;
        std::thread::spawn(move || {
            // SAFETY: the child has it as long as it lives.
            let memory = unsafe { &*(address as *const Mapping) };
            let [program, name, argument] = ["/bin/sleep", "sleep", "600"].map(|text| CString::new(text).unwrap());
            let arguments = [name.as_ptr(), argument.as_ptr(), std::ptr::null()];
            note_thread(memory, 2);
            while word(memory, COMMAND).load(SeqCst) == 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
            // SAFETY: the strings live, the list ends with a null.
            unsafe { libc::execv(program.as_ptr(), arguments.as_ptr()) };
        });
        note_thread(memory, 0);
        loop {
            count(memory);
        }
    });
    for index in 0..3 {
        noted(&child, index);
    }
    child
}

fn become_another_program(child: &Child) {
    word(&child.memory, COMMAND).store(1, SeqCst);
}

fn has_become_another_program(child: &Child) -> bool {
    fs::read_to_string(format!("/proc/{}/comm", child.pid)).unwrap() == "sleep\n"
}

/// It is what it became, and no thread holds it.
fn assert_sleeps(child: &Child) {
    wait_until("it sleeps", || child.is_in_call(libc::SYS_clock_nanosleep));
    assert!(has_become_another_program(child));
    assert_eq!(tracer(child.pid, child.pid), 0);
}

/// Kills the child unless it is dropped in time, so that no test hangs.
struct Watchdog(Option<std::sync::mpsc::Sender<()>>, Option<std::thread::JoinHandle<()>>);

impl Watchdog {
    fn of(child: &Child) -> Self {
        let (sender, receiver) = std::sync::mpsc::channel::<()>();
        let pid = child.pid.cast_signed();
        let thread = std::thread::spawn(move || {
            if receiver.recv_timeout(PATIENCE) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                // SAFETY: a signal to a child of this test, which still waits for it.
                unsafe { libc::kill(pid, libc::SIGKILL) };
            }
        });
        Self(Some(sender), Some(thread))
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        drop(self.0.take());
        self.1.take().map(std::thread::JoinHandle::join);
    }
}

#[test]
fn the_end_of_a_program_that_is_held_is_told_to_its_parent() {
    for _ in 0..10 {
        let parent = Child::fork(|memory| {
            // SAFETY: the child's child counts until it is killed, also by its parent's end.
            unsafe {
                let child = libc::fork();
                if child == 0 {
                    libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                    spawn_counting_callers(memory, 1);
                    note_thread(memory, 0);
                    loop {
                        count(memory);
                    }
                }
                let mut status = 0;
                let waited = libc::waitpid(child, &raw mut status, 0);
                word(memory, AWAITED).store(u32::from(waited == child && libc::WIFSIGNALED(status)), SeqCst);
                loop {
                    libc::pause();
                }
            }
        });
        let process = noted(&parent, 0).thread;
        noted(&parent, 1);
        let pause = held(process, 0);
        // SAFETY: a signal to a process of this test, whose parent waits for it.
        unsafe { libc::kill(process.cast_signed(), libc::SIGKILL) };
        drop(pause);
        wait_until("all were given back", || !give_back_rest());
        wait_until("its parent is told", || word(&parent.memory, AWAITED).load(SeqCst) == 1);
    }
}

#[test]
fn a_number_that_another_thread_has_taken_is_given_up() {
    let child = child_that_becomes_another_program();
    let pause = held(child.pid, noted(&child, 2).thread);
    become_another_program(&child);
    // Its ends are noticed by those that are told of them alone.
    let counting = noted(&child, 1);
    wait_until("it ends", || counting.is_dead());
    drop(pause);
    wait_until("all were given back", || !give_back_rest());
    wait_until("it begins", || has_become_another_program(&child));
    assert_sleeps(&child);
}

#[test]
fn a_thread_that_becomes_another_program_while_it_is_held_goes_on_there() {
    for _ in 0..10 {
        let child = child_that_becomes_another_program();
        let [counting, other] = [1, 2].map(|index| noted(&child, index));
        let [mut counting, mut other] = [counting, other].map(|thread| Borrowed::seize(thread).unwrap());
        become_another_program(&child);
        wait_until("it waits for the end of the others", || {
            counting.thread().is_dead()
                && ProcessStat::of_thread(child.pid, other.thread().thread).unwrap().state() == Some('D')
        });
        other.ask_to_stop().unwrap();
        assert!(!other.give_back(Duration::ZERO), "it is not there yet");
        assert!(counting.give_back(Duration::ZERO));
        let deadline = Instant::now() + PATIENCE;
        while !other.give_back(Duration::ZERO) {
            assert!(Instant::now() < deadline, "it does not stop");
        }
        assert_sleeps(&child);
    }
}

#[test]
fn a_tracer_of_a_program_that_waits_for_the_ends_of_others_does_not_wait_for_ever() {
    let child = child_that_becomes_another_program();
    let [counting, other] = [1, 2].map(|index| noted(&child, index));
    let mut held = Borrowed::seize(counting).unwrap();
    become_another_program(&child);
    wait_until("it waits for the end of the others", || {
        counting.is_dead() && ProcessStat::of_thread(child.pid, other.thread).unwrap().state() == Some('D')
    });
    let watchdog = Watchdog::of(&child);
    let first = stop::Thread { thread: child.pid, ..counting };
    let seized = while_reaping(&Mutex::new(vec![counting]), || Borrowed::seize(first)).unwrap();
    drop(watchdog);
    assert!(held.give_back(Duration::ZERO));
    if let Ok(mut seized) = seized {
        assert!(seized.give_back(PATIENCE));
    }
    assert_sleeps(&child);
}
