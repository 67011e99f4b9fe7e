//! Donors are added and removed while a program writes and verifies: real donors of this process on loopback, reached
//! over sockets and shared memory.

use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use spillway_block::metrics::Metrics;
use spillway_block::request::BlockOperation;
use spillway_block::service::BlockService;
use spillway_donor::{Donor, DonorConfig};
use spillway_fabric::address::DonorAddress;
use spillway_fabric::buffer_pool::BufferPool;
use spillway_fabric::control::ControlChannel;
use spillway_fabric::control::message::{DrainOrder, Message};
use spillway_fabric::units::PAGE_SIZE_BYTES;
use spillway_sys::memfd::Memfd;
use spillway_volume::engine::Engine;
use spillway_volume::limits::{DONORS_MAX, RECALL_RETRY_PAUSE};
use spillway_volume::manager::donor_table::DonorChangeError;
use spillway_volume::running::{Prerequisites, RunningVolume};
use spillway_volume::settings::VolumeConfig;
use spillway_volume::settings::protection::SealChoice;
use spillway_volume::settings::transport::TransportChoice;
use spillway_volume::state::DeviceState;
use spillway_volume::status::{DeviceStatus, DonorLinkStatus};
use spillway_volume::steward::placement::{Random, XorShift};
use spillway_volume::test_support::model;

const SLAB: u64 = 1 << 20;
const SLABS: u64 = 12;
const PAGES: u64 = SLABS * SLAB / PAGE_SIZE_BYTES as u64;
/// What has to happen happens sooner, however busy the machine is.
const PATIENCE: Duration = Duration::from_secs(60);

/// A donor of this process, over TCP (then without a key, on loopback) and a UNIX socket.
fn start_donor(directory: &std::path::Path, number: usize) -> (Donor, [DonorAddress; 2]) {
    let path = directory.join(format!("donor-{number}.sock"));
    let config = DonorConfig {
        memory_bytes: 2 * SLABS * SLAB,
        headroom_bytes: 0,
        machine_limit_bytes: None,
        weights: spillway_fabric::tcp::Weights::default(),
        site: spillway_fabric::site::Site::default(),
        listen: vec!["127.0.0.1:0".parse().unwrap()],
        unix_path: Some(path.clone()),
        key: None,
        slab_prepared_count: 1,
        slab_size_hint_bytes: SLAB,
    };
    let donor = Donor::start(config).unwrap();
    let tcp = donor.tcp_address().unwrap().to_string();
    (donor, [tcp.parse().unwrap(), DonorAddress::Unix(path)])
}

struct World {
    directory: tempfile::TempDir,
    donors: Vec<Option<Donor>>,
    addresses: Vec<DonorAddress>,
    config: VolumeConfig,
    memory: Memfd,
    running: RunningVolume,
}

impl World {
    /// A volume with the first of so many donors that are there.
    fn new(redundancy: &str, used: usize, there: usize, transport: TransportChoice) -> (Self, Engine, Arc<BufferPool>) {
        // A backing file must not lie in memory.
        let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let started: Vec<_> = (0..there).map(|number| start_donor(directory.path(), number)).collect();
        let which = usize::from(transport != TransportChoice::Tcp);
        let addresses: Vec<_> = started.iter().map(|(_, addresses)| addresses[which].clone()).collect();
        let redundancy: spillway_volume::settings::redundancy::Redundancy = redundancy.parse().unwrap();
        let config = VolumeConfig {
            redundancy,
            seal: if transport == TransportChoice::Tcp { SealChoice::On } else { SealChoice::Auto },
            transport,
            backing: redundancy.disk.then(|| directory.path().join("backing")),
            donor_wait: PATIENCE,
            ..VolumeConfig::new("changing", SLABS * SLAB, SLAB, addresses[..used].to_vec())
        };
        let memory = DeviceState::memory(&config).unwrap();
        let kept = again(&memory);
        let (engine, pool, running) = start(&config, memory);
        running.await_donors(PATIENCE, false).unwrap();
        let donors = started.into_iter().map(|(donor, _)| Some(donor)).collect();
        (Self { directory, donors, addresses, config, memory: kept, running }, engine, pool)
    }

