//! How two peers find out that they speak the same version and hold the same cluster key.
//!
//! | who | sends |
//! |---|---|
//! | borrower | preface (8 bytes), Noise message 1 (48 bytes) |
//! | donor | preface (8 bytes), Noise message 2 (48 bytes) |
//!
//! The pattern is `NNpsk0`: already the first message proves the key, so the donor reads it before it says anything
//! and hangs up on a peer that does not prove it. This layout is the same in every version; therefore a donor can
//! check the key of a borrower of another version, and then tells it its own version. The borrower's preface is the
//! handshake's prologue, so no process in between can change the version. Without a key (same host only) the
//! pre-shared key is all zeroes: the channel is then private but not authenticated.

use std::os::fd::OwnedFd;
use std::time::Instant;

use snow::{Builder, HandshakeState, StatelessTransportState};

use super::ControlError;
use super::socket::Socket;
use crate::key::{ClusterKey, KEY_BYTES};
use crate::limits::HANDSHAKE_DEADLINE;
use crate::wire::foreign::ForeignProtocol;
use crate::wire::foreign::PREFACE_BYTES;
use crate::wire::preface::{self, PrefaceError, Role};

const PATTERN: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";

/// Both messages of the pattern: an ephemeral key of 32 bytes and a tag of 16 on an empty payload.
const NOISE_MESSAGE_BYTES: usize = 48;

/// What a peer of either role sends first: preface and Noise message 1, or preface, session's name and nonce.
pub const FIRST_BYTES: usize = PREFACE_BYTES + NOISE_MESSAGE_BYTES;

/// The key of processes that have none.
const NO_KEY: [u8; KEY_BYTES] = [0; KEY_BYTES];

/// A connection whose preface was read: what an accepting side has to look at before it knows who should go on.
#[derive(Debug)]
pub struct Opening {
    socket: Socket,
    preface: [u8; PREFACE_BYTES],
    deadline: Instant,
}

impl Opening {
    /// Reads the preface of an accepted stream, within [`HANDSHAKE_DEADLINE`].
    pub fn receive(stream: impl Into<OwnedFd>) -> Result<Self, ControlError> {
        let socket = Socket::new(stream.into())?;
        let deadline = Instant::now() + HANDSHAKE_DEADLINE;
        let mut bytes = [0; PREFACE_BYTES];
        socket.receive_exact(&mut bytes, deadline)?;
        match preface::decode(&bytes) {
            Err(error @ (PrefaceError::NotSpillway(_) | PrefaceError::Role(_))) => Err(error.into()),
            Ok(_) | Err(PrefaceError::Version { .. }) => Ok(Self { socket, preface: bytes, deadline }),
        }
    }

    /// What the peer wants. One of another version counts as control: its version is told to it in the handshake.
    pub fn role(&self) -> Role {
        preface::decode(&self.preface).unwrap_or(Role::Control)
    }

    /// When the whole handshake must be done, of either kind.
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// The stream, blocking, right after the preface: for data connections.
    pub fn into_stream(self) -> Result<OwnedFd, ControlError> {
        self.socket.into_blocking()
    }

    /// The accepting side of the handshake.
    pub(super) fn respond(self, key: Option<&ClusterKey>) -> Result<(Socket, StatelessTransportState), ControlError> {
        let Self { socket, preface, deadline } = self;
        let mut message = [0; NOISE_MESSAGE_BYTES];
        socket.receive_exact(&mut message, deadline)?;
        let mut noise = read_first(key, &preface, &message)?;
        socket.send(&preface::encode(Role::Control), None, deadline)?;
        if preface::decode(&preface)? != Role::Control {
            return Err(ControlError::Malformed("a data connection began with a control handshake"));
        }
        write_message(&mut noise, &mut message)?;
        socket.send(&message, None, deadline)?;
        Ok((socket, into_transport(noise)?))
    }
}

/// Whether the first bytes of a control connection show the key. They may be a repetition of another peer's.
pub fn shows_key(first: &[u8; FIRST_BYTES], key: &ClusterKey) -> bool {
    let (preface, message) = first.split_at(PREFACE_BYTES);
    let Ok(message) = message.try_into() else { return false };
    read_first(Some(key), preface, message).is_ok()
}

/// The connecting side of the handshake.
pub(super) fn initiate(
    stream: OwnedFd,
    key: Option<&ClusterKey>,
    deadline: Instant,
) -> Result<(Socket, StatelessTransportState), ControlError> {
    let socket = Socket::new(stream)?;
    let preface = preface::encode(Role::Control);
    let mut noise = state(key.map_or(&NO_KEY, ClusterKey::bytes), &preface, true);
    let mut message = [0; NOISE_MESSAGE_BYTES];
    write_message(&mut noise, &mut message)?;
    socket.send(&[&preface[..], &message].concat(), None, deadline).map_err(closed_is_no_answer)?;
    preface::decode(&receive_preface(&socket, deadline)?)?;
    socket.receive_exact(&mut message, deadline).map_err(closed_is_no_answer)?;
    noise.read_message(&message, &mut []).map_err(|_| ControlError::WrongKey)?;
    Ok((socket, into_transport(noise)?))
}

