//! The greeting's socket: one message at a time, with a descriptor along.

use crate::calls::{self, Descriptor, INTERRUPTED, INVALID, NO_ENTRY};
use crate::protocol::{ADDRESS_BYTES_MAX, MESSAGE_WORDS, Words};

const UNIX: u16 = 1;
const SEQUENTIAL_PACKETS_CLOSED_ON_EXEC: usize = 5 | 0o2_000_000;
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

/// Connects to `address`: a path, or `@` and an abstract name.
pub(crate) fn connect(address: &[u8]) -> Result<Descriptor, i32> {
    let mut target = SocketAddress { family: UNIX, path: [0; ADDRESS_BYTES_MAX + 1] };
    if address.is_empty() || address.len() > ADDRESS_BYTES_MAX {
        return Err(INVALID);
    }
    for (to, from) in target.path.iter_mut().zip(address) {
        *to = *from;
    }
    // An abstract name begins with a zero byte and has no end but its length; a path ends with one.
    let is_abstract = address.first() == Some(&b'@');
    if is_abstract {
        target.path[0] = 0;
    }
    let length = 2 + address.len() + usize::from(!is_abstract);
    // SAFETY: numbers only.
    let socket = unsafe { calls::call(41, [UNIX as usize, SEQUENTIAL_PACKETS_CLOSED_ON_EXEC, 0, 0, 0, 0]) }?;
    let socket = Descriptor(socket as i32);
    // SAFETY: the address lives through the call and is at least `length` long.
    unsafe { calls::call(42, [socket.0 as usize, &raw const target as usize, length, 0, 0, 0]) }?;
    Ok(socket)
}

/// Sends a message.
pub(crate) fn send(socket: &Descriptor, words: &Words, passed: Option<&Descriptor>) -> Result<(), i32> {
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
