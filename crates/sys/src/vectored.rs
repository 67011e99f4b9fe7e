//! Sending from, and receiving into, several pieces of memory with one system call.
//!
//! Pages leave straight from a slab or a buffer pool and land straight in one, with their headers before them. The
//! pieces are borrowed for as long as the list lives, so they cannot go away before the call; the list lies on the
//! stack and never allocates. Adjacent pieces are joined, since the kernel's cost is per piece.
//!
//! Every call leaves no SIGPIPE behind: a lost peer is an error value.

use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::mapping::Mapping;

/// Pieces in one list: 32 messages of header and page. The kernel takes up to 1024, but more than this saves nothing.
pub const PIECES_MAX: usize = 64;

/// Whether a call may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// At least one byte, or the socket's own timeout (then the error is `WouldBlock`).
    ForSome,
    /// `WouldBlock` if nothing can be moved at once.
    No,
}

impl Wait {
    fn flags(self) -> libc::c_int {
        match self {
            Self::ForSome => 0,
            Self::No => libc::MSG_DONTWAIT,
        }
    }
}

#[derive(Debug)]
struct Pieces {
    vectors: [libc::iovec; PIECES_MAX],
    count: usize,
    length: usize,
}

impl Pieces {
    fn new() -> Self {
        let empty = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        Self { vectors: [empty; PIECES_MAX], count: 0, length: 0 }
    }

    fn push(&mut self, address: usize, length: usize) {
        if length == 0 {
            return;
        }
        self.length += length;
        if let Some(last) = self.vectors[..self.count].last_mut()
            && last.iov_base as usize + last.iov_len == address
        {
            last.iov_len += length;
            return;
        }
        assert!(self.count < PIECES_MAX, "the caller asks `room` first");
        self.vectors[self.count] = libc::iovec { iov_base: address as *mut libc::c_void, iov_len: length };
        self.count += 1;
    }

    fn push_memory(&mut self, memory: &Mapping, offset: usize, length: usize) {
        let inside = offset.checked_add(length).is_some_and(|end| end <= memory.length());
        assert!(inside, "range {offset}+{length} lies outside a mapping of {} bytes", memory.length());
        self.push(memory.address() + offset, length);
    }

    /// The piece, if it is the only one: the kernel takes it without reading a list first.
    fn only(&self) -> Option<&libc::iovec> {
        if self.count == 1 { self.vectors.first() } else { None }
    }

    fn message(&mut self) -> libc::msghdr {
        // SAFETY: msghdr is plain numbers and pointers, for which all zeroes are valid (no name, no control data).
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = self.vectors.as_mut_ptr();
        message.msg_iovlen = self.count as _;
        message
    }
}

macro_rules! list_of_pieces {
    ($bytes:ty) => {
        /// An empty list.
        pub fn new() -> Self {
            Self { pieces: Pieces::new(), borrowed: PhantomData }
        }

        /// Pieces that still fit.
        pub fn room(&self) -> usize {
            PIECES_MAX - self.pieces.count
        }

        /// Bytes of all pieces together.
        pub fn length(&self) -> usize {
            self.pieces.length
        }

        /// Appends bytes of our own.
        pub fn push_bytes(&mut self, bytes: $bytes) {
            self.pieces.push(bytes.as_ptr() as usize, bytes.len());
        }

        /// Appends `[offset, offset + length)` of `memory`.
        pub fn push_memory(&mut self, memory: &'a Mapping, offset: usize, length: usize) {
            self.pieces.push_memory(memory, offset, length);
        }
    };
}

/// What to send, in order.
#[derive(Debug)]
pub struct SendList<'a> {
    pieces: Pieces,
    borrowed: PhantomData<&'a [u8]>,
}

impl<'a> SendList<'a> {
    list_of_pieces!(&'a [u8]);

    /// Sends as much as goes at once; returns how many bytes went.
    pub fn send(&mut self, socket: BorrowedFd<'_>, wait: Wait) -> io::Result<usize> {
        let flags = wait.flags() | libc::MSG_NOSIGNAL;
        let sent = if let Some(piece) = self.pieces.only() {
            // SAFETY: as below, for one piece.
            unsafe { libc::send(socket.as_raw_fd(), piece.iov_base, piece.iov_len, flags) }
        } else {
            let message = self.pieces.message();
            // SAFETY: the message points to `count` initialised vectors, each inside memory that is borrowed for 'a
            // (bytes) or mapped while its borrowed Mapping lives; sending only reads it.
            unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, flags) }
        };
        usize::try_from(sent).map_err(|_| io::Error::last_os_error())
    }
}

