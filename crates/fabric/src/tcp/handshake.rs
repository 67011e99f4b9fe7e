//! How a data connection starts: both ends prove that they know the session's token, which itself stays secret.
//!
//! | who | sends |
//! |---|---|
//! | borrower | [preface], session's name (16 bytes), nonce (32 bytes) |
//! | donor | preface, verdict (1 byte: 1 known, 2 unknown session), nonce (32 bytes, zeroes if unknown) |
//! | borrower | its [proof] (32 bytes) |
//! | donor | its proof (32 bytes); it hangs up instead if the peer proved nothing |
//!
//! The donor has read the preface already, to tell control from data. The borrower proves first, so that a donor never
//! answers for a token to a peer that does not have it. Everything happens before one deadline, whatever the peer does.
//! What follows is not encrypted: see the README for what that means.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send, sockopt};

use crate::control::FIRST_BYTES;
use crate::limits::{HANDSHAKE_DEADLINE, SOCKET_BUFFER_BYTES};
use crate::wire::foreign::PREFACE_BYTES;
use crate::wire::preface::{self, Role};
use crate::wire::proof::{
    Challenge, NONCE_BYTES, Nonce, PROOF_BYTES, Proof, Prover, SESSION_NAME_BYTES, SessionName, session_name,
};
use crate::wire::{SessionToken, array_at};

const KNOWN: u8 = 1;
const UNKNOWN: u8 = 2;

/// A borrower's first message after its preface.
const GREETING_BYTES: usize = SESSION_NAME_BYTES + NONCE_BYTES;
const _: () = assert!(PREFACE_BYTES + GREETING_BYTES == FIRST_BYTES);
/// A donor's answer to it after its preface.
const VERDICT_BYTES: usize = 1 + NONCE_BYTES;

/// What a borrower says first.
#[derive(Clone, Copy, Debug)]
pub struct Greeting {
    /// Whose data connection it wants to be.
    pub session: SessionName,
    nonce: Nonce,
}

impl Greeting {
    /// Donor: reads what follows a data connection's preface.
    pub fn receive(stream: impl AsFd, deadline: Instant) -> io::Result<Self> {
        let mut bytes = [0; GREETING_BYTES];
        receive_all(stream.as_fd(), &mut bytes, deadline)?;
        let session = SessionName(array_at(&bytes, 0));
        Ok(Self { session, nonce: Nonce(array_at(&bytes, SESSION_NAME_BYTES)) })
    }

    /// Donor: the session that the first bytes of a data connection name.
    pub fn named(first: &[u8; FIRST_BYTES]) -> Option<SessionName> {
        let is_data = preface::decode(&array_at(first, 0)).is_ok_and(|role| role == Role::Data);
        is_data.then(|| SessionName(array_at(first, PREFACE_BYTES)))
    }

    /// Donor: tells the peer that no session has this name; the caller then closes the connection.
    pub fn refuse(&self, stream: impl AsFd, deadline: Instant) -> io::Result<()> {
        send_verdict(stream.as_fd(), UNKNOWN, Nonce([0; NONCE_BYTES]), deadline)
    }

    /// Donor: lets the peer prove that it knows `token`, and proves the same to it. The peer may send requests then.
    pub fn admit(&self, stream: impl AsFd, token: &SessionToken, deadline: Instant) -> io::Result<()> {
        let stream = stream.as_fd();
        let challenge = Challenge { borrower: self.nonce, donor: Nonce::generate()? };
        send_verdict(stream, KNOWN, challenge.donor, deadline)?;
        expect_proof(stream, &challenge, token, Prover::Borrower, deadline)?;
        send_all(stream, &challenge.prove(token, Prover::Donor).0, deadline)
    }
}

/// Borrower: the whole handshake.
pub fn introduce(stream: impl AsFd, token: &SessionToken) -> io::Result<()> {
    introduce_until(stream, token, Instant::now() + HANDSHAKE_DEADLINE)
}

/// The same, until `deadline`.
pub(super) fn introduce_until(stream: impl AsFd, token: &SessionToken, deadline: Instant) -> io::Result<()> {
    let stream = stream.as_fd();
    let borrower = Nonce::generate()?;
    let greeting = [&preface::encode(Role::Data)[..], &session_name(token).0, &borrower.0].concat();
    send_all(stream, &greeting, deadline)?;
    let challenge = Challenge { borrower, donor: receive_verdict(stream, deadline)? };
    send_all(stream, &challenge.prove(token, Prover::Borrower).0, deadline)?;
    expect_proof(stream, &challenge, token, Prover::Donor, deadline)
}

