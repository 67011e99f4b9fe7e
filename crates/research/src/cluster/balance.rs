//! Infiniswap's experiment with many containers (NSDI '17, section 6.3), and the same on larger clusters.
//!
//! Containers of four types, of which 50, 30 and 20 % have all, three quarters and half of their memory locally, are
//! put on machines at random. What is not local goes to other machines. The paper's figures are the utilisation of
//! memory and its imbalance, without and with remote memory; 90 containers on 32 machines.
//!
//! Each machine has one volume for all of its containers, as a swap device is. Its donors are a bounded set, drawn from
//! all machines, however large the cluster is. The same demand is placed by a planner that knows everything and always
//! takes the emptiest machine: no placement can be more even.

use std::time::{Duration, Instant};

use spillway_volume::steward::placement::{Random, XorShift};

use spillway_simulator::cluster::{Cluster, Load};
use spillway_simulator::settings::{SLAB_SIZE_BYTES, Settings, WORK_INTERVAL};

/// Memory of the four types, in slabs: 5, 8, 12 and 20 GiB. With these the machines' memory is used to 41 %, as in the
/// paper, which gives no sizes.
pub(crate) const WORKING_SETS_SLABS: [u64; 4] = [160, 256, 384, 640];

/// Memory of a machine: 64 GiB, of which 8 stay free for its own programs (the paper's).
pub(crate) const MEMORY_SLABS: u64 = 2048;
/// See [`MEMORY_SLABS`].
pub(crate) const HEADROOM_SLABS: u64 = 256;

/// Containers on 32 machines.
pub(crate) const CONTAINERS_PER_32_MACHINES: u64 = 90;

/// Donors of a machine, however many there are.
pub const ACTIVE_DONORS: usize = 16;

/// Simulated time until everything is placed: the largest volume is written in half of it.
const FILL_TIME: Duration = Duration::from_secs(60);

/// After that only what goes on for ever is counted.
const STEADY_TIME: Duration = Duration::from_secs(10);

/// How evenly memory is used.
#[derive(Clone, Copy, Debug)]
pub struct Balance {
    /// Mean share of memory in use.
    pub mean: f64,
    /// The fullest machine against the median one.
    pub max_to_median: f64,
    /// The same against the emptiest one.
    pub max_to_min: f64,
}

impl Balance {
    pub(crate) fn of(mut used: Vec<f64>) -> Self {
        used.sort_by(f64::total_cmp);
        let max = used[used.len() - 1];
        Self {
            mean: used.iter().sum::<f64>() / used.len() as f64,
            max_to_median: max / used[used.len() / 2],
            max_to_min: max / used[0],
        }
    }
}

/// What an experiment found.
#[derive(Clone, Copy, Debug)]
pub struct Findings {
    /// Machines.
    pub machines: u32,
    /// Without remote memory: what is not local is on disk.
    pub without: Balance,
    /// With it.
    pub with: Balance,
    /// As the planner that knows everything would place it.
    pub planned: Balance,
    /// Slabs that found no donor, of all.
    pub unplaced: u64,
    /// Slabs placed.
    pub placed: u64,
    /// Control messages while a slab is placed, those of its lease included.
    pub messages_per_slab: f64,
    /// Control messages of a machine and second when all is placed.
    pub messages_per_s: f64,
    /// Real time of one decision, in nanoseconds: all of Lenders and Stewards by their number.
    pub decision_ns: f64,
}

/// A container: what it has locally, and elsewhere.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Container {
    pub(crate) local_slabs: u64,
    pub(crate) remote_slabs: u64,
}

pub(crate) fn draw_container(random: &mut XorShift) -> Container {
    let slabs = WORKING_SETS_SLABS[random.below(WORKING_SETS_SLABS.len())];
    let local_slabs = match random.below(10) {
        0..=4 => slabs,
        5..=7 => slabs * 3 / 4,
        _ => slabs / 2,
    };
    Container { local_slabs, remote_slabs: slabs - local_slabs }
}

