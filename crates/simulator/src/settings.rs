//! How large a simulated cluster is, and how rough its life.

use std::time::Duration;

use spillway_fabric::site::Site;
use spillway_volume::limits::PLACEMENT_CHOICES;

/// Bytes of a slab of the product, if the user does not say.
pub const SLAB_SIZE_BYTES: u64 = 32 << 20;

/// What a cluster is made of.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Decides everything.
    pub seed: u64,
    /// Machines; each lends, and each borrows.
    pub machines: u32,
    /// Bytes of a slab.
    pub slab_size_bytes: u64,
    /// Memory of a machine, in slabs.
    pub memory_slabs: u64,
    /// What a donor leaves to the programs of its machine, in slabs.
    pub headroom_slabs: u64,
    /// Slabs of each borrower's volume.
    pub volume_slabs: u32,
    /// Donors that a borrower knows, drawn from all.
    pub donors: usize,
    /// Donors drawn and asked for each copy.
    pub choices: usize,
    /// Copies of a slab at donors.
    pub replicas: u8,
    /// Whether each volume has a copy on disk.
    pub has_disk: bool,
    /// Mean time between two accesses of a program to its remote memory; each stands for many pages.
    pub work_interval: Duration,
    /// How long things go wrong.
    pub storm: Duration,
    /// When the first fault comes.
    pub first_fault: Duration,
    /// Mean time between two faults of the whole cluster.
    pub fault_interval: Duration,
    /// So many machines have a fault at one moment.
    pub faults_at_once: usize,
    /// Whether borrowers find donors by the membership, instead of a list that they begin with.
    pub has_membership: bool,
}

/// Machines in a rack.
pub const RACK_MACHINES: usize = 2;

impl Settings {
    fn slab_mib(&self) -> u32 {
        (self.slab_size_bytes >> 20) as u32
    }

    /// Time that a donor takes to make a slab.
    pub fn make_time(&self) -> Duration {
        MAKE_TIME_PER_MIB * self.slab_mib()
    }

    /// Time that the mover takes to copy a slab.
    pub fn copy_time(&self) -> Duration {
        COPY_TIME_PER_MIB * self.slab_mib()
    }

    /// Where a machine stands: a rack holds [`RACK_MACHINES`] of them.
    pub fn site(&self, machine: usize) -> Site {
        Site::parse("", &format!("rack-{}", machine / RACK_MACHINES)).expect("digits are printable")
    }

    /// A small cluster with a rough life.
    pub fn storm(seed: u64) -> Self {
        Self {
            seed,
            machines: 8,
            slab_size_bytes: SLAB_SIZE_BYTES,
            memory_slabs: 64,
            headroom_slabs: 6,
            volume_slabs: 14,
            donors: 6,
            choices: PLACEMENT_CHOICES,
            replicas: 1 + (seed % 3) as u8,
            has_disk: (seed / 3).is_multiple_of(2),
            work_interval: WORK_INTERVAL,
            storm: Duration::from_secs(60),
            first_fault: FIRST_FAULTS[(seed % 7) as usize % FIRST_FAULTS.len()],
            fault_interval: Duration::from_secs(2),
            faults_at_once: 1 + (seed / 6 % 2) as usize,
            has_membership: (seed / 12).is_multiple_of(2),
        }
    }
}

/// Time of a message on the way, at least.
pub const DELAY_MIN: Duration = Duration::from_micros(30);

/// The same, at most; one in [`DELAY_RARE`] takes up to twenty times as long.
pub const DELAY_MAX: Duration = Duration::from_millis(1);

/// See [`DELAY_MAX`].
pub const DELAY_RARE: usize = 100;

/// Datagrams of the membership that are lost, of a thousand. Those of sessions are sent again by TCP.
pub const LOSS_PER_MILLE: usize = 10;

/// How often an agent tells of its machine and looks for donors.
pub const LOOK_AROUND_INTERVAL: Duration = Duration::from_secs(1);

/// When the first fault of a storm comes: while machines find each other, while the first slabs are placed, and later.
pub const FIRST_FAULTS: [Duration; 3] =
    [Duration::from_millis(100), Duration::from_millis(600), Duration::from_secs(2)];

/// So long after the last fault every machine knows every other one. A machine that was taken for dead is greeted
/// within some `DOWN_ANNOUNCE_INTERVAL`, ten seconds each.
pub const TOGETHER_AFTER: Duration = Duration::from_secs(60);

/// Time that a donor takes to make a slab, for each MiB: as measured for one of 32 MiB, which takes 20 ms.
pub const MAKE_TIME_PER_MIB: Duration = Duration::from_micros(625);

/// Time that the manager's thread takes to put leases in place.
pub const PLACE_TIME: Duration = Duration::from_micros(50);

/// Time that the mover takes to copy a slab, for each MiB: 10 Gbit/s.
pub const COPY_TIME_PER_MIB: Duration = Duration::from_micros(839);

/// Time between two looks of a borrower at its slabs, as in the product.
pub const LOOK_INTERVAL: Duration = Duration::from_millis(200);

/// [`Settings::work_interval`] with slabs of [`SLAB_SIZE_BYTES`]: a program that fills them writes 1.6 GiB a second.
pub const WORK_INTERVAL: Duration = Duration::from_millis(20);

/// How long everything has to be well again after the storm: the longest patience, a deadline of recalls, and time to
/// copy.
pub const CALM: Duration = Duration::from_secs(150);

/// Programs rest so long before all is checked: what they wrote last is copied by then.
pub const REST: Duration = Duration::from_secs(20);
