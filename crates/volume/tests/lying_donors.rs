//! Donors that lie: they flip bits, swap pages, bring back old contents, or serve zeroes. Real donors of this process,
//! over shared memory and over sockets; a lie is a change of the donor's memory behind its back.
//!
//! No read gives a wrong byte, each lie is counted and named, and the slabs of a donor that lies too often leave it.

#![cfg(not(feature = "schedules"))]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "lies/proxy.rs"]
mod proxy;

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use spillway_block::metrics::Metrics;
use spillway_block::request::{BlockError, BlockOperation};
use spillway_block::service::BlockService;
use spillway_donor::{Donor, DonorConfig, ListenAddress};
use spillway_fabric::buffer_pool::BufferPool;
use spillway_volume::engine::Engine;
use spillway_volume::limits::DISTRUSTED_AFTER_PAGES;
use spillway_volume::running::{Prerequisites, RunningVolume};
use spillway_volume::settings::VolumeConfig;
use spillway_volume::settings::protection::SealChoice;
use spillway_volume::settings::redundancy::Redundancy;
use spillway_volume::settings::transport::TransportChoice;
use spillway_volume::state::DeviceState;
use spillway_volume::status::DeviceStatus;
use spillway_volume::test_support::model::request;

const PAGE: usize = 4096;
const SLAB: u64 = 1 << 20;
const SLAB_PAGES: u64 = SLAB / PAGE as u64;
const SLABS: u64 = 2;
const PAGES: u64 = SLABS * SLAB_PAGES;
/// Pages of one request.
const AT_ONCE: u64 = 64;
const PATIENCE: Duration = Duration::from_secs(60);
const PLAINTEXT: &[u8] = b"a sentence that is written to every page";

/// Donors' memory is found by looking at all of this process, so one test runs at a time.
static TURN: Mutex<()> = Mutex::new(());

fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The memory that donors of this process lend: inode and a path to open it by.
fn lent_memory() -> BTreeMap<u64, PathBuf> {
    let entries = fs::read_dir("/proc/self/fd").unwrap().flatten().map(|entry| entry.path());
    let is_slab = |path: &PathBuf| {
        fs::read_link(path).is_ok_and(|target| target.to_string_lossy().contains("memfd:spillway-slab"))
    };
    entries.filter(is_slab).filter_map(|path| Some((fs::metadata(&path).ok()?.ino(), path))).collect()
}

struct TestDonor {
    donor: Option<Donor>,
    address: String,
    memory: Vec<File>,
}

impl TestDonor {
    /// With memory for the whole volume and more, made before anything is lent.
    fn start(directory: &Path, number: usize) -> Self {
        let before = lent_memory();
        let path = directory.join(format!("donor-{number}.sock"));
        let count = SLABS as usize + 1;
        let donor = Donor::start(DonorConfig {
            memory_bytes: count as u64 * SLAB,
            headroom_bytes: 0,
            listen: Vec::new(),
            unix_path: Some(path.clone()),
            key: None,
            slab_prepared_count: count,
            slab_size_hint_bytes: SLAB,
            machine_limit_bytes: None,
            weights: spillway_fabric::tcp::Weights::default(),
            site: spillway_fabric::site::Site::default(),
        });
        let made = || lent_memory().into_iter().filter(|(inode, _)| !before.contains_key(inode)).collect::<Vec<_>>();
        let give_up = Instant::now() + PATIENCE;
        while made().len() < count {
            assert!(Instant::now() < give_up, "the donor never made its slabs: {:?}", lent_memory());
            std::thread::sleep(Duration::from_millis(5));
        }
        let open = |(_, path): (u64, PathBuf)| OpenOptions::new().read(true).write(true).open(path).unwrap();
        let memory = made().into_iter().map(open).collect();
        Self { donor: Some(donor.unwrap()), address: format!("unix:{}", path.display()), memory }
    }

