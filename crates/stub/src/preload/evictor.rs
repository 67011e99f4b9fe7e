//! The evictor: a thread with a descriptor table of its own that carries out batches.
//!
//! It blocks all signals, has no thread-local storage, its stack is in this library, and it touches only its seat,
//! its staging area and this library, none of which is ever paged: so it never waits for a page of its own program.

use core::cell::UnsafeCell;
use core::hint;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, AtomicUsize, fence};

use crate::batch::{self, Staging};
use crate::calls::{self, Descriptor, INVALID};
use crate::protocol::{
    BATCHES, Batch, CALL_STACK_BYTES, EVICTOR_NAME, EVICTOR_STACK_BYTES, EVICTOR_STACK_END, EvictorCell, EvictorStart,
    EvictorState, Hello, HelloKind, PAGE_BYTES, Phase, RunHead, SEAT_BYTES, SeatHead, UNKNOWN_WORD, Verdict, Welcome,
    asked, batch_offset,
};
use crate::socket;
use crate::start::store_and_wake;

/// `PROT_READ | PROT_WRITE`, `MAP_SHARED`, `MADV_DONTFORK`.
const READ_WRITE: usize = 3;
const SHARED: usize = 1;
const NOT_IN_CHILDREN: u32 = 10;

/// What this library has of its own. It stands in the file's data and not behind that, because the kernel would make
/// anonymous memory one mapping with memory of the program beside it.
#[repr(C, align(4096))]
struct Own {
    cell: EvictorCell,
    /// Where the head is mapped; the same in forked children, which inherit both.
    head: AtomicUsize,
    /// What the kernel writes of the evictor's thread; nothing reads it.
    thread_words: [AtomicU32; 2],
    /// See [`EvictorStart::has_own_directory`].
    has_own_directory: AtomicU32,
    rest: [u8; PAGE_BYTES - size_of::<EvictorCell>().next_multiple_of(8) - 20],
    call_stack: UnsafeCell<[u8; CALL_STACK_BYTES]>,
    evictor_stack: UnsafeCell<[u8; EVICTOR_STACK_BYTES]>,
}

// SAFETY: the first two are atomics, and the stacks are used by the kernel's threads, never through a reference.
unsafe impl Sync for Own {}

#[unsafe(link_section = ".data.spillway")]
static OWN: Own = Own {
    cell: EvictorCell {
        attempt: AtomicU32::new(0),
        call_returned: AtomicU32::new(0),
        failure: AtomicI32::new(0),
        thread: AtomicU32::new(0),
        offered: AtomicU32::new(0),
        answered: AtomicU32::new(0),
        cleared_word: AtomicU64::new(0),
    },
    head: AtomicUsize::new(0),
    thread_words: [AtomicU32::new(0), AtomicU32::new(0)],
    has_own_directory: AtomicU32::new(0),
    rest: [0; _],
    call_stack: UnsafeCell::new([0; _]),
    evictor_stack: UnsafeCell::new([0; _]),
};

const _: () = assert!(size_of::<Own>() == EVICTOR_STACK_END);

/// Where the cell is.
pub(crate) fn cell_address() -> u64 {
    &raw const OWN.cell as u64
}

/// Says where the head is mapped, for evictors that start late.
pub(crate) fn keep_head(head: usize) {
    OWN.head.store(head, Release);
}

/// What `pthread_create` asks for, and nothing else (`CLONE_VM`, `CLONE_FS`, `CLONE_FILES`, `CLONE_SIGHAND`,
/// `CLONE_THREAD`, `CLONE_SYSVSEM`, `CLONE_SETTLS`, `CLONE_PARENT_SETTID`, `CLONE_CHILD_CLEARTID`). Filters of programs
/// that may not start others let no other `clone` pass, as QEMU's (`-sandbox spawn=deny`, libvirt's choice).
const THREAD_FLAGS: usize = 0x100 | 0x200 | 0x400 | 0x800 | 0x1_0000 | 0x4_0000 | 0x8_0000 | 0x10_0000 | 0x20_0000;

/// `CLONE_FS`, without which the evictor has a directory of its own.
const SHARES_DIRECTORY: usize = 0x200;

/// A seat, which is mapped until the program ends.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    pub(crate) seat: &'static SeatHead,
}

