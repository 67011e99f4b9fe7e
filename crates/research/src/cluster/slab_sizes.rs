//! What the size of a slab costs and brings, from 1 MiB to 1 GiB. Infiniswap left this study to future work.
//!
//! The containers of [`balance`](super::balance) run on 16 machines. Their remote memory is written at 1.6 GiB a
//! second, whatever the size of a slab. Then the donor that lends most takes back 4 GiB. At last every other container
//! ends, and what it had is discarded.
//!
//! A kernel gives programs their places in swap in clusters of 2 MiB. Programs that swap out one after the other have
//! their places together ([`Layout::Apart`]); programs that swap out at the same time are mixed ([`Layout::Mixed`]). So
//! a slab may outlive most of what is in it. The truth lies in between.

use std::time::{Duration, Instant};

use spillway_donor::lender::Input;
use spillway_volume::slab_map::slab_entry::SlabEntry;
use spillway_volume::steward::placement::{Random, XorShift};

use super::balance::{
    ACTIVE_DONORS, Balance, CONTAINERS_PER_32_MACHINES, Container, HEADROOM_SLABS, MEMORY_SLABS, draw_container,
};
use spillway_simulator::cluster::{Cluster, Load};
use spillway_simulator::settings::{SLAB_SIZE_BYTES, Settings, WORK_INTERVAL};

/// Machines of a run.
const MACHINES: u32 = 16;

/// Memory of a machine, and what stays free of it, in bytes.
const MEMORY_BYTES: u64 = MEMORY_SLABS * SLAB_SIZE_BYTES;
const HEADROOM_BYTES: u64 = HEADROOM_SLABS * SLAB_SIZE_BYTES;

/// What the kernel gives a program of its swap at once (`SWAPFILE_CLUSTER` of 512 pages).
const CLUSTER_BYTES: u64 = 2 << 20;

/// The sizes of the experiment are round; those of programs are not. So a container has up to so many clusters less,
/// 256 MiB.
const ODD_CLUSTERS: usize = 128;

/// What a donor takes back at the end.
const TAKEN_BYTES: u64 = 4 << 30;

/// Everything is placed by then, or the run panics.
const FILL_TIME_MAX: Duration = Duration::from_secs(600);

/// Empty slabs are given back by then.
const GIVE_BACK_TIME: Duration = Duration::from_secs(20);

/// The donor has its memory by then, or the run panics.
const RECALL_TIME_MAX: Duration = Duration::from_secs(600);

/// How programs of a machine lie in its swap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// One after the other.
    Apart,
    /// In clusters, in any order.
    Mixed,
}

/// What one size came to.
#[derive(Clone, Copy, Debug)]
pub struct Findings {
    /// How evenly memory is used once all is placed.
    pub balance: Balance,
    /// From the first write until all is placed.
    pub fill: Duration,
    /// How long a program waits for a slab: median, and all but one in a hundred.
    pub mapping: (Duration, Duration),
    /// Control messages for each GiB that was placed.
    pub messages_per_gib: f64,
    /// What is lent beyond what programs have, of that, once all is placed.
    pub rounding: f64,
    /// The same when every other container has ended.
    pub unused: f64,
    /// Memory of a donor that is made ahead of need.
    pub prepared_bytes: u64,
    /// How long a recalled slab takes to leave: median, and the longest.
    pub recall: (Duration, Duration),
    /// From the donor's wish until it has its memory.
    pub taken: Duration,
    /// What the donor got beyond what it wanted.
    pub taken_beyond_bytes: u64,
    /// Slab entries of a volume of 1 TiB.
    pub entries_bytes: u64,
}

/// What a machine's volume holds: for each cluster, the container that has it.
struct Swap {
    clusters: Vec<usize>,
}

