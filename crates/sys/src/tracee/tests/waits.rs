//! Threads that wait in system calls: they are borrowed, and the calls end as they do without us.

use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use super::*;

#[test]
fn a_thread_in_a_call_that_would_fail_is_left_alone() {
    let child = Child::fork(|memory| {
        let mut signals = std::mem::MaybeUninit::uninit();
        // SAFETY: the set is made before it is used, and nothing else is touched.
        let result = unsafe {
            libc::sigemptyset(signals.as_mut_ptr());
            libc::sigaddset(signals.as_mut_ptr(), libc::SIGUSR2);
            long_word(memory, STEPS).fetch_add(1, SeqCst);
            libc::sigwaitinfo(signals.as_ptr(), std::ptr::null_mut())
        };
        note_result(memory, result.into());
    });
    child.wait_until(1);
    child.wait_for_call(libc::SYS_rt_sigtimedwait);
    let refused = child.call(mark, Instant::now() + PATIENCE);
    assert!(matches!(refused, Err(TraceError::Unsuitable(_))), "{refused:?}");
    assert_eq!(long_word(&child.memory, STEPS).load(SeqCst), 1, "it still waits");
}

/// The end of what a child does: its result, for `wait_for_result`.
fn note_result(memory: &Mapping, result: i64) {
    // SAFETY: this thread's own error number.
    let error = unsafe { *libc::__errno_location() };
    long_word(memory, RESULT).store(if result < 0 { -i64::from(error) } else { result }.cast_unsigned(), SeqCst);
    long_word(memory, STEPS).fetch_add(1, SeqCst);
    loop {
        // SAFETY: no memory is touched.
        unsafe { libc::pause() };
    }
}

/// A descriptor that a child waits at, in its memory.
fn descriptor(memory: &Mapping) -> i32 {
    word(memory, DESCRIPTOR).load(SeqCst).cast_signed()
}

fn poll_entry(memory: &Mapping) -> libc::pollfd {
    libc::pollfd { fd: descriptor(memory), events: libc::POLLIN, revents: 0 }
}

fn poll(memory: &Mapping) -> i64 {
    let mut entry = poll_entry(memory);
    // SAFETY: the kernel reads and writes one entry.
    unsafe { libc::poll(&raw mut entry, 1, NEVER).into() }
}

const NEVER: i32 = -1;

/// A call that waits, as a child makes it; what it returns when it is interrupted for a moment must be what it
/// returns otherwise.
type Wait = fn(&Mapping) -> i64;

/// A child of the child, that ends when something comes.
fn fork_that_waits(memory: &Mapping) -> i32 {
    // SAFETY: the new process only waits and ends.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            poll(memory);
            libc::_exit(0);
        }
        child
    }
}

/// Waits that end when something comes through a pipe, or when the word they wait at changes.
const ENDED_BY_US: [(i64, Wait); 10] = [
    // SAFETY of all: each call reads and writes what is its caller's, and nothing else.
    (libc::SYS_futex, |memory| {
        let address = std::ptr::from_ref(word(memory, AWAITED));
        // SAFETY: see above.
        unsafe { libc::syscall(libc::SYS_futex, address, libc::FUTEX_WAIT, 0, 0, 0, 0) }
    }),
    (libc::SYS_poll, poll),
    (libc::SYS_ppoll, |memory| {
        let (mut entry, mut mask) = (poll_entry(memory), std::mem::MaybeUninit::uninit());
        // SAFETY: see above.
        unsafe {
            libc::sigemptyset(mask.as_mut_ptr());
            libc::ppoll(&raw mut entry, 1, std::ptr::null(), mask.as_ptr()).into()
        }
    }),
    (libc::SYS_pselect6, |memory| {
        let (descriptor, mut wanted) = (descriptor(memory), std::mem::MaybeUninit::uninit());
        let nothing = std::ptr::null_mut();
        // SAFETY: see above; the number of a descriptor of a test is small.
        unsafe {
            libc::FD_ZERO(wanted.as_mut_ptr());
            libc::FD_SET(descriptor, wanted.as_mut_ptr());
            libc::pselect(descriptor + 1, wanted.as_mut_ptr(), nothing, nothing, std::ptr::null(), std::ptr::null())
                .into()
        }
    }),
    (libc::SYS_read, |memory| {
        let mut byte = 0_u8;
        // SAFETY: see above.
        unsafe { libc::read(descriptor(memory), (&raw mut byte).cast(), 1) as i64 }
    }),
    (libc::SYS_recvfrom, |memory| {
        let mut byte = 0_u8;
        // SAFETY: see above.
        unsafe { libc::recv(descriptor(memory), (&raw mut byte).cast(), 1, 0) as i64 }
    }),
    (libc::SYS_epoll_wait, |memory| epoll(memory, NEVER)),
    (libc::SYS_epoll_pwait, epoll_without_mask),
    (libc::SYS_wait4, |memory| {
        let child = fork_that_waits(memory);
        // SAFETY: no status is asked for.
        i64::from(unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) } == child)
    }),
    (libc::SYS_waitid, |memory| {
        let child = fork_that_waits(memory).unsigned_abs();
        // SAFETY: the kernel writes one structure, for which zeroes are a value.
        unsafe {
            let mut end = std::mem::zeroed();
            1 + i64::from(libc::waitid(libc::P_PID, child, &raw mut end, libc::WEXITED))
        }
    }),
];

