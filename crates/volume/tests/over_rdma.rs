//! Volumes with real donors, reached by RDMA in guests with stock kernels: soft-RoCE over the loopback interface.
//!
//! [`volumes_over_rdma_in_stock_kernels`] boots a machine for each kernel and runs this very program in it, once for
//! each step: first while there is no device, then with one.

#![cfg(not(feature = "schedules"))]
#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use spillway_block::metrics::Metrics;
use spillway_block::request::{BlockError, BlockOperation, BlockRequest};
use spillway_block::service::BlockService;
use spillway_donor::{Donor, DonorConfig};
use spillway_fabric::buffer_pool::BufferPool;
use spillway_fabric::site::Site;
use spillway_fabric::units::{PAGE_SIZE_BYTES, Priority};
use spillway_sys::allocation_guard::{GuardedAllocator, forbid_allocation};
use spillway_sys::skipping::skip;
use spillway_virtual_machine::{Failure, Kernel, VirtualMachine, emulated};
use spillway_volume::engine::Engine;
use spillway_volume::error::VolumeError;
use spillway_volume::running::{Prerequisites, RunningVolume};
use spillway_volume::settings::VolumeConfig;
use spillway_volume::settings::protection::SealChoice;
use spillway_volume::settings::redundancy::Redundancy;
use spillway_volume::settings::transport::TransportChoice;
use spillway_volume::state::DeviceState;
use spillway_volume::status::DeviceStatus;
use spillway_volume::steward::placement::{Random, XorShift};

#[global_allocator]
static ALLOCATOR: GuardedAllocator = GuardedAllocator;

const MEBIBYTE: u64 = 1 << 20;
const SLAB: u64 = MEBIBYTE;
const SLABS: u64 = 12;
const PAGES: u64 = SLABS * SLAB / PAGE_SIZE_BYTES as u64;
/// Pages of the longest request.
const RUN: u64 = 16;
const SLOTS: usize = 4;

/// How long one test may take in a guest that is emulated on a loaded host, and how long a test waits for something.
const WITHIN: Duration = Duration::from_secs(600);

/// Steps in the guest: what is done before, the test, and what it is to find.
const STEPS: &[(&str, &str, &str)] = &[
    ("true", "what_is_missing_is_told", "load the module of the adapter"),
    ("modprobe rdma_rxe && modprobe ib_uverbs", "what_is_missing_is_told", "there is no RDMA device"),
    (
        "ip link add other type dummy && ip addr add 10.9.9.9/24 dev other && ip link set other up && \
         rdma link add rxe_other type rxe netdev other",
        "what_is_missing_is_told",
        "no RDMA device has the address 127.0.0.1",
    ),
    (
        "rdma link delete rxe_other && rdma link add rxe_lo type rxe netdev lo",
        "pages_are_exact_while_donors_come_and_go",
        "",
    ),
    ("true", "a_donor_that_may_not_lock_memory_lends_over_tcp", "8192"),
    ("true", "what_is_missing_is_told", "limit of locked memory"),
    (
        "mount --bind /dev/null $(ldconfig -p | sed -n 's/.*libibverbs.so.1 .*=> //p' | head -n 1)",
        "what_is_missing_is_told",
        "libibverbs.so.1 cannot be loaded",
    ),
];

/// What the older kernel does of these.
const STEPS_OF_OLDER: (&str, &str, &str) =
    ("modprobe rdma_rxe && rdma link add rxe_lo type rxe netdev lo", "pages_are_exact_while_donors_come_and_go", "");