impl Default for SendList<'_> {
    fn default() -> Self {
        Self::new()
    }
}

/// Where to put what is received, in order.
#[derive(Debug)]
pub struct ReceiveList<'a> {
    pieces: Pieces,
    borrowed: PhantomData<&'a mut [u8]>,
}

impl<'a> ReceiveList<'a> {
    list_of_pieces!(&'a mut [u8]);

    /// Receives what is there; returns how many bytes came, 0 when the peer has closed.
    pub fn receive(&mut self, socket: BorrowedFd<'_>, wait: Wait) -> io::Result<usize> {
        let received = if let Some(piece) = self.pieces.only() {
            // SAFETY: as below, for one piece.
            unsafe { libc::recv(socket.as_raw_fd(), piece.iov_base, piece.iov_len, wait.flags()) }
        } else {
            let mut message = self.pieces.message();
            // SAFETY: the message points to `count` initialised vectors, each inside bytes that are borrowed
            // exclusively for 'a, or inside a Mapping, which allows its bytes to change at any time.
            unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, wait.flags()) }
        };
        usize::try_from(received).map_err(|_| io::Error::last_os_error())
    }
}

impl Default for ReceiveList<'_> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn headers_and_pages_travel_between_mappings() {
        let (one, two) = UnixStream::pair().unwrap();
        let (source, target) = (Mapping::anonymous(8192).unwrap(), Mapping::anonymous(8192).unwrap());
        source.write(4096, b"page");
        let mut list = SendList::new();
        list.push_bytes(b"head");
        list.push_memory(&source, 4096, 4096);
        assert_eq!(list.length(), 4100);
        assert_eq!(list.send(one.as_fd(), Wait::No).unwrap(), 4100);

        let mut head = [0; 4];
        let mut list = ReceiveList::new();
        list.push_bytes(&mut head);
        list.push_memory(&target, 0, 4096);
        assert_eq!(list.receive(two.as_fd(), Wait::ForSome).unwrap(), 4100);
        let mut seen = [0; 5];
        target.read(0, &mut seen);
        assert_eq!((&head, &seen), (b"head", b"page\0"));
    }

    #[test]
    fn adjacent_pieces_are_joined_and_empty_ones_dropped() {
        let memory = Mapping::anonymous(4 * 4096).unwrap();
        let mut list = SendList::new();
        list.push_memory(&memory, 0, 4096);
        list.push_memory(&memory, 4096, 0);
        list.push_memory(&memory, 4096, 4096);
        assert_eq!((list.room(), list.length()), (PIECES_MAX - 1, 8192));
        list.push_memory(&memory, 12288, 4096);
        assert_eq!(list.room(), PIECES_MAX - 2);
    }

    #[test]
    fn nothing_there_a_full_socket_and_a_lost_peer_are_told_apart() {
        let (one, two) = UnixStream::pair().unwrap();
        let mut byte = [0];
        let mut receive = |wait| {
            let mut list = ReceiveList::new();
            list.push_bytes(&mut byte);
            list.receive(two.as_fd(), wait)
        };
        assert_eq!(receive(Wait::No).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        let memory = Mapping::anonymous(1 << 20).unwrap();
        let send = || {
            let mut list = SendList::new();
            list.push_memory(&memory, 0, memory.length());
            list.send(one.as_fd(), Wait::No)
        };
        let full =
            std::iter::repeat_with(send).take(64).find_map(Result::err).expect("a socket holds less than 64 MiB");
        assert_eq!(full.kind(), io::ErrorKind::WouldBlock);
        drop(two);
        assert!(matches!(send().unwrap_err().kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset));
    }

    #[test]
    #[should_panic(expected = "outside a mapping")]
    fn a_piece_outside_its_mapping_panics_instead_of_being_sent() {
        SendList::new().push_memory(&Mapping::anonymous(4096).unwrap(), 4096, 1);
    }
}
