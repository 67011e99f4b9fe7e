//! How a data connection starts.
//!
//! The borrower sends the [preface] and its session's token at once; the donor, which has read the
//! preface to tell control from data, looks the token up and answers with a preface of its own and a verdict. Everything
//! happens within [`HANDSHAKE_DEADLINE`], whatever the peer does.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send, sockopt};

use crate::limits::{HANDSHAKE_DEADLINE, SOCKET_BUFFER_BYTES};
use crate::wire::preface::{self, PREFACE_BYTES, Role};
use crate::wire::{SESSION_TOKEN_BYTES, SessionToken};

const ACCEPTED: u8 = 1;
const REFUSED: u8 = 2;

/// Donor: reads the token of a data connection whose preface was already read.
pub fn receive_token(stream: impl AsFd) -> io::Result<SessionToken> {
    let mut token = [0; SESSION_TOKEN_BYTES];
    receive_all(stream.as_fd(), &mut token, Instant::now() + HANDSHAKE_DEADLINE)?;
    Ok(SessionToken(token))
}

/// Donor: tells the peer that no session has its token; the caller then closes the connection.
pub fn refuse_token(stream: impl AsFd) -> io::Result<()> {
    send_verdict(stream.as_fd(), REFUSED)
}

/// Donor: tells the peer that it may send requests.
pub(super) fn accept_token(stream: BorrowedFd<'_>) -> io::Result<()> {
    send_verdict(stream, ACCEPTED)
}

fn send_verdict(stream: BorrowedFd<'_>, verdict: u8) -> io::Result<()> {
    let mut bytes = [verdict; PREFACE_BYTES + 1];
    bytes[..PREFACE_BYTES].copy_from_slice(&preface::encode(Role::Data));
    send_all(stream, &bytes, Instant::now() + HANDSHAKE_DEADLINE)
}

/// Borrower: the whole handshake.
pub(super) fn present_token(stream: BorrowedFd<'_>, token: SessionToken) -> io::Result<()> {
    let deadline = Instant::now() + HANDSHAKE_DEADLINE;
    let mut hello = [0; PREFACE_BYTES + SESSION_TOKEN_BYTES];
    hello[..PREFACE_BYTES].copy_from_slice(&preface::encode(Role::Data));
    hello[PREFACE_BYTES..].copy_from_slice(&token.0);
    send_all(stream, &hello, deadline)?;

    let mut answer = [0; PREFACE_BYTES];
    receive_all(stream, &mut answer, deadline)?;
    let role = preface::decode(&answer).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
    let mut verdict = [0];
    receive_all(stream, &mut verdict, deadline)?;
    match (role, verdict) {
        (Role::Data, [ACCEPTED]) => Ok(()),
        (Role::Data, [REFUSED]) => Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            "the donor does not know this session (any more); connect to it anew",
        )),
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "the donor answered nonsense to a data connection")),
    }
}

/// Settings of a data connection at both ends: pages leave at once, and a full queue of requests fits the kernel's buffers.
pub(super) fn tune(stream: BorrowedFd<'_>) -> io::Result<()> {
    rustix::io::ioctl_fionbio(stream, false)?;
    // Not a TCP socket: nothing delays there.
    let _ = sockopt::set_tcp_nodelay(stream, true);
    // Best effort: without the privilege, the system's own limit holds, and the connection is only slower.
    if sockopt::set_socket_send_buffer_size_force(stream, SOCKET_BUFFER_BYTES).is_err() {
        let _ = sockopt::set_socket_send_buffer_size(stream, SOCKET_BUFFER_BYTES);
    }
    if sockopt::set_socket_recv_buffer_size_force(stream, SOCKET_BUFFER_BYTES).is_err() {
        let _ = sockopt::set_socket_recv_buffer_size(stream, SOCKET_BUFFER_BYTES);
    }
    Ok(())
}

