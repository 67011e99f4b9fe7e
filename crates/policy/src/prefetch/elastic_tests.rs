//! Merging and splitting by hand and against a plain reference, and what must always hold.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;
use crate::prefetch::{WINDOW_FAR_MAX, WINDOW_MAX};

/// What a fault brings along.
fn fault(policy: &mut Elastic, page: u64, window_max: usize) -> Candidates {
    let mut candidates = Candidates::default();
    candidates.set_window_max(window_max);
    policy.on_fault(PageNumber(page), &mut candidates);
    candidates
}

fn hit(policy: &mut Elastic, page: PageNumber) {
    policy.on_hit(page, &mut Candidates::default());
}

/// The order of the block in which `page` is.
fn order(policy: &Elastic, page: u64) -> u32 {
    let index = policy.find_region(page >> ORDER_MAX).expect("a fault fell there");
    policy.regions[index].block(PageNumber(page)).order
}

/// A program that needs all pages from `first` on, in their order. Its faults and the markers that it reaches.
fn go_through(policy: &mut Elastic, first: u64, count: u64) -> (u64, u64) {
    let (mut faults, mut markers) = (0, 0);
    let mut here: HashMap<u64, bool> = HashMap::new();
    for page in first..first + count {
        match here.get(&page) {
            None => {
                let candidates = fault(policy, page, WINDOW_FAR_MAX);
                let marker = candidates.marker();
                here.extend(candidates.pages().iter().map(|page| (page.0, Some(*page) == marker)));
                faults += 1;
            }
            Some(true) => {
                hit(policy, PageNumber(page));
                markers += 1;
            }
            Some(false) => {}
        }
    }
    (faults, markers)
}

#[test]
fn blocks_grow_to_a_huge_page_where_all_is_needed() {
    let mut policy = Elastic::default();
    let (faults, markers) = go_through(&mut policy, 0, 8 * BLOCK_PAGES_MAX);
    assert!(faults < 30 && markers < faults, "{faults} faults, {markers} markers for 4,096 pages");
    assert_eq!(order(&policy, 7 * BLOCK_PAGES_MAX), ORDER_MAX);
    let (faults, _) = go_through(&mut policy, 8 * BLOCK_PAGES_MAX, 8 * BLOCK_PAGES_MAX);
    assert_eq!(faults, 8, "new regions begin with what their neighbour has learnt");
}

#[test]
fn the_page_that_is_waited_for_is_first_and_its_neighbours_follow() {
    let mut policy = Elastic::default();
    go_through(&mut policy, 0, 8 * BLOCK_PAGES_MAX);
    let page = 20 * BLOCK_PAGES_MAX + 40;
    let candidates = fault(&mut policy, page, WINDOW_MAX);
    let first = 20 * BLOCK_PAGES_MAX;
    let expected = (page + 1..first + 64).chain(first + 32..page).chain(first..first + 32).map(PageNumber);
    assert!(candidates.pages().iter().copied().eq(expected), "{:?}", candidates.pages());
    assert!(candidates.marker().is_some() && !candidates.comes_around());
}

#[test]
fn pages_at_random_come_alone() {
    let (mut policy, mut brought, mut state) = (Elastic::default(), 0, 1_u64);
    for _ in 0..20_000 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        brought += fault(&mut policy, (state >> 33) % (1 << 15), WINDOW_FAR_MAX).pages().len();
    }
    assert!(brought < 1000, "buddies that meet by accident: {brought}");
}

#[test]
fn strides_are_followed_without_blocks() {
    let mut policy = Elastic::default();
    assert!([0, 10].iter().all(|page| fault(&mut policy, *page, WINDOW_MAX).pages().is_empty()));
    assert_eq!(fault(&mut policy, 20, WINDOW_MAX).pages()[..2], [30, 40].map(PageNumber));
    let mut candidates = Candidates::default();
    policy.on_hit(PageNumber(40), &mut candidates);
    assert_eq!(candidates.pages().first(), Some(&PageNumber(70)), "and their markers are reached");
}

#[test]
fn buddies_merge_if_both_were_needed() {
    let mut policy = Elastic::default();
    policy.region(0).start = 2;
    let markers = [4, 0].map(|page| fault(&mut policy, page, WINDOW_MAX).marker().unwrap());
    hit(&mut policy, markers[0]);
    assert_eq!([0, 4].map(|page| order(&policy, page)), [2, 2], "one of them");
    hit(&mut policy, markers[1]);
    assert_eq!([0, 3, 4, 7, 8].map(|page| order(&policy, page)), [3, 3, 3, 3, 3], "both, and the region follows");
    assert_eq!(policy.recent.iter().flatten().count(), 1, "one block now");
}

