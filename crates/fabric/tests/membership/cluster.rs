//! A cluster of machines in one process: a network that delays and loses datagrams by a seeded random number, and a
//! clock that jumps from one event to the next.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use spillway_fabric::key::ClusterKey;
use spillway_fabric::membership::announcement::{Label, Profile};
use spillway_fabric::membership::identity::{Identity, MachineId};
use spillway_fabric::membership::{Counters, Discovery, Input, MemberState, Membership, Output, Settings};

/// One machine, and what it was told of the others.
pub(crate) struct Machine {
    pub(crate) membership: Membership,
    pub(crate) living: BTreeSet<SocketAddr>,
    pub(crate) outputs: Vec<Output>,
    is_killed: bool,
    wake: Option<Instant>,
}

enum Event {
    Deliver(usize, Vec<u8>),
    Wake(usize),
}

/// The cluster, see the module text.
pub(crate) struct Cluster {
    pub(crate) now: Instant,
    pub(crate) machines: Vec<Machine>,
    /// Datagrams lost of 1000.
    pub(crate) loss: u32,
    /// Machines before this one do not reach those from it on.
    pub(crate) partition: Option<usize>,
    /// Copies of all datagrams to the first machine, if wanted.
    pub(crate) recorded: Option<Vec<Vec<u8>>>,
    events: BTreeMap<(Instant, u64), Event>,
    places: HashMap<SocketAddr, usize>,
    serial: u64,
    rng: SmallRng,
}

/// The longest way of a datagram.
const DELAY_MAX: Duration = Duration::from_millis(50);

pub(crate) fn address(number: usize) -> SocketAddr {
    let [.., high, low] = (number as u32 + 1).to_be_bytes();
    ([10, 0, high, low], 7070).into()
}

/// The settings of machine `number` in generation `generation`.
pub(crate) fn settings(number: usize, generation: u64) -> Settings {
    let profile = Profile {
        name: Label::from_foreign(&format!("node{number}")),
        zone: Label::from_foreign(&format!("zone{}", number % 3)),
        rack: Label::from_foreign(&format!("rack{}", number % 40)),
        release: Label::from_foreign("0.1.0"),
        wire_version: 4,
        quota_bytes: 1 << 34,
        ..Profile::default()
    };
    Settings {
        discovery: Discovery::Gossip,
        identity: Identity::new(MachineId(number as u128 + 1), generation, address(number)),
        cluster: "test".to_owned(),
        key: Some(ClusterKey::from_bytes([7; 32])),
        profile,
        clock_ms: 0,
        seed: number as u64,
        sender: ((u128::from(generation) << 64) + number as u128).to_le_bytes(),
    }
}

impl Cluster {
    /// `count` machines that start at once and know the first three.
    pub(crate) fn start(count: usize, seed: u64) -> Self {
        let mut cluster = Self {
            now: Instant::now(),
            machines: Vec::new(),
            loss: 10,
            partition: None,
            recorded: None,
            events: BTreeMap::new(),
            places: HashMap::new(),
            serial: 0,
            rng: SmallRng::seed_from_u64(seed),
        };
        for number in 0..count {
            cluster.add(settings(number, 1));
        }
        cluster
    }

    /// A machine more, or another life at the address of one. Its number.
    pub(crate) fn add(&mut self, settings: Settings) -> usize {
        let identity = settings.identity;
        let machine = Machine {
            membership: Membership::new(self.now, settings),
            living: BTreeSet::new(),
            outputs: Vec::new(),
            is_killed: false,
            wake: None,
        };
        let number = *self.places.entry(identity.address).or_insert(self.machines.len());
        if number == self.machines.len() {
            self.machines.push(machine);
        } else {
            self.machines[number] = machine;
        }
        self.give(number, Input::Join((0..3).map(address).collect()));
        number
    }

    /// Gives a machine something to do.
    pub(crate) fn give(&mut self, number: usize, input: Input<'_>) {
        let machine = &mut self.machines[number];
        if machine.is_killed {
            return;
        }
        for output in machine.membership.on(self.now, input) {
            self.take(number, output);
        }
    }

    fn take(&mut self, number: usize, output: Output) {
        match output {
            Output::Send { to, bytes } => self.post(number, to, bytes),
            Output::WakeAt(at) => {
                if self.machines[number].wake != Some(at) {
                    self.machines[number].wake = Some(at);
                    self.schedule(at, Event::Wake(number));
                }
            }
            Output::Up(address) => {
                self.machines[number].living.insert(address);
            }
            Output::Down(address) => {
                self.machines[number].living.remove(&address);
            }
            told => self.machines[number].outputs.push(told),
        }
    }

