//! The membership of every machine, as it is shipped, over datagrams that are delayed, overtake each other and are
//! lost.
//!
//! A community decides nothing and waits for nothing: [`Community::feed`] gives one machine one input, and returns what
//! has to be planned. What every machine knows is compared with what is true after every step, in constant time.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Instant;

use spillway_fabric::key::ClusterKey;
use spillway_fabric::membership::announcement::{Label, Profile};
use spillway_fabric::membership::identity::{Identity, MachineId};
use spillway_fabric::membership::{Counters, Discovery, Input, Membership, Output, Settings};
use spillway_fabric::site::Site;
use spillway_fabric::wire::WIRE_VERSION;

/// In milliseconds, as generations are.
const YEAR_MS: u64 = 365 * 24 * 3_600_000;

/// Machines that every machine knows from the beginning.
const SEEDS: usize = 3;

/// The first address; machine `n` has the one `n` after it.
const FIRST: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);

/// The address of a machine.
pub(crate) fn address(machine: usize) -> SocketAddr {
    (Ipv4Addr::from_bits(FIRST.to_bits() + machine as u32), 7070).into()
}

/// Which machine has an address.
fn machine_at(address: SocketAddr) -> usize {
    let IpAddr::V4(address) = address.ip() else { panic!("every machine has an IPv4 address") };
    (address.to_bits() - FIRST.to_bits()) as usize
}

/// Something to plan.
#[derive(Clone, Debug)]
pub(crate) enum Wish {
    /// A datagram leaves for a machine.
    Datagram { to: usize, bytes: Vec<u8> },
    /// A machine wants to be asked again.
    Wake { at: Instant },
}

/// One machine, while it is on.
#[derive(Debug)]
struct Life {
    membership: Membership,
    wake_at: Option<Instant>,
}

/// See the module text.
#[derive(Debug)]
pub(crate) struct Community {
    lives: Vec<Option<Life>>,
    generations: Vec<u64>,
    /// Row by row: whether a machine takes another one for living.
    takes_for_living: Vec<bool>,
    /// Ordered pairs of machines, the first of which is on and wrong about the second one.
    wrong: usize,
    /// Of machines that were switched off.
    past: Counters,
    /// Machines that were taken for dead, heard of it, and live on in another generation.
    pub(crate) renewals: u64,
}

impl Community {
    /// All machines are switched off.
    pub(crate) fn new(machines: usize) -> Self {
        Self {
            lives: (0..machines).map(|_| None).collect(),
            generations: vec![0; machines],
            takes_for_living: vec![false; machines * machines],
            wrong: 0,
            past: Counters::default(),
            renewals: 0,
        }
    }

    fn machines(&self) -> usize {
        self.lives.len()
    }

    /// Whether a machine is on.
    pub(crate) fn is_on(&self, machine: usize) -> bool {
        self.lives[machine].is_some()
    }

    /// Whether `machine` takes `other` for living.
    pub(crate) fn knows(&self, machine: usize, other: usize) -> bool {
        self.takes_for_living[machine * self.machines() + other]
    }

    /// Whether every machine that is on takes exactly the others that are on for living.
    pub(crate) fn agrees(&self) -> bool {
        self.wrong == 0
    }

    /// Pairs of machines that do not know the truth of each other.
    pub(crate) fn wrong(&self) -> usize {
        self.wrong
    }

    fn is_wrong(&self, machine: usize, other: usize) -> bool {
        machine != other && self.is_on(machine) && self.knows(machine, other) != self.is_on(other)
    }

    /// Wrong pairs with this machine in one of the places.
    fn wrong_with(&self, machine: usize) -> usize {
        let others = 0..self.machines();
        others
            .map(|other| usize::from(self.is_wrong(machine, other)) + usize::from(self.is_wrong(other, machine)))
            .sum()
    }

    /// A machine starts, with these random numbers of its own.
    pub(crate) fn switch_on(&mut self, now: Instant, machine: usize, seed: u64, site: &Site) -> Vec<Wish> {
        assert!(!self.is_on(machine), "a machine is switched on once");
        self.generations[machine] += 1;
        // Now and then the clock is a year ahead, and right again when the machine, or its successor, starts next.
        let ahead_ms = if seed.is_multiple_of(8) { YEAR_MS } else { 0 };
        let generation = self.generations[machine] + ahead_ms;
        let settings = Settings {
            discovery: Discovery::Gossip,
            identity: Identity::new(MachineId(machine as u128 + 1), generation, address(machine)),
            cluster: "simulated".to_owned(),
            key: Some(ClusterKey::from_bytes([7; 32])),
            profile: profile(machine, site),
            clock_ms: 0,
            seed: seed ^ (machine as u64) << 20 ^ generation,
            sender: ((u128::from(generation) << 64) + machine as u128).to_le_bytes(),
        };
        let before = self.wrong_with(machine);
        let (first, count) = (machine * self.machines(), self.machines());
        self.takes_for_living[first..first + count].fill(false);
        self.lives[machine] = Some(Life { membership: Membership::new(now, settings), wake_at: None });
        self.wrong = self.wrong + self.wrong_with(machine) - before;
        let seeds = (0..SEEDS.min(count)).map(address).collect();
        self.feed(now, machine, Input::Join(seeds))
    }