#[test]
fn volumes_over_rdma_in_stock_kernels() {
    for kernel in Kernel::ALL {
        emulated(|| {
            let machine = match VirtualMachine::builder().kernel(kernel).modules(&["dummy"]).start() {
                Err(Failure::Missing { what, remedy }) => return skip(format_args!("{what} ({remedy})")),
                result => result.unwrap_or_else(|failure| panic!("{failure}")),
            };
            let program = std::env::current_exe().unwrap();
            // What is missing is told in the same way by both.
            let older = [STEPS_OF_OLDER];
            let steps = if kernel == Kernel::Debian612 { STEPS } else { &older };
            for (before, test, expected) in steps {
                let started = Instant::now();
                // The right to lock memory is not bound by the limit, so root's is taken away.
                let may_lock_little = *expected == "8192" || expected.contains("limit");
                let run_as = if may_lock_little {
                    "ulimit -l 8192; exec setpriv --reuid 65534 --clear-groups --inh-caps -all"
                } else {
                    "ulimit -l unlimited; exec"
                };
                let script = format!(
                    "{before} || exit 99; export EXPECTED='{expected}'; {run_as} '{}' --exact {test} --ignored --nocapture",
                    program.display()
                );
                let said = machine.run(&script, WITHIN).unwrap_or_else(|failure| panic!("{failure}"));
                let passed = said.status == 0 && said.output.contains("1 passed");
                assert!(passed, "{test} {expected}: {said:#?}\n{}", machine.console());
                println!("in the guest with {}: {test} {expected} ({:?})", kernel.name(), started.elapsed());
            }
            assert_eq!(machine.complaints(), Vec::<String>::new());
            machine.end().unwrap_or_else(|failure| panic!("{failure}"));
        });
    }
}

fn donor() -> Donor {
    let config = DonorConfig {
        memory_bytes: 32 * MEBIBYTE,
        headroom_bytes: 0,
        listen: vec!["127.0.0.1:0".parse().unwrap()],
        unix_path: None,
        key: None,
        machine_limit_bytes: None,
        weights: spillway_fabric::tcp::Weights::default(),
        site: Site::default(),
        slab_prepared_count: 1,
        slab_size_hint_bytes: SLAB,
    };
    Donor::start(config).unwrap()
}

/// A volume, the engine of the only I/O thread, and what it was written with.
struct World {
    running: RunningVolume,
    engine: Engine,
    pool: Arc<BufferPool>,
    config: VolumeConfig,
    _state: DeviceState,
    /// Absent: zeroes.
    model: HashMap<u64, u32>,
    random: XorShift,
    clock: u32,
}

fn start(donors: &[&Donor], transport: TransportChoice, replicas: u8, slot_bytes: usize) -> Result<World, VolumeError> {
    let config = VolumeConfig {
        seal: SealChoice::On,
        redundancy: Redundancy { replicas, disk: false },
        transport,
        donor_wait: WITHIN,
        ..VolumeConfig::new(
            "over-rdma",
            SLABS * SLAB,
            SLAB,
            donors.iter().map(|donor| donor.tcp_address().unwrap().to_string().parse().unwrap()).collect(),
        )
    };
    let state = DeviceState::open(DeviceState::memory(&config).unwrap(), &config).unwrap();
    let pool = BufferPool::new(SLOTS, slot_bytes).unwrap();
    let (metrics, pools) = (Arc::new(Metrics::default()), [Arc::clone(&pool)]);
    let needed = Prerequisites::find(&config, &state).unwrap();
    let started = RunningVolume::start(&config, &state, needed, Duration::ZERO, &metrics, &pools);
    let (mut engines, mut running) = started.unwrap();
    if let Err(error) = running.await_donors(WITHIN, false) {
        running.stop();
        return Err(error);
    }
    let engine = engines.pop().unwrap();
    let (model, random) = (HashMap::new(), XorShift::new(11));
    Ok(World { running, engine, pool, config, _state: state, model, random, clock: 0 })
}

/// What a page is written with: no word of it like the next one, as a page of equal words would not be sent.
fn content(clock: u32) -> Vec<u8> {
    (0..PAGE_SIZE_BYTES as u32 / 4).flat_map(|word| (clock ^ word << 16).to_le_bytes()).collect()
}

