//! The kernel's NBD driver, asked over generic netlink (`linux/nbd-netlink.h`): devices are made of sockets, given
//! new ones, and ended.
//!
//! Five messages with a handful of attributes are written here by hand: all are sent while a device is set up or
//! taken down, none while it works. Each request waits for the kernel's answer, which comes at once or after what was
//! asked is done.
//!
//! Numbers in netlink messages are in the machine's own order; every attribute starts at a multiple of four bytes.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink};

/// `linux/netlink.h`.
const NETLINK_HEADER_BYTES: usize = 16;
const FLAG_REQUEST: u16 = 1;
const FLAG_ACKNOWLEDGE: u16 = 4;
const MESSAGE_ERROR: u16 = 2;
const ATTRIBUTE_NESTED: u16 = 1 << 15;
const ATTRIBUTE_TYPE_MASK: u16 = !(3 << 14);

/// `linux/genetlink.h`: the family that names families.
const GENERIC_HEADER_BYTES: usize = 4;
const CONTROL_FAMILY: u16 = 16;
const CONTROL_GET_FAMILY: u8 = 3;
const CONTROL_FAMILY_ID: u16 = 1;
const CONTROL_FAMILY_NAME: u16 = 2;

/// `linux/nbd-netlink.h`.
const FAMILY_NAME: &str = "nbd";
const COMMAND_CONNECT: u8 = 1;
const COMMAND_DISCONNECT: u8 = 2;
const COMMAND_RECONFIGURE: u8 = 3;
const ATTRIBUTE_INDEX: u16 = 1;
const ATTRIBUTE_SIZE_BYTES: u16 = 2;
const ATTRIBUTE_BLOCK_SIZE_BYTES: u16 = 3;
const ATTRIBUTE_TIMEOUT: u16 = 4;
const ATTRIBUTE_SERVER_FLAGS: u16 = 5;
const ATTRIBUTE_CLIENT_FLAGS: u16 = 6;
const ATTRIBUTE_SOCKETS: u16 = 7;
const ATTRIBUTE_DEAD_CONNECTION_TIMEOUT: u16 = 8;
const ATTRIBUTE_BACKEND_IDENTIFIER: u16 = 10;
const SOCKET_ITEM: u16 = 1;
const SOCKET_DESCRIPTOR: u16 = 1;

/// Longer than any answer to what is asked here.
const ANSWER_BYTES_MAX: usize = 8192;

/// A device to be made.
#[derive(Clone, Copy, Debug)]
pub struct NbdDevice<'a> {
    /// Bytes, whole blocks.
    pub size_bytes: u64,
    /// Bytes of a logical block.
    pub block_size_bytes: u64,
    /// A request without an answer for so long takes its connection down.
    pub timeout_seconds: u64,
    /// How long requests wait for a new connection when none is left; then the device fails them. 0: at once.
    pub dead_connection_timeout_seconds: u64,
    /// The protocol's transmission flags.
    pub server_flags: u16,
    /// Says who made it; shows as `backend` in sysfs (Linux 5.14 and later), and is asked for with new sockets.
    pub identifier: &'a str,
}

/// A netlink socket that knows the driver's family.
#[derive(Debug)]
pub struct NbdControl {
    socket: OwnedFd,
    family: u16,
}

