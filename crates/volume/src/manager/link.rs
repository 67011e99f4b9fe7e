//! One donor's thread: opens a session, answers the donor, and cleans up when the session ends.
//!
//! A session on this host gets shared memory over the donor's UNIX socket, also when the donor was named by its TCP
//! address. Every other session gets one connection per I/O thread: over RDMA where both ends have a device, else over
//! TCP. A user can ask for connections on this host too.
//!
//! The end of a session has three steps, in this order: the donor counts as disconnected (no new copy index is filled),
//! I/O threads lose their queue pairs (requests in flight end), and every copy index at the donor is emptied. Only then
//! does the thread connect again. A donor that comes back is a new donor with new slabs. Slabs that a donor kept for a
//! serving process that died are taken over in the first session of the next serving process ([`reunion`]).
//!
//! The [`Peer`] decides when to connect, how much silence is allowed, and when to try again. This thread tells the
//! [`Peer`] what the socket, the clock and other threads say, and carries the decisions out.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use spillway_fabric::control::message::Message;
use spillway_fabric::control::{ControlError, ControlReceiver};
use spillway_fabric::limits::{HEARTBEAT_INTERVAL, SILENCE_DEADLINE, SOLE_COPY_PATIENCE};

use super::dialing::Resolver;
use super::donors::{DonorEntry, Session};
use super::link_error::LinkError;
use super::mapping::forget_donor;
use super::opening::Attempt;
use super::reunion;
use super::{ManagerState, donor_table};
use crate::engine::queue_pairs::QueuePairChange;
use crate::limits::{LINK_IDLE_PAUSE, SOLE_COPY_PATIENCE_WITH_DISK};
use crate::slab_map::slab_entry::DonorSlot;
use crate::state::records::DonorRecord;
use crate::steward::peer::{GiveUp, Input, Output, Peer, PeerConfig};
use crate::steward::{Input as StewardInput, Link};

/// Keeps `donor` connected until the device stops, or until the donor is removed and has no slab.
pub fn run(shared: &ManagerState, donor: &DonorEntry) {
    LinkThread::new(shared, donor).run();
}

/// The [`Peer`] with its sockets; see the module text.
struct LinkThread<'a> {
    shared: &'a ManagerState,
    donor: &'a DonorEntry,
    peer: Peer,
    resolver: Resolver,
    orders: Orders,
}

/// Decisions of the Peer that the thread has not carried out yet.
#[derive(Debug, Default)]
struct Orders {
    connect: bool,
    ping: bool,
    give_up: Option<GiveUp>,
    is_over: bool,
}

impl<'a> LinkThread<'a> {
    fn new(shared: &'a ManagerState, donor: &'a DonorEntry) -> Self {
        let sole_copy_patience =
            if shared.volume.redundancy.disk { SOLE_COPY_PATIENCE_WITH_DISK } else { SOLE_COPY_PATIENCE };
        let keeps_several_copies = shared.volume.keeps_several_copies();
        let peer = Peer::new(PeerConfig { sole_copy_patience, keeps_several_copies }, Instant::now());
        Self { shared, donor, peer, resolver: Resolver::default(), orders: Orders::default() }
    }

    fn run(&mut self) {
        loop {
            self.watch();
            if self.orders.is_over {
                break;
            }
            if !std::mem::take(&mut self.orders.connect) {
                std::thread::sleep(LINK_IDLE_PAUSE);
                continue;
            }
            let ended = self.session();
            if self.shared.is_stopping() {
                // The goodbye of this side ended the session, and the volume ends with the device.
                return;
            }
            if let Err(error) = ended {
                clean_up(self.shared, self.donor, &error);
            }
            self.orders = Orders::default();
            self.tell(Input::Ended);
        }
        if self.donor.is_dismissed() && !self.shared.is_stopping() {
            clean_up(self.shared, self.donor, &LinkError::Removed);
            donor_table::dismissed(self.shared, self.donor);
        }
    }

    /// Tells the Peer of the time and of changes by other threads.
    fn watch(&mut self) {
        if self.shared.is_stopping() {
            self.tell(Input::Stopping);
        } else if self.donor.is_dismissed() {
            self.tell(Input::Dismissed);
        }
        if self.peer.wake_at().is_some_and(|at| at <= Instant::now()) {
            self.tell(Input::Tick);
        }
        self.tell(Input::Stalled(self.donor.patience().is_stalled()));
    }

    fn tell(&mut self, input: Input) {
        let mut inputs = Some(input);
        while let Some(input) = inputs.take() {
            for output in self.peer.on(Instant::now(), input) {
                match output {
                    Output::LookForSoleCopies => inputs = Some(Input::Found { is_sole: self.has_sole_copies() }),
                    Output::Connect => self.orders.connect = true,
                    Output::Ping => self.orders.ping = true,
                    Output::GiveUp(why) => self.orders.give_up = Some(why),
                    Output::Over => self.orders.is_over = true,
                    Output::Patience(longest) => self.set_patience(longest),
                    Output::Silent(is_silent) => set_silent(self.shared, self.donor.slot, is_silent),
                    Output::WaitedFor(longest) => tracing::warn!(
                        "donor {} is silent; it has the only copy of some pages and is waited for up to {} s",
                        self.donor.address,
                        longest.as_secs()
                    ),
                    // The thread reads the Peer's deadline in every turn.
                    Output::WakeAt(_) => {}
                }
            }
        }
    }

