//! What a machine with the cluster's key can say, and what comes of it. The forger is heard and hears nothing.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use foca::{Header, Member, Message, State};

use super::super::announcement::Announcement;
use super::super::identity::{Identity, MachineId, generation_max};
use super::super::rumors::Rumor;
use super::super::seal::Sealer;
use super::super::{MemberState, Output, payload};
use super::tests::settings;
use super::{Gossip, Input, kind};
use crate::key::{ClusterKey, KEY_BYTES};
use crate::limits::MEMBERS_MAX;

const YEAR_MS: u64 = 365 * 24 * 3_600_000;

fn key(byte: u8) -> ClusterKey {
    ClusterKey::from_bytes([byte; KEY_BYTES])
}

/// Machines without delay or loss, and a forger with their key.
struct Village {
    now: Instant,
    machines: Vec<Gossip>,
    forger: Sealer,
    /// Members that the forger made up to speak as: each is found dead after some seconds.
    faces: u32,
    /// Returns from false deaths, of each.
    renewed: Vec<usize>,
}

impl Village {
    fn new() -> Self {
        Self::of(3)
    }

    fn of(count: usize) -> Self {
        let now = Instant::now();
        let machines = (1..=count).map(|number| Gossip::new(now, settings(number as u8))).collect();
        let forger = Sealer::new(Some(&key(1)), "test", [9; 16]);
        let mut village = Self { now, machines, forger, faces: 0, renewed: vec![0; count] };
        for place in 1..count {
            village.give(place, Input::Join(vec![([10, 0, 0, 1], 7070).into()]));
        }
        village.pass(20);
        assert!(village.agrees() && village.renewed.iter().all(|returns| *returns == 0));
        village
    }

    /// Whether all know that all live.
    fn agrees(&self) -> bool {
        let all = 0..self.machines.len();
        all.clone().all(|by| all.clone().all(|of| self.state(by, of) == MemberState::Alive))
    }

    fn give(&mut self, place: usize, input: Input<'_>) {
        let mut outputs: VecDeque<(usize, Output)> =
            self.machines[place].on(self.now, input).into_iter().map(|output| (place, output)).collect();
        while let Some((from, output)) = outputs.pop_front() {
            match output {
                Output::Send { to, bytes } => {
                    let place = self.machines.iter().position(|it| it.swim.identity().address == to);
                    if let Some(place) = place {
                        let more = self.machines[place].on(self.now, Input::Datagram(&bytes));
                        outputs.extend(more.into_iter().map(|output| (place, output)));
                    }
                }
                Output::Renewed(_) => self.renewed[from] += 1,
                _ => {}
            }
        }
    }

    fn pass(&mut self, seconds: u32) {
        for _ in 0..10 * seconds {
            self.now += Duration::from_millis(100);
            (0..self.machines.len()).for_each(|place| self.give(place, Input::Timer));
        }
    }

    fn identity(&self, place: usize) -> Identity {
        *self.machines[place].swim.identity()
    }

    /// The forger says this of members, as `from`, to the machine at `place`.
    fn say(&mut self, place: usize, from: Identity, message: Message<Identity>, members: &[Member<Identity>]) {
        let header = Header { src: from, src_incarnation: 0, dst: self.identity(place), message };
        let message = payload::encode(&header, members).unwrap();
        let bytes = self.forger.seal(&[&[kind::SWIM], &message[..]].concat());
        self.give(place, Input::Datagram(&bytes));
    }

    fn face(&mut self) -> Identity {
        self.faces += 1;
        stranger(1_000_000 + self.faces)
    }

    /// The forger spreads an announcement.
    fn announce(&mut self, place: usize, rumor: &Rumor) {
        let header =
            Header { src: self.face(), src_incarnation: 0, dst: self.identity(place), message: Message::Gossip };
        let (mut message, rumor) = (payload::encode(&header, &[]).unwrap(), rumor.encode());
        message.extend_from_slice(&[0, 0]);
        message.extend_from_slice(&(rumor.len() as u16).to_be_bytes());
        message.extend_from_slice(&rumor);
        let bytes = self.forger.seal(&[&[kind::SWIM], &message[..]].concat());
        self.give(place, Input::Datagram(&bytes));
    }

    fn state(&self, by: usize, of: usize) -> MemberState {
        let identity = self.identity(of);
        let members = self.machines[by].members();
        members.iter().find(|it| it.identity == Some(identity)).map_or(MemberState::Gone, |member| member.state)
    }

