//! PostgreSQL, asked by `pgbench` for rows by their key, as `pgbench -S` does.
//!
//! Its data are made once, with no limit: so the kernel's cache of its files is not charged to the runs. Each run
//! reads all rows into `shared_buffers`, which has room for them; that memory is what is lent over a swap device. The
//! pager does not page shared memory: under it these buffers stay local and only the processes' own memory is lent,
//! which the result says.
//!
//! The query of `pgbench -S` is extended: it computes from each row whether it is what pgbench stored under its key.
//! If it is not, the query divides by zero.
//!
//! The server refuses root. Root runs it as the user that owns nothing else, `ORDINARY_USER`.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use spillway_block::latency::LatencyHistogram;

use super::load::{CLIENTS, Served};
use super::server::{Server, Session, await_answer};
use crate::harness::cpu_use::counted;
use crate::harness::interrupt::Interrupt;
use crate::harness::process::{Collected, Running, bound};
use crate::harness::spillway::Via;
use crate::harness::storage::PrivateDirectory;
use crate::harness::{HarnessError, tool};
use crate::limits::{PROGRAM_DEADLINE, START_DEADLINE};
use crate::studies::Context;
use spillway_workloads::size::{MIB, Size};

/// Its name in results.
pub const NAME: &str = "postgres";

/// The user and group that Debian and the kernel call `nobody` and `nogroup`.
const ORDINARY_USER: u32 = 65_534;

/// Rows of pgbench for each step of its scale.
const ROWS_PER_SCALE: u64 = 100_000;

/// What they take, about: 13 MB of rows and 2 MB of index.
const SCALE_BYTES: u64 = 15 * MIB;

/// Programs that have to be in one directory; Debian has them below one of the version.
const PROGRAMS: [&str; 4] = ["postgres", "initdb", "pgbench", "psql"];

/// Where Debian has directories of versions.
const VERSIONS: &str = "/usr/lib/postgresql";

/// Settings of the server beside its places and sizes. It keeps nothing in `/dev/shm` and does no work of its own
/// accord, so that a run is its clients' requests.
const SETTINGS: [&str; 7] = [
    "listen_addresses=",
    "dynamic_shared_memory_type=mmap",
    "fsync=off",
    "autovacuum=off",
    "wal_level=minimal",
    "max_wal_senders=0",
    "max_parallel_workers_per_gather=0",
];

/// Asks for one row and checks all that is in it. No row, or two, is an error too.
const SCRIPT: &str = "\\set aid random(1, :rows)
SELECT abalance / (aid = :aid AND bid = (aid - 1) / 100000 + 1 AND abalance = 0 AND filler = '')::int AS balance \
FROM pgbench_accounts WHERE aid = :aid \\gset
";

/// What pgbench says when a row is not what it must be.
const WRONG: [&str; 2] = ["division by zero", "expected one row"];

/// PostgreSQL with its data.
#[derive(Debug)]
pub struct Postgres {
    programs: PathBuf,
    private: PrivateDirectory,
    scale: u64,
}

/// The directory that has all programs.
fn programs() -> Result<PathBuf, HarnessError> {
    let mut versions: Vec<PathBuf> =
        fs::read_dir(VERSIONS).into_iter().flatten().flatten().map(|entry| entry.path().join("bin")).collect();
    versions.sort_unstable();
    let in_path = tool::find(PROGRAMS[0]).and_then(|file| file.parent().map(Path::to_owned));
    let has_all = |directory: &PathBuf| PROGRAMS.iter().all(|program| directory.join(program).is_file());
    in_path.into_iter().chain(versions.into_iter().rev()).find(has_all).ok_or_else(|| {
        HarnessError::Missing("PostgreSQL is not installed; on Debian: apt install postgresql".to_owned())
    })
}

/// `program` as a user that the server accepts; it ends when this process does.
fn as_ordinary_user(program: &Path) -> Result<Command, HarnessError> {
    if !rustix::process::geteuid().is_root() {
        return Ok(bound(program));
    }
    let mut command = Command::new(tool::need("setpriv")?);
    let user = ORDINARY_USER.to_string();
    // The signal comes last: a change of the user takes it back.
    command.args(["--reuid", &user, "--regid", &user, "--clear-groups", "--pdeathsig", "TERM", "--"]).arg(program);
    Ok(command)
}

impl Postgres {
    /// Makes rows that fill about `size`.
    pub fn prepare(context: &Context, size: Size) -> Result<Self, HarnessError> {
        let private = PrivateDirectory::on_disk(Some(context.shop.directory.path()))?;
        let scale = (size.0 / SCALE_BYTES).max(1);
        let postgres = Self { programs: programs()?, private, scale };
        postgres.make_directory()?;
        let interrupt = &context.shop.interrupt;
        postgres.initialize(interrupt)?;
        let mut running = Running::start(NAME, &mut postgres.server()?, Collected::default())?;
        postgres.await_server(&mut running, interrupt)?;
        postgres.pgbench(&["-i", "-q", "-s", &scale.to_string()], interrupt)?;
        postgres.query("CREATE EXTENSION pg_prewarm; CHECKPOINT", interrupt)?;
        running.stop();
        Ok(postgres)
    }

