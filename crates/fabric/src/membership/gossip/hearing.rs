//! What is believed of a message that opened. Every machine with the key can say anything, and one of them may be wrong
//! or hostile, so each number, list and claim has a bound here:
//!
//! - A generation is believed up to a bound that rises with this machine's clock. No life is the last one.
//! - A machine that hears of another life at its own address begins a life above that one, at a pace (`rejoins`).
//! - An announcement is taken only of the life that the list of members has. A machine contradicts one about itself
//!   that it did not make.
//! - The list has a bound. A machine that speaks for itself takes the place of one that was only named.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use std::net::SocketAddr;
use std::time::Instant;

use foca::{Error, Header, Identity as _, Member, Message, State, Timer};

use super::{Gossip, kind};
use crate::limits::{INCARNATION_MAX, MEMBERS_MAX, RUMORS_WAITING_MAX, SEQUENCE_MAX};
use crate::membership::codec::decode_header;
use crate::membership::identity::{Identity, MachineId, generation_max};
use crate::membership::payload::{self, Payload};
use crate::membership::pull::{self, Entry, Envelope};
use crate::membership::rumors::Rumor;
use crate::membership::{MembershipError, Output};

impl Gossip {
    pub(super) fn handle(&mut self, now: Instant, message: &[u8]) -> Result<(), MembershipError> {
        let (kind, mut rest) = message.split_first().ok_or(MembershipError::Short)?;
        match *kind {
            kind::SWIM => self.handle_swim(now, rest),
            kind::REQUEST => {
                let envelope = Envelope::decode(&mut rest)?;
                let after = pull::decode_request(&mut rest)?;
                self.hear_of_own_address(now, &envelope.to);
                self.answer(envelope, after);
                Ok(())
            }
            kind::PAGE => {
                let envelope = Envelope::decode(&mut rest)?;
                let (entries, next) = pull::decode_page(&mut rest)?;
                self.take_page(now, &envelope, entries, next)
            }
            _ => Err(MembershipError::Value),
        }
    }

    fn handle_swim(&mut self, now: Instant, bytes: &[u8]) -> Result<(), MembershipError> {
        let own = *self.swim.identity();
        let mut rest = bytes;
        let mut header = decode_header(&mut rest)?;
        if header.src.machine == MachineId::UNKNOWN || !self.believes(now, &header.src) {
            return Err(MembershipError::Value);
        }
        self.notice_usurper(&header.src);
        self.notice_usurper(&header.dst);
        if header.src.address == own.address {
            return Ok(());
        }
        self.hear_of_own_address(now, &header.dst);
        if header.dst.machine == MachineId::UNKNOWN && header.message == Message::Announce {
            // A greeting: it reached this machine, under whichever of its names.
            header.dst = *self.swim.identity();
        }
        if matches!(header.message, Message::Announce | Message::TurnUndead | Message::Broadcast) && !rest.is_empty() {
            // The last one is sent by no release.
            return Err(MembershipError::Value);
        }
        let payload = Payload::decode(rest)?;
        if header.message == Message::TurnUndead {
            self.on_taken_for_dead(now, &header);
            return Ok(());
        }
        let own = *self.swim.identity();
        let is_greeting = header.message == Message::Announce && header.dst.address == own.address;
        if header.dst != own && !is_greeting {
            return Ok(());
        }
        let mut members = self.believed(now, &header, payload.members);
        if self.tell_the_winner(&header.src) || !self.admit(now, &header.src, true, 0) {
            return Ok(());
        }
        if self.swim.updates_backlog() >= RUMORS_WAITING_MAX {
            self.take_quietly(now, &header, std::mem::take(&mut members));
        }
        let is_heard = self.is_listened_to(&header);
        self.give_to_swim(now, &header, &members)?;
        if is_heard {
            self.note_answer(&header);
            self.tell_of_suspicion(&header);
            self.take_rumors(now, &payload.rumors)?;
        }
        Ok(())
    }

    fn give_to_swim(
        &mut self,
        now: Instant,
        header: &Header<Identity>,
        members: &[Member<Identity>],
    ) -> Result<(), MembershipError> {
        let bytes = payload::encode(header, members)?;
        match self.ask(now, |swim, asked| swim.handle_data(&bytes, asked)) {
            Err(
                Error::Decode(_)
                | Error::MalformedPacket
                | Error::CustomBroadcast(_)
                | Error::DataTooBig
                | Error::IndirectForOurselves,
            ) => Err(MembershipError::Value),
            _ => Ok(()),
        }
    }

