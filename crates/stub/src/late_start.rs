//! Starting a program's agent when memory gets short: one of its threads is borrowed for the moment that it takes.

#![allow(unsafe_code, reason = "a call into another process")]

use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::time::{Duration, Instant};

use spillway_sys::tracee::{self, Call, TraceError};

use crate::protocol::CALL_STACK_END;
use crate::seat::Seat;

/// The function needs a hundred microseconds of a CPU, which a busy machine may not give for long. To give it up half way would leave
/// a program that never gets an agent.
const START_PATIENCE: Duration = Duration::from_secs(20);

/// Where a program has what the pager gave it, from its [`Hello`](crate::protocol::Hello) and [`Ready`](crate::protocol::Ready);
/// a forked child has all at the same addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProgramPlaces {
    /// The process, in this process's PID namespace.
    pub process: u32,
    /// The stub's `start_agent`.
    pub start_agent: u64,
    /// Where the arena is mapped.
    pub arena: u64,
}

/// Lets thread `thread` start an agent in `seat`, which is clear, and gives the thread back; begins by `deadline`. The agent then says hello by itself:
/// see [`Seat::wait_for_agent`]. With [`TraceError::Unsuitable`], try another thread, or later.
pub fn start_agent(places: &ProgramPlaces, thread: u32, seat: &Seat, deadline: Instant) -> Result<(), TraceError> {
    assert_ne!(places.process, std::process::id(), "an agent is started in another process");
    seat.call_returned().store(0, Relaxed);
    let address = places.arena + seat.offset() as u64;
    let call = Call {
        function: places.start_agent,
        argument: address,
        stack_end: address + CALL_STACK_END as u64,
        patience: START_PATIENCE,
    };
    let is_finished = || seat.call_returned().load(Acquire) != 0;
    // SAFETY: the process is another one (checked; the stub is in no program that shares our memory), which said itself that
    // its function for this is there. The stack is its seat's own.
    unsafe { tracee::call(places.process, thread, &call, is_finished, deadline) }
}
