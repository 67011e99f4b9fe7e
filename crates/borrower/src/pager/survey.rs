//! Knows the programs: who says hello, how much memory each has, which of it may be paged, and who has ended.
//!
//! Nothing is asked of a program until the budget is nearly reached; then its mappings are registered as a whole and probed
//! (rules 1 and 3 of docs/pager.md), and what is resident in them is told to the policy. All of /proc is read here, never on the
//! fault thread (rule 13).

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use spillway_fabric::units::PAGE_SIZE_BYTES;
use spillway_stub::arena::Arena;
use spillway_stub::greeting::{GreetingError, Listener, Visitor};
use spillway_stub::protocol::{Hello, HelloKind, Verdict, Welcome};
use spillway_sys::pagemap::{Categories, Query, Region};
use spillway_sys::userfaultfd::{Features, PageError, Userfaultfd};

use super::agent::SeatAgent;
use super::limits::{
    GREETING_DEADLINE, GROWTH_BYTES_PER_SECOND, LOOK_INTERVAL_MAX, LOOK_INTERVAL_MIN, REGIONS_MAX, REGISTER_INTERVAL,
};
use super::maps;
use super::process::Process;
use super::shared::{Shared, Tenant, lock};
use super::space::Space;

/// What a userfaultfd must tell for its program to be paged.
const FEATURES: Features = Features(
    Features::WRITE_PROTECT.0
        | Features::FORK.0
        | Features::REMAP.0
        | Features::REMOVE.0
        | Features::UNMAP.0
        | Features::THREAD.0
        | Features::MOVE.0,
);

/// An address space, as the survey sees it.
struct Resident {
    tenant: Arc<Tenant>,
    process: Option<Process>,
    seat: Option<u32>,
    /// The stub's own memory (rule 7).
    excluded: Vec<Range<u64>>,
    registered_at: Option<Instant>,
}

/// See the module text.
pub struct Survey {
    shared: Arc<Shared>,
    listener: Listener,
    arena: Arc<Arena>,
    seats_free: Vec<u32>,
    residents: Vec<Resident>,
    regions: Vec<Region>,
    /// The budget was nearly reached once: mappings are registered from now on.
    is_paging: bool,
}

impl Survey {
    /// Programs say hello at `listener`, and get `arena`.
    pub fn new(shared: Arc<Shared>, listener: Listener, arena: Arc<Arena>) -> Self {
        let seats_free = (0..arena.plan().seats).rev().collect();
        let regions = vec![Region::default(); REGIONS_MAX];
        Self { shared, listener, arena, seats_free, residents: Vec::new(), regions, is_paging: false }
    }

    /// Where programs say hello.
    pub fn listener(&self) -> &Listener {
        &self.listener
    }

    /// Looks at everything once; how long to wait until the next look.
    pub fn look(&mut self, now: Instant) -> Duration {
        self.greet();
        self.adopt_children();
        let resident = self.count();
        self.shared.budget.set_resident(resident);
        let counters = &self.shared.counters;
        let local_bytes = resident.unsigned_abs() * PAGE_SIZE_BYTES as u64 + self.shared.budget.pool_bytes();
        counters.local_bytes.set(local_bytes);
        counters.local_bytes_peak.set_max(local_bytes);
        counters.lent_pages.set(self.shared.books().slots.in_use());
        if resident > self.shared.budget.low_pages() {
            self.is_paging = true;
        }
        if self.is_paging {
            self.keep_pages();
            self.register_all(now);
        }
        if self.shared.budget.is_exceeded() {
            self.shared.eviction.signal();
        }
        interval(self.shared.budget.high_pages() - resident)
    }

    /// Lets in whoever waits outside.
    fn greet(&mut self) {
        loop {
            match self.listener.accept() {
                Ok(Some(visitor)) => {
                    if let Err(error) = self.meet(&visitor) {
                        self.shared.fail(format!("process {}: {error}", visitor.process()));
                    }
                }
                Ok(None) => return,
                Err(error) => return self.shared.fail(format!("the socket for programs failed: {error}")),
            }
        }
    }

    fn meet(&mut self, visitor: &Visitor) -> Result<(), GreetingError> {
        let deadline = Instant::now() + GREETING_DEADLINE;
        let (hello, descriptor) = visitor.hello(deadline)?;
        match hello.kind {
            HelloKind::Program => self.meet_program(visitor, &hello, descriptor, deadline),
            HelloKind::Agent => self.meet_agent(visitor, &hello),
        }
    }