    /// Too many updates wait to be passed on: these are not, and others find them in pages.
    fn take_quietly(&mut self, now: Instant, header: &Header<Identity>, members: Vec<Member<Identity>>) {
        let sender = Member::new(header.src, header.src_incarnation, State::Alive);
        let all = std::iter::once(sender).chain(members);
        // It fails only if a member does not fit a datagram.
        let _ = self.ask(now, |swim, asked| swim.apply_many(all, false, asked));
    }

    /// A member that answers has not heard that it is suspected here, or what it said against that was lost.
    fn tell_of_suspicion(&mut self, header: &Header<Identity>) {
        let suspected = self.member(header.src.address).filter(|known| known.state() == State::Suspect).cloned();
        if let (Some(suspected), Message::Ack(_)) = (suspected, &header.message) {
            let src = *self.swim.identity();
            let back = Header { src, src_incarnation: 0, dst: header.src, message: Message::Gossip };
            self.send_swim(&back, &[suspected]);
        }
    }

    fn note_answer(&mut self, header: &Header<Identity>) {
        match header.message {
            Message::Ack(number) => self.answers.on_ack(header.src, number),
            Message::Feed if self.seeds.has(header.src.address) => self.answers.on_feed(header.src),
            _ => {}
        }
    }

    /// Whether a generation is one that a machine can have.
    fn believes(&self, now: Instant, identity: &Identity) -> bool {
        identity.generation <= self.generation_max(now)
    }

    fn generation_max(&self, now: Instant) -> u64 {
        let (clock_ms, at) = self.clock;
        generation_max(clock_ms).saturating_add(now.saturating_duration_since(at).as_millis() as u64)
    }

    fn member(&self, address: SocketAddr) -> Option<&Member<Identity>> {
        self.swim.iter_membership_state().find(|member| member.id().address == address)
    }

    /// Whether what `header`'s sender says of others counts: it speaks to this life, and is not known to be dead.
    fn is_listened_to(&self, header: &Header<Identity>) -> bool {
        let is_meant = header.dst == *self.swim.identity();
        is_meant
            && self.member(header.src.address).is_none_or(|known| {
                if *known.id() == header.src {
                    known.state() != State::Down
                } else {
                    !known.id().win_addr_conflict(&header.src)
                }
            })
    }

    /// Updates without those that no machine would make, that concern this machine itself, or that there is no room
    /// for. What they say of this machine has its effect.
    fn believed(
        &mut self,
        now: Instant,
        header: &Header<Identity>,
        members: Vec<Member<Identity>>,
    ) -> Vec<Member<Identity>> {
        let own = *self.swim.identity();
        let is_listened_to = self.is_listened_to(header);
        let mut kept = Vec::with_capacity(members.len());
        let mut suspicion: Option<Member<Identity>> = None;
        for member in members {
            let identity = *member.id();
            if identity == own {
                let is_final = member.state() == State::Down
                    || member.state() == State::Suspect && member.incarnation() >= INCARNATION_MAX;
                if is_final {
                    if is_listened_to {
                        self.rejoin(now);
                    }
                } else if member.state() == State::Suspect
                    && suspicion.as_ref().is_none_or(|known| known.incarnation() < member.incarnation())
                {
                    // Each one is answered with datagrams to several others, so one of a message counts.
                    suspicion = Some(member);
                }
            } else if identity.address == own.address && identity.win_addr_conflict(&own) {
                self.hear_of_own_address(now, &identity);
            } else if self.believes(now, &identity) && is_listened_to && self.admit(now, &identity, false, kept.len()) {
                kept.push(member);
            }
        }
        // One about an identity that this machine gave up just now is about another one.
        kept.extend(suspicion.filter(|member| *member.id() == *self.swim.identity()));
        kept
    }

