//! How long each read request of a block device took, from the kernel's trace events: from the moment a page's bio
//! reaches the block layer until the request that it became part of has ended. Waiting for a free request and being
//! merged with neighbours lies in between. No I/O here: [`super::fault_latency`] records the events.
//!
//! Only requests that begin in one of sixteen runs of eight pages are recorded, so that recording costs nothing worth
//! telling. The sector decides, because it is the same at the beginning and at the end. Runs, and not single pages,
//! because on some devices the kernel reads ahead from multiples of eight pages (`vm.page-cluster`): single ones
//! would be all or none of them.
//!
//! Invariant: a page waits once at most, so an end never takes a beginning of an earlier request on the same sectors.

use std::collections::BTreeMap;

use super::trace::TraceEvent;

/// Sectors (of 512 bytes, eight a page) with none of these bits are recorded: four bits above those of eight pages.
const SKIPPED_SECTOR_BITS: u64 = 0b1111 << 6;

/// Below this a 99th percentile is but the slowest one.
const REQUESTS_MIN: usize = 100;

/// A page reaches the block layer; a request has ended.
const BEGINNING: &str = "block_bio_queue";
const END: &str = "block_rq_complete";

/// What to record of the device with the kernel's number `device` (`dev_t`), with filters.
pub fn events(device: &str) -> [(&'static str, String); 2] {
    // The pattern takes reads with any of the letters that may follow: synchronous, ahead, of metadata.
    let filter = format!("dev == {device} && rwbs ~ \"R*\" && !(sector & {SKIPPED_SECTOR_BITS})");
    [("block/block_bio_queue", filter.clone()), ("block/block_rq_complete", filter)]
}

/// A run of sectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sectors {
    first: u64,
    /// The one after the last.
    end: u64,
}

impl Sectors {
    /// From `7,0 R 4096 + 8 [sort]` and `7,0 R () 4096 + 8 none,0,0 [0]`; `None` unless it is a read.
    fn of_read(details: &str) -> Option<Self> {
        let words: Vec<&str> = details.split(' ').collect();
        if !words.get(1)?.starts_with('R') {
            return None;
        }
        let plus = words.iter().position(|word| *word == "+")?;
        let first: u64 = words[plus - 1].parse().ok()?;
        Some(Self { first, end: first.checked_add(words.get(plus + 1)?.parse().ok()?)? })
    }
}

/// Pairs beginnings and ends.
#[derive(Clone, Debug, Default)]
pub struct ReadRequests {
    /// When the page at each sector began to wait.
    waiting: BTreeMap<u64, f64>,
    latencies_us: Vec<f64>,
}

impl ReadRequests {
    /// Takes the next event, in the order of time.
    pub fn take(&mut self, event: &TraceEvent) {
        let Some(sectors) = Sectors::of_read(&event.details) else { return };
        match event.name.as_str() {
            BEGINNING => {
                // One whose end was not seen will not end any more.
                self.remove(sectors);
                self.waiting.insert(sectors.first, event.time_us);
            }
            END => {
                if let Some(begun_us) = self.remove(sectors) {
                    self.latencies_us.push(event.time_us - begun_us);
                }
            }
            _ => {}
        }
    }

    /// No process waits for these any more; gives when the first of them began to.
    fn remove(&mut self, sectors: Sectors) -> Option<f64> {
        let pages: Vec<u64> = self.waiting.range(sectors.first..sectors.end).map(|(sector, _)| *sector).collect();
        pages.into_iter().filter_map(|sector| self.waiting.remove(&sector)).reduce(f64::min)
    }

    /// The median and the 99th percentile in microseconds: each the time that this part of the requests did not
    /// exceed. `None` when there were too few to tell.
    pub fn percentiles(&self) -> Option<(f64, f64)> {
        let mut sorted = self.latencies_us.clone();
        sorted.sort_by(f64::total_cmp);
        let at = |percent: usize| sorted[(sorted.len() * percent).div_ceil(100) - 1];
        (sorted.len() >= REQUESTS_MIN).then(|| (at(50), at(99)))
    }

