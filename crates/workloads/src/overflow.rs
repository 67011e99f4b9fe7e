//! Overflow: fills an array while its pager stands still, waits until that has brought its memory back to the budget,
//! and checks every word.
//!
//! A program that outgrows its budget faults for each new page, and takes more time for that than its pages take to
//! leave. So the pager (the parent of this process, as `spillway run` is) is stopped while the array is filled, and
//! finds all of it at once; what happens then is eviction and nothing else. Without a pager nothing leaves, and the
//! phase counts one page.
//!
//! All of that twice: in the first round donors allocate memory for the slabs, on the same CPU, which is not
//! eviction's time; the second round's pages go where the first one's were.
//!
//! What this process needs while it looks stays locked in memory: a fault of its own would be held back until the
//! budget is met, and it would see the begin and the end of the eviction only.
//!
//! Invariants: the pager goes on whatever happens here; the time is that of the middle of the eviction, without its
//! beginning (the pager looks at the program, and starts its evictor on a thread that must not sleep) and its end.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use rustix::mm::{MlockAllFlags, mlockall, munlockall};
use rustix::process::{Pid, Signal, getppid, kill_process};
use spillway_sys::process_stat::ProcessStat;

use super::phase::PhaseClock;
use super::{Workload, WorkloadError, WorkloadSettings, wrong};
use crate::checksum::{Checksum, Ordered};
use crate::random::word_at;
use crate::size::PAGE_SIZE_BYTES;

/// Words of a page.
const PAGE_WORDS: usize = PAGE_SIZE_BYTES as usize / size_of::<u64>();

/// A program under the pager finds this in its environment.
const UNDER_PAGER: &str = "SPILLWAY_PAGER";

/// Phases of the first round, in which donors make the slabs that the second finds.
const FIRST_ROUND: [&str; 3] = ["first fill", "first leave", "first read"];

/// Phases of the second.
const SECOND_ROUND: [&str; 3] = ["fill", "leave", "read"];

/// How long to wait for the first page to leave.
const FIRST_DEADLINE: Duration = Duration::from_secs(20);

/// So long donors have, before the eviction begins, to prepare the slabs that it will ask for: several times what one
/// of 32 MiB takes (20 to 40 ms). They allocate memory on the same CPU, and the time of that is not eviction's.
const DONOR_REST: Duration = Duration::from_millis(300);

/// The eviction is over when nothing has left for so long.
const REST: Duration = Duration::from_millis(200);

/// Looks that there is room for from the beginning, so that they need no memory that is not locked: of some seconds.
const LOOKS_EXPECTED: usize = 8192;

/// Time between two looks: some batches of the pager.
const LOOK_INTERVAL: Duration = Duration::from_micros(500);

/// Looks in the middle of an eviction, at least: the thread that looks may have to wait for a CPU itself.
const LOOKS_MIN: usize = 3;

/// The program is locked in memory so often before its pager is stopped.
const LOCKS: usize = 2;

/// How long threads of a pager may take until they stand still.
const STOP_DEADLINE: Duration = Duration::from_secs(10);

/// Pages by which the count may move without an eviction.
const JITTER_PAGES: u64 = 64;

/// See the module text.
#[derive(Clone, Copy, Debug)]
pub struct Overflow;

/// The pager, stopped, and what this process had before locked in memory, since no process would bring it.
struct Stopped {
    pager: Option<Pid>,
}

impl Stopped {
    fn now() -> Result<Self, WorkloadError> {
        let Some(pager) = getppid().filter(|_| std::env::var_os(UNDER_PAGER).is_some()) else {
            return Ok(Self { pager: None });
        };
        // What comes back for the lock makes others leave, and a batch that had begun before takes locked pages too
        // (docs/pager-kernel.md). After it nothing leaves behind a lock.
        for _ in 0..LOCKS {
            std::thread::sleep(REST);
            let unusable = |error| WorkloadError::Setting(format!("the program cannot be locked in memory: {error}"));
            mlockall(MlockAllFlags::CURRENT).map_err(unusable)?;
        }
        let stopped = Self { pager: Some(pager) };
        kill_process(pager, Signal::STOP)
            .map_err(|error| WorkloadError::Setting(format!("the pager cannot be stopped: {error}")))?;
        // A thread stops when it comes back from the kernel; until then it may register what this process maps, which
        // no process would fill.
        let begin = Instant::now();
        while !is_stopped(pager) {
            if begin.elapsed() > STOP_DEADLINE {
                return Err(WorkloadError::Setting("the pager does not stop".to_owned()));
            }
            std::thread::sleep(LOOK_INTERVAL);
        }
        Ok(stopped)
    }
}

/// Whether all threads of `process` stand still.
fn is_stopped(process: Pid) -> bool {
    let process = process.as_raw_nonzero().get().unsigned_abs();
    let Ok(threads) = std::fs::read_dir(format!("/proc/{process}/task")) else { return false };
    let numbers = threads.filter_map(|thread| thread.ok()?.file_name().to_str()?.parse().ok());
    let mut states = numbers.map(|thread| ProcessStat::of_thread(process, thread).ok().and_then(|stat| stat.state()));
    states.all(|state| state == Some('T'))
}

impl Stopped {
    /// Lets the pager go on; what is locked stays so.
    fn go_on(&self) {
        if let Some(pager) = self.pager {
            // One that is gone has taken this process along.
            let _ = kill_process(pager, Signal::CONT);
        }
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        self.go_on();
        // What cannot be unlocked stays.
        let _ = munlockall();
    }
}