fn epoll_set(memory: &Mapping) -> i32 {
    let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
    // SAFETY: the kernel reads one event.
    unsafe {
        let set = libc::epoll_create1(0);
        libc::epoll_ctl(set, libc::EPOLL_CTL_ADD, descriptor(memory), &raw mut event);
        set
    }
}

fn epoll(memory: &Mapping, timeout_ms: i32) -> i64 {
    let (set, mut event) = (epoll_set(memory), libc::epoll_event { events: 0, u64: 0 });
    // SAFETY: the kernel writes one event.
    unsafe { libc::epoll_wait(set, &raw mut event, 1, timeout_ms).into() }
}

/// Waits in it with no signal blocked.
fn epoll_without_mask(memory: &Mapping) -> i64 {
    let (set, mut event) = (epoll_set(memory), libc::epoll_event { events: 0, u64: 0 });
    let mut mask = std::mem::MaybeUninit::uninit();
    // SAFETY: the kernel writes one event and reads one mask.
    unsafe {
        libc::sigemptyset(mask.as_mut_ptr());
        libc::epoll_pwait(set, &raw mut event, 1, NEVER, mask.as_ptr()).into()
    }
}

/// Blocks these signals and no others.
fn mask_signals(signals: &[i32]) {
    let mut mask = std::mem::MaybeUninit::uninit();
    // SAFETY: the mask is made before it is used.
    unsafe {
        libc::sigemptyset(mask.as_mut_ptr());
        for signal in signals {
            libc::sigaddset(mask.as_mut_ptr(), *signal);
        }
        libc::sigprocmask(libc::SIG_SETMASK, mask.as_ptr(), std::ptr::null_mut());
    }
}

static SECOND: libc::timespec = libc::timespec { tv_sec: 1, tv_nsec: 0 };

/// Waits that end after a second, with this result.
const ENDED_BY_TIME: [(i64, i64, Wait); 5] = [
    // SAFETY: see above.
    (libc::SYS_clock_nanosleep, 0, |_| unsafe { libc::nanosleep(&raw const SECOND, std::ptr::null_mut()) }.into()),
    // SAFETY: see above.
    (libc::SYS_nanosleep, 0, |_| unsafe { libc::syscall(libc::SYS_nanosleep, &raw const SECOND, 0) }),
    // SAFETY: see above.
    (libc::SYS_poll, 0, |_| unsafe { libc::poll(std::ptr::null_mut(), 0, 1000) }.into()),
    (libc::SYS_futex, -(libc::ETIMEDOUT as i64), |memory| {
        let address = std::ptr::from_ref(word(memory, AWAITED));
        // SAFETY: see above.
        unsafe { libc::syscall(libc::SYS_futex, address, libc::FUTEX_WAIT, 0, &raw const SECOND, 0, 0) }
    }),
    (libc::SYS_epoll_wait, 0, |memory| epoll(memory, 1000)),
];

