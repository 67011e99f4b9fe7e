//! Address spaces that come by a fork, and their processes.
//!
//! The kernel tells of an address space before its process has a number, and never says which one it is. Their order
//! does not tell either: threads that fork at once get their messages and their children's numbers in any order. A
//! child of vfork(2) or posix_spawn(3) that has become another program is a child with a memory of its own, too. So a
//! page of the head is registered through the address space's userfaultfd for a moment: that parts the head's mapping
//! there, in the maps of the one process whose memory it is.

use std::collections::HashSet;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use spillway_fabric::units::PAGE_SIZE_BYTES;
use spillway_sys::process::{children, every_process, share_memory};

use crate::address_space::AddressSpace;
use crate::limits::SEARCH_INTERVAL;
use crate::mappings::maps;
use crate::page_table::page_indexes::SpaceId;
use crate::process::openings::Openings;
use crate::process::proc_files::{Process, maps_of};
use crate::process::{Survey, TrackedProcess, is_memory_gone};

/// What is known of an address space whose process is looked for.
pub(super) struct Search {
    /// Processes that are others.
    others: HashSet<u32>,
    /// When all processes of the machine are looked at next, once its parent has ended.
    next_at: Instant,
}

impl Search {
    pub(super) fn new(now: Instant) -> Self {
        Self { others: HashSet::new(), next_at: now }
    }
}

impl Survey {
    /// Takes in address spaces that came by a fork.
    pub(super) fn take_strangers_in(&mut self) {
        for space in self.strangers() {
            let parent = self.tracked.iter().find(|other| Some(other.space.id) == space.parent);
            if let Some(child) = parent.map(|parent| parent.child(space)) {
                self.tracked.push(child);
            }
        }
    }

    /// Takes in address spaces that came by a fork, and finds their processes.
    pub(super) fn adopt_children(&mut self, now: Instant) {
        self.take_strangers_in();
        let mut orphans = self.orphans();
        orphans.sort_unstable_by_key(|(_, parent)| *parent);
        for family in orphans.chunk_by(|(_, one), (_, other)| one == other) {
            let spaces = family.iter().map(|(page_table, _)| *page_table);
            match family[0].1 {
                Some(parent) => self.find_children(parent, spaces),
                None => self.find_among_all(spaces, now),
            }
        }
    }

    /// Takes in children of `parent` that no thread has looked at yet: none finds them once their parent is forgotten.
    pub(super) fn adopt_children_of(&mut self, parent: &TrackedProcess) {
        let children = self.strangers().into_iter().filter(|space| space.parent == Some(parent.space.id));
        self.tracked.extend(children.map(|space| parent.child(space)));
    }

    /// Address spaces that are served and were not taken in.
    fn strangers(&self) -> Vec<Arc<AddressSpace>> {
        let is_known = |space: &AddressSpace| self.tracked.iter().any(|tracked| tracked.space.id == space.id);
        self.shared.spaces().into_iter().filter(|space| !space.is_object && !is_known(space)).collect()
    }

    /// Residents that never had a process, with their parent's, or none once that has ended. Those whose parent's is
    /// still looked for come after it.
    fn orphans(&self) -> Vec<(SpaceId, Option<u32>)> {
        let without = self.tracked.iter().filter(|tracked| is_orphan(tracked));
        let parents = without.map(|tracked| {
            let parent = self.tracked.iter().find(|other| Some(other.space.id) == tracked.space.parent);
            (tracked.space.id, parent)
        });
        let known = parents.filter(|(_, parent)| !parent.is_some_and(is_orphan));
        let process = |parent: &TrackedProcess| parent.process.as_ref().map(Process::number);
        known.map(|(page_table, parent)| (page_table, parent.and_then(process))).collect()
    }

    /// Finds the processes of `orphans`, whose parent is process `parent`.
    fn find_children(&mut self, parent: u32, orphans: impl Iterator<Item = SpaceId>) {
        // Between vfork and exec a child has its parent's memory.
        let has_own_memory = |number: u32| matches!(share_memory(parent, number), Ok(false));
        let mut candidates = children(parent).unwrap_or_default();
        candidates.retain(|number| !self.is_known(*number) && has_own_memory(*number));
        for orphan in orphans {
            if let Some(number) = self.find(orphan, &candidates) {
                candidates.retain(|candidate| *candidate != number);
            }
        }
    }

