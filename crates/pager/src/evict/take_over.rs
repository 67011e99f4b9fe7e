//! Takes a batch over from an evictor that is stopped in the middle of it, so that faults of its program can be served.
//!
//! A debugger, or a leak check at a program's end, stops all threads of a program, the evictor too, and then reads
//! the program's memory by a task that shares it. While a batch is under way no thread may read the program's messages
//! (rule 14 of docs/pager.md), so the reader would wait for the evictor, and the evictor for the reader.
//!
//! The evictor is held ([`Seat::hold`]): it moves nothing more when it goes on, and that is sure if it is stopped at
//! an instruction outside of the few with which it looks and moves. So each page stays where it is now: in the
//! program, in the staging area, or in the seat when the evictor has copied and dropped it already. The evictor may
//! go on at any moment and do that with the rest, so the staging area is looked at before and after it is read. What
//! it does then is right, and no thread reads its results.

use spillway_sys::lease::read_unless_leased;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use spillway_fabric::units::PAGE_SIZE_BYTES;
use spillway_stub::protocol::{EVICTOR_NAME, outcome};
use spillway_stub::seat::Seat;
use spillway_sys::mapping::Mapping;
use spillway_sys::pagemap::{Categories, Pagemap, Query, Region};
use spillway_sys::process_memory::HeldMemory;
use spillway_sys::process_stat::ProcessStat;
use spillway_sys::threads::Threads;
use spillway_sys::whereabouts::instruction_of;

use crate::process::memory::{EvictOutcome, EvictRequest};

const PAGE: u64 = PAGE_SIZE_BYTES as u64;

/// The evictor's thread of `process`, by its name: the number that it knows is another one in a PID namespace.
pub fn thread_of_evictor(process: u32) -> Option<u32> {
    Threads::of(process).ok()?.list().ok()?.into_iter().find(|thread| is_named_evictor(process, *thread))
}

/// Whether a thread of `process` has the evictor's name. A program can give that name to a thread of its own, and
/// harms nothing but itself.
pub fn is_named_evictor(process: u32, thread: u32) -> bool {
    let comm = read_unless_leased(format!("/proc/{process}/task/{thread}/comm"));
    comm.is_ok_and(|comm| Some(comm.trim_ascii_end()) == EVICTOR_NAME.split(|byte| *byte == 0).next())
}

/// Whether a thread is stopped, by a signal or by the thread that traces it.
pub fn is_stopped(process: u32, thread: u32) -> bool {
    let stat = ProcessStat::of_thread(process, thread);
    stat.ok().and_then(|stat| stat.state()).is_some_and(|state| matches!(state, 't' | 'T'))
}

/// Where one page of a batch is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Seen {
    /// In the program, in memory or in a swap area.
    in_place: bool,
    /// In the staging area, before that was read and after it.
    staged: bool,
}

/// A program's memory. The process may have become another program since, of whose memory nothing is read here.
pub struct Held {
    /// What is there. It is not opened when it is needed: that would wait for the survey (`process::openings`).
    pub pagemap: Pagemap,
    /// What stands there. A page that is away is an error, and is not waited for.
    pub content: Arc<HeldMemory>,
}

/// A batch as it lies there.
pub struct Rescue<'a> {
    /// The evictor's.
    pub seat: &'a Seat,
    /// Which of the seat's batches.
    pub batch: usize,
    /// The program.
    pub process: u32,
    /// The evictor's thread.
    pub thread: u32,
    /// The program's memory.
    pub held: &'a Held,
    /// What the evictor was to do.
    pub requests: &'a [EvictRequest],
    /// The write-back pool.
    pub pool: &'a Mapping,
}