    /// A machine is switched off without a word.
    pub(crate) fn switch_off(&mut self, machine: usize) {
        let before = self.wrong_with(machine);
        let Some(life) = self.lives[machine].take() else { return };
        self.past = sum(self.past, life.membership.counters());
        self.wrong = self.wrong + self.wrong_with(machine) - before;
    }

    /// One input; nothing follows at a machine that is switched off.
    pub(crate) fn feed(&mut self, now: Instant, machine: usize, input: Input<'_>) -> Vec<Wish> {
        let Some(life) = &mut self.lives[machine] else { return Vec::new() };
        let outputs = life.membership.on(now, input);
        outputs.into_iter().filter_map(|output| self.follow(machine, output)).collect()
    }

    /// The time of a wish has come.
    pub(crate) fn wake(&mut self, now: Instant, machine: usize) -> Vec<Wish> {
        let Some(life) = &mut self.lives[machine] else { return Vec::new() };
        // A later wish replaced the one of this event.
        if life.wake_at != Some(now) {
            return Vec::new();
        }
        life.wake_at = None;
        self.feed(now, machine, Input::Timer)
    }

    fn follow(&mut self, machine: usize, output: Output) -> Option<Wish> {
        match output {
            Output::Send { to, bytes } => return Some(Wish::Datagram { to: machine_at(to), bytes }),
            Output::WakeAt(at) => {
                let life = self.lives[machine].as_mut().expect("it has just said this");
                let is_new = life.wake_at.replace(at) != Some(at);
                return is_new.then_some(Wish::Wake { at });
            }
            Output::Up(address) => self.learn(machine, machine_at(address), true),
            Output::Down(address) => self.learn(machine, machine_at(address), false),
            Output::Renewed(generation) => {
                self.generations[machine] = self.generations[machine].max(generation);
                self.renewals += 1;
            }
            Output::Twins { machine, .. } => panic!("{machine:?} is taken for two machines"),
            Output::SameAddress(machine) => panic!("{machine:?} is said to have the address of another machine"),
        }
        None
    }

    fn learn(&mut self, machine: usize, other: usize, is_living: bool) {
        let before = usize::from(self.is_wrong(machine, other));
        let place = machine * self.machines() + other;
        self.takes_for_living[place] = is_living;
        self.wrong = self.wrong + usize::from(self.is_wrong(machine, other)) - before;
    }

    /// Machines that `machine` takes for living and that lend more than they have lent, as it was told.
    pub(crate) fn lenders(&self, machine: usize) -> Vec<usize> {
        let Some(life) = &self.lives[machine] else { return Vec::new() };
        let members = life.membership.members();
        let others = members.iter().filter(|member| !member.is_self && self.knows(machine, machine_at(member.address)));
        let lends =
            |profile: &Profile| profile.quota_bytes > profile.lent_bytes && !profile.is_leaving && !profile.is_draining;
        others
            .filter(|member| member.profile.as_ref().is_some_and(lends))
            .map(|member| machine_at(member.address))
            .collect()
    }

    /// What went over the network since the beginning, all machines together.
    pub(crate) fn counters(&self) -> Counters {
        let living = self.lives.iter().flatten().map(|life| life.membership.counters());
        living.fold(self.past, sum)
    }
}

/// What a machine tells of itself at its start.
pub(crate) fn profile(machine: usize, site: &Site) -> Profile {
    Profile {
        name: Label::from_foreign(&format!("node{machine}")),
        zone: site.zone.clone(),
        rack: site.rack.clone(),
        release: Label::from_foreign("0.1.0"),
        wire_version: WIRE_VERSION,
        ..Profile::default()
    }
}

fn sum(one: Counters, other: Counters) -> Counters {
    Counters {
        datagrams_sent: one.datagrams_sent + other.datagrams_sent,
        bytes_sent: one.bytes_sent + other.bytes_sent,
        datagrams_received: one.datagrams_received + other.datagrams_received,
        bytes_received: one.bytes_received + other.bytes_received,
        refused_foreign: one.refused_foreign + other.refused_foreign,
        refused_version: one.refused_version + other.refused_version,
        refused_key: one.refused_key + other.refused_key,
        refused_repeated: one.refused_repeated + other.refused_repeated,
        refused_malformed: one.refused_malformed + other.refused_malformed,
    }
}
