//! What one evictor shares with the pager, as the pager sees it: batches, their results, and the pages that the
//! evictor takes out. No other thread has this memory, and forks do not inherit it.
//!
//! The two batches are used in turn: post 0, post 1, post 0 again, because the evictor looks for them in that order.
//! A batch is written while its phase is `Idle`, and read while it is `Done`; in between it belongs to the evictor.
//! Nothing here allocates.

use std::hint;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicU32, fence};
use std::time::Instant;

use spillway_sys::mapping::Mapping;
use spillway_sys::memfd::Memfd;
use spillway_sys::shared_futex;

use crate::protocol::{
    BATCH_ENTRIES_MAX, BATCHES, EvictorState, Operation, PAGE_BYTES, Phase, SEAT_BYTES, STAGING_BYTES, batch_offset,
    batch_word, entry_word, seat_word, transfer_offset,
};

/// One thing for the evictor to do; see [`Operation`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Task {
    /// What.
    pub operation: Operation,
    /// The page's or the range's address in the program.
    pub address: u64,
    /// A length in bytes, or a status.
    pub argument: u64,
    /// An advice.
    pub detail: u32,
}

impl Task {
    /// Evict the page at `address`, and leave its content in the seat ([`Seat::read_page`]).
    pub fn evict_copy(address: u64) -> Self {
        Self { operation: Operation::EvictCopy, address, argument: 0, detail: 0 }
    }

    /// Evict the page at `address`, whose content is elsewhere.
    pub fn evict_drop(address: u64) -> Self {
        Self { operation: Operation::EvictDrop, address, argument: 0, detail: 0 }
    }

    /// Make `length` bytes at `address` the process's own again.
    pub fn populate(address: u64, length: u64) -> Self {
        Self { operation: Operation::Populate, address, argument: length, detail: 0 }
    }

    /// Tell the kernel `advice` (`MADV_*`) about `length` bytes at `address`.
    pub fn advise(address: u64, length: u64, advice: u32) -> Self {
        Self { operation: Operation::Advise, address, argument: length, detail: advice }
    }

    /// End, with `status`.
    pub fn exit(status: u8) -> Self {
        Self { operation: Operation::Exit, address: 0, argument: status.into(), detail: 0 }
    }
}

/// A seat, see the module text.
#[derive(Clone, Debug)]
pub struct Seat {
    memory: Arc<Mapping>,
    file: Arc<Memfd>,
}

impl Seat {
    /// A new one, for an evictor that starts. The first batch to be posted is 0.
    pub fn create() -> io::Result<Self> {
        let file = Memfd::create("spillway-seat", SEAT_BYTES as u64)?;
        let memory = Arc::new(Mapping::shared(&file, SEAT_BYTES)?);
        Ok(Self { memory, file: Arc::new(file) })
    }

    /// The file, to be sent to the evictor.
    pub fn file(&self) -> &Memfd {
        &self.file
    }

    /// Copies the page that entry `index` of batch `batch` evicted, which has moved, to `offset` of `target`.
    pub fn read_page(&self, batch: usize, index: usize, target: &Mapping, offset: usize) {
        assert!(index < BATCH_ENTRIES_MAX, "page {index} of a batch");
        target.copy_from(offset, &self.memory, transfer_offset(batch, index), PAGE_BYTES);
    }

    /// How its evictor is.
    pub fn state(&self) -> EvictorState {
        // A program can write anything here; one that does is treated as one whose evictor failed.
        EvictorState::from_number(self.state_word().load(Acquire)).unwrap_or(EvictorState::Failed)
    }

    /// Why the evictor failed.
    pub fn failure(&self) -> io::Error {
        let number = shared_futex::signed_word(&self.memory, seat_word::FAILURE).load(Relaxed);
        io::Error::from_raw_os_error(number.wrapping_abs())
    }

    /// The evictor's thread number, as the program sees it; 0 before there is one.
    pub fn evictor_thread(&self) -> u32 {
        self.word(seat_word::THREAD).load(Relaxed)
    }

    /// The evictor's staging area in the program: never to be registered or evicted.
    pub fn staging(&self) -> Option<Range<u64>> {
        let start = shared_futex::long_word(&self.memory, seat_word::STAGING).load(Acquire);
        // The program may write anything there.
        start.checked_add(STAGING_BYTES as u64).filter(|_| start != 0).map(|end| start..end)
    }

    /// Where the program has this memory: never to be registered or evicted.
    pub fn mapped(&self) -> Option<Range<u64>> {
        let start = shared_futex::long_word(&self.memory, seat_word::MAPPED).load(Acquire);
        start.checked_add(SEAT_BYTES as u64).filter(|_| start != 0).map(|end| start..end)
    }

    /// How often the evictor looks for its next batch before it sleeps.
    pub fn set_spin_rounds(&self, rounds: u32) {
        self.word(seat_word::SPIN_ROUNDS).store(rounds, Relaxed);
    }

