//! Pages that lie side by side go to the volume in one write, and come back in one read of many.

use spillway_block::request::BlockOperation;

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
