//! Touch: fills an array, then reads one word of each page in random order, with a system call after each.
//!
//! The system call (`getppid`, which waits for nothing) marks in a trace where a fault ended: the kernel has no event for
//! that. The study of a page-in's life reads it.
//!
//! All pages twice, each time in another order: the first time pages leave that nobody has yet, and donors make slabs for them on the same
//! CPUs; the second time is what goes on from there.
//!
//! A touch counts as a page if it was missing: a page that is there takes next to nothing. (Where the kernel's swap maps what it has read
//! ahead, that is a fault too.)
//!
//! Invariant: every page's word is checked, each time.

use std::time::Instant;

use spillway_sys::process_stat::ProcessStat;

use super::phase::PhaseClock;
use super::{Program, WorkloadError, WorkloadSettings, wrong};
use crate::checksum::{Checksum, Ordered};
use crate::permutation::Permutation;
use crate::random::word_at;
use crate::size::PAGE_SIZE_BYTES;
use crate::touches::Probe;

/// Words of a page.
const PAGE_WORDS: usize = PAGE_SIZE_BYTES as usize / size_of::<u64>();

/// Both times.
const PHASES: [&str; 2] = ["first touch", "touch"];

/// See the module text.
#[derive(Clone, Copy, Debug)]
pub struct Touch;

/// Page faults of this process until now.
fn page_faults() -> u64 {
    ProcessStat::of_process(std::process::id()).ok().and_then(|stat| stat.minor_faults()).unwrap_or(0)
}

impl Program for Touch {
    fn program_name(&self) -> &'static str {
        "touch"
    }

    fn compute(
        &self,
        settings: &WorkloadSettings,
        clock: &mut PhaseClock,
        probe: impl Probe,
    ) -> Result<Checksum, WorkloadError> {
        let pages = settings.size.0 / PAGE_SIZE_BYTES;
        let mut words = vec![0_u64; pages as usize * PAGE_WORDS];
        clock.measure("fill", pages, || {
            for (page, words) in words.chunks_exact_mut(PAGE_WORDS).enumerate() {
                probe.write_all(words);
                words.fill(word_at(settings.seed, page as u64));
            }
        });
        let (mut checksum, mut first_wrong) = (Ordered::default(), None);
        for (round, phase) in PHASES.into_iter().enumerate() {
            let order = Permutation::new(pages, settings.seed.wrapping_add(round as u64));
            let (start, faults) = (Instant::now(), page_faults());
            for page in (0..pages).map(|step| order.at(step)) {
                probe.read(&words[page as usize * PAGE_WORDS]);
                let found = std::hint::black_box(words[page as usize * PAGE_WORDS]);
                std::hint::black_box(rustix::process::getppid());
                if found != word_at(settings.seed, page) {
                    first_wrong.get_or_insert(page);
                }
                checksum.add(found);
            }
            let elapsed = start.elapsed();
            clock.record(phase, page_faults() - faults, elapsed);
        }
        match first_wrong {
            Some(page) => Err(wrong(self, format!("page {page} does not hold what was written"))),
            None => Ok(checksum.finish()),
        }
    }
}
