//! One donor's thread: opens a session, answers the donor, and cleans up when the session ends.
//!
//! A session on this host gets shared memory over the donor's UNIX socket, also when the donor was named by its TCP
//! address. Any other, and every one if the user says so, gets one connection per I/O thread: over RDMA where both ends
//! have a device, else over TCP. When it ends, in this
//! order: the donor counts as disconnected (no new copy index is filled), I/O threads lose their queue pairs
//! (requests in flight end), and every copy index at the donor is emptied. Only then is the donor tried again: a
//! donor that comes back is a new one, with new slabs. Slabs that it kept for a process that died are taken over at
//! the beginning of the first session of the next one ([`reunion`]).
//!
//! A donor that is silent while its connection is open is given up after two seconds, unless it has the only copy of
//! some page: then giving up would lose the page for certain, and it is waited for much longer
//! ([`Patience`](spillway_fabric::patience::Patience)).

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use spillway_fabric::control::ControlError;
use spillway_fabric::control::message::Message;
use spillway_fabric::control::silence::Silence;
use spillway_fabric::limits::{HEARTBEAT_INTERVAL, SILENCE_DEADLINE, SOLE_COPY_PATIENCE};

use super::dialing::Resolver;
use super::donors::{DonorEntry, Session};
use super::link_error::LinkError;
use super::mapping::forget_donor;
use super::opening::Attempt;
use super::reunion;
use super::{ManagerState, donor_table};
use crate::engine::queue_pairs::QueuePairChange;
use crate::limits::{
    RECONNECT_PAUSE_MAX, RECONNECT_PAUSE_MIN, SILENCE_NOTICED, SOLE_COPY_LOOK_INTERVAL, SOLE_COPY_PATIENCE_WITH_DISK,
};
use crate::slab_map::slab_entry::DonorSlot;
use crate::state::records::DonorRecord;
use crate::steward::{Input, Link};

