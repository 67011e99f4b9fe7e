//! Redis under test, as one program: loads values that are known, runs `redis-benchmark`, saves in the background
//! while values change (fork, and copies of what is written meanwhile), reads every value back, checks the saved
//! file, and ends.
//!
//! Being one program, it runs under `spillway run` like any other: the server is its child and shares its budget.
//!
//! Invariant: what it prints depends on size and seed only; rates go to standard error.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::resp::{Client, Reply};
use crate::harness::interrupt::Interrupt;
use crate::harness::process::{Collected, Running, bound};
use crate::harness::storage::PrivateDirectory;
use crate::harness::{HarnessError, tool};
use crate::limits::{PROGRAM_DEADLINE, START_DEADLINE};
use spillway_workloads::checksum::Ordered;
use spillway_workloads::random::word_at;
use spillway_workloads::size::Size;

/// Small values, of records: four of them share a page, so that whatever goes through them at random comes by each
/// page four times.
pub const SMALL_VALUE: Size = Size(1024);

/// Values of about a page, of documents or pieces of pages in a web cache: with its head of six bytes such a one
/// fills the allocator's class of 4096 bytes.
pub const PAGE_VALUE: Size = Size(4088);

/// What Redis takes for a value besides the value, measured with `MEMORY USAGE`: 17 for the key, and entry, object
/// and rounding.
pub const ENTRY_BYTES: u64 = 128;

/// Commands sent before their replies are read: `redis-cli --pipe` works alike.
const PIPELINE: u64 = 500;

/// While the file is saved, one value in so many is overwritten.
const OVERWRITE_STEP: usize = 8;

/// Requests of the load, for each value that there is.
const REQUESTS_PER_VALUE: u64 = 2;

/// Values whose digest is printed as one line.
const VALUES_PER_LINE: u64 = 1000;

/// What to do.
#[derive(Clone, Debug)]
pub struct RedisSettings {
    /// Memory of the values, about.
    pub size: Size,
    /// Of one value, a multiple of a word.
    pub value: Size,
    /// Fixes the values.
    pub seed: u64,
    /// Where the socket and the saved file go; on a disk.
    pub directory: Option<PathBuf>,
}

/// A server and a connection to it.
struct Server {
    running: Running,
    client: Client<std::os::unix::net::UnixStream>,
    socket: PathBuf,
    directory: PrivateDirectory,
}

/// What a server's clients saw.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Served {
    /// Requests answered in a second, all clients together.
    pub requests_per_second: f64,
    /// Time that 99 of 100 requests took at most.
    pub p99_ms: f64,
}

/// What the line of [`Served::line`] begins with.
const SERVED: &str = "redis-benchmark: GET ";

impl Served {
    /// What `redis-benchmark --csv` printed: a line of names, and a line of values for the one test. Versions before
    /// 6.2 print no percentiles.
    fn read_csv(text: &str) -> Option<Self> {
        let fields = |line: &str| line.split(',').map(|field| field.trim_matches(['"', ' ']).to_owned()).collect();
        let mut lines = text.lines().map(str::trim).filter(|line| line.starts_with('"'));
        let names: Vec<String> = fields(lines.next()?);
        let values: Vec<String> = fields(lines.next()?);
        let value = |name: &str| values.get(names.iter().position(|one| one == name)?)?.parse().ok();
        Some(Self { requests_per_second: value("rps")?, p99_ms: value("p99_latency_ms")? })
    }

    /// As a line among a program's messages.
    fn line(&self) -> String {
        format!("{SERVED}{} requests/s, p99 {} ms", self.requests_per_second, self.p99_ms)
    }

    /// Finds the line among a program's messages.
    pub fn find(messages: &str) -> Option<Self> {
        let (rate, rest) =
            messages.lines().find_map(|line| line.strip_prefix(SERVED))?.split_once(" requests/s, p99 ")?;
        let p99_ms = rest.strip_suffix(" ms")?.parse().ok()?;
        Some(Self { requests_per_second: rate.parse().ok()?, p99_ms })
    }
}

fn failed(what: &str) -> impl FnOnce(std::io::Error) -> HarnessError {
    HarnessError::system(format!("Redis, while {what}"))
}

/// The name of key number `index`, in the form that redis-benchmark asks for.
pub fn key(index: u64) -> Vec<u8> {
    format!("key:{index:012}").into_bytes()
}

impl RedisSettings {
    /// Value `index` in its first or second version.
    fn value(&self, index: u64, version: u64) -> Vec<u8> {
        let words = self.value.0 / 8;
        let start = index * words + (version << 48);
        (start..start + words).flat_map(|place| word_at(self.seed, place).to_le_bytes()).collect()
    }
}

/// The version that value `index` has at the end.
fn last_version(index: u64) -> u64 {
    u64::from(index.is_multiple_of(OVERWRITE_STEP as u64))
}