impl Swap {
    fn new(containers: &[Container], layout: Layout, random: &mut XorShift) -> Self {
        let mut clusters = Vec::new();
        for (number, container) in containers.iter().enumerate() {
            let whole = (container.remote_slabs * SLAB_SIZE_BYTES / CLUSTER_BYTES) as usize;
            let count = whole.saturating_sub(random.below(ODD_CLUSTERS));
            clusters.extend(std::iter::repeat_n(number, count));
        }
        if layout == Layout::Mixed {
            (1..clusters.len()).rev().for_each(|last| clusters.swap(last, random.below(last + 1)));
        }
        Self { clusters }
    }

    fn bytes(&self) -> u64 {
        self.clusters.len() as u64 * CLUSTER_BYTES
    }

    fn slabs(&self, slab_size_bytes: u64) -> u32 {
        self.bytes().div_ceil(slab_size_bytes) as u32
    }

    /// Bytes of containers that go on: every other one does.
    fn living_bytes(&self) -> u64 {
        self.clusters.iter().filter(|container| is_living(**container)).count() as u64 * CLUSTER_BYTES
    }

    /// Slabs in which nothing lives any more.
    fn empty_slabs(&self, slab_size_bytes: u64) -> Vec<usize> {
        let is_empty = |slab: &usize| {
            let (from, to) = (*slab as u64 * slab_size_bytes, (*slab as u64 + 1) * slab_size_bytes);
            let first = (from / CLUSTER_BYTES) as usize;
            let end = (to.div_ceil(CLUSTER_BYTES) as usize).min(self.clusters.len());
            !self.clusters[first..end].iter().any(|container| is_living(*container))
        };
        (0..self.slabs(slab_size_bytes) as usize).filter(is_empty).collect()
    }
}

fn is_living(container: usize) -> bool {
    container.is_multiple_of(2)
}

/// Containers on machines at random, as far as they fit.
fn draw_swaps(layout: Layout, random: &mut XorShift) -> (Vec<u64>, Vec<Swap>) {
    let mut local_bytes = vec![0; MACHINES as usize];
    let mut containers: Vec<Vec<Container>> = vec![Vec::new(); MACHINES as usize];
    for _ in 0..u64::from(MACHINES) * CONTAINERS_PER_32_MACHINES / 32 {
        let container = draw_container(random);
        let bytes = container.local_slabs * SLAB_SIZE_BYTES;
        let machine = loop {
            let drawn = random.below(MACHINES as usize);
            if local_bytes[drawn] + bytes <= MEMORY_BYTES - HEADROOM_BYTES {
                break drawn;
            }
        };
        local_bytes[machine] += bytes;
        containers[machine].push(container);
    }
    let swaps = containers.iter().map(|containers| Swap::new(containers, layout, random)).collect();
    (local_bytes, swaps)
}

fn settings(slab_size_bytes: u64, seed: u64) -> Settings {
    Settings {
        machines: MACHINES,
        slab_size_bytes,
        memory_slabs: MEMORY_BYTES / slab_size_bytes,
        headroom_slabs: HEADROOM_BYTES / slab_size_bytes,
        volume_slabs: 0,
        donors: ACTIVE_DONORS,
        replicas: 1,
        has_disk: false,
        has_membership: false,
        faults_at_once: 0,
        storm: FILL_TIME_MAX + GIVE_BACK_TIME + RECALL_TIME_MAX,
        work_interval: WORK_INTERVAL.mul_f64(slab_size_bytes as f64 / SLAB_SIZE_BYTES as f64),
        ..Settings::storm(seed)
    }
}

/// Of some times, the one that so many of a hundred are not above.
fn percentile(times: &mut [Duration], percent: usize) -> Duration {
    times.sort_unstable();
    let place = (times.len() * percent).div_ceil(100).saturating_sub(1);
    times.get(place).copied().unwrap_or_default()
}

/// Lets time pass in small steps until `is_so`.
fn pass_until(cluster: &mut Cluster, most: Duration, what: &str, is_so: impl Fn(&Cluster) -> bool) -> Duration {
    const STEP: Duration = Duration::from_millis(10);
    let began = cluster.time;
    while !is_so(cluster) {
        assert!(cluster.time < began + most, "not within {most:?}: {what}");
        cluster.run_until(cluster.time + STEP);
    }
    cluster.time - began
}

