//! How long donors take to answer reads, which of them are slow now, and how long a read waits before another copy is
//! asked.
//!
//! A donor may be slow and alive: it swaps, its network drops packets, its process is stopped while heartbeats go on.
//! Such a donor is not given up, which would lose its copies; what others have too is read from them.
//!
//! - A read waits for ten times the usual 99th percentile, within bounds. Usual is the lowest of all donors that
//!   answered often enough lately: a slow donor must not make its own slowness usual.
//! - A donor that let a read wait that long is *avoided* for a pause, then tried again. The pause doubles each time,
//!   and starts anew after an answer in time.
//!
//! I/O threads record and ask, with a few atomic operations and no allocation; the manager's thread reckons
//! ([`DonorLatencies::tick`]).

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use spillway_block::latency::LatencyHistogram;

use super::slab_entry::DonorSlot;
use crate::limits::{
    AVOIDANCE_MAX, AVOIDANCE_MIN, AVOIDANCE_TOLD, DONORS_MAX, LATENCY_WINDOW, READ_PATIENCE_DEFAULT,
    READ_PATIENCE_FACTOR, READ_PATIENCE_MAX, READ_PATIENCE_MIN, USUAL_READS_MIN,
};
use crate::status::DonorLatencyStatus;

/// What is known of the donors of a volume, see the module text. Moments are nanoseconds since it was made.
#[derive(Debug)]
pub struct DonorLatencies {
    begun: Instant,
    read_patience_ns: AtomicU64,
    /// The donors that are avoided, a bit each; the end of their pauses is looked at only where a bit is set.
    avoided: AtomicU64,
    donors: Box<[Donor]>,
    /// The half of each donor's histograms that is written now.
    current: AtomicUsize,
    next_turn_ns: AtomicU64,
    queue_pairs: Mutex<Vec<Arc<QueuePairWaits>>>,
}

#[derive(Debug, Default)]
struct Donor {
    /// The last [`LATENCY_WINDOW`] and the one before; made when a session begins.
    recent: OnceLock<[LatencyHistogram; 2]>,
    avoided_until_ns: AtomicU64,
    pause_ns: AtomicU64,
    reads_taken_elsewhere: AtomicU64,
}

/// For each donor, since when a thread's connection has owed an answer; zero when it owes none.
#[derive(Debug)]
pub struct QueuePairWaits {
    begun: Instant,
    since_ns: Box<[AtomicU64]>,
}

impl QueuePairWaits {
    /// The connection to `donor` was posted to, or brought an answer, and owes more.
    pub fn owes(&self, donor: DonorSlot, now: Instant) {
        // Zero would be nothing.
        self.since_ns[usize::from(donor.0)].store(moment(self.begun, now).max(1), Ordering::Relaxed);
    }

    /// It owes nothing.
    pub fn owes_nothing(&self, donor: DonorSlot) {
        self.since_ns[usize::from(donor.0)].store(0, Ordering::Relaxed);
    }
}

