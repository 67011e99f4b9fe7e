//! Tests of which blocks are given back, and a model of it.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::limits::HUGE_PAGE_PAGES;

const WHOLE: Look = Look::Whole { protected: false };
const MOMENT: Duration = Duration::from_micros(500);

fn block(number: u64) -> Block {
    Block { space: SpaceId(1), first: VirtualPage::at(0) + number * HUGE_PAGE_PAGES }
}

/// Finds the block whole until it is given back, which takes a moment; when that was.
fn give_back(blocks: &mut HugeBlocks, number: u64, mut now: Instant) -> Instant {
    blocks.looked(block(number), WHOLE, now);
    loop {
        now += Duration::from_millis(100);
        if let Some(next) = blocks.next(now, false) {
            assert_eq!(next, block(number));
            blocks.ended(Collapse::Done, now + MOMENT);
            return now + MOMENT;
        }
        blocks.looked(block(number), WHOLE, now);
    }
}

#[test]
fn a_block_is_given_back_once_it_has_been_whole_for_a_while() {
    let (mut blocks, begin) = (HugeBlocks::default(), Instant::now());
    blocks.looked(block(0), WHOLE, begin);
    blocks.looked(block(1), WHOLE, begin);
    assert_eq!(blocks.next(begin + HUGE_SETTLE / 2, true), None);
    blocks.looked(block(0), Look::Broken, begin + HUGE_SETTLE / 2);
    let now = begin + HUGE_SETTLE;
    assert_eq!(blocks.next(now, false), Some(block(1)), "the other one was broken meanwhile");
    assert_eq!(blocks.next(now, false), None, "one at a time");
    blocks.ended(Collapse::Done, now + MOMENT);
    assert!(blocks.has_given_back());
    assert!(!blocks.looked(block(1), Look::Huge, now + 2 * MOMENT));
}

#[test]
fn a_few_blocks_follow_each_other_and_then_none_for_a_while() {
    let (mut blocks, begin) = (HugeBlocks::default(), Instant::now());
    (0..100).for_each(|number| {
        blocks.looked(block(number), WHOLE, begin);
    });
    let (mut count, mut now) = (0, begin + HUGE_SETTLE);
    while now < begin + 2 * HUGE_SETTLE {
        if blocks.next(now, false).is_some() {
            count += 1;
            now += MOMENT;
            blocks.ended(Collapse::Done, now);
        }
        now += MOMENT / 5;
    }
    let bursts = (HUGE_SETTLE.as_millis() / HUGE_LOOK_INTERVAL.as_millis()) as u32;
    assert_eq!(count, bursts * HUGE_BURST, "as many as a second has room for");
}

#[test]
fn copies_are_given_up_only_while_nothing_leaves() {
    let (mut blocks, begin) = (HugeBlocks::default(), Instant::now());
    blocks.looked(block(0), Look::Whole { protected: true }, begin);
    blocks.looked(block(1), WHOLE, begin + MOMENT);
    let now = begin + HUGE_SETTLE + MOMENT;
    assert_eq!(blocks.next(now, false), Some(block(1)));
    blocks.ended(Collapse::NotTried, now);
    assert_eq!(blocks.next(now, true), None, "it settles anew");
    assert_eq!(blocks.next(now + HUGE_SETTLE, true), Some(block(0)));
}

#[test]
fn a_block_that_is_split_soon_rests_longer_each_time_and_all_wait_with_it() {
    let (mut blocks, mut now) = (HugeBlocks::default(), Instant::now());
    let mut pauses = Vec::new();
    for _ in 0..6 {
        let begin = now;
        now = give_back(&mut blocks, 0, now);
        pauses.push(now - begin);
        assert!(blocks.left(block(0), now) && !blocks.left(block(0), now), "split once");
        assert!(!blocks.has_given_back());
    }
    assert!(pauses.windows(2).all(|pair| pair[1] > pair[0]) && pauses[5] > 200 * pauses[0], "{pauses:?}");
    assert_eq!(blocks.penalty_at(now), 2, "the rests were long");
    now = give_back(&mut blocks, 0, now);
    let kept = now + HUGE_KEPT_MIN;
    assert!(blocks.left(block(0), kept));
    assert!(give_back(&mut blocks, 0, kept) - kept < 2 * HUGE_SETTLE, "one that was kept for long begins anew");
}

