//! Takes shared objects in whose pages may leave, and makes them whole again where that ends
//! ([`crate::shared_memory`]).
//!
//! An object is taken in only if every mapping of it is registered. That is decided with the tables of all programs of
//! the run locked: no message is read then, so a fork that has happened shows (its parent waits until it is told), and
//! its child does not run. Maps are read, every mapping is registered, and maps are read once more: they must say the
//! same. From then on a mapping can only come by a fork or a move, which the kernel tells, or by calls that are asked
//! about ([`Called::Shared`](spillway_sys::call_notices::Called::Shared)).

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::ops::Range;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};
use std::thread::sleep;
use std::time::Instant;

use rustix::fs::{OFlags, SealFlags, SeekFrom, fcntl_get_seals, seek};
use spillway_fabric::units::PAGE_SIZE_BYTES;
use spillway_sys::proc_text::fields::bytes_of;
use spillway_sys::process::every_process;
use spillway_sys::process::status_of;
use spillway_sys::userfaultfd::PageError;

use crate::address_space::{AddressSpace, SpaceState, Wanted};
use crate::fork::page_in::{ALL, ForkPageIn, PageInProgress};
use crate::limits::{HELD_PATIENCE, OBJECT_BYTES_MIN, OBJECT_TRIES_MAX, OBJECT_TRY_PAUSE, UNHELD_LOOKS_MIN};
use crate::mappings::staying_kinds::{
    MemoryDevices, ObjectId, SharedMemoryKinds, StayingKind, StayingMapping, staying_mappings,
};
use crate::page_table::PageTable;
use crate::page_table::page_indexes::SpaceId;
use crate::page_table::virtual_page::VirtualPage;
use crate::process::descriptors::holder_of;
use crate::process::object_looks::{Looked, ObjectLooks, Unheld, Verdict};
use crate::process::proc_files::{Process, maps_of, room_bytes};
use crate::process::{Survey, TrackedProcess, is_memory_gone};
use crate::shared_memory::evictor::{ObjectEvictor, ObjectSigns};
use crate::shared_memory::memory::ObjectMemory;
use crate::shared_memory::views::View;
use crate::threads::lock::lock;

const PAGE: u64 = PAGE_SIZE_BYTES as u64;

/// Where the kernel says whether new pages of shared memory may be huge: a part of such a page is not taken out, but
/// zeroed in place (`truncate_inode_partial_folio` in mm/truncate.c).
const HUGE_SETTINGS: &str = "/sys/kernel/mm/transparent_hugepage";

/// Objects of the run.
#[derive(Default)]
pub(super) struct Objects {
    /// What shared memory of the run is to be paged.
    kinds: SharedMemoryKinds,
    known: Vec<Known>,
    looks: ObjectLooks,
    /// Of objects that can have descriptors, until they are taken in.
    unheld: HashMap<ObjectId, Unheld>,
    /// Why no pages of objects leave any more.
    ended: Option<String>,
    /// Of what the user was told that it stays.
    told: HashSet<ObjectId>,
}

impl Objects {
    pub(super) fn new(kinds: SharedMemoryKinds) -> Self {
        Self { kinds, ..Self::default() }
    }

    /// Whether objects are to be looked for.
    pub(super) fn are_due(&self, now: Instant) -> bool {
        self.kinds.is_any() && self.ended.is_none() && self.looks.is_due(now)
    }
}

/// An object that may be taken in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Candidate {
    id: ObjectId,
    kind: StayingKind,
}

/// Why an object is not taken in.
#[derive(Debug)]
enum Refusal {
    /// Programs change their mappings: it is tried again soon.
    TooEarly,
    /// It has a descriptor, or had one a moment ago.
    Held,
    /// It stays local.
    Never(String),
}

