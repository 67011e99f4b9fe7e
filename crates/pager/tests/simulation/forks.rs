//! Forks that the kernel does not tell of: every page comes back first, and stays.

use std::sync::atomic::Ordering;

use spillway_pager::fork::page_in::{ALL, ForkPageIn, PageInProgress};

use super::*;

const PLENTY: u64 = 1 << 40;

impl World {
    fn page_in(&self, program: usize) -> ForkPageIn {
        ForkPageIn::begin(&self.shared, vec![Arc::clone(&self.programs[program].space)], &ALL, self.now)
    }

    /// Two forks at once, of which the first was granted all the room that there is; and how much that is.
    fn two_with_room_for_one(&self) -> (ForkPageIn, ForkPageIn, u64) {
        let away = self.programs[0].space.lock().page_table.away(&ALL).len();
        let room_bytes = limits::FORK_RESERVE_BYTES + (away * PAGE_SIZE_BYTES) as u64;
        let [mut first, mut second] = [self.page_in(0), self.page_in(0)];
        assert_eq!(first.look(self.now, &|_| room_bytes), PageInProgress::NotYet);
        assert_eq!(second.look(self.now, &|_| room_bytes), PageInProgress::NotYet);
        (first, second, room_bytes)
    }

    /// The pager's threads run until a fork page-in has ended.
    fn gather(&mut self, page_in: &mut ForkPageIn, available_bytes: u64) -> PageInProgress {
        for _ in 0..100_000 {
            match page_in.look(self.now, &|_| available_bytes) {
                PageInProgress::NotYet => {}
                end => return end,
            }
            self.fetch_wanted();
            self.run();
        }
        panic!("the fork waits forever");
    }

    /// What a child gets that no thread serves: what is resident, and zeroes.
    fn check_unpaged_child(&self, program: usize) {
        let memory = self.programs[program].memory.lock();
        for (address, content) in &self.programs[program].truth {
            let seen = memory.resident.get(address).map_or(0, |page| page.0);
            assert_eq!(seen, *content, "program {program}: the child's page at {address:#x}");
        }
    }

    /// Forks while the program goes on.
    pub(super) fn fork_untold(&mut self, program: usize) {
        let mut page_in = self.page_in(program);
        assert_eq!(self.gather(&mut page_in, PLENTY), PageInProgress::All);
        self.check_unpaged_child(program);
        page_in.share();
        self.shared.budget.set_resident(self.count());
    }
}

/// A world with a program of which two thirds are away.
fn paged_world() -> World {
    let mut world = World::new(96);
    (0..PAGES).for_each(|page| world.touch(0, page, true));
    world.apply_events();
    assert!(world.count() < 100);
    world
}

#[test]
fn every_page_comes_back_before_a_fork_and_stays_until_it_is_over() {
    let mut world = paged_world();
    let mut page_in = world.page_in(0);
    assert_eq!(world.gather(&mut page_in, PLENTY), PageInProgress::All);
    assert_eq!(world.count(), PAGES as i64, "beyond the budget, and nothing waited for it");
    world.check_unpaged_child(0);
    for _ in 0..1000 {
        world.run();
        assert_eq!(page_in.look(world.now, &|_| 0), PageInProgress::All);
    }
    assert_eq!(world.count(), PAGES as i64);
    drop(page_in);
    (0..1000).for_each(|_| world.run());
    assert!(world.count() <= 96, "they leave again: {}", world.count());
    world.end();
}

#[test]
fn a_batch_that_is_under_way_ends_before_a_fork() {
    let mut world = World::new(96);
    (0..95).for_each(|page| world.touch(0, page, true));
    world.shared.budget.set_resident(96);
    world.turn();
    assert!(world.programs[0].space.lock().batch);
    let mut page_in = world.page_in(0);
    assert_eq!(page_in.look(world.now, &|_| PLENTY), PageInProgress::NotYet);
    assert_eq!(world.gather(&mut page_in, PLENTY), PageInProgress::All);
    assert!(!world.programs[0].space.lock().batch);
    world.check_unpaged_child(0);
    drop(page_in);
    world.end();
}

#[test]
fn forks_of_two_threads_are_both_over_before_a_page_leaves() {
    let mut world = paged_world();
    let [mut first, mut second] = [world.page_in(0), world.page_in(0)];
    assert_eq!(world.gather(&mut first, PLENTY), PageInProgress::All);
    drop(first);
    assert_eq!(world.gather(&mut second, PLENTY), PageInProgress::All);
    (0..1000).for_each(|_| world.run());
    assert_eq!(world.count(), PAGES as i64);
    drop(second);
    world.end();
}

