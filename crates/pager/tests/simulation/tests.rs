//! What programs see and what is done for them, in simulated memory.

use proptest::prelude::*;
use spillway_block::service::Waiting;
use spillway_pager::fork::page_in::ALL;
use spillway_policy::prefetch::WINDOW_MAX;

use super::*;

#[test]
fn a_program_four_times_its_budget_reads_what_it_wrote() {
    let mut world = World::new(96);
    for round in 0..3 {
        for page in 0..PAGES {
            world.touch(0, page, true);
            assert!(world.count() <= 96, "rule 15: round {round}, page {page}: {} pages", world.count());
        }
    }
    let report = world.shared.report();
    assert!(report.pages_out_dirty > 2 * PAGES && report.fill.count > PAGES, "{report:?}");
    world.end();
}

#[test]
fn memory_that_is_touched_page_by_page_comes_by_stretches() {
    let mut world = World::new(256);
    (0..128).for_each(|page| world.touch(0, page, true));
    let report = world.shared.report();
    assert!(report.zero.count <= 16, "each stretch is twice as long as the one before: {report:?}");
    (200..232).rev().for_each(|page| world.touch(0, page, true));
    assert_eq!(world.shared.report().zero.count, report.zero.count + 32, "and backwards one by one");
    world.end();
}

#[test]
fn zeroes_do_not_come_along_from_another_mapping() {
    let mut world = World::new(256);
    world.programs[0].memory.lock().boundaries.push(address(16));
    (0..16).for_each(|page| world.touch(0, page, true));
    let resident: Vec<u64> = world.programs[0].memory.lock().resident.keys().copied().collect();
    assert_eq!(resident, (0..16).map(address).collect::<Vec<_>>());
    world.end();
}

#[test]
fn clean_pages_leave_without_a_write() {
    let mut world = World::new(96);
    (0..PAGES).for_each(|page| world.touch(0, page, true));
    (0..PAGES).for_each(|page| world.touch(0, page, false));
    let before = world.shared.report();
    (0..2).for_each(|_| (0..PAGES).for_each(|page| world.touch(0, page, false)));
    let after = world.shared.report();
    assert_eq!(after.pages_out_dirty, before.pages_out_dirty);
    assert!(after.pages_out_clean >= before.pages_out_clean + PAGES, "{after:?}");
    world.end();
}

#[test]
fn pages_that_are_read_and_then_written_come_writable_until_they_are_only_read() {
    let mut world = World::new(96);
    (0..PAGES).for_each(|page| world.touch(0, page, true));
    for page in (0..8).flat_map(|_| 0..PAGES) {
        world.touch(0, page, false);
        world.touch(0, page, true);
    }
    let report = world.shared.report();
    assert!(report.write.count > 0 && report.write.count < 8 * PAGES / 2, "{report:?}");
    let read_all = |world: &mut World| (0..PAGES).for_each(|page| world.touch(0, page, false));
    (0..30).for_each(|_| read_all(&mut world));
    let before = world.shared.report();
    (0..4).for_each(|_| read_all(&mut world));
    let after = world.shared.report();
    assert_eq!(after.pages_out_dirty, before.pages_out_dirty, "what is not written leaves without a write");
    world.end();
}

#[test]
fn a_page_that_left_a_moment_ago_comes_back_from_the_pool() {
    let mut world = World::new(128);
    (0..160).for_each(|page| world.touch(0, page, true));
    world.apply_events();
    let youngest_gone =
        (0..160).rev().find(|page| !world.programs[0].memory.lock().resident.contains_key(&address(*page)));
    world.touch(0, youngest_gone.unwrap(), false);
    let report = world.shared.report();
    assert_eq!((report.staged.count, report.fill.count), (1, 0));
    world.end();
}