fn send_verdict(stream: BorrowedFd<'_>, verdict: u8, nonce: Nonce, deadline: Instant) -> io::Result<()> {
    let answer = [&preface::encode(Role::Data)[..], &[verdict], &nonce.0].concat();
    send_all(stream, &answer, deadline)
}

/// Borrower: the donor's nonce, or why there will be no connection.
fn receive_verdict(stream: BorrowedFd<'_>, deadline: Instant) -> io::Result<Nonce> {
    let mut answer = [0; PREFACE_BYTES];
    receive_all(stream, &mut answer, deadline)?;
    let role = preface::decode(&answer).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
    let mut verdict = [0; VERDICT_BYTES];
    receive_all(stream, &mut verdict, deadline)?;
    match (role, verdict[0]) {
        (Role::Data, KNOWN) => Ok(Nonce(array_at(&verdict, 1))),
        (Role::Data, UNKNOWN) => Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            "the donor does not know this session (any more); connect to it anew",
        )),
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "the donor answered nonsense to a data connection")),
    }
}

fn expect_proof(
    stream: BorrowedFd<'_>,
    challenge: &Challenge,
    token: &SessionToken,
    prover: Prover,
    deadline: Instant,
) -> io::Result<()> {
    let mut proof = Proof([0; PROOF_BYTES]);
    receive_all(stream, &mut proof.0, deadline)?;
    if challenge.accepts(token, prover, &proof) {
        return Ok(());
    }
    let message = match prover {
        Prover::Borrower => "the peer does not know the token of the session that it names; it is turned away",
        Prover::Donor => "the donor does not know our session's token; something else answers at its address",
    };
    Err(io::Error::new(io::ErrorKind::PermissionDenied, message))
}

/// Settings of a data connection at both ends: pages leave at once, and a full queue of requests fits the kernel's
/// buffers.
pub(super) fn tune(stream: BorrowedFd<'_>) -> io::Result<()> {
    rustix::io::ioctl_fionbio(stream, false)?;
    // Not a TCP socket: nothing delays there.
    let _ = sockopt::set_tcp_nodelay(stream, true);
    bound_in_flight(stream, SOCKET_BUFFER_BYTES);
    // Best effort: without the privilege, the system's own limit holds, and the connection is only slower.
    if sockopt::set_socket_recv_buffer_size_force(stream, SOCKET_BUFFER_BYTES).is_err() {
        let _ = sockopt::set_socket_recv_buffer_size(stream, SOCKET_BUFFER_BYTES);
    }
    Ok(())
}