impl NbdControl {
    /// Asks the kernel for its NBD driver. `NotFound`: it is not loaded, or not there.
    pub fn open() -> io::Result<Self> {
        let socket = rustix::net::socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            Some(netlink::GENERIC),
        )?;
        let mut message = Message::new(CONTROL_FAMILY, CONTROL_GET_FAMILY);
        message.string(CONTROL_FAMILY_NAME, FAMILY_NAME);
        let answer = ask(socket.as_fd(), message)?;
        let family =
            attribute(&answer, CONTROL_FAMILY_ID).and_then(|value| Some(u16::from_ne_bytes(*value.first_chunk()?)));
        let family = family.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        Ok(Self { socket, family })
    }

    /// Makes a block device whose requests go to `sockets`; its number. The kernel keeps its own hold of the sockets.
    pub fn connect(&self, device: &NbdDevice<'_>, sockets: &[BorrowedFd<'_>]) -> io::Result<u32> {
        let mut message = Message::new(self.family, COMMAND_CONNECT);
        message.number64(ATTRIBUTE_SIZE_BYTES, device.size_bytes);
        message.number64(ATTRIBUTE_BLOCK_SIZE_BYTES, device.block_size_bytes);
        message.number64(ATTRIBUTE_TIMEOUT, device.timeout_seconds);
        message.number64(ATTRIBUTE_DEAD_CONNECTION_TIMEOUT, device.dead_connection_timeout_seconds);
        message.number64(ATTRIBUTE_SERVER_FLAGS, device.server_flags.into());
        // Neither ended by its last closer, which would be whatever probes new devices, nor removed at its end.
        message.number64(ATTRIBUTE_CLIENT_FLAGS, 0);
        message.string(ATTRIBUTE_BACKEND_IDENTIFIER, device.identifier);
        message.sockets(sockets);
        let answer = ask(self.socket.as_fd(), message)?;
        let index =
            attribute(&answer, ATTRIBUTE_INDEX).and_then(|value| Some(u32::from_ne_bytes(*value.first_chunk()?)));
        index.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "the kernel does not say which device it made"))
    }

    /// Gives device `index` a socket in the place of one that is dead. Without a dead one the kernel leaves it, and
    /// says nothing.
    pub fn replace(&self, index: u32, identifier: &str, socket: BorrowedFd<'_>) -> io::Result<()> {
        let mut message = Message::new(self.family, COMMAND_RECONFIGURE);
        message.number32(ATTRIBUTE_INDEX, index);
        message.string(ATTRIBUTE_BACKEND_IDENTIFIER, identifier);
        message.sockets(&[socket]);
        ask(self.socket.as_fd(), message).map(drop)
    }

    /// Ends device `index`: every request fails from now on, and the number is free once no thread has the device open.
    pub fn disconnect(&self, index: u32) -> io::Result<()> {
        let mut message = Message::new(self.family, COMMAND_DISCONNECT);
        message.number32(ATTRIBUTE_INDEX, index);
        ask(self.socket.as_fd(), message).map(drop)
    }
}

/// A request under construction: the two headers, then attributes.
struct Message {
    bytes: Vec<u8>,
}

impl Message {
    fn new(family: u16, command: u8) -> Self {
        let mut bytes = vec![0; NETLINK_HEADER_BYTES];
        bytes[4..6].copy_from_slice(&family.to_ne_bytes());
        bytes[6..8].copy_from_slice(&(FLAG_REQUEST | FLAG_ACKNOWLEDGE).to_ne_bytes());
        bytes.extend([command, 1, 0, 0]);
        Self { bytes }
    }