/// Keeps `donor` connected until the device stops, or until the donor is removed and has no slab any more.
pub fn run(shared: &ManagerState, donor: &DonorEntry) {
    let mut pause = RECONNECT_PAUSE_MIN;
    let mut resolver = Resolver::default();
    while !shared.is_stopping() {
        let ended = if donor.is_dismissed() { Err(LinkError::Removed) } else { session(shared, donor, &mut resolver) };
        match ended {
            Ok(()) => return,
            // Our own goodbye ended it, and the volume goes with the device.
            Err(_) if shared.is_stopping() => return,
            Err(error) => {
                let was_connected = donor.session().is_some();
                clean_up(shared, donor, &error);
                pause = if was_connected { RECONNECT_PAUSE_MIN } else { (pause * 2).min(RECONNECT_PAUSE_MAX) };
            }
        }
        if donor.is_dismissed() {
            return donor_table::dismissed(shared, donor);
        }
        let until = Instant::now() + pause;
        while Instant::now() < until && !shared.is_stopping() && !donor.is_dismissed() {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Makes the link thread of `donor` give its session up.
pub fn reset(donor: &DonorEntry, reason: &str) {
    if let Some(session) = donor.session() {
        tracing::warn!("the session with {} ends: {reason}", donor.address);
        session.sender.close();
    }
}

/// Ends the sessions with all of `donors` for good; they take their slabs back. At once, so that those that do not
/// read what they are sent cost one deadline together.
pub fn say_goodbye_to_all(donors: &[Arc<DonorEntry>]) {
    std::thread::scope(|scope| {
        for donor in donors {
            let thread = std::thread::Builder::new().name("goodbye".to_owned());
            if thread.spawn_scoped(scope, || say_goodbye(donor, STOPS)).is_err() {
                say_goodbye(donor, STOPS);
            }
        }
    });
}

const STOPS: &str = "the device stops";

fn say_goodbye(donor: &DonorEntry, reason: &str) {
    if let Some(session) = donor.session() {
        // A donor that does not hear it notices the closed socket.
        let _ = session
            .sender
            .clone()
            .with_patience(SILENCE_DEADLINE)
            .send(&Message::Goodbye { reason: reason.to_owned() }, None);
        session.sender.close();
    }
}

/// Whether `donor`, which said nothing for so long, is still waited for: soon not any more, unless pages would be
/// lost with it.
fn is_waited_for(shared: &ManagerState, donor: &DonorEntry, silence: Duration) -> bool {
    if silence < SILENCE_NOTICED {
        return true;
    }
    set_silent(shared, donor.slot, true);
    let is_sole = look_for_sole_copies(shared, donor);
    if is_sole && silence == SILENCE_DEADLINE {
        let most = donor.patience().silence().as_secs();
        tracing::warn!(
            "donor {} is silent; it has the only copy of some pages and is waited for up to {most} s",
            donor.address
        );
    }
    silence < donor.patience().silence()
}

fn set_silent(shared: &ManagerState, donor: DonorSlot, is_silent: bool) {
    if shared.volume.is_silent(donor) != is_silent {
        shared.volume.set_silent(donor, is_silent);
        shared.decide(Input::Silent { donor, is_silent });
    }
}

/// Looks whether pages would be lost with `donor`, and sets how long it is waited for.
fn look_for_sole_copies(shared: &ManagerState, donor: &DonorEntry) -> bool {
    let within_reach = |other: DonorSlot| shared.is_within_reach(other);
    // While it is heard pages come, and where they have no second copy no thread looks again before it is silent.
    let may_become_sole = !shared.volume.is_silent(donor.slot) && !shared.volume.keeps_several_copies();
    let is_sole = may_become_sole || shared.volume.depends_on(donor.slot, &within_reach);
    let longest = if shared.volume.redundancy.disk { SOLE_COPY_PATIENCE_WITH_DISK } else { SOLE_COPY_PATIENCE };
    donor.patience().wait_for_sole_copies(is_sole.then_some(longest));
    if shared.is_stopping() {
        // A thread that stops the device may have looked before this was set.
        donor.patience().wait_for_sole_copies(None);
    }
    is_sole
}

/// One session from its beginning to its end; `Ok` when the device stops.
fn session(shared: &ManagerState, donor: &DonorEntry, resolver: &mut Resolver) -> Result<(), LinkError> {
    let mut attempt = Attempt::begin(shared, donor);
    let mut opened = attempt.open(resolver)?;
    let reach = attempt.reach(&opened)?;
    shared.volume.set_silent(donor.slot, false);
    look_for_sole_copies(shared, donor);
    let held = reunion::take_held(shared, donor.slot, &opened.held, &reach);
    attempt.install_queue_pairs(&mut opened, &reach)?;
    let record = DonorRecord { donor: opened.welcome.donor, token: opened.welcome.resume };
    shared.resumption.records.set_donor(donor.slot, &record);
    let sender = opened.sender.with_patience(donor.patience().silence());
    let (number, identity) = (donor.number_session(), opened.welcome.donor);
    let session = Arc::new(Session { number, donor: identity, sender, reach });
    let transport = opened.transport.name();
    tracing::info!("donor {} at {} is connected over {transport}", session.donor, donor.address);
    shared.volume.begin_session(donor.slot);
    donor.connected(Arc::clone(&session), transport, opened.reason);
    let (free_bytes, site) = (opened.welcome.free_bytes, opened.welcome.site);
    let link = Link { session: number, identity, free_bytes, slabs_held: held.kept, site };
    shared.decide(Input::Up { donor: donor.slot, link });
    // Leased by a process that died before it put them to use.
    held.unused.into_iter().for_each(|slab| session.release(slab));
    for message in opened.early {
        handle(shared, donor, &session, message, None)?;
    }
    let mut receiver = opened.receiver;
    let mut silence = Silence::default();
    let mut look_again: Option<Instant> = None;
    while !shared.is_stopping() {
        if donor.is_dismissed() {
            say_goodbye(donor, "the donor was removed from this device");
            return Err(LinkError::Removed);
        }
        // Its data connections may still be silent when the control channel speaks again, and have counted for as long.
        if look_again.take_if(|at| Instant::now() >= *at).is_some() && look_for_sole_copies(shared, donor) {
            look_again = Some(Instant::now() + SOLE_COPY_LOOK_INTERVAL);
        }
        session.reach.ask_for_repairs(&session.sender);
        match receiver.receive(HEARTBEAT_INTERVAL) {
            Ok((message, descriptor)) => {
                silence.is_broken();
                if shared.volume.is_silent(donor.slot) {
                    set_silent(shared, donor.slot, false);
                    look_again = Some(Instant::now() + SOLE_COPY_LOOK_INTERVAL);
                }
                handle(shared, donor, &session, message, descriptor)?;
            }
            Err(ControlError::TimedOut) => {
                silence.lasts();
                if !is_waited_for(shared, donor, silence.observed()) {
                    return Err(ControlError::TimedOut.into());
                }
                session.sender.send(&Message::Ping, None)?;
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn handle(
    shared: &ManagerState,
    donor: &DonorEntry,
    session: &Session,
    message: Message,
    descriptor: Option<OwnedFd>,
) -> Result<(), LinkError> {
    match message {
        Message::Leased { request, slab, key } => {
            if let Err(error) = session.reach.attach(slab, descriptor, key) {
                donor.refused(&error.to_string());
                tracing::warn!("slab {slab} of {}: {error}", donor.address);
                session.release(slab);
                shared.decide(Input::Unusable { donor: donor.slot, session: session.number, request });
                return Ok(());
            }
            tell(shared, donor, session, message);
        }
        Message::Refused { ref reason, .. } => {
            donor.refused(reason);
            tell(shared, donor, session, message);
        }
        Message::Free { .. } | Message::Recall { .. } | Message::ActivityQuery { .. } => {
            tell(shared, donor, session, message);
        }
        Message::RdmaConnected { place, endpoint } => session.reach.repaired(place, Ok(&endpoint)),
        Message::RdmaRefused { place, reason } => session.reach.repaired(place, Err(&reason)),
        Message::Ping => session.sender.send(&Message::Pong, None)?,
        Message::Pong | Message::Released { .. } => {}
        Message::Goodbye { reason } => return Err(LinkError::Goodbye(reason)),
        other => return Err(LinkError::Protocol(format!("{other:?}"))),
    }
    Ok(())
}

fn tell(shared: &ManagerState, donor: &DonorEntry, session: &Session, message: Message) {
    shared.decide(Input::Message { donor: donor.slot, session: session.number, message });
}

fn clean_up(shared: &ManagerState, donor: &DonorEntry, error: &LinkError) {
    let session = donor.session();
    donor.disconnected(error.to_string(), error.is_final());
    let Some(session) = session else {
        tracing::debug!("donor {}: {error}", donor.address);
        if Instant::now() >= shared.reunion_until {
            // It does not keep what a process before this one had there.
            forget_donor(shared, donor.slot);
        }
        return;
    };
    session.sender.close();
    shared.decide(Input::Down { donor: donor.slot });
    for holder in &shared.queue_pairs {
        holder.mailbox.leave(QueuePairChange { donor: donor.slot, queue_pair: None });
    }
    let pages_lost = forget_donor(shared, donor.slot);
    session.reach.close();
    if matches!(error, LinkError::Removed) && pages_lost == 0 {
        tracing::info!("the link to donor {} is closed", donor.address);
    } else if pages_lost > 0 {
        tracing::error!("donor {} is lost ({error}), and {pages_lost} pages with it", donor.address);
    } else {
        tracing::warn!("donor {} is lost ({error}); every page has another copy", donor.address);
    }
    shared.volume.manager_event.signal();
}
