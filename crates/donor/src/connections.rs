//! The open connections: how many there are, and how to end them.
//!
//! Each connection is served by a thread that may wait for its peer. A process that wants a connection to end shuts
//! its socket down here, which wakes that thread; the thread's own entry closes when it leaves.
//!
//! Anyone can connect and then say nothing. Therefore a connection is *unproven* until it belongs to a session, and the
//! unproven ones have a small share of their own: a new one never waits for old ones, it takes the place of the oldest,
//! first of its own source, then of all. Proven connections keep their places whatever others do.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use rustix::net::{Shutdown, shutdown};

use crate::lender::leases::SessionId;
use crate::limits::{
    CONNECTIONS_MAX, CONNECTIONS_PER_SOURCE_MAX, SESSIONS_PER_SOURCE_MAX, UNPROVEN_MAX, UNPROVEN_PER_SOURCE_MAX,
};

/// Where connections come from, as far as it tells one peer from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// An address of the network. Of IPv6, the first 64 bits: one host can have all of the others.
    Network(IpAddr),
    /// A user of this host.
    User(u32),
}

impl Source {
    /// The source of connections from `address`.
    pub fn of_address(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V6(address) => Self::Network(IpAddr::V6((address.to_bits() >> 64 << 64).into())),
            address @ IpAddr::V4(_) => Self::Network(address),
        }
    }
}

impl Source {
    /// The address by which its share of the bandwidth is counted; for users of this host, the loopback's.
    pub fn address(self) -> IpAddr {
        match self {
            Self::Network(address) => address,
            Self::User(_) => Ipv4Addr::LOCALHOST.into(),
        }
    }
}

/// The machine that a connection comes from, as far as its address tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Machine {
    /// The donor's own.
    Here,
    /// Another one; of IPv6, the first 64 bits.
    At(IpAddr),
}

impl From<Source> for Machine {
    fn from(source: Source) -> Self {
        match source {
            Source::Network(address) if !address.is_loopback() => Self::At(address),
            Source::Network(_) | Source::User(_) => Self::Here,
        }
    }
}

/// All connections of a donor, see the module text.
#[derive(Debug, Default)]
pub struct Connections {
    open: Mutex<Open>,
    /// Something changed that a thread may wait for.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Open {
    next: u64,
    /// By age: numbers only grow.
    entries: BTreeMap<u64, Entry>,
    /// Connections that have room and did not enter yet.
    coming: usize,
    closed: bool,
}

#[derive(Debug)]
struct Entry {
    socket: OwnedFd,
    source: Source,
    standing: Standing,
    /// Its first bytes were those of a borrower.
    is_shown: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    Unproven,
    Proven(SessionId),
    /// It gave way to a newer one; its thread is about to leave.
    Dropped,
}

/// One connection's place; given back on drop.
#[derive(Debug)]
pub struct Place<'connections> {
    connections: &'connections Connections,
    number: u64,
    source: Source,
}

impl Connections {
    /// Waits until there is room for one more connection that has proven nothing, connections that gave way and did
    /// not leave yet included. False at the deadline. The caller then enters, or [gives the room
    /// up](Connections::give_up_room).
    pub fn await_room(&self, deadline: Instant) -> bool {
        let mut open = self.lock();
        loop {
            if open.closed || open.coming + open.unproven_count() < UNPROVEN_MAX {
                open.coming += 1;
                return true;
            }
            // One is enough, and one that gave way before may still be on its way out. Those that have room and did not
            // enter yet cannot give way: the first one that enters can.
            if open.entries.values().all(|entry| entry.standing != Standing::Dropped) {
                let oldest = open.entries.values_mut().find(|entry| entry.standing == Standing::Unproven);
                oldest.into_iter().for_each(Entry::give_way);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            open = self.changed.wait_timeout(open, left).expect("no thread panics with the connections locked").0;
        }
    }

    /// The connection that has room does not enter.
    pub fn give_up_room(&self) {
        let mut open = self.lock();
        open.coming = open.coming.saturating_sub(1);
    }

    /// A place for a new connection over `socket`, for which an older unproven one may have to go, first one that is
    /// not shown to be a borrower's; `None` if all were ended.
    pub fn enter(&self, socket: impl AsFd, source: Source, is_shown: bool) -> Option<Place<'_>> {
        let socket = socket.as_fd().try_clone_to_owned();
        let mut open = self.lock();
        open.coming = open.coming.saturating_sub(1);
        let socket = socket.ok()?;
        if open.closed {
            return None;
        }
        open.drop_oldest(UNPROVEN_PER_SOURCE_MAX, |entry| entry.source == source);
        open.drop_oldest(UNPROVEN_MAX, |_| true);
        let number = open.next;
        open.next += 1;
        open.entries.insert(number, Entry { socket, source, standing: Standing::Unproven, is_shown });
        self.changed.notify_all();
        Some(Place { connections: self, number, source })
    }

