//! An NBD server over this process's memory, and a client that can also misbehave.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use spillway_frontend::front_end::FrontEndConfig;
use spillway_frontend::nbd::listener::NbdAddress;
use spillway_frontend::nbd::server::{NbdListen, NbdServer};
use spillway_sys::mapping::Mapping;

use super::served::Served;

/// Whether these programs are installed; says which is missing.
pub(crate) fn has_programs(names: &[&str]) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = |name: &&&str| std::env::split_paths(&path).any(|directory| directory.join(name).is_file());
    let Some(missing) = names.iter().find(|name| !found(name)) else { return true };
    spillway_sys::skipping::skip(missing);
    false
}

/// Bytes without a pattern, the same for the same seed.
pub(crate) fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut word = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_ne_bytes()
    };
    let mut bytes: Vec<u8> = (0..length.div_ceil(8)).flat_map(|_| word()).collect();
    bytes.truncate(length);
    bytes
}

/// A running server that listens on a UNIX socket and on loopback.
pub(crate) struct Server {
    pub(crate) served: Served<NbdServer>,
    addresses: Vec<String>,
    directory: tempfile::TempDir,
}

impl Server {
    pub(crate) fn start(size_bytes: u64, connections: usize) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let config = FrontEndConfig {
            name: "test".to_owned(),
            size_bytes,
            threads: connections,
            slots_per_thread: 4,
            recoverable: false,
            answer_deadline: Duration::from_secs(12),
            directory: directory.path().to_owned(),
        };
        let unix = NbdAddress::Unix(directory.path().join("disk.sock"));
        let listen = NbdListen { addresses: vec![unix, NbdAddress::Tcp("127.0.0.1:0".to_owned())], exposed: false };
        let (front, channels) = NbdServer::open(&config, &listen).unwrap();
        let memory = Arc::new(Mapping::anonymous(size_bytes as usize).unwrap());
        let served = Served::start(front, channels, &memory);
        let addresses = served.path.to_str().unwrap().split(' ').map(str::to_owned).collect();
        Self { served, addresses, directory }
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.directory.path().join("disk.sock")
    }

    pub(crate) fn unix_address(&self) -> String {
        self.addresses[0].clone()
    }

    pub(crate) fn tcp_address(&self) -> String {
        self.addresses[1].clone()
    }

    /// Stops; clients must have gone, or be about to.
    pub(crate) fn stop(mut self) {
        self.served.end();
    }
}

/// A client on a UNIX socket. A wait without end panics.
pub(crate) struct Client {
    stream: UnixStream,
    cookie: u64,
}

impl Client {
    /// Connects, and goes over to requests with `GO`.
    pub(crate) fn connect(path: &Path) -> Self {
        let mut client = Self::greet(path);
        client.send(&[&b"IHAVEOPT"[..], &[0, 0, 0, 7, 0, 0, 0, 6], &[0; 6]].concat());
        loop {
            let mut reply = [0; 20];
            client.stream.read_exact(&mut reply).unwrap();
            let mut data = vec![0; u32::from_be_bytes(reply[16..].try_into().unwrap()) as usize];
            client.stream.read_exact(&mut data).unwrap();
            match u32::from_be_bytes(reply[12..16].try_into().unwrap()) {
                1 => return client,
                3 => {}
                other => panic!("{other:#x}"),
            }
        }
    }

    /// Connects as clients did before there was `GO`.
    pub(crate) fn connect_by_name(path: &Path, name: &str) -> Self {
        let mut client = Self::greet(path);
        let length = (name.len() as u32).to_be_bytes();
        client.send(&[&b"IHAVEOPT"[..], &[0, 0, 0, 1], &length, name.as_bytes()].concat());
        client.stream.read_exact(&mut [0; 10]).unwrap();
        client
    }

    fn greet(path: &Path) -> Self {
        let mut stream = UnixStream::connect(path).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting).unwrap();
        assert_eq!(&greeting, b"NBDMAGICIHAVEOPT\0\x03");
        stream.write_all(&[0, 0, 0, 3]).unwrap();
        Self { stream, cookie: 0 }
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    fn send_header(&mut self, command: u16, offset: u64, length: u32) {
        self.cookie += 1;
        let mut bytes = vec![0x25, 0x60, 0x95, 0x13, 0, 0];
        bytes.extend(command.to_be_bytes());
        bytes.extend(self.cookie.to_be_bytes());
        bytes.extend(offset.to_be_bytes());
        bytes.extend(length.to_be_bytes());
        self.send(&bytes);
    }

    pub(crate) fn send_read_header(&mut self, offset: u64, length: u32) {
        self.send_header(0, offset, length);
    }

    pub(crate) fn send_write_header(&mut self, offset: u64, length: u32) {
        self.send_header(1, offset, length);
    }

    /// The error of the answer to the last request.
    fn answer(&mut self) -> u32 {
        let mut bytes = [0; 16];
        self.stream.read_exact(&mut bytes).unwrap();
        assert_eq!(bytes[..4], [0x67, 0x44, 0x66, 0x98]);
        assert_eq!(bytes[8..], self.cookie.to_be_bytes());
        u32::from_be_bytes(bytes[4..8].try_into().unwrap())
    }

    pub(crate) fn write(&mut self, offset: u64, data: &[u8]) -> u32 {
        self.send_write_header(offset, data.len() as u32);
        self.send(data);
        self.answer()
    }

    pub(crate) fn read(&mut self, offset: u64, length: u32) -> Result<Vec<u8>, u32> {
        self.send_read_header(offset, length);
        match self.answer() {
            0 => {
                let mut data = vec![0; length as usize];
                self.stream.read_exact(&mut data).unwrap();
                Ok(data)
            }
            error => Err(error),
        }
    }

    pub(crate) fn flush(&mut self) -> u32 {
        self.send_header(3, 0, 0);
        self.answer()
    }

    pub(crate) fn discard(&mut self, offset: u64, length: u32) -> u32 {
        self.send_header(4, offset, length);
        self.answer()
    }

    pub(crate) fn goodbye(mut self) {
        self.send_header(2, 0, 0);
        assert!(self.is_hung_up_on());
    }

    /// Whether nothing more comes.
    pub(crate) fn is_hung_up_on(&mut self) -> bool {
        // Unread bytes on the other side make it a reset.
        self.stream
            .read(&mut [0; 1])
            .map_or_else(|error| error.kind() == std::io::ErrorKind::ConnectionReset, |count| count == 0)
    }
}
