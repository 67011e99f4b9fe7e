//! Whole devices with real donors in this process: through the kernel's block layer, over shared memory and TCP, while
//! donors die, come back, and want their memory back.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::time::{Duration, Instant};

use rustix::fs::FallocateFlags;
use spillway_block::cpu_idle::KeepAwake;
use spillway_device::config::DeviceConfig;
use spillway_device::device::Device;
use spillway_donor::{Donor, DonorConfig};
use spillway_fabric::key::ClusterKey;
use spillway_frontend::choice::FrontEndChoice;
use spillway_testing::block_devices::{Aligned, can_run, open_direct};
use spillway_volume::settings::VolumeConfig;
use spillway_volume::settings::mapping::MappingPolicy;
use spillway_volume::settings::protection::SealChoice;
use spillway_volume::settings::redundancy::Redundancy;
use spillway_volume::status::DeviceStatus;
use spillway_volume::steward::placement::{Random, XorShift};

const MEBIBYTE: u64 = 1 << 20;
const SLAB: u64 = 2 * MEBIBYTE;
const PAGE: usize = 4096;
const PAGES: u64 = 24 * MEBIBYTE / PAGE as u64;

/// Donors on sockets in a directory of their own, and a device over them.
struct World {
    directory: tempfile::TempDir,
    donors: Vec<Option<Donor>>,
    addresses: Vec<String>,
    device: Option<Device>,
    /// What each page was last written with.
    model: HashMap<u64, u32>,
    random: XorShift,
    clock: u32,
}

fn donor_config(memory_bytes: u64) -> DonorConfig {
    DonorConfig {
        memory_bytes,
        headroom_bytes: 0,
        listen: Vec::new(),
        unix_path: None,
        key: None,
        machine_limit_bytes: None,
        weights: spillway_fabric::tcp::Weights::default(),
        site: spillway_fabric::site::Site::default(),
        slab_prepared_count: 1,
        slab_size_hint_bytes: SLAB,
    }
}

impl World {
    fn new(name: &str, donors: usize, redundancy: Redundancy, over_tcp: bool) -> Self {
        Self::start(name, donors, redundancy, over_tcp, MappingPolicy::OnDemand)
    }

    fn start(name: &str, donors: usize, redundancy: Redundancy, over_tcp: bool, mapping: MappingPolicy) -> Self {
        // Backing files must not lie in memory, so not in a temporary directory that may.
        let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let mut world = Self {
            directory,
            donors: Vec::new(),
            addresses: Vec::new(),
            device: None,
            model: HashMap::new(),
            random: XorShift::new(7),
            clock: 0,
        };
        let key = over_tcp.then(|| world.directory.path().join("key"));
        for number in 0..donors {
            let mut config = donor_config(64 * MEBIBYTE);
            if let Some(key) = &key {
                config.listen = vec!["127.0.0.1:0".parse().unwrap()];
                config.key = Some(ClusterKey::load_or_create(key).unwrap().into());
            } else {
                config.unix_path = Some(world.socket(number));
            }
            let donor = Donor::start(config).unwrap();
            world.addresses.push(match donor.tcp_address() {
                Some(address) => address.to_string(),
                None => format!("unix:{}", world.socket(number).display()),
            });
            world.donors.push(Some(donor));
        }
        let config = DeviceConfig {
            volume: VolumeConfig {
                key_file: key,
                redundancy,
                backing: redundancy.disk.then(|| world.directory.path().join("backing")),
                mapping,
                seal: if over_tcp { SealChoice::On } else { SealChoice::Auto },
                // With random writes at the same time.
                fill_backing: redundancy.disk && mapping == MappingPolicy::OnDemand,
                donor_wait: Duration::from_secs(60),
                ..VolumeConfig::new(
                    &format!("donors-test-{name}"),
                    32 * MEBIBYTE,
                    SLAB,
                    world.addresses.iter().map(|address| address.parse().unwrap()).collect(),
                )
            },
            keep_awake: KeepAwake::default(),
            front_end: FrontEndChoice::Auto,
            listen: None,
            io_threads: None,
            local_memory: false,
        };
        world.device = Some(Device::start(config).unwrap());
        world.await_status("every donor is connected", |status| {
            status.donors.iter().all(|donor| donor.state == "connected")
        });
        world
    }

    fn socket(&self, number: usize) -> std::path::PathBuf {
        self.directory.path().join(format!("donor-{number}.sock"))
    }

    fn status(&self) -> DeviceStatus {
        self.device.as_ref().unwrap().status()
    }