/// An object that was taken in.
struct Known {
    id: ObjectId,
    kind: StayingKind,
    space: Arc<AddressSpace>,
    file: Arc<File>,
    signs: Arc<ObjectSigns>,
    /// Set once its pages are to stay: they come back, and none leaves as long as this is held.
    returning: Option<ForkPageIn>,
    /// They are there.
    is_whole: bool,
}

/// One mapping of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Mapping {
    range: Range<u64>,
    is_private: bool,
    offset: u64,
}

impl Survey {
    /// Pages of objects that were taken in, each once.
    pub(super) fn objects_pages(&self) -> i64 {
        // In units of 512 bytes (stat(2)).
        let blocks = self.objects.known.iter().map(|known| known.file.metadata().map_or(0, |about| about.blocks()));
        (blocks.sum::<u64>() * 512 / PAGE).cast_signed()
    }

    /// Whether this object's pages leave, or did: the user is not told that it stays.
    pub(super) fn is_paged_object(&self, id: ObjectId) -> bool {
        self.objects.known.iter().any(|known| known.id == id && known.returning.is_none())
    }

    /// Takes in objects that came, gives up those that went, and goes on with those that are to be whole.
    pub(super) fn look_at_objects(&mut self, now: Instant) {
        if !self.objects.kinds.is_any() {
            return;
        }
        self.forget_objects();
        let mut doubtful = Vec::new();
        for known in &mut self.objects.known {
            if known.signs.is_breached.swap(false, Ordering::SeqCst) {
                self.shared.fail(
                    "shared memory was mapped by a process that the pager does not know, which may have read zeroes in \
                     place of pages, so the programs that share it are killed"
                        .to_owned(),
                );
            }
            if known.signs.is_doubtful.load(Ordering::SeqCst) && known.returning.is_none() {
                doubtful.push(Arc::clone(&known.space));
            }
            if let Some(page_in) = known.returning.as_mut().filter(|_| !known.is_whole) {
                known.is_whole = page_in.look(now, &room_bytes) == PageInProgress::All;
            }
        }
        self.make_local(&doubtful, "a program maps it in another way than the kernel told (MADV_DONTFORK, say)", now);
        if self.objects.are_due(now) {
            let looked = self.take_objects_in(now);
            self.objects.looks.ended(looked, Instant::now());
        }
    }

    fn forget_objects(&mut self) {
        let shared = &self.shared;
        self.objects.known.retain(|known| {
            let is_mapped = shared.objects.read().iter().any(|view| view.object.id == known.space.id);
            if !is_mapped {
                shared.dismiss(&known.space);
            }
            is_mapped
        });
    }

    /// The pages of these objects come back and stay, for good.
    pub(super) fn make_local(&mut self, objects: &[Arc<AddressSpace>], reason: &str, now: Instant) {
        for known in &mut self.objects.known {
            if known.returning.is_none() && objects.iter().any(|object| object.id == known.space.id) {
                known.returning = Some(ForkPageIn::begin(&self.shared, vec![Arc::clone(&known.space)], &ALL, now));
                let object = Candidate { id: known.id, kind: known.kind };
                self.shared.fail(format!("{object} stays local from now on: {reason}"));
            }
        }
    }

    /// The pages of all objects, also of those to come, stay from now on.
    pub(super) fn end_objects(&mut self, reason: &str, now: Instant) {
        if !self.objects.kinds.is_any() || self.objects.ended.is_some() {
            return;
        }
        self.objects.ended = Some(reason.to_owned());
        let all: Vec<Arc<AddressSpace>> = self.objects.known.iter().map(|known| Arc::clone(&known.space)).collect();
        self.shared.fail(format!("pages of shared memory leave no more in this run: {reason}"));
        self.make_local(&all, reason, now);
    }

    /// How far these objects are on their way to be whole.
    pub(super) fn objects_progress(&mut self, objects: &[SpaceId], now: Instant) -> PageInProgress {
        let concerned = self.objects.known.iter_mut().filter(|known| objects.contains(&known.space.id));
        for known in concerned.filter(|known| !known.is_whole) {
            let Some(page_in) = &mut known.returning else { return PageInProgress::NotYet };
            match page_in.look(now, &room_bytes) {
                PageInProgress::All => known.is_whole = true,
                other => return other,
            }
        }
        PageInProgress::All
    }