/// Puts containers on machines at random; one that does not fit goes to another machine.
fn draw_loads(machines: u32, random: &mut XorShift) -> Vec<Load> {
    let mut loads = vec![Load { local_bytes: 0, volume_slabs: 0 }; machines as usize];
    let containers = u64::from(machines) * CONTAINERS_PER_32_MACHINES / 32;
    let most = (MEMORY_SLABS - HEADROOM_SLABS) * SLAB_SIZE_BYTES;
    for _ in 0..containers {
        let container = draw_container(random);
        let local_bytes = container.local_slabs * SLAB_SIZE_BYTES;
        let load = loop {
            let drawn = random.below(loads.len());
            if loads[drawn].local_bytes + local_bytes <= most {
                break &mut loads[drawn];
            }
        };
        load.local_bytes += local_bytes;
        load.volume_slabs += container.remote_slabs as u32;
    }
    loads
}

/// Places every slab on the emptiest machine but its own.
fn plan(loads: &[Load]) -> Vec<f64> {
    let mut used: Vec<u64> = loads.iter().map(|load| load.local_bytes / SLAB_SIZE_BYTES).collect();
    let mut order: std::collections::BTreeSet<(u64, usize)> =
        used.iter().enumerate().map(|(machine, used)| (*used, machine)).collect();
    for (own, load) in loads.iter().enumerate() {
        for _ in 0..load.volume_slabs {
            let emptiest = order.iter().find(|(_, machine)| *machine != own).copied();
            let Some((before, machine)) = emptiest else { continue };
            order.remove(&(before, machine));
            used[machine] = before + 1;
            order.insert((before + 1, machine));
        }
    }
    used.into_iter().map(|used| used as f64 / MEMORY_SLABS as f64).collect()
}

/// Runs the experiment on so many machines; so many donors are asked for each slab.
pub fn run(machines: u32, choices: usize, seed: u64) -> Findings {
    let mut random = XorShift::new(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    let loads = draw_loads(machines, &mut random);
    let settings = Settings {
        seed,
        machines,
        slab_size_bytes: SLAB_SIZE_BYTES,
        memory_slabs: MEMORY_SLABS,
        headroom_slabs: HEADROOM_SLABS,
        volume_slabs: 0,
        donors: ACTIVE_DONORS,
        choices,
        replicas: 1,
        has_disk: false,
        work_interval: WORK_INTERVAL,
        storm: FILL_TIME,
        first_fault: FILL_TIME,
        fault_interval: FILL_TIME,
        faults_at_once: 1,
        has_membership: false,
    };
    let mut cluster = Cluster::with_loads(settings, &loads, Instant::now());
    cluster.is_filled_only = true;
    cluster.run_until(FILL_TIME);
    let filled = cluster.report.clone();
    cluster.run_until(FILL_TIME + STEADY_TIME);
    let steady = cluster.report.messages - filled.messages;
    let bytes = |slabs: u64| slabs as f64 / MEMORY_SLABS as f64;
    let used = (0..cluster.machine_count())
        .map(|machine| bytes(cluster.local_bytes(machine) / SLAB_SIZE_BYTES + cluster.slabs_on(machine)));
    let wanted: u64 = loads.iter().map(|load| u64::from(load.volume_slabs)).sum();
    let placed: u64 = (0..cluster.machine_count()).map(|machine| cluster.slabs_on(machine)).sum();
    Findings {
        machines,
        without: Balance::of(loads.iter().map(|load| bytes(load.local_bytes / SLAB_SIZE_BYTES)).collect()),
        with: Balance::of(used.collect()),
        planned: Balance::of(plan(&loads)),
        unplaced: wanted.saturating_sub(placed),
        placed,
        messages_per_slab: filled.messages as f64 / placed as f64,
        messages_per_s: steady as f64 / f64::from(machines) / STEADY_TIME.as_secs_f64(),
        decision_ns: cluster.decided_in.as_nanos() as f64 / cluster.decisions as f64,
    }
}
