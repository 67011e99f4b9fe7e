//! Which blocks of 2 MiB are given back as huge pages, and when.
//!
//! A block that is whole becomes a *candidate*. It is given back once it has been one for [`HUGE_SETTLE`], one block at
//! a time, a few in a row ([`HUGE_BURST`]), and then none for a while. A block that is split soon after, or that
//! the kernel refuses, *rests*, four times as long each time; and all others wait longer, too, while that happens.
//!
//! No clock: the caller says what time it is.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use crate::limits::{
    HUGE_BLOCKS_MAX, HUGE_BURST, HUGE_KEPT_MIN, HUGE_LOOK_INTERVAL, HUGE_PENALTY_HALVED, HUGE_PENALTY_MAX,
    HUGE_REST_MAX, HUGE_REST_MIN, HUGE_SETTLE,
};
use crate::page_table::page_indexes::SpaceId;
use crate::page_table::virtual_page::VirtualPage;

/// A block of 2 MiB: its address space, and its first page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Block {
    /// Whose it is.
    pub space: SpaceId,
    /// Its first page, at a multiple of 2 MiB.
    pub first: VirtualPage,
}

/// What a look at a block found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// A huge page.
    Huge,
    /// All pages are there, and the program's alone; `protected`: some have copies that would have to be given up.
    Whole {
        /// See there.
        protected: bool,
    },
    /// Anything else.
    Broken,
}

/// What came of the attempt to make a huge page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Collapse {
    /// There is one.
    Done,
    /// It was not tried: the block is not whole any more, or its evictor has something else to do.
    NotTried,
    /// The kernel could not now: no free memory in one piece (ENOMEM), or pages were in use (EAGAIN, EBUSY).
    Later,
    /// The kernel refuses: a page is away or protected, or the mapping must not have huge pages (EINVAL).
    Refused,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Candidate { since: Instant, protected: bool },
    UnderWay,
    GivenBack { at: Instant },
    Resting { until: Instant },
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    phase: Phase,
    /// Of its next rest.
    rest: Duration,
}

/// See the module text.
#[derive(Debug)]
pub struct HugeBlocks {
    blocks: HashMap<Block, Entry>,
    /// Candidates in the order in which they became that; some may be none any more.
    queue: VecDeque<(Block, Instant)>,
    given_back: usize,
    under_way: Option<Block>,
    /// When the first of the last blocks in a row was named, and how many were.
    burst: Option<(Instant, u32)>,
    /// The rest after that is so many times as long, and since when.
    penalty: u32,
    penalty_since: Option<Instant>,
}

impl Default for HugeBlocks {
    fn default() -> Self {
        Self {
            blocks: HashMap::new(),
            queue: VecDeque::new(),
            given_back: 0,
            under_way: None,
            burst: None,
            penalty: 1,
            penalty_since: None,
        }
    }
}

impl HugeBlocks {
    /// Whether any block was given back and is a huge page still.
    pub fn has_given_back(&self) -> bool {
        self.given_back > 0
    }

    /// Whether it is worth to look at the pages of a block that may be whole.
    pub fn wants_look(&self, block: Block, now: Instant) -> bool {
        match self.blocks.get(&block).map(|entry| entry.phase) {
            None => self.blocks.len() < HUGE_BLOCKS_MAX,
            Some(Phase::Resting { until }) => until <= now,
            Some(Phase::Candidate { .. } | Phase::GivenBack { .. }) => true,
            Some(Phase::UnderWay) => false,
        }
    }

    /// A look at `block` found this. True: a huge page that was given back is split.
    pub fn looked(&mut self, block: Block, look: Look, now: Instant) -> bool {
        if !self.wants_look(block, now) {
            return false;
        }
        let entry = self.blocks.get(&block).copied();
        match (entry.map(|entry| entry.phase), look) {
            (None | Some(Phase::Resting { .. }), Look::Whole { protected }) => {
                let rest = entry.map_or(HUGE_REST_MIN, |entry| entry.rest);
                self.blocks.insert(block, Entry { phase: Phase::Candidate { since: now, protected }, rest });
                self.queue.push_back((block, now));
                false
            }
            (Some(Phase::Candidate { since, .. }), Look::Whole { protected }) => {
                self.set_phase(block, Phase::Candidate { since, protected });
                false
            }
            // What had to rest is remembered, and begins anew when it is whole again.
            (Some(Phase::Candidate { .. }), Look::Huge | Look::Broken) => {
                self.set_phase(block, Phase::Resting { until: now });
                false
            }
            (Some(Phase::GivenBack { .. }), Look::Whole { .. } | Look::Broken) => self.left(block, now),
            _ => false,
        }
    }