#[test]
fn a_fork_without_room_for_its_pages_is_refused_and_changes_nothing() {
    let mut world = paged_world();
    let mut page_in = world.page_in(0);
    let end = world.gather(&mut page_in, limits::FORK_RESERVE_BYTES);
    assert!(matches!(&end, PageInProgress::Never(reason) if reason.contains("memory")), "{end:?}");
    drop(page_in);
    assert!(world.count() < 100);
    world.end();
}

#[test]
fn the_tightest_room_of_the_forking_processes_decides() {
    let world = paged_world();
    world.programs[0].space.process.store(7, Ordering::SeqCst);
    let mut page_in = world.page_in(0);
    let room = |process| if process == 7 { limits::FORK_RESERVE_BYTES } else { PLENTY };
    assert!(matches!(page_in.look(world.now, &room), PageInProgress::Never(_)));
    drop(page_in);
    world.end();
}

/// Two forks at once, in a machine that has room for the pages of one.
#[test]
fn a_fork_waits_for_room_that_another_was_granted() {
    let mut world = paged_world();
    let away = world.programs[0].space.lock().page_table.away(&ALL).len();
    let (first, mut second, room_bytes) = world.two_with_room_for_one();
    assert_eq!(world.shared.take_wanted().len(), limits::FORK_PAGES_ASKED_MAX.min(away), "one of them asks for pages");
    // The first ends, and room may come for a while.
    drop(first);
    world.now += limits::FORK_ROOM_PAUSE;
    assert_eq!(second.look(world.now, &|_| room_bytes - 1), PageInProgress::NotYet);
    let mut third = world.page_in(0);
    assert!(matches!(third.look(world.now, &|_| room_bytes - 1), PageInProgress::Never(_)), "who never had to wait");
    drop(third);
    world.now += limits::FORK_ROOM_PAUSE;
    assert_eq!(world.gather(&mut second, room_bytes), PageInProgress::All);
    drop(second);
    world.end();
}

#[test]
fn a_fork_that_is_never_granted_room_beside_others_is_refused() {
    let mut world = paged_world();
    let (first, mut second, room_bytes) = world.two_with_room_for_one();
    world.now += limits::FORK_PATIENCE;
    assert!(matches!(second.look(world.now, &|_| room_bytes), PageInProgress::Never(_)));
    drop((first, second));
    world.end();
}

#[test]
fn a_fork_whose_pages_cannot_be_read_is_refused_and_no_other_is_harmed() {
    let mut world = paged_world();
    // Another volume, which ends before most of the pages.
    let short = Arc::new(Mapping::anonymous(PAGE_SIZE_BYTES).unwrap());
    world.read_from(&short, 4);
    let mut page_in = world.page_in(0);
    let end = world.gather(&mut page_in, PLENTY);
    assert!(matches!(&end, PageInProgress::Never(reason) if reason.contains("cannot be read")), "{end:?}");
    drop(page_in);
    assert!(world.programs[0].memory.lock().poisoned.is_empty(), "nobody touched a page");
    assert!(world.programs[0].space.unread.load(Ordering::SeqCst) > 0);
}

#[test]
fn a_fork_that_makes_no_progress_is_refused() {
    let mut world = paged_world();
    let mut page_in = world.page_in(0);
    // No thread runs the fault thread.
    assert_eq!(page_in.look(world.now, &|_| PLENTY), PageInProgress::NotYet);
    let asked = world.shared.take_wanted();
    assert_eq!(asked.len(), limits::FORK_PAGES_ASKED_MAX.min(PAGES as usize - world.count() as usize));
    world.now += limits::FORK_ASK_AGAIN;
    assert_eq!(page_in.look(world.now, &|_| PLENTY), PageInProgress::NotYet);
    assert_eq!(world.shared.take_wanted(), asked, "once more");
    world.now += limits::FORK_PATIENCE;
    assert!(matches!(page_in.look(world.now, &|_| PLENTY), PageInProgress::Never(_)));
    drop(page_in);
    world.end();
}

#[test]
fn a_process_that_ended_needs_no_pages() {
    let world = paged_world();
    let mut page_in = world.page_in(0);
    world.programs[0].space.is_gone.store(true, Ordering::SeqCst);
    assert_eq!(page_in.look(world.now, &|_| 0), PageInProgress::All);
}

#[test]
fn pages_with_a_copy_leave_too_after_a_fork_shared_them() {
    // Rule 2.
    let mut world = paged_world();
    (0..PAGES).for_each(|page| world.touch(0, page, false));
    world.page_in(0).share();
    world.programs[0].memory.lock().pinned = (0..PAGES).map(address).collect();
    (0..PAGES).for_each(|page| world.touch(0, page, false));
    (0..10_000).for_each(|_| world.run());
    assert!(world.count() <= 96, "they stay for ever: {}", world.count());
    world.end();
}
