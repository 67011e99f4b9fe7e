//! The page table against a plain model of programs' memory: faults, evictions, forks and every event in random
//! order, never a wrong content, and exact counts of slots.

use std::collections::BTreeMap;

use proptest::prelude::*;
use spillway_fabric::units::PAGE_SIZE_BYTES;

use super::*;
use crate::fork::page_in::ALL;
use crate::page_table::page_indexes::News;
use crate::page_table::volume_pages::VolumePageRun;

const PAGE: u64 = PAGE_SIZE_BYTES as u64;
const PAGES: u64 = 96;
const BASE: VirtualPage = VirtualPage::at(7 * PAGE);

fn page_indexes() -> PageIndexes {
    PageIndexes { volume_pages: VolumePages::new(4096), cache_pages: CachePages::default() }
}

fn virtual_page(page: u64) -> VirtualPage {
    BASE + page
}

fn range(page: u64, pages: u64) -> Range<u64> {
    virtual_page(page).address()..virtual_page(page + pages).address()
}

/// One program: what its memory holds, and what it must hold.
struct Program {
    page_table: PageTable,
    /// Content and write protection of resident pages.
    resident: BTreeMap<u64, (u32, bool)>,
    /// What the program wrote; absent: zeroes.
    truth: BTreeMap<u64, u32>,
    /// Removed by the program, not gone yet.
    going: Option<Range<u64>>,
    /// Reads under way.
    reads: Vec<(VirtualPage, VolumePage)>,
}

struct World {
    page_indexes: PageIndexes,
    volume: BTreeMap<VolumePage, u32>,
    programs: Vec<Program>,
    clock: u32,
}

impl World {
    fn new() -> Self {
        let mut page_table = PageTable::new(SpaceId(0));
        page_table.registered.insert(range(0, PAGES));
        let first =
            Program { page_table, resident: BTreeMap::new(), truth: BTreeMap::new(), going: None, reads: Vec::new() };
        Self { page_indexes: page_indexes(), volume: BTreeMap::new(), programs: vec![first], clock: 0 }
    }

    fn is_going(&self, program: usize, page: u64) -> bool {
        self.programs[program].going.as_ref().is_some_and(|going| going.contains(&page))
    }

    /// The program reads or writes a page; whatever faults that takes are answered.
    fn touch(&mut self, program: usize, page: u64, is_write: bool) {
        if self.is_going(program, page) {
            return;
        }
        for _ in 0..4 {
            match self.programs[program].resident.get(&page).copied() {
                None => self.fault(program, page, is_write, false),
                Some((_, true)) if is_write => self.fault(program, page, true, true),
                Some((content, is_protected)) => {
                    let truth = self.programs[program].truth.get(&page).copied().unwrap_or(0);
                    assert_eq!(content, truth, "program {program}, page {page}");
                    if is_write {
                        self.clock += 1;
                        self.programs[program].resident.insert(page, (self.clock, is_protected));
                        self.programs[program].truth.insert(page, self.clock);
                    }
                    return;
                }
            }
        }
        panic!("program {program} waits for page {page} forever");
    }

    fn fault(&mut self, program: usize, page: u64, is_write: bool, is_write_protected: bool) {
        let (page_indexes, one, at) = (&mut self.page_indexes, &mut self.programs[program], virtual_page(page));
        match one.page_table.answer(at, is_write_protected, &page_indexes.volume_pages) {
            Answer::Zero => {
                one.resident.insert(page, (0, false));
                one.page_table.filled(at, false, Coming::New, page_indexes);
            }
            Answer::Staged(slot, _) => {
                one.resident.insert(page, (self.volume[&slot], !is_write));
                one.page_table.filled(at, !is_write, Coming::Staged, page_indexes);
            }
            Answer::Read(slot) => {
                one.page_table.reading(at, slot, page_indexes);
                one.reads.push((at, slot));
                self.finish_reads(program);
            }
            Answer::Wait => self.finish_reads(program),
            Answer::Unprotect => {
                one.resident.get_mut(&page).expect("protected pages are there").1 = false;
                one.page_table.written(at, page_indexes);
            }
            Answer::Wake | Answer::Recheck(_) => panic!("nothing is stale here"),
        }
    }

    fn finish_reads(&mut self, program: usize) {
        let (page_indexes, one) = (&mut self.page_indexes, &mut self.programs[program]);
        for (at, slot) in std::mem::take(&mut one.reads) {
            if one.page_table.awaits(at, slot) {
                one.resident.insert(at - BASE, (self.volume[&slot], true));
                one.page_table.filled(at, true, Coming::Back, page_indexes);
            }
            one.page_table.read_ended(at, slot, page_indexes);
        }
    }