    /// Finds those whose parent has ended: they are children of the process that adopts orphans.
    fn find_among_all(&mut self, orphans: impl Iterator<Item = SpaceId>, now: Instant) {
        for orphan in orphans {
            let tracked = self.tracked.iter_mut().find(|tracked| tracked.space.id == orphan);
            if let Some(tracked) = tracked.filter(|tracked| tracked.search.next_at <= now) {
                tracked.search.next_at = now + SEARCH_INTERVAL;
                let mut candidates = every_process().unwrap_or_default();
                candidates.retain(|number| !self.is_known(*number));
                self.find(orphan, &candidates);
            }
        }
    }

    /// Finds the process of `orphan` among `candidates`, and gives it a place.
    fn find(&mut self, orphan: SpaceId, candidates: &[u32]) -> Option<u32> {
        let index = self.tracked.iter().position(|tracked| tracked.space.id == orphan)?;
        let number = find_process(&mut self.tracked[index], candidates)?;
        if self.places_free == 0 {
            self.tell_of_fullness();
        } else {
            self.found_process(index, number);
        }
        Some(number)
    }

    fn is_known(&self, number: u32) -> bool {
        let mut processes = self.tracked.iter().filter_map(|tracked| tracked.process.as_ref());
        processes.any(|process| process.number() == number)
    }

    /// Process `number` runs another program: what it was is gone, unless a child of vfork(2) still has it, which is
    /// served until it has ended.
    pub(super) fn leave_process(&mut self, number: u32) {
        let has_left =
            |tracked: &TrackedProcess| tracked.process.as_ref().is_some_and(|process| process.number() == number);
        self.forget(|tracked| has_left(tracked) && is_memory_gone(tracked));
        for tracked in self.tracked.iter_mut().filter(|tracked| has_left(tracked)) {
            tracked.process = None;
            // Its number's files are another program's now, and this thread opens them next.
            tracked.openings = Openings::default();
            tracked.space.process.store(0, std::sync::atomic::Ordering::Relaxed);
        }
    }
}

fn is_orphan(tracked: &TrackedProcess) -> bool {
    tracked.process.is_none() && !tracked.has_place
}

/// Which of `candidates` has the address space of `orphan`.
pub(super) fn find_process(orphan: &mut TrackedProcess, candidates: &[u32]) -> Option<u32> {
    let fresh: Vec<u32> = candidates.iter().copied().filter(|number| !orphan.search.others.contains(number)).collect();
    let memory = &orphan.space.memory;
    let page = mark(orphan);
    if fresh.is_empty() || memory.mark(page.clone(), true).is_err() {
        return None;
    }
    let looked = fresh.into_iter().map(|number| (number, ends_at(number, page.end)));
    let mut marked = Vec::new();
    for (number, is_marked) in looked {
        match is_marked {
            // An address space that was forked while its parent was marked is marked as well.
            Ok(true) => marked.push(number),
            Ok(false) => drop(orphan.search.others.insert(number)),
            // It has ended, or may not be looked at now.
            Err(_) => {}
        }
    }
    // Fails if it is gone, and there is no thread to find.
    memory.mark(page.clone(), false).ok()?;
    marked.into_iter().find(|number| {
        let is_marked = ends_at(*number, page.end);
        if is_marked.as_ref().is_ok_and(|is_marked| *is_marked) {
            orphan.search.others.insert(*number);
        }
        is_marked.is_ok_and(|is_marked| !is_marked)
    })
}

/// Whether `thread` has the memory that the pager serves there: by the same mark, which shows in no other memory,
/// whatever that has mapped. For a thread that is stopped, and so executes nothing.
pub(super) fn has_memory_of(thread: u32, tracked: &TrackedProcess) -> bool {
    let page = mark(tracked);
    let shows = |is_set| {
        let is_changed = tracked.space.memory.mark(page.clone(), is_set).is_ok();
        is_changed && ends_at(thread, page.end).is_ok_and(|ends| ends == is_set)
    };
    let shows_mark = shows(true);
    shows(false) && shows_mark
}

/// The page behind the head's first, which is registered always.
fn mark(tracked: &TrackedProcess) -> Range<u64> {
    let page = PAGE_SIZE_BYTES as u64;
    tracked.places.head + page..tracked.places.head + 2 * page
}

/// Whether a mapping of a process ends there.
fn ends_at(process: u32, address: u64) -> io::Result<bool> {
    Ok(maps::parse(&maps_of(process)?).iter().any(|mapped| mapped.range.end == address))
}
