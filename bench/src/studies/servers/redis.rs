//! Redis, asked by clients of ours over a UNIX socket; it saves nothing.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::load::{self, Connection, Load, Served};
use super::mix;
use super::server::{Server, Session, await_answer, connect};
use crate::demo::redis_job::{ENTRY_BYTES, server_command};
use crate::demo::resp::{Client, Reply};
use crate::harness::HarnessError;
use crate::harness::process::Running;
use crate::studies::program_run::SEED;
use spillway_workloads::size::{MIB, Size};

/// Memory beside the values: a table that doubles while the old one is still there, buffers.
const ROOM_BESIDE_VALUES: Size = Size(128 * MIB);

/// Redis with values that clients ask for ([`mix`]).
#[derive(Clone, Debug)]
pub struct Redis {
    load: Load,
    size: Size,
}

impl Redis {
    /// With values that fill about `size`.
    pub fn new(size: Size) -> Self {
        let keys = mix::keys(size.0, ENTRY_BYTES);
        let load = Load { server: "Redis", keys, seed: SEED };
        Self { load, size }
    }
}

fn socket(directory: &Path) -> PathBuf {
    directory.join("redis.sock")
}

impl Server for Redis {
    fn name(&self) -> &str {
        "redis zipf"
    }

    fn room(&self) -> Size {
        Size(self.size.0 * 2 + ROOM_BESIDE_VALUES.0)
    }

    fn command(&self, session: &Session<'_>) -> Result<Command, HarnessError> {
        server_command(&socket(session.directory), session.directory)
    }

    fn serve(&self, running: &mut Running, session: &Session<'_>) -> Result<Served, HarnessError> {
        let socket = socket(session.directory);
        await_answer("redis-server", running, session.interrupt, || connect(&socket).ok())?;
        let link = |(one, other)| Client::over(one, other);
        load::run(self.load, session.times, session.interrupt, || connect(&socket).map(link))
    }
}

impl Connection for Client<UnixStream> {
    fn queue_write(&mut self, key: &[u8], value: &[u8]) -> io::Result<()> {
        self.queue(&[b"SET", key, value])
    }

    fn queue_read(&mut self, key: &[u8]) -> io::Result<()> {
        self.queue(&[b"GET", key])
    }

    fn flush(&mut self) -> io::Result<()> {
        Self::flush(self)
    }

    fn written(&mut self) -> io::Result<()> {
        match self.reply()? {
            Reply::Status(status) if status == "OK" => Ok(()),
            other => Err(io::Error::other(format!("Redis answered SET with {other:?}"))),
        }
    }

    fn value(&mut self) -> io::Result<Option<Vec<u8>>> {
        match self.reply()? {
            Reply::Bulk(value) => Ok(value),
            other => Err(io::Error::other(format!("Redis answered GET with {other:?}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::server::tests::serves_all_local;
    use super::*;

    #[test]
    fn it_serves_with_all_memory_local() {
        serves_all_local(&Redis::new(Size(4 * MIB)), "redis-server");
    }
}
