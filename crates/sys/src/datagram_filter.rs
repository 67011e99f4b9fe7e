//! A socket for datagrams that takes only those which have a secret at a known place (socket(7), `SO_ATTACH_FILTER`).
//!
//! The kernel looks at each datagram before it comes to the socket's queue. One that is thrown away takes no place in
//! the queue, wakes no process, and its sender is told nothing.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// Classes and modes of classic BPF (`linux/bpf_common.h`).
const LENGTH: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_LEN;
const LOAD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
const IF_EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
const RETURN: u32 = libc::BPF_RET | libc::BPF_K;

fn instruction(code: u32, operand: u32, if_false: u8) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt: 0, jf: if_false, k: operand }
}

/// From here on `socket` takes only datagrams of `length` bytes that have the bytes of `secret` at `offset`.
pub fn admit_only(socket: impl AsFd, length: u32, offset: u32, secret: u64) -> io::Result<()> {
    let [high, low] = [0, 4].map(|first| {
        let bytes = secret.to_ne_bytes();
        // Words are loaded as the network has them.
        u32::from_be_bytes([bytes[first], bytes[first + 1], bytes[first + 2], bytes[first + 3]])
    });
    let mut filter = [
        instruction(LENGTH, 0, 0),
        instruction(IF_EQUAL, length, 5),
        instruction(LOAD, offset, 0),
        instruction(IF_EQUAL, high, 3),
        instruction(LOAD, offset + 4, 0),
        instruction(IF_EQUAL, low, 1),
        // All of it.
        instruction(RETURN, u32::MAX, 0),
        instruction(RETURN, 0, 0),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the option takes a `sock_fprog`, whose instructions live until the call returns; the kernel copies them.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            (&raw const program).cast(),
            size_of::<libc::sock_fprog>() as u32,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram;

    use super::*;

    #[test]
    fn only_what_has_the_secret_comes_through() {
        let (sender, receiver) = UnixDatagram::pair().unwrap();
        receiver.set_nonblocking(true).unwrap();
        let secret = 0x0123_4567_89ab_cdef_u64;
        admit_only(&receiver, 24, 8, secret).unwrap();
        let message = |secret: u64| [[7; 8], secret.to_ne_bytes(), [9; 8]].concat();
        for stranger in [&message(secret ^ 1)[..], &message(secret ^ 1 << 40), &message(secret)[..23], b"", b"GET /"] {
            // More than the queue takes: none waits for a reader.
            (0..100).for_each(|_| assert_eq!(sender.send(stranger).unwrap(), stranger.len()));
        }
        assert_eq!(receiver.recv(&mut [0; 32]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        sender.send(&message(secret)).unwrap();
        let mut received = [0; 32];
        assert_eq!(receiver.recv(&mut received).unwrap(), 24);
        assert_eq!(received[..24], message(secret));
    }
}
