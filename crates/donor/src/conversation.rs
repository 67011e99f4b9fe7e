//! What a donor says to one borrower: the control thread of a session, from hello to the return of its slabs.
//!
//! The session ends when the borrower says goodbye, its connection closes, it is silent for longer than
//! [`SILENCE_DEADLINE`] and than it asked to be waited for (see [`patience`]), or it breaks the protocol. Its slabs
//! are back at once, unless the borrower asked for them to linger and then went away without a goodbye, as a process
//! does that is killed: they are kept for so long, and its next process gets them by showing the secret of its last
//! welcome.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use spillway_fabric::control::host::random_bytes;
use spillway_fabric::control::message::{Hello, Message, Welcome};
use spillway_fabric::control::silence::Silence;
use spillway_fabric::control::{ControlChannel, ControlError, ControlReceiver, ControlSender, Opening};
use spillway_fabric::limits::{HANDSHAKE_DEADLINE, HEARTBEAT_INTERVAL, SILENCE_DEADLINE, SOLE_COPY_PATIENCE};
use spillway_fabric::tcp::Traffic;
use spillway_fabric::units::SlabHandle;
use spillway_fabric::wire::{SessionToken, WIRE_VERSION};
use spillway_sys::memfd::Memfd;

use crate::config::is_slab_size;
use crate::connections::Place;
use crate::donor_state::{DonorState, Refusal};
use crate::limits::{LINGER_MAX, PATIENCE_MAX};
use crate::session::Session;
use crate::slab_memory::SessionSlabs;

