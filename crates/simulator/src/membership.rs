//! The membership alone, on clusters of thousands of machines, in virtual time.
//!
//! The machines start at once and know three of them. Measured is how long it takes until each knows all others, and
//! what each sends and receives afterwards. Then one machine dies, and a quarter is cut off for a while: how soon have
//! all heard, and how soon are all together again? What every machine takes for true is compared with the truth after
//! every step.

use std::fmt;
use std::time::{Duration, Instant};

use spillway_fabric::membership::{Counters, Input};
use spillway_fabric::site::Site;
use spillway_volume::steward::placement::XorShift;

use crate::cluster::members::way_of_datagram;
use crate::community::{Community, Wish, profile};
use crate::events::{Event, Events};

/// How long the load is measured.
const LOAD_TIME: Duration = Duration::from_secs(30);

/// News travel and pages are pulled so long before that.
const SETTLE_TIME: Duration = Duration::from_secs(20);

/// How long a quarter of the machines is cut off: some are taken for dead by then.
const CUT_TIME: Duration = Duration::from_secs(20);

/// What each machine sends and receives.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Traffic {
    /// Datagrams a second, both ways together.
    pub datagrams_per_s: f64,
    /// Bytes a second, both ways together.
    pub bytes_per_s: f64,
}

/// What a run found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Findings {
    /// Machines.
    pub machines: usize,
    /// From the start of all until each knows all others.
    pub together: Duration,
    /// While each machine has news of itself every second.
    pub traffic: Traffic,
    /// From the death of one machine until all others have heard of it.
    pub dead_told: Duration,
    /// From the end of a cut until all know all again; nothing if none was asked for.
    pub healed: Option<Duration>,
    /// Machines that were taken for dead in the cut, and said otherwise.
    pub renewals: u64,
}

impl fmt::Display for Findings {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { machines, together, traffic, dead_told, healed, renewals } = self;
        write!(
            formatter,
            "{machines} machines: all know all after {:.1} s; {:.1} datagrams and {:.0} bytes a machine and second; one \
             dead known to all after {:.1} s",
            together.as_secs_f64(),
            traffic.datagrams_per_s,
            traffic.bytes_per_s,
            dead_told.as_secs_f64(),
        )?;
        match healed {
            None => Ok(()),
            Some(healed) => write!(
                formatter,
                "; a cut of a quarter is healed after {:.1} s, {renewals} were taken for dead",
                healed.as_secs_f64()
            ),
        }
    }
}

/// All machines of a starting cluster know each other within so long: a page of 32 comes every 200 ms, some of them
/// with machines that are known already.
pub fn together_within(machines: usize) -> Duration {
    Duration::from_secs(10) + Duration::from_millis(30) * machines as u32
}

/// All hear of a dead machine within so long: ten periods until one probes it (none does with 1 in 20,000), the time
/// of a suspect, and fifteen until word has reached all.
pub fn told_within(machines: usize) -> Duration {
    let suspicion = 4.0 * (machines as f64).log10().max(1.0);
    Duration::from_secs(10 + suspicion.ceil() as u64 + 15)
}

/// After a cut all know all within so long: each machine that is taken for dead is greeted once in ten seconds by
/// chance, and then says that it lives.
pub fn healed_within(machines: usize) -> Duration {
    Duration::from_secs(60) + told_within(machines)
}

struct Run {
    start: Instant,
    time: Duration,
    events: Events,
    random: XorShift,
    community: Community,
    /// Machines before this one do not reach those from it on.
    cut: usize,
}

impl Run {
    fn now(&self) -> Instant {
        self.start + self.time
    }