    fn status(&self) -> DeviceStatus {
        let mut status = DeviceStatus::default();
        self.running.describe(&self.config, &mut status);
        status
    }

    fn link(&self, donor: usize) -> Option<DonorLinkStatus> {
        let address = self.addresses[donor].to_string();
        self.status().donors.into_iter().find(|link| link.address == address)
    }

    fn lent_slabs(&self, donor: usize) -> usize {
        self.donors[donor].as_ref().unwrap().status().sessions.iter().map(|session| session.slabs).sum()
    }

    fn wait(&self, what: &str, mut done: impl FnMut(&Self) -> bool) {
        let give_up = Instant::now() + PATIENCE;
        while !done(self) {
            assert!(Instant::now() < give_up, "never came about: {what}: {:#?}", self.status());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn add(&self, donor: usize) {
        self.running.add_donor(&self.addresses[donor]).unwrap();
        self.wait("the donor is connected", |world| world.link(donor).is_some_and(|link| link.state == "connected"));
    }

    fn remove(&self, donor: usize) {
        self.running.remove_donor(&self.addresses[donor]).unwrap();
    }

    /// The donor may not have heard the last release when its link is closed.
    fn returned(&self, donor: usize) {
        self.wait("the donor has its slabs", |world| world.lent_slabs(donor) == 0);
    }

    fn removed(&self, donor: usize) {
        self.wait("the donor is gone", |world| world.link(donor).is_none());
    }
}

fn again(memory: &Memfd) -> Memfd {
    Memfd::open(std::os::fd::AsFd::as_fd(memory).try_clone_to_owned().unwrap()).unwrap()
}

fn start(config: &VolumeConfig, memory: Memfd) -> (Engine, Arc<BufferPool>, RunningVolume) {
    let state = DeviceState::open(memory, config).unwrap();
    let pool = BufferPool::new(1, 4 * PAGE_SIZE_BYTES).unwrap();
    let prerequisites = Prerequisites::find(config, &state).unwrap();
    let pools = [Arc::clone(&pool)];
    let metrics = Arc::new(Metrics::default());
    let (mut engines, running) =
        RunningVolume::start(config, &state, prerequisites, Duration::ZERO, &metrics, &pools).unwrap();
    (engines.pop().unwrap(), pool, running)
}

/// What a program does: writes pages at random, and reads what it wrote.
struct Program {
    engine: Engine,
    pool: Arc<BufferPool>,
    written: Vec<u32>,
    random: XorShift,
}

impl Program {
    fn new(engine: Engine, pool: Arc<BufferPool>) -> Self {
        Self { engine, pool, written: vec![0; PAGES as usize], random: XorShift::new(11) }
    }

    fn request(&mut self, operation: BlockOperation, page: u64) {
        self.engine.submit(model::request(0, operation, page, 1), Instant::now());
        let (mut answer, give_up) = (None, Instant::now() + PATIENCE);
        while answer.is_none() {
            assert!(Instant::now() < give_up, "{operation:?} of page {page} is not answered");
            self.engine.poll(Instant::now(), &mut |_, result| answer = Some(result));
            std::thread::yield_now();
        }
        assert_eq!(answer, Some(Ok(())), "{operation:?} of page {page}");
    }

    fn content(page: u64, version: u32) -> [u8; PAGE_SIZE_BYTES] {
        let word = (page << 32 | u64::from(version)).to_le_bytes();
        std::array::from_fn(|index| if version == 0 { 0 } else { word[index % 8] ^ (index / 8) as u8 })
    }

    fn write(&mut self, page: u64) {
        let version = self.written[page as usize] + 1;
        self.pool.memory().write(0, &Self::content(page, version));
        self.request(BlockOperation::Write, page);
        self.written[page as usize] = version;
    }

    fn verify(&mut self, page: u64) {
        self.request(BlockOperation::Read, page);
        let mut found = [0; PAGE_SIZE_BYTES];
        self.pool.memory().read(0, &mut found);
        assert!(found == Self::content(page, self.written[page as usize]), "page {page} has wrong bytes");
    }

    fn step(&mut self) {
        let page = self.random.below(PAGES as usize) as u64;
        if self.random.below(3) == 0 { self.verify(page) } else { self.write(page) }
    }

    fn write_all(&mut self) {
        (0..PAGES).for_each(|page| self.write(page));
    }

    fn verify_all(&mut self) {
        (0..PAGES).for_each(|page| self.verify(page));
    }
}

/// Runs `program` in another thread while `changes` go on, and verifies every page after them.
fn during(world: &mut World, mut program: Program, changes: impl FnOnce(&mut World)) -> Program {
    program.write_all();
    let (is_over, steps) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| {
            while !is_over.load(Ordering::SeqCst) {
                program.step();
                steps.fetch_add(1, Ordering::SeqCst);
            }
            program.verify_all();
            program
        });
        /// Ends the program also when the test has failed.
        struct Over<'a>(&'a AtomicBool);
        impl Drop for Over<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::SeqCst);
            }
        }
        let over = Over(&is_over);
        changes(world);
        drop(over);
        let program = worker.join().unwrap();
        assert!(steps.load(Ordering::SeqCst) > 0);
        program
    })
}

