//! The machine around foca: opens datagrams, hands them on, and seals what is to be sent.
//!
//! A datagram's message begins with a byte: 0 for foca's own, 1 for a request of a page, 2 for a page. A message
//! names its receiver's life, but for a greeting to a seed, of which only the address is known. Members are only
//! learnt from messages that opened. What of such a message is believed: [`hearing`].

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod hearing;

use std::collections::BTreeSet;
use std::fmt;
use std::net::SocketAddr;
use std::time::Instant;

use foca::{Foca, Message, OwnedNotification, State, Timer};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::announcement::Announcement;
use super::answers::Answers;
use super::codec::{GossipCodec, decode_header};
use super::identity::{Identity, MachineId};
use super::pull::{self, Entry, Envelope, Puller};
use super::rejoins::Rejoins;
use super::replay::ReplayGuard;
use super::rumors::{Announced, Rumor, RumorHandler};
use super::runtime::{Asked, Timers};
use super::seal::Sealer;
use super::seeds::Seeds;
use super::twins::Twins;
use super::{Counters, Input, Member, MemberState, MembershipError, Output, Settings, pace};
use crate::limits::{DATAGRAM_HEADER_BYTES, DATAGRAM_TAG_BYTES, MEMBERS_MAX, PAGE_ENTRIES_MAX};

type Swim = Foca<Identity, GossipCodec, SmallRng, RumorHandler>;

mod kind {
    pub(super) const SWIM: u8 = 0;
    pub(super) const REQUEST: u8 = 1;
    pub(super) const PAGE: u8 = 2;
}

/// What this machine tells of itself, and when it may again.
#[derive(Debug)]
struct Own {
    announcement: Announcement,
    is_changed: bool,
    next: Instant,
}

/// See the module text.
pub(crate) struct Gossip {
    swim: Swim,
    sealer: Sealer,
    sender: [u8; 16],
    replay: ReplayGuard,
    announced: Announced,
    timers: Timers,
    seeds: Seeds,
    puller: Puller,
    own: Own,
    twins: Twins,
    answers: Answers,
    rejoins: Rejoins,
    /// This machine's clock at its start, and that moment.
    clock: (u64, Instant),
    rng: SmallRng,
    counters: Counters,
    /// Members for which the settings of the protocol were made.
    paced_for: usize,
    has_left: bool,
    /// The generation at the start of this process.
    first_generation: u64,
    /// The latest machine that was told to have this one's address.
    usurper: Option<MachineId>,
    outputs: Vec<Output>,
}

impl fmt::Debug for Gossip {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Gossip").field("identity", self.swim.identity()).finish_non_exhaustive()
    }
}

impl Gossip {
    /// Knows no other machine yet.
    pub(crate) fn new(now: Instant, settings: Settings) -> Self {
        let Settings { identity, cluster, key, profile, clock_ms, seed, sender, .. } = settings;
        let mut rng = SmallRng::seed_from_u64(seed);
        let announced = Announced::default();
        let handler = RumorHandler { announced: announced.clone() };
        let swim_rng = SmallRng::seed_from_u64(rng.random());
        let mut twins = Twins::default();
        twins.up(now, &identity);
        Self {
            swim: Foca::with_custom_broadcast(identity, pace::config(1), swim_rng, GossipCodec, handler),
            sealer: Sealer::new(key.as_ref(), &cluster, sender),
            sender,
            replay: ReplayGuard::default(),
            announced,
            timers: Timers::default(),
            seeds: Seeds::new(now),
            puller: Puller::new(now),
            own: Own { announcement: Announcement { sequence: 0, profile }, is_changed: true, next: now },
            twins,
            answers: Answers::default(),
            rejoins: Rejoins::default(),
            clock: (clock_ms, now),
            rng,
            counters: Counters::default(),
            paced_for: 1,
            has_left: false,
            first_generation: identity.generation,
            usurper: None,
            outputs: Vec::new(),
        }
    }

    /// Takes what happened, and returns what to do.
    pub(crate) fn on(&mut self, now: Instant, input: Input<'_>) -> Vec<Output> {
        if self.has_left {
            return Vec::new();
        }
        match input {
            Input::Datagram(bytes) => self.receive(now, bytes),
            Input::Timer => {}
            Input::Join(addresses) => self.seeds.set(now, addresses, self.swim.identity().address),
            Input::Profile(profile) => {
                self.own.is_changed |= profile != self.own.announcement.profile;
                self.own.announcement.profile = profile;
            }
            Input::Key(key) => {
                if self.sealer.change_key(&key) {
                    self.forget_the_former_key(now);
                }
            }
            Input::Leave => self.leave(now),
        }
        if !self.has_left {
            self.run_due(now);
            self.outputs.extend(self.next().map(Output::WakeAt));
        }
        std::mem::take(&mut self.outputs)
    }