    fn data(&self) -> PathBuf {
        self.private.path().join("data")
    }

    fn make_directory(&self) -> Result<(), HarnessError> {
        let data = self.data();
        let failed = || HarnessError::system::<std::io::Error>(format!("making {}", data.display()));
        fs::create_dir(&data).map_err(failed())?;
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&data, Some(ORDINARY_USER), Some(ORDINARY_USER)).map_err(failed())?;
        }
        fs::write(self.private.path().join("script"), SCRIPT).map_err(failed())
    }

    fn initialize(&self, interrupt: &Interrupt) -> Result<(), HarnessError> {
        let mut command = as_ordinary_user(&self.programs.join("initdb"))?;
        command.args(["--no-sync", "--auth=trust", "--username=postgres", "--locale=C", "--encoding=UTF8", "--pgdata"]);
        tool::run_command(command.arg(self.data()), PROGRAM_DEADLINE, interrupt).map(|_| ())
    }

    /// Its buffers have room for all rows and a fourth more, for the system's tables.
    fn server(&self) -> Result<Command, HarnessError> {
        let mut command = as_ordinary_user(&self.programs.join("postgres"))?;
        command.arg("-D").arg(self.data()).arg("-k").arg(self.data());
        for setting in SETTINGS {
            command.args(["-c", setting]);
        }
        let buffers_mib = self.scale * SCALE_BYTES / MIB * 5 / 4 + 16;
        command.args(["-c", &format!("shared_buffers={buffers_mib}MB")]);
        Ok(command)
    }

    /// `program` of the clients', told which server.
    fn client(&self, program: &str) -> Command {
        let mut command = bound(self.programs.join(program));
        command.arg("-h").arg(self.data()).args(["-U", "postgres"]);
        command
    }

    fn query(&self, query: &str, interrupt: &Interrupt) -> Result<String, HarnessError> {
        let mut command = self.client("psql");
        command.args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-d", "postgres", "-c", query]);
        tool::run_command(&mut command, PROGRAM_DEADLINE, interrupt)
    }

    fn await_server(&self, running: &mut Running, interrupt: &Interrupt) -> Result<(), HarnessError> {
        let mut look = self.client("psql");
        look.args(["-X", "-d", "postgres", "-c", "SELECT 1"]);
        await_answer(NAME, running, interrupt, || tool::run_command(&mut look, START_DEADLINE, interrupt).ok())?;
        Ok(())
    }

    /// Runs pgbench; gives what it printed.
    fn pgbench<Argument: AsRef<OsStr>>(
        &self,
        arguments: &[Argument],
        interrupt: &Interrupt,
    ) -> Result<String, HarnessError> {
        let mut command = self.client("pgbench");
        let output = Collected::default();
        let running = Running::start("pgbench", command.args(arguments).arg("postgres"), output.clone())?;
        let messages = running.messages.clone();
        let finished = running.wait(PROGRAM_DEADLINE, interrupt, || {})?;
        let said = messages.text();
        match said.lines().find(|line| WRONG.iter().any(|wrong| line.contains(wrong))) {
            Some(line) => Err(HarnessError::wrong(NAME, format!("WRONG VALUE: {line}"))),
            None if finished.status.success() => Ok(output.text()),
            None => Err(HarnessError::failed("pgbench", format!("{} ({})", messages.last_line(), finished.status))),
        }
    }

    /// Lets clients ask for so long; their latencies go to files that begin with `log`.
    fn ask(&self, time: Duration, log: &Path, interrupt: &Interrupt) -> Result<String, HarnessError> {
        let script = self.private.path().join("script");
        let (rows, seconds) = (format!("rows={}", self.scale * ROWS_PER_SCALE), time.as_secs().max(1).to_string());
        let clients = CLIENTS.to_string();
        let mut arguments: Vec<&OsStr> = vec!["-f".as_ref(), script.as_ref(), "--log-prefix".as_ref(), log.as_ref()];
        arguments.extend(["-n", "-l", "-M", "prepared", "-j", "2", "-c", &clients].map(OsStr::new));
        arguments.extend(["-T", &seconds, "-D", &rows].map(OsStr::new));
        self.pgbench(&arguments, interrupt)
    }
}

/// From pgbench's report: transactions in a second, without the time that connecting took.
fn transactions_per_second(report: &str) -> Option<f64> {
    report.lines().find_map(|line| line.strip_prefix("tps = ")?.split(' ').next()?.parse().ok())
}

/// Counts the latencies of a log of pgbench: the third of the numbers of a line, in microseconds. Gives how many.
fn count_latencies(log: &str, latencies: &LatencyHistogram) -> usize {
    let latency_us = |line: &str| line.split(' ').nth(2)?.parse().ok();
    log.lines().filter_map(latency_us).map(|us| latencies.record(Duration::from_micros(us))).count()
}