    /// Ends the connections of `session`.
    pub fn end_session(&self, session: SessionId) {
        let of_session = |entry: &&Entry| entry.standing == Standing::Proven(session);
        self.lock().entries.values().filter(of_session).for_each(Entry::end);
    }

    /// Ends all connections and lets no new ones in.
    pub fn end_all(&self) {
        let mut open = self.lock();
        open.closed = true;
        open.entries.values().for_each(Entry::end);
    }

    /// Waits until no process is connected; whether that came before `timeout`.
    pub fn wait_empty(&self, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        let mut open = self.lock();
        while !open.entries.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            open = self.changed.wait_timeout(open, left).expect("no thread panics with the connections locked").0;
        }
        true
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().expect("no thread panics with the connections locked")
    }
}

impl Open {
    /// Makes room for one more among the unproven ones that `counts` names, of which there may be `bound`.
    fn drop_oldest(&mut self, bound: usize, counts: impl Fn(&Entry) -> bool) {
        let unproven = |entry: &&mut Entry| entry.standing == Standing::Unproven && counts(entry);
        let mut found: Vec<&mut Entry> = self.entries.values_mut().filter(unproven).collect();
        let over = (found.len() + 1).saturating_sub(bound);
        // Stable: of equals, the oldest comes first.
        found.sort_by_key(|entry| entry.is_shown);
        found.into_iter().take(over).for_each(Entry::give_way);
    }

    /// Whether `source` may have one more proven connection, of `session`.
    fn has_room_for(&self, source: Source, session: SessionId) -> bool {
        let of_source = self.entries.values().filter(|entry| entry.source == source);
        let proven = of_source.filter_map(|entry| match entry.standing {
            Standing::Proven(session) => Some(session.0),
            Standing::Unproven | Standing::Dropped => None,
        });
        let mut sessions: Vec<_> = proven.collect();
        let connections = sessions.len();
        sessions.sort_unstable();
        sessions.dedup();
        let has_session_room = sessions.contains(&session.0) || sessions.len() < SESSIONS_PER_SOURCE_MAX;
        connections < CONNECTIONS_PER_SOURCE_MAX && has_session_room
    }

    /// Those that have proven nothing, and those that gave way and did not leave yet.
    fn unproven_count(&self) -> usize {
        self.entries.len() - self.proven_count()
    }

    fn proven_count(&self) -> usize {
        self.entries.values().filter(|entry| matches!(entry.standing, Standing::Proven(_))).count()
    }
}

impl Entry {
    fn give_way(&mut self) {
        self.standing = Standing::Dropped;
        self.end();
    }

    fn end(&self) {
        // It fails only on a connection that has ended already.
        let _ = shutdown(&self.socket, Shutdown::Both);
    }
}

