//! What a donor says to one borrower: the control thread of a session, from hello to the return of its slabs.
//!
//! The thread reads what the borrower says and brings it to the [`Lender`](crate::lender::Lender), which decides what
//! follows. The session ends when the Lender says so, or its connection closes.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use spillway_fabric::control::host::random_bytes;
use spillway_fabric::control::message::{DrainOrder, Hello, Message};
use spillway_fabric::control::{self, ControlChannel, ControlError, ControlReceiver, ControlSender};
use spillway_fabric::key_source::KeySource;
use spillway_fabric::limits::{HANDSHAKE_DEADLINE, HEARTBEAT_INTERVAL};
use spillway_fabric::rdma::{LentRegions, RdmaUnavailable};
use spillway_fabric::tcp::Traffic;
use spillway_fabric::wire::SessionToken;

use crate::connections::Place;
use crate::donor_state::DonorState;
use crate::lender::{EndReason, Input, Make, Opening};
use crate::limits::HOLDERS_TOLD_MAX;
use crate::session::{Ending, Outbox, Session};
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
    #[error("its borrower opened another session in its place")]
    Replaced,
    #[error("the kernel gave no randomness: {0}")]
    Randomness(#[from] std::io::Error),
}

/// Serves a control connection until its session ends, or its operator was answered.
pub(crate) fn serve(
    shared: &DonorState,
    opening: control::Opening,
    peer: &str,
    place: &Place<'_>,
) -> Result<(), SessionEnd> {
    let key = shared.key.as_ref().map(KeySource::current);
    let channel = ControlChannel::accept_opened(opening, key.as_ref()).map_err(SessionEnd::Handshake)?;
    let passes_descriptors = channel.passes_descriptors();
    let local_address = channel.local_address();
    shared.proved(place.source());
    let (sender, mut receiver) = channel.split();
    let hello = match receiver.receive(HANDSHAKE_DEADLINE).map_err(SessionEnd::Handshake)?.0 {
        Message::Hello(hello) => hello,
        Message::Drain { order } => {
            // The operator asks again, over a connection of its own.
            sender.send(&drain(shared, order, peer), None)?;
            return Ok(());
        }
        _ => return Err(SessionEnd::Protocol),
    };
    let (token, resume) = (SessionToken(random_bytes()?), SessionToken(random_bytes()?));
    let rdma = hello.wants_rdma.then(|| open_rdma(local_address, &hello.volume));
    let session = shared.enter(|id| session(id, token, &hello, (peer, place.source().address()), &sender, rdma));
    if !place.belongs_to(session.id) {
        shared.leave(&session);
        let reason = "the donor has too many connections; try again later".to_owned();
        // It is turned away whether it hears why or not.
        let _ = sender.send(&Message::Rejected { reason: reason.clone() }, None);
        return Err(SessionEnd::Rejected(reason));
    }
    let machine = place.source().into();
    let opened = Input::Opened(Opening { session: session.id, hello, machine, passes_descriptors, resume });
    bring(shared, &session, opened);
    let lost = converse(shared, &session, &mut receiver);
    // Before the Lender hears that the session is gone: nothing of it reaches a slab then.
    session.close_rdma();
    shared.feed(Input::Ended { session: session.id });
    Err(end(shared, &session, lost))
}

/// Does what an operator orders, and says how far it is.
fn drain(shared: &DonorState, order: DrainOrder, peer: &str) -> Message {
    match order {
        DrainOrder::Look => {}
        DrainOrder::Drain => {
            tracing::info!("{peer} has this donor drained");
            drop(shared.feed(Input::Drain));
        }
        DrainOrder::Undo => {
            tracing::info!("{peer} has this donor lend again");
            drop(shared.feed(Input::Undrain));
        }
    }
    let shell = shared.lock();
    let lender = &shell.lender;
    let holder = |session: &Arc<Session>| {
        let slabs = lender.slabs_held(session.id);
        (slabs > 0).then(|| format!("{} of {}", session.volume, session.peer))
    };
    let holders: Vec<String> = shell.sessions.values().filter_map(holder).take(HOLDERS_TOLD_MAX).collect();
    Message::Draining {
        is_draining: lender.is_draining(),
        quota_bytes: lender.capacity().quota_bytes(),
        lent_bytes: lender.holdings().lent_bytes,
        holders: holders.join(", "),
    }
}