#[test]
fn slabs_leave_a_removed_donor_while_programs_use_them_and_its_slot_is_used_again() {
    for transport in [TransportChoice::Tcp, TransportChoice::Auto] {
        let (mut world, engine, pool) = World::new("none", 2, 3, transport);
        let program = during(&mut world, Program::new(engine, pool), |world| {
            assert!((0..2).all(|donor| world.lent_slabs(donor) > 0));
            world.remove(0);
            world.removed(0);
            world.returned(0);
            assert_eq!(world.status().pages_lost, 0);
            world.add(2);
            world.remove(1);
            world.removed(1);
            world.returned(1);
            assert_eq!(world.lent_slabs(2), SLABS as usize);
            // The first slot again, with the first donor.
            world.add(0);
            world.remove(2);
            world.removed(2);
        });
        assert_eq!(world.status().pages_lost, 0);
        drop(program);
        world.running.stop();
    }
}

#[test]
fn a_donor_that_dies_while_it_is_removed_costs_no_page_that_has_a_second_copy() {
    let (mut world, engine, pool) = World::new("replicas=2", 3, 4, TransportChoice::Tcp);
    let program = during(&mut world, Program::new(engine, pool), |world| {
        world.remove(0);
        drop(world.donors[0].take());
        world.removed(0);
        world.wait("two copies of each slab", |world| world.status().slabs.mapped == SLABS);
        world.add(3);
        world.remove(1);
        // The one that the copies go to.
        drop(world.donors[3].take());
        world.wait("the donor is lost", |world| world.link(3).is_some_and(|link| link.state == "lost"));
        assert!(world.link(1).is_some_and(|link| link.is_leaving && link.state == "connected"));
        assert_eq!(world.status().pages_lost, 0);
        // Two donors cannot hold two copies of each slab without this one, so it stays, until there is another one.
        let (donor, addresses) = start_donor(world.directory.path(), 4);
        world.donors.push(Some(donor));
        world.addresses.push(addresses[0].clone());
        world.add(4);
        world.removed(1);
    });
    assert_eq!(world.status().pages_lost, 0);
    drop(program);
    world.running.stop();
}

#[test]
fn the_disk_takes_the_pages_of_the_last_donor_and_gives_them_to_the_next_one() {
    let (mut world, engine, pool) = World::new("disk", 1, 2, TransportChoice::Auto);
    // The program writes to every slab without a pause: pages of each are on their way to the disk all the time.
    let program = during(&mut world, Program::new(engine, pool), |world| {
        world.remove(0);
        world.removed(0);
        world.returned(0);
        assert!(world.status().donors.is_empty());
        world.add(1);
        world.wait("slabs at the new donor", |world| world.lent_slabs(1) > 0);
    });
    drop(program);
    world.running.stop();
}