    fn has_sole_copies(&self) -> bool {
        let shared = self.shared;
        shared.volume.depends_on(self.donor.slot, &|other: DonorSlot| shared.is_within_reach(other))
    }

    fn set_patience(&self, longest: Option<Duration>) {
        self.donor.patience().wait_for_sole_copies(longest);
        if self.shared.is_stopping() {
            // A thread that stops the device may have read the flag before this store.
            self.donor.patience().wait_for_sole_copies(None);
        }
    }

    /// Runs one session from beginning to end; `Ok` when the device stops.
    fn session(&mut self) -> Result<(), LinkError> {
        let (session, mut receiver, early) = self.open()?;
        for message in early {
            handle(self.shared, self.donor, &session, message, None)?;
        }
        loop {
            self.watch();
            match self.orders.give_up {
                Some(GiveUp::Silence) => return Err(ControlError::TimedOut.into()),
                Some(GiveUp::Dismissed) => {
                    say_goodbye(self.donor, "the donor was removed from this device", SILENCE_DEADLINE);
                    return Err(LinkError::Removed);
                }
                None if self.orders.is_over => return Ok(()),
                None => {}
            }
            if std::mem::take(&mut self.orders.ping) {
                session.sender.send(&Message::Ping, None)?;
            }
            session.reach.ask_for_repairs(&session.sender);
            match receiver.receive(HEARTBEAT_INTERVAL) {
                Ok((message, descriptor)) => {
                    self.tell(Input::Heard);
                    handle(self.shared, self.donor, &session, message, descriptor)?;
                }
                Err(ControlError::TimedOut) => self.tell(Input::Quiet),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Opens a session. Also returns what the donor has sent already.
    fn open(&mut self) -> Result<(Arc<Session>, ControlReceiver, Vec<Message>), LinkError> {
        let (shared, donor) = (self.shared, self.donor);
        let mut attempt = Attempt::begin(shared, donor);
        let mut opened = attempt.open(&mut self.resolver)?;
        let reach = attempt.reach(&opened)?;
        shared.volume.set_silent(donor.slot, false);
        self.tell(Input::Welcomed);
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
        shared.decide(StewardInput::Up { donor: donor.slot, link });
        self.tell(Input::Connected);
        // Slabs that were leased by a serving process that died before their first use.
        held.unused.into_iter().for_each(|slab| session.release(slab));
        Ok((session, opened.receiver, opened.early))
    }
}

/// Makes the link thread of `donor` end its session.
pub fn reset(donor: &DonorEntry, reason: &str) {
    if let Some(session) = donor.session() {
        tracing::warn!("the session with {} ends: {reason}", donor.address);
        session.sender.close();
    }
}

/// Ends the sessions with all of `donors` for good; the donors take their slabs back. Donors that do not read cost one
/// deadline together. No thread is started for it: a process at its limit of memory could not.
pub fn say_goodbye_to_all(donors: &[Arc<DonorEntry>]) {
    let end = Instant::now() + SILENCE_DEADLINE;
    for donor in donors {
        say_goodbye(donor, STOPS, end.saturating_duration_since(Instant::now()));
    }
}

const STOPS: &str = "the device stops";

fn say_goodbye(donor: &DonorEntry, reason: &str, patience: Duration) {
    if let Some(session) = donor.session() {
        session.sender.say_goodbye(reason, patience);
        session.sender.close();
    }
}

fn set_silent(shared: &ManagerState, donor: DonorSlot, is_silent: bool) {
    if shared.volume.is_silent(donor) != is_silent {
        shared.volume.set_silent(donor, is_silent);
        shared.decide(StewardInput::Silent { donor, is_silent });
    }
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
                shared.decide(StewardInput::Unusable { donor: donor.slot, session: session.number, request });
                return Ok(());
            }
            tell(shared, donor, session, message);
        }
        Message::Refused { ref reason, .. } => {
            donor.refused(reason);
            tell(shared, donor, session, message);
        }
        Message::Free { .. }
        | Message::Offered { .. }
        | Message::Recall { .. }
        | Message::RecallWithdrawn { .. }
        | Message::ActivityQuery { .. } => tell(shared, donor, session, message),
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
    shared.decide(StewardInput::Message { donor: donor.slot, session: session.number, message });
}

fn clean_up(shared: &ManagerState, donor: &DonorEntry, error: &LinkError) {
    let session = donor.session();
    donor.disconnected(error.to_string(), error.is_final());
    let Some(session) = session else {
        tracing::debug!("donor {}: {error}", donor.address);
        if Instant::now() >= shared.reunion_until {
            // The donor does not keep slabs of an earlier serving process.
            forget_donor(shared, donor.slot);
        }
        return;
    };
    session.sender.close();
    shared.decide(StewardInput::Down { donor: donor.slot });
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