    /// Waits until the evictor runs, or has failed or ended. `false` at the deadline.
    pub fn wait_for_evictor(&self, deadline: Instant) -> io::Result<bool> {
        loop {
            let state = self.state();
            if !matches!(state, EvictorState::Absent | EvictorState::Starting) {
                return Ok(true);
            }
            if !shared_futex::wait(self.state_word(), state as u32, Some(deadline))? {
                return Ok(false);
            }
        }
    }

    /// The CPU that the evictor began its last batch on, if it knows; any number, as a program can write what it likes.
    pub fn evictor_cpu(&self) -> Option<usize> {
        (self.word(seat_word::EVICTOR_CPU).load(Relaxed) as usize).checked_sub(1)
    }

    /// Gives `tasks` to the evictor in batch `batch`, and wakes it if it sleeps.
    pub fn post(&self, batch: usize, tasks: &[Task]) {
        assert_eq!(self.phase(batch), Phase::Idle, "a batch is posted when the one before was taken");
        assert!(tasks.len() <= BATCH_ENTRIES_MAX, "{} tasks in one batch", tasks.len());
        let base = batch_offset(batch);
        for (index, task) in tasks.iter().enumerate() {
            let entry = base + batch_word::entry(index);
            shared_futex::long_word(&self.memory, entry + entry_word::ADDRESS).store(task.address, Relaxed);
            shared_futex::long_word(&self.memory, entry + entry_word::ARGUMENT).store(task.argument, Relaxed);
            shared_futex::word(&self.memory, entry + entry_word::OPERATION).store(task.operation as u32, Relaxed);
            shared_futex::word(&self.memory, entry + entry_word::DETAIL).store(task.detail, Relaxed);
        }
        shared_futex::word(&self.memory, base + batch_word::COUNT).store(tasks.len() as u32, Relaxed);
        self.phase_word(batch).store(Phase::Posted as u32, Release);
        // Either this sees that the evictor sleeps, or the evictor, which says so first and looks again then, sees
        // the phase.
        fence(SeqCst);
        if self.word(seat_word::EVICTOR_SLEEPS).load(Relaxed) != 0 {
            shared_futex::wake(self.phase_word(batch));
        }
    }

    /// How far batch `batch` is.
    pub fn phase(&self, batch: usize) -> Phase {
        Phase::from_number(self.phase_word(batch).load(Acquire)).unwrap_or(Phase::Posted)
    }

    /// Waits until batch `batch` is at least at `phase`: looks `spin_rounds` times, then sleeps. `false` at the
    /// deadline: the process may be stopped, or gone.
    pub fn wait(&self, batch: usize, phase: Phase, spin_rounds: u32, deadline: Instant) -> io::Result<bool> {
        for _ in 0..spin_rounds {
            if self.phase(batch) >= phase {
                return Ok(true);
            }
            hint::spin_loop();
        }
        let awaits = self.word(seat_word::PAGER_AWAITS);
        awaits.store(phase as u32, Relaxed);
        fence(SeqCst);
        let result = loop {
            let seen = self.phase_word(batch).load(Acquire);
            if Phase::from_number(seen).is_some_and(|seen| seen >= phase) {
                break Ok(true);
            }
            match shared_futex::wait(self.phase_word(batch), seen, Some(deadline)) {
                Ok(true) => {}
                other => break other,
            }
        };
        awaits.store(0, Relaxed);
        result
    }

    /// What became of task `index` of batch `batch`, which is moved (for evictions) or done; see
    /// [`crate::protocol::outcome`].
    pub fn result(&self, batch: usize, index: usize) -> i32 {
        assert!(index < BATCH_ENTRIES_MAX, "task {index} of a batch");
        let entry = batch_offset(batch) + batch_word::entry(index);
        shared_futex::signed_word(&self.memory, entry + entry_word::RESULT).load(Relaxed)
    }

    /// Takes batch `batch` back that was posted; false if the evictor has it already.
    pub fn withdraw(&self, batch: usize) -> bool {
        let (posted, idle) = (Phase::Posted as u32, Phase::Idle as u32);
        self.phase_word(batch).compare_exchange(posted, idle, Relaxed, Relaxed).is_ok()
    }

    /// Whether the evictor is to move no page more in the batch that it has. One that is stopped outside of
    /// [`Seat::move_window`] heeds that before it moves.
    pub fn hold(&self, is_held: bool) {
        self.word(seat_word::IS_HELD).store(u32::from(is_held), SeqCst);
    }

    /// The addresses of the instructions with which the evictor looks whether it is held, and moves.
    pub fn move_window(&self) -> Range<u64> {
        let word = |place| shared_futex::long_word(&self.memory, place).load(Relaxed);
        word(seat_word::MOVE_START)..word(seat_word::MOVE_END)
    }

