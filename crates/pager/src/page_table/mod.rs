//! The page table of an address space: where the content of each page is, when it is not in the program's memory.
//!
//! A state machine without I/O. The thread that answers a fault asks [`PageTable::answer`], does what it says, and
//! tells the page table what came of it ([`PageTable::filled`], ...); the thread that evicts asks
//! [`PageTable::victim`] and tells [`PageTable::left`]. The kernel's events are told as they are read.
//!
//! - [`virtual_page`]: the address of a page; [`ranges`]: sets of addresses; [`group`]: 32 neighbours.
//!
//! Invariants:
//! - Every reference of a slot is a page that is [`PageState::Clean`], [`PageState::Away`] or [`PageState::Coming`]
//!   (and reads under way have one of their own).
//! - The policy has heard that a page came exactly when its `listed` bit is set.
//! - A page that the program removes is not evicted before it was seen absent (rule 10): it is
//!   [`PageState::Discarding`], and not listed.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod address_hasher;
pub mod group;
pub mod page_indexes;
pub mod ranges;
pub mod virtual_page;
pub mod volume_pages;
mod whole;

use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::ops::Range;

use spillway_policy::replacement::{CachePage, Evidence};

use self::address_hasher::AddressHasher;
use self::group::{Group, PageState, WriteTrend};
use self::ranges::Ranges;
pub use self::whole::{Wholeness, block_range};
use crate::limits::{GROUP_PAGES, GROUP_SIZE_BYTES, UNUSED_MAX, ZEROES_AHEAD_MAX};
use crate::page_table::page_indexes::{CachePages, Coming, Home, SpaceId};
use crate::page_table::virtual_page::VirtualPage;
use crate::page_table::volume_pages::{PoolPage, VolumePage, VolumePages};

/// What all address spaces of a pager share.
#[derive(Debug)]
pub struct PageIndexes {
    /// The volume's pages.
    pub volume_pages: VolumePages,
    /// Numbers of pages, and news for the policy.
    pub cache_pages: CachePages,
}

/// How a fault is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// With a page of zeroes; then [`PageTable::filled`].
    Zero,
    /// With the content of a page of the write-back pool, which `slot` has too; then [`PageTable::filled`].
    Staged(VolumePage, PoolPage),
    /// With the content of `slot`; [`PageTable::reading`], and [`PageTable::filled`] when it is there.
    Read(VolumePage),
    /// A read is under way, whose end wakes everyone.
    Wait,
    /// By taking the write protection away; then [`PageTable::written`].
    Unprotect,
    /// It was answered already; the thread that still waits looks again.
    Wake,
    /// As `Wake`; but if a program misses it again, the kernel has taken it back: it may take pages that MADV_FREE
    /// gave up, and does not tell. Then [`PageTable::taken_back`].
    Recheck(VolumePage),
}

/// How a page leaves, if it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Victim {
    /// Its content is to be written to a slot.
    Dirty,
    /// Its content is in this slot already.
    Clean(VolumePage),
}

/// See the module text.
/// ```
/// use spillway_pager::page_table::page_indexes::{CachePages, Coming, SpaceId};
/// use spillway_pager::page_table::virtual_page::VirtualPage;
/// use spillway_pager::page_table::volume_pages::VolumePages;
/// use spillway_pager::page_table::{Answer, PageIndexes, PageTable};
///
/// let mut page_indexes = PageIndexes { volume_pages: VolumePages::new(64), cache_pages: CachePages::default() };
/// let mut page_table = PageTable::new(SpaceId(1));
/// let page = VirtualPage::at(0x1000);
/// page_table.filled(page, false, Coming::New, &mut page_indexes);
/// let run = page_indexes.volume_pages.take(1).unwrap();
/// page_table.left(page, run.first, &mut page_indexes);
/// let answer = page_table.answer(page, false, &page_indexes.volume_pages);
/// assert!(matches!(answer, Answer::Read(slot) if slot == run.first));
/// ```
#[derive(Debug)]
pub struct PageTable {
    id: SpaceId,
    /// By their first pages.
    groups: HashMap<VirtualPage, Group, BuildHasherDefault<AddressHasher>>,
    /// Of all groups together.
    writes: WriteTrend,
    /// Registered, and seen to be (rule 1).
    pub registered: Ranges,
    /// Mappings that were registered as a whole; what comes in them from then on comes by faults.
    pub surveyed: Ranges,
    /// A child whose memory no thread has looked through: it has resident pages that have no group.
    unscanned: bool,
    /// Pages where the program has guards, or may be about to change them ([`PageTable::guard`]).
    guarded: Ranges,
    /// What an unscanned child removed: a look may find pages there that are about to go.
    shunned: Ranges,
    /// Pages come writable: of a shared object.
    is_shared: bool,
    /// Pages that came along for nothing, see [`PageTable::take_unused`].
    unused: Vec<VirtualPage>,
}