    /// All objects that were taken in.
    pub(super) fn all_objects(&self) -> Vec<Arc<AddressSpace>> {
        self.objects.known.iter().map(|known| Arc::clone(&known.space)).collect()
    }

    /// Rule 4 for pages of objects: those of `kept` that are away come back.
    pub(super) fn keep_pages_of_objects(&self, space: &AddressSpace, kept: &[VirtualPage]) {
        for page in kept {
            let Some((object, offset)) = self.shared.objects.find(space.id, page.address()) else { continue };
            let page = VirtualPage::at(offset);
            if object.lock().page_table.is_away(page) {
                self.shared.want([Wanted { space: object.id, page, is_writable: false }]);
            }
        }
    }

    fn take_objects_in(&mut self, now: Instant) -> Looked {
        let mut looked = Looked::AtAll;
        let candidates = self.candidates();
        self.objects.unheld.retain(|id, _| candidates.iter().any(|candidate| candidate.id == *id));
        for candidate in candidates {
            match self.try_to_take_in(candidate, now) {
                Ok(()) => drop(self.objects.unheld.remove(&candidate.id)),
                Err(Refusal::Held) => {}
                Err(Refusal::TooEarly) => looked = Looked::TooEarly,
                Err(Refusal::Never(reason)) => {
                    self.objects.told.insert(candidate.id);
                    self.shared.fail(format!("{candidate} stays local: {reason}"));
                }
            }
        }
        looked
    }

    /// Objects that are mapped, and of which it is not known yet whether they may leave.
    fn candidates(&mut self) -> Vec<Candidate> {
        let mut found: Vec<Candidate> = Vec::new();
        let mut huge = Vec::new();
        for tracked in &self.tracked {
            let Some(Ok(text)) = tracked.process.as_ref().map(Process::maps) else { continue };
            for mapping in self.objects_in(tracked, &text) {
                let (Some((id, _)), Some(kind)) = (mapping.object, mapping.of_object) else { continue };
                let is_small = mapping.range.end - mapping.range.start < OBJECT_BYTES_MIN;
                let is_known = self.objects.known.iter().any(|known| known.id == id)
                    || found.iter().any(|other| other.id == id)
                    || self.objects.told.contains(&id);
                if is_small || is_known {
                    continue;
                }
                if kind == StayingKind::HugePages {
                    huge.push(Candidate { id, kind });
                } else if self.objects.kinds.include(kind) {
                    found.push(Candidate { id, kind });
                }
            }
        }
        for candidate in huge {
            if self.objects.told.insert(candidate.id) {
                self.shared.fail(format!("{candidate} stays local: its pages are huge"));
            }
        }
        found
    }

    /// Tries it for as long as a fork or a change of mappings takes: the next look may come too early as well.
    fn try_to_take_in(&mut self, candidate: Candidate, now: Instant) -> Result<(), Refusal> {
        if candidate.kind == StayingKind::Memfd {
            self.look_for_holders(candidate, now)?;
        }
        for _ in 0..OBJECT_TRIES_MAX {
            // Children that came and went are forgotten, and the others are found.
            self.read_notes();
            self.settle_newcomers();
            self.forget(is_memory_gone);
            self.adopt_children(Instant::now());
            match self.take_object_in(candidate) {
                Err(Refusal::TooEarly) => sleep(OBJECT_TRY_PAUSE),
                other => return other,
            }
        }
        Err(Refusal::TooEarly)
    }

