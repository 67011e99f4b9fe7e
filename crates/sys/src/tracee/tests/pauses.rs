//! Programs that are held for a moment.

use std::io;
use std::os::unix::net::UnixStream;

use super::*;

/// All of its threads but `spared`, once they have stopped.
pub(super) fn held(process: u32, spared: u32) -> Pause {
    let pause = Pause::begin(process, spared, &mut |_| true, Instant::now() + PATIENCE).unwrap();
    wait_until("all have stopped", || pause.is_complete());
    pause
}

#[test]
fn a_thread_that_is_held_does_nothing_until_it_goes_on_as_before() {
    let child = Child::fork(count);
    child.wait_for_steps(1);
    for _ in 0..20 {
        let pause = held(child.pid, 0);
        let steps = long_word(&child.memory, STEPS).load(SeqCst);
        std::thread::sleep(Duration::from_millis(5));
        assert_eq!(long_word(&child.memory, STEPS).load(SeqCst), steps);
        drop(pause);
        child.wait_for_steps(1);
    }
    assert_eq!(word(&child.memory, BROKEN).load(SeqCst), 0, "registers are as they were");
    let spared = held(child.pid, child.pid);
    child.wait_for_steps(2);
    drop(spared);
}

#[test]
fn a_thread_that_is_held_makes_a_call_and_stays_held() {
    let child = Child::fork(count);
    child.wait_for_steps(1);
    let calls: [(extern "C" fn(*const Mapping) -> !, bool); 3] = [(mark, true), (linger, false), (mark, true)];
    for (function, is_done) in calls {
        let mut pause = held(child.pid, 0);
        assert_eq!(pause.threads(), [child.pid]);
        word(&child.memory, CALLED_WITH).store(0, SeqCst);
        let target = child.target(function, if is_done { PATIENCE } else { Duration::from_millis(100) });
        let mut is_finished = || word(&child.memory, CALLED_WITH).load(SeqCst) != 0;
        // SAFETY: as for `Child::call_until`.
        let result =
            unsafe { pause.call(child.pid, &target, &mut || true, &mut is_finished, Instant::now() + PATIENCE) };
        assert_eq!(result.is_ok(), is_done, "{result:?}");
        let steps = long_word(&child.memory, STEPS).load(SeqCst);
        std::thread::sleep(Duration::from_millis(5));
        assert!(pause.is_complete() && long_word(&child.memory, STEPS).load(SeqCst) == steps);
        drop(pause);
        child.wait_for_steps(2);
    }
    assert_eq!(word(&child.memory, BROKEN).load(SeqCst), 0, "registers are as they were");
}

#[test]
fn a_pause_leaves_those_alone_that_sleep_and_those_that_are_no_more() {
    let child = Child::fork(|_| {
        // SAFETY: waits for a signal that ends it.
        unsafe { libc::pause() };
    });
    child.wait_for_call(libc::SYS_pause);
    let pause = held(child.pid, 0);
    assert_eq!(tracer(child.pid, child.pid), 0);
    assert!(child.is_in_call(libc::SYS_pause));
    drop(pause);
    let pid = child.pid;
    drop(child);
    assert!(matches!(Pause::begin(pid, 0, &mut |_| true, Instant::now() + PATIENCE), Err(TraceError::Gone)));
}

#[test]
fn a_thread_for_which_no_time_was_left_is_held_later() {
    let child = Child::fork(count);
    child.wait_for_steps(1);
    let mut pause = Pause::begin(child.pid, 0, &mut |_| true, Instant::now()).unwrap();
    assert_eq!(tracer(child.pid, child.pid), 0);
    pause.follow(0, &mut |_| true, Instant::now() + PATIENCE).unwrap();
    wait_until("it has stopped", || pause.is_complete());
    assert_eq!(pause.threads(), [child.pid]);
    drop(pause);
    child.wait_for_steps(1);
}

#[test]
fn a_call_that_a_pause_meets_on_its_way_into_a_wait_does_not_fail() {
    let (reader, _writer) = UnixStream::pair().unwrap();
    reader.set_read_timeout(Some(Duration::from_micros(200))).unwrap();
    let prepare = |memory: &Mapping| word(memory, DESCRIPTOR).store(reader.as_raw_fd().unsigned_abs(), SeqCst);
    let child = Child::fork_with(prepare, |memory| {
        let descriptor = word(memory, DESCRIPTOR).load(SeqCst).cast_signed();
        let mut byte = 0_u8;
        // SAFETY: the kernel writes at most one byte of ours.
        let result = unsafe { libc::recv(descriptor, (&raw mut byte).cast(), 1, 0) };
        if result != -1 || io::Error::last_os_error().kind() != io::ErrorKind::WouldBlock {
            word(memory, BROKEN).fetch_add(1, SeqCst);
        }
        long_word(memory, STEPS).fetch_add(1, SeqCst);
    });
    child.wait_for_steps(1);
    let mut pauses = 0;
    for _ in 0..5_000 {
        let pause = held(child.pid, 0);
        pauses += usize::from(tracer(child.pid, child.pid) != 0);
        drop(pause);
        wait_until("it goes on", || !give_back_rest());
    }
    assert!(pauses > 0, "it always slept");
    assert_eq!(word(&child.memory, BROKEN).load(SeqCst), 0, "times of {pauses}");
}