/// Groups that an address space has room for without allocating, once it has one: 128 MiB of memory that was paged.
const GROUPS_EXPECTED: usize = 1024;

impl PageTable {
    /// An address space of which nothing is known yet.
    pub fn new(id: SpaceId) -> Self {
        Self {
            id,
            groups: HashMap::default(),
            writes: WriteTrend::default(),
            registered: Ranges::default(),
            surveyed: Ranges::default(),
            guarded: Ranges::default(),
            unscanned: false,
            shunned: Ranges::default(),
            is_shared: false,
            unused: Vec::new(),
        }
    }

    /// A shared object of `bytes`, all of which is registered wherever it is mapped. Its pages come writable.
    pub fn of_object(id: SpaceId, bytes: u64) -> Self {
        let mut table = Self { is_shared: true, ..Self::new(id) };
        table.registered.insert(0..bytes);
        table.surveyed.insert(0..bytes);
        table
    }

    /// Whether nothing is known of any page: all are the program's own.
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// Whether resident pages may be unknown to the policy.
    pub fn is_unscanned(&self) -> bool {
        self.unscanned
    }

    /// All of the registered memory was looked through ([`PageTable::found`]).
    pub fn scanned(&mut self) {
        self.unscanned = false;
    }

    /// Which one it is.
    pub fn id(&self) -> SpaceId {
        self.id
    }

    /// The parts of `range` that are mapped and registered for all that is known.
    pub fn known_mapped(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        let mut known = Ranges::default();
        for set in [&self.registered, &self.surveyed] {
            set.within(range).into_iter().for_each(|part| known.insert(part));
        }
        known.iter().collect()
    }

    /// The state of `page`.
    pub fn state(&self, page: VirtualPage) -> PageState {
        let (base, index) = place(page);
        self.groups.get(&base).map_or(PageState::Own, |group| group.pages[index])
    }

    /// The pages behind `page` that will be touched for the first time soon, if the program goes on as it did: as many
    /// as were touched just before it, inside a mapping that is known to be registered.
    pub fn first_touches_ahead(&self, page: VirtualPage) -> Range<u64> {
        let look = |other: VirtualPage| {
            let (base, index) = place(other);
            self.groups.get(&base).map_or((PageState::Own, false), |group| (group.pages[index], group.is_listed(index)))
        };
        let is_listed = |other: VirtualPage| look(other).1;
        let was_untouched = |other: VirtualPage| look(other) == (PageState::Own, false);
        let steps = |count: usize| 1..=count as u64;
        let touched = steps(ZEROES_AHEAD_MAX).take_while(|back| page.checked_sub(*back).is_some_and(is_listed)).count();
        let start = page + 1;
        let is_known = |other: VirtualPage| self.surveyed.contain(&other.range()) && !self.is_guarded(other);
        let read_ahead =
            steps(touched).map(|forth| page + forth).take_while(|other| was_untouched(*other) && is_known(*other));
        start.address()..(start + read_ahead.count() as u64).address()
    }

    /// Whether the content of `page` is not in the program's memory.
    pub fn is_away(&self, page: VirtualPage) -> bool {
        matches!(self.state(page), PageState::Away(_) | PageState::Coming(_))
    }

    /// Whether `page` is there with a copy, and so write-protected.
    pub fn is_clean(&self, page: VirtualPage) -> bool {
        matches!(self.state(page), PageState::Clean(_))
    }

    /// All such pages in `range`, in order.
    pub fn away(&self, range: &Range<u64>) -> Vec<VirtualPage> {
        self.pages_that(range, |state| matches!(state, PageState::Away(_) | PageState::Coming(_)))
    }