/// The peer's first bytes. A peer of another protocol may say less than a preface has, and then close or wait.
fn receive_preface(socket: &Socket, deadline: Instant) -> Result<[u8; PREFACE_BYTES], ControlError> {
    let mut bytes = [0; PREFACE_BYTES];
    let mut filled = 0;
    while filled < PREFACE_BYTES {
        match socket.receive(&mut bytes[filled..], &mut None, deadline) {
            Ok(received) => filled += received,
            Err(error) if filled == 0 => return Err(closed_is_no_answer(error)),
            Err(ControlError::Closed | ControlError::TimedOut) if !preface::may_begin(&bytes[..filled]) => {
                return Err(PrefaceError::NotSpillway(ForeignProtocol::of(&bytes[..filled])).into());
            }
            Err(error) => return Err(closed_is_no_answer(error)),
        }
    }
    Ok(bytes)
}

fn closed_is_no_answer(error: ControlError) -> ControlError {
    if matches!(error, ControlError::Closed) { ControlError::NoAnswer } else { error }
}

/// The handshake after its first message, with that of the accepted keys which the peer has.
fn read_first(
    key: Option<&ClusterKey>,
    prologue: &[u8],
    message: &[u8; NOISE_MESSAGE_BYTES],
) -> Result<HandshakeState, ControlError> {
    let read = |bytes: &[u8; KEY_BYTES]| {
        let mut noise = state(bytes, prologue, false);
        noise.read_message(message, &mut []).is_ok().then_some(noise)
    };
    let noise = match key {
        Some(key) => key.all_bytes().find_map(read),
        None => read(&NO_KEY),
    };
    noise.ok_or(ControlError::WrongKey)
}

fn state(key: &[u8; KEY_BYTES], prologue: &[u8], initiator: bool) -> HandshakeState {
    let params = PATTERN.parse().expect("the pattern's name is correct");
    let builder =
        Builder::new(params).psk(0, key).and_then(|builder| builder.prologue(prologue)).expect("each is set once");
    let state = if initiator { builder.build_initiator() } else { builder.build_responder() };
    state.expect("the pattern needs a pre-shared key only")
}

fn write_message(noise: &mut HandshakeState, message: &mut [u8; NOISE_MESSAGE_BYTES]) -> Result<(), ControlError> {
    let length =
        noise.write_message(&[], message).map_err(|_| ControlError::Malformed("the handshake is out of step"))?;
    assert_eq!(length, NOISE_MESSAGE_BYTES, "the pattern fixes the length");
    Ok(())
}

