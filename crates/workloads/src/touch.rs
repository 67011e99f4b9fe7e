//! Touch: fills an array, then reads one word of each page in random order, with a system call after each.
//!
//! The system call (`getppid`, which waits for nothing) marks in a trace where a fault ended: the kernel has no event
//! for that. The study of a page-in's life reads it.
//!
//! All pages twice, each time in another order: the first time pages leave that no process has yet, and donors make
//! slabs for them on the same CPUs; the second time is what goes on from there, and for each page that comes one
//! leaves. Then most of the array is given up, and what is left is touched once more: where half of it was local,
//! pages come now and none need leave. And again in the same order: that is what the program takes for itself, a
//! third of a microsecond a touch with its system call and what its caches miss.
//!
//! A touch counts as a page if it was missing. (Where the kernel's swap maps what it has read ahead, that is a fault
//! too.)
//!
//! Invariant: every page's word is checked, each time.

use std::time::{Duration, Instant};

use spillway_sys::process_stat::ProcessStat;

use super::phase::PhaseClock;
use super::{Workload, WorkloadError, WorkloadSettings, wrong};
use crate::checksum::{Checksum, Ordered};
use crate::permutation::Permutation;
use crate::random::word_at;
use crate::size::PAGE_SIZE_BYTES;

/// Words of a page.
const PAGE_WORDS: usize = PAGE_SIZE_BYTES as usize / size_of::<u64>();

/// The rounds, with the seed of each one's order.
const ROUNDS: [(&str, u64); 4] = [("first touch", 0), ("touch", 1), (WITH_ROOM, 2), (AGAIN, 2)];

/// The round whose pages come and none need leave.
pub const WITH_ROOM: &str = "touch with room";
/// The same without a page that is missing.
pub const AGAIN: &str = "touch again";

/// Of eight parts of the array so many are there in the last round: where half of it was local, and all parts alike,
/// an eighth of the array is room then.
const KEPT_EIGHTHS: u64 = 3;

/// The pager of this process hears of what was given up, and is at rest.
const REST: Duration = Duration::from_millis(100);

/// See the module text.
#[derive(Clone, Copy, Debug)]
pub struct Touch;

/// Page faults of this process until now.
fn page_faults() -> u64 {
    ProcessStat::of_process(std::process::id()).ok().and_then(|stat| stat.minor_faults()).unwrap_or(0)
}

impl Workload for Touch {
    fn name(&self) -> &'static str {
        "touch"
    }

    fn run(&self, settings: &WorkloadSettings, clock: &mut PhaseClock) -> Result<Checksum, WorkloadError> {
        let pages = settings.size.0 / PAGE_SIZE_BYTES;
        let kept_pages = (pages * KEPT_EIGHTHS / 8).max(1);
        let mut kept = vec![0_u64; kept_pages as usize * PAGE_WORDS];
        let mut given_up = vec![0_u64; (pages - kept_pages) as usize * PAGE_WORDS];
        clock.measure("fill", pages, || {
            let all = kept.chunks_exact_mut(PAGE_WORDS).chain(given_up.chunks_exact_mut(PAGE_WORDS));
            for (page, words) in all.enumerate() {
                words.fill(word_at(settings.seed, page as u64));
            }
        });
        let (mut checksum, mut first_wrong) = (Ordered::default(), None);
        let mut round_pages = pages;
        for (phase, order) in ROUNDS {
            if phase == WITH_ROOM {
                given_up = Vec::new();
                round_pages = kept_pages;
                std::thread::sleep(REST);
            }
            let order = Permutation::new(round_pages, settings.seed.wrapping_add(order));
            let (start, faults) = (Instant::now(), page_faults());
            for page in (0..round_pages).map(|step| order.at(step)) {
                let place = page.checked_sub(kept_pages);
                let word = place
                    .map_or_else(|| &kept[page as usize * PAGE_WORDS], |place| &given_up[place as usize * PAGE_WORDS]);
                let found = std::hint::black_box(*word);
                std::hint::black_box(rustix::process::getppid());
                if found != word_at(settings.seed, page) {
                    first_wrong.get_or_insert(page);
                }
                checksum.add(found);
            }
            let elapsed = start.elapsed();
            clock.record(phase, page_faults().saturating_sub(faults), elapsed);
        }
        match first_wrong {
            Some(page) => Err(wrong(self, format!("page {page} does not hold what was written"))),
            None => Ok(checksum.finish()),
        }
    }
}