impl Rescue<'_> {
    /// Fills `outcomes`, and brings what left to where it was to go. False: not now; the batch is as it was, and the
    /// evictor may end it early.
    pub fn run(&self, outcomes: &mut [EvictOutcome]) -> io::Result<bool> {
        self.seat.hold(true);
        let window = self.seat.move_window();
        let stops_at = instruction_of(self.process, self.thread)?;
        let is_sure = !window.is_empty() && stops_at.is_some_and(|address| !window.contains(&address));
        let Some(staging) = self.seat.staging().filter(|_| is_sure && is_stopped(self.process, self.thread)) else {
            return Ok(false);
        };
        let pagemap = &self.held.pagemap;
        let mut seen = vec![Seen::default(); self.requests.len()];
        for (one, request) in seen.iter_mut().zip(self.requests) {
            one.in_place = is_there(pagemap, request.page.address())?;
        }
        let mut contents = vec![0; self.requests.len() * PAGE_SIZE_BYTES];
        let place = |index: usize| staging.start + index as u64 * PAGE;
        for (index, content) in contents.chunks_exact_mut(PAGE_SIZE_BYTES).enumerate() {
            let is_read =
                is_there(pagemap, place(index))? && self.held.content.read_exact(place(index), content).is_ok();
            // Nothing is moved any more, so a page that is still there was there all the time.
            seen[index].staged = is_read && is_there(pagemap, place(index))?;
        }
        for (index, outcome) in outcomes.iter_mut().enumerate().take(self.requests.len()) {
            *outcome = self.outcome(index, seen[index], &contents[index * PAGE_SIZE_BYTES..][..PAGE_SIZE_BYTES]);
        }
        Ok(true)
    }

    fn outcome(&self, index: usize, seen: Seen, content: &[u8]) -> EvictOutcome {
        let target = self.requests[index].target.map(|page| page.0 as usize * PAGE_SIZE_BYTES);
        match (seen, target) {
            (Seen { in_place: true, .. }, _) => EvictOutcome::Refused,
            (Seen { staged: true, .. }, None) => EvictOutcome::Moved,
            (Seen { staged: true, .. }, Some(_)) if content.iter().all(|byte| *byte == 0) => EvictOutcome::Zero,
            (Seen { staged: true, .. }, Some(target)) => {
                self.pool.write(target, content);
                EvictOutcome::Moved
            }
            // The evictor has copied and dropped it, or it was never there.
            (_, target) => match (self.seat.result(self.batch, index), target) {
                (outcome::DONE, Some(target)) => {
                    self.seat.read_page(self.batch, index, self.pool, target);
                    EvictOutcome::Moved
                }
                (outcome::DONE, None) => EvictOutcome::Moved,
                (outcome::ZERO, _) => EvictOutcome::Zero,
                _ => EvictOutcome::Absent,
            },
        }
    }
}

/// Whether the page at `address` has a content. Where its staging area is the program says, and that may be the address
/// of no page.
fn is_there(pagemap: &Pagemap, address: u64) -> io::Result<bool> {
    let there =
        Query { any_of: Categories::PRESENT | Categories::SWAPPED, report: Categories::PRESENT, ..Query::default() };
    let range: Range<u64> = address..address + PAGE;
    Ok(pagemap.scan(range, &there, &mut [Region::default()])?.regions > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page_table::virtual_page::VirtualPage;
    use crate::page_table::volume_pages::PoolPage;

    fn own_memory() -> Held {
        let own = std::process::id();
        Held { pagemap: Pagemap::open(own).unwrap(), content: Arc::new(HeldMemory::open(own).unwrap()) }
    }

    #[test]
    fn a_page_is_where_it_is_seen_and_else_where_the_evictor_says() {
        let (seat, pool) = (Seat::create().unwrap(), Mapping::anonymous(4 * PAGE_SIZE_BYTES).unwrap());
        let request = |target| EvictRequest { page: VirtualPage::at(0x1000), target };
        let requests = [request(Some(PoolPage(2))), request(None)];
        let (held, pool) = (&own_memory(), &pool);
        let rescue = Rescue { seat: &seat, batch: 0, process: 0, thread: 0, held, requests: &requests, pool };
        let (content, zeroes) = ([7; PAGE_SIZE_BYTES], [0; PAGE_SIZE_BYTES]);
        let seen = |in_place, staged| Seen { in_place, staged };
        assert_eq!(rescue.outcome(0, seen(true, false), &zeroes), EvictOutcome::Refused);
        assert_eq!(
            rescue.outcome(0, seen(true, true), &zeroes),
            EvictOutcome::Refused,
            "a staging area that is locked has zeroes in it"
        );
        assert_eq!(rescue.outcome(0, seen(false, true), &zeroes), EvictOutcome::Zero);
        assert_eq!(rescue.outcome(1, seen(false, true), &content), EvictOutcome::Moved);
        assert_eq!(rescue.outcome(0, seen(false, true), &content), EvictOutcome::Moved);
        let mut bytes = [0; 2];
        pool.read(3 * PAGE_SIZE_BYTES - 1, &mut bytes);
        assert_eq!(bytes, [7, 0], "it is where it was to go");
        // Results of the evictor: none is 0, which is done.
        assert_eq!(rescue.outcome(1, seen(false, false), &zeroes), EvictOutcome::Moved);
    }

    #[test]
    fn nothing_is_taken_over_from_an_evictor_that_runs() {
        let (seat, pool) = (Seat::create().unwrap(), Mapping::anonymous(PAGE_SIZE_BYTES).unwrap());
        let process = std::process::id();
        let (held, pool) = (&own_memory(), &pool);
        let rescue = Rescue { seat: &seat, batch: 0, process, thread: process, held, requests: &[], pool };
        assert!(!rescue.run(&mut []).unwrap());
        assert!(!is_stopped(process, process) && thread_of_evictor(process).is_none());
    }
}