    fn await_status(&self, what: &str, reached: impl Fn(&DeviceStatus) -> bool) -> DeviceStatus {
        // A recall that finds no room for a moment, on a loaded machine, is repeated after 30 s.
        let give_up = Instant::now() + Duration::from_secs(120);
        loop {
            let status = self.status();
            if reached(&status) {
                return status;
            }
            assert!(Instant::now() < give_up, "never came about: {what}: {status:#?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn open(&self) -> File {
        open_direct(self.device.as_ref().unwrap().path())
    }

    /// Writes `count` random runs of pages.
    fn write(&mut self, count: usize) {
        let file = self.open();
        for _ in 0..count {
            self.clock += 1;
            let first = self.random.below(PAGES as usize - 32) as u64;
            let pages = 1 + self.random.below(32) as u64;
            let mut buffer = Aligned::new(pages as usize * PAGE);
            for page in 0..pages {
                let bytes = &mut buffer.bytes()[page as usize * PAGE..][..PAGE];
                fill(bytes, first + page, self.clock);
                self.model.insert(first + page, self.clock);
            }
            file.write_all_at(buffer.bytes(), first * PAGE as u64).unwrap();
        }
    }

    /// Reads everything back.
    fn check(&self) {
        let file = self.open();
        let mut buffer = Aligned::new(PAGE);
        let mut expected = vec![0; PAGE];
        for page in 0..PAGES {
            file.read_exact_at(buffer.bytes(), page * PAGE as u64).unwrap();
            match self.model.get(&page) {
                Some(clock) => fill(&mut expected, page, *clock),
                None => expected.fill(0),
            }
            assert!(buffer.bytes() == expected, "page {page} is wrong");
        }
    }

    fn stop(mut self) {
        self.device.take().unwrap().stop().unwrap();
        for donor in self.donors.iter().flatten() {
            let give_up = Instant::now() + Duration::from_secs(60);
            while donor.status().lent_bytes > 0 {
                assert!(Instant::now() < give_up, "slabs were not returned: {:?}", donor.status());
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        self.donors.drain(..).flatten().for_each(Donor::stop);
    }
}

fn fill(bytes: &mut [u8], page: u64, clock: u32) {
    bytes.fill(clock as u8);
    bytes[..8].copy_from_slice(&page.to_le_bytes());
    bytes[PAGE - 4..].copy_from_slice(&clock.to_le_bytes());
}

#[test]
fn pages_survive_the_death_of_every_donor_on_disk() {
    if !can_run() {
        return;
    }
    let mut world = World::new("disk", 2, Redundancy::DISK, false);
    world.write(400);
    world.check();
    for number in 0..2 {
        world.donors[number].take().unwrap().stop();
        world.write(20);
        world.check();
    }
    let status = world.await_status("both are lost", |status| status.donors.iter().all(|donor| donor.state == "lost"));
    assert!(status.health.contains("disk only"), "{}", status.health);
    assert_eq!(status.pages_lost, 0);
    world.write(50);
    world.check();
    // A donor that comes back gets the pages again.
    let mut config = donor_config(64 * MEBIBYTE);
    config.unix_path = Some(world.socket(0));
    world.donors[0] = Some(Donor::start(config).unwrap());
    world.await_status("pages are at a donor again", |status| {
        status.slabs.mapped > 0 && status.slabs.degraded == 0 && status.donors[0].slabs > 0
    });
    world.check();
    world.stop();
}

#[test]
fn a_filled_backing_file_has_every_block_and_keeps_those_of_discarded_pages() {
    if !can_run() {
        return;
    }
    let mut world = World::new("filled", 1, Redundancy::DISK, false);
    world.write(200);
    let blocks = |status: &DeviceStatus| status.disk.as_ref().unwrap().blocks.clone();
    world.await_status("the backing file is filled", |status| blocks(status) == "all");
    world.check();
    world.await_status("every page is on disk", |status| status.disk.as_ref().unwrap().backlog_pages == 0);
    let held_bytes = || std::fs::metadata(world.directory.path().join("backing")).unwrap().blocks() * 512;
    assert!(held_bytes() >= PAGES * PAGE as u64);
    let all = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(world.open(), all, 0, PAGES * PAGE as u64).unwrap();
    world.await_status("nothing is stored", |status| status.pages_stored == 0);
    assert!(held_bytes() >= PAGES * PAGE as u64);
    world.model.clear();
    world.check();
    world.stop();
}

#[test]
fn by_activity_only_slabs_that_are_used_take_a_donors_memory() {
    if !can_run() {
        return;
    }
    let mut world = World::start("activity", 1, Redundancy::DISK, false, MappingPolicy::ByActivity);
    let file = world.open();
    let mut buffer = Aligned::new(PAGE);
    let pages_per_slab = SLAB / PAGE as u64;
    for slab in [0, 3, 5] {
        let page = slab * pages_per_slab;
        fill(buffer.bytes(), page, 1);
        file.write_all_at(buffer.bytes(), page * PAGE as u64).unwrap();
        world.model.insert(page, 1);
    }
    assert_eq!(world.status().slabs.mapped, 0, "three pages make no slab hot");
    let give_up = Instant::now() + Duration::from_secs(120);
    while world.status().slabs.mapped == 0 {
        assert!(Instant::now() < give_up, "a slab that is read all the time never got a donor: {:#?}", world.status());
        for _ in 0..64 {
            file.read_exact_at(buffer.bytes(), 3 * SLAB).unwrap();
        }
    }
    let status = world.await_status("the hot slab is whole at its donor", |status| status.slabs.mapped == 1);
    assert_eq!((status.donors[0].slabs, status.pages_lost), (1, 0), "{status:#?}");
    assert!(status.health.starts_with("ok"), "{}", status.health);
    drop(file);
    world.check();
    world.donors[0].take().unwrap().stop();
    world.check();
    world.stop();
}

#[test]
fn with_two_replicas_a_lost_copy_is_made_anew_elsewhere() {
    if !can_run() {
        return;
    }
    let mut world = World::new("replicas", 3, Redundancy { replicas: 2, disk: false }, false);
    world.write(300);
    world.await_status("every slab has two copies", |status| status.slabs.degraded == 0 && status.slabs.mapped > 0);
    world.donors[1].take().unwrap().stop();
    world.write(30);
    world.check();
    world.await_status("every slab has two copies again", |status| {
        status.donors[1].state == "lost" && status.slabs.degraded == 0 && status.slabs.mapped > 0
    });
    world.donors[2].take().unwrap().stop();
    world.check();
    let status = world.await_status("one donor is left", |status| status.donors[2].state == "lost");
    assert_eq!(status.pages_lost, 0, "{status:#?}");
    world.check();
    world.stop();
}

#[test]
fn a_donor_that_wants_its_memory_back_gets_it_and_no_page_is_lost() {
    if !can_run() {
        return;
    }
    let mut world = World::new("recall", 2, Redundancy::NONE, false);
    world.write(400);
    let held = world.status().donors[0].slabs;
    assert!(held > 0, "the power of two choices used both donors");
    world.donors[0].as_ref().unwrap().set_memory(0);
    world.await_status("every slab moved", |status| status.donors[0].slabs == 0 && status.donors[1].slabs > held);
    world.check();
    assert_eq!(world.status().pages_lost, 0);
    world.write(50);
    world.check();
    world.stop();
}

#[test]
fn pages_over_tcp_are_right_and_a_donor_that_dies_costs_none() {
    if !can_run() {
        return;
    }
    let mut world = World::new("tcp", 2, Redundancy::DISK, true);
    // Donors that listen on TCP only: this host's shared memory is not to be had.
    assert!(world.status().donors.iter().all(|donor| donor.transport == "tcp"), "{:?}", world.status().donors);
    world.write(300);
    world.check();
    world.donors[0].take().unwrap().stop();
    world.write(50);
    world.check();
    assert_eq!(world.status().pages_lost, 0);
    world.stop();
}

#[test]
fn without_redundancy_a_dead_donor_means_errors_and_never_wrong_bytes() {
    if !can_run() {
        return;
    }
    let mut world = World::new("none", 1, Redundancy::NONE, false);
    world.write(50);
    world.check();
    world.donors[0].take().unwrap().stop();
    let written = world.model.len() as u64;
    let status = world.await_status("the loss of every page is told", |status| status.pages_lost == written);
    assert!(status.health.contains("lost"), "{}", status.health);
    let file = world.open();
    let mut buffer = Aligned::new(PAGE);
    for page in 0..PAGES {
        let result = file.read_exact_at(buffer.bytes(), page * PAGE as u64);
        assert_eq!(result.is_err(), world.model.contains_key(&page), "page {page}");
        assert!(result.is_err() || buffer.bytes().iter().all(|byte| *byte == 0));
    }
    drop(file);
    world.stop();
}