    /// On a TCP port, behind a proxy that changes its answers.
    fn behind_proxy() -> (Self, Arc<proxy::Lies>) {
        let donor = Donor::start(DonorConfig {
            memory_bytes: (SLABS + 1) * SLAB,
            headroom_bytes: 0,
            listen: vec![ListenAddress::Tcp("127.0.0.1:0".to_owned())],
            unix_path: None,
            key: None,
            slab_prepared_count: 0,
            slab_size_hint_bytes: SLAB,
            machine_limit_bytes: None,
            weights: spillway_fabric::tcp::Weights::default(),
            site: spillway_fabric::site::Site::default(),
        });
        let donor = donor.unwrap();
        let (address, lies) = proxy::start(donor.tcp_address().unwrap());
        (Self { donor: Some(donor), address, memory: Vec::new() }, lies)
    }

    fn snapshot(&self) -> Vec<Vec<u8>> {
        self.memory.iter().map(|slab| bytes_of(slab, SLAB as usize)).collect()
    }

    /// Changes the first `pages` pages of each slab.
    fn lie(&self, lie: Lie, pages: u64, old: &[Vec<u8>]) {
        for (slab, old) in self.memory.iter().zip(old) {
            let now = bytes_of(slab, SLAB as usize);
            for page in 0..pages as usize {
                let at = |page: usize| page * PAGE..(page + 1) * PAGE;
                let bytes = match lie {
                    Lie::FlipBit => {
                        let mut bytes = now[at(page)].to_vec();
                        bytes[page * 31 % PAGE] ^= 1 << (page % 8);
                        bytes
                    }
                    // The last one gets the first one's.
                    Lie::SwapPages => now[at((page + 1) % pages as usize)].to_vec(),
                    Lie::Replay => old[at(page)].to_vec(),
                    Lie::Zeroes => vec![0; PAGE],
                };
                slab.write_all_at(&bytes, (page * PAGE) as u64).unwrap();
            }
        }
    }
}