#[test]
fn only_pages_from_elsewhere_that_a_thread_waits_for_are_demands() {
    let mut world = World::new(128);
    (0..PAGES).for_each(|page| world.touch(0, page, true));
    world.apply_events();
    assert_eq!(world.shared.fault_pool.take_demands(), 0, "new memory, changes and evictions are none");
    let gone = |world: &World, page: &u64| !world.programs[0].memory.lock().resident.contains_key(&address(*page));
    let staged = (0..PAGES).rev().find(|page| gone(&world, page)).unwrap();
    world.touch(0, staged, false);
    assert_eq!(world.shared.fault_pool.take_demands(), 0, "it was in the pool");
    let far = (0..PAGES).filter(|page| gone(&world, page)).step_by(40).take(2).collect::<Vec<u64>>();
    let space = world.programs[0].space.id;
    world.shared.want([Wanted { space, page: virtual_page(far[0]), is_writable: false }]);
    world.fetch_wanted();
    let comes = (0..10_000).any(|_| {
        world.run();
        !gone(&world, &far[0])
    });
    assert!(comes);
    assert_eq!(world.shared.fault_pool.take_demands(), 0, "nobody waits for what is only wanted");
    world.touch(0, far[1], false);
    let fills = world.shared.report().fill.count;
    assert!(fills > 0);
    assert_eq!((world.shared.fault_pool.take_demands(), world.shared.fault_pool.take_demands()), (1, 0));
    world.end();
}

#[test]
fn no_thread_waits_when_nothing_can_leave() {
    let mut world = World::new(96);
    world.programs[0].memory.lock().pinned = (0..PAGES).map(address).collect();
    (0..PAGES).for_each(|page| world.touch(0, page, true));
    assert_eq!(world.count(), PAGES as i64, "the program goes on beyond its budget");
    let refused = world.shared.report().refused;
    // 88 when this was written, and 13,000 without a pause between the attempts.
    assert!(refused < PAGES, "rule 2: {refused} refusals for {PAGES} pages");
    world.end();
}

#[test]
fn pages_that_a_fork_shared_leave_after_the_evictor_made_them_the_programs_own() {
    // Rule 2.
    let mut world = World::new(96);
    world.programs[0].space.has_forked.store(true, std::sync::atomic::Ordering::Relaxed);
    (0..80).for_each(|page| world.touch(0, page, true));
    world.programs[0].memory.lock().pinned = (0..80).map(address).collect();
    (80..PAGES).for_each(|page| world.touch(0, page, true));
    world.apply_events();
    assert!(world.programs[0].memory.lock().pinned.len() < 40, "the evictor was asked");
    world.end();
}

#[test]
fn a_program_that_writes_beyond_its_budget_after_a_fork_waits_for_what_becomes_its_own() {
    // Rule 2, and 15.
    let mut world = World::new(96);
    world.programs[0].space.has_forked.store(true, std::sync::atomic::Ordering::Relaxed);
    (0..90).for_each(|page| world.touch(0, page, true));
    world.programs[0].memory.lock().pinned = (0..90).map(address).collect();
    for page in 90..PAGES {
        world.touch(0, page, true);
        assert!(world.count() <= 96, "{} pages at page {page}", world.count());
    }
    world.end();
}

#[test]
fn a_program_whose_evictor_ends_in_the_middle_of_a_batch_is_not_served_any_more() {
    let mut world = World::new(96);
    (0..95).for_each(|page| world.touch(0, page, true));
    world.shared.budget.set_resident(96);
    world.turn();
    assert!(world.programs[0].space.lock().batch);
    world.programs[0].memory.lock().is_broken = true;
    world.turn();
    assert!(world.programs[0].space.is_gone());
    assert!(world.shared.failures()[0].contains("killed"), "{:?}", world.shared.failures());
}

#[test]
fn no_thread_waits_for_the_evictor_of_a_stopped_program() {
    let mut world = World::new(96);
    (0..95).for_each(|page| world.touch(0, page, true));
    world.shared.budget.set_resident(96);
    world.turn();
    assert!(world.programs[0].space.lock().batch && world.shared.budget.holds_back());
    world.now += limits::BATCH_PATIENCE;
    world.turn();
    assert!(!world.shared.budget.holds_back());
    // It goes on.
    world.apply_events();
    world.end();
}