    fn meet_program(
        &mut self,
        visitor: &Visitor,
        hello: &Hello,
        descriptor: Option<OwnedFd>,
        deadline: Instant,
    ) -> Result<(), GreetingError> {
        let number = visitor.process();
        // A process that says hello again runs another program: what it was is gone.
        self.forget(|resident| resident.process.as_ref().is_some_and(|process| process.number() == number));
        let memory = match descriptor.map(agree) {
            Some(Ok(memory)) => memory,
            other => {
                let reason = other.and_then(Result::err).unwrap_or_else(|| io::Error::from_raw_os_error(-hello.status));
                self.shared.fail(format!("process {number} cannot be paged, so it was not started: {reason}"));
                return visitor.welcome(&answer(Verdict::Refuse, 0, &self.arena), None);
            }
        };
        let Some(seat) = self.seats_free.pop() else {
            let seats = self.arena.plan().seats;
            self.shared.fail(format!("process {number} is not paged: {seats} others are"));
            return visitor.welcome(&answer(Verdict::RunUnpaged, 0, &self.arena), None);
        };
        self.arena.seat(seat).clear();
        visitor.welcome(&answer(Verdict::Page, seat, &self.arena), Some(self.arena.file().as_fd()))?;
        let ready = visitor.ready(deadline)?;
        if ready.status != 0 {
            self.seats_free.push(seat);
            return Ok(());
        }
        let tenant = Tenant::new(Space::new(self.shared.next_space()), Box::new(memory), None);
        let excluded =
            vec![hello.library_start..hello.library_end, ready.arena..ready.arena + self.arena.length_bytes()];
        self.take_in(Arc::new(tenant), number, seat, excluded);
        Ok(())
    }

    /// Serves a program whose process and seat are known.
    fn take_in(&mut self, tenant: Arc<Tenant>, number: u32, seat: u32, excluded: Vec<Range<u64>>) {
        tenant.process.store(number, Ordering::Relaxed);
        let agent = SeatAgent::new(self.arena.seat(seat), self.arena.pool_offset(), Arc::clone(&tenant.is_gone));
        *lock(&tenant.agent) = Some(Box::new(agent));
        let process = Process::open(number);
        if let Err(error) = &process {
            self.shared.fail(format!("process {number} cannot be looked at: {error}"));
        }
        self.residents.push(Resident {
            tenant: Arc::clone(&tenant),
            process: process.ok(),
            seat: Some(seat),
            excluded,
            registered_at: None,
        });
        self.shared.admit(tenant);
    }

    /// An agent wants the userfaultfd of its program.
    fn meet_agent(&self, visitor: &Visitor, hello: &Hello) -> Result<(), GreetingError> {
        let resident = self.residents.iter().find(|resident| resident.seat == Some(hello.seat));
        let is_its_own = |resident: &&Resident| {
            resident.process.as_ref().is_some_and(|process| process.number() == visitor.process())
        };
        match resident.filter(is_its_own) {
            Some(resident) => {
                let welcome = answer(Verdict::Page, hello.seat, &self.arena);
                visitor.welcome(&welcome, Some(resident.tenant.memory.event()))
            }
            None => visitor.welcome(&answer(Verdict::Refuse, 0, &self.arena), None),
        }
    }

    /// Address spaces that came by a fork.
    fn adopt_children(&mut self) {
        for tenant in self.shared.tenants() {
            if !self.residents.iter().any(|resident| resident.tenant.id == tenant.id) {
                let parent = tenant.parent.and_then(|id| self.residents.iter().find(|other| other.tenant.id == id));
                let excluded = parent.map(|parent| parent.excluded.clone()).unwrap_or_default();
                self.residents.push(Resident { tenant, process: None, seat: None, excluded, registered_at: None });
            }
        }
    }

    /// Pages of all programs; programs that have ended are forgotten.
    fn count(&mut self) -> i64 {
        let mut pages = 0;
        self.forget(|resident| {
            let found = resident.process.as_ref().map(Process::resident_pages);
            pages += found.flatten().unwrap_or(0);
            // One whose process is not known ends with its memory.
            found.map_or_else(|| is_memory_gone(&resident.tenant), |found| found.is_none())
        });
        pages
    }

    fn forget(&mut self, mut is_over: impl FnMut(&Resident) -> bool) {
        let over: Vec<Resident> =
            self.residents.extract_if(.., |resident| is_over(resident) || resident.tenant.is_gone()).collect();
        for resident in over {
            self.shared.dismiss(&resident.tenant);
            self.seats_free.extend(resident.seat);
        }
    }

    /// Rule 4.
    fn keep_pages(&self) {
        for resident in &self.residents {
            // One that ends meanwhile is found by the next look.
            let Some(Ok(kept)) = resident.process.as_ref().map(Process::kept_pages) else { continue };
            let table = resident.tenant.lock();
            for address in &kept {
                if table.space.is_away(*address) {
                    self.shared.want(resident.tenant.id, *address);
                }
            }
            *lock(&resident.tenant.kept_pages) = kept;
        }
    }