    /// All pages of `range` that are there with a copy, which are write-protected, in order.
    pub fn clean(&self, range: &Range<u64>) -> Vec<VirtualPage> {
        self.pages_that(range, |state| matches!(state, PageState::Clean(_)))
    }

    fn pages_that(&self, range: &Range<u64>, is_meant: fn(&PageState) -> bool) -> Vec<VirtualPage> {
        let in_group = |base: VirtualPage| {
            let group = &self.groups[&base];
            let indexes = (0..GROUP_PAGES).filter(move |index| is_meant(&group.pages[*index]));
            indexes.map(move |index| base + index as u64)
        };
        let mut pages: Vec<VirtualPage> =
            self.bases(range).flat_map(in_group).filter(|page| range.contains(&page.address())).collect();
        pages.sort_unstable();
        pages
    }

    /// The number of `page`, if it was given one.
    pub fn number(&self, page: VirtualPage) -> Option<CachePage> {
        let (base, index) = place(page);
        self.groups.get(&base).map(|group| group.page(index))
    }

    /// A stream shows something of `page`.
    pub fn learnt(&mut self, page: VirtualPage, evidence: Evidence, page_indexes: &mut PageIndexes) {
        let (base, index) = place(page);
        if let Some(group) = self.groups.get_mut(&base) {
            group.learnt(index, evidence, &mut page_indexes.cache_pages);
        }
    }

    /// Tells of pages that came along and left again without a sign that they were used, each once.
    pub fn take_unused(&mut self, unused: impl FnMut(VirtualPage)) {
        self.unused.drain(..).for_each(unused);
    }

    fn group(&mut self, page: VirtualPage, page_indexes: &mut PageIndexes) -> (&mut Group, usize) {
        let (base, index) = place(page);
        let home = Home { space: self.id, page: base };
        if self.groups.capacity() == 0 {
            // Most small programs end before any page of theirs is looked at.
            self.groups.reserve(GROUPS_EXPECTED);
        }
        let group = self.groups.entry(base).or_insert_with(|| Group::new(page_indexes.cache_pages.open_group(home)));
        (group, index)
    }

    /// How a fault on `page` is answered now.
    pub fn answer(&self, page: VirtualPage, is_write_protected: bool, slots: &VolumePages) -> Answer {
        match (self.state(page), is_write_protected) {
            (PageState::Own | PageState::Discarding | PageState::Clean(_), true) => Answer::Unprotect,
            (PageState::Away(_) | PageState::Coming(_), true) => Answer::Wake,
            (PageState::Own | PageState::Discarding, false) => Answer::Zero,
            (PageState::Clean(slot), false) => Answer::Recheck(slot),
            (PageState::Coming(_), false) => Answer::Wait,
            (PageState::Away(slot), false) => match slots.staged(slot) {
                Some(page) => Answer::Staged(slot, page),
                None => Answer::Read(slot),
            },
        }
    }

    /// A read of `slot` for `page` begins; the read has a reference of its own.
    pub fn reading(&mut self, page: VirtualPage, slot: VolumePage, page_indexes: &mut PageIndexes) {
        page_indexes.volume_pages.retain(slot);
        let (group, index) = self.group(page, page_indexes);
        assert!(group.pages[index] == PageState::Away(slot), "only what is away is read");
        group.pages[index] = PageState::Coming(slot);
    }

    /// Whether `page` still waits for the read of `slot`.
    pub fn awaits(&self, page: VirtualPage, slot: VolumePage) -> bool {
        self.state(page) == PageState::Coming(slot)
    }

    /// A read of `slot` for `page` ended; if the page was not filled by it, it is away as before.
    pub fn read_ended(&mut self, page: VirtualPage, slot: VolumePage, page_indexes: &mut PageIndexes) {
        if self.awaits(page, slot) {
            self.group(page, page_indexes).0.pages[place(page).1] = PageState::Away(slot);
        }
        page_indexes.volume_pages.release(slot);
    }