/// A child that makes such a call, and the way to end it.
fn waiting(number: i64, wait: Wait) -> (Child, File) {
    let (reader, writer): (OwnedFd, OwnedFd) = if number == libc::SYS_recvfrom {
        UnixStream::pair().map(|(reader, writer)| (reader.into(), writer.into())).unwrap()
    } else {
        io::pipe().map(|(reader, writer)| (reader.into(), writer.into())).unwrap()
    };
    let writer = File::from(writer);
    let child = Child::fork_with(
        |memory| word(memory, DESCRIPTOR).store(reader.as_raw_fd().unsigned_abs(), SeqCst),
        move |memory| {
            long_word(memory, STEPS).fetch_add(1, SeqCst);
            note_result(memory, wait(memory));
        },
    );
    child.wait_until(1);
    (child, writer)
}

#[test]
fn a_thread_that_waits_makes_the_call_and_waits_on() {
    for (number, wait) in ENDED_BY_US {
        let (child, mut writer) = waiting(number, wait);
        for _ in 0..3 {
            word(&child.memory, CALLED_WITH).store(0, SeqCst);
            child.once_it_waits(number, || child.call(mark, Instant::now() + PATIENCE)).unwrap();
            child.wait_for_call(number);
            assert_eq!(long_word(&child.memory, STEPS).load(SeqCst), 1, "call {number}: it waits on");
        }
        word(&child.memory, AWAITED).store(1, SeqCst);
        wake(word(&child.memory, AWAITED));
        writer.write_all(b"x").unwrap();
        let expected: &[i64] = match number {
            // Woken, or it found the word changed when it looked anew.
            libc::SYS_futex => &[0, -i64::from(libc::EAGAIN)],
            _ => &[1],
        };
        let result = child.wait_for_result();
        assert!(expected.contains(&result), "call {number}: {result}");
    }
}

#[test]
fn a_thread_that_waits_for_a_time_waits_for_no_less() {
    for (number, expected, wait) in ENDED_BY_TIME {
        // On a busy machine the second may be over first.
        let calls = (0..20).find_map(|_| {
            let (start, (child, _writer)) = (Instant::now(), waiting(number, wait));
            let mut calls = 0;
            while long_word(&child.memory, STEPS).load(SeqCst) == 1 && calls < 3 {
                if !child.is_in_call(number) {
                    std::thread::yield_now();
                    continue;
                }
                word(&child.memory, CALLED_WITH).store(0, SeqCst);
                calls += usize::from(child.call(mark, Instant::now() + PATIENCE).is_ok());
            }
            assert_eq!(child.wait_for_result(), expected, "call {number}");
            assert!(start.elapsed() >= Duration::from_secs(1), "call {number}: {:?}", start.elapsed());
            (calls > 0).then_some(calls)
        });
        assert!(calls.is_some(), "call {number}: no thread was borrowed");
    }
}

#[test]
fn a_handler_that_runs_meanwhile_interrupts_what_its_thread_waits_in() {
    let waits: [(i64, Wait); 4] = [
        (libc::SYS_epoll_wait, |memory| epoll(memory, NEVER)),
        (libc::SYS_epoll_pwait, |memory| {
            // Blocked, but in the call.
            mask_signals(&[libc::SIGUSR1]);
            epoll_without_mask(memory)
        }),
        // SAFETY: no memory is touched.
        (libc::SYS_pause, |_| unsafe { libc::pause() }.into()),
        (libc::SYS_poll, poll),
    ];
    for (number, wait) in waits {
        let (reader, _writer) = io::pipe().unwrap();
        let prepare = |memory: &Mapping| word(memory, DESCRIPTOR).store(reader.as_raw_fd().unsigned_abs(), SeqCst);
        let child = Child::fork_with(prepare, move |memory| {
            SIGNAL_MEMORY.store(std::ptr::from_ref(memory) as usize, SeqCst);
            // SAFETY: installs a handler that only changes the shared memory.
            unsafe { libc::signal(libc::SIGUSR1, note_signal as *const () as libc::sighandler_t) };
            long_word(memory, STEPS).fetch_add(1, SeqCst);
            note_result(memory, wait(memory));
        });
        child.once_it_waits(number, || child.call(mark, Instant::now() + PATIENCE)).unwrap();
        child.wait_for_call(number);
        assert_eq!(long_word(&child.memory, STEPS).load(SeqCst), 1, "call {number}: nothing was handled yet");
        word(&child.memory, CALLED_WITH).store(0, SeqCst);
        let signal_and_look = || {
            let is_called = word(&child.memory, CALLED_WITH).load(SeqCst) != 0;
            if is_called {
                // SAFETY: a signal to a child of this test.
                unsafe { libc::kill(child.pid.cast_signed(), libc::SIGUSR1) };
            }
            is_called
        };
        child.once_it_waits(number, || child.call_until(mark, signal_and_look, Instant::now() + PATIENCE)).unwrap();
        assert_eq!(child.wait_for_result(), -i64::from(libc::EINTR), "call {number}");
        assert_eq!(word(&child.memory, SIGNALS).load(SeqCst), 1, "call {number}");
    }
}