    /// All members but former lives at this machine's own address.
    pub(crate) fn members(&self) -> Vec<Member> {
        let own = self.swim.identity();
        let mut members = vec![Member {
            address: own.address,
            identity: Some(*own),
            state: if self.has_left { MemberState::Left } else { MemberState::Alive },
            profile: Some(self.own.announcement.profile.clone()),
            is_self: true,
            has_answered: true,
        }];
        let others = self.swim.iter_membership_state().filter(|member| member.id().address != own.address);
        members.extend(others.map(|member| self.shown(member)));
        members.sort_by_key(|member| member.address);
        members
    }

    fn shown(&self, member: &foca::Member<Identity>) -> Member {
        let identity = *member.id();
        let rumor = self.announced.of(&identity);
        let is_goodbye =
            |rumor: &Rumor| rumor.announcement.profile.is_leaving && rumor.identity.generation == identity.generation;
        let state = match member.state() {
            State::Alive => MemberState::Alive,
            State::Suspect => MemberState::Suspect,
            State::Down if rumor.as_ref().is_some_and(is_goodbye) => MemberState::Left,
            State::Down => MemberState::Gone,
        };
        let profile = rumor.map(|rumor| rumor.announcement.profile);
        let has_answered = self.answers.has(&identity);
        Member { address: identity.address, identity: Some(identity), state, profile, is_self: false, has_answered }
    }

    /// Identities that several machines have.
    pub(crate) fn twins(&self) -> Vec<(MachineId, Vec<SocketAddr>)> {
        self.twins.told()
    }

    /// What went over the network.
    pub(crate) fn counters(&self) -> Counters {
        self.counters
    }

    fn receive(&mut self, now: Instant, bytes: &[u8]) {
        self.counters.datagrams_received += 1;
        self.counters.bytes_received += bytes.len() as u64;
        let refused = match self.sealer.open(bytes) {
            Ok(opened) if opened.sender == self.sender || !self.replay.is_new(opened.sender, opened.count) => {
                &mut self.counters.refused_repeated
            }
            Ok(opened) => match self.handle(now, &opened.message) {
                Ok(()) => return,
                Err(_) => &mut self.counters.refused_malformed,
            },
            Err(MembershipError::NotOurs) => &mut self.counters.refused_foreign,
            Err(MembershipError::Version(_)) => &mut self.counters.refused_version,
            Err(_) => &mut self.counters.refused_key,
        };
        *refused += 1;
    }

    /// Calls foca and does what it asks for.
    fn ask<T>(&mut self, now: Instant, call: impl FnOnce(&mut Swim, &mut Asked) -> T) -> T {
        let mut asked = Asked::at(now);
        let result = call(&mut self.swim, &mut asked);
        asked.timers.into_iter().for_each(|(due, timer)| self.timers.set(due, timer));
        for (to, message) in asked.sends {
            if let Ok(Message::Ping(number)) = decode_header(&mut &message[..]).map(|header| header.message) {
                self.answers.on_ping(to, number);
            }
            self.send(to.address, kind::SWIM, &message);
        }
        asked.news.iter().for_each(|news| self.tell(now, news));
        self.keep_pace();
        result
    }

    fn send(&mut self, to: SocketAddr, kind: u8, message: &[u8]) {
        let message = [&[kind], message].concat();
        let bytes = self.sealer.seal(&message);
        self.counters.datagrams_sent += 1;
        self.counters.bytes_sent += bytes.len() as u64;
        debug_assert_eq!(bytes.len(), message.len() + DATAGRAM_HEADER_BYTES + DATAGRAM_TAG_BYTES);
        self.outputs.push(Output::Send { to, bytes });
    }