    fn look_for_holders(&mut self, candidate: Candidate, now: Instant) -> Result<(), Refusal> {
        let holder = holder_of(candidate.id.1).map_err(|error| {
            Refusal::Never(format!("the descriptors of all processes cannot be looked at: {error}"))
        })?;
        let unheld = self.objects.unheld.entry(candidate.id).or_default();
        match (unheld.looked(holder.is_some(), UNHELD_LOOKS_MIN, HELD_PATIENCE, now), holder) {
            (Verdict::Free, _) => return Ok(()),
            (Verdict::Tell, Some(holder)) => self.shared.fail(format!(
                "{candidate} stays local until its descriptors are closed, as these read zeroes where pages are away: {holder}"
            )),
            _ => {}
        }
        Err(Refusal::Held)
    }

    /// Mappings of objects that `tracked` has, by the text of its maps.
    fn objects_in(&self, tracked: &TrackedProcess, text: &[u8]) -> Vec<StayingMapping> {
        let devices = MemoryDevices { kernels: self.staying.kernels_device(), ..MemoryDevices::default() };
        let ours: Vec<Range<u64>> = tracked.excluded.iter().cloned().chain(tracked.space.evictors_ranges()).collect();
        staying_mappings(text, &devices, &ours)
    }

    /// Takes one object in.
    fn take_object_in(&mut self, candidate: Candidate) -> Result<(), Refusal> {
        let mut registered = Vec::new();
        let result = self.try_object(candidate, &mut registered);
        if result.is_err() {
            // The program's own again: a mapping that is registered in part cannot be moved.
            for (space, range) in registered {
                // One that is gone meanwhile is not registered any more.
                let _ = space.memory.unregister(range);
            }
        }
        result
    }

    /// [`Survey::take_object_in`]; what it registered is in `registered`.
    fn try_object(
        &mut self,
        candidate: Candidate,
        registered: &mut Vec<(Arc<AddressSpace>, Range<u64>)>,
    ) -> Result<(), Refusal> {
        let id = candidate.id;
        if may_be_huge() {
            let advice = format!("its pages may be huge; write `never` to {HUGE_SETTINGS}/shmem_enabled");
            return Err(Refusal::Never(advice));
        }
        if !self.calls.may_take_objects_in() {
            return Err(Refusal::TooEarly);
        }
        if self.tracked.iter().any(|tracked| tracked.process.is_none()) || !self.newcomers.is_empty() {
            return Err(Refusal::TooEarly);
        }
        let mut programs: Vec<(Arc<AddressSpace>, usize)> =
            self.tracked.iter().enumerate().map(|(index, tracked)| (Arc::clone(&tracked.space), index)).collect();
        programs.sort_unstable_by_key(|(space, _)| space.id.0);
        let guards: Vec<MutexGuard<'_, SpaceState>> = programs.iter().map(|(space, _)| space.lock()).collect();
        let is_complete = self
            .shared
            .spaces()
            .iter()
            .all(|space| space.is_object || programs.iter().any(|(known, _)| known.id == space.id));
        let are_settled = || {
            programs.iter().zip(&guards).all(|((space, _), state)| {
                state.mapping_events.is_empty() && state.late_event.is_none() && !space.memory.is_changing()
            })
        };
        if !is_complete || !are_settled() {
            return Err(Refusal::TooEarly);
        }
        let mut views: Vec<(Arc<AddressSpace>, u32, Vec<Mapping>)> = Vec::new();
        for (space, index) in &programs {
            let mappings = self.mappings_of(*index, id).ok_or(Refusal::TooEarly)?;
            if mappings.is_empty() {
                continue;
            }
            let process = self.tracked[*index].process.as_ref().ok_or(Refusal::TooEarly)?.number();
            for mapping in &mappings {
                register(space, process, mapping)?;
                registered.push((Arc::clone(space), mapping.range.clone()));
            }
            views.push((Arc::clone(space), process, mappings));
        }
        // From here on the object can be reached through mappings alone, and these come by forks and moves alone.
        if candidate.kind == StayingKind::Memfd && holder_of(id.1).map_err(|_| Refusal::TooEarly)?.is_some() {
            return Err(Refusal::Held);
        }
        // Nothing came or went since: the same mappings, all registered, and no change that was not told.
        for (space, index) in &programs {
            let again = self.mappings_of(*index, id).ok_or(Refusal::TooEarly)?;
            let before = views.iter().find(|(other, ..)| other.id == space.id).map(|(.., mappings)| &mappings[..]);
            if again != before.unwrap_or_default() {
                return Err(Refusal::TooEarly);
            }
        }
        if !are_settled() || views.is_empty() {
            return Err(Refusal::TooEarly);
        }
        self.check_others(id, &views)?;
        let result = self.admit_object(candidate, &views);
        drop(guards);
        result
    }