#[test]
fn what_cannot_be_done_is_refused_with_the_reason() {
    let (mut world, ..) = World::new("none", 1, 2, TransportChoice::Auto);
    let (first, second) = (world.addresses[0].clone(), world.addresses[1].clone());
    let running = &world.running;
    assert_eq!(running.add_donor(&first), Err(DonorChangeError::AlreadyThere(first.clone())));
    // Its pages would leave this machine as they are. The name leads nowhere (RFC 6761).
    let far: DonorAddress = "other-machine.invalid:7070".parse().unwrap();
    assert_eq!(running.add_donor(&far), Err(DonorChangeError::NotSealed(far.clone())));
    assert_eq!(running.remove_donor(&first), Err(DonorChangeError::LastDonor(first.clone())));
    let unknown = running.remove_donor(&second).unwrap_err().to_string();
    assert!(unknown.contains("is not used") && unknown.contains(&first.to_string()), "{unknown}");
    // Donors that are nowhere take slots too.
    let nowhere = |number: usize| format!("127.0.0.1:{}", 1 + number).parse::<DonorAddress>().unwrap();
    (1..DONORS_MAX).for_each(|number| running.add_donor(&nowhere(number)).unwrap());
    assert_eq!(running.add_donor(&second), Err(DonorChangeError::Full));
    running.remove_donor(&nowhere(7)).unwrap();
    world.wait("a slot is free", |world| world.status().donors.len() < DONORS_MAX);
    world.add(1);
    world.remove(0);
    world.removed(0);
    world.running.stop();
}

#[test]
fn the_next_process_knows_the_donors_of_now_and_goes_on_with_a_removal() {
    let (mut world, engine, pool) = World::new("disk", 2, 4, TransportChoice::Auto);
    let mut program = Program::new(engine, pool);
    program.write_all();
    world.remove(0);
    world.removed(0);
    world.add(2);
    world.running.stop();
    let state = DeviceState::open(again(&world.memory), &world.config).unwrap();
    let slot = |donor: usize| {
        let named = |at: &spillway_volume::state::records::DonorPlace| at.address == world.addresses[donor].to_string();
        state.records().places().into_iter().find(named).map(|at| at.slot)
    };
    assert_eq!((slot(0), slot(2).map(|at| at.0)), (None, Some(0)));
    // It dies just after it began to remove another one.
    state.records().set_leaving(slot(1).unwrap(), true);
    drop(state);
    let Program { written, random, engine, .. } = program;
    drop(engine);
    let (engine, pool, running) = start(&world.config, again(&world.memory));
    world.running = running;
    world.removed(1);
    let left: Vec<String> = world.status().donors.into_iter().map(|link| link.address).collect();
    assert_eq!(left, [world.addresses[2].to_string()]);
    let mut program = Program { engine, pool, written, random };
    program.verify_all();
    drop(program);
    world.running.stop();
}

/// Has a donor drained, or that undone, as an operator does.
fn order(world: &World, donor: usize, order: DrainOrder) {
    let address = world.donors[donor].as_ref().unwrap().tcp_address().unwrap();
    let stream = TcpStream::connect(address).unwrap();
    let (sender, mut receiver) = ControlChannel::connect(stream, None).unwrap().split();
    sender.send(&Message::Drain { order }, None).unwrap();
    assert!(matches!(receiver.receive(PATIENCE).unwrap().0, Message::Draining { .. }));
}

#[test]
fn what_a_donor_asked_back_stays_there_when_its_drain_is_undone() {
    let (mut world, engine, pool) = World::new("none", 1, 2, TransportChoice::Tcp);
    let program = during(&mut world, Program::new(engine, pool), |world| {
        let recalls = |world: &World| world.donors[0].as_ref().unwrap().status().recalls;
        order(world, 0, DrainOrder::Drain);
        // There is no other donor: the slabs wait for one.
        world.wait("all slabs are asked back", |world| recalls(world).asked == SLABS);
        world.wait("the moves are under way", |world| world.status().slabs.migrating > 0);
        order(world, 0, DrainOrder::Undo);
        assert_eq!(recalls(world).withdrawn, SLABS);
        world.wait("no slab is to move", |world| world.status().slabs.migrating == 0);
        world.add(1);
        // Longer than a slab that could not leave waits before it is tried again.
        std::thread::sleep(2 * RECALL_RETRY_PAUSE);
        assert_eq!((world.lent_slabs(0), world.lent_slabs(1)), (SLABS as usize, 0));
        order(world, 0, DrainOrder::Drain);
        world.returned(0);
        assert_eq!(world.lent_slabs(1), SLABS as usize);
    });
    assert_eq!(world.status().pages_lost, 0);
    drop(program);
    world.running.stop();
}
