//! Starting a program's evictor when memory gets short: one of its threads is borrowed for the moment that it takes.

#![allow(unsafe_code, reason = "a call into another process")]

use std::io;
use std::time::{Duration, Instant};

use spillway_sys::process_memory;
use spillway_sys::tracee::{self, Call, Pause, TraceError};

use crate::protocol::{CALL_STACK_END, CELL_WORDS, EvictorStart, UNKNOWN_WORD, question};

/// The function needs a hundred microseconds of a CPU, which a busy machine may not give for long. To give it up half
/// way would leave a program that never gets an evictor.
const START_PATIENCE: Duration = Duration::from_secs(20);

/// Where a program has what the pager needs, from its [`Hello`](crate::protocol::Hello) and
/// [`Ready`](crate::protocol::Ready); a forked child has all at the same addresses. A program says what it likes, so
/// all of this is checked before it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProgramPlaces {
    /// The process, in this process's PID namespace.
    pub process: u32,
    /// The stub's `start_evictor`.
    pub start_evictor: u64,
    /// The stub's [`EvictorCell`](crate::protocol::EvictorCell).
    pub cell: u64,
    /// Where the head is mapped.
    pub head: u64,
}

/// What stands in a program's [`EvictorCell`](crate::protocol::EvictorCell).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CellContent {
    /// Which attempt the rest is about.
    pub attempt: u32,
    /// The starting call has returned.
    pub has_returned: bool,
    /// The error number with which the evictor failed, or 0.
    pub failure: i32,
    /// The evictor's number of the socket that the pager is to take, if it waits for that.
    pub offered: Option<i32>,
    /// Which question was answered last, and how.
    answer: (u32, u64),
}

/// Reads a program's cell. The program must be known to be one of the run.
pub fn read_cell(places: &ProgramPlaces) -> io::Result<CellContent> {
    let mut bytes = [0; CELL_WORDS * 4];
    process_memory::read_exact(places.process, places.cell, &mut bytes)?;
    let word = |index: usize| u32::from_ne_bytes(bytes[index * 4..][..4].try_into().expect("a word has four bytes"));
    let answer = u64::from(word(6)) | u64::from(word(7)) << u32::BITS;
    Ok(CellContent {
        attempt: word(0),
        has_returned: word(1) != 0,
        failure: word(2).cast_signed(),
        offered: word(4).checked_sub(1).map(u32::cast_signed),
        answer: (word(5), answer),
    })
}

/// Lets thread `thread`, one of those of `pause` if the program is held, start an evictor, as an attempt whose number
/// is new to the program, and gives the thread back or holds it again; begins by `deadline`. The evictor then says
/// hello by itself, or offers a socket (see [`CellContent`]). `is_ours` is asked of the stopped thread's memory, and
/// nothing happens to a thread of which it denies that: between any look at a process and a stop of its thread, the
/// process may become another program, with more rights. With [`TraceError::Unsuitable`], try another thread, or
/// later.
pub fn start_evictor(
    places: &ProgramPlaces,
    (thread, pause): (u32, Option<&mut Pause>),
    start: EvictorStart,
    is_ours: &mut dyn FnMut() -> bool,
    deadline: Instant,
) -> Result<(), TraceError> {
    let is_done = |cell: CellContent| cell.attempt == start.attempt;
    call_stub(places, (thread, pause), (start.word(), START_PATIENCE), is_ours, is_done, deadline)
}

/// Where the kernel clears a word when thread `thread` ends (`CLONE_CHILD_CLEARTID`, set_tid_address(2)); `None` if
/// nowhere. The kernel tells only the thread itself, so it is borrowed as by [`start_evictor`]. `number` is new to the
/// program.
pub fn cleared_word(
    places: &ProgramPlaces,
    thread: u32,
    number: u32,
    is_ours: &mut dyn FnMut() -> bool,
    deadline: Instant,
) -> Result<Option<u64>, TraceError> {
    let mut address = UNKNOWN_WORD;
    let is_done = |cell: CellContent| {
        address = cell.answer.1;
        cell.answer.0 == number
    };
    call_stub(places, (thread, None), (question(number), START_PATIENCE), is_ours, is_done, deadline)?;
    match address {
        UNKNOWN_WORD => Err(TraceError::Failed),
        address => Ok((address != 0).then_some(address)),
    }
}

/// Lets thread `thread` call the stub's function with an argument, for so long at most.
fn call_stub(
    places: &ProgramPlaces,
    (thread, pause): (u32, Option<&mut Pause>),
    (argument, patience): (u64, Duration),
    is_ours: &mut dyn FnMut() -> bool,
    mut is_done: impl FnMut(CellContent) -> bool,
    deadline: Instant,
) -> Result<(), TraceError> {
    assert_ne!(places.process, std::process::id(), "a thread of another process is borrowed");
    let stack_end = places.cell + CALL_STACK_END as u64;
    let call = Call { function: places.start_evictor, argument, stack_end, patience };
    let mut is_finished = || read_cell(places).is_ok_and(|cell| cell.has_returned && is_done(cell));
    // SAFETY: the process is another one (checked; the stub is in no program that shares our memory), and its memory
    // is that of the program which said itself that its function for this is there, as `is_ours` finds. The stack is
    // the stub's, for this call alone.
    unsafe {
        match pause {
            Some(pause) => pause.call(thread, &call, is_ours, &mut is_finished, deadline),
            None => tracee::call(places.process, thread, &call, is_ours, is_finished, deadline),
        }
    }
}
