//! One borrower's session, as all threads of a donor see it; [`conversation`](crate::conversation) is its control
//! thread.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use spillway_fabric::control::ControlSender;
use spillway_fabric::control::message::Message;
use spillway_fabric::limits::SLABS_PER_MESSAGE_MAX;
use spillway_fabric::tcp::Traffic;
use spillway_fabric::units::{BorrowerId, SlabHandle};
use spillway_fabric::wire::SessionToken;

use crate::leases::SessionId;
use crate::slab_memory::SessionSlabs;

/// One borrower.
pub(crate) struct Session {
    pub(crate) id: SessionId,
    pub(crate) token: SessionToken,
    pub(crate) borrower: BorrowerId,
    pub(crate) volume: String,
    pub(crate) peer: String,
    pub(crate) slab_size_bytes: u64,
    /// Whether the borrower maps slabs itself.
    pub(crate) shares_memory: bool,
    pub(crate) slabs: SessionSlabs,
    /// For how long it may say nothing; `None`: as long as its connection is open.
    pub(crate) patience: Option<Duration>,
    /// It has read nothing for longer than [`PATIENCE_MAX`].
    pub(crate) is_stopped: AtomicBool,
    /// For how long they are kept when the borrower goes without a goodbye.
    pub(crate) linger: Duration,
    /// What it shows to get them back.
    pub(crate) resume: SessionToken,
    /// What its data connections moved; stays zero if it maps slabs itself.
    pub(crate) traffic: Traffic,
    /// Its data connections stop when this is set.
    pub(crate) ended: AtomicBool,
    pub(crate) sender: ControlSender,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Session({} of {})", self.id.0, self.peer)
    }
}

impl Session {
    /// Asks for slabs back.
    pub(crate) fn recall(&self, slabs: &[SlabHandle], deadline_ms: u32) {
        self.tell_of(slabs, |slabs| Message::Recall { slabs, deadline_ms });
    }

    /// Asks how active slabs are.
    pub(crate) fn ask_activity(&self, request: u32, slabs: &[SlabHandle]) {
        self.tell_of(slabs, |slabs| Message::ActivityQuery { request, slabs });
    }

    /// Says something of slabs, to one that is not stopped.
    fn tell_of(&self, slabs: &[SlabHandle], message: impl Fn(Vec<SlabHandle>) -> Message) {
        if self.is_stopped.load(Ordering::Relaxed) {
            return;
        }
        for part in slabs.chunks(SLABS_PER_MESSAGE_MAX) {
            self.tell(&message(part.to_vec()));
        }
    }

    /// Says that the session ends.
    pub(crate) fn say_goodbye(&self, reason: &str) {
        self.tell(&Message::Goodbye { reason: reason.to_owned() });
    }

    /// Data connections stop, and the control thread leaves.
    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::Release);
        self.sender.close();
    }

    fn tell(&self, message: &Message) {
        if let Err(error) = self.sender.send(message, None) {
            // A failed send closes the channel, so the session's own thread ends it.
            tracing::debug!("{} of {}: {error}", self.volume, self.peer);
        }
    }
}
