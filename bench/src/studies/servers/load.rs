//! Clients of a store of keys and values: they load it, then ask it as a mix says, and check every byte that comes
//! back.
//!
//! Each client has keys of its own, every fourth one when there are four. So it knows the version of each value
//! exactly, and a lost write is noticed like a wrong byte. A client waits for each answer before its next request: the
//! rate is what the server's latency allows. The most popular keys are scattered over all that were loaded.
//!
//! Invariant: a value that is missing or has a wrong byte ends the load with [`HarnessError::Wrong`].

use std::io;
use std::time::{Duration, Instant};

use spillway_block::latency::LatencyHistogram;

use super::mix::{self, SKEW};
use crate::demo::redis_job::key;
use crate::harness::HarnessError;
use crate::harness::cpu_use::{CpuUse, counted};
use crate::harness::interrupt::Interrupt;
use spillway_workloads::permutation::Permutation;
use spillway_workloads::random::Random;
use spillway_workloads::zipf::Zipf;

/// Clients at once: twice the CPUs of the development machine, so that one that waits for a page does not leave the
/// server idle.
pub const CLIENTS: u64 = 4;

/// Writes that are sent before their answers are read while the store is loaded.
const PIPELINE: usize = 100;

/// A connection to a store.
pub trait Connection: Send {
    /// Adds a write to what [`Connection::flush`] will send.
    fn queue_write(&mut self, key: &[u8], value: &[u8]) -> io::Result<()>;
    /// Adds a read to what [`Connection::flush`] will send.
    fn queue_read(&mut self, key: &[u8]) -> io::Result<()>;
    /// Sends what was queued.
    fn flush(&mut self) -> io::Result<()>;
    /// The answer to a write; an error unless it was stored.
    fn written(&mut self) -> io::Result<()>;
    /// The answer to a read; `None` when the store has no such key.
    fn value(&mut self) -> io::Result<Option<Vec<u8>>>;
}

/// What is loaded and asked for.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// The server's name in messages.
    pub server: &'static str,
    /// How many keys there are; at least one for each client.
    pub keys: u64,
    /// Fixes values and requests.
    pub seed: u64,
}

/// How long clients ask.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// Before anything counts.
    pub warm_up: Duration,
    /// While it counts.
    pub measured: Duration,
}

/// What clients saw.
#[derive(Clone, Debug, PartialEq)]
pub struct Served {
    /// What was answered, all clients together, in the unit of [`super::server::Server::unit`].
    pub rate: f64,
    /// Time that 99 of 100 requests took at most, in microseconds.
    pub p99_us: f64,
    /// What the CPUs did meanwhile.
    pub cpu: CpuUse,
}

/// A client with its keys.
struct Client<Link> {
    link: Link,
    load: Load,
    /// Its keys are this one and each [`CLIENTS`]th after it.
    first: u64,
    /// Of each of its keys, the version that was stored last.
    versions: Vec<u32>,
    popularity: Zipf,
    order: Permutation,
    random: Random,
    latencies: LatencyHistogram,
}

impl<Link: Connection> Client<Link> {
    fn new(link: Link, load: Load, first: u64) -> Self {
        let keys = (load.keys - first).div_ceil(CLIENTS);
        Self {
            link,
            load,
            first,
            versions: vec![0; keys as usize],
            popularity: Zipf::new(keys, SKEW),
            order: Permutation::new(keys, load.seed),
            random: Random::new(load.seed ^ (first + 1)),
            latencies: LatencyHistogram::default(),
        }
    }

    fn key(&self, index: usize) -> u64 {
        self.first + index as u64 * CLIENTS
    }

    fn value(&self, index: usize) -> Vec<u8> {
        mix::value(self.load.seed, self.key(index), u64::from(self.versions[index]))
    }

    fn failed(&self, what: &'static str) -> impl FnOnce(io::Error) -> HarnessError + use<Link> {
        HarnessError::system(format!("{}, while {what}", self.load.server))
    }