    fn grant(&mut self, machine: usize, wishes: Vec<Wish>) {
        for wish in wishes {
            match wish {
                Wish::Wake { at } => self.events.plan(at - self.start, Event::WakeMember { machine }),
                Wish::Datagram { to, bytes } => {
                    let is_apart = (machine < self.cut) != (to < self.cut);
                    let way = way_of_datagram(&mut self.random).filter(|_| !is_apart);
                    if let Some(way) = way {
                        self.events.plan(self.time + way, Event::Datagram { from: machine, to, bytes });
                    }
                }
            }
        }
    }

    fn step(&mut self, until: Duration) -> bool {
        let Some((at, event)) = self.events.next(until) else {
            self.time = until;
            return false;
        };
        self.time = at;
        let now = self.now();
        match event {
            Event::Datagram { to, bytes, .. } => {
                let wishes = self.community.feed(now, to, Input::Datagram(&bytes));
                self.grant(to, wishes);
            }
            Event::WakeMember { machine } => {
                let wishes = self.community.wake(now, machine);
                self.grant(machine, wishes);
            }
            _ => unreachable!("a membership alone plans nothing else"),
        }
        true
    }

    fn pass(&mut self, time: Duration) {
        let until = self.time + time;
        while self.step(until) {}
    }

    /// Lets time pass until every machine knows the truth; panics after `most`.
    fn until_agreed(&mut self, most: Duration, what: &str) -> Duration {
        let began = self.time;
        while !self.community.agrees() {
            let goes_on = self.step(began + most);
            let wrong = self.community.wrong();
            assert!(goes_on || wrong == 0, "not within {most:?}: {what}; {wrong} pairs do not know the truth");
        }
        self.time - began
    }

    /// What each machine sends and receives while all of them have news of themselves.
    fn measure(&mut self, machines: usize) -> Traffic {
        let before = self.community.counters();
        for second in 0..LOAD_TIME.as_secs() {
            for machine in 0..machines {
                let mut told = profile(machine, &Site::default());
                (told.quota_bytes, told.lent_bytes) = (1 << 34, second << 20);
                let wishes = self.community.feed(self.now(), machine, Input::Profile(told));
                self.grant(machine, wishes);
            }
            self.pass(Duration::from_secs(1));
        }
        let after = self.community.counters();
        let divisor = LOAD_TIME.as_secs_f64() * machines as f64;
        let datagrams = |counters: Counters| counters.datagrams_sent + counters.datagrams_received;
        let bytes = |counters: Counters| counters.bytes_sent + counters.bytes_received;
        Traffic {
            datagrams_per_s: (datagrams(after) - datagrams(before)) as f64 / divisor,
            bytes_per_s: (bytes(after) - bytes(before)) as f64 / divisor,
        }
    }
}

/// Runs the membership of so many machines, with a cut at the end if that is wanted.
///
/// # Panics
/// When one of the bounds above is missed, or when a machine that lives is taken for dead while nothing is cut.
pub fn run(machines: usize, seed: u64, with_cut: bool) -> Findings {
    let mut run = Run {
        start: Instant::now(),
        time: Duration::ZERO,
        events: Events::default(),
        random: XorShift::new(seed.wrapping_mul(0x2545_F491_4F6C_DD1D)),
        community: Community::new(machines),
        cut: 0,
    };
    for machine in 0..machines {
        let wishes = run.community.switch_on(run.start, machine, seed, &Site::default());
        run.grant(machine, wishes);
    }
    let together = run.until_agreed(together_within(machines), "all know all");
    run.pass(SETTLE_TIME);
    let traffic = run.measure(machines);
    assert!(run.community.agrees(), "a machine that lives is taken for dead");
    run.community.switch_off(machines / 2);
    let dead_told = run.until_agreed(told_within(machines), "all have heard that one is dead");
    let before = run.community.renewals;
    let healed = with_cut.then(|| {
        run.cut = machines / 4;
        run.pass(CUT_TIME);
        run.cut = 0;
        run.until_agreed(healed_within(machines), "all know all after a cut")
    });
    Findings { machines, together, traffic, dead_told, healed, renewals: run.community.renewals - before }
}