    /// Another machine that began a life at this address later: one of the two says a wrong address. An earlier life
    /// is that of a predecessor.
    fn notice_usurper(&mut self, other: &Identity) {
        let own = self.swim.identity();
        let is_other = other.address == own.address && other.machine != own.machine;
        let is_later = other.machine != MachineId::UNKNOWN && other.generation > self.first_generation;
        if is_other && is_later && self.usurper != Some(other.machine) {
            self.usurper = Some(other.machine);
            self.outputs.push(Output::SameAddress(other.machine));
        }
    }

    /// Others believe in a life at this address. If it wins against this machine's, that begins one above it.
    fn hear_of_own_address(&mut self, now: Instant, other: &Identity) {
        let own = *self.swim.identity();
        let is_other = other.address == own.address && other.machine != MachineId::UNKNOWN && *other != own;
        if is_other && other.win_addr_conflict(&own) && self.believes(now, other) {
            self.rejoins.hear_of(other.generation);
            self.rejoin(now);
        }
    }

    /// The sender of `header` takes this machine for dead.
    fn on_taken_for_dead(&mut self, now: Instant, header: &Header<Identity>) {
        if header.dst != *self.swim.identity() {
            return;
        }
        self.rejoin(now);
        let is_dead_too =
            self.member(header.src.address).is_some_and(|it| *it.id() == header.src && it.state() == State::Down);
        if is_dead_too {
            // Neither believes what the other one says but this.
            let src = *self.swim.identity();
            let back = Header { src, src_incarnation: 0, dst: header.src, message: Message::TurnUndead };
            self.send_swim(&back, &[]);
        }
    }

    /// Tells the sender of a datagram which later life of its address is known here, if one is: it can begin one above
    /// that. Nothing else is said to it, as it begins lives at a pace, and the first one is to be above the winner's.
    fn tell_the_winner(&mut self, sender: &Identity) -> bool {
        let winner = self.member(sender.address).filter(|known| known.id() != sender);
        let Some(winner) = winner.filter(|known| known.id().win_addr_conflict(sender)).cloned() else { return false };
        let src = *self.swim.identity();
        let header = Header { src, src_incarnation: 0, dst: *sender, message: Message::Gossip };
        self.send_swim(&header, &[winner]);
        true
    }

    fn send_swim(&mut self, header: &Header<Identity>, members: &[Member<Identity>]) {
        // It fails only if there is no room, and a buffer that grows always has some.
        if let Ok(message) = payload::encode(header, members) {
            self.send(header.dst.address, kind::SWIM, &message);
        }
    }

    /// Begins another life, above any that was heard of at this address. Not too often.
    fn rejoin(&mut self, now: Instant) {
        if !self.rejoins.is_due(now) {
            return;
        }
        let own = *self.swim.identity();
        let generation = self.rejoins.next(now, own.generation).min(self.generation_max(now));
        if generation <= own.generation {
            return;
        }
        self.take_another_name();
        self.ask(now, |swim, asked| {
            // Its errors are that the identity is the same, which it is not, or that a member fits no datagram.
            let _ = swim.change_identity(Identity { generation, ..own }, &mut *asked);
            // What tells others of this life may be lost: they are probed from here on, and not when one of them speaks
            // to a life that it does not know.
            let _ = swim.apply_many(std::iter::empty(), false, asked);
        });
        self.on_rejoined(generation);
    }

    /// Perhaps nothing that this machine says arrives: a hostile one may have used up the numbers of its name.
    pub(super) fn take_another_name(&mut self) {
        self.sender = self.sealer.rename();
    }

    pub(super) fn on_rejoined(&mut self, generation: u64) {
        self.own.announcement.sequence = 0;
        self.own.is_changed = true;
        self.outputs.push(Output::Renewed(generation));
    }

    /// Whether `identity` may be in the list of members, beside `coming` others; makes room for one that speaks for
    /// itself.
    fn admit(&mut self, now: Instant, identity: &Identity, speaks_for_itself: bool, coming: usize) -> bool {
        if self.member(identity.address).is_some() {
            return true;
        }
        if self.swim.iter_membership_state().len() + coming < MEMBERS_MAX {
            return true;
        }
        let is_dead = |member: &&Member<Identity>| member.state() == State::Down;
        let is_only_named = |member: &&Member<Identity>| speaks_for_itself && !self.answers.has(member.id());
        let all = || self.swim.iter_membership_state();
        let leaves = all().find(is_dead).or_else(|| all().find(is_only_named)).cloned();
        let Some(leaves) = leaves else { return false };
        self.remove(now, &leaves);
        true
    }

