//! Accepting connections: one thread per listener, and one per connection, their number bounded.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Instant;

use spillway_fabric::control::Opening;
use spillway_fabric::tcp::{self, Greeting};
use spillway_fabric::wire::preface::Role;

use crate::connections::Place;
use crate::conversation::{self, SessionEnd};
use crate::donor_state::DonorState;
use crate::lender::Input;
use crate::limits::{ACCEPT_PAUSE, ROOM_PATIENCE};
use crate::listen::{Listener, Peer};
use crate::session::Session;

/// Accepts until the donor stops.
pub(crate) fn accept_connections(shared: &Arc<DonorState>, listener: &Listener) {
    while !shared.is_stopping() {
        match listener.accept() {
            Ok((stream, peer)) => start_connection(shared, stream, peer),
            Err(_) if shared.is_stopping() => return,
            Err(error) => {
                shared.complain(&format!("a connection cannot be accepted: {error}"));
                thread::sleep(ACCEPT_PAUSE);
            }
        }
    }
}

fn start_connection(shared: &Arc<DonorState>, stream: OwnedFd, peer: Peer) {
    if shared.admits(peer.source) {
        return admit_connection(shared, stream, peer, false);
    }
    // Without a key there is nothing to show.
    let turned_away = if shared.key.is_some() { shared.door.hold(stream, peer) } else { Some(peer) };
    turned_away.into_iter().for_each(|peer| shared.turn_away(&peer));
}

/// Lets connections in that wait at the door, until the donor stops.
pub(crate) fn watch_door(shared: &Arc<DonorState>) {
    shared.door.watch(
        shared.key.as_ref(),
        || shared.is_stopping(),
        |name| shared.find_session(name).is_some(),
        |peer| shared.turn_away(peer),
        |stream, peer| admit_connection(shared, stream, peer, true),
    );
}

fn admit_connection(shared: &Arc<DonorState>, stream: OwnedFd, peer: Peer, is_shown: bool) {
    // A thread for each that came, wherever it is in its life: strangers can come faster than threads leave.
    if !shared.connections.await_room(Instant::now() + ROOM_PATIENCE) {
        shared.connections_refused.fetch_add(1, Ordering::Relaxed);
        return shared.complain(&format!("{} is turned away: too many connections are on their way out", peer.name));
    }
    let for_thread = Arc::clone(shared);
    let serve = move || serve_connection(&for_thread, stream, &peer, is_shown);
    if let Err(error) = thread::Builder::new().name("donor-peer".to_owned()).spawn(serve) {
        shared.connections.give_up_room();
        shared.complain(&format!("a connection is refused, its thread cannot start: {error}"));
        shared.connections_refused.fetch_add(1, Ordering::Relaxed);
    }
}

/// Finds out what the peer wants, and serves it to the end.
fn serve_connection(shared: &DonorState, stream: OwnedFd, peer: &Peer, is_shown: bool) {
    let (peer, source) = (peer.name.as_str(), peer.source);
    let Some(place) = shared.connections.enter(&stream, source, is_shown) else {
        shared.connections_refused.fetch_add(1, Ordering::Relaxed);
        return;
    };
    serve_at(shared, stream, peer, &place);
    if let Some(session) = place.leave() {
        shared.feed(Input::Gone { session });
    }
}

fn serve_at(shared: &DonorState, stream: OwnedFd, peer: &str, place: &Place<'_>) {
    let opening = match Opening::receive(stream) {
        Ok(opening) => opening,
        Err(error) => return refuse(shared, peer, &error),
    };
    match opening.role() {
        Role::Control => match conversation::serve(shared, opening, peer, place) {
            Ok(()) => {}
            Err(end @ (SessionEnd::Goodbye(_) | SessionEnd::Stopping | SessionEnd::Replaced)) => {
                tracing::info!("{peer} left: {end}");
            }
            Err(end @ (SessionEnd::Handshake(_) | SessionEnd::Rejected(_))) => refuse(shared, peer, &end),
            // It has the cluster's key, so its end is no stranger's doing.
            Err(end) => tracing::warn!("{peer} is gone: {end}"),
        },
        Role::Data => serve_data(shared, opening, peer, place),
    }
}

fn refuse(shared: &DonorState, peer: &str, error: &dyn std::error::Error) {
    shared.complain(&format!("{peer} is turned away: {error}"));
    shared.connections_refused.fetch_add(1, Ordering::Relaxed);
}

/// Serves page data to the session whose token the peer proves to know.
fn serve_data(shared: &DonorState, opening: Opening, peer: &str, place: &Place<'_>) {
    let deadline = opening.deadline();
    let outcome = opening.into_stream().map_err(std::io::Error::other).and_then(|stream| {
        let Some(session) = admit_data(shared, &stream, deadline)? else { return Ok(()) };
        if !place.belongs_to(session.id) {
            shared.connections_refused.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        }
        shared.proved(place.source());
        // From here on the end of the session ends this connection; before, `ended` tells.
        let share = shared.shares.join(place.source().address());
        tcp::serve(stream, &*session, &session.traffic, share, &session.ended)
    });
    if let Err(error) = outcome {
        tracing::debug!("a data connection of {peer} ended: {error}");
    }
}

/// The session that a data connection belongs to; none if there is no such session. A process that names one and
/// cannot prove its token is an error.
fn admit_data(shared: &DonorState, stream: &OwnedFd, deadline: Instant) -> std::io::Result<Option<Arc<Session>>> {
    let greeting = Greeting::receive(stream, deadline)?;
    let session = shared.find_session(greeting.session);
    let admitted = match &session {
        Some(session) => greeting.admit(stream, &session.token, deadline),
        None => greeting.refuse(stream, deadline),
    };
    if admitted.is_err() || session.is_none() {
        shared.connections_refused.fetch_add(1, Ordering::Relaxed);
    }
    admitted.map(|()| session)
}
