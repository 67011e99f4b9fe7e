//! Two borrowers at one donor over TCP: one reads without pause in large requests, the other brings in one page after
//! the other. What its page-ins take, with the donor's bandwidth not shared, shared equally, and shared by weight.
//!
//! "Not shared" is a donor that takes the two for one machine: they come from one address. Both borrowers and the donor
//! are threads of this process, over the product's own queue pairs; no kernel pages. So the figures are the donor's and
//! the network's, without the fault's.

mod borrower;
mod link;

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use spillway_donor::{DonorConfig, ListenAddress};
use spillway_fabric::key::ClusterKey;
use spillway_fabric::key_source::KeySource;
use spillway_fabric::queue_pair::Operation;
use spillway_fabric::site::Site;
use spillway_fabric::tcp::Weights;

use self::borrower::{Borrower, SLAB_BYTES, Wish};
use self::link::{Laid, Link};
use spillway_bench::harness::HarnessError;
use spillway_bench::plot::lines::{Line, LineChart};
use spillway_bench::result::{Better, MIB_PER_SECOND, MICROSECONDS, StudyResult};
use spillway_bench::studies::{Context, Study};
use spillway_workloads::size::MIB;

/// One of the longest reads of the pager, and as many as its fault thread has under way.
const FLOOD: Wish = Wish { operation: Operation::Read, bytes: 128 << 10, depth: 31 };

/// A program that waits for each of its pages.
const PAGE_INS: Wish = Wish { operation: Operation::Read, bytes: 4 << 10, depth: 1 };

/// The weight of the borrower that brings in pages, where it has one.
const WEIGHT: u32 = 8;

const LINKS: [Link; 2] = [Link::Loopback, Link::Gigabit];

/// What happens beside the page-ins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Beside {
    Nothing,
    NotShared,
    Equal,
    Weighted,
}

impl Beside {
    const ALL: [Self; 4] = [Self::Nothing, Self::NotShared, Self::Equal, Self::Weighted];

    fn name(self) -> &'static str {
        match self {
            Self::Nothing => "alone",
            Self::NotShared => "flood, not shared",
            Self::Equal => "flood, equal shares",
            Self::Weighted => "flood, weight 8 to 1",
        }
    }
}

const GOAL: &str = "p99 of a page-in beside a flood, shared by weight, below that of no shares";

/// The study of two borrowers at one donor.
#[derive(Clone, Copy, Debug)]
pub struct IsolationStudy;

fn case(link: Link, what: &str) -> String {
    format!("{}, {what}", link.name())
}

const P50: &str = "page-in p50";
const P99: &str = "page-in p99";
const FLOODED: &str = "flood";

impl Study for IsolationStudy {
    fn name(&self) -> &'static str {
        "isolation"
    }

    fn title(&self) -> &'static str {
        "page-ins of one borrower beside the flood of another one, by the donor's shares"
    }

    fn rounds(&self) -> usize {
        3
    }

    fn seconds_per_round(&self) -> (u64, u64) {
        (18, 5)
    }

    fn run(&self, context: &Context, result: &mut StudyResult) -> Result<(), HarnessError> {
        let all: Vec<(Link, Beside)> =
            LINKS.into_iter().flat_map(|link| Beside::ALL.map(|beside| (link, beside))).collect();
        let name = |(link, beside): (Link, Beside)| format!("{}, {}", link.name(), beside.name());
        let outcome = context.interleave(result, &all, name, |round, (link, beside), result| {
            measure(context, result, round, link, beside)
        });
        for link in LINKS {
            let (weighted, not_shared) = (Beside::Weighted.name(), Beside::NotShared.name());
            result.goal(GOAL, &case(link, P99), weighted, not_shared, 1.0, Better::Lower);
        }
        outcome
    }

    fn plots(&self, result: &StudyResult) -> Vec<(String, String)> {
        let plot = |link: Link| {
            let values = |what: &str| {
                let of = |beside: Beside| result.measure(&case(link, what), beside.name())?.summary;
                Beside::ALL.map(of).to_vec()
            };
            let line = |what: &str| Line { name: what.to_owned(), values: values(what) };
            let chart = LineChart {
                title: format!("page-ins over {} (us) beside a flood", link.name()),
                steps_title: "beside".to_owned(),
                steps: Beside::ALL.map(|beside| beside.name().to_owned()).to_vec(),
                lines: vec![line(P50), line(P99)],
            };
            let name = if link == Link::Loopback { "isolation-loopback" } else { "isolation-gigabit" };
            (name.to_owned(), chart.svg())
        };
        LINKS.map(plot).to_vec()
    }
}

