//! One I/O thread's queue pairs: one per donor, one to the backing file, and the sub-requests in flight on them.
//!
//! A sub-request is one posted request. Its number is the tag, so a completion finds its owner without a search. When
//! a donor is replaced or lost, the old queue pair is halted: otherwise its device would still write to buffers of
//! reads, and send those of writes, when they belong to other requests. Then its sub-requests are orphaned and end with
//! [`RequestError::Down`] at the next poll: every posted sub-request ends exactly once, or is abandoned by its owner
//! ([`QueuePairSet::abandon`]) and never heard of again.
//!
//! Prefetches in flight on a queue pair are bounded twice: by its credits, and by their bytes. A donor answers a
//! connection in order, so a fault waits for what was asked for before it.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use spillway_fabric::queue_pair::{Operation, PostError, QueuePair, Request, RequestError};
use spillway_fabric::units::{BufferRange, Priority, RemoteAddress, Tag};
use spillway_sys::mapping::Mapping;

use crate::limits::{
    DONORS_MAX, NETWORK_BYTES_PER_US, PREFETCHED_BYTES_FAR, PREFETCHED_BYTES_NEAR, SUB_REQUESTS_MAX,
    SUB_REQUESTS_RESERVED,
};
use crate::slab_map::donor_latency::{DonorLatencies, QueuePairWaits};
use crate::slab_map::slab_entry::DonorSlot;

/// Where a sub-request goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// A donor.
    Donor(DonorSlot),
    /// The backing file.
    Disk,
}

/// What a sub-request is to its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubRequest {
    /// The request slot that posted it.
    pub owner: usize,
    /// The copy's index in the slab entry; meaningless for the disk.
    pub copy_index: usize,
    /// Where it went.
    pub target: Target,
    /// Its class for credits.
    pub priority: Priority,
}

/// A new queue pair for a donor, or none any more.
pub struct QueuePairChange {
    /// The donor.
    pub donor: DonorSlot,
    /// What to use from now on.
    pub queue_pair: Option<Box<dyn QueuePair>>,
}

/// Where the manager leaves changes for an I/O thread, and takes old queue pairs away: freeing is not for I/O threads.
#[derive(Default)]
pub struct QueuePairMailbox {
    changed: AtomicBool,
    changes: Mutex<Vec<QueuePairChange>>,
    retired: Mutex<Vec<Box<dyn QueuePair>>>,
}

impl QueuePairMailbox {
    /// An empty mailbox with room for a change of every donor.
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            changed: AtomicBool::new(false),
            changes: Mutex::new(Vec::with_capacity(DONORS_MAX)),
            retired: Mutex::new(Vec::with_capacity(RETIRED_MAX)),
        })
    }

    /// Leaves a change; the I/O thread sees it before it looks at any copy index filled later. Also frees what was
    /// retired.
    pub fn leave(&self, change: QueuePairChange) {
        self.sweep();
        let mut changes = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        // Only the last change of a donor counts, so an idle thread's mailbox stays small.
        let overtaken = match changes.iter_mut().find(|other| other.donor == change.donor) {
            Some(other) => Some(std::mem::replace(other, change)),
            None => {
                changes.push(change);
                None
            }
        };
        drop(changes);
        drop(overtaken);
        self.changed.store(true, Ordering::SeqCst);
    }

    /// Frees retired queue pairs.
    pub fn sweep(&self) {
        let mut retired = self.retired.lock().unwrap_or_else(PoisonError::into_inner);
        if retired.is_empty() {
            return;
        }
        // Freed outside the lock, which the I/O thread takes too: closing a window takes its time.
        let old = std::mem::replace(&mut *retired, Vec::with_capacity(RETIRED_MAX));
        drop(retired);
        drop(old);
    }
}

/// A queue pair's place in what is counted by queue pair.
fn place_of(target: Target) -> usize {
    match target {
        Target::Donor(donor) => usize::from(donor.0),
        Target::Disk => DONORS_MAX,
    }
}

/// How many bytes prefetches in flight may bring over a queue pair before no other is posted: twice what a network
/// carries while its fastest read takes.
fn prefetched_bytes_max(fastest_read: Option<Duration>) -> u64 {
    let microseconds = fastest_read.map_or(0, |time| time.as_micros() as u64);
    microseconds.saturating_mul(2 * NETWORK_BYTES_PER_US).clamp(PREFETCHED_BYTES_NEAR, PREFETCHED_BYTES_FAR)
}