    fn tell(&mut self, now: Instant, news: &OwnedNotification<Identity>) {
        match news {
            OwnedNotification::MemberUp(identity) => {
                self.twins.up(now, identity);
                self.outputs.push(Output::Up(identity.address));
            }
            OwnedNotification::MemberDown(identity) => {
                self.twins.down(identity);
                self.answers.forget(identity.address);
                self.outputs.push(Output::Down(identity.address));
            }
            OwnedNotification::Rename(before, after) => {
                self.twins.down(before);
                self.answers.forget(before.address);
                if self.is_living(after.address) {
                    self.twins.up(now, after);
                }
            }
            OwnedNotification::Active => {
                self.puller = Puller::new(now);
                self.own.is_changed = true;
            }
            OwnedNotification::Idle => {
                self.take_another_name();
                self.seeds.on_alone(now);
            }
            OwnedNotification::Rejoin(identity) => self.on_rejoined(identity.generation),
            OwnedNotification::Defunct => {}
        }
    }

    fn is_living(&self, address: SocketAddr) -> bool {
        self.swim.iter_members().any(|member| member.id().address == address)
    }

    /// Fits the settings to the number of members, when that has changed by a tenth.
    fn keep_pace(&mut self) {
        let members = self.swim.num_members() + 1;
        if members.abs_diff(self.paced_for) * 10 > self.paced_for {
            self.paced_for = members;
            self.swim.set_config(pace::config(members)).expect("only what foca lets change depends on the size");
        }
    }

    fn run_due(&mut self, now: Instant) {
        while let Some(timer) = self.timers.take_due(now, MEMBERS_MAX) {
            let is_forgotten = matches!(timer, Timer::RemoveDown(_));
            // Errors mean that timers came late; foca goes on with the next probe.
            let _ = self.ask(now, |swim, asked| swim.handle_timer(timer, asked));
            if is_forgotten {
                self.forget();
            }
        }
        self.greet(now);
        if self.swim.num_members() > 0 {
            self.pull(now);
            self.announce(now);
        }
        let patience = pace::twin_patience(self.paced_for);
        let due = self.twins.take_due(now, patience);
        self.outputs.extend(due.into_iter().map(|(machine, addresses)| Output::Twins { machine, addresses }));
    }

    /// What machines announced that are remembered no more.
    fn forget(&self) {
        let own = self.swim.identity().address;
        let known: BTreeSet<_> = self.swim.iter_membership_state().map(|member| member.id().address).collect();
        self.announced.retain(|address| address == own || known.contains(&address));
    }

    /// When there is something to do.
    fn next(&self) -> Option<Instant> {
        let is_alone = self.swim.num_members() == 0;
        let pull = (!is_alone).then(|| self.puller.next());
        let announce = (!is_alone && self.own.is_changed).then_some(self.own.next);
        let twins = self.twins.next(pace::twin_patience(self.paced_for));
        [self.timers.next(), self.seeds.next(), pull, announce, twins].into_iter().flatten().min()
    }

    fn greet(&mut self, now: Instant) {
        let is_alone = self.swim.num_members() == 0;
        let swim = &self.swim;
        let is_member = |address| swim.iter_members().any(|member| member.id().address == address);
        for address in self.seeds.take_due(now, is_alone, is_member, &mut self.rng) {
            // It fails only if a header does not fit a datagram.
            let _ = self.ask(now, |swim, asked| swim.announce(Identity::seed(address), asked));
        }
    }

    fn announce(&mut self, now: Instant) {
        if !self.own.is_changed || now < self.own.next {
            return;
        }
        self.own.is_changed = false;
        self.own.next = now + pace::announce_interval(self.paced_for, self.rng.random());
        self.own.announcement.sequence = self.own.announcement.sequence.wrapping_add(1);
        let rumor = Rumor { identity: *self.swim.identity(), announcement: self.own.announcement.clone() };
        // Its size is bounded far below a datagram's.
        let _ = self.swim.add_broadcast(&rumor.encode());
    }

    fn pull(&mut self, now: Instant) {
        let Some((number, after)) = self.puller.take_due(now) else { return };
        // Of many members that were only named, the real ones are known soon, and what these know: in turns one is
        // asked that never answered, one that did, and any.
        let is_heard = |member: &&foca::Member<Identity>| self.answers.has(member.id());
        let wanted = |member: &&foca::Member<Identity>| match number % 3 {
            0 => !is_heard(member),
            1 => is_heard(member),
            _ => true,
        };
        let wanted_count = self.swim.iter_members().filter(wanted).count();
        let chosen = if wanted_count > 0 {
            let chosen = self.rng.random_range(0..wanted_count);
            self.swim.iter_members().filter(wanted).nth(chosen)
        } else {
            let chosen = self.rng.random_range(0..self.swim.num_members());
            self.swim.iter_members().nth(chosen)
        };
        let Some(to) = chosen.map(|member| *member.id()) else { return };
        self.answers.on_request(to, number);
        let envelope = Envelope { from: *self.swim.identity(), to, number };
        self.send(to.address, kind::REQUEST, &pull::encode_request(&envelope, after));
    }