/// A server that listens at `socket` only, keeps its files in `directory`, and saves only when it is told to.
pub fn server_command(socket: &Path, directory: &Path) -> Result<Command, HarnessError> {
    let mut command = bound(tool::need("redis-server")?);
    command.args(["--port", "0", "--save", "", "--appendonly", "no", "--loglevel", "warning", "--unixsocket"]);
    command.arg(socket).arg("--dir").arg(directory);
    Ok(command)
}

impl Server {
    fn start(settings: &RedisSettings, interrupt: &Interrupt) -> Result<Self, HarnessError> {
        let directory = PrivateDirectory::on_disk(settings.directory.as_deref())?;
        let socket = directory.path().join("redis.sock");
        let mut command = server_command(&socket, directory.path())?;
        let mut running = Running::start("redis-server", &mut command, Collected::default())?;
        let client = interrupt.poll("the start of redis-server", START_DEADLINE, || {
            if running.is_running() { Client::connect(&socket).ok().map(Some) } else { Some(None) }
        })?;
        let client = client.ok_or_else(|| HarnessError::failed("redis-server", running.last_words()))?;
        Ok(Self { running, client, socket, directory })
    }

    fn set(
        &mut self,
        indexes: impl Iterator<Item = u64>,
        settings: &RedisSettings,
        version: u64,
    ) -> Result<(), HarnessError> {
        let mut waiting = 0;
        for index in indexes {
            let (key, value) = (key(index), settings.value(index, version));
            self.client.queue(&[b"SET", &key, &value]).map_err(failed("writing"))?;
            waiting += 1;
            if waiting == PIPELINE {
                self.confirm(waiting)?;
                waiting = 0;
            }
        }
        self.confirm(waiting)
    }

    fn confirm(&mut self, count: u64) -> Result<(), HarnessError> {
        self.client.flush().map_err(failed("writing"))?;
        (0..count).try_for_each(|_| self.client.reply().map(drop).map_err(failed("writing")))
    }

    /// Reads values at random, one request at a time for each of eight clients, and tells what the clients saw.
    fn benchmark(&self, count: u64, interrupt: &Interrupt) -> Result<(), HarnessError> {
        let mut command = Command::new(tool::need("redis-benchmark")?);
        let (keys, requests) = (count.to_string(), (count * REQUESTS_PER_VALUE).to_string());
        command.arg("-s").arg(&self.socket).args(["-t", "get", "--csv", "-c", "8", "-r", &keys, "-n", &requests]);
        let table = tool::run_command(&mut command, PROGRAM_DEADLINE, interrupt)?;
        match Served::read_csv(&table) {
            Some(served) => eprintln!("{}", served.line()),
            None => eprintln!("redis-benchmark: {}", table.trim()),
        }
        Ok(())
    }

    fn wait_for_save(&mut self, interrupt: &Interrupt) -> Result<(), HarnessError> {
        let saved =
            interrupt.poll("BGSAVE", PROGRAM_DEADLINE, || match self.client.call(&[b"INFO", b"persistence"]) {
                Ok(Reply::Bulk(Some(text))) => save_state(&String::from_utf8_lossy(&text)),
                _ => Some(false),
            })?;
        if saved { Ok(()) } else { Err(HarnessError::failed("BGSAVE", self.running.messages.last_line())) }
    }

    fn check_file(&self, interrupt: &Interrupt) -> Result<(), HarnessError> {
        let file = self.directory.path().join("dump.rdb");
        if tool::find("redis-check-rdb").is_none() {
            eprintln!("redis-check-rdb is not installed; the saved file is not checked");
            return Ok(());
        }
        let mut command = Command::new("redis-check-rdb");
        tool::run_command(command.arg(file), Duration::from_secs(120), interrupt).map(|_| ())
    }

    /// Reads every value; gives a digest for each [`VALUES_PER_LINE`] and the number of wrong bytes.
    fn read_all(&mut self, count: u64, settings: &RedisSettings) -> Result<(Vec<String>, u64), HarnessError> {
        let (mut digests, mut wrong_bytes, mut digest) = (Vec::new(), 0, Ordered::default());
        for start in (0..count).step_by(PIPELINE as usize) {
            let indexes = start..(start + PIPELINE).min(count);
            for index in indexes.clone() {
                self.client.queue(&[b"GET", &key(index)]).map_err(failed("reading"))?;
            }
            self.client.flush().map_err(failed("reading"))?;
            for index in indexes {
                let Reply::Bulk(found) = self.client.reply().map_err(failed("reading"))? else {
                    return Err(HarnessError::failed("Redis", "it answered GET with something else than a value"));
                };
                let found = found.unwrap_or_default();
                wrong_bytes += differing(&found, &settings.value(index, last_version(index)));
                digest.add_bytes(&found);
                if (index + 1).is_multiple_of(VALUES_PER_LINE) || index + 1 == count {
                    digests.push(format!("values to {index}: {}", digest.finish()));
                }
            }
        }
        Ok((digests, wrong_bytes))
    }
}