#[test]
fn kept_pages_never_leave() {
    // Rule 4.
    let mut world = World::new(96);
    let kept: Vec<u64> = [3, 17, 200].map(address).to_vec();
    *lock(&world.programs[0].space.kept_pages) = kept.iter().copied().map(VirtualPage::at).collect();
    for page in 0..PAGES {
        world.touch(0, page, true);
        let memory = world.programs[0].memory.lock();
        assert!(kept.iter().all(|at| *at > address(page) || memory.resident.contains_key(at)), "page {page}");
    }
    world.end();
}

#[test]
fn nothing_is_read_from_a_program_while_its_batch_is_under_way() {
    // Rule 14.
    let mut world = World::new(96);
    (0..95).for_each(|page| world.touch(0, page, true));
    world.shared.budget.set_resident(96);
    world.turn();
    let space = Arc::clone(&world.programs[0].space);
    assert!(space.lock().batch);
    world.programs[0].memory.lock().events.push_back(Event::Unmap(address(0)..address(4)));
    assert!(!world.messages.guess(&space, &mut world.faults[0], world.now) && !space.lock().is_awaited);
    assert!(!world.serve(&space), "not before the batch has ended");
    assert_eq!(world.programs[0].memory.lock().events.len(), 1);
    assert!(space.lock().is_awaited && !world.has_put_off());
    world.shared.faults.clear();
    while space.lock().batch {
        world.programs[0].memory.step();
        world.turn();
    }
    assert!(world.shared.faults.clear(), "its end is signalled");
    assert!(world.serve(&space));
    world.programs[0].memory.lock().resident.retain(|at, _| *at >= address(4));
    world.programs[0].truth.retain(|at, _| *at >= address(4));
    world.end();
}

#[test]
fn a_clean_page_that_the_kernel_took_back_comes_from_its_copy() {
    // MADV_FREE.
    let mut world = World::new(96);
    (0..PAGES).for_each(|page| world.touch(0, page, true));
    (0..PAGES).for_each(|page| world.touch(0, page, false));
    world.apply_events();
    let taken: Vec<u64> = {
        let mut memory = world.programs[0].memory.lock();
        let clean = memory.resident.iter().filter(|(_, (_, is_protected))| *is_protected).map(|(at, _)| *at);
        let taken: Vec<u64> = clean.take(8).collect();
        memory.resident.retain(|at, _| !taken.contains(at));
        taken
    };
    assert_eq!(taken.len(), 8);
    for at in taken {
        world.touch(0, (at - BASE) / PAGE, at % (2 * PAGE) == 0);
    }
    world.end();
}

#[test]
fn a_page_that_moved_away_from_a_batch_is_not_taken_for_gone() {
    let mut world = World::new(96);
    (0..PAGES).for_each(|page| world.touch(0, page, true));
    (0..PAGES).for_each(|page| world.touch(0, page, false));
    world.apply_events();
    // A batch begins, and the program moves a clean page that it is to take out before the evictor comes to it.
    world.shared.budget.set_resident(96);
    world.turn();
    let memory = world.programs[0].memory.clone();
    let clean =
        memory.lock().batches[0].iter().position(|(request, _)| request.target.is_none()).expect("a clean page leaves");
    (0..clean).for_each(|_| memory.step());
    let page = (memory.lock().batches[0][clean].0.page.address() - BASE) / PAGE;
    let to = (page + PAGES / 2) % PAGES;
    let gone = address(to)..address(to + 1);
    world.programs[0].truth.remove(&gone.start);
    {
        let mut memory = memory.lock();
        memory.resident.remove(&gone.start);
        memory.batches[0][clean].1 = EvictOutcome::Absent;
        memory.steps += 1;
        memory.events.push_back(Event::Unmap(gone));
    }
    world.shift(0, page, to, 1);
    world.await_events(0);
    // It is there, and only protected.
    world.touch(0, to, true);
    world.end();
}