    /// How many were seen from their beginning to their end.
    pub fn count(&self) -> usize {
        self.latencies_us.len()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Of a quicksort whose pages come back over a loop device, Linux 6.18: one page is put behind the one before it,
    /// another one before it, two go alone, and the last two are still waited for.
    const CAPTURED: &str = "\
  spillway-bench-20035   [001] .....  1861.019909: block_bio_queue: 7,0 R 4360 + 8 [spillway-bench]
  spillway-bench-20035   [001] .....  1861.019909: block_getrq: 7,0 R 4360 + 8 [spillway-bench]
  spillway-bench-20035   [001] .....  1861.019910: block_bio_queue: 7,0 R 4368 + 8 [spillway-bench]
  spillway-bench-20035   [001] .....  1861.019910: block_bio_backmerge: 7,0 R 4368 + 8 [spillway-bench]
  spillway-bench-20035   [001] .....  1861.019910: block_bio_queue: 7,0 R 4160 + 8 [spillway-bench]
  spillway-bench-20035   [001] .....  1861.019911: block_getrq: 7,0 R 4160 + 8 [spillway-bench]
  spillway-bench-20035   [001] .....  1861.019911: block_bio_queue: 7,0 R 4152 + 8 [spillway-bench]
  spillway-bench-20035   [001] .....  1861.019912: block_bio_frontmerge: 7,0 R 4152 + 8 [spillway-bench]
  spillway-bench-20035   [001] .....  1861.019912: block_rq_issue: 7,0 R 8192 () 4360 + 16 be,0,4 [spillway-bench]
  spillway-bench-20035   [001] .....  1861.019913: block_rq_issue: 7,0 R 8192 () 4152 + 16 be,0,4 [spillway-bench]
     ksoftirqd/1-22      [001] ..s..  1861.019941: block_rq_complete: 7,0 R () 4360 + 16 be,0,4 [0]
     ksoftirqd/1-22      [001] ..s..  1861.019941: block_rq_complete: 7,0 R () 4152 + 16 be,0,4 [0]
  spillway-bench-20035   [001] .....  1861.019946: block_bio_queue: 7,0 R 4376 + 8 [spillway-bench]
  spillway-bench-20035   [001] .....  1861.019946: block_getrq: 7,0 R 4376 + 8 [spillway-bench]
  spillway-bench-20035   [001] .....  1861.019947: block_bio_queue: 7,0 R 4096 + 8 [spillway-bench]
  spillway-bench-20035   [001] .....  1861.019947: block_getrq: 7,0 R 4096 + 8 [spillway-bench]
  spillway-bench-20035   [001] .....  1861.019947: block_rq_issue: 7,0 R 4096 () 4376 + 8 be,0,4 [spillway-bench]
  spillway-bench-20035   [001] .....  1861.019948: block_rq_issue: 7,0 R 4096 () 4096 + 8 be,0,4 [spillway-bench]
     ksoftirqd/1-22      [001] ..s..  1861.019997: block_rq_complete: 7,0 R () 4376 + 8 be,0,4 [0]
            io-1-20023   [000] ..s1.  1861.020038: block_rq_complete: 7,0 R () 4096 + 8 be,0,4 [0]
  spillway-bench-20035   [001] .....  1861.020057: block_bio_queue: 7,0 R 4264 + 8 [spillway-bench]
  spillway-bench-20035   [001] .....  1861.020058: block_getrq: 7,0 R 4264 + 8 [spillway-bench]
  spillway-bench-20035   [001] .....  1861.020059: block_bio_queue: 7,0 R 4224 + 8 [spillway-bench]
";

    fn taken(lines: &str) -> ReadRequests {
        let mut requests = ReadRequests::default();
        lines.lines().filter_map(TraceEvent::parse).for_each(|event| requests.take(&event));
        requests
    }

    fn rounded(requests: &ReadRequests) -> Vec<i64> {
        requests.latencies_us.iter().map(|latency| latency.round() as i64).collect()
    }

    fn event(time_us: f64, name: &str, details: String) -> TraceEvent {
        TraceEvent { thread: 1, time_us, name: name.to_owned(), details }
    }

    fn begin(requests: &mut ReadRequests, time_us: f64, sector: u64, sectors: u64) {
        requests.take(&event(time_us, BEGINNING, format!("7,0 R {sector} + {sectors} [sort + 1]")));
    }

    fn end(requests: &mut ReadRequests, time_us: f64, sector: u64, sectors: u64) {
        requests.take(&event(time_us, END, format!("7,0 R () {sector} + {sectors} none,0,0 [0]")));
    }

    #[test]
    fn lines_of_the_kernel_are_paired() {
        let requests = taken(CAPTURED);
        assert_eq!(rounded(&requests), [32, 31, 51, 91]);
        assert_eq!(requests.waiting.keys().copied().collect::<Vec<u64>>(), [4224, 4264]);
    }

    #[test]
    fn neighbours_that_became_one_request_are_one_in_whatever_order_they_came() {
        let mut requests = ReadRequests::default();
        // The second is put before the first.
        begin(&mut requests, 1.0, 4104, 8);
        begin(&mut requests, 2.0, 4096, 8);
        begin(&mut requests, 3.0, 4112, 8);
        end(&mut requests, 51.0, 4096, 24);
        end(&mut requests, 60.0, 4096, 24);
        assert_eq!(rounded(&requests), [50], "from the first of them, and once");
    }

    #[test]
    fn a_beginning_whose_end_was_not_seen_is_forgotten() {
        let mut requests = ReadRequests::default();
        begin(&mut requests, 1.0, 4104, 8);
        // A page of a larger bio lies where the old one was.
        begin(&mut requests, 1000.0, 4096, 16);
        end(&mut requests, 1030.0, 4096, 16);
        end(&mut requests, 1040.0, 8192, 8);
        assert_eq!(rounded(&requests), [30]);
    }

    #[test]
    fn writes_and_odd_lines_are_passed_over() {
        let mut requests = ReadRequests::default();
        for details in [
            "7,0 W 4096 + 8 [kswapd0]",
            "7,0 R",
            "",
            "7,0 R + 8 [x]",
            "7,0 R 4096 +",
            "7,0 R 18446744073709551615 + 8 [x]",
        ] {
            requests.take(&event(1.0, BEGINNING, details.to_owned()));
        }
        end(&mut requests, 9.0, 4096, 8);
        assert_eq!(requests.count(), 0);
    }

    #[test]
    fn percentiles_are_of_requests_and_need_a_hundred() {
        let mut requests = ReadRequests::default();
        for (place, latency_us) in (1..=100).rev().enumerate() {
            assert_eq!(requests.percentiles(), None);
            begin(&mut requests, 0.0, place as u64 * 8, 8);
            end(&mut requests, f64::from(latency_us), place as u64 * 8, 8);
        }
        assert_eq!(requests.percentiles(), Some((50.0, 99.0)));
    }

    #[test]
    fn the_filter_takes_one_run_of_eight_pages_of_sixteen() {
        let [(begins, filter), (ends, same)] = events("7340035");
        assert_eq!((begins, ends), ("block/block_bio_queue", "block/block_rq_complete"));
        assert!(begins.ends_with(BEGINNING) && ends.ends_with(END));
        assert_eq!(filter, "dev == 7340035 && rwbs ~ \"R*\" && !(sector & 960)");
        assert_eq!(filter, same);
        let taken: Vec<u64> = (0..256_u64).filter(|page| (page * 8) & SKIPPED_SECTOR_BITS == 0).collect();
        assert_eq!(taken, (0..8).chain(128..136).collect::<Vec<u64>>());
    }

    /// A request of the model: its first page, when each of its pages came, and when it ended.
    type Modelled = (u64, Vec<f64>, f64);

    fn modelled() -> impl Strategy<Value = Vec<Modelled>> {
        let request = (0_u64..40, proptest::collection::vec(0.0..500.0_f64, 1..8), 500.0..900.0_f64);
        proptest::collection::vec(request, 0..30)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn each_request_counts_once_from_its_first_page(rounds in modelled()) {
            let (mut requests, mut expected) = (ReadRequests::default(), Vec::new());
            // One after the other over the same few sectors, the pages of each in any order of arrival.
            for (round, (page, arrivals, end_us)) in rounds.iter().enumerate() {
                let start_us = round as f64 * 1000.0;
                let mut pages: Vec<(f64, u64)> = arrivals.iter().copied().zip(*page..).collect();
                pages.sort_by(|one, other| one.0.total_cmp(&other.0));
                pages.iter().for_each(|(at_us, page)| begin(&mut requests, start_us + at_us, page * 8, 8));
                end(&mut requests, start_us + end_us, page * 8, arrivals.len() as u64 * 8);
                expected.push((end_us - pages[0].0).round() as i64);
            }
            prop_assert_eq!(rounded(&requests), expected);
            prop_assert!(requests.waiting.is_empty());
        }
    }
}