    /// `page` was filled as [`PageTable::answer`] said: `clean` if it is write-protected, so that its slot stays its
    /// copy. Filling it proved that it is registered.
    pub fn filled(&mut self, page: VirtualPage, clean: bool, coming: Coming, page_indexes: &mut PageIndexes) {
        if !self.registered.contain(&page.range()) {
            self.registered.insert(page.range());
        }
        let (group, index) = self.group(page, page_indexes);
        match group.pages[index] {
            PageState::Away(slot) | PageState::Coming(slot) if clean => {
                group.pages[index] = PageState::Clean(slot);
                page_indexes.volume_pages.copy_made();
            }
            PageState::Away(slot) | PageState::Coming(slot) => {
                group.pages[index] = PageState::Own;
                page_indexes.volume_pages.release(slot);
            }
            PageState::Own | PageState::Discarding => group.pages[index] = PageState::Own,
            PageState::Clean(_) => unreachable!("a page that is there is not filled"),
        }
        if self.guarded.contain(&page.range()) {
            return;
        }
        let (group, index) = self.group(page, page_indexes);
        group.list(index, coming, &mut page_indexes.cache_pages);
    }

    /// `page` may be written from now on: its slot is no copy of it any more.
    pub fn written(&mut self, page: VirtualPage, page_indexes: &mut PageIndexes) {
        let (base, index) = place(page);
        let Some(group) = self.groups.get_mut(&base) else { return };
        if let PageState::Clean(slot) = group.pages[index] {
            group.pages[index] = PageState::Own;
            group.writes.written();
            self.writes.written();
            page_indexes.volume_pages.copy_ended();
            page_indexes.volume_pages.release(slot);
            group.learnt(index, Evidence::Written, &mut page_indexes.cache_pages);
        }
    }

    /// A look at the program's memory found `page` resident. A page that is being removed may still be there.
    pub fn found(&mut self, page: VirtualPage, page_indexes: &mut PageIndexes) {
        if self.shunned.contain(&page.range()) || self.is_guarded(page) {
            return;
        }
        let (group, index) = self.group(page, page_indexes);
        if matches!(group.pages[index], PageState::Own | PageState::Clean(_)) && !group.is_listed(index) {
            group.list(index, Coming::New, &mut page_indexes.cache_pages);
        }
    }

    /// What would leave with `page`; `None` if it may not.
    pub fn victim(&self, page: VirtualPage) -> Option<Victim> {
        if !self.registered.contain(&page.range()) || self.is_guarded(page) {
            return None;
        }
        match self.state(page) {
            PageState::Own => Some(Victim::Dirty),
            PageState::Clean(slot) => Some(Victim::Clean(slot)),
            PageState::Discarding | PageState::Away(_) | PageState::Coming(_) => None,
        }
    }

    /// The policy handed `page` out as a victim: it does not list it any more.
    pub fn unlisted(&mut self, page: VirtualPage) {
        let (base, index) = place(page);
        if let Some(group) = self.groups.get_mut(&base) {
            group.listed &= !(1 << index);
        }
    }

    /// The policy lists `page` again.
    pub fn listed_again(&mut self, page: VirtualPage) {
        let (base, index) = place(page);
        if let Some(group) = self.groups.get_mut(&base) {
            group.listed |= 1 << index;
        }
    }

    /// `page` left the program's memory; its content is that of `slot`, whose reference it takes (a clean page has
    /// that reference already). Says whether it had come along for nothing, as far as the pager knows.
    pub fn left(&mut self, page: VirtualPage, slot: VolumePage, page_indexes: &mut PageIndexes) -> bool {
        let (group, index) = self.group(page, page_indexes);
        assert!(
            matches!(group.pages[index], PageState::Own) || group.pages[index] == PageState::Clean(slot),
            "only a resident page leaves"
        );
        let is_clean = matches!(group.pages[index], PageState::Clean(_));
        if is_clean {
            group.writes.left_clean();
            page_indexes.volume_pages.copy_ended();
        }
        group.pages[index] = PageState::Away(slot);
        let is_unused = group.leaves_unproven(index);
        if is_clean {
            self.writes.left_clean();
        }
        if is_unused && self.unused.len() < UNUSED_MAX {
            self.unused.push(page);
        }
        is_unused
    }

    /// Whether pages around `page` that come for reading are likely to be written before they leave.
    pub fn expects_write(&self, page: VirtualPage) -> bool {
        let group = self.groups.get(&place(page).0).filter(|group| group.writes.is_taught);
        group.map_or(self.writes, |group| group.writes).is_up()
    }

