//! Real programs for the study `recorded`: each does a fixed job, small enough that recording it takes about a minute.
//!
//! Values are large, so that there are few: the tool takes time for each instruction, not for each page. Left out for that reason: numpy, whose import
//! alone is 280 million instructions, and Java, which compiles while it runs.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, BufWriter, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use spillway_borrower::trace::Recorder;

use super::valgrind::record_driven;
use crate::demo::resp::Client;
use crate::demo::text;
use crate::harness::interrupt::Interrupt;
use crate::harness::storage::PrivateDirectory;
use crate::harness::{HarnessError, tool};
use crate::limits::RECORDING_DEADLINE;
use crate::permutation::Permutation;
use crate::random::Random;
use crate::size::Size;
use crate::zipf::Zipf;

/// The seed of all inputs.
const SEED: u64 = 7;

/// Bytes of a value in a server.
const VALUE_BYTES: u64 = 2500;

/// What such a value takes with its key and its entry.
const ENTRY_BYTES: u64 = 2700;

/// For each value that a server holds it is asked for so many.
const READS_PER_VALUE: u64 = 2;

/// Of those, one in so many overwrites.
const READS_PER_WRITE: u64 = 10;

/// What the compiler takes for a function of its source beyond what it takes for none.
const FUNCTION_BYTES: u64 = 64 << 10;

/// Commands sent before their replies are read.
const PIPELINE: u64 = 100;

/// YCSB's default, as in the key-value workload.
const SKEW: f64 = 0.99;

/// Fills a dictionary, then looks keys up, a half of them with a preference, and changes what it finds.
const PYTHON_SCRIPT: &str = "
import sys
count = int(sys.argv[1]) // 1800
words = {}
for number in range(count):
    words['key %d' % (number * 7919 % count)] = ['%06d' % number * 250, number]
state, total = 12345, 0
for turn in range(2 * count):
    state = (state * 1103515245 + 12345) & 0x7fffffff
    place = state % count
    if turn & 1:
        place = place * place // count
    entry = words['key %d' % place]
    entry[1] += 1
    total += len(entry[0])
print(total)
";

/// Real programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RealProgram {
    /// GNU sort, of lines of 1 to 3 KiB.
    Sort,
    /// A Python dictionary.
    Python,
    /// sqlite3 with a database in memory.
    Sqlite,
    /// Redis, asked by Zipf's law.
    Redis,
    /// memcached, asked in the same way.
    Memcached,
    /// The C compiler proper, of GCC.
    Compiler,
}

impl RealProgram {
    /// All of them.
    pub const ALL: [Self; 6] = [Self::Sort, Self::Python, Self::Sqlite, Self::Redis, Self::Memcached, Self::Compiler];

    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sort => "sort",
            Self::Python => "python",
            Self::Sqlite => "sqlite3",
            Self::Redis => "redis-server",
            Self::Memcached => "memcached",
            Self::Compiler => "cc1",
        }
    }

    /// Its trace over about `size`, which varies with versions of the program. Files go below `directory`.
    pub fn record(self, size: Size, directory: &Path, interrupt: &Interrupt) -> Result<Recorder, HarnessError> {
        tool::need("valgrind")?;
        let directory = PrivateDirectory::on_disk(Some(directory))?;
        let place = directory.path();
        let quiet = |command: Command| record_driven(&command, interrupt, |_| Ok(()));
        match self {
            Self::Sort => quiet(sort(size, place)?),
            Self::Python => quiet(python(size)?),
            Self::Sqlite => quiet(sqlite(size)?),
            Self::Compiler => quiet(compiler(size, place, interrupt)?),
            Self::Redis => {
                let socket = place.join("socket");
                record_driven(&redis(place, &socket)?, interrupt, |over| drive_redis(size, &socket, over))
            }
            Self::Memcached => {
                let socket = place.join("socket");
                record_driven(&memcached(size, &socket)?, interrupt, |over| drive_memcached(size, &socket, over))
            }
        }
    }
}

fn written(file: &Path, content: &str) -> Result<(), HarnessError> {
    std::fs::write(file, content).map_err(HarnessError::system(format!("writing {}", file.display())))
}

fn sort(size: Size, place: &Path) -> Result<Command, HarnessError> {
    let file = place.join("text");
    text::write(&file, &text::corpus()?, size, SEED)?;
    let mut command = Command::new(tool::need("sort")?);
    command.arg(format!("--buffer-size={}", size.0 * 2)).arg("--parallel=1").arg(file).env("LC_ALL", "C");
    Ok(command)
}