impl Place {
    /// Maps the seat that came from the pager; forks do not inherit it.
    fn map(file: &Descriptor) -> Result<Self, i32> {
        let address = calls::map_apart(0, SEAT_BYTES, READ_WRITE, SHARED, file.0)?;
        // SAFETY: the mapping is new and this library's.
        unsafe { calls::advise(address, SEAT_BYTES, NOT_IN_CHILDREN) }?;
        // SAFETY: the seat begins with its head, all fields of which are atomics, and it is never unmapped.
        let seat = unsafe { &*(address as *const SeatHead) };
        seat.mapped.store(address as u64, Release);
        let (start, end) = calls::move_window();
        seat.move_start.store(start, Relaxed);
        seat.move_end.store(end, Relaxed);
        Ok(Self { seat })
    }

    /// Where byte `offset` of the seat is.
    pub(crate) fn at(self, offset: usize) -> usize {
        &raw const *self.seat as usize + offset
    }

    fn batch(self, index: usize) -> &'static Batch {
        // SAFETY: a seat holds its batches behind its head; all fields in use are atomics.
        unsafe { &*(self.at(batch_offset(index)) as *const Batch) }
    }

    fn fail(self, error: i32) -> ! {
        self.seat.failure.store(error, Relaxed);
        store_and_wake(&self.seat.state, EvictorState::Failed as u32);
        calls::end_thread(0)
    }
}

/// Runs on a thread of the program that was stopped by ptrace, on the call stack of this library: starts the evictor,
/// or answers a [`question`](crate::protocol::question), says that this is done, and stays in a loop of two instructions until the thread's registers are put back. No
/// breakpoint is needed, whose signal the program could have been told of.
pub(crate) extern "C" fn start_on_borrowed_thread(argument: usize) -> ! {
    match asked(argument as u64) {
        Some(question) => tell_cleared_word(question),
        None => start(EvictorStart::from_word(argument as u64)),
    }
    OWN.cell.call_returned.store(1, Release);
    loop {
        hint::spin_loop();
    }
}

/// Says where the kernel clears a word when this thread ends (`CLONE_CHILD_CLEARTID`).
fn tell_cleared_word(question: u32) {
    let cell = &OWN.cell;
    cell.call_returned.store(0, Relaxed);
    let word = calls::cleared_word().map_or(UNKNOWN_WORD, |address| address as u64);
    cell.cleared_word.store(word, Relaxed);
    cell.answered.store(question, Release);
}

/// Starts an evictor; whether that worked stands in the cell until there is a seat.
pub(crate) fn start(how: EvictorStart) {
    let cell = &OWN.cell;
    cell.call_returned.store(0, Relaxed);
    cell.failure.store(0, Relaxed);
    cell.offered.store(0, Relaxed);
    cell.attempt.store(how.attempt, Release);
    OWN.has_own_directory.store(how.has_own_directory.into(), Relaxed);
    let flags = if how.has_own_directory { THREAD_FLAGS & !SHARES_DIRECTORY } else { THREAD_FLAGS };
    let before = calls::block_signals(u64::MAX);
    let stack_end = &raw const OWN as usize + EVICTOR_STACK_END;
    // SAFETY: the flags make a thread, and the stack is the evictor's, of which a program has one.
    let result = unsafe { calls::clone_thread(flags, stack_end, run_thread, &raw const OWN.thread_words) };
    calls::block_signals(before);
    if result < 0 {
        cell.failure.store(result as i32, Release);
    }
}

extern "C" fn run_thread() -> ! {
    if let Err(error) = calls::detach_thread(EVICTOR_NAME) {
        OWN.cell.failure.store(error, Release);
        calls::end_thread(0)
    }
    if OWN.has_own_directory.load(Relaxed) != 0 {
        // The program's may be unmounted.
        calls::leave_directory();
    }
    OWN.cell.thread.store(calls::thread(), Relaxed);
    let (place, userfaultfd) = match meet_pager() {
        Ok(met) => met,
        Err(error) => {
            OWN.cell.failure.store(error, Release);
            calls::end_thread(0)
        }
    };
    place.seat.thread.store(calls::thread(), Relaxed);
    let staging = match Staging::new(userfaultfd, place.seat) {
        Ok(staging) => staging,
        Err(error) => place.fail(error),
    };
    store_and_wake(&place.seat.state, EvictorState::Running as u32);
    match serve(place, &staging) {
        Ok(status) => {
            staging.give_back();
            store_and_wake(&place.seat.state, EvictorState::Ended as u32);
            calls::end_thread(status)
        }
        Err(error) => place.fail(error),
    }
}