#[test]
fn pages_that_move_to_addresses_whose_end_is_told_late_are_kept() {
    // Rule 11.
    let mut world = World::new(96);
    (0..PAGES).for_each(|page| world.touch(0, page, true));
    world.reuse(0, 0, 200, 40);
    assert_eq!(world.shared.report().doubts, 1);
    world.reuse(0, 200, 20, 40);
    world.end();
}

#[test]
fn a_child_of_a_program_that_ends_before_it_goes_on_is_served() {
    let mut world = World::new(96);
    let child = Simulated::new(&world.pool);
    let memory = &world.programs[0].memory;
    memory.lock().events.push_back(Event::Fork(Box::new(child)));
    memory.lock().agains = u32::MAX;
    world.serve(&Arc::clone(&world.programs[0].space));
    assert_eq!(world.shared.spaces().len(), 1, "the fork is not applied");
    world.shared.dismiss(&world.programs[0].space);
    assert_eq!(world.shared.spaces().len(), 1);
    assert_eq!(world.shared.spaces()[0].parent, Some(world.programs[0].space.id));
}

/// A program at rest, beyond its budget, whose evictor is done with a batch that left half of the pool free.
fn world_after_a_batch() -> (World, Arc<AddressSpace>, u64) {
    let mut world = World::new(10_000);
    (0..PAGES).for_each(|page| world.touch(0, page, true));
    world.shared.budget.set_bytes(280 * PAGE);
    world.shared.budget.set_resident(world.count());
    world.turn();
    let (memory, space) = (world.programs[0].memory.clone(), Arc::clone(&world.programs[0].space));
    let pages = memory.lock().batches[0].len() as u64;
    (0..pages).for_each(|_| memory.step());
    world.shared.budget.set_resident(world.count() + 200);
    (world, space, pages)
}

fn away(space: &AddressSpace) -> u64 {
    let state = space.lock();
    (0..PAGES).filter(|page| state.page_table.is_away(virtual_page(*page))).count() as u64
}

#[test]
fn an_evictor_has_its_next_batch_when_the_table_hears_of_the_last() {
    let (mut world, space, pages) = world_after_a_batch();
    assert_eq!(away(&space), 0);
    world.turn();
    assert_eq!(away(&space), pages);
    assert!(!world.programs[0].memory.lock().batches.is_empty(), "the evictor works on");
    assert!(space.lock().batch, "and messages stay unread");
    world.apply_events();
    world.end();
}

#[test]
fn a_fault_that_waits_for_a_batch_comes_before_the_next_one() {
    let (mut world, space, pages) = world_after_a_batch();
    assert!(!world.serve(&space));
    world.turn();
    assert_eq!(away(&space), pages);
    assert!(!space.lock().batch && world.programs[0].memory.lock().batches.is_empty());
    assert!(world.serve(&space));
    world.turn();
    assert!(space.lock().batch, "then it goes on");
    world.apply_events();
    world.end();
}

#[test]
fn an_evictor_has_two_batches_only_while_no_fault_waits_for_them() {
    let (mut world, space, _) = world_after_a_batch();
    let memory = world.programs[0].memory.clone();
    (0..3).for_each(|_| world.turn());
    assert_eq!(memory.lock().batches.len(), 2, "nothing disturbed the first one");
    assert!(!world.serve(&space), "a fault comes");
    let pages: usize = memory.lock().batches.iter().map(Vec::len).sum();
    for _ in 0..pages {
        assert!(space.lock().batch, "rule 14 holds until both have ended");
        memory.step();
        world.turn();
    }
    assert!(!space.lock().batch && memory.lock().batches.is_empty(), "and no other one begins");
    assert!(world.serve(&space));
    (0..3).for_each(|_| world.turn());
    assert_eq!(memory.lock().batches.len(), 1, "the next fault may come as soon");
    world.apply_events();
    world.end();
}