/// Why a session ended, or never began.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SessionEnd {
    #[error("it said goodbye: {0}")]
    Goodbye(String),
    #[error("no session began: {0}")]
    Handshake(ControlError),
    #[error("{0}")]
    Control(#[from] ControlError),
    #[error("it was silent for {} seconds", .0.as_secs_f32())]
    Silence(Duration),
    #[error("it was rejected: {0}")]
    Rejected(String),
    #[error("it spoke out of turn")]
    Protocol,
    #[error("the donor stops")]
    Stopping,
    #[error("the kernel gave no randomness: {0}")]
    Randomness(#[from] std::io::Error),
}

impl SessionEnd {
    /// Whether the borrower may have died, and come back.
    fn is_sudden(&self) -> bool {
        // A session that another one of the same borrower resumes is told to stop.
        matches!(self, Self::Control(_) | Self::Silence(_) | Self::Stopping)
    }
}

/// Serves a control connection until its session ends.
pub(crate) fn serve(shared: &DonorState, opening: Opening, peer: &str, place: &Place<'_>) -> Result<(), SessionEnd> {
    let channel = ControlChannel::accept_opened(opening, shared.key.as_ref()).map_err(SessionEnd::Handshake)?;
    let passes_descriptors = channel.passes_descriptors();
    let (sender, mut receiver) = channel.split();
    let (Message::Hello(hello), _) = receiver.receive(HANDSHAKE_DEADLINE).map_err(SessionEnd::Handshake)? else {
        return Err(SessionEnd::Protocol);
    };
    let session = match admit(shared, &hello, passes_descriptors, peer, &sender)? {
        Ok(session) => session,
        Err(reason) => {
            sender.send(&Message::Rejected { reason: reason.clone() }, None)?;
            return Err(SessionEnd::Rejected(reason));
        }
    };
    if !place.belongs_to(session.id) {
        let reason = "the donor has too many connections; try again later".to_owned();
        // It is turned away whether it hears why or not.
        let _ = sender.send(&Message::Rejected { reason: reason.clone() }, None);
        shared.close_session(&session, true);
        return Err(SessionEnd::Rejected(reason));
    }
    tracing::info!("volume {} of {peer} is connected, borrower {}", session.volume, session.borrower);
    let outcome = converse(shared, &session, &mut receiver);
    shared.close_session(&session, outcome.as_ref().is_err_and(SessionEnd::is_sudden));
    outcome
}

/// Opens the session that `hello` asks for, or says why not.
fn admit(
    shared: &DonorState,
    hello: &Hello,
    passes_descriptors: bool,
    peer: &str,
    sender: &ControlSender,
) -> Result<Result<std::sync::Arc<Session>, String>, SessionEnd> {
    if hello.version != WIRE_VERSION {
        return Ok(Err(format!("the donor speaks wire version {WIRE_VERSION}, not {}", hello.version)));
    }
    if !is_slab_size(hello.slab_size_bytes) {
        return Ok(Err(format!("slabs of {} bytes do not exist", hello.slab_size_bytes)));
    }
    if hello.wants_shared_memory && !passes_descriptors {
        return Ok(Err("shared memory needs a connection to the donor's UNIX socket".to_owned()));
    }
    let token = SessionToken(random_bytes()?);
    let old = hello.resume.as_ref().and_then(|resume| shared.find_resumable(hello.borrower, resume));
    // The same secret for all sessions in a row: a borrower that dies before it wrote a new one down has the old one.
    let resume = match (old, hello.resume) {
        (Some(_), Some(resume)) => resume,
        _ => SessionToken(random_bytes()?),
    };
    let make = |id| Session {
        id,
        token,
        resume,
        patience: patience(hello),
        is_stopped: AtomicBool::new(false),
        linger: Duration::from_secs(hello.linger_seconds.into()).min(LINGER_MAX),
        borrower: hello.borrower,
        volume: hello.volume.clone(),
        peer: peer.to_owned(),
        slab_size_bytes: hello.slab_size_bytes,
        shares_memory: hello.wants_shared_memory,
        slabs: SessionSlabs::default(),
        traffic: Traffic::default(),
        ended: AtomicBool::new(false),
        sender: sender.clone(),
    };
    if let Some(session) = old.and_then(|id| shared.resume_session(id, make)) {
        tracing::info!("volume {} of {peer} is back", session.volume);
        return Ok(Ok(session));
    }
    Ok(shared.open_session(make))
}

/// For how long a borrower is waited for that says nothing: as it asks, up to [`PATIENCE_MAX`]. One that maps slabs
/// itself runs under the same kernel, which closes its connection when it ends; as long as it is open the borrower is
/// there, stopped perhaps (Ctrl-Z), and if it said that pages have no other copy it is waited for until it goes on.
/// Nothing can be asked back from it meanwhile.
fn patience(hello: &Hello) -> Option<Duration> {
    let asked = Duration::from_secs(hello.patience_seconds.into());
    let is_here = hello.wants_shared_memory && asked >= SOLE_COPY_PATIENCE;
    (!is_here).then(|| asked.clamp(SILENCE_DEADLINE, PATIENCE_MAX))
}

/// Answers the borrower until the session ends.
fn converse(shared: &DonorState, session: &Session, receiver: &mut ControlReceiver) -> Result<(), SessionEnd> {
    greet(shared, session)?;
    let mut silence = Silence::default();
    while !session.ended.load(Ordering::Acquire) {
        match receiver.receive(HEARTBEAT_INTERVAL) {
            Ok((message, _unexpected_descriptor)) => {
                silence.is_broken();
                session.is_stopped.store(false, Ordering::Relaxed);
                answer(shared, session, message)?;
            }
            Err(ControlError::TimedOut) => {
                silence.lasts();
                if session.patience.is_some_and(|patience| silence.observed() >= patience) {
                    return Err(SessionEnd::Silence(silence.observed()));
                }
                // A borrower that reads nothing for so long finds enough when it goes on, and more would fill its
                // socket.
                let is_stopped = silence.observed() >= PATIENCE_MAX;
                session.is_stopped.store(is_stopped, Ordering::Relaxed);
                if !is_stopped {
                    session.sender.send(&Message::Ping, None)?;
                }
            }
            Err(error) => return Err(error.into()),
        }
    }
    Err(SessionEnd::Stopping)
}

/// Welcomes the borrower, and hands it what it holds already.
fn greet(shared: &DonorState, session: &Session) -> Result<(), SessionEnd> {
    let held = shared.lock().leases.handles(session.id);
    session.sender.send(&welcome(shared, session, held.len()), None)?;
    for slab in held {
        let file = if session.shares_memory { session.slabs.file(slab).transpose()? } else { None };
        session.sender.send(&Message::Held { slab }, file.as_ref().map(AsFd::as_fd))?;
    }
    Ok(())
}

fn welcome(shared: &DonorState, session: &Session, held: usize) -> Message {
    let unix_path = shared.unix_path.as_ref().map(|path| path.to_string_lossy().into_owned()).unwrap_or_default();
    Message::Welcome(Welcome {
        version: WIRE_VERSION,
        donor: shared.id,
        token: session.token,
        free_bytes: shared.lock().free_to_lend_bytes(),
        host: shared.host,
        unix_path,
        data_port: 0,
        resume: session.resume,
        held: held as u32,
    })
}

fn answer(shared: &DonorState, session: &Session, message: Message) -> Result<(), SessionEnd> {
    match message {
        Message::Query { request } => {
            let state = shared.lock();
            let slabs_held = state.leases.slabs_held(session.id) as u32;
            let free_bytes = state.free_to_lend_bytes();
            drop(state);
            session.sender.send(&Message::Free { request, free_bytes, slabs_held }, None)?;
        }
        Message::Lease { request } => lend(shared, session, request)?,
        Message::Release { slab } => {
            if shared.take_back(session, slab).is_err() {
                return Err(SessionEnd::Protocol);
            }
            session.sender.send(&Message::Released { slab }, None)?;
        }
        Message::Activity { request, values } => {
            if let Some(eviction) = &mut shared.lock().eviction {
                eviction.answer(request, session.id, &values);
            }
            shared.notify();
        }
        Message::Ping => session.sender.send(&Message::Pong, None)?,
        Message::Pong => {}
        Message::Goodbye { reason } => return Err(SessionEnd::Goodbye(reason)),
        _ => return Err(SessionEnd::Protocol),
    }
    Ok(())
}

/// A lent slab and its memory, or why there is none.
type Lending = Result<(SlabHandle, Option<Memfd>), Refusal>;

/// Making a large slab takes longer than a borrower waits for a sign of life, so signs are sent meanwhile. One that is
/// prepared is lent at once: a machine that is short of memory has none for a thread.
fn lend_and_stay_alive(shared: &DonorState, session: &Session) -> Result<Lending, SessionEnd> {
    if shared.lock().prepared.has(session.slab_size_bytes) {
        return Ok(shared.lend(session));
    }
    std::thread::scope(|scope| {
        let main = std::thread::current();
        let worker = scope.spawn(move || {
            let lending = shared.lend(session);
            main.unpark();
            lending
        });
        let mut next_sign = Instant::now() + HEARTBEAT_INTERVAL;
        while !worker.is_finished() {
            std::thread::park_timeout(Duration::from_millis(1));
            if Instant::now() >= next_sign {
                session.sender.send(&Message::Ping, None)?;
                next_sign += HEARTBEAT_INTERVAL;
            }
        }
        Ok(worker.join().expect("lending does not panic"))
    })
}

fn lend(shared: &DonorState, session: &Session, request: u32) -> Result<(), SessionEnd> {
    match lend_and_stay_alive(shared, session)? {
        Ok((slab, file)) => {
            let passed = file.as_ref().map(AsFd::as_fd);
            session.sender.send(&Message::Leased { request, slab }, passed)?;
        }
        Err(Refusal { full, reason }) => {
            session.sender.send(&Message::Refused { request, full, reason }, None)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use spillway_fabric::units::BorrowerId;

    use super::*;

    fn hello(wants_shared_memory: bool, patience: Duration) -> Hello {
        Hello {
            version: WIRE_VERSION,
            borrower: BorrowerId(1),
            volume: "test".to_owned(),
            slab_size_bytes: 1 << 20,
            wants_shared_memory,
            linger_seconds: 0,
            patience_seconds: patience.as_secs() as u16,
            resume: None,
        }
    }

    #[test]
    fn a_borrower_of_this_machine_without_other_copies_may_be_stopped_for_as_long_as_it_likes() {
        assert_eq!(patience(&hello(true, SOLE_COPY_PATIENCE)), None);
        assert_eq!(patience(&hello(true, SOLE_COPY_PATIENCE / 2)), Some(SOLE_COPY_PATIENCE / 2));
        assert_eq!(patience(&hello(true, Duration::ZERO)), Some(SILENCE_DEADLINE));
    }

    #[test]
    fn one_of_another_machine_is_waited_for_as_it_asks_within_bounds() {
        assert_eq!(patience(&hello(false, Duration::ZERO)), Some(SILENCE_DEADLINE));
        assert_eq!(patience(&hello(false, SOLE_COPY_PATIENCE)), Some(SOLE_COPY_PATIENCE));
        assert_eq!(patience(&hello(false, PATIENCE_MAX * 2)), Some(PATIENCE_MAX));
    }
}
