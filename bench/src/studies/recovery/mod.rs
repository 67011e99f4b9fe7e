//! What it takes until all is well again: a donor is killed or falls silent, dies under a load, is drained, or needs
//! its memory for its own machine. Donors and device are processes of their own; a load and probes in this process
//! verify every page.
//!
//! One round is one cluster, and its cases follow each other in it (the file that has each step):
//! 1. Donors are killed, one after the other, and then one is stopped, while probes read pages that only came from it
//!    (`first_pages`). After each death all copies are made again.
//! 2. Under a load, a random donor dies, then the busiest one, and one is drained (`under_load`).
//! 3. Without a load, a donor is drained, and the donor of a small machine is squeezed (`memory_back`).
//!
//! Infiniswap's figures stand beside ours as goals. There, VoltDB lost 34.5 % when a random machine was switched off,
//! 58.3 % when the busiest one was, and 2.3 % with each slab that was asked back.

mod cluster;
mod figures;
mod load;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use spillway_fabric::control::message::DrainOrder;
use spillway_volume::status::DeviceStatus;
use spillway_workloads::random::Random;
use spillway_workloads::size::{GIB, MIB, PAGE_SIZE_BYTES, Size};

use self::cluster::{Cluster, Sizes};
use self::figures::{Choice, chosen, first_copies, first_reads_ms, percentile, rate, recall_cost, undisturbed_rate};
use self::load::Pages;
use super::{Context, Study};
use crate::harness::HarnessError;
use crate::plot::lines::{Line, LineChart};
use crate::result::{
    Better, MILLISECONDS, MILLISECONDS_LOST, OPERATIONS_PER_SECOND, PER_CENT_LOST, SECONDS, SECONDS_PER_GIB,
    StudyResult,
};

/// The product's default slab size, so that figures for each slab are of what users have.
const SIZES: Sizes = Sizes { slab_count: 16, slab: Size(32 * MIB), headroom: Size(128 * MIB) };
/// The same of a quick run.
const SIZES_QUICK: Sizes = Sizes { slab_count: 16, slab: Size(4 * MIB), headroom: Size(16 * MIB) };

/// Donors with room for everything: six die, and three are there at the end.
const DONORS: usize = 9;

/// Donors that are killed while probes read from them.
const KILLED: usize = 3;

/// Probes: with [`KILLED`], more than a hundred first pages a round, so that their 99th percentile is not the slowest.
const PROBES: u64 = 40;

/// Threads of the load, so that requests are under way to most donors.
const WORKERS: u64 = 8;

/// How long the load is looked at before something happens to it, and afterwards.
const WINDOW: Duration = Duration::from_secs(1);

/// How long probes read before a death, so that each of them has had pages.
const WARM_UP: Duration = Duration::from_millis(100);

/// Beyond detection, a page has to be here within this time.
const FIRST_PAGE_MS_MAX: f64 = 50.0;

/// The bound of a recall for which there is room elsewhere (`docs/cluster-protocol.md`).
const RECALL_SECONDS_MAX: f64 = 10.0;

/// What a slab that is asked back may cost a load, in per cent (Infiniswap).
const RECALL_PERCENT_MAX: f64 = 2.3;

const KILL: &str = "killed";
const STOP: &str = "silent";
const RANDOM: &str = "a random one, under load";
const BUSIEST: &str = "the busiest one, under load";
const DRAINED: &str = "drained";
const DRAINED_LOADED: &str = "drained, under load";
const SQUEEZED: &str = "needed by its machine";

const FIRST_P50: &str = "donor's death to the first page, p50";
const FIRST_P99: &str = "donor's death to the first page, p99";
const DETECTION: &str = "kill to the end of its connections";
const BEYOND_P50: &str = "end of its connections to the first page, p50";
const BEYOND_P99: &str = "end of its connections to the first page, p99";
const WHOLE: &str = "donor's death until all copies are there";
const WHOLE_PER_GIB: &str = "the same, for each GiB that it held";
const BACK: &str = "donor's memory back";
const BACK_PER_GIB: &str = "the same, for each GiB of it";
const COST_PERCENT: &str = "load's loss for each recalled slab";
const COST_MS: &str = "load's time lost for each recalled slab";

const UNDISTURBED: &str = "before and after";
const MEANWHILE: &str = "until all copies are there";

/// The study of recovery.
#[derive(Clone, Copy, Debug)]
pub struct RecoveryStudy;

fn load_case(what: &str) -> String {
    format!("load, {what}")
}

