//! Connections of sources that began too many handshakes wait at the door until they show something.
//!
//! A hostile program may share its address with a borrower, behind a router or on one machine. It can use up whatever
//! an address may begin. What it cannot do is to begin a handshake as a borrower does: the first bytes of that show the
//! cluster's key, or name a session. So a connection that comes too often is not turned away at once. It costs a
//! descriptor and no thread until its first bytes are there, and one chosen at random gives way to the next one.
//! Bytes that another connection showed before count nothing.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{RecvFlags, recv};
use spillway_fabric::control::{FIRST_BYTES, shows_key};
use spillway_fabric::key_source::KeySource;
use spillway_fabric::limits::HANDSHAKE_DEADLINE;
use spillway_fabric::tcp::Greeting;
use spillway_fabric::wire::proof::SessionName;

use crate::lender::random::Random;
use crate::limits::{DOOR_MAX, DOOR_TURN, SHOWN_MAX};
use crate::listen::Peer;

type First = [u8; FIRST_BYTES];

#[derive(Debug)]
struct Waiting {
    stream: OwnedFd,
    peer: Peer,
    until: Instant,
}

#[derive(Debug)]
struct Inside {
    /// Came since the last turn.
    new: Vec<Waiting>,
    random: Random,
}

/// See the module text.
#[derive(Debug)]
pub(crate) struct Door {
    inside: Mutex<Inside>,
    came: Condvar,
}

impl Door {
    pub(crate) fn new(seed: u64) -> Self {
        Self { inside: Mutex::new(Inside { new: Vec::new(), random: Random::new(seed) }), came: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().expect("no thread panics at the door")
    }

    /// A connection waits. The one that gives way to it, if one does.
    pub(crate) fn hold(&self, stream: OwnedFd, peer: Peer) -> Option<Peer> {
        let mut inside = self.lock();
        inside.new.push(Waiting { stream, peer, until: Instant::now() + HANDSHAKE_DEADLINE });
        self.came.notify_all();
        inside.give_way_of_new()
    }

    /// The donor stops.
    pub(crate) fn close(&self) {
        drop(self.lock());
        self.came.notify_all();
    }

    /// Takes those that came; the ones that give way go to `turn_away`.
    fn await_some(&self, is_over: &impl Fn() -> bool, turn_away: &impl Fn(&Peer), waiting: &mut Vec<Waiting>) {
        let mut inside = self.lock();
        while waiting.is_empty() && inside.new.is_empty() && !is_over() {
            inside = self.came.wait(inside).expect("no thread panics at the door");
        }
        waiting.append(&mut inside.new);
        while waiting.len() > DOOR_MAX {
            let chosen = inside.random.below(waiting.len());
            turn_away(&waiting.swap_remove(chosen).peer);
        }
    }

    /// Lets those in that show something, until `is_over`; `knows` tells whether a session has a name.
    pub(crate) fn watch(
        &self,
        key: Option<&KeySource>,
        is_over: impl Fn() -> bool,
        knows: impl Fn(SessionName) -> bool,
        turn_away: impl Fn(&Peer),
        admit: impl Fn(OwnedFd, Peer),
    ) {
        let (mut waiting, mut shown) = (Vec::new(), VecDeque::new());
        while !is_over() {
            self.await_some(&is_over, &turn_away, &mut waiting);
            await_bytes(&waiting);
            let now = Instant::now();
            for one in std::mem::take(&mut waiting) {
                match look(&one) {
                    Look::Nothing if now < one.until => waiting.push(one),
                    Look::First(first) if is_shown(key, &knows, &first, &mut shown) => admit(one.stream, one.peer),
                    Look::Nothing | Look::First(_) | Look::Over => turn_away(&one.peer),
                }
            }
        }
    }
}

impl Inside {
    fn give_way_of_new(&mut self) -> Option<Peer> {
        (self.new.len() > DOOR_MAX).then(|| {
            let chosen = self.random.below(self.new.len());
            self.new.swap_remove(chosen).peer
        })
    }
}

/// Until one of them sends something, or it is time to look for others.
fn await_bytes(waiting: &[Waiting]) {
    let timeout = Timespec { tv_sec: 0, tv_nsec: DOOR_TURN.subsec_nanos().into() };
    let mut ready: Vec<_> =
        waiting.iter().map(|one| PollFd::from_borrowed_fd(one.stream.as_fd(), PollFlags::IN)).collect();
    // A signal is one turn more.
    let _ = poll(&mut ready, Some(&timeout));
    if ready.iter().any(|one| !one.revents().is_empty()) {
        // Some of them sent a part: the rest of it, and others, come meanwhile.
        std::thread::sleep(DOOR_TURN / 10);
    }
}

enum Look {
    Nothing,
    First(First),
    Over,
}

fn look(one: &Waiting) -> Look {
    let mut first = [0; FIRST_BYTES];
    match recv(&one.stream, &mut first[..], RecvFlags::PEEK | RecvFlags::DONTWAIT) {
        Ok((FIRST_BYTES, _)) => Look::First(first),
        Ok((0, _)) => Look::Over,
        Ok(_) | Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Look::Nothing,
        Err(_) => Look::Over,
    }
}

/// Whether these bytes are those of a borrower, and came for the first time.
fn is_shown(
    key: Option<&KeySource>,
    knows: &impl Fn(SessionName) -> bool,
    first: &First,
    shown: &mut VecDeque<First>,
) -> bool {
    if let Some(session) = Greeting::named(first) {
        return knows(session);
    }
    let key = key.map(KeySource::current);
    if shown.contains(first) || !key.is_some_and(|key| shows_key(first, &key)) {
        return false;
    }
    shown.push_back(*first);
    if shown.len() > SHOWN_MAX {
        shown.pop_front();
    }
    true
}