#[test]
fn a_block_splits_when_a_quarter_or_less_was_used_twice() {
    let mut policy = Elastic::default();
    policy.region(0).merge(Block::of(PageNumber(0), 5));
    let unused = |policy: &mut Elastic, count: u64| {
        fault(policy, 0, WINDOW_MAX);
        (0..count).for_each(|page| policy.on_unused(PageNumber(31 - page)));
    };
    unused(&mut policy, 24);
    unused(&mut policy, 23);
    assert_eq!(order(&policy, 0), 5, "once, and then more than a quarter was used");
    unused(&mut policy, 24);
    assert_eq!([0, 15, 16, 31].map(|page| order(&policy, page)), [4; 4], "its halves");
    let marker = fault(&mut policy, 0, WINDOW_MAX).marker().unwrap();
    hit(&mut policy, marker);
    unused(&mut policy, 12);
    assert_eq!(order(&policy, 0), 4, "what was needed before is forgiven");
}

#[test]
fn regions_shrink_where_blocks_are_missed() {
    let mut policy = Elastic::default();
    go_through(&mut policy, 0, 8 * BLOCK_PAGES_MAX);
    let before = order(&policy, 7 * BLOCK_PAGES_MAX);
    for visit in 0..200_u64 {
        fault(&mut policy, 7 * BLOCK_PAGES_MAX + visit * 97 % BLOCK_PAGES_MAX, WINDOW_FAR_MAX);
        (0..BLOCK_PAGES_MAX).for_each(|page| policy.on_unused(PageNumber(7 * BLOCK_PAGES_MAX + page)));
    }
    assert_eq!((before, order(&policy, 7 * BLOCK_PAGES_MAX)), (ORDER_MAX, 0));
}

/// Blocks by the first page of each, and nothing else: what the tree of bits stands for.
struct Reference(Vec<u32>);

impl Reference {
    fn set(&mut self, block: Block, order: u32) {
        let first = block.first as usize;
        self.0[first..first + block.pages() as usize].fill(order);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// Blocks that merge and split one at a time have the sizes that a plain list of them has.
    #[test]
    fn merges_and_splits_are_those_of_a_plain_list(
        steps in proptest::collection::vec((0..BLOCK_PAGES_MAX, any::<bool>()), 1..300), start in 0..4_u32
    ) {
        let (mut region, mut reference) = (Region { start, ..UNKNOWN }, Reference(vec![start; BLOCK_PAGES_MAX as usize]));
        for (page, merges) in steps {
            let block = Block::of(PageNumber(page), reference.0[page as usize]);
            let is_whole = |block: Block| (block.first..block.first + block.pages())
                .all(|page| reference.0[page as usize] == block.order);
            if merges && block.order < ORDER_MAX && is_whole(block.buddy()) {
                region.merge(block.parent());
                reference.set(block.parent(), block.order + 1);
            } else if !merges && block.order > start {
                region.missed(block);
                region.missed(block);
                reference.set(block, block.order - 1);
            }
            for page in 0..BLOCK_PAGES_MAX {
                prop_assert_eq!(region.block(PageNumber(page)).order, reference.0[page as usize], "page {}", page);
            }
        }
    }

    #[test]
    fn what_comes_is_distinct_and_in_the_block_or_a_stride(
        steps in proptest::collection::vec((0_u64..3000, 0..4_u8), 1..400), window_max in 1..=WINDOW_FAR_MAX
    ) {
        let mut policy = Elastic::default();
        for (page, what) in steps {
            match what {
                0 => policy.on_unused(PageNumber(page)),
                1 => hit(&mut policy, PageNumber(page)),
                _ => {
                    let candidates = fault(&mut policy, page, window_max);
                    let mut pages: Vec<u64> = candidates.pages().iter().map(|page| page.0).collect();
                    prop_assert!(!pages.contains(&page) && pages.len() < WINDOW_FAR_MAX);
                    prop_assert_eq!(candidates.marker().is_some(), !pages.is_empty());
                    let is_block = pages.first().is_some_and(|first| first.abs_diff(page) == 1 || pages.len() > 300);
                    let block = policy.find_recent(PageNumber(page)).and_then(|index| policy.recent[index]);
                    if let Some(block) = block.map(|recent| recent.block).filter(|_| is_block) {
                        prop_assert!(block.pages() <= window_max as u64);
                        prop_assert!(pages.iter().all(|page| block.contains(PageNumber(*page))));
                        prop_assert_eq!(pages.len() as u64, block.pages() - 1);
                    }
                    pages.sort_unstable();
                    prop_assert!(pages.windows(2).all(|pair| pair[0] != pair[1]));
                }
            }
            let recent: Vec<Block> = policy.recent.iter().flatten().map(|recent| recent.block).collect();
            for (index, block) in recent.iter().enumerate() {
                prop_assert!(recent[index + 1..].iter().all(|other| !other.overlaps(*block)), "{recent:?}");
            }
            prop_assert!(policy.regions.iter().all(|region| region.start <= ORDER_MAX && region.score <= SCORE_GROW));
        }
    }
}