    /// Begins a read that ends later.
    fn begin_read(&mut self, program: usize, page: u64) {
        let (page_indexes, one, at) = (&mut self.page_indexes, &mut self.programs[program], virtual_page(page));
        if let Answer::Read(slot) = one.page_table.answer(at, false, &page_indexes.volume_pages)
            && !one.resident.contains_key(&page)
        {
            one.page_table.reading(at, slot, page_indexes);
            one.reads.push((at, slot));
        }
    }

    fn evict(&mut self, program: usize, page: u64, stays_staged: bool) {
        let (page_indexes, one, at) = (&mut self.page_indexes, &mut self.programs[program], virtual_page(page));
        let Some(victim) = one.page_table.victim(at) else { return };
        let Some((content, _)) = one.resident.get(&page).copied() else { return };
        let slot = match victim {
            Victim::Clean(slot) => {
                assert_eq!(self.volume[&slot], content, "a clean page has a copy");
                slot
            }
            Victim::Dirty => {
                let VolumePageRun { first, .. } =
                    page_indexes.volume_pages.take(1).expect("the volume is large enough");
                self.volume.insert(first, content);
                first
            }
        };
        if let (Some(number), Victim::Dirty, true) = (one.page_table.number(at), victim, stays_staged) {
            page_indexes.volume_pages.stage(slot, PoolPage(number.0));
        }
        one.resident.remove(&page);
        one.page_table.unlisted(at);
        one.page_table.left(at, slot, page_indexes);
    }

    fn begin_remove(&mut self, program: usize, page: u64, pages: u64) {
        let one = &mut self.programs[program];
        if one.going.is_none() {
            one.page_table.remove(&range(page, pages), &mut self.page_indexes);
            one.going = Some(page..page + pages);
        }
    }

    fn end_remove(&mut self, program: usize) {
        let one = &mut self.programs[program];
        for page in one.going.take().into_iter().flatten() {
            one.resident.remove(&page);
            one.truth.remove(&page);
        }
    }

    fn unmap(&mut self, program: usize, page: u64, pages: u64) {
        self.end_remove(program);
        let one = &mut self.programs[program];
        one.page_table.unmap(&range(page, pages), &mut self.page_indexes);
        for page in page..page + pages {
            one.resident.remove(&page);
            one.truth.remove(&page);
        }
        // A new mapping takes its place, and is registered again.
        one.page_table.registered.insert(range(page, pages));
    }

    fn remap(&mut self, program: usize, from: u64, to: u64, pages: u64) {
        if from.abs_diff(to) < pages || from.max(to) + pages > PAGES {
            return;
        }
        self.end_remove(program);
        let one = &mut self.programs[program];
        one.page_table.remap(range(from, pages).start, range(to, pages).start, pages * PAGE, &mut self.page_indexes);
        one.page_table.registered.insert(range(from, pages));
        for page in 0..pages {
            let moved = one.truth.remove(&(from + page));
            one.truth.remove(&(to + page));
            one.truth.extend(moved.map(|content| (to + page, content)));
            let moved = one.resident.remove(&(from + page));
            one.resident.remove(&(to + page));
            one.resident.extend(moved.map(|content| (to + page, content)));
        }
    }

    fn fork(&mut self, program: usize, wiped: u64) {
        if self.programs.len() > 3 {
            return;
        }
        self.end_remove(program);
        let mut wiped_ranges = Ranges::default();
        wiped_ranges.insert(range(wiped, 8));
        let is_wiped = |page: u64| (wiped..wiped + 8).contains(&page);
        let parent = &self.programs[program];
        let id = SpaceId(self.programs.len() as u32);
        let mut child = Program {
            page_table: parent.page_table.fork(id, &wiped_ranges, &mut self.page_indexes),
            resident: parent.resident.iter().filter(|(page, _)| !is_wiped(**page)).map(|(a, b)| (*a, *b)).collect(),
            truth: parent.truth.iter().filter(|(page, _)| !is_wiped(**page)).map(|(a, b)| (*a, *b)).collect(),
            going: None,
            reads: Vec::new(),
        };
        child.resident.keys().for_each(|page| child.page_table.found(virtual_page(*page), &mut self.page_indexes));
        child.page_table.scanned();
        self.programs.push(child);
    }

