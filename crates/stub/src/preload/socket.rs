//! The greeting's socket: one message at a time, with a descriptor along.

use crate::calls::{self, Descriptor, INTERRUPTED, INVALID, NO_ENTRY};
use crate::protocol::{ADDRESS_BYTES_MAX, MESSAGE_WORDS, NOTES_SUFFIX, Words};

const UNIX: u16 = 1;
const SEQUENTIAL_PACKETS: usize = 5;
const DATAGRAMS: usize = 2;
const CLOSED_ON_EXEC: usize = 0o2_000_000;
const NO_SIGNAL: usize = 0x4000;
const CLOSE_ON_EXEC: usize = 0x4000_0000;
const SOCKET_LEVEL: i32 = 1;
const RIGHTS: i32 = 1;

/// `struct sockaddr_un`.
#[repr(C)]
struct SocketAddress {
    family: u16,
    path: [u8; ADDRESS_BYTES_MAX + 1],
}

/// `struct iovec`.
#[repr(C)]
struct Piece {
    address: usize,
    length: usize,
}

/// `struct msghdr`.
#[repr(C)]
struct Header {
    name: usize,
    name_length: u32,
    pieces: usize,
    pieces_length: usize,
    control: usize,
    control_length: usize,
    flags: i32,
}

/// `struct cmsghdr` with room for one descriptor, padded as the kernel does.
#[repr(C)]
#[derive(Default)]
struct Control {
    length: usize,
    level: i32,
    kind: i32,
    descriptor: i32,
    padding: i32,
}

/// `CMSG_LEN(sizeof(int))`.
const CONTROL_BYTES: usize = 20;

impl SocketAddress {
    /// `address` with `suffix` behind it: a path, or `@` and an abstract name; and its length.
    fn new(address: &[u8], suffix: &[u8]) -> Result<(Self, usize), i32> {
        let mut target = Self { family: UNIX, path: [0; ADDRESS_BYTES_MAX + 1] };
        let bytes = address.len() + suffix.len();
        if address.is_empty() || bytes > ADDRESS_BYTES_MAX {
            return Err(INVALID);
        }
        for (to, from) in target.path.iter_mut().zip(address.iter().chain(suffix)) {
            *to = *from;
        }
        // An abstract name begins with a zero byte and has no end but its length; a path ends with one.
        let is_abstract = address.first() == Some(&b'@');
        if is_abstract {
            target.path[0] = 0;
        }
        Ok((target, 2 + bytes + usize::from(!is_abstract)))
    }
}

fn new_socket(kind: usize) -> Result<Descriptor, i32> {
    // SAFETY: numbers only.
    let socket = unsafe { calls::call(41, [UNIX as usize, kind | CLOSED_ON_EXEC, 0, 0, 0, 0]) }?;
    Ok(Descriptor(socket as i32))
}

/// Two sockets that are connected with each other.
pub(crate) fn pair() -> Result<[Descriptor; 2], i32> {
    let mut both = [0_i32; 2];
    // SAFETY: the kernel writes two descriptors.
    unsafe { calls::call(53, [UNIX as usize, SEQUENTIAL_PACKETS | CLOSED_ON_EXEC, 0, &raw mut both as usize, 0, 0]) }?;
    Ok(both.map(Descriptor))
}

/// Connects to `address`: a path, or `@` and an abstract name.
pub(crate) fn connect(address: &[u8]) -> Result<Descriptor, i32> {
    let (target, length) = SocketAddress::new(address, b"")?;
    let socket = new_socket(SEQUENTIAL_PACKETS)?;
    // SAFETY: the address lives through the call and is at least `length` long.
    unsafe { calls::call(42, [socket.0 as usize, &raw const target as usize, length, 0, 0, 0]) }?;
    Ok(socket)
}

/// Sends a message to the pager at `address` that it does not answer. Waits only while many others' were not read.
pub(crate) fn post(address: &[u8], words: &Words, passed: &Descriptor) -> Result<(), i32> {
    let (target, length) = SocketAddress::new(address, NOTES_SUFFIX.as_bytes())?;
    let socket = new_socket(DATAGRAMS)?;
    send_to(&socket, Some((&target, length)), words, Some(passed))
}

/// Sends a message.
pub(crate) fn send(socket: &Descriptor, words: &Words, passed: Option<&Descriptor>) -> Result<(), i32> {
    send_to(socket, None, words, passed)
}

fn send_to(
    socket: &Descriptor,
    target: Option<(&SocketAddress, usize)>,
    words: &Words,
    passed: Option<&Descriptor>,
) -> Result<(), i32> {
    let control = Control {
        length: CONTROL_BYTES,
        level: SOCKET_LEVEL,
        kind: RIGHTS,
        descriptor: passed.map_or(-1, |descriptor| descriptor.0),
        padding: 0,
    };
    let piece = Piece { address: words.as_ptr() as usize, length: size_of::<Words>() };
    let mut header = header(&piece);
    if passed.is_some() {
        header.control = &raw const control as usize;
        header.control_length = size_of::<Control>();
    }
    if let Some((target, length)) = target {
        header.name = &raw const *target as usize;
        header.name_length = length as u32;
    }
    loop {
        // SAFETY: the header and all it points to live through the call.
        match unsafe { calls::call(46, [socket.0 as usize, &raw const header as usize, NO_SIGNAL, 0, 0, 0]) } {
            Ok(_) => return Ok(()),
            Err(INTERRUPTED) => {}
            Err(error) => return Err(error),
        }
    }
}

/// Waits for a message, and the descriptor that comes along.
pub(crate) fn receive(socket: &Descriptor) -> Result<(Words, Option<Descriptor>), i32> {
    let mut words = [0; MESSAGE_WORDS];
    let mut control = Control::default();
    let piece = Piece { address: words.as_mut_ptr() as usize, length: size_of::<Words>() };
    let mut header = header(&piece);
    header.control = &raw mut control as usize;
    header.control_length = size_of::<Control>();
    loop {
        // SAFETY: the header and all it points to are ours and live through the call.
        match unsafe { calls::call(47, [socket.0 as usize, &raw mut header as usize, CLOSE_ON_EXEC, 0, 0, 0]) } {
            Ok(0) => return Err(NO_ENTRY),
            Ok(_) => break,
            Err(INTERRUPTED) => {}
            Err(error) => return Err(error),
        }
    }
    let is_descriptor = header.control_length >= CONTROL_BYTES && control.kind == RIGHTS;
    Ok((words, is_descriptor.then(|| Descriptor(control.descriptor))))
}

fn header(piece: &Piece) -> Header {
    Header {
        name: 0,
        name_length: 0,
        pieces: &raw const *piece as usize,
        pieces_length: 1,
        control: 0,
        control_length: 0,
        flags: 0,
    }
}