    fn register_all(&mut self, now: Instant) {
        let mut residents = std::mem::take(&mut self.residents);
        for resident in &mut residents {
            if resident.registered_at.is_none_or(|at| now.saturating_duration_since(at) >= REGISTER_INTERVAL) {
                self.register(resident);
                resident.registered_at = Some(now);
            }
        }
        self.residents = residents;
    }

    fn register(&mut self, resident: &mut Resident) {
        let Some(process) = &resident.process else { return };
        let Ok(text) = process.maps() else { return };
        let mut excluded = resident.excluded.clone();
        excluded.extend(resident.seat.and_then(|seat| self.arena.seat(seat).staging()));
        let mut is_complete = true;
        for (range, room) in maps::pageable(&maps::parse(&text), &excluded) {
            is_complete &= self.register_mapping(&resident.tenant, process, &range, room);
        }
        if is_complete {
            resident.tenant.lock().space.scanned();
        }
    }

    /// Registers one mapping, and tells the policy of its pages. Events of the program that come meanwhile are read later, and
    /// so are younger than what is found here. False: it is to be tried again.
    fn register_mapping(&mut self, tenant: &Tenant, process: &Process, range: &Range<u64>, room: u64) -> bool {
        let mut table = tenant.lock();
        if table.batch {
            return false;
        }
        if table.space.surveyed.contain(range) && !table.space.is_unscanned() {
            return true;
        }
        let query = Query {
            all_of: Categories::PRESENT,
            none_of: Categories::FILE,
            report: Categories::PRESENT,
            ..Query::default()
        };
        let mut start = range.start;
        let mut is_probed = false;
        while start < range.end {
            let Ok(scan) = process.pagemap.scan(start..range.end, &query, &mut self.regions) else { return false };
            let regions = &self.regions[..scan.regions];
            if let (Some(first), false) = (regions.first(), is_probed) {
                if !probe(tenant, range, first.start, room) {
                    return false;
                }
                table.space.registered.insert(first.start..range.end);
                table.space.surveyed.insert(range.clone());
                is_probed = true;
            }
            let books = &mut self.shared.books();
            for region in regions {
                (region.start..region.end)
                    .step_by(PAGE_SIZE_BYTES)
                    .for_each(|address| table.space.found(address, books));
            }
            start = scan.end.max(start + PAGE_SIZE_BYTES as u64);
        }
        true
    }
}

/// Registers `range`, and proves that one registered mapping covers it from its first resident page on (rule 1): zeroes are
/// refused there because of the page that is there, and not because of the mapping.
fn probe(tenant: &Tenant, range: &Range<u64>, first: u64, room: u64) -> bool {
    let registered = tenant.memory.register(range.start..room).or_else(|_| tenant.memory.register(range.clone()));
    if registered.is_err() {
        return false;
    }
    matches!(tenant.memory.zero(first..range.end), Ok(_) | Err(PageError::Exists))
}

fn answer(verdict: Verdict, seat: u32, arena: &Arena) -> Welcome {
    Welcome { verdict, seat, arena_bytes: arena.length_bytes(), start_agent: true }
}

fn agree(descriptor: OwnedFd) -> io::Result<Userfaultfd> {
    let memory = Userfaultfd::from_descriptor(descriptor)?;
    memory.agree(FEATURES)?;
    Ok(memory)
}

/// Nothing is mapped at address zero, so an address space that exists says so.
fn is_memory_gone(tenant: &Tenant) -> bool {
    matches!(tenant.memory.zero(0..PAGE_SIZE_BYTES as u64), Err(PageError::Gone))
}

/// How long programs can grow at full speed until `room_pages` are used up.
fn interval(room_pages: i64) -> Duration {
    let bytes = room_pages.max(0).unsigned_abs() * PAGE_SIZE_BYTES as u64;
    Duration::from_secs_f64(bytes as f64 / GROWTH_BYTES_PER_SECOND as f64).clamp(LOOK_INTERVAL_MIN, LOOK_INTERVAL_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_looked_at_more_often_when_little_room_is_left() {
        assert_eq!(interval(-5), LOOK_INTERVAL_MIN);
        assert_eq!(interval(i64::from(u32::MAX)), LOOK_INTERVAL_MAX);
        let pages = i64::try_from(GROWTH_BYTES_PER_SECOND / PAGE_SIZE_BYTES as u64 / 100).unwrap();
        assert!((interval(pages).as_secs_f64() - 0.01).abs() < 0.001);
    }
}