impl Study for RecoveryStudy {
    fn name(&self) -> &'static str {
        "recovery"
    }

    fn title(&self) -> &'static str {
        "a donor's death, and its memory asked back: until pages come, and until all is well again"
    }

    fn rounds(&self) -> usize {
        2
    }

    fn seconds_per_round(&self) -> (u64, u64) {
        (28, 18)
    }

    fn run(&self, context: &Context, result: &mut StudyResult) -> Result<(), HarnessError> {
        let outcome =
            context.interleave(result, &["cluster"], str::to_owned, |round, _, result| measure(context, round, result));
        judge(result);
        outcome
    }

    fn plots(&self, result: &StudyResult) -> Vec<(String, String)> {
        let summary = |case: &str, subject: &str| result.measure(case, subject)?.summary;
        let chart = |title: &str, steps_title: &str, steps: &[&str], lines: Vec<Line>| {
            let steps = steps.iter().map(|step| (*step).to_owned()).collect();
            LineChart { title: title.to_owned(), steps_title: steps_title.to_owned(), steps, lines }.svg()
        };
        let events = [RANDOM, BUSIEST, DRAINED_LOADED];
        let of_load = |when: &str| Line {
            name: when.to_owned(),
            values: events.map(|event| summary(&load_case(event), when)).to_vec(),
        };
        let dead = [KILL, STOP];
        let first = [("p50", FIRST_P50), ("p99", FIRST_P99)];
        let of_first = |(name, case): (&str, &str)| Line {
            name: name.to_owned(),
            values: dead.map(|subject| summary(case, subject)).to_vec(),
        };
        vec![
            (
                "recovery-first-page".to_owned(),
                chart("first page after a donor's death (ms)", "donor", &dead, first.map(of_first).to_vec()),
            ),
            (
                "recovery-load".to_owned(),
                chart("verified requests a second", "donor", &events, [UNDISTURBED, MEANWHILE].map(of_load).to_vec()),
            ),
        ]
    }
}

/// A cluster, its pages, and what its draws come from.
struct Stage<'shop> {
    // Fields are dropped in this order: a device that is open cannot be stopped.
    pages: Pages,
    cluster: Cluster<'shop>,
    random: Random,
    round: usize,
}

fn measure(context: &Context, round: usize, result: &mut StudyResult) -> Result<(), HarnessError> {
    let sizes = context.choose(SIZES, SIZES_QUICK);
    let cluster = Cluster::start(&context.shop, DONORS, sizes)?;
    let pages = Pages::fill(cluster.device(), sizes.slab_count, sizes.slab.0 / PAGE_SIZE_BYTES)?;
    cluster.until_whole(None)?;
    let mut stage = Stage { cluster, pages, random: Random::new(round as u64 + 1), round };
    stage.first_pages(result)?;
    stage.under_load(result)?;
    stage.memory_back(result)?;
    stage.pages.verify()
}

/// A donor that is to die or to be emptied.
#[derive(Clone, Copy, Debug)]
struct Victim {
    place: usize,
    /// Slabs of which it has a copy, the first or the second.
    slabs: u64,
}