/// Retired queue pairs between two sweeps: at most one change of each donor is adopted between two calls of `leave`.
const RETIRED_MAX: usize = 4 * DONORS_MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flight {
    Free,
    Posted,
    Orphaned,
    /// Its owner waits for it no more.
    Abandoned,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    sub_request: SubRequest,
    flight: Flight,
    posted: Instant,
    is_read: bool,
    /// Bytes that it brings ahead of need.
    prefetched_bytes: u64,
}

/// The queue pairs of one I/O thread, see the module text.
pub struct QueuePairSet {
    donors: Box<[Option<Box<dyn QueuePair>>]>,
    disk: Option<Box<dyn QueuePair>>,
    entries: Box<[Entry]>,
    free: Vec<u32>,
    /// What prefetches in flight bring, by queue pair; the last is the disk's.
    prefetched_bytes: [u64; DONORS_MAX + 1],
    /// How long the fastest read took, by queue pair: how far its donor is.
    fastest_reads: [Option<Duration>; DONORS_MAX + 1],
    orphans: usize,
    mailbox: Arc<QueuePairMailbox>,
    watch: Option<Watch>,
}

/// Where the queue pairs tell how fast donors answer.
struct Watch {
    latencies: Arc<DonorLatencies>,
    waits: Arc<QueuePairWaits>,
}

impl QueuePairSet {
    /// No donor yet; they come through `mailbox`.
    pub fn new(mailbox: Arc<QueuePairMailbox>, disk: Option<Box<dyn QueuePair>>) -> Self {
        let sub_request = SubRequest { owner: 0, copy_index: 0, target: Target::Disk, priority: Priority::Demand };
        Self {
            donors: (0..DONORS_MAX).map(|_| None).collect(),
            disk,
            entries: vec![
                Entry {
                    sub_request,
                    flight: Flight::Free,
                    posted: Instant::now(),
                    is_read: false,
                    prefetched_bytes: 0
                };
                SUB_REQUESTS_MAX
            ]
            .into_boxed_slice(),
            free: (0..SUB_REQUESTS_MAX as u32).rev().collect(),
            prefetched_bytes: [0; DONORS_MAX + 1],
            fastest_reads: [None; DONORS_MAX + 1],
            orphans: 0,
            mailbox,
            watch: None,
        }
    }

    /// The same queue pairs, which tell `latencies` how fast donors answer.
    pub fn watched_by(self, latencies: &Arc<DonorLatencies>) -> Self {
        let watch = Watch { latencies: Arc::clone(latencies), waits: latencies.new_holder() };
        Self { watch: Some(watch), ..self }
    }

    /// Takes what the manager left. Called before any copy index is looked at; costs one load when nothing changed.
    pub fn adopt(&mut self) {
        if !self.mailbox.changed.swap(false, Ordering::SeqCst) {
            return;
        }
        let mailbox = Arc::clone(&self.mailbox);
        let mut changes = mailbox.changes.lock().unwrap_or_else(PoisonError::into_inner);
        changes.retain_mut(|change| {
            let place = usize::from(change.donor.0);
            if self.donors[place].as_mut().is_some_and(|old| !old.halt()) {
                // Its buffers are still its own; the next call tries again.
                mailbox.changed.store(true, Ordering::SeqCst);
                return true;
            }
            self.orphan(change.donor);
            self.fastest_reads[place] = None;
            let old = std::mem::replace(&mut self.donors[place], change.queue_pair.take());
            if let Some(old) = old {
                mailbox.retired.lock().unwrap_or_else(PoisonError::into_inner).push(old);
            }
            false
        });
    }

    /// Whether the manager left something since the last [`QueuePairSet::adopt`]: then copy indexes may name donors
    /// by queue pairs that this thread does not have yet.
    pub fn has_news(&self) -> bool {
        self.mailbox.changed.load(Ordering::SeqCst)
    }