    /// What `by` believes that `of` lends at most.
    fn quota(&self, by: usize, of: usize) -> Option<u64> {
        let address = self.identity(of).address;
        let members = self.machines[by].members();
        members.into_iter().find(|it| it.address == address)?.profile.map(|profile| profile.quota_bytes)
    }
}

/// A machine that does not exist.
fn stranger(number: u32) -> Identity {
    let [a, b, c, d] = number.to_be_bytes();
    Identity::new(MachineId(u128::from(number) + 1000), 1, ([172 + a, b, c, d], 7070).into())
}

fn forged(identity: Identity, sequence: u32) -> Rumor {
    let profile = super::super::announcement::Profile { quota_bytes: 777, ..Default::default() };
    Rumor { identity, announcement: Announcement { sequence, profile } }
}

#[test]
fn a_life_that_is_forged_at_a_machines_address_costs_it_one_return() {
    let limit = generation_max(0);
    for generation in [10 * YEAR_MS, limit - YEAR_MS, limit] {
        for state in [State::Alive, State::Down] {
            let mut village = Village::new();
            let victim = village.identity(2);
            let usurper = Identity { machine: MachineId(99), generation, ..victim };
            village.say(0, stranger(1), Message::Gossip, &[Member::new(usurper, 0, state)]);
            village.pass(8);
            assert!((0..2).all(|by| village.state(by, 2) == MemberState::Alive), "{generation} {state:?}");
            assert!(village.identity(2).generation > generation);
            assert!(village.renewed[2] <= 2, "{} returns", village.renewed[2]);
        }
    }
}

#[test]
fn a_generation_above_every_clock_is_not_believed() {
    let mut village = Village::new();
    let victim = village.identity(2);
    for generation in [generation_max(0) + 60_000, u64::MAX - 1, u64::MAX] {
        let usurper = Identity { machine: MachineId(99), generation, ..victim };
        village.say(0, stranger(1), Message::Gossip, &[Member::new(usurper, 0, State::Down)]);
        village.say(0, usurper, Message::Gossip, &[]);
        village.say(2, usurper, Message::Gossip, &[]);
    }
    village.pass(5);
    assert_eq!((village.state(0, 2), village.identity(2), village.renewed[2]), (MemberState::Alive, victim, 0));
}

#[test]
fn an_announcement_of_another_life_is_not_taken_and_one_of_this_life_is_contradicted() {
    let mut village = Village::new();
    for place in 0..3 {
        let mut profile = village.machines[place].own.announcement.profile.clone();
        profile.quota_bytes = 1000;
        village.give(place, Input::Profile(profile));
    }
    village.pass(30);
    let victim = village.identity(2);
    assert_eq!(village.quota(0, 2), Some(1000));
    village.announce(0, &forged(Identity { generation: generation_max(0), ..victim }, 1));
    village.announce(0, &forged(Identity { generation: u64::MAX, ..victim }, 1));
    assert_eq!(village.quota(0, 2), Some(1000), "the list has no such life");
    for sequence in [7, 1 << 20, u32::MAX] {
        village.announce(0, &forged(village.identity(2), sequence));
        assert_eq!(village.quota(0, 2), Some(777), "the machine that was told believes it");
        village.pass(30);
        assert!((0..2).all(|by| village.quota(by, 2) == Some(1000)), "{sequence}");
    }
    assert_eq!(village.renewed, [0, 0, 1], "only what cannot be exceeded takes a new life");
}

#[test]
fn what_was_said_under_a_key_ends_with_it() {
    let mut village = Village::new();
    let dead = Member::new(stranger(7), 0, State::Down);
    village.say(0, stranger(1), Message::Gossip, &[dead]);
    village.announce(0, &forged(stranger(7), 1));
    let known = |village: &Village, number| {
        let members = village.machines[0].members();
        members.into_iter().find(|member| member.address == stranger(number).address)
    };
    assert!(known(&village, 7).is_some_and(|member| member.profile.is_some()));
    let both = key(1).accepting(&key(2));
    village.give(0, Input::Key(both));
    assert!(known(&village, 7).is_some(), "the former key is accepted still");
    village.give(0, Input::Key(key(2)));
    assert!(known(&village, 7).is_none());
    assert!(known(&village, 1).is_some_and(|member| !member.has_answered), "it will be found dead");
}