/// The system's Python rather than a script that looks for one, without the modules that a site adds.
fn python(size: Size) -> Result<Command, HarnessError> {
    let system = Some(PathBuf::from("/usr/bin/python3")).filter(|python| python.is_file());
    let mut command = Command::new(system.map_or_else(|| tool::need("python3"), Ok)?);
    // Hashes of strings differ from run to run unless told otherwise: -I would leave that unheard.
    command.args(["-S", "-s", "-c", PYTHON_SCRIPT, &size.0.to_string()]).env("PYTHONHASHSEED", "0");
    Ok(command)
}

fn sqlite(size: Size) -> Result<Command, HarnessError> {
    let (rows, sequence) = (size.0 / 3500, "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i<");
    let script = format!(
        "CREATE TABLE t(id INTEGER PRIMARY KEY, k INTEGER, v BLOB);
         {sequence}{rows}) INSERT INTO t SELECT i, i*7919%{rows}, zeroblob(3000) FROM n;
         CREATE INDEX x ON t(k);
         {sequence}{rows}) SELECT sum(length(v)) FROM n JOIN t ON t.k=n.i*n.i%{rows};
         UPDATE t SET v=zeroblob(3000) WHERE id%10=0;
         SELECT count(*), sum(length(v)) FROM t;"
    );
    let mut command = Command::new(tool::need("sqlite3")?);
    command.args([":memory:", &script]);
    Ok(command)
}

/// The compiler proper, not the driver, which starts it as another process.
fn compiler(size: Size, place: &Path, interrupt: &Interrupt) -> Result<Command, HarnessError> {
    tool::need("gcc")?;
    let program = tool::run("gcc", ["-print-prog-name=cc1"], interrupt)?;
    let mut source = String::new();
    // Functions of different length, as many as make the compiler's memory about that large.
    for number in 0..size.0 / FUNCTION_BYTES {
        let length = number % 29 + 1;
        write!(
            source,
            "struct s{number} {{ int a[{length}]; struct s{number} *next; double d; }};
             int f{number}(struct s{number} *p, int x) {{
                 int s = 0;
                 for (int j = 0; j < {length}; j++) {{ s += p->a[j] * x; if (s > {number} * 3) s -= x; else s ^= j; }}
                 while (p->next) {{ p = p->next; s += (int)p->d; }}
                 return s;
             }}\n"
        )
        .expect("memory takes all that is written");
    }
    let file = place.join("source.c");
    written(&file, &source)?;
    let mut command = Command::new(program.trim());
    command.args(["-quiet", "-O0"]).arg(file).args(["-o", "/dev/null"]);
    Ok(command)
}

fn redis(place: &Path, socket: &Path) -> Result<Command, HarnessError> {
    let mut command = Command::new(tool::need("redis-server")?);
    command.args(["--port", "0", "--save", "", "--appendonly", "no", "--loglevel", "warning"]);
    command.arg("--unixsocket").arg(socket).arg("--dir").arg(place);
    Ok(command)
}

fn memcached(size: Size, socket: &Path) -> Result<Command, HarnessError> {
    let mut command = Command::new(tool::need("memcached")?);
    // Room for all values, so that it forgets none; root must say who it is to be.
    let mebibytes = (size.0 >> 20) * 2 + 64;
    command.args(["-t", "1", "-m", &mebibytes.to_string(), "-u", "root", "-A", "-s"]).arg(socket);
    Ok(command)
}

/// What a server is asked: first every key is set, then those that Zipf's law names are read, and some set again.
fn requests(size: Size) -> impl Iterator<Item = (u64, bool)> {
    let values = (size.0 / ENTRY_BYTES).max(1);
    let (mut random, zipf) = (Random::new(SEED), Zipf::new(values, SKEW));
    let scattered = Permutation::new(values, SEED);
    let later = (0..values * READS_PER_VALUE)
        .map(move |turn| (scattered.at(zipf.next(&mut random)), turn % READS_PER_WRITE == 0));
    (0..values).map(|key| (key, true)).chain(later)
}

fn value(key: u64) -> Vec<u8> {
    (0..VALUE_BYTES).map(|place| b'a' + ((key + place) % 26) as u8).collect()
}