    /// Sends a page to a living member.
    fn answer(&mut self, request: Envelope, after: Option<SocketAddr>) {
        let own = *self.swim.identity();
        if request.to != own || !self.swim.iter_members().any(|member| *member.id() == request.from) {
            return;
        }
        let own_address = own.address;
        let mut living: Vec<(Identity, u16)> = self
            .swim
            .iter_members()
            .map(|member| (*member.id(), member.incarnation()))
            .filter(|(identity, _)| Some(identity.address) > after && identity.address != own_address)
            .collect();
        // One more than a page can hold, to know whether that is all.
        let is_all = living.len() <= PAGE_ENTRIES_MAX;
        if !is_all {
            living.select_nth_unstable(PAGE_ENTRIES_MAX);
            living.truncate(PAGE_ENTRIES_MAX);
        }
        living.sort_unstable();
        let announced = &self.announced;
        let of_this_life = |identity: &Identity| {
            announced.of(identity).filter(|rumor| rumor.identity == *identity).map(|rumor| rumor.announcement)
        };
        let entry = |(identity, incarnation)| Entry { identity, incarnation, announcement: of_this_life(&identity) };
        let entries: Vec<Entry> = living.into_iter().map(entry).collect();
        let envelope = Envelope { from: own, to: request.from, number: request.number };
        self.send(request.from.address, kind::PAGE, &pull::encode_page(&envelope, &entries, is_all));
    }

    /// Tells a few members, in two waves, so that it is known even if some datagrams are lost.
    fn leave(&mut self, now: Instant) {
        self.own.announcement.profile.is_leaving = true;
        self.own.is_changed = true;
        self.own.next = now;
        self.announce(now);
        // They fail only if a member does not fit a datagram.
        let _ = self.ask(now, |swim, asked| swim.leave_cluster(asked));
        let _ = self.ask(now, |swim, asked| swim.gossip(asked));
        self.has_left = true;
    }
}

#[cfg(test)]
mod hostile_tests;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::Discovery;
    use super::super::announcement::Profile;
    use super::*;
    use crate::key::{ClusterKey, KEY_BYTES};

    pub(super) fn settings(number: u8) -> Settings {
        Settings {
            discovery: Discovery::Gossip,
            identity: Identity::new(MachineId(number.into()), 1, ([10, 0, 0, number], 7070).into()),
            cluster: "test".to_owned(),
            key: Some(ClusterKey::from_bytes([1; KEY_BYTES])),
            profile: Profile::default(),
            clock_ms: 0,
            seed: number.into(),
            sender: [number; 16],
        }
    }

    /// Two machines that know each other.
    fn pair(now: Instant) -> [Gossip; 2] {
        let mut machines = [1, 2].map(|number| Gossip::new(now, settings(number)));
        let mut outputs = machines[1].on(now, Input::Join(vec![([10, 0, 0, 1], 7070).into()]));
        let mut to = 0;
        while let Some(Output::Send { bytes, .. }) = outputs.iter().find(|output| matches!(output, Output::Send { .. }))
        {
            let bytes = bytes.clone();
            outputs = machines[to].on(now, Input::Datagram(&bytes));
            to = 1 - to;
        }
        machines
    }

    #[test]
    fn a_greeting_makes_two_machines_members() {
        let [one, other] = pair(Instant::now());
        assert_eq!((one.members().len(), other.members().len()), (2, 2));
        assert!(one.members().iter().all(|member| member.state == MemberState::Alive));
    }

    proptest! {
        #[test]
        fn a_member_that_sends_nonsense_causes_no_panic_and_is_counted(
            messages in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..120), 1..50),
        ) {
            let now = Instant::now();
            let [mut one, _] = pair(now);
            let members = one.members();
            let mut sealer = Sealer::new(Some(&ClusterKey::from_bytes([1; KEY_BYTES])), "test", [9; 16]);
            for message in &messages {
                one.on(now, Input::Datagram(&sealer.seal(message)));
            }
            prop_assert_eq!(one.counters().refused_malformed, messages.len() as u64);
            prop_assert_eq!(one.members(), members);
        }
    }
}