#[test]
fn a_flood_of_deaths_and_suspicions_costs_few_returns_and_few_datagrams() {
    let mut village = Village::new();
    let sent = village.machines[2].counters().datagrams_sent;
    let mut doubt = 0;
    for _ in 0..600 {
        let face = village.face();
        let own = village.identity(2);
        let suspected: Vec<_> = (0..20)
            .map(|_| {
                doubt = (doubt + 1) % 60_000;
                Member::new(own, doubt, State::Suspect)
            })
            .collect();
        village.say(2, face, Message::Gossip, &suspected);
        for doubt in [u16::MAX - 1, 0] {
            // A new life begins where no higher incarnation is left to refute the second one.
            let own = village.identity(2);
            village.say(2, face, Message::Gossip, &[Member::new(own, doubt, State::Suspect)]);
        }
        let own = village.identity(2);
        village.say(2, face, Message::Gossip, &[Member::new(own, 0, State::Down)]);
        village.say(2, face, Message::TurnUndead, &[]);
        village.say(2, face, Message::Gossip, &[Member::new(own, u16::MAX, State::Suspect)]);
        village.pass(1);
    }
    assert!(village.renewed[2] < 40, "{} returns in ten minutes", village.renewed[2]);
    let sent = village.machines[2].counters().datagrams_sent - sent;
    assert!(sent < 20 * 600, "{sent} datagrams");
    village.pass(120);
    assert!((0..2).all(|by| village.state(by, 2) == MemberState::Alive));
}

/// The forger sees names on the wire, and speaks as machines whose last datagram was the last one of all.
#[test]
fn a_machine_whose_datagram_numbers_were_used_up_takes_another_name_and_is_heard() {
    for (machines, deceived) in [(2, 1), (3, 1), (3, 2)] {
        let mut village = Village::of(machines);
        let victim = machines - 1;
        let mut thief = Sealer::new(Some(&key(1)), "test", village.machines[victim].sender);
        for place in 0..deceived {
            let header =
                Header { src: stranger(1), src_incarnation: 0, dst: village.identity(place), message: Message::Gossip };
            thief.skip_to(u64::MAX - 1);
            let bytes = thief.seal(&[&[kind::SWIM], &payload::encode(&header, &[]).unwrap()[..]].concat());
            village.give(place, Input::Datagram(&bytes));
        }
        village.pass(60);
        assert!(village.agrees(), "{machines} machines");
        assert!(village.renewed[victim] <= 2, "{} returns", village.renewed[victim]);
    }
}

#[test]
fn a_machine_is_heard_again_though_all_is_lost_that_it_says_at_its_return() {
    for machines in [2, 3] {
        let mut village = Village::of(machines);
        let victim = machines - 1;
        let (src, dst) = (village.identity(0), village.identity(victim));
        let header = Header { src, src_incarnation: 0, dst, message: Message::TurnUndead };
        let bytes = village.forger.seal(&[&[kind::SWIM], &payload::encode(&header, &[]).unwrap()[..]].concat());
        let lost = village.machines[victim].on(village.now, Input::Datagram(&bytes));
        assert!(lost.iter().any(|output| matches!(output, Output::Renewed(_))));
        village.pass(30);
        assert!(village.agrees(), "{machines} machines");
    }
}

#[test]
fn members_that_are_only_named_fill_the_list_to_its_bound_and_real_ones_stay_and_come() {
    let mut village = Village::new();
    for number in 0..300_u32 {
        let fakes: Vec<_> = (0..25).map(|fake| Member::alive(stranger(number * 25 + fake))).collect();
        village.say(0, stranger(1), Message::Gossip, &fakes);
    }
    let members = village.machines[0].members();
    assert_eq!(members.len(), MEMBERS_MAX + 1, "and the machine itself");
    let of = |village: &Village, place: usize| {
        let identity = village.identity(place);
        village.machines[0].members().into_iter().find(|member| member.identity == Some(identity))
    };
    assert!((1..3).all(|place| of(&village, place).is_some_and(|member| member.has_answered)));
    assert!(members.iter().filter(|member| member.has_answered).count() <= 3, "no made-up one answered");
    let mut newcomer = settings(4);
    newcomer.seed = 4;
    village.machines.push(Gossip::new(village.now, newcomer));
    village.renewed.push(0);
    village.give(3, Input::Join(vec![([10, 0, 0, 1], 7070).into()]));
    assert!(of(&village, 3).is_some(), "one that speaks for itself finds room");
    assert!((1..3).all(|place| of(&village, place).is_some()));
    // The newcomer hears of many, and asks those for more that answer.
    village.pass(2);
    assert!((0..3).all(|place| village.state(3, place) == MemberState::Alive));
}