/// Sleeps until an event of the engine, as an I/O thread does.
fn sleep(engine: &mut Engine) {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    if engine.arm() {
        return;
    }
    let mut waits = Vec::new();
    engine.for_each_event(&mut |event, _| waits.push(PollFd::from_borrowed_fd(event, PollFlags::IN)));
    let pause = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
    let _ = poll(&mut waits, Some(&pause));
}

impl World {
    fn status(&self) -> DeviceStatus {
        let mut status = DeviceStatus::default();
        self.running.describe(&self.config, &mut status);
        status
    }

    /// One request; its result.
    fn request(&mut self, operation: BlockOperation, page: u64, pages: u64) -> Result<(), BlockError> {
        let bytes = PAGE_SIZE_BYTES as u64;
        let (offset_bytes, length_bytes) = (page * bytes, pages * bytes);
        let request = BlockRequest { slot: 0, operation, offset_bytes, length_bytes, priority: Priority::Demand };
        let end = Instant::now() + WITHIN;
        let mut answer = None;
        forbid_allocation(|| self.engine.submit(request, Instant::now()));
        while answer.is_none() {
            assert!(Instant::now() < end, "{request:?} does not end");
            let engine = &mut self.engine;
            forbid_allocation(|| engine.poll(Instant::now(), &mut |_, result| answer = Some(result)));
            if answer.is_none() {
                sleep(engine);
            }
        }
        answer.unwrap()
    }

    /// Writes to one slab after the other, until the donor is told to have refused one; that write is not waited for.
    fn write_until_refused(&mut self) {
        self.pool.memory().write(0, &content(1));
        let end = Instant::now() + WITHIN;
        for slab in 0..SLABS {
            let (operation, length_bytes) = (BlockOperation::Write, PAGE_SIZE_BYTES as u64);
            let priority = Priority::Demand;
            let request = BlockRequest { slot: 0, operation, offset_bytes: slab * SLAB, length_bytes, priority };
            self.engine.submit(request, Instant::now());
            let mut has_ended = false;
            while !has_ended {
                self.engine.poll(Instant::now(), &mut |_, _| has_ended = true);
                if self.status().donors[0].last_error.contains("register") {
                    return;
                }
                assert!(Instant::now() < end, "no slab is refused: {:#?}", self.status());
            }
        }
    }

    fn write(&mut self, page: u64, pages: u64) {
        self.clock += 1;
        let content = content(self.clock);
        for index in 0..pages {
            self.pool.memory().write(index as usize * PAGE_SIZE_BYTES, &content);
            self.model.insert(page + index, self.clock);
        }
        self.request(BlockOperation::Write, page, pages).unwrap();
    }

    fn check(&mut self, page: u64, pages: u64) {
        self.request(BlockOperation::Read, page, pages).unwrap();
        for index in 0..pages {
            let mut seen = [0; PAGE_SIZE_BYTES];
            self.pool.memory().read(index as usize * PAGE_SIZE_BYTES, &mut seen);
            let expected = self.model.get(&(page + index)).map_or(vec![0; PAGE_SIZE_BYTES], |clock| content(*clock));
            assert!(seen[..] == expected[..], "page {} is {:?}", page + index, &seen[..4]);
        }
    }

    fn discard(&mut self, page: u64, pages: u64) {
        self.request(BlockOperation::Discard, page, pages).unwrap();
        self.model.retain(|known, _| !(page..page + pages).contains(known));
    }

    fn random_requests(&mut self, count: usize) {
        for _ in 0..count {
            let mut below = |bound: u64| self.random.below(bound as usize) as u64;
            let (page, pages, choice) = (below(PAGES - RUN), 1 + below(RUN), below(5));
            match choice {
                0 => self.discard(page, pages),
                1 | 2 => self.check(page, pages),
                _ => self.write(page, pages),
            }
        }
    }

