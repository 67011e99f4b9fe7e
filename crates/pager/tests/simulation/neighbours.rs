//! Pages that lie side by side go to the volume in one write, and come back in one read of many.

use spillway_block::request::BlockOperation;
use spillway_fabric::units::Priority;
use spillway_pager::fork::page_in::ALL;
use spillway_pager::page_table::group::PageState;

use super::*;

/// Lengths of the requests of that kind, in pages.
fn lengths(requests: &Mutex<Vec<BlockRequest>>, kind: BlockOperation) -> Vec<u64> {
    lock(requests)
        .iter()
        .filter(|request| request.operation == kind)
        .map(|request| request.length_bytes / PAGE)
        .collect()
}

/// Evicts all that there is, as if others needed it.
fn evict_everything(world: &mut World) {
    for _ in 0..10_000 {
        if world.count() == 0 {
            world.shared.budget.set_resident(0);
            return world.apply_events();
        }
        world.shared.budget.set_resident(world.shared.budget.limit_pages() + PAGES as i64);
        world.run();
    }
    panic!("{} pages stay", world.count());
}

#[test]
fn neighbours_leave_in_one_write_and_come_back_in_one_read() {
    const GROUP: u64 = limits::GROUP_PAGES as u64;
    let mut world = World::new(256);
    // Backwards, because new pages come along forwards.
    (0..GROUP).rev().for_each(|page| world.touch(0, page, true));
    evict_everything(&mut world);
    assert_eq!(lengths(&world.written, BlockOperation::Write), [GROUP]);
    // Others take their place in the pool.
    (GROUP..PAGES).for_each(|page| world.touch(0, page, true));
    evict_everything(&mut world);
    lock(&world.submitted).clear();
    (0..GROUP * 3 / 4).for_each(|page| world.touch(0, page, false));
    let reads = lengths(&world.submitted, BlockOperation::Read);
    let longest = reads.iter().copied().max().expect("they were in no place of the pool any more");
    assert!(longest >= GROUP / 2 && reads.len() as u64 <= GROUP / 2, "{reads:?}");
    world.end();
}

/// What comes along gives way to what a thread waits for, and is waited for itself once a thread does.
#[test]
fn prefetches_are_posted_as_such_until_a_thread_waits_for_them() {
    let mut world = World::new(256);
    (0..PAGES).rev().for_each(|page| world.touch(0, page, true));
    evict_everything(&mut world);
    lock(&world.submitted).clear();
    // The pages that left first, which are in no place of the pool any more.
    (160..166).for_each(|page| world.touch(0, page, false));
    let is_read = |request: &&BlockRequest| request.operation == BlockOperation::Read;
    let reads: Vec<BlockRequest> = lock(&world.submitted).iter().filter(is_read).copied().collect();
    let of = |priority| reads.iter().filter(move |read| read.priority == priority);
    assert!(
        of(Priority::Demand).count() >= 3 && of(Priority::Demand).all(|read| read.length_bytes == PAGE),
        "{reads:?}"
    );
    assert!(of(Priority::Prefetch).any(|read| read.length_bytes > PAGE), "{reads:?}");
    // The next window is on its way when the program comes to it.
    world.is_stalled.store(true, Ordering::Relaxed);
    lock(&world.submitted).clear();
    let space = Arc::clone(&world.programs[0].space);
    let fault = |world: &mut World, page: VirtualPage| {
        let fault = Fault { address: page.address(), is_write: false, is_write_protected: false, thread: 1 };
        world.programs[0].memory.lock().events.push_back(Event::Fault(fault));
        assert!(world.serve(&space));
        (0..3).for_each(|_| world.poll(0));
    };
    let away = space.lock().page_table.away(&ALL);
    let missing: Vec<VirtualPage> = away.into_iter().filter(|page| *page >= virtual_page(166)).collect();
    fault(&mut world, missing[0]);
    let requests = lock(&world.submitted).clone();
    assert_eq!(requests[0].priority, Priority::Demand);
    let prefetches = &requests[1..];
    assert!(
        !prefetches.is_empty() && prefetches.iter().all(|read| read.priority == Priority::Prefetch),
        "{requests:?}"
    );
    let is_coming = |page: &&VirtualPage| matches!(space.lock().page_table.state(**page), PageState::Coming(_));
    let awaited = *missing[1..].iter().rfind(is_coming).expect("a page that comes along");
    fault(&mut world, awaited);
    let now_awaited = lock(&world.submitted).iter().filter(|read| read.priority == Priority::Demand).count();
    assert_eq!(now_awaited, 2, "the read that brings the page, and no other: {:?}", lock(&world.submitted));
    world.is_stalled.store(false, Ordering::Relaxed);
    world.apply_events();
    world.end();
}
