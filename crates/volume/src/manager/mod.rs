//! What happens away from the path of a page: connections to donors, mapping, moving, recovery.
//!
//! What is to be done is decided by the [`Steward`](crate::steward); the threads here bring it what happened and carry
//! out what follows ([`decisions`]). One thread per donor ([`link`]) keeps a session, answers the donor, and cleans up
//! after it. The manager's thread looks after every slab from time to time and puts leases in place ([`slab_scan`]).
//! The mover's thread fills and drops copies ([`mover`]). They share [`ManagerState`]; slab copy indexes change under
//! the volume's assignment lock only.
//!
//! - [`donor_table`]: the donors, which change while the volume runs. [`donors`]: the link to each.
//! - `dialing` and `opening`: connecting to one, and everything before its first
//!   slab.
//! - [`reach`]: how a session's slabs are reached. - [`reunion`]: slabs that donors kept for a process that died.
//! - [`mapping`]: copy indexes filled and emptied. - [`refill`]: copying pages.
//! - [`slab_scan::findings`]: the last look at all slabs.

pub mod decisions;
pub mod dialing;
pub mod donor_table;
pub mod donors;
pub mod link;
pub mod link_error;
pub mod mapping;
pub mod mover;
mod opening;
pub mod reach;
pub mod refill;
pub mod reunion;
pub mod slab_scan;

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use spillway_fabric::address::DonorAddress;
use spillway_fabric::buffer_pool::BufferPool;
use spillway_fabric::key_source::KeySource;
use spillway_fabric::rdma::port::KeptPorts;
use spillway_fabric::units::{BorrowerId, SlabIndex};

use self::decisions::Decisions;
use self::donor_table::{DonorChangeError, DonorTable};
use self::donors::{DonorEntry, Session};
use self::slab_scan::findings::Findings;
use crate::engine::queue_pairs::{QueuePairMailbox, QueuePairSet};
use crate::limits::LINGER;
use crate::settings::transport::TransportChoice;
use crate::settings::wrapper::QueuePairWrapper;
use crate::slab_map::Volume;
use crate::slab_map::slab_entry::DonorSlot;
use crate::state::records::{DonorPlace, Records};
use crate::steward::{Input, SessionNumber};

/// One thread's end of the fabric: where its new queue pairs are left, and the buffers that they use.
#[derive(Clone)]
pub struct QueuePairHolder {
    /// Where changes are left.
    pub mailbox: Arc<QueuePairMailbox>,
    /// Registered with its queue pairs.
    pub pool: Arc<BufferPool>,
}

/// What the threads of the manager share, see the module text.
pub struct ManagerState {
    /// See [`ManagerParts::stays_on_machine`].
    pub stays_on_machine: bool,
    /// The pages.
    pub volume: Arc<Volume>,
    /// The donors, by slot.
    pub donors: DonorTable,
    /// Every I/O thread's queue pairs, and the mover's.
    pub queue_pairs: Vec<QueuePairHolder>,
    /// Who borrows.
    pub borrower: BorrowerId,
    /// What outlives this process, of donors.
    pub resumption: SessionResumption,
    /// When copies at donors that were not reached any more are given up.
    pub reunion_until: Instant,
    /// The volume's name.
    pub name: String,
    /// The cluster key.
    pub key: Option<KeySource>,
    /// How pages travel.
    pub transport: TransportChoice,
    /// Where buffers are registered for RDMA.
    pub rdma_ports: KeptPorts,
    /// What is put around queue pairs to donors.
    pub wrapper: QueuePairWrapper,
    /// What is to be done with copies.
    pub decisions: Decisions,
    /// The last look at all slabs.
    pub slab_findings: Findings,
    /// The device stops.
    pub stopping: AtomicBool,
}

/// How donors know this borrower, and whether they are to wait for its next process.
pub struct SessionResumption {
    /// What they said.
    pub records: Records,
    /// How long they keep slabs should this process die; zero when no other goes on.
    pub linger: Duration,
}

/// What a manager is made of.
pub struct ManagerParts {
    /// Pages are not sealed only because every donor is of this machine: others are not taken.
    pub stays_on_machine: bool,
    /// The pages.
    pub volume: Arc<Volume>,
    /// The donors at the start, and where each listens.
    pub donors: Vec<(DonorPlace, DonorAddress)>,
    /// Every I/O thread's queue pairs.
    pub io_holders: Vec<QueuePairHolder>,
    /// The mover's queue pairs.
    pub mover_holder: QueuePairHolder,
    /// The mover's queue pairs.
    pub mover_queue_pairs: QueuePairSet,
    /// Who borrows.
    pub borrower: BorrowerId,
    /// What outlives this process, of donors.
    pub resumption: SessionResumption,
    /// The volume's name.
    pub name: String,
    /// The cluster key.
    pub key: Option<KeySource>,
    /// How pages travel.
    pub transport: TransportChoice,
    /// What is put around queue pairs to donors.
    pub wrapper: QueuePairWrapper,
}