fn drive_redis(size: Size, socket: &Path, interrupt: &Interrupt) -> Result<(), HarnessError> {
    let failed = || HarnessError::system::<std::io::Error>("asking redis-server");
    let mut client =
        interrupt.poll("the start of redis-server", RECORDING_DEADLINE, || Client::connect(socket).ok())?;
    let mut waiting = 0;
    for (key, write) in requests(size) {
        let name = format!("key:{key}");
        let command: &[&[u8]] =
            if write { &[b"SET", name.as_bytes(), &value(key)] } else { &[b"GET", name.as_bytes()] };
        client.queue(command).map_err(failed())?;
        waiting += 1;
        if waiting == PIPELINE {
            interrupt.check()?;
            client.flush().map_err(failed())?;
            (0..waiting).try_for_each(|_| client.reply().map(drop)).map_err(failed())?;
            waiting = 0;
        }
    }
    client.flush().map_err(failed())?;
    (0..waiting).try_for_each(|_| client.reply().map(drop)).map_err(failed())?;
    client.queue(&[b"SHUTDOWN", b"NOSAVE"]).and_then(|()| client.flush()).map_err(failed())?;
    // It answers by ending.
    let _ = client.reply();
    Ok(())
}

fn drive_memcached(size: Size, socket: &Path, interrupt: &Interrupt) -> Result<(), HarnessError> {
    let failed = || HarnessError::system::<std::io::Error>("asking memcached");
    let stream = interrupt.poll("the start of memcached", RECORDING_DEADLINE, || UnixStream::connect(socket).ok())?;
    let mut reader = BufReader::new(stream.try_clone().map_err(failed())?);
    let mut writer = BufWriter::new(stream);
    let mut asked = Vec::new();
    let mut ask = |asked: &mut Vec<(u64, bool)>| {
        for (key, write) in asked.iter() {
            if *write {
                write!(writer, "set key:{key} 0 0 {VALUE_BYTES}\r\n")?;
                writer.write_all(&value(*key))?;
                writer.write_all(b"\r\n")?;
            } else {
                write!(writer, "get key:{key}\r\n")?;
            }
        }
        writer.flush()?;
        asked.drain(..).try_for_each(|(_, write)| answer(&mut reader, write))
    };
    for request in requests(size) {
        asked.push(request);
        if asked.len() as u64 == PIPELINE {
            interrupt.check()?;
            ask(&mut asked).map_err(failed())?;
        }
    }
    ask(&mut asked).map_err(failed())?;
    // Told to end by its own command, which `-A` allows.
    writer.write_all(b"shutdown\r\n").and_then(|()| writer.flush()).map_err(failed())
}

/// Reads one answer of memcached.
fn answer(reader: &mut impl BufRead, write: bool) -> std::io::Result<()> {
    let mut line = String::new();
    reader.take(1024).read_line(&mut line)?;
    let wrong = |line: &str| std::io::Error::other(format!("memcached said '{}'", line.trim()));
    if write {
        return if line == "STORED\r\n" { Ok(()) } else { Err(wrong(&line)) };
    }
    if !line.starts_with("VALUE ") {
        return Err(wrong(&line));
    }
    let mut content = vec![0; VALUE_BYTES as usize + b"\r\nEND\r\n".len()];
    reader.read_exact(&mut content)?;
    if content.ends_with(b"\r\nEND\r\n") { Ok(()) } else { Err(wrong("a value without an end")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::size::MIB;

    #[test]
    fn names_are_distinct() {
        let names: std::collections::HashSet<_> = RealProgram::ALL.iter().map(|program| program.name()).collect();
        assert_eq!(names.len(), RealProgram::ALL.len());
    }

    #[test]
    fn every_key_is_set_before_it_is_read() {
        let mut known = std::collections::HashSet::new();
        let (mut reads, mut writes) = (0, 0);
        for (key, write) in requests(Size(MIB)) {
            assert!(write || known.contains(&key));
            known.insert(key);
            *(if write { &mut writes } else { &mut reads }) += 1_u64;
        }
        assert_eq!(known.len() as u64, MIB / ENTRY_BYTES);
        assert!(reads > 2 * known.len() as u64 && writes > known.len() as u64);
    }

    #[test]
    fn answers_of_memcached_are_checked() {
        assert!(answer(&mut &b"STORED\r\n"[..], true).is_ok());
        assert!(answer(&mut &b"NOT_STORED\r\n"[..], true).is_err());
        assert!(answer(&mut &b"END\r\n"[..], false).is_err(), "a key that it forgot");
        let good = [b"VALUE key:1 0 1000\r\n", &value(1)[..], b"\r\nEND\r\n"].concat();
        assert!(answer(&mut &good[..], false).is_ok());
        assert!(answer(&mut &good[..good.len() - 2], false).is_err());
    }
}