    /// `page`, and maybe others with it, comes for reading: whether writable.
    pub fn comes_writable(&mut self, page: VirtualPage) -> bool {
        if self.is_shared {
            return true;
        }
        let group = self.groups.get_mut(&place(page).0).filter(|group| group.writes.is_taught);
        group.map_or(&mut self.writes, |group| &mut group.writes).comes_writable()
    }

    /// `page`, which is clean, is not there: its slot has one of the contents that it may have after MADV_FREE.
    pub fn taken_back(&mut self, page: VirtualPage, page_indexes: &mut PageIndexes) {
        let PageState::Clean(slot) = self.state(page) else { return };
        let (group, index) = self.group(page, page_indexes);
        group.unlist(index, &mut page_indexes.cache_pages);
        self.left(page, slot, page_indexes);
    }

    /// The program removes `range` (MADV_DONTNEED): what is away is forgotten, what is there is left alone until it
    /// is gone.
    pub fn remove(&mut self, range: &Range<u64>, page_indexes: &mut PageIndexes) {
        if self.unscanned {
            self.shunned.insert(range.clone());
        }
        self.each_page(range, |group, index| group.remove(index, page_indexes));
    }

    /// `range` is not mapped any more, or by something else.
    pub fn unmap(&mut self, range: &Range<u64>, page_indexes: &mut PageIndexes) {
        for set in [&mut self.registered, &mut self.surveyed, &mut self.guarded, &mut self.shunned] {
            set.remove(range);
        }
        self.each_page(range, |group, index| group.forget(index, page_indexes));
        let empty: Vec<VirtualPage> = self.bases(range).filter(|base| self.groups[base].is_blank()).collect();
        for base in empty {
            let group = self.groups.remove(&base).expect("just listed");
            page_indexes.cache_pages.close_group(group.number);
        }
    }

    /// Forgets what is thought to be away in `range` where `is_registered` says that nothing is: only what is
    /// registered can be away, so that is of a mapping whose end no thread could tell.
    pub fn forget_strays(
        &mut self,
        range: &Range<u64>,
        is_registered: impl Fn(&Range<u64>) -> bool,
        page_indexes: &mut PageIndexes,
    ) {
        let mut away = Ranges::default();
        self.each_page(range, |group, index| {
            if matches!(group.pages[index], PageState::Away(_) | PageState::Coming(_)) {
                away.insert(page_of(group, index, page_indexes).range());
            }
        });
        for run in away.iter().filter(|run| !is_registered(run)) {
            // More than one mapping may have parts of it.
            let pages = VirtualPage::all_in(run).map(VirtualPage::range);
            pages.filter(|page| !is_registered(page)).for_each(|page| self.unmap(&page, page_indexes));
        }
    }

    /// The program may install or remove guard pages in `range` from now on (madvise(2), Linux 6.13): what it has
    /// there stays, and nothing is brought there, since a page that the kernel copies takes a guard's place
    /// (`pte_none_mostly` in mm/userfaultfd.c). False, and nothing changed, while a page of it is away: its content
    /// would be lost or come back behind a guard.
    pub fn guard(&mut self, range: &Range<u64>, page_indexes: &mut PageIndexes) -> bool {
        let mut is_away = false;
        self.each_page(range, |group, index| {
            is_away |= matches!(group.pages[index], PageState::Away(_) | PageState::Coming(_));
        });
        if !is_away {
            self.each_page(range, |group, index| group.forget(index, page_indexes));
            self.guarded.insert(range.clone());
        }
        !is_away
    }

    /// There are guards in `range` where `guards` says so, and nowhere else. What is there beside them is looked for
    /// anew.
    pub fn guards_are(&mut self, range: &Range<u64>, guards: &Ranges) {
        let mut free = self.guarded.within(range).into_iter().fold(Ranges::default(), |mut all, part| {
            all.insert(part);
            all
        });
        guards.iter().for_each(|part| free.remove(&part));
        for part in free.iter() {
            self.guarded.remove(&part);
            self.surveyed.remove(&part);
        }
    }

    /// Whether `page` is or may become a guard.
    pub fn is_guarded(&self, page: VirtualPage) -> bool {
        !self.guarded.is_empty() && self.guarded.contain(&page.range())
    }