    /// Slots are referred to by exactly the pages and reads that there are.
    fn check_counts(&self) {
        let (mut counts, mut copies) = (BTreeMap::<VolumePage, u64>::new(), 0);
        for program in &self.programs {
            for page in 0..PAGES {
                if let PageState::Clean(slot) | PageState::Away(slot) | PageState::Coming(slot) =
                    program.page_table.state(virtual_page(page))
                {
                    *counts.entry(slot).or_default() += 1;
                }
            }
            program.reads.iter().for_each(|(_, slot)| *counts.entry(*slot).or_default() += 1);
            let states = (0..PAGES).map(|page| program.page_table.state(virtual_page(page)));
            copies += states.filter(|state| matches!(state, PageState::Clean(_))).count() as u64;
        }
        assert_eq!(self.page_indexes.volume_pages.copies(), copies);
        for slot in (0..4096).map(VolumePage) {
            assert_eq!(
                self.page_indexes.volume_pages.references(slot),
                counts.get(&slot).copied().unwrap_or(0),
                "{slot:?}"
            );
        }
    }

    fn end(mut self) {
        for program in 0..self.programs.len() {
            self.finish_reads(program);
            self.end_remove(program);
            (0..PAGES).for_each(|page| self.touch(program, page, false));
        }
        self.check_counts();
        for program in &mut self.programs {
            program.page_table.end(&mut self.page_indexes);
        }
        assert_eq!(self.page_indexes.volume_pages.in_use(), 0, "every slot came back");
        assert_eq!(self.page_indexes.volume_pages.copies(), 0, "every copy ended");
        assert_eq!(self.page_indexes.cache_pages.groups_open(), 0, "every group was closed");
    }
}

/// What the policy would list after `news`.
fn listed(page_indexes: &mut PageIndexes) -> std::collections::BTreeSet<CachePage> {
    let (mut news, mut listed) = (Vec::new(), std::collections::BTreeSet::new());
    page_indexes.cache_pages.take_news(&mut news);
    for news in news {
        match news {
            News::Came(page, _) => assert!(listed.insert(page), "{page:?} came twice"),
            News::Gone(page) => assert!(listed.remove(&page), "{page:?} was not there"),
            News::Learnt(page, _) => assert!(listed.contains(&page)),
        }
    }
    listed
}