/// Lets the kernel keep about `bytes` that were sent and not acknowledged. Best effort, as for what is received.
pub(super) fn bound_in_flight(stream: BorrowedFd<'_>, bytes: usize) {
    if sockopt::set_socket_send_buffer_size_force(stream, bytes).is_err() {
        let _ = sockopt::set_socket_send_buffer_size(stream, bytes);
    }
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

    const TOKEN: SessionToken = SessionToken([7; 32]);

    fn deadline() -> Instant {
        Instant::now() + HANDSHAKE_DEADLINE
    }

    /// What the borrower's handshake says when the donor's end does `donor`.
    fn introduce_to(donor: impl FnOnce(UnixStream) + Send) -> io::Result<()> {
        let (borrower, peer) = UnixStream::pair().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| donor(peer));
            introduce(borrower, &TOKEN)
        })
    }

    fn read_greeting(stream: &mut UnixStream) -> Greeting {
        let mut preface = [0; PREFACE_BYTES];
        stream.read_exact(&mut preface).unwrap();
        assert_eq!(preface::decode(&preface), Ok(Role::Data));
        Greeting::receive(&*stream, deadline()).unwrap()
    }

    /// Stands between a borrower and a donor; what it saw travel each way in one handshake that succeeded.
    fn listen_in(token: &'static SessionToken) -> (Vec<u8>, Vec<u8>) {
        let ((borrower, mut near), (mut far, mut donor)) = (UnixStream::pair().unwrap(), UnixStream::pair().unwrap());
        let borrower = std::thread::spawn(move || introduce(borrower, token));
        let donor = std::thread::spawn(move || read_greeting(&mut donor).admit(&donor, token, deadline()));
        let (mut from_borrower, mut from_donor) = (Vec::new(), Vec::new());
        for (length, to_donor) in [(PREFACE_BYTES + 48, true), (PREFACE_BYTES + 33, false), (32, true), (32, false)] {
            let mut bytes = vec![0; length];
            let (from, to, seen) = match to_donor {
                true => (&mut near, &mut far, &mut from_borrower),
                false => (&mut far, &mut near, &mut from_donor),
            };
            from.read_exact(&mut bytes).unwrap();
            to.write_all(&bytes).unwrap();
            seen.extend(bytes);
        }
        borrower.join().unwrap().unwrap();
        donor.join().unwrap().unwrap();
        (from_borrower, from_donor)
    }

    #[test]
    fn both_ends_prove_the_token_and_it_never_travels() {
        let (from_borrower, from_donor) = listen_in(&TOKEN);
        let (again, _) = listen_in(&TOKEN);
        for seen in [&from_borrower, &from_donor] {
            // No eight bytes in a row of the token, wherever they might stand.
            assert!(!seen.windows(8).any(|window| window == &TOKEN.0[..8]));
        }
        assert_ne!(from_borrower, again, "every connection has its own nonces and proofs");
    }

    #[test]
    fn a_peer_that_repeats_what_it_heard_is_refused() {
        let (heard, _) = listen_in(&TOKEN);
        let (mut thief, mut stream) = UnixStream::pair().unwrap();
        thief.write_all(&heard).unwrap();
        let error = read_greeting(&mut stream).admit(&stream, &TOKEN, deadline()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        drop(stream);
        let mut answer = Vec::new();
        thief.read_to_end(&mut answer).unwrap();
        assert_eq!(answer.len(), PREFACE_BYTES + VERDICT_BYTES, "the donor proved nothing to it");
    }

    #[test]
    fn a_donor_that_cannot_prove_the_token_gets_no_request() {
        let (_, heard) = listen_in(&TOKEN);
        let error = introduce_to(|mut stream| {
            read_greeting(&mut stream);
            stream.write_all(&heard).unwrap();
            stream.read_exact(&mut [0; PROOF_BYTES]).unwrap();
        });
        let error = error.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        assert!(error.to_string().contains("something else answers"));
        // Nor one that sends the borrower's own proof back.
        let error = introduce_to(|mut stream| {
            let greeting = read_greeting(&mut stream);
            send_verdict(stream.as_fd(), KNOWN, greeting.nonce, deadline()).unwrap();
            let mut proof = [0; PROOF_BYTES];
            stream.read_exact(&mut proof).unwrap();
            stream.write_all(&proof).unwrap();
        });
        assert_eq!(error.unwrap_err().kind(), io::ErrorKind::PermissionDenied);
    }

    #[test]
    fn an_unknown_session_says_what_to_do() {
        let error = introduce_to(|mut stream| read_greeting(&mut stream).refuse(&stream, deadline()).unwrap());
        let error = error.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        assert!(error.to_string().contains("connect to it anew"));
    }

    #[test]
    fn another_version_and_nonsense_are_told_apart() {
        let older = introduce_to(|mut stream| {
            read_greeting(&mut stream);
            stream.write_all(b"SPLW\x01\x00\x02\x00\x01").unwrap();
        });
        assert!(older.unwrap_err().to_string().contains("wire version 1"));
        let nonsense = introduce_to(|mut stream| {
            read_greeting(&mut stream);
            stream.write_all(b"HTTP/1.1 400 Bad Request").unwrap();
        });
        assert!(nonsense.unwrap_err().to_string().contains("not Spillway"));
        let verdict = introduce_to(|mut stream| {
            let greeting = read_greeting(&mut stream);
            send_verdict(stream.as_fd(), 9, greeting.nonce, deadline()).unwrap();
        });
        assert_eq!(verdict.unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn a_peer_that_closes_or_stalls_ends_the_handshake() {
        let closed = introduce_to(|mut stream| {
            read_greeting(&mut stream);
        });
        assert_eq!(closed.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        let (mut half, stream) = UnixStream::pair().unwrap();
        half.write_all(&[0; GREETING_BYTES - 1]).unwrap();
        let stalled = Greeting::receive(&stream, Instant::now()).unwrap_err();
        assert_eq!(stalled.kind(), io::ErrorKind::TimedOut);
    }
}