    fn mappings_of(&self, index: usize, id: ObjectId) -> Option<Vec<Mapping>> {
        let tracked = &self.tracked[index];
        let text = tracked.process.as_ref()?.maps().ok()?;
        let all = self.objects_in(tracked, &text).into_iter();
        let of_object = all.filter_map(|mapping| {
            let (other, offset) = mapping.object?;
            (other == id).then_some(Mapping { range: mapping.range, is_private: mapping.is_private, offset })
        });
        Some(of_object.collect())
    }

    /// No process outside of the run maps the object, and no program of it locks memory.
    fn check_others(&self, id: ObjectId, views: &[(Arc<AddressSpace>, u32, Vec<Mapping>)]) -> Result<(), Refusal> {
        for (_, process, _) in views {
            let status = status_of(*process).map_err(|_| Refusal::TooEarly)?;
            if bytes_of(&status, "VmLck").unwrap_or(0) > 0 {
                return Err(Refusal::Never(format!("process {process}, which maps it, locks memory")));
            }
        }
        let devices = MemoryDevices { kernels: self.staying.kernels_device(), ..MemoryDevices::default() };
        let maps_it = |text: &[u8]| {
            staying_mappings(text, &devices, &[]).iter().any(|one| one.object.is_some_and(|(other, _)| other == id))
        };
        let ours = self.tracked.iter().filter_map(|tracked| Some(tracked.process.as_ref()?.number()));
        let mut seen: HashSet<u32> = ours.collect();
        // One that maps it may have forked meanwhile, and ended.
        loop {
            let mut fresh = every_process().map_err(|_| Refusal::TooEarly)?;
            fresh.retain(|process| seen.insert(*process));
            if fresh.is_empty() {
                return Ok(());
            }
            for process in fresh {
                if maps_it(&maps_of(process).unwrap_or_default()) {
                    return Err(Refusal::Never(format!("process {process}, which is not paged, maps it")));
                }
            }
        }
    }

