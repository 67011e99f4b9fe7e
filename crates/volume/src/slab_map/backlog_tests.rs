//! The backlog against a plain model: what the disk holds in the end is the last content of every page.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

const PAGES: u64 = 64;

/// A backlog with a disk of one number per page, whose writes end when the test says so.
struct World {
    backlog: Backlog,
    bits: PageBits,
    /// Content of the backlog's buffers.
    buffers: HashMap<BacklogSlot, u32>,
    in_flight: Vec<(BacklogPage, u32)>,
    disk: HashMap<PageIndex, u32>,
    /// What a reader must see; absent when discarded.
    model: HashMap<PageIndex, u32>,
    clock: u32,
}

impl World {
    fn new(capacity: usize) -> Self {
        Self {
            backlog: Backlog::new(capacity),
            bits: PageBits::new(PAGES),
            buffers: HashMap::new(),
            in_flight: Vec::new(),
            disk: HashMap::new(),
            model: HashMap::new(),
            clock: 0,
        }
    }

    fn write(&mut self, first: PageIndex, count: u64) -> bool {
        self.clock += 1;
        let (mut ticket, mut slots) = (None, vec![BacklogSlot(0); count as usize]);
        if !self.backlog.reserve(&mut slots, &mut ticket) {
            self.backlog.give_up(ticket.expect("few writers wait"));
            return false;
        }
        self.buffers.extend(slots.iter().map(|slot| (*slot, self.clock)));
        self.backlog.publish(&self.bits, first, &slots, Instant::now());
        first.up_to(first + count).for_each(|page| {
            self.model.insert(page, self.clock);
        });
        true
    }

    fn discard(&mut self, first: PageIndex, count: u64) {
        self.backlog.discard(&self.bits, first, count);
        first.up_to(first + count).for_each(|page| {
            self.model.remove(&page);
        });
    }

    fn take(&mut self, count: usize) {
        let mut batch = Vec::with_capacity(count);
        let policy = TakePolicy { eager_pages: 1, delay: Duration::ZERO, patience: Duration::ZERO };
        self.backlog.take(policy, &mut batch);
        assert!(batch.is_sorted(), "sorted for the disk");
        for page in batch {
            let double = self.in_flight.iter().any(|(other, _)| other.page == page.page);
            assert!(!double, "two writes of page {} could overtake each other", page.page);
            self.in_flight.push((page, self.buffers[&page.slot]));
        }
    }

    /// The writes of so many pages end together; each by itself when they fail.
    fn end(&mut self, which: usize, count: usize, written: bool) {
        if self.in_flight.is_empty() {
            return;
        }
        let first = which % self.in_flight.len();
        let last = self.in_flight.len().min(first + count);
        let mut ended: Vec<_> = self.in_flight.drain(first..last).collect();
        ended.sort_unstable();
        if written {
            self.disk.extend(ended.iter().map(|(taken, content)| (taken.page, *content)));
        }
        let taken: Vec<_> = ended.iter().map(|(taken, _)| *taken).collect();
        for taken in taken.chunks(if written { count } else { 1 }) {
            if self.backlog.complete(&self.bits, taken, written, Instant::now()) {
                // Nothing else holds the content in this world.
                self.bits.set(Bit::Lost, taken[0].page, 1);
            }
        }
    }

    fn check(&self) {
        for page in PageIndex(0).up_to(PageIndex(PAGES)) {
            let (disk, pending) = (self.bits.any(Bit::Disk, page, 1), self.bits.any(Bit::Pending, page, 1));
            if disk {
                assert_eq!(self.disk.get(&page), self.model.get(&page), "page {page}: the disk is said to be current");
            }
            if !self.model.contains_key(&page) {
                assert!(!disk && !pending, "a discarded page is nowhere");
            } else {
                assert!(disk || pending || self.bits.any(Bit::Lost, page, 1), "page {page} is somewhere");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn the_disk_ends_with_the_last_content(steps in prop::collection::vec((0u8..5, 0u64..56, 1u64..8, any::<bool>()), 1..120)) {
        let mut world = World::new(24);
        for (kind, first, count, flag) in steps {
            match kind {
                0 | 1 => { world.write(PageIndex(first % 12), count); }
                2 => world.discard(PageIndex(first % 12), count),
                3 => world.take(count as usize),
                _ => world.end(first as usize, count as usize, flag || count > 2),
            }
            world.check();
        }
        while world.backlog.length() > 0 {
            world.take(8);
            world.end(0, 1, true);
        }
        world.check();
        for (page, content) in &world.model {
            prop_assert!(world.disk.get(page) == Some(content) || world.bits.any(Bit::Lost, *page, 1));
        }
    }
}

#[test]
fn a_full_backlog_takes_nothing() {
    let mut world = World::new(4);
    assert!(world.write(PageIndex(0), 3));
    assert!(!world.write(PageIndex(10), 2), "all or nothing");
    assert_eq!(world.backlog.length(), 3);
    assert!(!world.bits.any(Bit::Pending, PageIndex(10), 2));
}

#[test]
fn a_page_written_again_takes_no_second_slot() {
    let mut world = World::new(4);
    (0..100).for_each(|_| assert!(world.write(PageIndex(7), 1)));
    assert_eq!(world.backlog.length(), 1);
}

#[test]
fn a_write_behind_a_discarded_one_in_flight_waits_for_it() {
    let mut world = World::new(4);
    world.write(PageIndex(5), 1);
    world.take(1);
    world.discard(PageIndex(5), 1);
    world.write(PageIndex(5), 1);
    world.take(1);
    assert_eq!(world.in_flight.len(), 1, "the new content is held");
    world.end(0, 1, true);
    assert!(!world.bits.any(Bit::Disk, PageIndex(5), 1), "the old content means nothing");
    world.take(1);
    world.end(0, 1, true);
    assert!(world.bits.any(Bit::Disk, PageIndex(5), 1));
    world.check();
}

#[test]
fn closing_ends_the_disk_thread_after_the_last_page() {
    let world = World::new(4);
    let policy = TakePolicy { eager_pages: 4, delay: Duration::from_secs(3600), patience: Duration::from_secs(3600) };
    let mut batch = Vec::with_capacity(4);
    let mut slots = [BacklogSlot(0)];
    assert!(world.backlog.reserve(&mut slots, &mut None));
    world.backlog.publish(&world.bits, PageIndex(3), &slots, Instant::now());
    world.backlog.close();
    assert!(world.backlog.take(policy, &mut batch));
    assert_eq!(batch.len(), 1);
    assert!(!world.backlog.complete(&world.bits, &batch, true, Instant::now()));
    assert!(!world.backlog.take(policy, &mut batch));
}

#[test]
fn a_page_that_its_writer_never_finished_does_not_keep_the_disk_thread() {
    let mut world = World::new(4);
    assert!(world.backlog.reserve(&mut [BacklogSlot(0)], &mut None));
    assert!(world.write(PageIndex(0), 1));
    world.backlog.close();
    let policy = TakePolicy { eager_pages: 4, delay: Duration::ZERO, patience: Duration::ZERO };
    let mut batch = Vec::with_capacity(4);
    assert!(world.backlog.take(policy, &mut batch));
    assert_eq!(batch.len(), 1, "the finished one is written");
    assert!(!world.backlog.complete(&world.bits, &batch, true, Instant::now()));
    assert!(!world.backlog.take(policy, &mut batch), "and the other is not waited for");
}