#[test]
fn what_the_kernel_refuses_rests_and_what_was_not_tried_does_not() {
    for (collapse, rests) in [(Collapse::NotTried, false), (Collapse::Later, true), (Collapse::Refused, true)] {
        let (mut blocks, begin) = (HugeBlocks::default(), Instant::now());
        blocks.looked(block(0), WHOLE, begin);
        let now = begin + HUGE_SETTLE;
        assert!(blocks.next(now, false).is_some());
        blocks.ended(collapse, now);
        assert_eq!(blocks.wants_look(block(0), now), !rests, "{collapse:?}");
        assert!(blocks.wants_look(block(0), now + HUGE_REST_MIN));
    }
}

#[test]
fn what_is_not_there_any_more_is_forgotten_also_while_it_is_made() {
    let (mut blocks, begin) = (HugeBlocks::default(), Instant::now());
    let now = give_back(&mut blocks, 3, begin);
    blocks.looked(block(4), WHOLE, now);
    let later = now + HUGE_SETTLE;
    assert_eq!(blocks.next(later, false), Some(block(4)));
    blocks.keep(SpaceId(2), |_| false);
    assert!(blocks.has_given_back(), "of another program");
    blocks.keep(SpaceId(1), |_| false);
    assert!(!blocks.has_given_back());
    blocks.ended(Collapse::Done, later);
    assert!(!blocks.has_given_back());
    assert!(!blocks.left(block(3), later));
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Look(u64, Look),
    Next(bool),
    Ended(Collapse),
    Left(u64),
    Keep(u64),
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let look = prop_oneof![
        Just(Look::Huge),
        Just(Look::Broken),
        any::<bool>().prop_map(|protected| Look::Whole { protected })
    ];
    let collapse =
        prop_oneof![Just(Collapse::Done), Just(Collapse::NotTried), Just(Collapse::Later), Just(Collapse::Refused)];
    prop_oneof![
        4 => (0_u64..5, look).prop_map(|(number, look)| Step::Look(number, look)),
        4 => any::<bool>().prop_map(Step::Next),
        2 => collapse.prop_map(Step::Ended),
        1 => (0_u64..5).prop_map(Step::Left),
        1 => (0_u64..6).prop_map(Step::Keep),
        3 => (0_u64..3000).prop_map(Step::Wait),
    ]
}

proptest! {
    /// The model knows since when each block was found whole without a break, and which are huge pages.
    #[test]
    fn only_settled_whole_blocks_are_given_back_and_each_is_split_once(
        steps in proptest::collection::vec(step(), 0..200)
    ) {
        let (mut blocks, mut now) = (HugeBlocks::default(), Instant::now());
        let mut whole: BTreeMap<Block, (Instant, bool)> = BTreeMap::new();
        let mut huge: BTreeMap<Block, ()> = BTreeMap::new();
        let mut under_way = None;
        for step in steps {
            match step {
                Step::Look(number, look) => {
                    let block = block(number);
                    let is_heard = blocks.wants_look(block, now);
                    let is_split = blocks.looked(block, look, now);
                    let was_huge = under_way != Some(block) && look != Look::Huge && huge.contains_key(&block);
                    prop_assert_eq!(is_split, was_huge);
                    if was_huge {
                        huge.remove(&block);
                    }
                    match look {
                        Look::Whole { protected } if is_heard && !is_split => {
                            whole.entry(block).or_insert((now, protected)).1 = protected;
                        }
                        _ if is_heard => {
                            whole.remove(&block);
                        }
                        _ => {}
                    }
                }
                Step::Next(is_quiet) => {
                    let next = blocks.next(now, is_quiet);
                    if let Some(next) = next {
                        prop_assert_eq!(under_way, None, "one at a time");
                        let (since, protected) = whole[&next];
                        prop_assert!(now - since >= HUGE_SETTLE && (is_quiet || !protected));
                        prop_assert!(!huge.contains_key(&next));
                        whole.remove(&next);
                        under_way = Some(next);
                    }
                }
                Step::Ended(collapse) => {
                    blocks.ended(collapse, now);
                    if let Some(block) = under_way.take().filter(|_| collapse == Collapse::Done)
                        && blocks.blocks.contains_key(&block)
                    {
                        huge.insert(block, ());
                    }
                }
                Step::Left(number) => {
                    whole.remove(&block(number));
                    prop_assert_eq!(blocks.left(block(number), now), huge.remove(&block(number)).is_some());
                }
                Step::Keep(below) => {
                    blocks.keep(SpaceId(1), |first| first < block(below).first);
                    whole.retain(|one, _| one.first < block(below).first);
                    huge.retain(|one, ()| one.first < block(below).first);
                }
                Step::Wait(milliseconds) => now += Duration::from_millis(milliseconds),
            }
            prop_assert_eq!(blocks.given_back, huge.len());
        }
    }
}