#[test]
fn a_thread_that_blocks_signals_while_it_waits_is_left_alone() {
    let (child, _writer) = waiting(libc::SYS_ppoll, |memory| {
        let (mut entry, mut mask) = (poll_entry(memory), std::mem::MaybeUninit::uninit());
        // SAFETY: the kernel reads and writes one entry, and reads one mask.
        unsafe {
            libc::sigfillset(mask.as_mut_ptr());
            libc::ppoll(&raw mut entry, 1, std::ptr::null(), mask.as_ptr()).into()
        }
    });
    child.wait_for_call(libc::SYS_ppoll);
    let refused = child.call(mark, Instant::now() + PATIENCE);
    assert!(matches!(refused, Err(TraceError::Unsuitable(_))), "{refused:?}");
}

/// Calls a function in a child and sends signals to it when the function was called, before the call is over.
fn call_among_signals(child: &Child, signals: &[i32]) {
    let mut looks = 0;
    let mut signal_and_look = || {
        let is_called = word(&child.memory, CALLED_WITH).load(SeqCst) != 0;
        if is_called && looks == 0 {
            for signal in signals {
                // SAFETY: a signal to a child of this test.
                unsafe { libc::kill(child.pid.cast_signed(), *signal) };
            }
        }
        looks += usize::from(is_called);
        looks > 100
    };
    // A thread on its way out of a fork or of a stop is in a system call for a moment.
    let deadline = Instant::now() + PATIENCE;
    let mut result = child.call_until(mark, &mut signal_and_look, deadline);
    while matches!(result, Err(TraceError::Unsuitable(_))) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(1));
        result = child.call_until(mark, &mut signal_and_look, deadline);
    }
    result.unwrap();
}

#[test]
fn a_process_that_is_stopped_meanwhile_stops_and_one_that_is_to_go_on_does() {
    for behaviour in [count as fn(&Mapping), |memory| note_result(memory, poll(memory))] {
        let (reader, _writer) = io::pipe().unwrap();
        let prepare = |memory: &Mapping| word(memory, DESCRIPTOR).store(reader.as_raw_fd().unsigned_abs(), SeqCst);
        let child = Child::fork_with(prepare, behaviour);
        let state = || ProcessStat::of_process(child.pid).unwrap().state().unwrap();
        let deadline = Instant::now() + PATIENCE;
        let wait_for = |states: &[char]| {
            while !states.contains(&state()) {
                assert!(Instant::now() < deadline, "it is {} and not {states:?}", state());
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        wait_for(&['R', 'S']);
        call_among_signals(&child, &[libc::SIGSTOP]);
        wait_for(&['T']);
        // SAFETY: a signal to a child of this test.
        unsafe { libc::kill(child.pid.cast_signed(), libc::SIGCONT) };
        wait_for(&['R', 'S']);
        word(&child.memory, CALLED_WITH).store(0, SeqCst);
        call_among_signals(&child, &[libc::SIGSTOP, libc::SIGCONT]);
        wait_for(&['R', 'S']);
        std::thread::sleep(Duration::from_millis(20));
        assert_ne!(state(), 'T', "the stop was undone");
    }
}

#[test]
fn a_thread_that_is_stopped_too_late_waits_on() {
    let (child, _writer) = waiting(libc::SYS_epoll_wait, |memory| epoll(memory, NEVER));
    for _ in 0..20 {
        let is_over = || Instant::now().checked_sub(PATIENCE).unwrap_or_else(Instant::now);
        let result = child.once_it_waits(libc::SYS_epoll_wait, || child.call(mark, is_over()));
        assert!(matches!(result, Ok(()) | Err(TraceError::NotStopped | TraceError::TimedOut)), "{result:?}");
        child.wait_for_call(libc::SYS_epoll_wait);
        assert_eq!(long_word(&child.memory, STEPS).load(SeqCst), 1, "it waits on");
    }
}