    fn orphan(&mut self, donor: DonorSlot) {
        for (number, entry) in self.entries.iter_mut().enumerate() {
            match entry.flight {
                _ if entry.sub_request.target != Target::Donor(donor) => {}
                Flight::Posted => {
                    entry.flight = Flight::Orphaned;
                    self.orphans += 1;
                }
                Flight::Abandoned => {
                    entry.flight = Flight::Free;
                    self.free.push(number as u32);
                    self.prefetched_bytes[place_of(entry.sub_request.target)] -= entry.prefetched_bytes;
                }
                Flight::Free | Flight::Orphaned => {}
            }
        }
        if let Some(watch) = &self.watch {
            watch.waits.owes_nothing(donor);
        }
    }

    /// Lets go of all that `owner` has in flight, which are reads from donors: what still comes touches nothing of
    /// it. False if that cannot be done with one of them; then `owner` still waits for all of them.
    pub fn abandon(&mut self, owner: usize) -> bool {
        let is_owners = |entry: &Entry| entry.flight != Flight::Free && entry.sub_request.owner == owner;
        let can_be_let_go = |entry: &Entry| {
            let Target::Donor(donor) = entry.sub_request.target else { return false };
            let over_socket = self.donors[usize::from(donor.0)].as_ref().is_some_and(|pair| pair.can_abandon());
            entry.flight == Flight::Abandoned || (entry.flight == Flight::Posted && entry.is_read && over_socket)
        };
        if !self.entries.iter().filter(|entry| is_owners(entry)).all(can_be_let_go) {
            return false;
        }
        for (number, entry) in self.entries.iter_mut().enumerate() {
            let Target::Donor(donor) = entry.sub_request.target else { continue };
            if entry.flight == Flight::Posted && entry.sub_request.owner == owner {
                let queue_pair = self.donors[usize::from(donor.0)].as_mut().expect("looked at above");
                assert!(
                    queue_pair.abandon(Tag(number as u32)),
                    "a read over a socket that has not ended can be let go"
                );
                entry.flight = Flight::Abandoned;
            }
        }
        true
    }

    /// Whether requests to `donor` have a chance.
    pub fn is_usable(&self, donor: DonorSlot) -> bool {
        self.donors[usize::from(donor.0)].as_ref().is_some_and(|queue_pair| !queue_pair.is_down())
    }

    /// Where the `length_bytes` at `remote` lie, if `donor` is reached through memory that is mapped here.
    pub fn mapped(&self, donor: DonorSlot, remote: RemoteAddress, length_bytes: usize) -> Option<(&Mapping, usize)> {
        self.donors[usize::from(donor.0)].as_ref()?.mapped(remote, length_bytes)
    }

    /// Posts one sub-request.
    pub fn post(
        &mut self,
        sub_request: SubRequest,
        operation: Operation,
        remote: RemoteAddress,
        buffer: BufferRange,
        now: Instant,
    ) -> Result<(), PostError> {
        let queue_pair = match sub_request.target {
            Target::Donor(donor) => self.donors[usize::from(donor.0)].as_mut(),
            Target::Disk => self.disk.as_mut(),
        };
        let queue_pair = queue_pair.ok_or(PostError::Down)?;
        let place = place_of(sub_request.target);
        let is_prefetch = sub_request.priority == Priority::Prefetch;
        let prefetched_bytes = if is_prefetch { u64::from(buffer.length_bytes) } else { 0 };
        if is_prefetch && self.prefetched_bytes[place] >= prefetched_bytes_max(self.fastest_reads[place])
            || sub_request.priority != Priority::Demand && self.free.len() <= SUB_REQUESTS_RESERVED
        {
            return Err(PostError::Busy);
        }
        let number = self.free.pop().ok_or(PostError::Busy)?;
        let was_idle = queue_pair.in_flight() == 0;
        let request = Request { operation, remote, buffer, tag: Tag(number), priority: sub_request.priority };
        if let Err(error) = queue_pair.post(request, now) {
            self.free.push(number);
            return Err(error);
        }
        let is_read = operation == Operation::Read;
        self.entries[number as usize] =
            Entry { sub_request, flight: Flight::Posted, posted: now, is_read, prefetched_bytes };
        self.prefetched_bytes[place] += prefetched_bytes;
        if let (true, Target::Donor(donor), Some(watch)) = (was_idle, sub_request.target, &self.watch) {
            watch.waits.owes(donor, now);
        }
        Ok(())
    }

