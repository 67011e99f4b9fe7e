//! memcached, asked by clients of ours in its text protocol over a UNIX socket.
//!
//! It gets a `-m` that is large enough for all values: nothing is evicted, so a key that is missing is a failure.

use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::load::{self, Connection, Load, Served};
use super::mix;
use super::server::{Server, Session, await_answer, connect};
use crate::harness::process::Running;
use crate::harness::{HarnessError, tool};
use crate::studies::program_run::SEED;
use spillway_workloads::size::{MIB, Size};

/// What memcached takes for a value beside it, about: 56 for the item with its check, 16 for the key, and a part of the
/// rounding to the next of its sizes, which are 25 % apart. It only decides how many keys there are.
const ENTRY_BYTES: u64 = 100;

/// Memory beside the values: hash table, buffers of connections, a slab of a megabyte for each size of values.
const ROOM_BESIDE_VALUES: Size = Size(128 * MIB);

/// Longest line of an answer: `VALUE` with a key of 250 bytes and numbers.
const LINE_BYTES_MAX: u64 = 512;

/// Largest value that memcached takes by itself.
const VALUE_BYTES_MAX: usize = 1 << 20;

/// memcached with values that clients ask for ([`mix`]).
#[derive(Clone, Debug)]
pub struct Memcached {
    load: Load,
    size: Size,
}

impl Memcached {
    /// With values that fill about `size`.
    pub fn new(size: Size) -> Self {
        let keys = mix::keys(size.0, ENTRY_BYTES);
        let load = Load { server: "memcached", keys, seed: SEED };
        Self { load, size }
    }
}

fn socket(directory: &Path) -> PathBuf {
    directory.join("memcached.sock")
}

impl Server for Memcached {
    fn name(&self) -> &str {
        "memcached zipf"
    }

    fn room(&self) -> Size {
        Size(self.size.0 * 2 + ROOM_BESIDE_VALUES.0)
    }

    fn command(&self, session: &Session<'_>) -> Result<Command, HarnessError> {
        let mut command = Command::new(tool::need("memcached")?);
        let memory = self.room().0 / MIB;
        // As root it wants to be told to stay so; else it ignores the user.
        command.args(["-u", "root", "-t", "2", "-m", &memory.to_string(), "-s"]).arg(socket(session.directory));
        Ok(command)
    }

    fn serve(&self, running: &mut Running, session: &Session<'_>) -> Result<Served, HarnessError> {
        let socket = socket(session.directory);
        await_answer("memcached", running, session.interrupt, || connect(&socket).ok())?;
        load::run(self.load, session.times, session.interrupt, || connect(&socket).map(Link::new))
    }
}

/// A connection to memcached.
#[derive(Debug)]
struct Link<Stream: Read + Write> {
    reader: BufReader<Stream>,
    writer: BufWriter<Stream>,
}

impl Link<UnixStream> {
    fn new((one, other): (UnixStream, UnixStream)) -> Self {
        Self { reader: BufReader::new(one), writer: BufWriter::new(other) }
    }
}

fn broken(line: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("memcached sent '{line}'"))
}

impl<Stream: Read + Write> Link<Stream> {
    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        (&mut self.reader).take(LINE_BYTES_MAX).read_line(&mut line)?;
        line.strip_suffix("\r\n").map(str::to_owned).ok_or_else(|| broken(&line))
    }
}

impl<Stream: Read + Write + Send> Connection for Link<Stream> {
    fn queue_write(&mut self, key: &[u8], value: &[u8]) -> io::Result<()> {
        self.writer.write_all(b"set ")?;
        self.writer.write_all(key)?;
        write!(self.writer, " 0 0 {}\r\n", value.len())?;
        self.writer.write_all(value)?;
        self.writer.write_all(b"\r\n")
    }

    fn queue_read(&mut self, key: &[u8]) -> io::Result<()> {
        self.writer.write_all(b"get ")?;
        self.writer.write_all(key)?;
        self.writer.write_all(b"\r\n")
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }

    fn written(&mut self) -> io::Result<()> {
        let line = self.line()?;
        if line == "STORED" { Ok(()) } else { Err(broken(&line)) }
    }

    fn value(&mut self) -> io::Result<Option<Vec<u8>>> {
        let line = self.line()?;
        if line == "END" {
            return Ok(None);
        }
        // `VALUE key flags bytes`
        let length = line.strip_prefix("VALUE ").and_then(|rest| rest.split(' ').nth(2)?.parse::<usize>().ok());
        let length = length.filter(|length| *length <= VALUE_BYTES_MAX).ok_or_else(|| broken(&line))?;
        let mut value = vec![0; length + 2];
        self.reader.read_exact(&mut value)?;
        if !value.ends_with(b"\r\n") {
            return Err(broken("a value without an end"));
        }
        value.truncate(length);
        let end = self.line()?;
        if end == "END" { Ok(Some(value)) } else { Err(broken(&end)) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::server::tests::serves_all_local;
    use super::*;

    fn link(input: &[u8]) -> Link<io::Cursor<Vec<u8>>> {
        let stream = |bytes: &[u8]| io::Cursor::new(bytes.to_vec());
        Link { reader: BufReader::new(stream(input)), writer: BufWriter::new(stream(b"")) }
    }

    #[test]
    fn requests_are_lines_and_blocks() {
        let mut link = link(b"");
        link.queue_write(b"k", b"a\r\nb").unwrap();
        link.queue_read(b"k").unwrap();
        link.flush().unwrap();
        assert_eq!(link.writer.get_ref().get_ref(), b"set k 0 0 4\r\na\r\nb\r\nget k\r\n");
    }

    #[test]
    fn answers_are_understood_and_nonsense_is_an_error() {
        let mut good = link(b"STORED\r\nVALUE k 0 4\r\na\r\nb\r\nEND\r\nEND\r\n");
        good.written().unwrap();
        assert_eq!(good.value().unwrap(), Some(b"a\r\nb".to_vec()));
        assert_eq!(good.value().unwrap(), None);
        assert!(link(b"NOT_STORED\r\n").written().unwrap_err().to_string().contains("NOT_STORED"));
        for text in
            ["", "VALUE k 0\r\n", "VALUE k 0 99999999\r\n", "VALUE k 0 1\r\nab\r\nEND\r\n", "VALUE k 0 1\r\na\r\nX\r\n"]
        {
            assert!(link(text.as_bytes()).value().is_err(), "{text:?}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn no_answer_panics(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
            let _ = (link(&bytes).written(), link(&bytes).value());
        }
    }

    #[test]
    fn it_serves_with_all_memory_local() {
        serves_all_local(&Memcached::new(Size(4 * MIB)), "memcached");
    }
}