fn into_transport(noise: HandshakeState) -> Result<StatelessTransportState, ControlError> {
    noise.into_stateless_transport_mode().map_err(|_| ControlError::Malformed("the handshake did not finish"))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;
    use std::thread;

    use super::*;
    use crate::wire::WIRE_VERSION;

    fn key(byte: u8) -> ClusterKey {
        ClusterKey::from_bytes([byte; KEY_BYTES])
    }

    fn soon() -> Instant {
        Instant::now() + HANDSHAKE_DEADLINE
    }

    type Outcome = Result<(), ControlError>;

    /// Both ends' outcomes with these keys.
    fn meet(ours: Option<&ClusterKey>, theirs: Option<ClusterKey>) -> (Outcome, Outcome) {
        let (one, other) = UnixStream::pair().unwrap();
        let donor = thread::spawn(move || Opening::receive(other)?.respond(theirs.as_ref()).map(drop));
        let borrower = initiate(one.into(), ours, soon()).map(drop);
        (borrower, donor.join().unwrap())
    }

    #[test]
    fn equal_keys_and_no_keys_meet() {
        for key in [Some(key(1)), None] {
            let (borrower, donor) = meet(key.clone().as_ref(), key);
            borrower.unwrap();
            donor.unwrap();
        }
    }

    #[test]
    fn unequal_keys_do_not_meet_and_the_borrower_learns_why() {
        for (ours, theirs) in [(Some(key(1)), Some(key(2))), (None, Some(key(2))), (Some(key(1)), None)] {
            let (borrower, donor) = meet(ours.as_ref(), theirs);
            assert!(borrower.unwrap_err().to_string().contains("key"));
            assert!(matches!(donor, Err(ControlError::WrongKey)));
        }
    }

    #[test]
    fn two_keys_are_accepted_while_a_cluster_moves_from_one_to_the_next() {
        let (old, new) = (key(1), key(2));
        let (before, after) = (old.clone().accepting(&new), new.clone().accepting(&old));
        for (ours, theirs) in
            [(&old, &before), (&before, &before), (&before, &after), (&after, &before), (&new, &after)]
        {
            let (borrower, donor) = meet(Some(ours), Some(theirs.clone()));
            borrower.unwrap();
            donor.unwrap();
        }
        let (borrower, donor) = meet(Some(&key(3)), Some(before));
        assert!(borrower.is_err() && matches!(donor, Err(ControlError::WrongKey)));
    }

    #[test]
    fn a_donor_says_nothing_to_a_peer_without_its_key() {
        let (mut one, other) = UnixStream::pair().unwrap();
        let donor = thread::spawn(move || Opening::receive(other)?.respond(Some(&key(1))).map(drop));
        one.write_all(&preface::encode(Role::Control)).unwrap();
        one.write_all(&[7; NOISE_MESSAGE_BYTES]).unwrap();
        let mut answer = Vec::new();
        one.read_to_end(&mut answer).unwrap();
        assert_eq!(answer, []);
        assert!(matches!(donor.join().unwrap(), Err(ControlError::WrongKey)));
    }

    #[test]
    fn a_borrower_of_another_version_that_proves_the_key_learns_our_version() {
        let (mut one, other) = UnixStream::pair().unwrap();
        let donor = thread::spawn(move || Opening::receive(other)?.respond(Some(&key(1))).map(drop));
        let mut newer = preface::encode(Role::Control);
        newer[4] += 1;
        let mut message = [0; NOISE_MESSAGE_BYTES];
        write_message(&mut state(key(1).bytes(), &newer, true), &mut message).unwrap();
        one.write_all(&[&newer[..], &message].concat()).unwrap();
        let mut answer = Vec::new();
        one.read_to_end(&mut answer).unwrap();
        assert_eq!(answer, preface::encode(Role::Control));
        let error = donor.join().unwrap().unwrap_err();
        let theirs = WIRE_VERSION + 1;
        assert!(
            matches!(error, ControlError::Preface(PrefaceError::Version { theirs: version, .. }) if version == theirs)
        );
    }

    #[test]
    fn a_donor_of_another_version_and_another_program_are_told_apart() {
        let mut older = preface::encode(Role::Control);
        older[4..6].copy_from_slice(&0u16.to_le_bytes());
        for (answer, expected) in [
            (&older[..], "wire version 0"),
            (b"HTTP/1.1 400 Bad", "speaks HTTP"),
            (b"\x15\x03\x01\x00\x02\x02\x46", "speaks TLS"),
        ] {
            let (one, mut other) = UnixStream::pair().unwrap();
            other.write_all(answer).unwrap();
            other.shutdown(std::net::Shutdown::Write).unwrap();
            let error = initiate(one.into(), None, soon()).unwrap_err();
            assert!(error.to_string().contains(expected), "{error}");
        }
    }

    #[test]
    fn the_first_bytes_show_the_key_or_do_not() {
        let preface = preface::encode(Role::Control);
        let mut message = [0; NOISE_MESSAGE_BYTES];
        write_message(&mut state(key(1).bytes(), &preface, true), &mut message).unwrap();
        let mut first = [0; FIRST_BYTES];
        first.copy_from_slice(&[&preface[..], &message].concat());
        assert!(shows_key(&first, &key(1)) && shows_key(&first, &key(3).accepting(&key(1))));
        assert!(!shows_key(&first, &key(2)));
        first[FIRST_BYTES - 1] ^= 1;
        assert!(!shows_key(&first, &key(1)));
    }

    #[test]
    fn garbage_and_unknown_roles_are_refused_by_the_donor() {
        let mut unknown_role = preface::encode(Role::Control);
        unknown_role[6] = 7;
        for bytes in [*b"GET / HT", unknown_role] {
            let (mut one, other) = UnixStream::pair().unwrap();
            one.write_all(&bytes).unwrap();
            assert!(matches!(Opening::receive(other), Err(ControlError::Preface(_))));
        }
    }

    #[test]
    fn a_data_connection_is_handed_on_right_after_its_preface() {
        let (mut one, other) = UnixStream::pair().unwrap();
        one.write_all(&preface::encode(Role::Data)).unwrap();
        one.write_all(b"rest").unwrap();
        let opening = Opening::receive(other).unwrap();
        assert_eq!(opening.role(), Role::Data);
        let mut rest = [0; 4];
        UnixStream::from(opening.into_stream().unwrap()).read_exact(&mut rest).unwrap();
        assert_eq!(&rest, b"rest");
    }
}