/// The running threads.
pub struct Manager {
    /// What they share.
    pub shared: Arc<ManagerState>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Manager {
    /// Starts every thread; donors are reached in the background.
    pub fn start(parts: ManagerParts) -> io::Result<Self> {
        let mover_pool = Arc::clone(&parts.mover_holder.pool);
        let mut queue_pairs = parts.io_holders;
        queue_pairs.push(parts.mover_holder);
        let decisions = Decisions::new(&parts.volume, parts.borrower.0 as u64);
        let shared = Arc::new(ManagerState {
            stays_on_machine: parts.stays_on_machine,
            volume: parts.volume,
            donors: DonorTable::default(),
            queue_pairs,
            borrower: parts.borrower,
            resumption: parts.resumption,
            reunion_until: Instant::now() + LINGER,
            name: parts.name,
            key: parts.key,
            transport: parts.transport,
            rdma_ports: KeptPorts::default(),
            wrapper: parts.wrapper,
            decisions,
            slab_findings: Findings::default(),
            stopping: AtomicBool::new(false),
        });
        let manager = Self { shared: Arc::clone(&shared), threads: Mutex::default() };
        for (DonorPlace { slot, is_leaving, .. }, address) in parts.donors {
            let donor = shared.donors.enter(slot, address, is_leaving);
            if is_leaving {
                // A process before this one began to remove it.
                shared.decide(Input::Removed { donor: slot });
            }
            manager.spawn_link(&donor)?;
        }
        manager.spawn("manager".to_owned(), slab_scan::run)?;
        let refill = refill::Refill::new(Arc::clone(&shared.volume), parts.mover_queue_pairs, mover_pool);
        manager.spawn("mover".to_owned(), move |shared| mover::run(shared, refill))?;
        Ok(manager)
    }

    fn spawn(&self, name: String, body: impl FnOnce(&ManagerState) + Send + 'static) -> io::Result<()> {
        let shared = Arc::clone(&self.shared);
        let thread = std::thread::Builder::new().name(name).spawn(move || body(&shared))?;
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        // Of donors that were removed.
        threads.retain(|thread| !thread.is_finished());
        threads.push(thread);
        Ok(())
    }

    fn spawn_link(&self, donor: &Arc<DonorEntry>) -> io::Result<()> {
        let donor = Arc::clone(donor);
        self.spawn(format!("donor-{}", donor.slot.0), move |shared| link::run(shared, &donor))
    }

    /// Uses another donor from now on, or one again that is being removed.
    pub fn add_donor(&self, address: &DonorAddress) -> Result<(), DonorChangeError> {
        donor_table::add(&self.shared, address, |donor| self.spawn_link(donor))
    }

    /// Brings everything away from a donor, and then uses it no more. Goes on in the background; status shows it.
    pub fn remove_donor(&self, address: &DonorAddress) -> Result<(), DonorChangeError> {
        donor_table::remove(&self.shared, address)
    }

    /// Says goodbye to the donors, which take their slabs back, and ends the threads.
    pub fn stop(&mut self) {
        self.shared.stopping.store(true, Ordering::SeqCst);
        let donors = self.shared.donors.all();
        link::say_goodbye_to_all(&donors);
        // What is under way to a silent one is not waited for any more: the volume goes.
        donors.iter().for_each(|donor| donor.patience().wait_for_sole_copies(None));
        self.shared.volume.manager_event.signal();
        self.shared.decisions.wake();
        let threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            // A panicked thread has said so on stderr; the device is going away.
            let _ = thread.join();
        }
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        self.stop();
    }
}

impl ManagerState {
    /// Whether the device stops.
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    /// Whether copies at `donor` can be counted on: it has a session, and speaks.
    pub fn is_within_reach(&self, donor: DonorSlot) -> bool {
        !self.volume.is_silent(donor) && self.session(donor).is_some()
    }

    /// The session with `donor`, if one is open.
    pub fn session(&self, donor: DonorSlot) -> Option<Arc<Session>> {
        self.donors.get(donor)?.session()
    }

    /// The session with `donor`, if it is still this one.
    pub fn session_numbered(&self, donor: DonorSlot, number: SessionNumber) -> Option<Arc<Session>> {
        self.donors.get(donor)?.session_numbered(number)
    }

    /// Copies of `slab` that exist.
    pub fn copies(&self, slab: SlabIndex) -> usize {
        self.volume.slab(slab).locations().iter().flatten().count()
    }
}
