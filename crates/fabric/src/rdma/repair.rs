//! A queue pair that broke is connected anew over the living control channel.
//!
//! A link that was down for a moment ends a queue pair, where TCP goes on. The I/O thread keeps the requests that were
//! in flight, and asks for another connection. The thread of the control channel makes it: the donor ends the old one
//! before it answers, so that nothing of it comes late. Then the I/O thread posts its requests again.
//!
//! One [`Repair`] for each queue pair; the I/O thread never waits for its lock.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, PoisonError};

use rustix::event::epoll;
use spillway_sys::verbs::Connection;

use super::port::{RdmaPort, Unconnected};
use crate::endpoint::Endpoint;

/// Which step comes next, and whose it is.
mod step {
    /// None: it works.
    pub(super) const NONE: u8 = 0;
    /// The control thread's: ask the donor.
    pub(super) const WANTED: u8 = 1;
    /// The donor's.
    pub(super) const ASKED: u8 = 2;
    /// The I/O thread's: use what was made.
    pub(super) const MADE: u8 = 3;
    /// It cannot be done.
    pub(super) const FAILED: u8 = 4;
}

/// See the module text.
#[derive(Debug)]
pub struct Repair {
    port: RdmaPort,
    /// Wakes the I/O thread; also watches the TCP connection beside.
    events: OwnedFd,
    step: AtomicU8,
    /// Not connected yet, when it was asked for.
    asked: Mutex<Option<Unconnected>>,
    /// The new one; after the I/O thread took it, the old one, which a thread of the manager drops.
    exchanged: Mutex<Option<Connection>>,
}

impl Repair {
    /// For queue pairs of `port`.
    pub(super) fn new(port: RdmaPort) -> io::Result<Self> {
        let events = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let (asked, exchanged) = (Mutex::default(), Mutex::default());
        Ok(Self { port, events, step: AtomicU8::new(step::NONE), asked, exchanged })
    }

    pub(super) fn events(&self) -> &OwnedFd {
        &self.events
    }

    /// Wakes the I/O thread with `connection`'s completions.
    pub(super) fn watch(&self, connection: &Connection) -> io::Result<()> {
        Ok(epoll::add(&self.events, connection.event(), epoll::EventData::new_u64(0), epoll::EventFlags::IN)?)
    }

    /// I/O thread: the queue pair broke.
    pub(super) fn want(&self) {
        self.step.store(step::WANTED, Ordering::SeqCst);
    }

    /// I/O thread: whether no other connection will come.
    pub(super) fn has_failed(&self) -> bool {
        self.step.load(Ordering::SeqCst) == step::FAILED
    }

    /// I/O thread: puts the new connection in the place of `old`, if it is there.
    pub(super) fn adopt(&self, old: &mut Connection) -> bool {
        if self.step.load(Ordering::SeqCst) != step::MADE {
            return false;
        }
        // The other thread lets go of the lock before it says that it is made.
        let Ok(mut exchanged) = self.exchanged.try_lock() else { return false };
        let Some(new) = exchanged.as_mut() else { return false };
        std::mem::swap(old, new);
        self.step.store(step::NONE, Ordering::SeqCst);
        true
    }

    /// Control thread: what to ask the donor now, if the queue pair broke.
    pub fn begin(&self) -> Option<io::Result<Endpoint>> {
        if self.step.load(Ordering::SeqCst) != step::WANTED {
            return None;
        }
        // The one before the last.
        drop(self.exchanged.lock().unwrap_or_else(PoisonError::into_inner).take());
        let unconnected = self.port.connection();
        Some(match unconnected {
            Ok(unconnected) => {
                let endpoint = unconnected.endpoint;
                *self.asked.lock().unwrap_or_else(PoisonError::into_inner) = Some(unconnected);
                self.step.store(step::ASKED, Ordering::SeqCst);
                Ok(endpoint)
            }
            Err(error) => {
                self.step.store(step::FAILED, Ordering::SeqCst);
                Err(error)
            }
        })
    }

    /// Control thread: the donor's answer; none if it refused.
    pub fn finish(&self, peer: Option<&Endpoint>) -> io::Result<()> {
        let unconnected = self.asked.lock().unwrap_or_else(PoisonError::into_inner).take();
        let made = match (unconnected, peer) {
            (Some(unconnected), Some(peer)) => unconnected.connect(peer, false),
            _ => Err(io::Error::new(io::ErrorKind::ConnectionRefused, "the donor refused another queue pair")),
        };
        let watched = made.and_then(|connection| self.watch(&connection).map(|()| connection));
        match watched {
            Ok(connection) => {
                *self.exchanged.lock().unwrap_or_else(PoisonError::into_inner) = Some(connection);
                self.step.store(step::MADE, Ordering::SeqCst);
                Ok(())
            }
            Err(error) => {
                self.step.store(step::FAILED, Ordering::SeqCst);
                Err(error)
            }
        }
    }
}