/// From `INFO persistence`: nothing while it saves, then whether it succeeded.
fn save_state(info: &str) -> Option<bool> {
    if info.contains("rdb_bgsave_in_progress:1") {
        return None;
    }
    Some(info.contains("rdb_last_bgsave_status:ok"))
}

fn differing(found: &[u8], expected: &[u8]) -> u64 {
    let differ = found.iter().zip(expected).filter(|(one, other)| one != other).count();
    (differ + found.len().abs_diff(expected.len())) as u64
}

/// Does all of it; gives what is to be printed.
pub fn run(settings: &RedisSettings, interrupt: &Interrupt) -> Result<String, HarnessError> {
    let count = (settings.size.0 / (settings.value.0 + ENTRY_BYTES)).max(1);
    let mut server = Server::start(settings, interrupt)?;
    server.set(0..count, settings, 0)?;
    server.benchmark(count, interrupt)?;
    server.client.call(&[b"BGSAVE"]).map_err(failed("starting to save"))?;
    server.set((0..count).step_by(OVERWRITE_STEP), settings, 1)?;
    server.wait_for_save(interrupt)?;
    let (digests, wrong_bytes) = server.read_all(count, settings)?;
    server.check_file(interrupt)?;
    // The server closes the connection instead of replying.
    let _ = server.client.call(&[b"SHUTDOWN", b"NOSAVE"]);
    server.running.stop();
    Ok(format!("{}\nvalues {count}, wrong bytes {wrong_bytes}, saved file sound\n", digests.join("\n")))
}

/// Settings for a directory; the seed is that of the demo.
pub fn settings(size: Size, value: Size, directory: Option<&Path>) -> RedisSettings {
    RedisSettings { size, value, seed: 7, directory: directory.map(Path::to_owned) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_differ_by_index_and_version() {
        for size in [SMALL_VALUE, PAGE_VALUE] {
            let [one, other_seed] = [1, 2].map(|seed| RedisSettings { seed, ..settings(Size(0), size, None) });
            let values = [one.value(0, 0), one.value(1, 0), one.value(0, 1), other_seed.value(0, 0)];
            assert!(values.iter().all(|value| value.len() as u64 == size.0));
            let distinct: std::collections::HashSet<_> = values.iter().collect();
            assert_eq!(distinct.len(), values.len());
        }
        assert_eq!((last_version(0), last_version(1), last_version(8)), (1, 0, 1));
        assert_eq!(key(42), b"key:000000000042");
    }

    #[test]
    fn saving_is_waited_for() {
        assert_eq!(save_state("rdb_bgsave_in_progress:1\r\nrdb_last_bgsave_status:ok"), None);
        assert_eq!(save_state("rdb_bgsave_in_progress:0\r\nrdb_last_bgsave_status:ok"), Some(true));
        assert_eq!(save_state("rdb_bgsave_in_progress:0\r\nrdb_last_bgsave_status:err"), Some(false));
    }

    #[test]
    fn what_clients_saw_is_read_and_told() {
        let table = "\"test\",\"rps\",\"avg_latency_ms\",\"min_latency_ms\",\"p50_latency_ms\",\"p95_latency_ms\",\"p99_latency_ms\",\"max_latency_ms\"\n\
                     \"GET\",\"65789.48\",\"0.098\",\"0.040\",\"0.095\",\"0.143\",\"0.167\",\"0.287\"\n";
        let served = Served::read_csv(table).unwrap();
        assert_eq!(served, Served { requests_per_second: 65789.48, p99_ms: 0.167 });
        assert_eq!(Served::find(&format!("spillway: a note\n{}\nmore", served.line())), Some(served));
        assert_eq!(Served::read_csv("\"GET\",\"65789.48\"\n"), None);
        assert_eq!(Served::find("redis-benchmark: nonsense"), None);
    }

    #[test]
    fn wrong_bytes_are_counted() {
        assert_eq!((differing(b"abc", b"abc"), differing(b"abd", b"abc"), differing(b"", b"abc")), (0, 1, 3));
    }

    #[test]
    fn the_job_repeats_its_output_and_cleans_up() {
        if let Err(error) = tool::need("redis-server").and(tool::need("redis-benchmark")) {
            return spillway_sys::skipping::skip_because(error);
        }
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        for (value, count) in [(SMALL_VALUE, 1820), (PAGE_VALUE, 497)] {
            let settings = settings(Size(2 << 20), value, Some(directory.path()));
            let first = run(&settings, &Interrupt::never()).unwrap();
            assert!(first.contains(&format!("values {count}, wrong bytes 0, saved file sound")), "{first}");
            assert_eq!(first, run(&settings, &Interrupt::never()).unwrap());
        }
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }
}