/// Faults of a program that writes all its memory in order and then, with room for all of it, reads it, with mappings
/// that end every so many pages: for what is away, and for fresh memory.
fn faults_of_a_scan(pages_of_a_mapping: u64, mapped_quarters: u64) -> (u64, u64) {
    let mut world = World::new(200);
    world.map_quarters(mapped_quarters);
    let boundaries = (0..PAGES).step_by(pages_of_a_mapping as usize).map(address).collect();
    world.programs[0].memory.lock().boundaries = boundaries;
    (0..PAGES).for_each(|page| world.touch(0, page, true));
    world.apply_events();
    for page in 0..PAGES {
        world.shared.budget.set_resident(10);
        world.touch(0, page, false);
    }
    let report = world.shared.report();
    world.shared.budget.set_resident(world.count());
    world.end();
    (report.fill.count, report.zero.count)
}

/// Rule 8: a run comes on both sides of a boundary.
#[test]
fn what_comes_along_comes_from_beyond_the_end_of_a_mapping() {
    for mapped_quarters in 0..5 {
        let (fills, zeroes) = faults_of_a_scan(PAGES, mapped_quarters);
        let (fills_of_many, zeroes_of_many) = faults_of_a_scan(21, mapped_quarters);
        assert_eq!(fills_of_many, fills);
        assert!(zeroes_of_many <= zeroes + 5 * PAGES.div_ceil(21), "{zeroes_of_many}, and {zeroes} in one mapping");
    }
}

#[test]
fn what_comes_along_waits_for_room() {
    let mut world = World::new(200);
    (0..PAGES).for_each(|page| world.touch(0, page, true));
    world.apply_events();
    let is_there = |world: &World, page: u64| world.programs[0].memory.lock().resident.contains_key(&address(page));
    let first = (0..PAGES - 3).find(|page| (*page..page + 3).all(|page| !is_there(&world, page))).unwrap();
    world.shared.budget.set_resident(world.shared.budget.limit_pages() - 2);
    (first..first + 2).for_each(|page| world.programs[0].memory.lock().events.push_back(fault_at(page)));
    let space = Arc::clone(&world.programs[0].space);
    world.serve(&space);
    (0..3).for_each(|_| world.poll(0));
    assert!(is_there(&world, first + 1) && !is_there(&world, first + 2), "what was waited for is there");
    assert!(world.has_put_off());
    world.shared.budget.set_resident(10);
    (0..3).for_each(|_| world.poll(0));
    assert!(is_there(&world, first + 2) && !world.has_put_off());
    world.shared.budget.set_resident(world.count());
    world.end();
}

/// A batch under way, more to leave after it, and a page that is away and that no thread has asked for.
fn with_batch_under_way() -> (World, Arc<AddressSpace>, VirtualPage) {
    let mut world = World::new(200);
    (0..PAGES).for_each(|page| world.touch(0, page, true));
    world.apply_events();
    let space = Arc::clone(&world.programs[0].space);
    let away = space.lock().page_table.away(&ALL)[0];
    let has_begun = (0..1000).any(|_| {
        exceed(&world);
        world.turn();
        space.lock().batch
    });
    assert!(has_begun);
    (world, space, away)
}

/// There is always something to leave, and no fault has to wait for that.
fn exceed(world: &World) {
    world.shared.budget.set_resident(world.shared.budget.limit_pages() - 1);
}

#[test]
fn a_fault_that_was_put_off_is_answered_between_two_batches() {
    let (mut world, space, away) = with_batch_under_way();
    world.shared.want([Wanted { space: space.id, page: away, is_writable: false }]);
    world.fetch_wanted();
    world.poll(0);
    assert!(space.lock().is_hurried && world.has_put_off());
    world.shared.faults.clear();
    while space.lock().batch {
        assert!(!world.shared.faults.clear(), "not before the batch has ended");
        exceed(&world);
        world.programs[0].memory.step();
        world.eviction.turn(world.now);
    }
    assert!(world.shared.faults.clear(), "its end rings");
    (0..3).for_each(|_| {
        exceed(&world);
        world.eviction.turn(world.now);
    });
    assert!(!space.lock().batch && !space.lock().is_hurried, "the next one waits");
    world.poll(0);
    assert!(!space.lock().page_table.away(&ALL).contains(&away));
    exceed(&world);
    world.eviction.turn(world.now + limits::HURRY_PAUSE);
    assert!(space.lock().batch, "and not for long");
    world.shared.budget.set_resident(world.count());
    world.apply_events();
    world.end();
}