fn moment(begun: Instant, now: Instant) -> u64 {
    nanoseconds(now.saturating_duration_since(begun))
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl Default for DonorLatencies {
    fn default() -> Self {
        Self {
            begun: Instant::now(),
            read_patience_ns: AtomicU64::new(nanoseconds(READ_PATIENCE_DEFAULT)),
            avoided: AtomicU64::new(0),
            donors: (0..DONORS_MAX).map(|_| Donor::default()).collect(),
            current: AtomicUsize::new(0),
            next_turn_ns: AtomicU64::new(nanoseconds(LATENCY_WINDOW)),
            queue_pairs: Mutex::default(),
        }
    }
}

impl DonorLatencies {
    /// A session with `donor` begins: nothing of the last one counts.
    pub fn begin_session(&self, donor: DonorSlot) {
        let known = &self.donors[usize::from(donor.0)];
        known.recent.get_or_init(Default::default).iter().for_each(LatencyHistogram::clear);
        known.pause_ns.store(0, Ordering::Relaxed);
        self.avoided.fetch_and(!(1 << donor.0), Ordering::Relaxed);
    }

    /// `donor` is used no more: nothing of it is told of the next one in its slot.
    pub fn forget(&self, donor: DonorSlot) {
        self.begin_session(donor);
        self.donors[usize::from(donor.0)].reads_taken_elsewhere.store(0, Ordering::Relaxed);
    }

    /// Where a thread's queue pairs say what they wait for.
    pub fn new_holder(&self) -> Arc<QueuePairWaits> {
        let since_ns = (0..DONORS_MAX).map(|_| AtomicU64::new(0)).collect();
        let holder = Arc::new(QueuePairWaits { begun: self.begun, since_ns });
        self.queue_pairs.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&holder));
        holder
    }

    /// `donor` answered a read after `latency`.
    pub fn record_read(&self, donor: DonorSlot, latency: Duration, now: Instant) {
        let known = &self.donors[usize::from(donor.0)];
        if let Some(recent) = known.recent.get() {
            recent[self.current.load(Ordering::Relaxed)].record(latency);
        }
        if latency >= self.read_patience() {
            self.avoid(donor, now);
        } else if known.pause_ns.load(Ordering::Relaxed) > 0 && !self.is_avoided(donor, now) {
            known.pause_ns.store(0, Ordering::Relaxed);
        }
    }

    /// A read that `donor` owes was asked of another copy.
    pub fn taken_elsewhere(&self, donor: DonorSlot, now: Instant) {
        self.donors[usize::from(donor.0)].reads_taken_elsewhere.fetch_add(1, Ordering::Relaxed);
        self.avoid(donor, now);
    }

    fn avoid(&self, donor: DonorSlot, now: Instant) {
        let (known, now_ns) = (&self.donors[usize::from(donor.0)], moment(self.begun, now));
        // What was posted before the pause began says nothing new.
        if now_ns < known.avoided_until_ns.load(Ordering::Relaxed) {
            return;
        }
        let before_ns = known.pause_ns.load(Ordering::Relaxed);
        let pause_ns = (before_ns * 2).clamp(nanoseconds(AVOIDANCE_MIN), nanoseconds(AVOIDANCE_MAX));
        known.pause_ns.store(pause_ns, Ordering::Relaxed);
        known.avoided_until_ns.store(now_ns.saturating_add(pause_ns), Ordering::Relaxed);
        self.avoided.fetch_or(1 << donor.0, Ordering::Relaxed);
    }

    /// Whether what others have too is read from them. An old answer costs a wait.
    pub fn is_avoided(&self, donor: DonorSlot, now: Instant) -> bool {
        let mask = 1 << donor.0;
        if self.avoided.load(Ordering::Relaxed) & mask == 0 {
            return false;
        }
        let until_ns = self.donors[usize::from(donor.0)].avoided_until_ns.load(Ordering::Relaxed);
        if moment(self.begun, now) < until_ns {
            return true;
        }
        self.avoided.fetch_and(!mask, Ordering::Relaxed);
        false
    }

    /// How long a read waits before another copy is asked.
    pub fn read_patience(&self) -> Duration {
        Duration::from_nanos(self.read_patience_ns.load(Ordering::Relaxed))
    }

    /// Sets it, until [`DonorLatencies::tick`] reckons it anew.
    pub fn set_read_patience(&self, patience: Duration) {
        self.read_patience_ns.store(nanoseconds(patience), Ordering::Relaxed);
    }

    /// Reckons what is usual; from time to time the older half of what is recent is forgotten. One thread at a time.
    pub fn tick(&self, now: Instant) {
        let usual = self.donors.iter().filter_map(|known| known.recent.get()).filter_map(|recent| {
            let (latency, reads) = LatencyHistogram::merged(recent.iter());
            (reads >= USUAL_READS_MIN).then_some(latency.p99_us)
        });
        if let Some(p99_us) = usual.min_by(f64::total_cmp) {
            let patience = Duration::from_nanos((p99_us * READ_PATIENCE_FACTOR * 1e3) as u64);
            self.set_read_patience(patience.clamp(READ_PATIENCE_MIN, READ_PATIENCE_MAX));
        }
        let now_ns = moment(self.begun, now);
        if now_ns >= self.next_turn_ns.load(Ordering::Relaxed) {
            self.next_turn_ns.store(now_ns + nanoseconds(LATENCY_WINDOW), Ordering::Relaxed);
            let older = 1 - self.current.load(Ordering::Relaxed);
            self.donors.iter().filter_map(|known| known.recent.get()).for_each(|recent| recent[older].clear());
            self.current.store(older, Ordering::Relaxed);
        }
    }

    /// What users are told of `donor`.
    pub fn status(&self, donor: DonorSlot, now: Instant) -> DonorLatencyStatus {
        let known = &self.donors[usize::from(donor.0)];
        let (reads, _) = known.recent.get().map(|recent| LatencyHistogram::merged(recent.iter())).unwrap_or_default();
        let now_ns = moment(self.begun, now);
        let queue_pairs = self.queue_pairs.lock().unwrap_or_else(PoisonError::into_inner);
        let owed = queue_pairs.iter().map(|holder| holder.since_ns[usize::from(donor.0)].load(Ordering::Relaxed));
        let oldest_ns = owed.filter(|since_ns| *since_ns > 0).min();
        let is_told = known.pause_ns.load(Ordering::Relaxed) >= nanoseconds(AVOIDANCE_TOLD);
        DonorLatencyStatus {
            reads,
            waiting_us: oldest_ns.map_or(0.0, |since_ns| now_ns.saturating_sub(since_ns) as f64 / 1e3),
            is_slow: is_told,
            reads_taken_elsewhere: known.reads_taken_elsewhere.load(Ordering::Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOW: DonorSlot = DonorSlot(0);
    const FAST: DonorSlot = DonorSlot(1);

    fn with_sessions() -> (DonorLatencies, Instant) {
        let latencies = DonorLatencies::default();
        [SLOW, FAST].into_iter().for_each(|donor| latencies.begin_session(donor));
        let begun = latencies.begun;
        (latencies, begun)
    }

    #[test]
    fn patience_is_ten_times_what_the_fastest_donor_needs() {
        let (latencies, begun) = with_sessions();
        assert_eq!(latencies.read_patience(), READ_PATIENCE_DEFAULT);
        for _ in 0..USUAL_READS_MIN {
            latencies.record_read(FAST, Duration::from_millis(5), begun);
            latencies.record_read(SLOW, Duration::from_millis(500), begun);
        }
        latencies.tick(begun);
        let patience = latencies.read_patience().as_secs_f64();
        assert!((0.045..0.055).contains(&patience), "{patience}");
        let (latencies, begun) = with_sessions();
        (0..USUAL_READS_MIN).for_each(|_| latencies.record_read(FAST, Duration::from_micros(20), begun));
        latencies.tick(begun);
        assert_eq!(latencies.read_patience(), READ_PATIENCE_MIN);
    }

    #[test]
    fn a_slow_donor_is_avoided_for_pauses_that_grow_until_it_answers_in_time() {
        let (latencies, mut now) = with_sessions();
        let mut pause = AVOIDANCE_MIN;
        for _ in 0..4 {
            assert!(!latencies.is_avoided(SLOW, now));
            latencies.taken_elsewhere(SLOW, now);
            // The others that were posted with it say nothing new.
            latencies.record_read(SLOW, READ_PATIENCE_DEFAULT, now);
            assert!(latencies.is_avoided(SLOW, now + pause - Duration::from_millis(1)), "{pause:?}");
            assert!(!latencies.is_avoided(FAST, now));
            now += pause;
            pause *= 2;
        }
        assert!(latencies.status(SLOW, now).reads_taken_elsewhere == 4);
        assert!(!latencies.is_avoided(SLOW, now));
        latencies.record_read(SLOW, Duration::from_micros(20), now);
        latencies.taken_elsewhere(SLOW, now);
        assert!(!latencies.is_avoided(SLOW, now + AVOIDANCE_MIN), "the pause began anew");
    }

    #[test]
    fn lasting_slowness_is_told_and_a_hiccup_is_not() {
        let (latencies, mut now) = with_sessions();
        latencies.taken_elsewhere(SLOW, now);
        assert!(!latencies.status(SLOW, now).is_slow);
        for _ in 0..8 {
            now += AVOIDANCE_MAX;
            latencies.record_read(SLOW, Duration::from_secs(1), now);
        }
        assert!(latencies.status(SLOW, now).is_slow);
        assert!(!latencies.status(FAST, now).is_slow);
        latencies.begin_session(SLOW);
        assert_eq!(latencies.status(SLOW, now).reads.p99_us, 0.0);
        assert!(
            !latencies.status(SLOW, now).is_slow && !latencies.is_avoided(SLOW, now),
            "a new session is a new donor"
        );
    }

    #[test]
    fn the_oldest_wait_of_all_threads_is_told() {
        let (latencies, begun) = with_sessions();
        let queue_pairs = [latencies.new_holder(), latencies.new_holder()];
        let at = |milliseconds| begun + Duration::from_millis(milliseconds);
        assert_eq!(latencies.status(SLOW, at(9)).waiting_us, 0.0);
        queue_pairs[0].owes(SLOW, at(3));
        queue_pairs[1].owes(SLOW, at(5));
        assert_eq!(latencies.status(SLOW, at(9)).waiting_us, 6000.0);
        queue_pairs[0].owes_nothing(SLOW);
        assert_eq!(latencies.status(SLOW, at(9)).waiting_us, 4000.0);
    }

    #[test]
    fn what_is_old_is_forgotten() {
        let (latencies, begun) = with_sessions();
        latencies.record_read(FAST, Duration::from_millis(900), begun);
        let mut now = begun;
        for _ in 0..2 {
            now += LATENCY_WINDOW;
            latencies.tick(now);
            latencies.record_read(FAST, Duration::from_micros(20), now);
        }
        assert!(latencies.status(FAST, now).reads.p99_us < 100.0);
    }
}