    /// Stores the first version of each of its keys.
    fn fill(&mut self, interrupt: &Interrupt) -> Result<(), HarnessError> {
        let all: Vec<usize> = (0..self.versions.len()).collect();
        for batch in all.chunks(PIPELINE) {
            interrupt.check()?;
            self.store(batch).map_err(self.failed("loading"))?;
        }
        Ok(())
    }

    fn store(&mut self, batch: &[usize]) -> io::Result<()> {
        for index in batch {
            self.link.queue_write(&key(self.key(*index)), &self.value(*index))?;
        }
        self.link.flush()?;
        batch.iter().try_for_each(|_| self.link.written())
    }

    /// Asks until `end`; gives the number of answers.
    fn ask_until(&mut self, end: Instant, interrupt: &Interrupt) -> Result<u64, HarnessError> {
        let mut answers = 0;
        loop {
            let index = self.order.at(self.popularity.next(&mut self.random)) as usize;
            let begin = if mix::is_write(&mut self.random) { self.write(index)? } else { self.read(index)? };
            let now = Instant::now();
            self.latencies.record(now - begin);
            answers += 1;
            if now >= end {
                return Ok(answers);
            }
            interrupt.check()?;
        }
    }

    /// Stores the next version of a value; gives when that began.
    fn write(&mut self, index: usize) -> Result<Instant, HarnessError> {
        self.versions[index] += 1;
        let (key, value) = (key(self.key(index)), self.value(index));
        let begin = Instant::now();
        let link = &mut self.link;
        let outcome = link.queue_write(&key, &value).and_then(|()| link.flush()).and_then(|()| link.written());
        outcome.map(|()| begin).map_err(self.failed("writing"))
    }

    /// Reads a value and checks it; gives when that began. The check counts to the request: a client has to look at
    /// what it gets.
    fn read(&mut self, index: usize) -> Result<Instant, HarnessError> {
        let (name, begin) = (key(self.key(index)), Instant::now());
        let link = &mut self.link;
        let outcome = link.queue_read(&name).and_then(|()| link.flush()).and_then(|()| link.value());
        let found = outcome.map_err(self.failed("reading"))?;
        let expected = self.value(index);
        if found.as_ref() == Some(&expected) {
            return Ok(begin);
        }
        Err(HarnessError::wrong(self.load.server, describe(&name, found.as_deref(), &expected)))
    }
}

fn describe(key: &[u8], found: Option<&[u8]>, expected: &[u8]) -> String {
    let key = String::from_utf8_lossy(key);
    let Some(found) = found else { return format!("WRONG VALUE: {key} is missing") };
    let differ = found.iter().zip(expected).filter(|(one, other)| one != other).count();
    let wrong_bytes = differ + found.len().abs_diff(expected.len());
    format!("WRONG VALUE: {wrong_bytes} of {} bytes of {key} are not those stored last", expected.len())
}

/// Lets each client work in a thread of its own; gives the sum of what they give.
fn all<Link: Connection>(
    clients: &mut [Client<Link>],
    work: impl Fn(&mut Client<Link>) -> Result<u64, HarnessError> + Sync,
) -> Result<u64, HarnessError> {
    let work = &work;
    std::thread::scope(|scope| {
        let threads: Vec<_> = clients.iter_mut().map(|client| scope.spawn(move || work(client))).collect();
        // All of them are waited for, also when the first one failed.
        let outcomes: Vec<_> = threads.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        let panicked = |_| Err(HarnessError::failed("a client", "it panicked, as told above"));
        outcomes.into_iter().map(|outcome| outcome.unwrap_or_else(panicked)).sum()
    })
}