impl Place<'_> {
    /// Where the connection comes from.
    pub fn source(&self) -> Source {
        self.source
    }

    /// This connection has proven that it belongs to `session`; it keeps its place and ends with the session. Not if
    /// there are too many such connections, or it gave way to a newer one just before: it has to close then.
    #[must_use]
    pub fn belongs_to(&self, session: SessionId) -> bool {
        let mut open = self.connections.lock();
        if open.closed || open.proven_count() >= CONNECTIONS_MAX || !open.has_room_for(self.source, session) {
            return false;
        }
        match open.entries.get_mut(&self.number) {
            Some(entry) if entry.standing == Standing::Unproven => {
                entry.standing = Standing::Proven(session);
                self.connections.changed.notify_all();
                true
            }
            _ => false,
        }
    }

    /// Gives the place back. The session of which this was the last connection, if it was.
    pub fn leave(self) -> Option<SessionId> {
        let mut open = self.connections.lock();
        let standing = open.entries.remove(&self.number)?.standing;
        let Standing::Proven(session) = standing else { return None };
        let is_last = open.entries.values().all(|entry| entry.standing != standing);
        // Dropping `self` takes the lock again.
        drop(open);
        is_last.then_some(session)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.connections.lock().entries.remove(&self.number);
        self.connections.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    use super::*;

    const HERE: Source = Source::User(1);

    #[test]
    fn a_thread_on_the_way_out_counts_until_it_has_left() {
        let connections = Connections::default();
        let soon = || Instant::now() + Duration::from_millis(5);
        let mut places = Vec::new();
        let mut peers = Vec::new();
        for number in 0..UNPROVEN_MAX {
            assert!(connections.await_room(soon()));
            let (own, peer) = UnixStream::pair().unwrap();
            places.push(connections.enter(&own, elsewhere(number), false).unwrap());
            peers.push(peer);
        }
        assert!(!connections.await_room(soon()), "one gave way, and its thread is still there");
        let mut end = [0];
        assert_eq!(peers[0].read(&mut end).unwrap(), 0, "the oldest was ended");
        places.remove(0);
        assert!(connections.await_room(soon()), "it left");
        assert!(!connections.await_room(soon()), "the room is taken");
        connections.give_up_room();
        assert!(connections.await_room(soon()));
    }

    #[test]
    fn a_connection_gives_way_also_to_one_that_waits_while_others_are_coming() {
        let connections = Connections::default();
        let in_a_while = || Instant::now() + Duration::from_secs(60);
        for _ in 0..UNPROVEN_MAX {
            assert!(connections.await_room(in_a_while()));
        }
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| connections.await_room(in_a_while()));
            // Whether it waits already or comes later, it finds the only one that can give way.
            let mut entered = crowd(&connections, 1, elsewhere);
            let mut end = [0];
            assert_eq!(entered[0].2.read(&mut end).unwrap(), 0, "it was ended, although others are coming");
            entered.clear();
            assert!(waiting.join().unwrap());
        });
    }

    #[test]
    fn a_proof_makes_room_for_one_that_waits() {
        let connections = Connections::default();
        let crowd = crowd(&connections, UNPROVEN_MAX, elsewhere);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| connections.await_room(Instant::now() + Duration::from_secs(60)));
            let newest = &crowd[UNPROVEN_MAX - 1].0;
            assert!(newest.belongs_to(SessionId(1)));
            assert!(waiting.join().unwrap());
        });
    }

    fn elsewhere(number: usize) -> Source {
        Source::of_address(IpAddr::from([10, 0, (number >> 8) as u8, number as u8]))
    }

    /// Whether our end of `stream` was shut down.
    fn is_ended(mut stream: &UnixStream) -> bool {
        stream.set_nonblocking(true).unwrap();
        match stream.read(&mut [0]) {
            Ok(count) => count == 0,
            Err(error) => {
                assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
                false
            }
        }
    }

    /// `count` connections from these sources, and their peers.
    fn crowd(
        connections: &Connections,
        count: usize,
        source: impl Fn(usize) -> Source,
    ) -> Vec<(Place<'_>, UnixStream, UnixStream)> {
        let enter = |index| {
            let (ours, theirs) = UnixStream::pair().unwrap();
            (connections.enter(&ours, source(index), false).unwrap(), ours, theirs)
        };
        (0..count).map(enter).collect()
    }

    #[test]
    fn ending_a_session_wakes_its_connections_only() {
        let connections = Connections::default();
        let crowd = crowd(&connections, 2, |_| HERE);
        assert!(crowd[0].0.belongs_to(SessionId(1)));
        connections.end_session(SessionId(1));
        assert!(is_ended(&crowd[0].1) && !is_ended(&crowd[1].1));
    }

    #[test]
    fn a_session_is_gone_with_its_last_connection() {
        let connections = Connections::default();
        let mut crowd = crowd(&connections, 4, |_| HERE);
        let sessions = [1, 2, 1].map(SessionId);
        assert!(crowd.iter().zip(sessions).all(|((place, ..), session)| place.belongs_to(session)));
        let mut leave = || crowd.remove(0).0.leave();
        assert_eq!([leave(), leave(), leave()], [None, Some(SessionId(2)), Some(SessionId(1))]);
        assert_eq!(leave(), None, "an unproven connection is of no session");
        assert!(connections.wait_empty(Duration::ZERO));
    }

    #[test]
    fn after_the_end_no_thread_enters() {
        let connections = Connections::default();
        assert!(connections.wait_empty(Duration::ZERO));
        let mut crowd = crowd(&connections, 1, |_| HERE);
        assert!(!connections.wait_empty(Duration::from_millis(1)));
        connections.end_all();
        assert!(is_ended(&crowd[0].1) && !crowd[0].0.belongs_to(SessionId(1)));
        let socket = crowd.remove(0).1;
        assert!(connections.wait_empty(Duration::ZERO));
        assert!(connections.enter(&socket, HERE, false).is_none());
    }

    #[test]
    fn a_source_that_opens_many_connections_pushes_out_its_own_oldest_only() {
        let connections = Connections::default();
        let other = crowd(&connections, 1, |_| elsewhere(1));
        let proven = crowd(&connections, 3, |_| HERE);
        assert!(proven.iter().all(|(place, ..)| place.belongs_to(SessionId(1))));
        let mute = crowd(&connections, UNPROVEN_PER_SOURCE_MAX + 5, |_| HERE);
        assert!(mute[..5].iter().all(|(_, socket, _)| is_ended(socket)), "the oldest went");
        assert!(!mute[5..].iter().any(|(_, socket, _)| is_ended(socket)));
        assert!(!mute[0].0.belongs_to(SessionId(1)), "too late");
        assert!(!proven.iter().chain(&other).any(|(_, socket, _)| is_ended(socket)));
    }

    #[test]
    fn many_sources_push_out_the_oldest_of_all_but_none_that_is_proven() {
        let connections = Connections::default();
        let proven = crowd(&connections, 2, elsewhere);
        assert!(proven.iter().all(|(place, ..)| place.belongs_to(SessionId(1))));
        let mute = crowd(&connections, UNPROVEN_MAX + 2, |index| elsewhere(2 + index));
        assert!(is_ended(&mute[0].1) && is_ended(&mute[1].1) && !is_ended(&mute[2].1));
        assert!(!proven.iter().any(|(_, socket, _)| is_ended(socket)));
        assert!(mute[2].0.belongs_to(SessionId(2)));
        let _one_more = crowd(&connections, 1, |_| HERE);
        assert!(!is_ended(&mute[3].1), "the one that proved itself made room");
    }

    #[test]
    fn one_that_showed_the_key_goes_last() {
        let connections = Connections::default();
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let _place = connections.enter(&ours, HERE, true).unwrap();
        let _mute = crowd(&connections, 3 * UNPROVEN_PER_SOURCE_MAX, |_| HERE);
        let _others = crowd(&connections, 3 * UNPROVEN_MAX, elsewhere);
        assert!(!is_ended(&ours));
    }

    #[test]
    fn a_places_end_makes_room() {
        let connections = Connections::default();
        let mut mute = crowd(&connections, UNPROVEN_PER_SOURCE_MAX, |_| HERE);
        drop(mute.pop());
        let _new = crowd(&connections, 1, |_| HERE);
        assert!(!is_ended(&mute[0].1));
    }

    #[test]
    fn one_source_cannot_have_all_connections_or_all_sessions() {
        let connections = Connections::default();
        let enter = |source: Source| {
            let (ours, _theirs) = UnixStream::pair().unwrap();
            connections.enter(&ours, source, false).unwrap()
        };
        let prove = |number: usize| {
            let place = enter(HERE);
            assert!(place.belongs_to(SessionId(number as u64)));
            place
        };
        let mut places: Vec<_> = (0..SESSIONS_PER_SOURCE_MAX).map(prove).collect();
        let one_more = enter(HERE);
        assert!(!one_more.belongs_to(SessionId(10_000)), "no further session");
        while places.len() < CONNECTIONS_PER_SOURCE_MAX {
            places.push(prove(1));
        }
        assert!(!one_more.belongs_to(SessionId(1)), "no further connection");
        assert!(enter(elsewhere(1)).belongs_to(SessionId(10_001)), "another machine notices nothing");
    }

    #[test]
    fn one_host_is_one_source() {
        let source = |text: &str| Source::of_address(text.parse().unwrap());
        assert_eq!(source("2001:db8::1"), source("2001:db8::2:3:4:5"));
        assert_ne!(source("2001:db8::1"), source("2001:db8:0:1::1"));
        assert_eq!(source("::ffff:10.0.0.1"), source("10.0.0.1"));
        assert_ne!(source("10.0.0.1"), source("10.0.0.2"));
    }
}