    /// Moves bytes, and tells `ended` every sub-request that ended.
    pub fn poll(&mut self, now: Instant, ended: &mut dyn FnMut(SubRequest, Result<(), RequestError>)) {
        if self.in_flight() == 0 {
            return;
        }
        let (entries, free, watch) = (&mut self.entries, &mut self.free, &self.watch);
        let (prefetched_bytes, fastest_reads) = (&mut self.prefetched_bytes, &mut self.fastest_reads);
        let mut complete = |completion: spillway_fabric::queue_pair::Completion, is_watched: bool| {
            let entry = &mut entries[completion.tag.0 as usize];
            assert!(matches!(entry.flight, Flight::Posted | Flight::Abandoned), "a sub-request ends once");
            let is_heard = entry.flight == Flight::Posted;
            entry.flight = Flight::Free;
            free.push(completion.tag.0);
            let place = place_of(entry.sub_request.target);
            prefetched_bytes[place] -= entry.prefetched_bytes;
            let time = now.saturating_duration_since(entry.posted);
            if entry.is_read && completion.result.is_ok() && fastest_reads[place].is_none_or(|fastest| time < fastest) {
                fastest_reads[place] = Some(time);
            }
            if let (true, true, Target::Donor(donor), Some(watch)) =
                (is_watched, entry.is_read, entry.sub_request.target, watch)
                && completion.result.is_ok()
            {
                watch.latencies.record_read(donor, now.saturating_duration_since(entry.posted), now);
            }
            if is_heard {
                ended(entry.sub_request, completion.result);
            }
        };
        for (slot, queue_pair) in self.donors.iter_mut().enumerate() {
            let Some(queue_pair) = queue_pair.as_mut().filter(|queue_pair| queue_pair.in_flight() > 0) else {
                continue;
            };
            // One whose memory is mapped here answers while it is polled: there is nothing to wait for.
            let is_watched = queue_pair.event().is_some();
            let count = queue_pair.poll(now, &mut |completion| complete(completion, is_watched));
            if let (true, Some(watch)) = (count > 0, watch) {
                let donor = DonorSlot(slot as u16);
                if queue_pair.in_flight() > 0 { watch.waits.owes(donor, now) } else { watch.waits.owes_nothing(donor) }
            }
        }
        if let Some(disk) = self.disk.as_mut().filter(|disk| disk.in_flight() > 0) {
            disk.poll(now, &mut |completion| complete(completion, false));
        }
        self.end_orphans(ended);
    }

    fn end_orphans(&mut self, ended: &mut dyn FnMut(SubRequest, Result<(), RequestError>)) {
        if self.orphans == 0 {
            return;
        }
        self.orphans = 0;
        for (number, entry) in self.entries.iter_mut().enumerate() {
            if entry.flight == Flight::Orphaned {
                entry.flight = Flight::Free;
                self.free.push(number as u32);
                self.prefetched_bytes[place_of(entry.sub_request.target)] -= entry.prefetched_bytes;
                ended(entry.sub_request, Err(RequestError::Down));
            }
        }
    }

    /// Sub-requests posted and not ended, those that were abandoned among them.
    pub fn in_flight(&self) -> usize {
        SUB_REQUESTS_MAX - self.free.len()
    }

    /// Asks for the events of all queue pairs that owe something. True: something came meanwhile.
    pub fn arm(&mut self) -> bool {
        let mut came = false;
        for queue_pair in self.donors.iter_mut().flatten().chain(self.disk.as_mut()) {
            came |= queue_pair.in_flight() > 0 && queue_pair.arm();
        }
        came
    }

    /// Descriptors to wait on while sub-requests are in flight, and whether each waits to write.
    pub fn for_each_event<'a>(&'a self, visit: &mut dyn FnMut(BorrowedFd<'a>, bool)) {
        for queue_pair in self.donors.iter().flatten().chain(self.disk.as_ref()) {
            if queue_pair.in_flight() > 0
                && let Some(event) = queue_pair.event()
            {
                visit(event, queue_pair.wants_write());
            }
        }
    }

    /// Whether some sub-request in flight ends by polling alone.
    pub fn needs_polling(&self) -> bool {
        self.orphans > 0
            || self.donors.iter().flatten().any(|queue_pair| queue_pair.in_flight() > 0 && queue_pair.event().is_none())
    }
}