impl Stage<'_> {
    /// Chooses among the living large donors, by what was used since `before`.
    fn victim(&mut self, choice: Choice, before: &DeviceStatus) -> Result<(Victim, DeviceStatus), HarnessError> {
        let (now, living) = (self.cluster.look()?, self.cluster.living());
        let place = chosen(choice, (before, &now), &living, &mut self.random);
        let place = place.ok_or_else(|| HarnessError::failed("the cluster", "no donor has a slab's first copy"))?;
        Ok((Victim { place, slabs: now.donors[place].slabs }, now))
    }

    fn bytes(&self, victim: Victim) -> f64 {
        (victim.slabs * self.cluster.slab_bytes()) as f64
    }

    /// Notes what is going on.
    fn tell(&self, what: &str) {
        eprintln!("recovery: round {}: {what}", self.round + 1);
    }

    /// Records the time from a death until all copies are there.
    fn whole(&self, result: &mut StudyResult, subject: &str, victims: &[(Victim, Duration)]) {
        let seconds: f64 = victims.iter().map(|(_, time)| time.as_secs_f64()).sum();
        let gib: f64 = victims.iter().map(|(victim, _)| self.bytes(*victim)).sum::<f64>() / GIB as f64;
        result.record(self.round, WHOLE, subject, SECONDS, seconds / victims.len() as f64);
        result.record(self.round, WHOLE_PER_GIB, subject, SECONDS_PER_GIB, seconds / gib);
    }

    /// Donors die while probes read what reads prefer them for.
    fn first_pages(&mut self, result: &mut StudyResult) -> Result<(), HarnessError> {
        let (mut first, mut beyond, mut detection) = (Vec::new(), Vec::new(), Vec::new());
        let mut whole = Vec::new();
        for _ in 0..KILLED {
            self.tell("a donor is killed");
            let (victim, reads, (killed, closed)) = self.probed(|cluster, place| cluster.kill(place))?;
            first.extend(first_reads_ms(&reads, closed).iter().map(|ms| ms + (closed - killed).as_secs_f64() * 1e3));
            beyond.extend(first_reads_ms(&reads, closed));
            detection.push((closed - killed).as_secs_f64() * 1e3);
            whole.push((victim, self.cluster.until_whole(Some(victim.place))? - killed));
        }
        self.percentiles(result, (FIRST_P50, FIRST_P99), KILL, &first);
        self.percentiles(result, (BEYOND_P50, BEYOND_P99), KILL, &beyond);
        let mean = detection.iter().sum::<f64>() / detection.len() as f64;
        result.record(self.round, DETECTION, KILL, MILLISECONDS, mean);
        self.whole(result, KILL, &whole);

        self.tell("a donor is stopped");
        let (victim, reads, (stopped, _)) = self.probed(|cluster, place| {
            let stopped = cluster.freeze(place)?;
            Ok((stopped, stopped))
        })?;
        self.percentiles(result, (FIRST_P50, FIRST_P99), STOP, &first_reads_ms(&reads, stopped));
        let whole = [(victim, self.cluster.until_whole(Some(victim.place))? - stopped)];
        self.cluster.bury(victim.place);
        self.whole(result, STOP, &whole);
        Ok(())
    }

    fn percentiles(&self, result: &mut StudyResult, (p50, p99): (&str, &str), subject: &str, samples: &[f64]) {
        for (case, percent) in [(p50, 50), (p99, 99)] {
            if let Some(value) = percentile(samples, percent) {
                result.record(self.round, case, subject, MILLISECONDS, value);
            }
        }
    }

    /// Has probes read the pages of a random donor, `end`s that, and has each read one page more. What each probe saw.
    fn probed<Moments>(
        &mut self,
        end: impl FnOnce(&mut Cluster<'_>, usize) -> Result<Moments, HarnessError>,
    ) -> Result<(Victim, Vec<Vec<figures::Read>>, Moments), HarnessError> {
        let before = self.cluster.look()?;
        let (victim, now) = self.victim(Choice::Random, &before)?;
        let slabs: Vec<u64> = first_copies(&now, victim.place).into_iter().map(|square| square as u64).collect();
        assert_eq!(now.slab_map.slabs_per_square, 1, "a small device has a square for each slab");
        let seed = self.random.next_u64();
        let (has_happened, pages, cluster) = (AtomicBool::new(false), &self.pages, &mut self.cluster);
        let (moments, reads) = std::thread::scope(|scope| {
            let probe = |probe| pages.probe(&slabs, Random::new(seed ^ probe), &has_happened);
            let probes: Vec<_> = (0..PROBES).map(|number| scope.spawn(move || probe(number))).collect();
            std::thread::sleep(WARM_UP);
            let moments = end(cluster, victim.place);
            has_happened.store(true, Ordering::Relaxed);
            let joined = probes.into_iter().map(|probe| probe.join().expect("a probe does not panic"));
            (moments, joined.collect::<Result<Vec<_>, _>>())
        });
        Ok((victim, reads?, moments?))
    }

    /// A load goes on while donors die and one is drained.
    fn under_load(&mut self, result: &mut StudyResult) -> Result<(), HarnessError> {
        self.tell("donors die, and one is drained, under a load");
        let is_over = AtomicBool::new(false);
        let seed = self.random.next_u64();
        // The threads borrow the pages; the rest of the stage is needed beside them.
        let pages = &self.pages;
        let cluster = &mut self.cluster;
        let random = &mut self.random;
        let (events, ends) = std::thread::scope(|scope| {
            let work = |worker| pages.work((worker, WORKERS), Random::new(seed ^ worker), &is_over);
            let workers: Vec<_> = (0..WORKERS).map(|worker| scope.spawn(move || work(worker))).collect();
            let events = events(cluster, random);
            is_over.store(true, Ordering::Relaxed);
            let joined = workers.into_iter().map(|worker| worker.join().expect("a worker does not panic"));
            (events, joined.collect::<Result<Vec<_>, _>>())
        });
        let (events, ends) = (events?, ends?.concat());
        for event in events {
            let Event { subject, victim, begun, ended } = event;
            let undisturbed = undisturbed_rate(&ends, (begun, ended), WINDOW);
            let meanwhile = rate(&ends, begun, ended);
            let case = load_case(subject);
            result.record(self.round, &case, UNDISTURBED, OPERATIONS_PER_SECOND, undisturbed);
            result.record(self.round, &case, MEANWHILE, OPERATIONS_PER_SECOND, meanwhile);
            if subject != DRAINED_LOADED {
                self.whole(result, subject, &[(victim, ended - begun)]);
                continue;
            }
            self.back(result, subject, self.bytes(victim), ended - begun);
            if let Some(cost) = recall_cost(undisturbed, meanwhile, ended - begun, victim.slabs) {
                result.record(self.round, COST_PERCENT, subject, PER_CENT_LOST, cost.percent);
                result.record(self.round, COST_MS, subject, MILLISECONDS_LOST, cost.lost_ms);
            }
        }
        Ok(())
    }

    fn back(&self, result: &mut StudyResult, subject: &str, bytes: f64, time: Duration) {
        let seconds = time.as_secs_f64();
        result.record(self.round, BACK, subject, SECONDS, seconds);
        result.record(self.round, BACK_PER_GIB, subject, SECONDS_PER_GIB, seconds * GIB as f64 / bytes);
    }

    /// Donors get their memory back, and nothing else happens.
    fn memory_back(&mut self, result: &mut StudyResult) -> Result<(), HarnessError> {
        self.tell("donors give memory back");
        let before = self.cluster.look()?;
        let (victim, _) = self.victim(Choice::Random, &before)?;
        let (lent_bytes, begun, ended) = self.cluster.empty(victim.place)?;
        self.back(result, DRAINED, lent_bytes as f64, ended - begun);
        self.cluster.drain(victim.place, DrainOrder::Undo)?;
        self.cluster.until_whole(None)?;
        let (bytes, time) = self.cluster.squeeze()?;
        self.back(result, SQUEEZED, bytes as f64, time);
        self.cluster.until_whole(None).map(|_| ())
    }
}