    /// The block to give back now, if there is one; its end is to be told by [`HugeBlocks::ended`]. `is_quiet`: nothing
    /// has left for a while, so copies of pages may be given up.
    pub fn next(&mut self, now: Instant, is_quiet: bool) -> Option<Block> {
        if self.under_way.is_some() || !self.may_begin(now) {
            return None;
        }
        // Each is looked at once: those with copies wait at the end.
        for _ in 0..self.queue.len() {
            let (block, queued) = *self.queue.front()?;
            let phase = self.blocks.get(&block).map(|entry| entry.phase);
            let Some(Phase::Candidate { protected, .. }) =
                phase.filter(|phase| matches!(phase, Phase::Candidate { since, .. } if *since == queued))
            else {
                self.queue.pop_front();
                continue;
            };
            if now.saturating_duration_since(queued) < HUGE_SETTLE {
                return None;
            }
            self.queue.pop_front();
            if protected && !is_quiet {
                // It settles again: nothing may be quiet for long.
                self.set_phase(block, Phase::Candidate { since: now, protected });
                self.queue.push_back((block, now));
                continue;
            }
            self.set_phase(block, Phase::UnderWay);
            self.under_way = Some(block);
            let (begin, count) = self.burst.get_or_insert((now, 0));
            debug_assert!(*begin <= now && *count < HUGE_BURST);
            *count += 1;
            return Some(block);
        }
        None
    }

    /// What came of the block that [`HugeBlocks::next`] named.
    pub fn ended(&mut self, collapse: Collapse, now: Instant) {
        let Some(block) = self.under_way.take() else { return };
        // It may be of a program that has ended.
        if !self.blocks.contains_key(&block) {
            return;
        }
        match collapse {
            Collapse::Done => {
                self.given_back += 1;
                self.set_phase(block, Phase::GivenBack { at: now });
            }
            Collapse::NotTried => self.set_phase(block, Phase::Resting { until: now }),
            Collapse::Later | Collapse::Refused => self.rest(block, now),
        }
    }

    /// A page of `block` has left, or a look found it split. True: it was given back.
    pub fn left(&mut self, block: Block, now: Instant) -> bool {
        match self.blocks.get(&block).map(|entry| entry.phase) {
            Some(Phase::GivenBack { at }) => {
                self.given_back -= 1;
                if now.saturating_duration_since(at) < HUGE_KEPT_MIN {
                    let penalty = (self.penalty_at(now) * 2).min(HUGE_PENALTY_MAX);
                    (self.penalty, self.penalty_since) = (penalty, Some(now));
                    self.rest(block, now);
                } else {
                    self.blocks.insert(block, Entry { phase: Phase::Resting { until: now }, rest: HUGE_REST_MIN });
                }
                true
            }
            Some(Phase::Candidate { .. }) => {
                self.set_phase(block, Phase::Resting { until: now });
                false
            }
            _ => false,
        }
    }

    /// Forgets what is known of `space` beyond the blocks that `is_kept` says are there.
    pub fn keep(&mut self, space: SpaceId, is_kept: impl Fn(VirtualPage) -> bool) {
        let given_back = &mut self.given_back;
        self.blocks.retain(|block, entry| {
            let stays = block.space != space || is_kept(block.first);
            *given_back -= usize::from(!stays && matches!(entry.phase, Phase::GivenBack { .. }));
            stays
        });
        let blocks = &self.blocks;
        self.queue.retain(|(block, _)| blocks.contains_key(block));
    }

    /// Whether another block may be given back, after those in a row.
    fn may_begin(&mut self, now: Instant) -> bool {
        let interval = HUGE_LOOK_INTERVAL * self.penalty_at(now);
        self.burst = self.burst.filter(|(begin, _)| now.saturating_duration_since(*begin) < interval);
        self.burst.is_none_or(|(_, count)| count < HUGE_BURST)
    }

    fn set_phase(&mut self, block: Block, phase: Phase) {
        self.blocks.get_mut(&block).expect("only blocks that are known change").phase = phase;
    }

    fn rest(&mut self, block: Block, now: Instant) {
        let entry = self.blocks.get_mut(&block).expect("only blocks that are known rest");
        *entry = Entry { phase: Phase::Resting { until: now + entry.rest }, rest: (entry.rest * 4).min(HUGE_REST_MAX) };
    }

    fn penalty_at(&self, now: Instant) -> u32 {
        let Some(since) = self.penalty_since else { return self.penalty };
        let halvings = now.saturating_duration_since(since).as_millis() / HUGE_PENALTY_HALVED.as_millis();
        (self.penalty >> halvings.min(31) as u32).max(1)
    }
}

#[cfg(test)]
#[path = "blocks_tests.rs"]
mod tests;