fn bytes_of(file: &File, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

fn finds(haystack: &[u8], needle: &[u8]) -> bool {
    haystack.windows(needle.len()).any(|window| window == needle)
}

#[derive(Clone, Copy, Debug)]
enum Lie {
    FlipBit,
    SwapPages,
    Replay,
    Zeroes,
}

const LIES: [Lie; 4] = [Lie::FlipBit, Lie::SwapPages, Lie::Replay, Lie::Zeroes];

/// A volume over donors of this process.
struct World {
    directory: tempfile::TempDir,
    donors: Vec<TestDonor>,
    config: VolumeConfig,
    _state: DeviceState,
    engine: Engine,
    pool: Arc<BufferPool>,
    running: RunningVolume,
    /// The last write's number.
    number: u64,
}

impl Drop for World {
    fn drop(&mut self) {
        self.running.stop();
    }
}

impl World {
    fn new(donors: usize, redundancy: Redundancy, transport: TransportChoice, seal: SealChoice) -> Self {
        let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let donors: Vec<_> = (0..donors).map(|number| TestDonor::start(directory.path(), number)).collect();
        Self::over(directory, donors, redundancy, transport, seal)
    }

    fn over(
        directory: tempfile::TempDir,
        donors: Vec<TestDonor>,
        redundancy: Redundancy,
        transport: TransportChoice,
        seal: SealChoice,
    ) -> Self {
        let config = VolumeConfig {
            redundancy,
            transport,
            seal,
            backing: redundancy.disk.then(|| directory.path().join("backing")),
            donor_wait: PATIENCE,
            ..VolumeConfig::new(
                "lies",
                SLABS * SLAB,
                SLAB,
                donors.iter().map(|donor| donor.address.parse().unwrap()).collect(),
            )
        };
        let state = DeviceState::open(DeviceState::memory(&config).unwrap(), &config).unwrap();
        let pool = BufferPool::new(1, AT_ONCE as usize * PAGE).unwrap();
        let prerequisites = Prerequisites::find(&config, &state).unwrap();
        let (metrics, pools) = (Arc::new(Metrics::default()), [Arc::clone(&pool)]);
        let (mut engines, running) =
            RunningVolume::start(&config, &state, prerequisites, Duration::ZERO, &metrics, &pools).unwrap();
        assert_eq!(running.await_donors(PATIENCE, false).unwrap(), Vec::<String>::new());
        let engine = engines.pop().unwrap();
        Self { directory, donors, config, _state: state, engine, pool, running, number: 0 }
    }

    fn run(&mut self, operation: BlockOperation, first: u64, count: u64) -> Result<(), BlockError> {
        self.engine.submit(request(0, operation, first, count), Instant::now());
        let mut answer = None;
        while answer.is_none() {
            self.engine.poll(Instant::now(), &mut |_, result| answer = Some(result));
        }
        answer.unwrap()
    }

    fn content(&self, page: u64) -> Vec<u8> {
        let mut bytes = PLAINTEXT.repeat(PAGE / PLAINTEXT.len() + 1);
        bytes.truncate(PAGE);
        bytes[1000..1008].copy_from_slice(&page.to_le_bytes());
        bytes[2000..2008].copy_from_slice(&self.number.to_le_bytes());
        bytes
    }

    fn write_all(&mut self) {
        self.number += 1;
        for first in (0..PAGES).step_by(AT_ONCE as usize) {
            for page in 0..AT_ONCE {
                self.pool.memory().write(page as usize * PAGE, &self.content(first + page));
            }
            self.run(BlockOperation::Write, first, AT_ONCE).unwrap();
        }
        self.await_status("everything is at donors and on disk", |status| {
            status.disk.as_ref().is_none_or(|disk| disk.backlog_pages == 0) && status.slabs.degraded == 0
        });
    }

    /// Reads `count` pages from `first` on, and compares them if they are to be had.
    fn read(&mut self, first: u64, count: u64) -> Result<(), BlockError> {
        self.run(BlockOperation::Read, first, count)?;
        for page in 0..count {
            let mut bytes = vec![0; PAGE];
            self.pool.memory().read(page as usize * PAGE, &mut bytes);
            assert!(bytes == self.content(first + page), "page {} has wrong bytes", first + page);
        }
        Ok(())
    }

    fn read_all(&mut self) {
        (0..PAGES).step_by(AT_ONCE as usize).for_each(|first| self.read(first, AT_ONCE).unwrap());
    }

    fn status(&self) -> DeviceStatus {
        let mut status = DeviceStatus::default();
        self.running.describe(&self.config, &mut status);
        status
    }

    fn await_status(&self, what: &str, reached: impl Fn(&DeviceStatus) -> bool) {
        let give_up = Instant::now() + PATIENCE;
        while !reached(&self.status()) {
            assert!(Instant::now() < give_up, "never came about: {what}: {:#?}", self.status());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn everywhere(mut check: impl FnMut(Lie, TransportChoice, SealChoice)) {
    let _turn = turn();
    for lie in LIES {
        for transport in [TransportChoice::Shm, TransportChoice::Tcp] {
            [SealChoice::On, SealChoice::Off].into_iter().for_each(|seal| check(lie, transport, seal));
        }
    }
}

#[test]
fn each_lie_is_counted_and_named_and_the_disk_has_the_page() {
    everywhere(|lie, transport, seal| {
        let mut world = World::new(1, Redundancy::DISK, transport, seal);
        world.write_all();
        let old = world.donors[0].snapshot();
        world.write_all();
        // In each of the slabs, fewer in all than make the donor distrusted.
        let pages = DISTRUSTED_AFTER_PAGES / SLABS - 1;
        world.donors[0].lie(lie, pages, &old);
        world.read_all();
        let status = world.status();
        assert_eq!(status.donors[0].wrong_pages, SLABS * pages, "{lie:?} over {transport}, seal {seal}");
        assert!(!status.donors[0].is_distrusted && status.pages_lost == 0);
        world.await_status("the pages are at the donor again", |status| status.slabs.degraded == 0);
        world.read_all();
        assert_eq!(world.status().donors[0].wrong_pages, SLABS * pages, "{lie:?}: found once");
    });
}

#[test]
fn slabs_leave_a_donor_that_lies_too_often_and_no_byte_is_wrong() {
    everywhere(|lie, transport, seal| {
        let mut world = World::new(3, Redundancy { replicas: 2, disk: false }, transport, seal);
        world.write_all();
        let old: Vec<_> = world.donors.iter().map(TestDonor::snapshot).collect();
        world.write_all();
        // Pages are read from the first copy, so one donor at least is found out.
        let liar = (0..3).find(|liar| {
            let honest = world.donors[*liar].snapshot();
            world.donors[*liar].lie(lie, SLAB_PAGES, &old[*liar]);
            world.read_all();
            let is_found = world.status().donors[*liar].wrong_pages > 0;
            if !is_found {
                world.donors[*liar].lie(Lie::Replay, SLAB_PAGES, &honest);
            }
            is_found
        });
        let liar = liar.expect("a donor that lies is found out");
        world.await_status("its slabs have left it", |status| {
            let donor = &status.donors[liar];
            donor.is_distrusted && donor.slabs == 0 && status.slabs.degraded == 0 && status.slabs.migrating == 0
        });
        assert_eq!(world.status().pages_lost, 0, "{lie:?} over {transport}, seal {seal}");
        world.read_all();
        world.write_all();
        world.read_all();
        assert_eq!(world.status().donors[liar].slabs, 0, "it gets no more");
    });
}

#[test]
fn a_network_that_changes_frames_causes_no_wrong_byte() {
    let _turn = turn();
    for seal in [SealChoice::On, SealChoice::Off] {
        let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let (donor, lies) = TestDonor::behind_proxy();
        let mut world = World::over(directory, vec![donor], Redundancy::DISK, TransportChoice::Tcp, seal);
        world.write_all();
        lies.on.store(true, Ordering::Relaxed);
        // Page by page, so that frames and pages are the same; a connection that ends is made anew meanwhile. An
        // answer whose connection ended before it was read is a lie that is not counted: there are two that are.
        let give_up = Instant::now() + PATIENCE;
        let done = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed) > 0;
        let is_counted = |world: &World| world.status().donors[0].wrong_pages >= 2;
        while ![&lies.flipped, &lies.replayed, &lies.repeated].into_iter().all(done) || !is_counted(&world) {
            assert!(Instant::now() < give_up, "seal {seal}: {lies:?} {:#?}", world.status());
            (0..PAGES).for_each(|page| world.read(page, 1).unwrap());
        }
        lies.on.store(false, Ordering::Relaxed);
        world.read_all();
        assert_eq!(world.status().pages_lost, 0, "seal {seal}: {lies:?}");
    }
}

#[test]
fn without_another_copy_a_lie_is_an_error_and_never_a_wrong_byte() {
    everywhere(|lie, transport, seal| {
        let mut world = World::new(1, Redundancy::NONE, transport, seal);
        world.write_all();
        let old = world.donors[0].snapshot();
        world.write_all();
        let new = world.donors[0].snapshot();
        world.donors[0].lie(lie, 2, &old);
        let mut errors = 0;
        for page in 0..PAGES {
            if let Err(error) = world.read(page, 1) {
                assert_eq!((error, page % SLAB_PAGES < 2), (BlockError::InputOutput, true));
                errors += 1;
            }
        }
        assert_eq!(errors, 2 * SLABS, "{lie:?} over {transport}, seal {seal}");
        assert_eq!(world.status().donors[0].wrong_pages, 2 * SLABS);
        // It tells the truth again: a replay of the newest content.
        world.donors[0].lie(Lie::Replay, 2, &new);
        world.read_all();
        world.donors[0].lie(lie, 2, &old);
        world.write_all();
        world.read_all();
    });
}

#[test]
fn a_disk_that_lies_is_found_out_too() {
    let _turn = turn();
    for seal in [SealChoice::On, SealChoice::Off] {
        let mut world = World::new(1, Redundancy::DISK, TransportChoice::Shm, seal);
        world.write_all();
        let backing = OpenOptions::new().read(true).write(true).open(world.directory.path().join("backing")).unwrap();
        backing.write_all_at(&[0x77; 3 * PAGE], 5 * PAGE as u64).unwrap();
        backing.sync_all().unwrap();
        world.donors[0].donor.take().unwrap().stop();
        world.await_status("the donor is gone", |status| status.donors[0].state != "connected");
        let mut errors = Vec::new();
        for page in 0..PAGES {
            if let Err(error) = world.read(page, 1) {
                assert_eq!(error, BlockError::InputOutput);
                errors.push(page);
            }
        }
        assert_eq!(errors, [5, 6, 7], "seal {seal}");
        assert_eq!(world.status().disk.unwrap().wrong_pages, 3);
    }
}

#[test]
fn donors_and_disk_hold_no_plaintext_when_pages_are_sealed() {
    let _turn = turn();
    for seal in [SealChoice::Off, SealChoice::On] {
        let mut world = World::new(2, Redundancy { replicas: 2, disk: true }, TransportChoice::Tcp, seal);
        world.write_all();
        world.write_all();
        let donors: Vec<bool> = world
            .donors
            .iter()
            .map(|donor| donor.snapshot().iter().any(|slab| finds(slab, &PLAINTEXT[..16])))
            .collect();
        let on_disk = finds(&fs::read(world.directory.path().join("backing")).unwrap(), &PLAINTEXT[..16]);
        // Without sealing it is found, so the search finds what is there.
        let is_plain = seal == SealChoice::Off;
        assert_eq!((donors, on_disk), (vec![is_plain; 2], is_plain), "seal {seal}");
        assert_eq!(world.status().protection, if is_plain { "checked" } else { "sealed" });
        world.read_all();
    }
}

#[test]
fn same_filled_pages_do_not_leave_and_discarded_ones_read_as_zeroes() {
    let _turn = turn();
    for seal in [SealChoice::On, SealChoice::Off] {
        let mut world = World::new(1, Redundancy::DISK, TransportChoice::Shm, seal);
        world.write_all();
        let before = world.donors[0].snapshot();
        // Every second page of the first 64 becomes one word over and over.
        world.number += 1;
        for page in 0..AT_ONCE {
            let same = page.to_le_bytes().repeat(PAGE / 8);
            let bytes = if page % 2 == 0 { same } else { world.content(page) };
            world.pool.memory().write(page as usize * PAGE, &bytes);
        }
        world.run(BlockOperation::Write, 0, AT_ONCE).unwrap();
        assert_eq!(world.status().pages_same_filled, AT_ONCE / 2);
        let changed = |slab: usize, page: usize, after: &[Vec<u8>]| {
            after[slab][page * PAGE..(page + 1) * PAGE] != before[slab][page * PAGE..(page + 1) * PAGE]
        };
        let after = world.donors[0].snapshot();
        for slab in 0..before.len() {
            assert!((0..AT_ONCE as usize).step_by(2).all(|page| !changed(slab, page, &after)), "a noted page left");
        }
        assert!((0..before.len()).any(|slab| (1..64).step_by(2).all(|page| changed(slab, page, &after))));
        world.run(BlockOperation::Discard, 4, 2).unwrap();
        world.run(BlockOperation::Read, 0, AT_ONCE).unwrap();
        for page in 0..AT_ONCE {
            let mut bytes = vec![0; PAGE];
            world.pool.memory().read(page as usize * PAGE, &mut bytes);
            let expected = match page {
                4 | 5 => vec![0; PAGE],
                _ if page % 2 == 0 => page.to_le_bytes().repeat(PAGE / 8),
                _ => world.content(page),
            };
            assert!(bytes == expected, "page {page}, seal {seal}");
        }
    }
}