/// Waits until `stream` is ready for `flags`, or `timeout` passed. Whether it is ready.
pub(super) fn wait_ready(stream: BorrowedFd<'_>, flags: PollFlags, timeout: Duration) -> io::Result<bool> {
    let timeout = Timespec {
        tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: timeout.subsec_nanos().into(),
    };
    match poll(&mut [PollFd::from_borrowed_fd(stream, flags)], Some(&timeout)) {
        Ok(ready) => Ok(ready > 0),
        Err(Errno::INTR) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

fn send_all(stream: BorrowedFd<'_>, mut bytes: &[u8], deadline: Instant) -> io::Result<()> {
    while !bytes.is_empty() {
        match send(stream, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Ok(sent) => bytes = &bytes[sent..],
            Err(Errno::AGAIN | Errno::INTR) => wait_until(stream, PollFlags::OUT, deadline)?,
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

fn receive_all(stream: BorrowedFd<'_>, mut bytes: &mut [u8], deadline: Instant) -> io::Result<()> {
    while !bytes.is_empty() {
        match recv(stream, &mut *bytes, RecvFlags::DONTWAIT) {
            Ok((0, _)) => {
                let message = "the peer closed the connection during the handshake";
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, message));
            }
            Ok((received, _)) => bytes = &mut bytes[received..],
            Err(Errno::AGAIN | Errno::INTR) => wait_until(stream, PollFlags::IN, deadline)?,
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

fn wait_until(stream: BorrowedFd<'_>, flags: PollFlags, deadline: Instant) -> io::Result<()> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(io::Error::new(io::ErrorKind::TimedOut, "the peer did not finish the handshake in time"));
    }
    wait_ready(stream, flags, left).map(|_| ())
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    use super::*;

    const TOKEN: SessionToken = SessionToken([7; SESSION_TOKEN_BYTES]);

    /// What the borrower's handshake says when the donor's end does `donor`.
    fn present_to(donor: impl FnOnce(UnixStream) + Send) -> io::Result<()> {
        let (borrower, peer) = UnixStream::pair().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| donor(peer));
            present_token(borrower.as_fd(), TOKEN)
        })
    }

    fn read_hello(stream: &mut UnixStream) -> SessionToken {
        let mut preface = [0; PREFACE_BYTES];
        stream.read_exact(&mut preface).unwrap();
        assert_eq!(preface::decode(&preface), Ok(Role::Data));
        receive_token(&*stream).unwrap()
    }

    #[test]
    fn an_accepted_token_starts_the_connection() {
        let accepted = present_to(|mut stream| {
            assert_eq!(read_hello(&mut stream), TOKEN);
            accept_token(stream.as_fd()).unwrap();
        });
        assert!(accepted.is_ok());
    }

    #[test]
    fn a_refused_token_says_what_to_do() {
        let error = present_to(|mut stream| {
            read_hello(&mut stream);
            refuse_token(&stream).unwrap();
        });
        let error = error.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        assert!(error.to_string().contains("connect to it anew"));
    }

    #[test]
    fn another_version_and_nonsense_are_told_apart() {
        let newer = present_to(|mut stream| {
            read_hello(&mut stream);
            stream.write_all(b"SPLW\xff\xff\x02\x00\x01").unwrap();
        });
        assert!(newer.unwrap_err().to_string().contains("wire version 65535"));
        let nonsense = present_to(|mut stream| {
            read_hello(&mut stream);
            stream.write_all(b"HTTP/1.1 400 Bad Request").unwrap();
        });
        assert!(nonsense.unwrap_err().to_string().contains("not Spillway"));
        let verdict = present_to(|mut stream| {
            read_hello(&mut stream);
            send_verdict(stream.as_fd(), 9).unwrap();
        });
        assert_eq!(verdict.unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn a_peer_that_closes_or_stalls_ends_the_handshake() {
        let closed = present_to(|mut stream| {
            read_hello(&mut stream);
        });
        assert_eq!(closed.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        let (stream, _silent) = UnixStream::pair().unwrap();
        let stalled = receive_all(stream.as_fd(), &mut [0; 4], Instant::now());
        assert_eq!(stalled.unwrap_err().kind(), io::ErrorKind::TimedOut);
    }
}
