//! MariaDB, asked by `go-tpc` as the TPC-C benchmark does: new orders, payments and three smaller transactions.
//!
//! Its data are made once, with no limit. Each run has a copy of them, as it changes them. The server then reads them
//! into its buffer pool, which has room for all; that memory is what is lent. It keeps no binary log and writes its
//! redo log once a second, so that a run is work of CPU and memory rather than of the disk.
//!
//! What is simplified, as `go-tpc` has it: clients do not think between transactions, and the rate is that of new
//! orders in a minute (`tpmC`), which no audit has seen. The p99 is that of new orders.
//!
//! Clients come over TCP on the loopback interface, as `go-tpc` knows nothing else. Their account has rights in their
//! own database only; the account of root is reached over the UNIX socket by root alone.
//!
//! Invariant: an error that the server gives a transaction ends the run as a wrong result does, unless it only asks to
//! try again. After the run its data must fulfil what TPC-C demands of them (`CONSISTENCY`).

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::load::{CLIENTS, Served};
use super::server::{Server, Session, await_answer};
use crate::harness::cpu_use::counted;
use crate::harness::go_tool::GO_TPC;
use crate::harness::interrupt::Interrupt;
use crate::harness::process::{Collected, Running, bound};
use crate::harness::storage::{PrivateDirectory, copy_directory};
use crate::harness::{HarnessError, tool};
use crate::limits::{PROGRAM_DEADLINE, SERVER_START_DEADLINE, START_DEADLINE};
use crate::result::{NEW_ORDERS_PER_MINUTE, Unit};
use crate::studies::Context;
use spillway_workloads::size::{MIB, Size};

/// Its name in results.
pub const NAME: &str = "mariadb";

/// The database, and the account that may use it.
const DATABASE: &str = "tpcc";

/// Memory of the server beside its buffer pool: redo log's buffer, dictionary, connections; measured 60 MiB.
const ROOM_BESIDE_POOL: Size = Size(192 * MIB);

/// How much data there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scale {
    /// TPC-C's unit: about 100 MiB.
    warehouses: u64,
    /// Room for all of them and for what a run adds.
    pool: Size,
}

/// Of a full run: as much as fits a buffer pool of 400 MiB.
pub const SCALE: Scale = Scale { warehouses: 3, pool: Size(400 * MIB) };
/// Of a quick run: the least that there is.
pub const SCALE_QUICK: Scale = Scale { warehouses: 1, pool: Size(160 * MIB) };

/// Settings of the server beside its places and sizes.
const SETTINGS: [&str; 8] = [
    "--bind-address=127.0.0.1",
    "--skip-log-bin",
    "--innodb-log-file-size=256M",
    "--innodb-flush-log-at-trx-commit=0",
    "--innodb-doublewrite=0",
    // The list of pages that the pool holds when the server ends, of which it reads all when it starts.
    "--innodb-buffer-pool-dump-pct=100",
    // A run's data are thrown away: what it leaves need not be written when it ends.
    "--innodb-fast-shutdown=2",
    "--max-connections=100",
];

/// Conditions 1, 2 and 4 of TPC-C's consistency (clause 3.3.2): money of warehouses and of their districts, numbers of
/// orders, and lines of orders. Each counts what violates it.
const CONSISTENCY: [(&str, &str); 3] = [
    (
        "1 (money)",
        "SELECT COUNT(*) FROM warehouse JOIN (SELECT d_w_id, SUM(d_ytd) AS money FROM district GROUP BY d_w_id) AS all_of \
         ON d_w_id = w_id WHERE w_ytd <> money",
    ),
    (
        "2 (order numbers)",
        "SELECT COUNT(*) FROM district JOIN (SELECT o_w_id, o_d_id, MAX(o_id) AS last FROM orders GROUP BY o_w_id, o_d_id) \
         AS all_of ON o_w_id = d_w_id AND o_d_id = d_id WHERE d_next_o_id - 1 <> last",
    ),
    (
        "4 (order lines)",
        "SELECT COUNT(*) FROM (SELECT o_w_id, o_d_id, SUM(o_ol_cnt) AS told FROM orders GROUP BY o_w_id, o_d_id) AS o JOIN \
         (SELECT ol_w_id, ol_d_id, COUNT(*) AS found FROM order_line GROUP BY ol_w_id, ol_d_id) AS l \
         ON ol_w_id = o_w_id AND ol_d_id = o_d_id WHERE told <> found",
    ),
];