/// Containers with slabs of this size.
pub fn run(slab_size_bytes: u64, layout: Layout, seed: u64) -> Findings {
    let mut random = XorShift::new(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    let (local_bytes, swaps) = draw_swaps(layout, &mut random);
    let loads: Vec<Load> = local_bytes
        .iter()
        .zip(&swaps)
        .map(|(bytes, swap)| Load { local_bytes: *bytes, volume_slabs: swap.slabs(slab_size_bytes) })
        .collect();
    let mut cluster = Cluster::with_loads(settings(slab_size_bytes, seed), &loads, Instant::now());
    cluster.is_filled_only = true;
    let wanted: u64 = loads.iter().map(|load| u64::from(load.volume_slabs)).sum();
    let is_placed = |cluster: &Cluster| cluster.slabs_lent() == wanted && cluster.is_filled();
    let fill = pass_until(&mut cluster, FILL_TIME_MAX, "all is placed", is_placed);
    cluster.is_idle = true;
    let messages = cluster.report.messages;
    let used = |(machine, local): (usize, &u64)| {
        (*local + cluster.slabs_on(machine) * slab_size_bytes) as f64 / MEMORY_BYTES as f64
    };
    let balance = Balance::of(local_bytes.iter().enumerate().map(used).collect());
    let prepared = (0..cluster.machine_count()).filter_map(|machine| cluster.lender(machine));
    let prepared_bytes = prepared.map(|lender| lender.holdings().prepared_bytes).max().unwrap_or_default();
    let needed: u64 = swaps.iter().map(Swap::bytes).sum();
    let beyond = |lent: u64, needed: u64| (lent * slab_size_bytes) as f64 / needed as f64 - 1.0;
    let rounding = beyond(cluster.slabs_lent(), needed);
    let (taken, taken_beyond_bytes) = take_back(&mut cluster);
    for (borrower, swap) in swaps.iter().enumerate() {
        swap.empty_slabs(slab_size_bytes).into_iter().for_each(|slab| cluster.discard(borrower, slab));
    }
    cluster.run_until(cluster.time + GIVE_BACK_TIME);
    let unused = beyond(cluster.slabs_lent(), swaps.iter().map(Swap::living_bytes).sum());
    let mut mapping = std::mem::take(&mut cluster.mapping_times);
    let mut recalls = std::mem::take(&mut cluster.recall_times);
    Findings {
        balance,
        fill,
        mapping: (percentile(&mut mapping, 50), percentile(&mut mapping, 99)),
        messages_per_gib: messages as f64 / (needed as f64 / f64::from(1 << 30)),
        rounding,
        unused,
        prepared_bytes,
        recall: (percentile(&mut recalls, 50), percentile(&mut recalls, 100)),
        taken,
        taken_beyond_bytes,
        entries_bytes: (1 << 40) / slab_size_bytes * size_of::<SlabEntry>() as u64,
    }
}

/// The donor that lends most lends less from now on. How long that takes, and what comes back beyond it.
fn take_back(cluster: &mut Cluster) -> (Duration, u64) {
    let lent =
        |cluster: &Cluster, machine: usize| cluster.lender(machine).map_or(0, |lender| lender.holdings().lent_bytes);
    let machine = (0..cluster.machine_count()).max_by_key(|machine| lent(cluster, *machine)).unwrap_or_default();
    let kept = lent(cluster, machine).saturating_sub(TAKEN_BYTES);
    cluster.feed_lender(machine, Input::Quota { bytes: kept });
    let taken =
        pass_until(cluster, RECALL_TIME_MAX, "the donor has its memory", |cluster| lent(cluster, machine) <= kept);
    (taken, kept - lent(cluster, machine))
}
