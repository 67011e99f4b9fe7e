//! Rules 11 and 15: what is put off, what is not, and that no thread asks again and again meanwhile.

use spillway_block::service::Waiting;
use spillway_pager::fork::page_in::ALL;

use super::*;

#[test]
fn a_fault_that_meets_a_change_is_answered_later() {
    // Rule 11.
    for mapped_quarters in 0..5 {
        let mut world = World::new(96);
        world.map_quarters(mapped_quarters);
        (0..PAGES).for_each(|page| world.touch(0, page, true));
        world.programs[0].memory.lock().agains = 5;
        (0..20).for_each(|page| world.touch(0, page, page % 2 == 0));
        world.end();
    }
}

/// What the kernel refuses a program that is in the middle of a change, told of or not, is tried once at each look,
/// however long that takes.
fn faults_meet_a_change(mapped_quarters: u64, is_told: bool) {
    let mut world = World::new(200);
    world.map_quarters(mapped_quarters);
    (0..PAGES).for_each(|page| world.touch(0, page, true));
    world.apply_events();
    world.shared.budget.set_resident(10);
    let (space, memory) = (Arc::clone(&world.programs[0].space), world.programs[0].memory.clone());
    let missing = space.lock().page_table.away(&ALL)[..limits::MESSAGES_MAX - 1].to_vec();
    assert!(missing.len() > limits::FAULT_READS_MAX, "more than are answered at one look");
    memory.lock().agains = u32::MAX;
    memory.lock().events.extend(is_told.then(|| Event::Remove(address(PAGES)..address(PAGES + 1))));
    memory.lock().events.extend(missing.iter().map(|page| missed(*page, 1)));
    let asked = |look: usize| {
        let mut memory = memory.lock();
        let (fills, all) = (std::mem::take(&mut memory.refused_fills), std::mem::take(&mut memory.refusals));
        // One may be tried in place, when its read has ended, and with those that were put off.
        assert!(fills.values().all(|count| *count <= 3), "look {look}: {fills:?}");
        assert!(all <= missing.len() as u64, "look {look}: {all} questions for {} faults", missing.len());
        all
    };
    assert!(world.serve(&space));
    asked(0);
    let mut all = 0;
    for look in 1..40 {
        assert_ne!(world.faults[0].poll(world.now), Waiting::Poll, "look {look}: the thread is to sleep");
        all += asked(look);
    }
    assert!(all > 40 && world.has_put_off(), "they are tried again: {all}");
    assert!(missing.iter().all(|page| !memory.lock().resident.contains_key(&page.address())));
    memory.lock().agains = 0;
    world.apply_events();
    assert!(missing.iter().all(|page| memory.lock().resident.contains_key(&page.address())));
    world.shared.budget.set_resident(world.count());
    world.end();
}

#[test]
fn faults_that_meet_a_change_are_tried_once_at_each_look() {
    for mapped_quarters in 0..5 {
        faults_meet_a_change(mapped_quarters, false);
        faults_meet_a_change(mapped_quarters, true);
    }
}

/// Nor is the evictor sent again and again to take out what the kernel does not let go.
#[test]
fn batches_that_meet_a_change_become_rare() {
    let mut world = World::new(200);
    (0..PAGES).for_each(|page| world.touch(0, page, true));
    world.apply_events();
    let memory = world.programs[0].memory.clone();
    memory.lock().agains = u32::MAX;
    let batches = |world: &World| world.shared.report().batches;
    let before = batches(&world);
    for _ in 0..300 {
        world.shared.budget.set_resident(world.shared.budget.limit_pages());
        (0..limits::BATCH_PAGES).for_each(|_| memory.step());
        world.turn();
    }
    let begun = batches(&world) - before;
    assert!((2..20).contains(&begun), "{begun} batches in 300 looks");
    memory.lock().agains = 0;
    world.shared.budget.set_resident(world.count());
    world.apply_events();
    world.end();
}

/// A fault of thread `thread` on `page`, which reads.
fn missed(page: VirtualPage, thread: u32) -> Event {
    Event::Fault(Fault { address: page.address(), is_write: false, is_write_protected: false, thread })
}

/// Rule 15: the program's threads wait for room, and the evictor, which makes it, never does.
#[test]
fn the_evictors_own_faults_do_not_wait_for_the_budget() {
    const EVICTOR: u32 = 77;
    for mapped_quarters in [0, 4] {
        let mut world = World::new(200);
        world.map_quarters(mapped_quarters);
        (0..PAGES).for_each(|page| world.touch(0, page, true));
        world.apply_events();
        let (space, memory) = (Arc::clone(&world.programs[0].space), world.programs[0].memory.clone());
        space.evictor_thread.store(EVICTOR, Ordering::Relaxed);
        let away = space.lock().page_table.away(&ALL);
        let [others, evictors] = [away[0], away[away.len() / 2]];
        world.shared.budget.set_resident(world.shared.budget.limit_pages());
        memory.lock().events.extend([missed(others, 1), missed(evictors, EVICTOR)]);
        assert!(world.serve(&space));
        // Nothing leaves meanwhile.
        (0..20).for_each(|_| world.poll(0));
        let is_there = |page: VirtualPage| memory.lock().resident.contains_key(&page.address());
        assert!(is_there(evictors), "the evictor waits for the budget");
        assert!(!is_there(others) && world.has_put_off(), "nobody waits for it");
        world.shared.budget.set_resident(10);
        (0..20).for_each(|_| world.poll(0));
        assert!(is_there(others));
        world.shared.budget.set_resident(world.count());
        world.apply_events();
        world.end();
    }
}