#[test]
fn pages_that_are_away_are_listed_in_order() {
    let mut page_indexes = page_indexes();
    let mut page_table = PageTable::new(SpaceId(1));
    assert!(page_table.away(&ALL).is_empty());
    let [first, third, far] = [PAGE, 3 * PAGE, 9 * GROUP_SIZE_BYTES + PAGE].map(VirtualPage::at);
    for page in [far, third, first] {
        let slot = page_indexes.volume_pages.take(1).unwrap().first;
        page_table.found(page, &mut page_indexes);
        page_table.left(page, slot, &mut page_indexes);
    }
    assert_eq!(page_table.away(&ALL), [first, third, far]);
    let PageState::Away(slot) = page_table.state(first) else { panic!("it left") };
    page_table.reading(first, slot, &mut page_indexes);
    assert_eq!(page_table.away(&ALL).len(), 3, "what is still to come is away");
    page_table.filled(third, false, Coming::Back, &mut page_indexes);
    assert_eq!(page_table.away(&ALL), [first, far]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn no_order_of_events_gives_a_wrong_page(
        steps in proptest::collection::vec((0_u8..12, 0_usize..4, 0..PAGES, 0..PAGES), 1..300)
    ) {
        let mut world = World::new();
        for (step, program, page, other) in steps {
            let program = program % world.programs.len();
            let pages = (other % 20 + 1).min(PAGES - page);
            match step {
                0 | 1 => world.touch(program, page, true),
                2 => world.touch(program, page, false),
                3..=5 => (page..page + pages).for_each(|page| world.evict(program, page, step == 5 && other % 2 == 0)),
                6 => world.begin_read(program, page),
                7 => world.finish_reads(program),
                8 if other % 2 == 0 => world.end_remove(program),
                8 => world.begin_remove(program, page, pages),
                9 => world.unmap(program, page, pages),
                10 => world.remap(program, page, other, pages),
                _ => world.fork(program, page.min(PAGES - 8)),
            }
        }
        world.check_counts();
        world.end();
    }

    #[test]
    fn news_tell_what_is_resident(steps in proptest::collection::vec((0_u8..6, 0..PAGES, 1_u64..20), 1..200)) {
        let mut world = World::new();
        for (step, page, pages) in steps {
            let pages = pages.min(PAGES - page);
            match step {
                0 | 1 => world.touch(0, page, true),
                2 => world.touch(0, page, false),
                3 => {
                    world.begin_remove(0, page, pages);
                    world.end_remove(0);
                }
                4 => world.unmap(0, page, pages),
                _ => world.remap(0, page, PAGES - pages, pages),
            }
        }
        let one = &world.programs[0];
        let resident: std::collections::BTreeSet<_> =
            one.resident.keys().map(|page| one.page_table.number(virtual_page(*page)).unwrap()).collect();
        prop_assert_eq!(listed(&mut world.page_indexes), resident);
    }
}

#[test]
fn a_page_that_is_being_removed_is_no_victim_until_it_was_seen_absent() {
    // Rule 10 of docs/pager.md.
    let mut world = World::new();
    world.touch(0, 3, true);
    assert_eq!(world.programs[0].page_table.victim(virtual_page(3)), Some(Victim::Dirty));
    world.begin_remove(0, 3, 1);
    assert_eq!(world.programs[0].page_table.victim(virtual_page(3)), None);
    world.programs[0].page_table.found(virtual_page(3), &mut world.page_indexes);
    assert!(listed(&mut world.page_indexes).is_empty(), "a look that still finds it proves nothing");
    world.end_remove(0);
    world.touch(0, 3, false);
    assert_eq!(world.programs[0].page_table.victim(virtual_page(3)), Some(Victim::Dirty));
}

#[test]
fn what_an_unscanned_child_removes_is_not_listed_by_a_later_look() {
    let mut world = World::new();
    (0..4).for_each(|page| world.touch(0, page, true));
    let mut child = world.programs[0].page_table.fork(SpaceId(1), &Ranges::default(), &mut world.page_indexes);
    listed(&mut world.page_indexes);
    child.remove(&range(1, 2), &mut world.page_indexes);
    (0..4).for_each(|page| child.found(virtual_page(page), &mut world.page_indexes));
    assert_eq!(listed(&mut world.page_indexes).len(), 2);
    child.end(&mut world.page_indexes);
}

#[test]
fn a_page_outside_probed_memory_is_no_victim() {
    // Rule 1: what is registered cannot be known from the maps.
    let mut world = World::new();
    world.touch(0, 3, true);
    world.programs[0].page_table.registered.remove(&range(0, PAGES));
    assert_eq!(world.programs[0].page_table.victim(virtual_page(3)), None);
    // A fault that could be answered is a proof as good as a probe.
    world.programs[0].page_table.filled(virtual_page(3), false, Coming::New, &mut world.page_indexes);
    assert_eq!(world.programs[0].page_table.victim(virtual_page(3)), Some(Victim::Dirty));
}

#[test]
fn where_nothing_is_known_pages_come_writable_if_they_do_elsewhere() {
    const ELSEWHERE: u64 = 40;
    let mut world = World::new();
    let comes_writable = |world: &mut World| {
        let page_table = &mut world.programs[0].page_table;
        (page_table.expects_write(virtual_page(ELSEWHERE)), page_table.comes_writable(virtual_page(ELSEWHERE)))
    };
    assert_eq!(comes_writable(&mut world), (false, false));
    for page in 0..4 {
        world.touch(0, page, true);
        world.evict(0, page, false);
        world.touch(0, page, false);
        world.touch(0, page, true);
    }
    assert_eq!(comes_writable(&mut world), (true, true));
    // What is known of the place itself counts for more.
    world.touch(0, ELSEWHERE + 1, true);
    world.evict(0, ELSEWHERE + 1, false);
    world.touch(0, ELSEWHERE + 1, false);
    world.evict(0, ELSEWHERE + 1, false);
    assert_eq!(comes_writable(&mut world), (false, false));
}

#[test]
fn stale_messages_only_wake() {
    let mut world = World::new();
    world.touch(0, 1, true);
    world.evict(0, 1, false);
    world.touch(0, 1, false);
    let page_table = &world.programs[0].page_table;
    let answer = page_table.answer(virtual_page(1), false, &world.page_indexes.volume_pages);
    assert!(
        matches!(answer, Answer::Recheck(slot) if page_table.state(virtual_page(1)) == PageState::Clean(slot)),
        "answered already"
    );
    assert_eq!(page_table.answer(virtual_page(1), true, &world.page_indexes.volume_pages), Answer::Unprotect);
    world.evict(0, 1, false);
    let page_table = &world.programs[0].page_table;
    assert_eq!(
        page_table.answer(virtual_page(1), true, &world.page_indexes.volume_pages),
        Answer::Wake,
        "it left meanwhile"
    );
}

#[test]
fn as_many_pages_come_along_as_were_touched_before_as_far_as_they_are_known_and_untouched() {
    let (mut page_table, mut page_indexes) = (PageTable::new(SpaceId(0)), page_indexes());
    page_table.surveyed.insert(range(0, 100));
    let mut fill = |page_table: &mut PageTable, pages: Range<u64>| {
        pages.for_each(|page| page_table.filled(virtual_page(page), false, Coming::New, &mut page_indexes));
    };
    fill(&mut page_table, 10..11);
    assert_eq!(page_table.first_touches_ahead(virtual_page(10)), range(11, 0), "the first page of all");
    fill(&mut page_table, 11..12);
    assert_eq!(page_table.first_touches_ahead(virtual_page(11)), range(12, 1));
    fill(&mut page_table, 12..60);
    assert_eq!(page_table.first_touches_ahead(virtual_page(59)), range(60, 32));
    fill(&mut page_table, 70..71);
    assert_eq!(page_table.first_touches_ahead(virtual_page(59)), range(60, 10), "up to the next one that was touched");
    fill(&mut page_table, 71..99);
    assert_eq!(page_table.first_touches_ahead(virtual_page(98)), range(99, 1), "up to the end of the mapping");
}

#[test]
fn where_guards_may_be_nothing_leaves_and_nothing_comes_along() {
    let mut world = World::new();
    (0..8).for_each(|page| world.touch(0, page, true));
    world.evict(0, 2, false);
    let (page_table, page_indexes) = (&mut world.programs[0].page_table, &mut world.page_indexes);
    page_table.surveyed.insert(range(0, PAGES));
    assert!(!page_table.guard(&range(1, 3), page_indexes), "a page of it is away: its content would be lost");
    assert!(!page_table.is_guarded(virtual_page(1)));
    world.touch(0, 2, false);
    let (page_table, page_indexes) = (&mut world.programs[0].page_table, &mut world.page_indexes);
    assert!(matches!(page_table.state(virtual_page(2)), PageState::Clean(_)));
    assert!(page_table.guard(&range(1, 3), page_indexes));
    assert_eq!(page_table.victim(virtual_page(2)), None);
    assert_eq!(page_table.victim(virtual_page(4)), Some(Victim::Dirty));
    assert_eq!(
        page_table.answer(virtual_page(2), false, &page_indexes.volume_pages),
        Answer::Zero,
        "what a guard took away comes back as zeroes"
    );
    assert_eq!(
        page_table.answer(virtual_page(2), true, &page_indexes.volume_pages),
        Answer::Unprotect,
        "it was protected and is still there"
    );
    // Pages before and behind it were touched one after the other.
    page_table.guard(&range(9, 1), page_indexes);
    assert_eq!(page_table.first_touches_ahead(virtual_page(7)), range(8, 1), "not into a guard");
    let mut child = page_table.fork(SpaceId(1), &Ranges::default(), page_indexes);
    assert!(child.is_guarded(virtual_page(3)));
    child.end(page_indexes);
    page_table.remap(range(1, 3).start, range(20, 3).start, 3 * PAGE, page_indexes);
    assert!(page_table.is_guarded(virtual_page(20)) && !page_table.is_guarded(virtual_page(1)));
    // Only the middle of it has a guard when the call is over.
    let mut guards = Ranges::default();
    guards.insert(range(21, 1));
    page_table.guards_are(&range(20, 3), &guards);
    assert!(
        page_table.is_guarded(virtual_page(21))
            && !page_table.is_guarded(virtual_page(20))
            && !page_table.is_guarded(virtual_page(22))
    );
    assert!(!page_table.surveyed.contain(&range(20, 1)), "what is there is looked for again");
    page_table.found(virtual_page(20), page_indexes);
    page_table.found(virtual_page(21), page_indexes);
    assert!(
        page_table.number(virtual_page(20)).is_some() && page_table.victim(virtual_page(20)) == Some(Victim::Dirty)
    );
    assert_eq!(page_table.victim(virtual_page(21)), None);
    page_table.unmap(&range(20, 3), page_indexes);
    assert!(!page_table.is_guarded(virtual_page(21)), "another mapping has none");
}