fn session(
    id: crate::lender::leases::SessionId,
    token: SessionToken,
    hello: &Hello,
    (peer, address): (&str, IpAddr),
    sender: &ControlSender,
    rdma: Option<Result<LentRegions, RdmaUnavailable>>,
) -> Session {
    Session {
        id,
        token,
        borrower: hello.borrower,
        volume: hello.volume.clone(),
        peer: peer.to_owned(),
        address,
        slab_size_bytes: hello.slab_size_bytes,
        shares_memory: hello.wants_shared_memory,
        slabs: SessionSlabs::default(),
        traffic: Traffic::default(),
        ended: AtomicBool::new(false),
        rdma,
        ending: OnceLock::new(),
        sender: sender.clone(),
        outbox: Outbox::default(),
    }
}

/// This machine's end of RDMA for a session over the address of its control channel.
fn open_rdma(address: Option<IpAddr>, volume: &str) -> Result<LentRegions, RdmaUnavailable> {
    let regions = address.ok_or(RdmaUnavailable::NoNetwork).and_then(LentRegions::open);
    match &regions {
        Ok(regions) => tracing::info!("volume {volume} may use the RDMA device {}", regions.device()),
        Err(error) => tracing::info!("volume {volume} wants RDMA, and there is none: {error}"),
    }
    regions
}

/// Brings what the borrower says to the Lender until the session ends; the error of its connection, if it was that.
fn converse(shared: &DonorState, session: &Arc<Session>, receiver: &mut ControlReceiver) -> Option<ControlError> {
    while session.ending.get().is_none() && !session.ended.load(Ordering::Acquire) {
        match receiver.receive(HEARTBEAT_INTERVAL) {
            Ok((message, _unexpected_descriptor)) => {
                if let Message::RdmaConnect { place, endpoint } = &message {
                    session.outbox.push(session.connect_rdma(*place, endpoint));
                }
                bring(shared, session, Input::Message { session: session.id, message });
            }
            Err(ControlError::TimedOut) => bring(shared, session, Input::Quiet { session: session.id }),
            Err(error) => return Some(error),
        }
    }
    None
}

/// Why the session is over; `lost` is the error of its connection, if that ended first.
fn end(shared: &DonorState, session: &Session, lost: Option<ControlError>) -> SessionEnd {
    match (session.ending.get(), lost) {
        (Some(Ending::Rejected(reason)), _) => SessionEnd::Rejected(reason.clone()),
        (Some(Ending::Ended(EndReason::Goodbye(reason))), _) => SessionEnd::Goodbye(reason.clone()),
        (Some(Ending::Ended(EndReason::Silence(silence))), _) => SessionEnd::Silence(*silence),
        (Some(Ending::Ended(EndReason::Protocol)), _) => SessionEnd::Protocol,
        (Some(Ending::Ended(EndReason::Replaced)), _) => SessionEnd::Replaced,
        _ if shared.is_stopping() => SessionEnd::Stopping,
        (_, lost) => SessionEnd::Control(lost.unwrap_or(ControlError::Closed)),
    }
}

/// Brings an input of this session to the Lender, sends what it answers, and makes a slab if the borrower waits for
/// one.
fn bring(shared: &DonorState, session: &Arc<Session>, input: Input) {
    for make in shared.feed(input) {
        make_and_stay_alive(shared, session, make);
    }
    session.flush_and_wait();
}

/// Making a large slab takes longer than a borrower waits for a sign of life, so signs are sent meanwhile.
fn make_and_stay_alive(shared: &DonorState, session: &Session, make: Make) {
    thread::scope(|scope| {
        let main = thread::current();
        let work = move || {
            shared.make(make, || {});
            main.unpark();
        };
        let named = thread::Builder::new().name("donor-maker".to_owned());
        let Ok(worker) = named.spawn_scoped(scope, work) else {
            // The machine has no memory for a thread; the borrower may give up, and no other one suffers.
            return shared.make(make, || {});
        };
        let mut next_sign = Instant::now() + HEARTBEAT_INTERVAL;
        while !worker.is_finished() {
            thread::park_timeout(Duration::from_millis(1));
            if Instant::now() >= next_sign {
                session.outbox.push(Message::Ping);
                session.flush();
                next_sign += HEARTBEAT_INTERVAL;
            }
        }
    });
}