/// The latency that 99 of 100 requests took at most, in microseconds, of all logs in `directory` with this prefix.
fn p99_us(directory: &Path, prefix: &str) -> Result<f64, HarnessError> {
    let failed = || HarnessError::system::<std::io::Error>("reading the log of pgbench");
    let latencies = LatencyHistogram::default();
    let mut count = 0;
    for entry in fs::read_dir(directory).map_err(failed())? {
        let entry = entry.map_err(failed())?;
        if entry.file_name().to_string_lossy().starts_with(prefix) {
            count += count_latencies(&fs::read_to_string(entry.path()).map_err(failed())?, &latencies);
        }
    }
    match count {
        0 => Err(HarnessError::failed("pgbench", "its log tells of no request")),
        _ => Ok(latencies.status().p99_us),
    }
}

impl Server for Postgres {
    fn name(&self) -> &str {
        NAME
    }

    fn room(&self) -> Size {
        Size(self.scale * SCALE_BYTES * 2 + 128 * MIB)
    }

    fn command(&self, _session: &Session<'_>) -> Result<Command, HarnessError> {
        self.server()
    }

    fn serve(&self, running: &mut Running, session: &Session<'_>) -> Result<Served, HarnessError> {
        self.await_server(running, session.interrupt)?;
        let load = "SELECT pg_prewarm('pgbench_accounts'), pg_prewarm('pgbench_accounts_pkey')";
        self.query(load, session.interrupt)?;
        self.ask(session.times.warm_up, &session.directory.join("warm-up"), session.interrupt)?;
        let log = session.directory.join("measured");
        let (report, cpu) = counted(|| self.ask(session.times.measured, &log, session.interrupt));
        let report = report?;
        let rate = transactions_per_second(&report)
            .ok_or_else(|| HarnessError::failed("pgbench", format!("it printed '{}'", report.trim())))?;
        Ok(Served { rate, p99_us: p99_us(session.directory, "measured")?, cpu })
    }

    fn stays_local(&self, via: Via) -> Option<&'static str> {
        (via == Via::Pager).then_some("shared_buffers: the pager does not page shared memory, nor count it")
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::super::server::tests::{TIMES, serves_all_local};
    use super::*;
    use crate::studies::tests::context;

    #[test]
    fn reports_and_logs_are_read() {
        let report =
            "number of clients: 4\nlatency average = 0.2 ms\ntps = 4923.55 (without initial connection time)\n";
        assert_eq!(transactions_per_second(report), Some(4923.55));
        assert_eq!(transactions_per_second("tps = x"), None);
        let directory = tempfile::tempdir().unwrap();
        let line = |us: u64| format!("0 1 {us} 0 1499414498 34501\n");
        fs::write(directory.path().join("measured.1"), line(100).repeat(97)).unwrap();
        fs::write(directory.path().join("measured.1.1"), line(9000).repeat(3)).unwrap();
        fs::write(directory.path().join("warm-up.1"), line(1_000_000).repeat(100)).unwrap();
        let p99_us = p99_us(directory.path(), "measured").unwrap();
        assert!((8500.0..9500.0).contains(&p99_us), "{p99_us}");
        assert!(super::p99_us(directory.path(), "nothing").is_err());
    }

    #[test]
    fn only_the_pager_leaves_its_buffers_local() {
        let private = PrivateDirectory::on_disk(Some(Path::new("/var/tmp"))).unwrap();
        let postgres = Postgres { programs: PathBuf::new(), private, scale: 2 };
        assert!(postgres.stays_local(Via::Pager).is_some_and(|what| what.contains("shared memory")));
        assert_eq!(postgres.stays_local(Via::Swap), None);
        assert!(postgres.room().0 > 2 * SCALE_BYTES);
    }

    #[test]
    fn it_serves_with_all_memory_local_and_wrong_rows_are_noticed() {
        if let Err(error) = programs() {
            return spillway_sys::skipping::skip_because(error);
        }
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let context = context(directory.path(), 1);
        let postgres = Postgres::prepare(&context, Size(SCALE_BYTES)).unwrap();
        serves_all_local(&postgres, "setpriv");
        let interrupt = Interrupt::never();
        let mut running = Running::start(NAME, &mut postgres.server().unwrap(), Collected::default()).unwrap();
        postgres.await_server(&mut running, &interrupt).unwrap();
        for damage in ["UPDATE pgbench_accounts SET filler = 'x'", "DELETE FROM pgbench_accounts"] {
            postgres.query(damage, &interrupt).unwrap();
            let error = postgres.ask(TIMES.warm_up, &directory.path().join("log"), &interrupt).unwrap_err();
            assert!(matches!(error, HarnessError::Wrong { .. }), "{damage}: {error}");
        }
    }
}