fn config(link: Link, beside: Beside, key: &ClusterKey) -> Result<DonorConfig, HarnessError> {
    let [first, _] = link.borrowers();
    let named = if beside == Beside::Weighted { vec![(IpAddr::V4(first), WEIGHT)] } else { Vec::new() };
    Ok(DonorConfig {
        memory_bytes: 4 * u64::from(SLAB_BYTES),
        headroom_bytes: 0,
        listen: vec![ListenAddress::Tcp(format!("{}:0", link.donor()))],
        unix_path: None,
        key: Some(KeySource::from(key.clone())),
        machine_limit_bytes: None,
        weights: Weights::new(named).map_err(|error| HarnessError::failed("weights", error.to_string()))?,
        site: Site::default(),
        slab_prepared_count: 2,
        slab_size_hint_bytes: SLAB_BYTES.into(),
    })
}

fn measure(
    context: &Context,
    result: &mut StudyResult,
    round: usize,
    link: Link,
    beside: Beside,
) -> Result<(), HarnessError> {
    let laid = Laid::lay(link, &context.shop.interrupt)?;
    let key = ClusterKey::generate().map_err(HarnessError::system("making a key"))?;
    let donor = laid.start_donor(config(link, beside, &key)?)?;
    let at = donor.tcp_address().ok_or_else(|| HarnessError::failed("the donor", "it has no address"))?;
    let time = Duration::from_millis(context.choose(2000, 300));
    let (page_ins, flooded) = page_ins_beside(link, beside, at, &key, time)?;
    let percentile = |percent: usize| page_ins[(page_ins.len() - 1) * percent / 100];
    result.record(round, &case(link, P50), beside.name(), MICROSECONDS, percentile(50));
    result.record(round, &case(link, P99), beside.name(), MICROSECONDS, percentile(99));
    if beside != Beside::Nothing {
        let rate = flooded as f64 * f64::from(FLOOD.bytes) / MIB as f64 / time.as_secs_f64();
        result.record(round, &case(link, FLOODED), beside.name(), MIB_PER_SECOND, rate);
    }
    donor.stop();
    Ok(())
}

/// The times of all page-ins, the shortest first, and the requests of the flood beside them.
fn page_ins_beside(
    link: Link,
    beside: Beside,
    donor: SocketAddr,
    key: &ClusterKey,
    time: Duration,
) -> Result<(Vec<f64>, usize), HarnessError> {
    let [first, second] = link.borrowers();
    let flooder = if beside == Beside::NotShared { first } else { second };
    let mut victim = Borrower::start(first, donor, key, PAGE_INS)?;
    let is_over = AtomicBool::new(false);
    let (mut times, flooded) = std::thread::scope(|scope| {
        let flood = (beside != Beside::Nothing).then(|| {
            scope.spawn(|| Borrower::start(flooder, donor, key, FLOOD)?.run(|| is_over.load(Ordering::Relaxed)))
        });
        // The flood has begun by then.
        std::thread::sleep(time / 4);
        let end = Instant::now() + time;
        let times = victim.run(|| Instant::now() >= end);
        is_over.store(true, Ordering::Relaxed);
        let flooded = match flood {
            Some(flood) => flood.join().expect("a borrower does not panic")?.len() * 4 / 5,
            None => 0,
        };
        Ok::<_, HarnessError>((times?, flooded))
    })?;
    if times.is_empty() {
        return Err(HarnessError::failed("a borrower", "no page came in"));
    }
    times.sort_by(f64::total_cmp);
    Ok((times, flooded))
}

#[cfg(test)]
mod tests {
    use super::*;
    use spillway_bench::machine::Machine;

    #[test]
    fn a_short_look_over_loopback_has_all_figures() {
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        let context = crate::studies::tests::context(directory.path(), 1);
        let mut result = StudyResult::new("isolation", "", true, Machine::default());
        for beside in Beside::ALL {
            measure(&context, &mut result, 0, Link::Loopback, beside).unwrap();
        }
        for beside in Beside::ALL {
            let median = |what: &str| result.median(&case(Link::Loopback, what), beside.name());
            assert!(median(P50) <= median(P99) && median(P50) > Some(0.0), "{beside:?}");
            assert_eq!(median(FLOODED).is_some_and(|rate| rate > 0.0), beside != Beside::Nothing);
        }
        assert_eq!(IsolationStudy.plots(&result)[0].1.matches("<circle").count(), 8);
    }
}