#[test]
fn pages_that_leave_ring_for_a_fault_that_waits_for_room() {
    let (mut world, space, away) = with_batch_under_way();
    let end = |world: &mut World| {
        while space.lock().batch {
            world.programs[0].memory.step();
            world.eviction.turn(world.now);
        }
        world.shared.faults.clear()
    };
    world.shared.budget.set_resident(world.shared.budget.limit_pages());
    world.shared.want([Wanted { space: space.id, page: away, is_writable: false }]);
    world.fetch_wanted();
    // The first look finds the batch; while it is there, room is not asked for.
    world.poll(0);
    assert!(end(&mut world), "its end rings");
    world.shared.budget.set_resident(world.shared.budget.limit_pages());
    world.poll(0);
    assert!(world.has_put_off(), "there is no room");
    world.eviction.turn(world.now + limits::HURRY_PAUSE);
    assert!(space.lock().batch && end(&mut world), "what leaves rings");
    world.poll(0);
    assert!(!world.has_put_off() && !space.lock().page_table.away(&ALL).contains(&away));
    world.eviction.turn(world.now + limits::HURRY_PAUSE);
    assert!(!end(&mut world), "nobody waits any more");
    world.shared.budget.set_resident(world.count());
    world.apply_events();
    world.end();
}

fn fault_at(page: u64) -> Event {
    Event::Fault(Fault { address: address(page), is_write: false, is_write_protected: false, thread: 1 })
}

#[test]
fn pages_that_lie_in_mapped_memory_come_without_a_request_and_count_the_same() {
    let [read, in_place] = [0, 4].map(|mapped_quarters| {
        let mut world = World::new(200);
        world.map_quarters(mapped_quarters);
        (0..PAGES).for_each(|page| world.touch(0, page, true));
        world.apply_events();
        for page in 0..PAGES {
            let before = world.count();
            world.shared.budget.set_resident(10);
            world.touch(0, page, page % 7 == 0);
            assert_eq!(world.shared.budget.resident_pages() - 10, world.count() - before);
        }
        world.shared.budget.set_resident(world.count());
        let report = world.shared.report();
        let submitted = lock(&world.submitted).len();
        world.end();
        (submitted, report.fill.count, report.pages_prefetched)
    });
    assert!(read.0 > 0 && in_place.0 == 0, "{read:?}, {in_place:?}");
    assert!(in_place.1 > 0 && in_place.2 > 0, "{in_place:?}");
}

/// Rule 15: four threads are about to have a window each, and there is room for one.
#[test]
fn what_comes_along_is_counted_before_the_next_page_asks() {
    let mut world = World::new(96);
    world.map_quarters(4);
    (0..PAGES).for_each(|page| world.touch(0, page, true));
    world.apply_events();
    let space = Arc::clone(&world.programs[0].space);
    let is_there = |world: &World, page: &u64| world.programs[0].memory.lock().resident.contains_key(&address(*page));
    let miss = |world: &mut World, pages: &[(u32, u64)]| {
        let fault = |(thread, page): &(u32, u64)| {
            Event::Fault(Fault { address: address(*page), is_write: false, is_write_protected: false, thread: *thread })
        };
        world.programs[0].memory.lock().events.extend(pages.iter().map(fault));
        assert!(world.serve(&space));
        world.poll(0);
    };
    let streams = [0, 24, 48, 72];
    world.shared.budget.set_resident(10);
    for (thread, first) in (1..).zip(streams) {
        (first..first + 3).for_each(|page| miss(&mut world, &[(thread, page)]));
    }
    let next = |first: u64| (first..).find(|page| !is_there(&world, page)).unwrap();
    let markers: Vec<(u32, u64)> = (1..).zip(streams.map(next)).collect();
    let prefetched = |world: &World| world.shared.report().pages_prefetched;
    let before = prefetched(&world);
    assert!(before > 0 && !world.has_put_off());
    let limit = world.shared.budget.limit_pages();
    world.shared.budget.set_resident(limit - (WINDOW_MAX + streams.len() + 1) as i64);
    miss(&mut world, &markers);
    assert!(markers.iter().all(|(_, page)| is_there(&world, page)), "they are waited for");
    let first_window = prefetched(&world) - before;
    assert!(first_window > 0 && world.has_put_off(), "{first_window}; the others ask when there is room");
    world.shared.budget.set_resident(10);
    world.poll(0);
    assert!(prefetched(&world) - before > first_window && !world.has_put_off());
    world.shared.budget.set_resident(world.count());
    world.end();
}

