//! Brings all pages of programs back before a fork that the kernel tells nobody of ("Forks without messages" in docs/pager.md),
//! and keeps them until it is over.
//!
//! While there is a gathering its programs are *held*: no batch of evictions begins for them, and their faults wait for no budget.
//! Pages are asked of the fault thread, some hundred at a time, until the page table knows of none that is away. Nothing can be
//! away then: what the program does meanwhile (moves, removes, unmaps) takes no page out of its memory.
//!
//! No I/O here: time and the machine's memory are told.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use spillway_fabric::units::PAGE_SIZE_BYTES;

use super::limits::{FORK_ASK_AGAIN, FORK_PAGES_ASKED_MAX, FORK_PATIENCE, FORK_RESERVE_BYTES};
use super::shared::{Shared, Tenant, Wanted};

/// How far a gathering is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Gathered {
    /// Pages are still away.
    NotYet,
    /// Every page is there, and stays.
    All,
    /// It cannot be, for this reason.
    Never(String),
}

/// See the module text. Dropping it lets pages leave again.
pub struct Gathering {
    shared: Arc<Shared>,
    parts: Vec<Part>,
}

/// One program of a gathering.
struct Part {
    tenant: Arc<Tenant>,
    /// Pages of it that nobody could read, before.
    unread_before: u64,
    /// Whether it was asked if the machine has room for them.
    has_room: bool,
    /// Pages that were away at the last look at all, and were not asked for yet.
    missing: Vec<u64>,
    /// Pages that were asked for and are still away.
    asked: Vec<u64>,
    asked_at: Instant,
    progress_at: Instant,
}

impl Gathering {
    /// Holds `tenants` from now on.
    pub fn begin(shared: &Arc<Shared>, tenants: Vec<Arc<Tenant>>, now: Instant) -> Self {
        let parts = tenants.into_iter().map(|tenant| Part::begin(tenant, now)).collect();
        Self { shared: Arc::clone(shared), parts }
    }

    /// Does what can be done now. `available_bytes` is the machine's memory that is not used.
    pub fn look(&mut self, now: Instant, available_bytes: &dyn Fn() -> u64) -> Gathered {
        let mut gathered = Gathered::All;
        for part in &mut self.parts {
            match part.look(&self.shared, now, available_bytes) {
                Gathered::All => {}
                Gathered::NotYet => gathered = Gathered::NotYet,
                never @ Gathered::Never(_) => return never,
            }
        }
        gathered
    }

    /// The programs fork from now on: their pages may be shared (rule 2).
    pub fn share(&self) {
        for part in &self.parts {
            part.tenant.has_forked.store(true, Ordering::Relaxed);
            part.tenant.has_forked_untold.store(true, Ordering::Relaxed);
        }
    }
}

impl Drop for Gathering {
    fn drop(&mut self) {
        self.parts.iter().for_each(|part| part.tenant.release());
        self.shared.eviction.signal();
    }
}

impl Part {
    fn begin(tenant: Arc<Tenant>, now: Instant) -> Self {
        tenant.hold();
        let unread_before = tenant.unread.load(Ordering::SeqCst);
        let (missing, asked) = (Vec::new(), Vec::new());
        Self { tenant, unread_before, has_room: false, missing, asked, asked_at: now, progress_at: now }
    }

    fn look(&mut self, shared: &Shared, now: Instant, available_bytes: &dyn Fn() -> u64) -> Gathered {
        if self.tenant.is_gone() {
            return Gathered::All;
        }
        if self.tenant.unread.load(Ordering::SeqCst) > self.unread_before {
            return Gathered::Never("a page of it cannot be read".to_owned());
        }
        let tenant = Arc::clone(&self.tenant);
        let table = tenant.lock();
        let asked_before = self.asked.len();
        self.asked.retain(|address| table.space.is_away(*address));
        if self.asked.len() < asked_before {
            self.progress_at = now;
        }
        if table.batch || !self.asked.is_empty() {
            drop(table);
            return self.wait(shared, now);
        }
        if self.missing.is_empty() {
            self.missing = table.space.away();
        }
        drop(table);
        if self.missing.is_empty() {
            return Gathered::All;
        }
        if !std::mem::replace(&mut self.has_room, true) {
            let wanted_bytes = (self.missing.len() * PAGE_SIZE_BYTES) as u64;
            if wanted_bytes + FORK_RESERVE_BYTES > available_bytes() {
                return Gathered::Never("the machine has no memory for all of its pages".to_owned());
            }
        }
        let first = self.missing.len().saturating_sub(FORK_PAGES_ASKED_MAX);
        self.asked = self.missing.split_off(first);
        self.ask(shared, now);
        Gathered::NotYet
    }

    fn wait(&mut self, shared: &Shared, now: Instant) -> Gathered {
        if now.saturating_duration_since(self.progress_at) >= FORK_PATIENCE {
            return Gathered::Never(format!("its pages do not come back within {} s", FORK_PATIENCE.as_secs()));
        }
        if now.saturating_duration_since(self.asked_at) >= FORK_ASK_AGAIN {
            self.ask(shared, now);
        }
        Gathered::NotYet
    }

    fn ask(&mut self, shared: &Shared, now: Instant) {
        shared.want(self.asked.iter().map(|address| Wanted {
            space: self.tenant.id,
            address: *address,
            is_writable: true,
        }));
        self.asked_at = now;
    }
}