    fn check_all(&mut self) {
        (0..PAGES / RUN).for_each(|run| self.check(run * RUN, RUN));
    }

    fn await_status(&self, what: &str, is_there: impl Fn(&DeviceStatus) -> bool) {
        let end = Instant::now() + WITHIN;
        while !is_there(&self.status()) {
            assert!(Instant::now() < end, "{what}: {:#?}", self.status());
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

fn connected_by(status: &DeviceStatus, transport: &str) -> bool {
    status.donors.iter().all(|donor| donor.state == "connected" && donor.transport == transport)
}

#[test]
#[ignore = "runs in a guest"]
fn pages_are_exact_while_donors_come_and_go() {
    let donors = [donor(), donor(), donor()];
    let slot = RUN as usize * PAGE_SIZE_BYTES;
    let mut world = start(&donors.each_ref(), TransportChoice::Rdma, 2, slot).unwrap();
    world.await_status("all are connected", |status| connected_by(status, "rdma"));
    world.random_requests(400);
    world.check_all();
    let by_rdma = donors[0].status();
    assert_eq!((by_rdma.sessions[0].transport.as_str(), by_rdma.sessions[0].read_bytes), ("rdma", None));
    // Asked back: the slabs move to others, and are taken back from the device.
    let [first, second, third] = donors;
    world.await_status("every slab has its copies", |status| status.slabs.degraded == 0);
    first.drain(WITHIN).unwrap();
    assert_eq!(first.status().lent_bytes, 0);
    world.random_requests(100);
    world.check_all();
    // Lost: the others have copies.
    second.stop();
    world.random_requests(100);
    world.check_all();
    assert_eq!(world.status().pages_lost, 0);
    world.running.stop();
    drop((world, first, third));
}

/// The limit holds for the pages that a device pins, of borrower and donor together in this process.
#[test]
#[ignore = "runs in a guest"]
fn a_donor_that_may_not_lock_memory_lends_over_tcp() {
    let donor = donor();
    let slot = RUN as usize * PAGE_SIZE_BYTES;
    let mut world = start(&[&donor], TransportChoice::Auto, 1, slot).unwrap();
    world.await_status("it is connected", |status| connected_by(status, "rdma"));
    (0..PAGES / RUN).for_each(|run| world.write(run * RUN, RUN));
    world.random_requests(100);
    world.check_all();
    assert_eq!(donor.status().lent_bytes, SLABS * SLAB);
    let status = world.status();
    assert!(status.donors[0].slabs_by_tcp > 0 && status.donors[0].slabs_by_tcp < SLABS, "{status:#?}");
    world.running.stop();
    // Where the user wants nothing else, such slabs are of no use, and the reason is told.
    let mut world = start(&[&donor], TransportChoice::Rdma, 1, slot).unwrap();
    world.write_until_refused();
    world.await_status("the reason", |status| status.donors[0].last_error.contains("register"));
    world.running.stop();
}

/// `auto` goes over TCP and says why; `rdma` is an error that says the same.
#[test]
#[ignore = "runs in a guest"]
fn what_is_missing_is_told() {
    let expected = std::env::var("EXPECTED").unwrap();
    let donor = donor();
    // More than may be locked, where little may.
    let slot = if expected.contains("limit") { 3 * MEBIBYTE as usize } else { RUN as usize * PAGE_SIZE_BYTES };
    let mut world = start(&[&donor], TransportChoice::Auto, 1, slot).unwrap();
    world.await_status("it is connected", |status| connected_by(status, "tcp"));
    let reason = world.status().donors[0].transport_reason.clone();
    assert!(reason.contains(&expected), "{reason}");
    world.write(0, RUN);
    world.check(0, RUN);
    world.running.stop();
    let Err(error) = start(&[&donor], TransportChoice::Rdma, 1, slot) else { panic!("there is no RDMA") };
    assert!(error.to_string().contains(&expected), "{error}");
}