    fn attribute(&mut self, kind: u16, value: &[u8]) {
        self.bytes.extend(((4 + value.len()) as u16).to_ne_bytes());
        self.bytes.extend(kind.to_ne_bytes());
        self.bytes.extend(value);
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    fn number32(&mut self, kind: u16, value: u32) {
        self.attribute(kind, &value.to_ne_bytes());
    }

    fn number64(&mut self, kind: u16, value: u64) {
        self.attribute(kind, &value.to_ne_bytes());
    }

    fn string(&mut self, kind: u16, value: &str) {
        self.attribute(kind, &[value.as_bytes(), &[0]].concat());
    }

    fn sockets(&mut self, sockets: &[BorrowedFd<'_>]) {
        let mut items = Self { bytes: Vec::new() };
        for socket in sockets {
            let mut item = Self { bytes: Vec::new() };
            item.number32(SOCKET_DESCRIPTOR, socket.as_raw_fd() as u32);
            items.attribute(SOCKET_ITEM | ATTRIBUTE_NESTED, &item.bytes);
        }
        self.attribute(ATTRIBUTE_SOCKETS | ATTRIBUTE_NESTED, &items.bytes);
    }

    fn finish(mut self) -> Vec<u8> {
        let length = self.bytes.len() as u32;
        self.bytes[..4].copy_from_slice(&length.to_ne_bytes());
        self.bytes
    }
}

/// Sends a request and waits for its end; the attributes of the kernel's answer, if it gave one.
fn ask(socket: BorrowedFd<'_>, message: Message) -> io::Result<Vec<u8>> {
    rustix::net::send(socket, &message.finish(), SendFlags::empty())?;
    let mut answer = Vec::new();
    let mut buffer = vec![0; ANSWER_BYTES_MAX];
    loop {
        let (length, _) = match rustix::net::recv(socket, &mut buffer[..], RecvFlags::empty()) {
            Err(rustix::io::Errno::INTR) => continue,
            result => result?,
        };
        let mut rest = &buffer[..length];
        while let Some((kind, body, next)) = first_message(rest) {
            if kind == MESSAGE_ERROR {
                return match body.first_chunk().map(|errno| i32::from_ne_bytes(*errno)) {
                    Some(0) => Ok(answer),
                    Some(errno) => Err(io::Error::from_raw_os_error(-errno)),
                    None => Err(io::Error::from(io::ErrorKind::InvalidData)),
                };
            }
            answer = body.get(GENERIC_HEADER_BYTES..).unwrap_or_default().to_vec();
            rest = next;
        }
    }
}

/// Kind and body of the first message in `bytes`, and what follows it.
fn first_message(bytes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let length = u32::from_ne_bytes(*bytes.first_chunk()?) as usize;
    let kind = u16::from_ne_bytes(*bytes.get(4..)?.first_chunk()?);
    let body = bytes.get(NETLINK_HEADER_BYTES..length)?;
    Some((kind, body, bytes.get(length.next_multiple_of(4)..).unwrap_or_default()))
}

/// The value of the first attribute of that kind.
fn attribute(mut bytes: &[u8], wanted: u16) -> Option<&[u8]> {
    loop {
        let length = usize::from(u16::from_ne_bytes(*bytes.first_chunk()?));
        let kind = u16::from_ne_bytes(*bytes.get(2..)?.first_chunk()?);
        let value = bytes.get(4..length)?;
        if kind & ATTRIBUTE_TYPE_MASK == wanted {
            return Some(value);
        }
        bytes = bytes.get(length.next_multiple_of(4)..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_written_as_the_kernel_reads_them() {
        let mut message = Message::new(30, COMMAND_RECONFIGURE);
        message.number32(ATTRIBUTE_INDEX, 7);
        message.string(ATTRIBUTE_BACKEND_IDENTIFIER, "abcd");
        message.number64(ATTRIBUTE_TIMEOUT, 1 << 40);
        let bytes = message.finish();
        assert_eq!(bytes.len() % 4, 0);
        let (kind, body, rest) = first_message(&bytes).unwrap();
        assert_eq!((kind, body[0], rest), (30, COMMAND_RECONFIGURE, &[][..]));
        let attributes = &body[GENERIC_HEADER_BYTES..];
        assert_eq!(attribute(attributes, ATTRIBUTE_INDEX), Some(&7_u32.to_ne_bytes()[..]));
        assert_eq!(attribute(attributes, ATTRIBUTE_BACKEND_IDENTIFIER), Some(&b"abcd\0"[..]));
        assert_eq!(attribute(attributes, ATTRIBUTE_TIMEOUT), Some(&(1_u64 << 40).to_ne_bytes()[..]));
        assert_eq!(attribute(attributes, ATTRIBUTE_SIZE_BYTES), None);
    }

    #[test]
    fn sockets_are_nested_lists() {
        let mut message = Message::new(30, COMMAND_CONNECT);
        let (one, two) = (io::stdin(), io::stdout());
        message.sockets(&[one.as_fd(), two.as_fd()]);
        let bytes = message.finish();
        let list = attribute(&bytes[NETLINK_HEADER_BYTES + GENERIC_HEADER_BYTES..], ATTRIBUTE_SOCKETS).unwrap();
        assert_eq!(list.len(), 2 * 12);
        let item = attribute(&list[12..], SOCKET_ITEM).unwrap();
        assert_eq!(attribute(item, SOCKET_DESCRIPTOR), Some(&1_u32.to_ne_bytes()[..]));
    }

    #[test]
    fn cut_answers_hold_nothing() {
        let mut message = Message::new(30, 1);
        message.number32(ATTRIBUTE_INDEX, 7);
        let bytes = message.finish();
        for length in 0..bytes.len() {
            assert!(first_message(&bytes[..length]).is_none(), "{length}");
        }
        assert_eq!(attribute(&[8, 0, 1, 0, 7], ATTRIBUTE_INDEX), None);
        assert_eq!(attribute(&[0; 8], ATTRIBUTE_INDEX), None, "an attribute without length ends the list");
    }

    #[test]
    fn the_driver_is_there_or_named_as_missing() {
        match NbdControl::open() {
            Ok(control) => assert!(control.family > CONTROL_FAMILY),
            // Without network namespaces or generic netlink it is missing too.
            Err(error) => assert!(error.kind() == io::ErrorKind::NotFound, "{error}"),
        }
    }
}
