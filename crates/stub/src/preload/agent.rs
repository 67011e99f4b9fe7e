//! The agent: a thread with a descriptor table of its own that carries out batches.
//!
//! It blocks all signals, has no thread-local storage, its stack is in the arena, and it touches only the arena, its staging
//! area and this library's code, none of which is ever paged: so it never waits for a page of its own program.

use core::hint;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use core::sync::atomic::{AtomicU32, fence};

use crate::batch::{self, Staging};
use crate::calls::{self, Descriptor, INVALID};
use crate::protocol::{
    AGENT_NAME, AGENT_STACK_END, AgentState, ArenaHead, BATCHES, Batch, Hello, HelloKind, Phase, SeatHead, Verdict,
    Welcome, batch_offset, seat_offset,
};
use crate::socket;
use crate::start::store_and_wake;

/// `CLONE_VM | CLONE_SIGHAND | CLONE_THREAD | CLONE_UNTRACED`: a thread with its own descriptors and directory, which a
/// debugger of the program does not get to see.
const THREAD_FLAGS: usize = 0x100 | 0x800 | 0x1_0000 | 0x80_0000;

/// A seat, and the arena that it is in.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    pub(crate) arena: usize,
    pub(crate) seat: &'static SeatHead,
}

impl Place {
    fn at(seat_address: usize) -> Self {
        // SAFETY: the pager gives the address of a seat in the arena, which is mapped for as long as the program runs; all
        // fields are atomics.
        let seat = unsafe { &*(seat_address as *const SeatHead) };
        Self { arena: seat_address - seat_offset(seat.index.load(Relaxed)), seat }
    }

    fn head(self) -> &'static ArenaHead {
        // SAFETY: the arena begins with its head, which nobody writes after it was made.
        unsafe { &*(self.arena as *const ArenaHead) }
    }

    fn batch(self, index: usize) -> &'static Batch {
        // SAFETY: a seat holds its batches behind its head; all fields in use are atomics.
        unsafe { &*((&raw const *self.seat as usize + batch_offset(index)) as *const Batch) }
    }

    fn fail(self, error: i32) -> ! {
        self.seat.failure.store(error, Relaxed);
        store_and_wake(&self.seat.state, AgentState::Failed as u32);
        calls::end_thread(0)
    }
}

/// Runs on a thread of the program that was stopped by ptrace, on the seat's call stack: starts the agent, says that this is
/// done, and stays in a loop of two instructions until the thread's registers are put back. No breakpoint is needed, whose
/// signal the program could have been told of.
pub(crate) extern "C" fn start_on_borrowed_thread(seat_address: usize) -> ! {
    start(seat_address);
    store_and_wake(&Place::at(seat_address).seat.call_returned, 1);
    loop {
        hint::spin_loop();
    }
}

/// Starts the agent of a seat; whether that worked stands in the seat.
pub(crate) fn start(seat_address: usize) {
    let place = Place::at(seat_address);
    place.seat.state.store(AgentState::Starting as u32, Release);
    let before = calls::block_signals(u64::MAX);
    // SAFETY: the flags make a thread, and the stack is the seat's, which has one agent at a time.
    let result = unsafe { calls::clone_thread(THREAD_FLAGS, seat_address + AGENT_STACK_END, run_thread, seat_address) };
    calls::block_signals(before);
    if result < 0 {
        place.seat.failure.store(result as i32, Relaxed);
        store_and_wake(&place.seat.state, AgentState::Failed as u32);
    }
}

extern "C" fn run_thread(seat_address: usize) -> ! {
    let place = Place::at(seat_address);
    calls::detach_thread(AGENT_NAME);
    place.seat.thread.store(calls::thread(), Relaxed);
    let staging = match prepare(place) {
        Ok(staging) => staging,
        Err(error) => place.fail(error),
    };
    store_and_wake(&place.seat.state, AgentState::Running as u32);
    match serve(place, &staging) {
        Ok(status) => {
            staging.give_back();
            store_and_wake(&place.seat.state, AgentState::Ended as u32);
            calls::end_thread(status)
        }
        Err(error) => place.fail(error),
    }
}

/// Gets the userfaultfd from the pager, and a staging area.
fn prepare(place: Place) -> Result<Staging, i32> {
    let head = place.head();
    let address = head.address.get(..head.address_length as usize).ok_or(INVALID)?;
    let socket = socket::connect(address)?;
    let hello = Hello {
        kind: HelloKind::Agent,
        process: calls::process(),
        seat: place.seat.index.load(Relaxed),
        status: 0,
        start_agent: 0,
        library_start: 0,
        library_end: 0,
        arena: 0,
    };
    socket::send(&socket, &hello.encode(), None)?;
    let (words, userfaultfd) = socket::receive(&socket)?;
    match (Welcome::decode(&words), userfaultfd) {
        (Ok(Welcome { verdict: Verdict::Page, .. }), Some(userfaultfd)) => {
            Staging::new(userfaultfd, &place.seat.staging)
        }
        _ => Err(calls::NO_ACCESS),
    }
}

/// Carries out batches in turn until one says to end, and with what status.
fn serve(place: Place, staging: &Staging) -> Result<u8, i32> {
    let mut next = 0;
    loop {
        let batch = place.batch(next);
        wait_for(place, &batch.phase);
        place.seat.agent_cpu.store(calls::cpu().map_or(0, |cpu| cpu + 1), Relaxed);
        let exit = batch::run(place, batch, staging)?;
        set_phase(place, &batch.phase, Phase::Done);
        if let Some(status) = exit {
            return Ok(status);
        }
        next = (next + 1) % BATCHES;
    }
}

/// Waits until the batch with this phase is posted: looks a while, then sleeps.
fn wait_for(place: Place, phase: &AtomicU32) {
    let is_posted = || phase.load(Acquire) == Phase::Posted as u32;
    for _ in 0..place.seat.spin_rounds.load(Relaxed) {
        if is_posted() {
            return;
        }
        hint::spin_loop();
    }
    place.seat.agent_sleeps.store(1, Relaxed);
    // Either the pager sees that we sleep, or we see what it posted.
    fence(SeqCst);
    while !is_posted() {
        let seen = phase.load(Relaxed);
        if seen != Phase::Posted as u32 {
            calls::sleep_on(phase, seen);
        }
    }
    place.seat.agent_sleeps.store(0, Relaxed);
}

/// Says how far a batch is, and wakes the pager if it sleeps for that.
pub(crate) fn set_phase(place: Place, word: &AtomicU32, phase: Phase) {
    word.store(phase as u32, Release);
    fence(SeqCst);
    if (1..=phase as u32).contains(&place.seat.pager_awaits.load(Relaxed)) {
        calls::wake(word);
    }
}

/// The userfaultfd that an agent got; it is in no other table of this program.
pub(crate) type Userfaultfd = Descriptor;
