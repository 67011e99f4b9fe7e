//! The open connections: how many there are, and how to end them.
//!
//! Each connection is served by a thread that may wait for its peer. Whoever wants a connection to end shuts its socket
//! down here, which wakes that thread; the thread's own entry closes when it leaves.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use rustix::net::{Shutdown, shutdown};

use crate::leases::SessionId;
use crate::limits::CONNECTIONS_MAX;

/// All connections of a donor, see the module text.
#[derive(Debug, Default)]
pub struct Connections {
    open: Mutex<Open>,
    left: Condvar,
}

#[derive(Debug, Default)]
struct Open {
    next: u64,
    entries: BTreeMap<u64, Entry>,
    closed: bool,
}

#[derive(Debug)]
struct Entry {
    socket: OwnedFd,
    session: Option<SessionId>,
}

/// One connection's place; given back on drop.
#[derive(Debug)]
pub struct Place<'connections> {
    connections: &'connections Connections,
    number: u64,
}

impl Connections {
    /// A place for a new connection over `socket`; `None` if there are too many, or all were ended.
    pub fn enter(&self, socket: impl AsFd) -> Option<Place<'_>> {
        let socket = socket.as_fd().try_clone_to_owned().ok()?;
        let mut open = self.lock();
        if open.closed || open.entries.len() >= CONNECTIONS_MAX {
            return None;
        }
        let number = open.next;
        open.next += 1;
        open.entries.insert(number, Entry { socket, session: None });
        Some(Place { connections: self, number })
    }

    /// Ends the connections of `session`.
    pub fn end_session(&self, session: SessionId) {
        self.lock().entries.values().filter(|entry| entry.session == Some(session)).for_each(Entry::end);
    }

    /// Ends all connections and lets no new ones in.
    pub fn end_all(&self) {
        let mut open = self.lock();
        open.closed = true;
        open.entries.values().for_each(Entry::end);
    }

    /// Waits until nobody is connected; whether that came before `timeout`.
    pub fn wait_empty(&self, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        let mut open = self.lock();
        while !open.entries.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            open = self.left.wait_timeout(open, left).expect("no thread panics with the connections locked").0;
        }
        true
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().expect("no thread panics with the connections locked")
    }
}

impl Entry {
    fn end(&self) {
        // It fails only on a connection that has ended already.
        let _ = shutdown(&self.socket, Shutdown::Both);
    }
}

impl Place<'_> {
    /// This connection belongs to `session` and ends with it.
    pub fn belongs_to(&self, session: SessionId) {
        if let Some(entry) = self.connections.lock().entries.get_mut(&self.number) {
            entry.session = Some(session);
        }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.connections.lock().entries.remove(&self.number);
        self.connections.left.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn ending_a_session_wakes_its_connections_only() {
        let connections = Connections::default();
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        let (other, _other_peer) = UnixStream::pair().unwrap();
        let place = connections.enter(&ours).unwrap();
        let _other_place = connections.enter(&other).unwrap();
        place.belongs_to(SessionId(1));
        connections.end_session(SessionId(1));
        assert_eq!(ours.read(&mut [0]).unwrap(), 0);
        drop(theirs);
        other.set_nonblocking(true).unwrap();
        let error = (&other).read(&mut [0]).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
    }

    #[test]
    fn there_is_a_bound_and_an_end() {
        let connections = Connections::default();
        let (ours, _theirs) = UnixStream::pair().unwrap();
        assert!(connections.wait_empty(Duration::ZERO));
        let place = connections.enter(&ours).unwrap();
        assert!(!connections.wait_empty(Duration::from_millis(1)));
        drop(place);
        assert!(connections.wait_empty(Duration::ZERO));
        connections.end_all();
        assert!(connections.enter(&ours).is_none());
    }
}