    fn admit_object(
        &mut self,
        candidate: Candidate,
        views: &[(Arc<AddressSpace>, u32, Vec<Mapping>)],
    ) -> Result<(), Refusal> {
        let Candidate { id, kind } = candidate;
        let (_, process, mappings) = &views[0];
        let Range { start, end } = mappings[0].range.clone();
        let path = format!("/proc/{process}/map_files/{start:x}-{end:x}");
        let flags = OFlags::NONBLOCK.bits().cast_signed();
        let file = File::options().read(true).write(true).custom_flags(flags).open(&path).map_err(|error| {
            // It has moved, or its process has ended, or another process has a lease on it.
            if matches!(error.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::WouldBlock) {
                return Refusal::TooEarly;
            }
            Refusal::Never(format!(
                "{path} cannot be opened ({error}); that takes CAP_CHECKPOINT_RESTORE, so start the run as root"
            ))
        })?;
        let about = file.metadata().map_err(|_| Refusal::TooEarly)?;
        if about.ino() != id.1 {
            return Err(Refusal::TooEarly);
        }
        if is_sealed(&file) {
            return Err(Refusal::Never("it is sealed against writes, so no page can be taken out".to_owned()));
        }
        let number = self.shared.next_space();
        let system = |error: std::io::Error| Refusal::Never(format!("it cannot be prepared: {error}"));
        let memory = ObjectMemory::new(number, Arc::clone(&self.shared.objects)).map_err(system)?;
        let mut table = PageTable::of_object(number, about.len().next_multiple_of(PAGE));
        note_pages(&file, &mut table, &self.shared);
        let space = Arc::new(AddressSpace::of_object(table, Box::new(memory)));
        let (file, signs) = (Arc::new(file), Arc::new(ObjectSigns::default()));
        let evictor = ObjectEvictor::new(
            number,
            Arc::clone(&self.shared.objects),
            Arc::clone(&file),
            Arc::clone(&self.run.pool),
            Arc::clone(&signs),
        );
        *lock(&space.evictor) = Some(Box::new(evictor));
        self.shared.objects.add(views.iter().flat_map(|(program, _, mappings)| {
            mappings.iter().map(|mapping| View {
                space: Arc::clone(program),
                range: mapping.range.clone(),
                object: Arc::clone(&space),
                offset: mapping.offset,
            })
        }));
        self.shared.admit(Arc::clone(&space));
        self.shared.counters.shared_objects.add(1);
        self.objects.known.push(Known { id, kind, space, file, signs, returning: None, is_whole: false });
        Ok(())
    }
}

impl std::fmt::Display for Candidate {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = match self.kind {
            StayingKind::SharedAnonymous => "shared anonymous memory",
            StayingKind::HugePages => "memory of huge pages (hugetlbfs)",
            _ => "a memfd",
        };
        write!(formatter, "{kind} (object {})", self.id.1)
    }
}

/// Registers one mapping of an object.
fn register(space: &AddressSpace, process: u32, mapping: &Mapping) -> Result<(), Refusal> {
    if mapping.is_private {
        // Pages that are put there are its own, and none that the object gets is told there.
        return Err(Refusal::Never(format!("process {process} maps it privately (MAP_PRIVATE)")));
    }
    space.memory.register(mapping.range.clone()).map_err(|error| match error {
        // Opened for reading, or sealed.
        PageError::Refused | PageError::Kernel(_) => {
            Refusal::Never(format!("the mapping of process {process} at {:#x}: {error}", mapping.range.start))
        }
        _ => Refusal::TooEarly,
    })
}

/// Whether seals keep the kernel from taking pages out (`shmem_fallocate` in mm/shmem.c).
fn is_sealed(file: &File) -> bool {
    let seals = fcntl_get_seals(file).unwrap_or(SealFlags::empty());
    seals.intersects(SealFlags::WRITE | SealFlags::FUTURE_WRITE)
}

/// Tells the policy of the pages that the object has.
fn note_pages(file: &File, table: &mut PageTable, shared: &crate::pager_state::PagerState) {
    let mut place = 0;
    while let Ok(data) = seek(file, SeekFrom::Data(place)) {
        let Ok(hole) = seek(file, SeekFrom::Hole(data)) else { break };
        let page_indexes = &mut shared.page_indexes();
        VirtualPage::all_in(data..hole.next_multiple_of(PAGE)).for_each(|page| table.found(page, page_indexes));
        place = hole;
    }
}

/// Whether the kernel may make huge pages of shared memory.
fn may_be_huge() -> bool {
    let is_never = |text: &str| ["[never]", "[deny]", "[inherit]"].iter().any(|word| text.contains(word));
    let Ok(all) = fs::read_to_string(format!("{HUGE_SETTINGS}/shmem_enabled")) else {
        // A kernel without huge pages.
        return false;
    };
    let sizes = fs::read_dir(HUGE_SETTINGS).into_iter().flatten().flatten();
    let mut by_size = sizes.filter_map(|entry| fs::read_to_string(entry.path().join("shmem_enabled")).ok());
    !is_never(&all) || by_size.any(|text| !is_never(&text))
}