    /// Takes a member off the list, without a word to others.
    fn remove(&mut self, now: Instant, member: &Member<Identity>) {
        let identity = *member.id();
        let dead = Member::new(identity, member.incarnation(), State::Down);
        self.ask(now, |swim, asked| {
            // They fail only if a member does not fit a datagram.
            let _ = swim.apply_many(std::iter::once(dead), false, &mut *asked);
            let _ = swim.handle_timer(Timer::RemoveDown(identity), asked);
        });
        self.announced.forget(identity.address);
    }

    /// What was said under a key that is not accepted any more counts no more. Members stay, and have to answer.
    pub(super) fn forget_the_former_key(&mut self, now: Instant) {
        self.announced.retain(|_| false);
        self.answers.clear();
        let dead = self.swim.iter_membership_state().filter(|member| member.state() == State::Down);
        for member in dead.cloned().collect::<Vec<_>>() {
            self.remove(now, &member);
        }
        self.own.is_changed = true;
        self.own.next = now;
    }

    /// Announcements: of the lives that the list has, and no others.
    fn take_rumors(&mut self, now: Instant, rumors: &[&[u8]]) -> Result<(), MembershipError> {
        for bytes in rumors {
            let rumor = Rumor::decode(bytes)?;
            if rumor.identity.address == self.swim.identity().address {
                self.contradict(now, &rumor);
            } else if self.is_listed(&rumor.identity) {
                if self.swim.custom_broadcast_backlog() < RUMORS_WAITING_MAX {
                    // The handler takes it, and says whether it is news to be passed on.
                    let _ = self.swim.add_broadcast(bytes);
                } else {
                    self.announced.absorb(rumor);
                }
            }
        }
        Ok(())
    }

    fn is_listed(&self, identity: &Identity) -> bool {
        self.member(identity.address).is_some_and(|member| member.id() == identity)
    }

    /// Others believe in an announcement of this machine. One that it did not make is followed by a later one.
    fn contradict(&mut self, now: Instant, rumor: &Rumor) {
        let own = &self.own.announcement;
        let is_own = rumor.identity == *self.swim.identity();
        let is_made = rumor.announcement.sequence < own.sequence || rumor.announcement == *own;
        let is_this_one = rumor.announcement.sequence == own.sequence && self.own.is_changed;
        if !is_own || is_made || is_this_one {
            return;
        }
        if rumor.announcement.sequence >= SEQUENCE_MAX {
            return self.rejoin(now);
        }
        self.own.announcement.sequence = rumor.announcement.sequence;
        self.own.is_changed = true;
    }

    fn take_page(
        &mut self,
        now: Instant,
        envelope: &Envelope,
        entries: Vec<Entry>,
        next: Option<SocketAddr>,
    ) -> Result<(), MembershipError> {
        let own = *self.swim.identity();
        let is_awaited = envelope.to == own && self.puller.is_awaited(envelope.number);
        if !is_awaited || !self.answers.on_page(envelope.from, envelope.number) {
            return Ok(());
        }
        let before = self.swim.num_members();
        let mut members = Vec::with_capacity(entries.len());
        for Entry { identity, incarnation, .. } in &entries {
            self.notice_usurper(identity);
            self.hear_of_own_address(now, identity);
            let is_other = identity.address != own.address;
            if is_other && self.believes(now, identity) && self.admit(now, identity, false, members.len()) {
                members.push(Member::new(*identity, *incarnation, State::Alive));
            }
        }
        // What stands in pages is known to others, so it is not told on.
        let applied = self.ask(now, |swim, asked| swim.apply_many(members.into_iter(), false, asked));
        for Entry { identity, announcement, .. } in entries {
            let Some(rumor) = announcement.map(|announcement| Rumor { identity, announcement }) else { continue };
            if identity.address == own.address {
                self.contradict(now, &rumor);
            } else if self.is_listed(&identity) {
                self.announced.absorb(rumor);
            }
        }
        self.puller.on_page(next, self.swim.num_members() > before);
        applied.map_err(|_| MembershipError::Value)
    }
}
