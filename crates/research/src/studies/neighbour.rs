//! What a machine's own server loses by lending: memcached on a donor whose lent memory is asked back for it, beside
//! the same without a donor (Memtrade, SoCC '21: less than 2.1 % of throughput).
//!
//! A memory group stands for the machine. With lending, a donor in it has lent nearly all of it to a program under
//! `spillway run` outside, when the server starts and fills its memory. The donor has to give it back meanwhile: a
//! trial in which nothing came back is an error.

use std::path::Path;
use std::time::{Duration, Instant};

use spillway_bench::harness::HarnessError;
use spillway_bench::harness::memory_group::MemoryGroup;
use spillway_bench::harness::process::{Collected, Running};
use spillway_bench::harness::spillway::{Donor, Spillway, Storage, Via};
use spillway_bench::harness::storage::PrivateDirectory;
use spillway_bench::result::{Better, MICROSECONDS, OPERATIONS_PER_SECOND, SECONDS, StudyResult};
use spillway_bench::studies::servers::load::{Served, Times};
use spillway_bench::studies::servers::memcached::Memcached;
use spillway_bench::studies::servers::server::{Server, Session};
use spillway_bench::studies::{Context, Study};
use spillway_workloads::size::{MIB, Size};

/// What the server's values take.
const VALUES: Size = Size(160 * MIB);
/// The same of a quick run.
const VALUES_QUICK: Size = Size(48 * MIB);

/// What the donor leaves to its machine: two thirds of what the server takes within two seconds. With a fifth the
/// kernel ends the server before the donor has given anything back, as the group has no swap.
const HEADROOM: Size = Size(112 * MIB);
/// The same of a quick run.
const HEADROOM_QUICK: Size = Size(32 * MIB);

const SLAB: Size = Size(4 * MIB);

/// A borrower whose program is idle once it has its values: its CPUs are another machine's, and here they are those of
/// the server that is measured. A hash table that grows, and threads that sort values by age, page all the time.
const BORROWER_IDLE: [&str; 2] = ["-o", "hashpower=21,no_lru_maintainer,no_lru_crawler"];

/// Local memory of the borrower's program.
const BORROWER_LOCAL: &str = "16M";

const WITHOUT: &str = "without lending";
const WITH: &str = "lending";

const RATE: &str = "answers of the local server";
const P99: &str = "p99 of an answer";
const LOADING: &str = "loading the local server";

const GOAL: &str = "throughput of a local server beside a donor that gives back, against none (Memtrade: 0.979)";

/// The study of a donor's own programs.
#[derive(Clone, Copy, Debug)]
pub struct NeighbourStudy;

impl Study for NeighbourStudy {
    fn name(&self) -> &'static str {
        "neighbour"
    }

    fn title(&self) -> &'static str {
        "a memory-hungry server on a donor that has to give its memory back"
    }

    fn rounds(&self) -> usize {
        2
    }

    fn seconds_per_round(&self) -> (u64, u64) {
        (24, 16)
    }

    fn run(&self, context: &Context, result: &mut StudyResult) -> Result<(), HarnessError> {
        let outcome = match &context.shop.spillway {
            Err(why) => {
                result.skip(WITH, why);
                Ok(())
            }
            Ok(spillway) => context.interleave(result, &[WITHOUT, WITH], str::to_owned, |round, subject, result| {
                measure(context, spillway, (round, subject), result)
            }),
        };
        result.goal(GOAL, RATE, WITH, WITHOUT, 0.979, Better::Higher);
        outcome
    }
}

/// A donor that has lent, and the program that has borrowed.
struct Lent {
    // Fields are dropped in this order: the program ends first.
    _borrower: Running,
    _donor: Donor,
}

fn measure(
    context: &Context,
    spillway: &Spillway,
    (round, subject): (usize, &str),
    result: &mut StudyResult,
) -> Result<(), HarnessError> {
    let interrupt = &context.shop.interrupt;
    let (values, headroom) = context.choose((VALUES, HEADROOM), (VALUES_QUICK, HEADROOM_QUICK));
    // The donor lends as much as the server takes later, and the machine has room for one of the two.
    let machine = Size(values.0 * 2 + 2 * headroom.0);
    let group = MemoryGroup::create(Some(machine.0))?;
    let disk = PrivateDirectory::on_disk(Some(context.shop.directory.path()))?;
    // Reachable for the donor's user.
    let donors = PrivateDirectory::on_disk(None)?;
    let donors = donors.path();
    let lent = (subject == WITH).then(|| lend(context, spillway, &group, (disk.path(), donors))).transpose()?;
    let measured = Duration::from_secs(context.choose(10, 2));
    let began = Instant::now();
    let times = Times { warm_up: Duration::ZERO, measured };
    let own = disk.path().join("local");
    std::fs::create_dir(&own).map_err(HarnessError::system("making a directory"))?;
    let session = Session { directory: &own, times, interrupt };
    let server = Memcached::new(values);
    let mut running = Running::start("memcached", &mut group.enter(&server.command(&session)?), Collected::default())?;
    let Served { rate, p99_us, .. } = server.serve(&mut running, &session)?;
    let loading = began.elapsed().saturating_sub(measured);
    if lent.is_some() {
        let returned = spillway.recalls_returned(donors, interrupt)?;
        if returned == 0 {
            return Err(HarnessError::failed("the donor", "its machine never needed what it had lent"));
        }
    }
    result.record(round, RATE, subject, OPERATIONS_PER_SECOND, rate);
    result.record(round, P99, subject, MICROSECONDS, p99_us);
    result.record(round, LOADING, subject, SECONDS, loading.as_secs_f64());
    Ok(())
}

/// A donor in `group` lends to a server outside, until that has written its values.
fn lend(
    context: &Context,
    spillway: &Spillway,
    group: &MemoryGroup,
    (disk, donors): (&Path, &Path),
) -> Result<Lent, HarnessError> {
    let interrupt = &context.shop.interrupt;
    let (values, headroom) = context.choose((VALUES, HEADROOM), (VALUES_QUICK, HEADROOM_QUICK));
    let donor = spillway.donor_within(group, donors, (Size(values.0 * 2), headroom, SLAB), interrupt)?;
    let server = Memcached::new(Size(values.0 + headroom.0));
    let session = Session {
        directory: disk,
        times: Times { warm_up: Duration::ZERO, measured: Duration::from_millis(200) },
        interrupt,
    };
    let storage = Storage {
        donors: vec![donor.address.clone()],
        redundancy: "disk".to_owned(),
        backing: Some(disk.join("backing")),
        slab_size: Some(SLAB),
        lend: Some(server.room()),
        ..Storage::default()
    };
    let mut program = server.command(&session)?;
    program.args(BORROWER_IDLE);
    let stats = disk.join("statistics.json");
    let mut command = spillway.run_via(Via::Pager, None, BORROWER_LOCAL, &storage, &stats, &program);
    let mut borrower = Running::start("the borrower", &mut command, Collected::default())?;
    server.serve(&mut borrower, &session)?;
    Ok(Lent { _borrower: borrower, _donor: donor })
}