/// Gets the userfaultfd and a seat from the pager.
fn meet_pager() -> Result<(Place, Userfaultfd), i32> {
    // SAFETY: the head is mapped before an evictor can start, and is never unmapped.
    let head = unsafe { &*(OWN.head.load(Acquire) as *const RunHead) };
    let address = head.address.get(..head.address_length as usize).ok_or(INVALID)?;
    let socket = socket::connect(address).or_else(|_| offer())?;
    let hello = Hello {
        kind: HelloKind::Evictor,
        process: calls::process(),
        attempt: OWN.cell.attempt.load(Relaxed),
        status: 0,
        token: 0,
        start_evictor: 0,
        library_start: 0,
        library_end: 0,
        cell: 0,
        head: 0,
    };
    socket::send(&socket, &hello.encode(), None)?;
    let userfaultfd = receive_descriptor(&socket)?;
    let seat = receive_descriptor(&socket)?;
    Ok((Place::map(&seat)?, userfaultfd))
}

/// A socket whose other end the pager takes: the program has another root directory or another user by now, and
/// cannot connect.
fn offer() -> Result<Descriptor, i32> {
    let [own, other] = socket::pair()?;
    OWN.cell.offered.store(other.0 as u32 + 1, Release);
    // It stays open here until this thread ends; the pager's is another.
    core::mem::forget(other);
    Ok(own)
}

fn receive_descriptor(socket: &Descriptor) -> Result<Descriptor, i32> {
    let (words, passed) = socket::receive(socket)?;
    match (Welcome::decode(&words), passed) {
        (Ok(Welcome { verdict: Verdict::Page, .. }), Some(passed)) => Ok(passed),
        _ => Err(calls::NO_ACCESS),
    }
}

/// Carries out batches in turn until one says to end, and with what status.
fn serve(place: Place, staging: &Staging) -> Result<u8, i32> {
    let mut next = 0;
    loop {
        let batch = place.batch(next);
        wait_for(place, &batch.phase);
        place.seat.evictor_cpu.store(calls::cpu().map_or(0, |cpu| cpu + 1), Relaxed);
        let exit = batch::run(place, next, batch, staging)?;
        set_phase(place, &batch.phase, Phase::Done);
        if let Some(status) = exit {
            return Ok(status);
        }
        next = (next + 1) % BATCHES;
    }
}

/// Waits until the batch with this phase is posted, and takes it: looks a while, then sleeps. The pager takes one
/// back that is not taken here.
fn wait_for(place: Place, phase: &AtomicU32) {
    let claim = || phase.compare_exchange(Phase::Posted as u32, Phase::Claimed as u32, Acquire, Relaxed);
    let is_posted = || phase.load(Relaxed) == Phase::Posted as u32 && claim().is_ok();
    for _ in 0..place.seat.spin_rounds.load(Relaxed) {
        if is_posted() {
            return;
        }
        hint::spin_loop();
    }
    place.seat.evictor_sleeps.store(1, Relaxed);
    // Either the pager sees that we sleep, or we see what it posted.
    fence(SeqCst);
    while !is_posted() {
        let seen = phase.load(Relaxed);
        if seen != Phase::Posted as u32 {
            calls::sleep_on(phase, seen);
        }
    }
    place.seat.evictor_sleeps.store(0, Relaxed);
}

/// Says how far a batch is, and wakes the pager if it sleeps for that.
pub(crate) fn set_phase(place: Place, word: &AtomicU32, phase: Phase) {
    word.store(phase as u32, Release);
    fence(SeqCst);
    if (1..=phase as u32).contains(&place.seat.pager_awaits.load(Relaxed)) {
        calls::wake(word);
    }
}

/// The userfaultfd that an evictor got; it is in no other table of this program.
pub(crate) type Userfaultfd = Descriptor;