/// What was resident when.
#[derive(Clone, Copy, Debug)]
struct Look {
    at: Duration,
    pages: u64,
}

fn resident_pages(statm: &File) -> u64 {
    let mut bytes = [0; 128];
    let length = statm.read_at(&mut bytes, 0).unwrap_or(0);
    let text = String::from_utf8_lossy(&bytes[..length]);
    text.split_ascii_whitespace().nth(1).and_then(|field| field.parse().ok()).unwrap_or(0)
}

/// Lets the pager go on, and looks until nothing leaves any more.
fn watch(statm: &File, stopped: &Stopped, mut looks: Vec<Look>) -> Vec<Look> {
    let start = Instant::now();
    looks.push(Look { at: Duration::ZERO, pages: resident_pages(statm) });
    stopped.go_on();
    let (mut least, mut least_at) = (looks[0].pages, Duration::ZERO);
    loop {
        let has_begun = least + JITTER_PAGES < looks[0].pages;
        if has_begun {
            std::thread::sleep(LOOK_INTERVAL);
        } else {
            let until = Instant::now() + LOOK_INTERVAL;
            while Instant::now() < until {
                std::hint::spin_loop();
            }
        }
        let look = Look { at: start.elapsed(), pages: resident_pages(statm) };
        looks.push(look);
        if look.pages + JITTER_PAGES < least {
            (least, least_at) = (look.pages, look.at);
        }
        if look.at > least_at + if has_begun { REST } else { FIRST_DEADLINE } {
            return looks;
        }
    }
}

/// Pages that left, and in what time, without the first and the last tenth of them; `None` if that was seen too
/// rarely to tell.
fn middle(looks: &[Look]) -> Option<(u64, Duration)> {
    let (first, last) = (looks.first()?.pages, looks.last()?.pages);
    let gone = first.checked_sub(last).filter(|gone| *gone > JITTER_PAGES)?;
    let begin = looks.iter().position(|look| look.pages + gone / 10 <= first)?;
    let end = looks.iter().position(|look| look.pages <= last + gone / 10)?;
    if end < begin + LOOKS_MIN {
        return None;
    }
    Some((looks[begin].pages.checked_sub(looks[end].pages)?, looks[end].at - looks[begin].at))
}

impl Workload for Overflow {
    fn name(&self) -> &'static str {
        "overflow"
    }

    fn run(&self, settings: &WorkloadSettings, clock: &mut PhaseClock) -> Result<Checksum, WorkloadError> {
        let statm = File::open("/proc/self/statm")
            .map_err(|error| WorkloadError::Setting(format!("/proc/self/statm cannot be read: {error}")))?;
        self.round(settings, &FIRST_ROUND, clock, &statm)?;
        self.round(settings, &SECOND_ROUND, clock, &statm)
    }
}

impl Overflow {
    /// All of it once, with an array of its own.
    fn round(
        &self,
        settings: &WorkloadSettings,
        [fill, leave, read]: &[&str; 3],
        clock: &mut PhaseClock,
        statm: &File,
    ) -> Result<Checksum, WorkloadError> {
        let (count, seed) = (settings.size.pages(), settings.seed);
        let mut looks = vec![Look { at: Duration::MAX, pages: u64::MAX }; LOOKS_EXPECTED];
        looks.clear();
        let stopped = Stopped::now()?;
        let mut words = vec![0_u64; count as usize * PAGE_WORDS];
        clock.measure(fill, count, || {
            for (page, words) in words.chunks_exact_mut(PAGE_WORDS).enumerate() {
                words.fill(word_at(seed, page as u64));
            }
        });
        let is_paged = stopped.pager.is_some();
        if is_paged {
            std::thread::sleep(DONOR_REST);
        }
        let left = if is_paged { middle(&watch(statm, &stopped, looks)) } else { None };
        drop(stopped);
        let (pages, elapsed) = left.unwrap_or_default();
        clock.record(leave, pages, elapsed);
        let mut checksum = Ordered::default();
        let mut first_wrong = None;
        clock.measure(read, count, || {
            for (page, words) in words.chunks_exact(PAGE_WORDS).enumerate() {
                let expected = word_at(seed, page as u64);
                if words.iter().any(|word| *word != expected) {
                    first_wrong.get_or_insert(page);
                }
                checksum.add(words[0]);
            }
        });
        match first_wrong {
            Some(page) => Err(wrong(self, format!("page {page} does not hold what was written"))),
            None => Ok(checksum.finish()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn looks(pages: &[u64]) -> Vec<Look> {
        let at = (0..).map(Duration::from_millis);
        pages.iter().zip(at).map(|(pages, at)| Look { at, pages: *pages }).collect()
    }

    #[test]
    fn only_the_middle_counts() {
        let found = middle(&looks(&[10_000, 10_000, 9_500, 9_000, 6_000, 3_000, 1_000, 500, 0, 0, 0]));
        assert_eq!(found, Some((8_000, Duration::from_millis(3))));
        assert_eq!(middle(&looks(&[10_000, 10_000, 5_000, 0, 0])), None, "who looks got no CPU");
    }

    #[test]
    fn what_does_not_leave_has_no_time() {
        assert_eq!(middle(&looks(&[1_000, 1_010, 990, 980])), None);
        assert_eq!(middle(&looks(&[])), None);
        assert_eq!(middle(&looks(&[10_000, 0, 0])), None, "too quick to be seen");
    }

    #[test]
    fn this_process_is_resident() {
        assert!(resident_pages(&File::open("/proc/self/statm").unwrap()) > 0);
    }
}