    /// Takes batch `batch` back after its results were read.
    pub fn take(&self, batch: usize) {
        assert_eq!(self.phase(batch), Phase::Done, "results are read when all are there");
        self.phase_word(batch).store(Phase::Idle as u32, Relaxed);
    }

    fn word(&self, place: usize) -> &AtomicU32 {
        shared_futex::word(&self.memory, place)
    }

    fn state_word(&self) -> &AtomicU32 {
        self.word(seat_word::STATE)
    }

    fn phase_word(&self, batch: usize) -> &AtomicU32 {
        assert!(batch < BATCHES, "batch {batch} of a seat");
        self.word(batch_offset(batch) + batch_word::PHASE)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn seat() -> Seat {
        Seat::create().unwrap()
    }

    fn far() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    /// What an evictor does with a batch, here in a thread of the test.
    fn play_evictor(seat: &Seat, batch: usize, phase: Phase) {
        let entry = batch_offset(batch) + batch_word::entry(0);
        shared_futex::signed_word(&seat.memory, entry + entry_word::RESULT).store(-16, Relaxed);
        seat.phase_word(batch).store(phase as u32, Release);
        fence(SeqCst);
        if (1..=phase as u32).contains(&seat.word(seat_word::PAGER_AWAITS).load(Relaxed)) {
            shared_futex::wake(seat.phase_word(batch));
        }
    }

    #[test]
    fn a_batch_goes_to_the_evictor_and_comes_back() {
        let seat = seat();
        seat.post(1, &[Task::evict_copy(0x7000), Task::exit(0)]);
        assert_eq!((seat.phase(0), seat.phase(1)), (Phase::Idle, Phase::Posted));
        assert!(!seat.wait(1, Phase::Moved, 10, Instant::now() + Duration::from_millis(1)).unwrap());
        let evictor = seat.clone();
        let thread = std::thread::spawn(move || play_evictor(&evictor, 1, Phase::Moved));
        assert!(seat.wait(1, Phase::Moved, 10, far()).unwrap());
        thread.join().unwrap();
        play_evictor(&seat, 1, Phase::Done);
        assert!(seat.wait(1, Phase::Moved, 0, far()).unwrap(), "done is more than moved");
        assert_eq!(seat.result(1, 0), -16);
        seat.take(1);
        assert_eq!(seat.phase(1), Phase::Idle);
    }

    #[test]
    #[should_panic(expected = "when the one before was taken")]
    fn a_batch_is_not_overwritten() {
        let seat = seat();
        seat.post(0, &[Task::exit(0)]);
        seat.post(0, &[Task::exit(0)]);
    }

    #[test]
    fn a_batch_is_taken_back_until_the_evictor_has_it() {
        let seat = seat();
        seat.post(0, &[Task::exit(0)]);
        assert!(seat.withdraw(0) && !seat.withdraw(0));
        seat.post(0, &[Task::exit(0)]);
        play_evictor(&seat, 0, Phase::Claimed);
        assert!(!seat.withdraw(0));
        assert!(seat.move_window().is_empty(), "no evictor has come");
    }

    #[test]
    fn the_evictor_is_waited_for_until_it_runs_or_fails() {
        let seat = seat();
        assert_eq!(seat.state(), EvictorState::Absent);
        assert!(!seat.wait_for_evictor(Instant::now()).unwrap());
        shared_futex::signed_word(&seat.memory, seat_word::FAILURE).store(-13, Relaxed);
        seat.state_word().store(EvictorState::Failed as u32, Release);
        assert!(seat.wait_for_evictor(far()).unwrap());
        assert_eq!(seat.failure().kind(), io::ErrorKind::PermissionDenied);
        seat.state_word().store(77, Release);
        assert_eq!(seat.state(), EvictorState::Failed, "nonsense is a failure");
        assert_eq!((seat.staging(), seat.mapped()), (None, None));
    }

    #[test]
    fn evicted_pages_go_through_places_of_their_own() {
        let (seat, target) = (seat(), Mapping::anonymous(2 * PAGE_BYTES).unwrap());
        let last = BATCH_ENTRIES_MAX - 1;
        seat.memory.write(transfer_offset(1, last) + 8, b"page");
        seat.read_page(1, last, &target, PAGE_BYTES);
        let mut bytes = [0; 4];
        target.read(PAGE_BYTES + 8, &mut bytes);
        assert_eq!(&bytes, b"page");
    }

    #[test]
    fn a_program_can_write_any_address_into_its_seat() {
        let seat = seat();
        for word in [seat_word::STAGING, seat_word::MAPPED] {
            shared_futex::long_word(&seat.memory, word).store(u64::MAX - 5, Release);
        }
        assert_eq!((seat.staging(), seat.mapped()), (None, None));
    }
}