    /// `length` bytes moved from `from` to `to` with their pages (mremap). Reads under way do not follow them.
    pub fn remap(&mut self, from: u64, to: u64, length: u64, page_indexes: &mut PageIndexes) {
        self.unmap(&(to..to + length), page_indexes);
        let source = from..from + length;
        for set in [&mut self.registered, &mut self.surveyed, &mut self.guarded, &mut self.shunned] {
            for part in set.within(&source) {
                set.insert(part.start - from + to..part.end - from + to);
            }
        }
        let mut moved = Vec::new();
        self.each_page(&source, |group, index| {
            let page = page_of(group, index, page_indexes);
            moved.push((VirtualPage::at(page.address() - from + to), group.take(index, page_indexes)));
        });
        self.unmap(&source, page_indexes);
        for (page, (state, was_listed)) in moved {
            if state == PageState::Own && !was_listed {
                continue;
            }
            if let PageState::Clean(_) = state {
                page_indexes.volume_pages.copy_made();
            }
            let (group, index) = self.group(page, page_indexes);
            group.pages[index] = state;
            if was_listed {
                group.list(index, Coming::New, &mut page_indexes.cache_pages);
            }
        }
    }

    /// The address space of a child, as of the fork; what lies in `wiped` reads as zeroes there (MADV_WIPEONFORK,
    /// rule 5).
    pub fn fork(&self, id: SpaceId, wiped: &Ranges, page_indexes: &mut PageIndexes) -> Self {
        let mut child = Self::new(id);
        child.registered = self.registered.clone();
        child.surveyed = self.surveyed.clone();
        // The kernel copies guards, too (`copy_pte_marker` in mm/memory.c).
        child.guarded = self.guarded.clone();
        child.unscanned = true;
        for (base, group) in &self.groups {
            for (index, state) in group.pages.iter().enumerate() {
                let page = *base + index as u64;
                let (PageState::Away(slot) | PageState::Coming(slot) | PageState::Clean(slot)) = *state else {
                    continue;
                };
                if wiped.contain(&page.range()) {
                    continue;
                }
                page_indexes.volume_pages.retain(slot);
                let is_clean = matches!(state, PageState::Clean(_));
                if is_clean {
                    page_indexes.volume_pages.copy_made();
                }
                let (group, index) = child.group(page, page_indexes);
                group.pages[index] = if is_clean { PageState::Clean(slot) } else { PageState::Away(slot) };
            }
        }
        child
    }

    /// The address space is gone.
    pub fn end(&mut self, page_indexes: &mut PageIndexes) {
        self.unmap(&(0..u64::MAX), page_indexes);
    }

    /// The first pages of groups in `range`, in no order.
    fn bases(&self, range: &Range<u64>) -> impl Iterator<Item = VirtualPage> + '_ {
        let (start, end) = (range.start & !(GROUP_SIZE_BYTES - 1), range.end.max(range.start));
        let few = (end - start) / GROUP_SIZE_BYTES < self.groups.len() as u64;
        let by_address = few.then(|| (start..end).step_by(GROUP_SIZE_BYTES as usize).map(VirtualPage::at));
        let is_within = move |base: &VirtualPage| (start..end).contains(&base.address());
        let by_group = (!few).then(|| self.groups.keys().copied().filter(is_within));
        let by_address = by_address.into_iter().flatten().filter(|base| self.groups.contains_key(base));
        by_address.chain(by_group.into_iter().flatten())
    }

    /// Visits the pages of `range` that have a group.
    fn each_page(&mut self, range: &Range<u64>, mut visit: impl FnMut(&mut Group, usize)) {
        let bases: Vec<VirtualPage> = self.bases(range).collect();
        for base in bases {
            let group = self.groups.get_mut(&base).expect("just listed");
            for index in 0..GROUP_PAGES {
                if range.contains(&(base + index as u64).address()) {
                    visit(group, index);
                }
            }
        }
    }
}

/// The page with this index in its group.
fn page_of(group: &Group, index: usize, page_indexes: &PageIndexes) -> VirtualPage {
    page_indexes.cache_pages.home(group.page(index)).expect("an open group has a home").page
}

/// The first page of its group, and the index in that.
fn place(page: VirtualPage) -> (VirtualPage, usize) {
    let base = VirtualPage::at(page.address() & !(GROUP_SIZE_BYTES - 1));
    (base, (page - base) as usize)
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