/// go-tpc panics when its time is over before its clients are connected, which takes a second on a busy machine.
const TIME_MIN: Duration = Duration::from_secs(2);

/// Errors by which the server only asks to try again: a lock that was waited for too long, and a deadlock.
const TRY_AGAIN: [&str; 2] = ["Error 1205", "Error 1213"];

/// MariaDB with its data.
#[derive(Debug)]
pub struct MariaDb {
    go_tpc: PathBuf,
    private: PrivateDirectory,
    scale: Scale,
    port: u16,
}

/// A port of the loopback interface that is free now.
fn free_port() -> Result<u16, HarnessError> {
    let failed = || HarnessError::system::<std::io::Error>("looking for a free port");
    let listener = TcpListener::bind(("127.0.0.1", 0)).map_err(failed())?;
    Ok(listener.local_addr().map_err(failed())?.port())
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

impl MariaDb {
    /// Makes the data.
    pub fn prepare(context: &Context, scale: Scale) -> Result<Self, HarnessError> {
        let interrupt = &context.shop.interrupt;
        if !is_root() {
            return Err(HarnessError::Missing("MariaDB's accounts are made by root here; run it as root".to_owned()));
        }
        ["mariadbd", "mariadb-install-db", "mariadb"].into_iter().try_for_each(|name| tool::need(name).map(drop))?;
        let go_tpc = GO_TPC.program(interrupt)?;
        let private = PrivateDirectory::on_disk(Some(context.shop.directory.path()))?;
        let server = Self { go_tpc, private, scale, port: free_port()? };
        server.fill(interrupt)?;
        Ok(server)
    }

    fn original(&self) -> &Path {
        self.private.path()
    }

    fn fill(&self, interrupt: &Interrupt) -> Result<(), HarnessError> {
        let data = self.original().join("data");
        let mut install = Command::new(tool::need("mariadb-install-db")?);
        install.args(["--no-defaults", "--user=root", "--auth-root-authentication-method=socket", "--skip-test-db"]);
        install.arg("--auth-root-socket-user=root").arg(format!("--datadir={}", data.display()));
        tool::run_command(&mut install, PROGRAM_DEADLINE, interrupt)?;
        let mut command = self.server(self.original())?;
        // Its data have to be whole on disk when it ends.
        let mut running = Running::start(NAME, command.arg("--innodb-fast-shutdown=1"), Collected::default())?;
        self.await_server(&mut running, self.original(), interrupt)?;
        let account = format!("{DATABASE}@'127.0.0.1'");
        let accounts = format!(
            "CREATE DATABASE {DATABASE}; CREATE USER {account} IDENTIFIED BY '{DATABASE}'; \
             GRANT ALL ON {DATABASE}.* TO {account}"
        );
        self.query(self.original(), "mysql", &accounts, interrupt)?;
        self.go_tpc("prepare", &["--no-check"], interrupt)?;
        running.stop();
        Ok(())
    }

    /// The server with its data, socket and other files in `directory`.
    fn server(&self, directory: &Path) -> Result<Command, HarnessError> {
        let mut command = bound(tool::need("mariadbd")?);
        command.args(["--no-defaults", "--user=root"]).args(SETTINGS);
        command.arg(format!("--innodb-buffer-pool-size={}", self.scale.pool.0)).arg(format!("--port={}", self.port));
        for (option, place) in [("datadir", "data"), ("socket", "socket"), ("pid-file", "pid"), ("tmpdir", "")] {
            command.arg(format!("--{option}={}", directory.join(place).display()));
        }
        Ok(command)
    }

    fn query(
        &self,
        directory: &Path,
        database: &str,
        query: &str,
        interrupt: &Interrupt,
    ) -> Result<String, HarnessError> {
        let mut command = self.client(directory, database)?;
        tool::run_command(command.args(["-e", query]), PROGRAM_DEADLINE, interrupt)
    }

    fn client(&self, directory: &Path, database: &str) -> Result<Command, HarnessError> {
        let mut command = bound(tool::need("mariadb")?);
        let socket = format!("--socket={}", directory.join("socket").display());
        command.args(["--no-defaults", "--user=root", "--skip-column-names", "--batch", &socket, database]);
        Ok(command)
    }

    fn await_server(&self, running: &mut Running, directory: &Path, interrupt: &Interrupt) -> Result<(), HarnessError> {
        let mut look = self.client(directory, "mysql")?;
        look.args(["-e", "SELECT 1"]);
        await_answer(NAME, running, interrupt, || tool::run_command(&mut look, START_DEADLINE, interrupt).ok())?;
        Ok(())
    }

    /// Waits until the buffer pool holds what it held when the data were made.
    fn await_pool(&self, directory: &Path, interrupt: &Interrupt) -> Result<(), HarnessError> {
        let status = "SHOW STATUS LIKE 'Innodb_buffer_pool_load_status'";
        interrupt.poll("MariaDB's buffer pool", SERVER_START_DEADLINE, || {
            let told = self.query(directory, "mysql", status, interrupt).ok()?;
            told.contains("load completed").then_some(())
        })
    }

    /// Lets go-tpc do `what`; gives what it printed.
    fn go_tpc(&self, what: &str, more: &[&str], interrupt: &Interrupt) -> Result<String, HarnessError> {
        let mut command = bound(&self.go_tpc);
        let [port, warehouses, clients] = [u64::from(self.port), self.scale.warehouses, CLIENTS].map(|n| n.to_string());
        command.args(["tpcc", what, "-H", "127.0.0.1", "-P", &port, "-U", DATABASE, "-p", DATABASE, "-D", DATABASE]);
        command.args(["--warehouses", &warehouses, "-T", &clients]).args(more);
        let told = tool::run_command(&mut command, PROGRAM_DEADLINE, interrupt)?;
        match error_in(&told) {
            Some(line) => Err(HarnessError::wrong(NAME, format!("WRONG RESULT: {line}"))),
            None => Ok(told),
        }
    }

    /// Lets clients ask for so long, or for [`TIME_MIN`].
    fn ask(&self, time: Duration, interrupt: &Interrupt) -> Result<String, HarnessError> {
        // Its own tables between would only wake it; the longest time that it counts is as long as an answer may take.
        let time = format!("{}ms", time.max(TIME_MIN).as_millis());
        let more = ["--time", &time, "--ignore-error", "--interval", "1h", "--max-measure-latency", "60s"];
        self.go_tpc("run", &more, interrupt)
    }

    fn check(&self, directory: &Path, interrupt: &Interrupt) -> Result<(), HarnessError> {
        for (condition, query) in CONSISTENCY {
            let violations = self.query(directory, DATABASE, query, interrupt)?;
            if violations.trim() != "0" {
                let detail =
                    format!("WRONG DATA: TPC-C's condition {condition} is violated {} times", violations.trim());
                return Err(HarnessError::wrong(NAME, detail));
            }
        }
        Ok(())
    }
}

/// The first error that go-tpc tells of, unless it only asks to try again.
fn error_in(told: &str) -> Option<&str> {
    let is_error = |line: &&str| line.contains("failed, err") && !TRY_AGAIN.iter().any(|again| line.contains(again));
    told.lines().find(is_error)
}

/// New orders in a minute.
fn new_orders_per_minute(report: &str) -> Option<f64> {
    report.lines().find_map(|line| line.strip_prefix("tpmC: ")?.split(',').next()?.parse().ok())
}

/// The latency that 99 of 100 new orders took at most, in microseconds.
fn p99_us(report: &str) -> Option<f64> {
    let line = report.lines().find(|line| line.contains("] NEW_ORDER - "))?;
    let (_, rest) = line.split_once(" 99th(ms): ")?;
    Some(rest.split(',').next()?.parse::<f64>().ok()? * 1000.0)
}

impl Server for MariaDb {
    fn name(&self) -> &str {
        NAME
    }

    fn unit(&self) -> Unit {
        NEW_ORDERS_PER_MINUTE
    }

    fn room(&self) -> Size {
        Size(self.scale.pool.0 * 2 + ROOM_BESIDE_POOL.0)
    }

    fn grows(&self) -> bool {
        true
    }

    fn command(&self, session: &Session<'_>) -> Result<Command, HarnessError> {
        copy_directory(&self.original().join("data"), &session.directory.join("data"))?;
        self.server(session.directory)
    }

    fn serve(&self, running: &mut Running, session: &Session<'_>) -> Result<Served, HarnessError> {
        self.await_server(running, session.directory, session.interrupt)?;
        self.await_pool(session.directory, session.interrupt)?;
        self.ask(session.times.warm_up, session.interrupt)?;
        let (report, cpu) = counted(|| self.ask(session.times.measured, session.interrupt));
        let report = report?;
        self.check(session.directory, session.interrupt)?;
        match (new_orders_per_minute(&report), p99_us(&report)) {
            (Some(rate), Some(p99_us)) => Ok(Served { rate, p99_us, cpu }),
            _ => Err(HarnessError::failed("go-tpc", format!("it printed '{}'", report.trim()))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::server::tests::serves_all_local;
    use super::*;
    use crate::studies::tests::context;

    const REPORT: &str = "Finished
[Summary] NEW_ORDER - Takes(s): 6.0, Count: 1100, TPM: 11073.6, 95th(ms): 24.1, 99th(ms): 46.1, 99.9th(ms): 88.1
[Summary] NEW_ORDER_ERR - Takes(s): 6.0, Count: 2, TPM: 20.1, 95th(ms): 4.2, 99th(ms): 4.2, 99.9th(ms): 4.2
tpmC: 11073.4, efficiency: 86107.5%
";

    #[test]
    fn reports_are_read() {
        assert_eq!((new_orders_per_minute(REPORT), p99_us(REPORT)), (Some(11073.4), Some(46_100.0)));
        assert_eq!((new_orders_per_minute("tpmC: x"), p99_us("nothing")), (None, None));
    }

    #[test]
    fn errors_are_noticed_but_not_those_that_ask_to_try_again() {
        let line = |error: &str| format!("{REPORT}[2026-11-26] execute run failed, err {error}\n");
        assert_eq!(error_in(REPORT), None, "transactions that the end cut off are no errors");
        assert_eq!(error_in(&line("Error 1213: Deadlock found when trying to get lock")), None);
        assert!(error_in(&line("Error 1034: Index for table is corrupt")).is_some_and(|line| line.contains("1034")));
        assert!(error_in(&line("sql: no rows in result set")).is_some());
    }

    #[test]
    #[ignore = "it installs go-tpc from the network; `make soak` runs it"]
    fn it_serves_with_all_memory_local_and_wrong_data_are_noticed() {
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        let context = context(directory.path(), 1);
        let server = match MariaDb::prepare(&context, SCALE_QUICK) {
            Err(error @ HarnessError::Missing(_)) => return spillway_sys::skipping::skip_because(error),
            prepared => prepared.unwrap(),
        };
        serves_all_local(&server, "mariadbd");
        let interrupt = Interrupt::never();
        let here = server.original();
        let mut running = Running::start(NAME, &mut server.server(here).unwrap(), Collected::default()).unwrap();
        server.await_server(&mut running, here, &interrupt).unwrap();
        server.check(here, &interrupt).unwrap();
        server.query(here, DATABASE, "DELETE FROM order_line WHERE ol_o_id = 1 AND ol_number = 1", &interrupt).unwrap();
        let error = server.check(here, &interrupt).unwrap_err();
        assert!(matches!(&error, HarnessError::Wrong { detail, .. } if detail.contains("4 (order lines)")), "{error}");
    }
}