/// A fork asks for many pages at once, and others are not to wait for all of them.
#[test]
fn pages_without_a_waiting_thread_come_a_few_at_a_time() {
    let mut world = World::new(200);
    world.map_quarters(4);
    (0..PAGES).for_each(|page| world.touch(0, page, true));
    world.apply_events();
    world.shared.budget.set_resident(10);
    let space = Arc::clone(&world.programs[0].space);
    let away = space.lock().page_table.away(&ALL);
    let wanted = away.iter().map(|page| Wanted { space: space.id, page: *page, is_writable: false });
    world.shared.want(wanted);
    world.fetch_wanted();
    let mut left = away.len();
    assert!(left > 2 * limits::FAULT_READS_MAX, "{left} pages");
    while left > 0 {
        assert!(world.has_put_off());
        let waiting = world.faults[0].poll(world.now);
        let now_left = space.lock().page_table.away(&ALL).len();
        assert!(now_left < left && left - now_left <= limits::FAULT_READS_MAX, "{left}, then {now_left}");
        assert_eq!(waiting == Waiting::Poll, now_left > 0, "the next few come at once");
        left = now_left;
    }
    assert!(!world.has_put_off());
    world.shared.budget.set_resident(world.count());
    world.end();
}

#[test]
fn a_reader_of_a_prefetched_page_is_known_once() {
    let mut world = World::new(200);
    (0..PAGES).for_each(|page| world.touch(0, page, true));
    world.apply_events();
    world.shared.budget.set_resident(10);
    let space = Arc::clone(&world.programs[0].space);
    let mut reads = 0;
    for page in 0..PAGES {
        if world.programs[0].memory.lock().resident.contains_key(&address(page)) {
            continue;
        }
        world.programs[0].memory.lock().events.push_back(fault_at(page));
        assert!(world.serve(&space));
        // Others are staged.
        let has_begun = world.faults[0].is_awaited();
        (0..100).for_each(|_| _ = world.faults[0].poll(world.now));
        assert!(!world.faults[0].is_awaited(), "page {page} is there");
        assert_eq!(world.faults[0].take_filled(), has_begun.then_some(space.id), "page {page}");
        assert_eq!(world.faults[0].take_filled(), None);
        reads += usize::from(has_begun);
    }
    assert!(reads > 0, "all were staged");
    world.shared.budget.set_resident(world.count());
    world.end();
}