/// Loads a store over the connections that `connect` makes, warms it up, and measures.
pub fn run<Link: Connection>(
    load: Load,
    times: Times,
    interrupt: &Interrupt,
    connect: impl Fn() -> io::Result<Link>,
) -> Result<Served, HarnessError> {
    assert!(load.keys >= CLIENTS, "each client has a key");
    let failed = || HarnessError::system::<io::Error>(format!("connecting to {}", load.server));
    let clients: Result<Vec<_>, _> =
        (0..CLIENTS).map(|first| Ok(Client::new(connect().map_err(failed())?, load, first))).collect();
    let mut clients = clients?;
    all(&mut clients, |client| client.fill(interrupt).map(|()| 0))?;
    let end = Instant::now() + times.warm_up;
    all(&mut clients, |client| client.ask_until(end, interrupt))?;
    clients.iter().for_each(|client| client.latencies.clear());
    let (outcome, cpu) = counted(|| {
        let begin = Instant::now();
        let answers = all(&mut clients, |client| client.ask_until(begin + times.measured, interrupt))?;
        Ok::<_, HarnessError>((answers, begin.elapsed()))
    });
    let (answers, elapsed) = outcome?;
    let (latencies, _) = LatencyHistogram::merged(clients.iter().map(|client| &client.latencies));
    Ok(Served { rate: answers as f64 / elapsed.as_secs_f64(), p99_us: latencies.p99_us, cpu })
}

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, VecDeque};
    use std::sync::{Arc, Mutex};

    use super::*;

    type Values = Arc<Mutex<HashMap<Vec<u8>, Vec<u8>>>>;

    /// A store without a server that can be made to break its promises.
    #[derive(Default)]
    struct Memory {
        values: Values,
        answers: VecDeque<Option<Vec<u8>>>,
        drops_writes: bool,
        flips_bit: bool,
    }

    impl Connection for Memory {
        fn queue_write(&mut self, key: &[u8], value: &[u8]) -> io::Result<()> {
            let mut values = self.values.lock().unwrap();
            if !(self.drops_writes && values.contains_key(key)) {
                values.insert(key.to_vec(), value.to_vec());
            }
            Ok(())
        }

        fn queue_read(&mut self, key: &[u8]) -> io::Result<()> {
            let mut value = self.values.lock().unwrap().get(key).cloned();
            if let Some(value) = value.as_mut().filter(|_| self.flips_bit) {
                value[7] ^= 1;
            }
            self.answers.push_back(value);
            Ok(())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }

        fn written(&mut self) -> io::Result<()> {
            Ok(())
        }

        fn value(&mut self) -> io::Result<Option<Vec<u8>>> {
            Ok(self.answers.pop_front().unwrap())
        }
    }

    const TIMES: Times = Times { warm_up: Duration::from_millis(20), measured: Duration::from_millis(50) };

    fn run_with(memory: impl Fn(&Values) -> Memory) -> Result<Served, HarnessError> {
        let values = Values::default();
        let load = Load { server: "a store", keys: 50, seed: 5 };
        let served = run(load, TIMES, &Interrupt::never(), || Ok(memory(&values)));
        assert_eq!(values.lock().unwrap().len(), 50, "every key was loaded by one client");
        served
    }

    fn sound(values: &Values) -> Memory {
        Memory { values: Arc::clone(values), ..Memory::default() }
    }

    #[test]
    fn a_sound_store_is_measured() {
        let served = run_with(sound).unwrap();
        assert!(served.rate > 100.0 && served.p99_us > 0.0, "{served:?}");
    }

    #[test]
    fn a_wrong_bit_and_a_lost_write_are_noticed() {
        let flipping = run_with(|values| Memory { flips_bit: true, ..sound(values) }).unwrap_err();
        assert!(
            matches!(&flipping, HarnessError::Wrong { detail, .. } if detail.contains("1 of 1024 bytes")),
            "{flipping}"
        );
        let losing = run_with(|values| Memory { drops_writes: true, ..sound(values) }).unwrap_err();
        assert!(matches!(losing, HarnessError::Wrong { .. }), "{losing}");
    }

    #[test]
    fn differences_are_told() {
        assert_eq!(describe(b"key:1", None, b"abc"), "WRONG VALUE: key:1 is missing");
        assert!(describe(b"key:1", Some(b"ab"), b"abc").contains("1 of 3 bytes of key:1"));
        assert!(describe(b"key:1", Some(b"abcd"), b"xbc").contains("2 of 3 bytes"));
    }

    #[test]
    fn an_interrupt_ends_the_load() {
        let interrupt = Interrupt::never();
        interrupt.raise();
        let load = Load { server: "a store", keys: 50, seed: 5 };
        let error = run(load, TIMES, &interrupt, || Ok(Memory::default())).unwrap_err();
        assert!(error.is_interrupt());
    }
}