/// What happened to the load.
struct Event {
    subject: &'static str,
    victim: Victim,
    begun: Instant,
    ended: Instant,
}

/// A random donor dies, then the busiest, and then a donor is emptied, which lends again afterwards.
fn events(cluster: &mut Cluster<'_>, random: &mut Random) -> Result<Vec<Event>, HarnessError> {
    let mut events = Vec::new();
    for (subject, choice) in [(RANDOM, Choice::Random), (BUSIEST, Choice::Busiest), (DRAINED_LOADED, Choice::Random)] {
        let before = cluster.look()?;
        std::thread::sleep(WINDOW);
        let (now, living) = (cluster.look()?, cluster.living());
        let place = chosen(choice, (&before, &now), &living, random);
        let place = place.ok_or_else(|| HarnessError::failed("the cluster", "no donor has a slab's first copy"))?;
        let victim = Victim { place, slabs: now.donors[place].slabs };
        let (begun, ended) = if subject == DRAINED_LOADED {
            let (_, begun, ended) = cluster.empty(place)?;
            cluster.drain(place, DrainOrder::Undo)?;
            (begun, ended)
        } else {
            let (killed, _) = cluster.kill(place)?;
            (killed, cluster.until_whole(Some(place))?)
        };
        std::thread::sleep(WINDOW);
        events.push(Event { subject, victim, begun, ended });
    }
    Ok(events)
}

fn judge(result: &mut StudyResult) {
    let bounds = [
        ("a page within 50 ms of the end of a dead donor's connections, p99", BEYOND_P99, KILL, FIRST_PAGE_MS_MAX),
        ("a recall ends within 10 s", BACK, DRAINED, RECALL_SECONDS_MAX),
        ("a recall ends within 10 s", BACK, DRAINED_LOADED, RECALL_SECONDS_MAX),
        ("a recall ends within 10 s", BACK, SQUEEZED, RECALL_SECONDS_MAX),
        ("a recalled slab costs a load at most 2.3 % (Infiniswap)", COST_PERCENT, DRAINED_LOADED, RECALL_PERCENT_MAX),
    ];
    for (goal, case, subject, bound) in bounds {
        let ratio = result.median(case, subject).map(|median| median / bound);
        result.goal_of(goal, &format!("{case}, {subject}"), ratio, 1.0, Better::Lower);
    }
    let losses = [
        ("a load loses at most 34.5 % when a random donor dies (Infiniswap)", RANDOM, 1.0 - 0.345),
        ("a load loses at most 58.3 % when the busiest donor dies (Infiniswap)", BUSIEST, 1.0 - 0.583),
    ];
    for (goal, subject, bound) in losses {
        result.goal(goal, &load_case(subject), MEANWHILE, UNDISTURBED, bound, Better::Higher);
    }
    result.compare(&load_case(DRAINED_LOADED), MEANWHILE, UNDISTURBED);
}