#[test]
fn faults_that_come_in_crowds_are_left_to_free_threads() {
    let mut world = World::with_fault_threads(200, 3);
    (0..PAGES).for_each(|page| world.touch(0, page, true));
    world.apply_events();
    world.shared.budget.set_resident(10);
    let space = Arc::clone(&world.programs[0].space);
    let is_there = |world: &World, page: &u64| world.programs[0].memory.lock().resident.contains_key(&address(*page));
    let away: Vec<u64> = (0..PAGES).filter(|page| !is_there(&world, page)).step_by(3).collect();
    let (first, second) = (&away[..8], &away[8..16]);
    let come = |world: &mut World, pages: &[u64]| {
        world.programs[0].memory.lock().events.extend(pages.iter().map(|page| fault_at(*page)));
        assert!(world.serve(&space));
        world.shared.fault_pool.pending_count()
    };
    assert_eq!(come(&mut world, first), 0, "one crowd may be the last");
    assert_eq!(come(&mut world, second), 7, "the first thread answers one");
    // They come before the next batch, and no others before that.
    world.shared.budget.set_resident(200);
    world.now += Duration::from_secs(1);
    world.eviction.turn(world.now);
    assert!(!space.lock().batch && space.lock().is_batch_due);
    assert_eq!((come(&mut world, &away[17..20]), come(&mut world, &away[20..23])), (7, 7));
    world.shared.budget.set_resident(10);
    for _ in 0..40 {
        // It has no CPU for the others meanwhile.
        (1..3).for_each(|index| world.poll(index));
    }
    assert_eq!(world.shared.fault_pool.pending_count(), 0);
    assert!(second[1..].iter().all(|page| is_there(&world, page)) && !is_there(&world, &second[0]));
    (0..40).for_each(|_| world.poll(0));
    assert!(first.iter().chain(second).all(|page| is_there(&world, page)));
    world.shared.budget.set_resident(200);
    world.now += Duration::from_secs(1);
    world.eviction.turn(world.now);
    assert!(space.lock().batch && !space.lock().is_batch_due, "its turn has come");
    world.shared.budget.set_resident(10);
    world.apply_events();
    assert_eq!(come(&mut world, &away[16..17]), 0, "one alone wakes nobody");
    world.shared.budget.set_resident(world.count());
    world.end();
}

#[test]
fn an_unreadable_page_is_poisoned_and_never_filled() {
    let mut world = World::new(96);
    (0..PAGES).for_each(|page| world.touch(0, page, true));
    world.apply_events();
    let gone = {
        let memory = world.programs[0].memory.lock();
        (0..PAGES).find(|page| !memory.resident.contains_key(&address(*page))).unwrap()
    };
    // The volume ends before that page.
    let short = Arc::new(Mapping::anonymous(PAGE_SIZE_BYTES).unwrap());
    world.read_from(&short, 1);
    let gone = gone + 1;
    let fault = Fault { address: address(gone), is_write: false, is_write_protected: false, thread: 1 };
    world.programs[0].memory.lock().events.push_back(Event::Fault(fault));
    world.run();
    world.run();
    let memory = world.programs[0].memory.lock();
    assert_eq!(memory.poisoned, [address(gone)]);
    assert!(!memory.resident.contains_key(&address(gone)));
    drop(memory);
    assert_eq!(world.shared.report().pages_lost, 1);
    assert!(world.shared.failures()[0].contains("SIGBUS"), "{:?}", world.shared.failures());
    assert!(world.volume.length() > 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn programs_see_their_own_memory(
        threads in 1_usize..4,
        mapped_quarters in 0_u64..5,
        steps in proptest::collection::vec((0_u8..18, 0_usize..3, 0..PAGES, 0..PAGES), 1..120)
    ) {
        let mut world = World::with_fault_threads(100, threads);
        world.guesses = true;
        world.map_quarters(mapped_quarters);
        (0..PAGES / 2).for_each(|page| world.touch(0, page, true));
        for (step, program, page, other) in steps {
            let program = program % world.programs.len();
            let pages = (other % 70 + 1).min(PAGES - page);
            match step {
                0..=3 => (page..page + pages).for_each(|page| world.touch(program, page, true)),
                4..=6 => (page..page + pages).for_each(|page| world.touch(program, page, false)),
                7 => world.remove(program, page, pages),
                8 => world.unmap(program, page, pages),
                9 => world.remap(program, page, other, pages),
                10 => world.fork(program),
                11 => world.programs[program].memory.lock().agains = 3,
                13 => world.reuse(program, page, other, pages.min(40)),
                12 => world.programs[program].memory.lock().pinned = (page..page + pages).map(address).collect(),
                14 => world.fork_untold(program),
                15..=16 => world.crowd(program, page, pages, step == 16),
                _ => world.run(),
            }
        }
        world.end();
    }
}