    fn schedule(&mut self, at: Instant, event: Event) {
        self.serial += 1;
        self.events.insert((at, self.serial), event);
    }

    fn post(&mut self, from: usize, to: SocketAddr, bytes: Vec<u8>) {
        let Some(to) = self.places.get(&to).copied() else { return };
        let is_cut = self.partition.is_some_and(|first| (from < first) != (to < first));
        if is_cut || self.rng.random_range(0..1000) < self.loss {
            return;
        }
        if let Some(recorded) = self.recorded.as_mut().filter(|_| to == 0) {
            recorded.push(bytes.clone());
        }
        let delay = DELAY_MAX.mul_f64(self.rng.random_range(0.002..1.0));
        self.schedule(self.now + delay, Event::Deliver(to, bytes));
    }

    /// Lets so much time pass.
    pub(crate) fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(entry) = self.events.first_entry().filter(|entry| entry.key().0 <= end) {
            let ((at, _), event) = entry.remove_entry();
            self.now = at;
            match event {
                Event::Deliver(to, bytes) => self.give(to, Input::Datagram(&bytes)),
                Event::Wake(number) if self.machines[number].wake == Some(at) => {
                    self.machines[number].wake = None;
                    self.give(number, Input::Timer);
                }
                Event::Wake(_) => {}
            }
        }
        self.now = end;
    }

    /// Lets time pass until `is_so`, a second at a time. The seconds; panics after `most`.
    pub(crate) fn seconds_until(&mut self, most: u32, what: &str, is_so: impl Fn(&Self) -> bool) -> u32 {
        for second in 0..=most {
            if is_so(self) {
                return second;
            }
            self.pass(Duration::from_secs(1));
        }
        let lists: Vec<_> = self.machines.iter().map(|machine| machine.living.len()).collect();
        panic!("not within {most} s: {what}; machines know so many others: {lists:?}");
    }

    /// A machine stops without a word.
    pub(crate) fn kill(&mut self, number: usize) {
        self.machines[number].is_killed = true;
    }

    /// Numbers of the machines that run.
    pub(crate) fn running(&self) -> Vec<usize> {
        (0..self.machines.len()).filter(|number| !self.machines[*number].is_killed).collect()
    }

    /// Whether every machine that runs takes exactly the others that run for living.
    pub(crate) fn agrees(&self) -> bool {
        let running = self.running();
        let knows_all = |number: &usize| {
            let machine = &self.machines[*number];
            machine.living.len() == running.len() - 1
                && running.iter().all(|other| other == number || machine.living.contains(&address(*other)))
        };
        running.iter().all(knows_all)
    }

    /// The state of `of` in the list of `by`.
    pub(crate) fn state(&self, by: usize, of: usize) -> Option<MemberState> {
        let members = self.machines[by].membership.members();
        members.into_iter().find(|member| member.address == address(of)).map(|member| member.state)
    }

    /// Datagrams and bytes that a machine sends and receives each second while `seconds` pass, on average, with
    /// machines that have news of themselves all the time.
    pub(crate) fn load(&mut self, seconds: u32) -> (f64, f64) {
        let before = self.total();
        for second in 0..seconds {
            for number in self.running() {
                let mut profile = settings(number, 1).profile;
                profile.lent_bytes = u64::from(second) << 20;
                self.give(number, Input::Profile(profile));
            }
            self.pass(Duration::from_secs(1));
        }
        let after = self.total();
        let divisor = f64::from(seconds) * self.running().len() as f64;
        let sum = |counters: Counters| {
            let datagrams = counters.datagrams_sent + counters.datagrams_received;
            (datagrams as f64, (counters.bytes_sent + counters.bytes_received) as f64)
        };
        let ((datagrams_before, bytes_before), (datagrams, bytes)) = (sum(before), sum(after));
        ((datagrams - datagrams_before) / divisor, (bytes - bytes_before) / divisor)
    }

    /// The counters of all machines together.
    pub(crate) fn total(&self) -> Counters {
        let mut total = Counters::default();
        for counters in self.machines.iter().map(|machine| machine.membership.counters()) {
            total.datagrams_sent += counters.datagrams_sent;
            total.datagrams_received += counters.datagrams_received;
            total.bytes_sent += counters.bytes_sent;
            total.bytes_received += counters.bytes_received;
            total.refused_malformed += counters.refused_malformed;
            total.refused_key += counters.refused_key;
            total.refused_repeated += counters.refused_repeated;
        }
        total
    }
}
