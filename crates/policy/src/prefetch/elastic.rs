//! Elastic blocks: aligned blocks of one page to 2 MiB come as a whole, and each learns how large it should be.
//!
//! As in DCM's lineage (the public EMP code): a fault on a page brings the rest of its block along, behind the page
//! that the program waits for. A block merges with its *buddy*, the other half of the block twice as large, if both
//! have the same size and are like-minded: both were fetched and needed within a short span. It is split when little
//! of it was used.
//!
//! EMP reads reference bits when a block leaves, and splits where at most a quarter of them is set. Private memory has
//! no such bits to read. So one page of each block that comes, at no fixed place, is its *marker*: when the program
//! reaches it, the block was needed. It was *missed* if three quarters of it left before, or 64 other blocks came
//! before. Two misses in a row split a block: where a quarter is used, that is as likely as not (9 in 16). Of a block
//! of one page the buddy is the marker: a fault on it says that two are needed.
//!
//! A block serves no program that strides. What [`super::read_ahead`] finds to be a stride comes along that.
//!
//! EMP keeps the size of each page's block in its page table. Here memory is fixed: the last 64 regions of 2 MiB are
//! known. What a region has learnt is its *start*, the size of its blocks that have no history; blocks that merged
//! beyond it are a tree of 511 bits. A region that is new begins with the start of its neighbour, or else of the
//! region before. Without that, each part of an array would have to grow anew.
//!
//! Invariants: what comes along is in the aligned block of the page; a block has at most [`BLOCK_PAGES_MAX`] pages and
//! never more than [`Candidates::window_max`]; no block is in the ring of recent ones twice, nor one that overlaps it.

use super::read_ahead::ReadAhead;
use super::{Candidates, Keying, PageNumber, Prefetcher};

/// The largest block is 2 to this power: 512 pages, 2 MiB, as EMP's and the processor's.
pub const ORDER_MAX: u32 = 9;

/// Pages of the largest block, and of a region.
pub const BLOCK_PAGES_MAX: u64 = 1 << ORDER_MAX;

/// Regions that are known: 128 MiB of addresses, in 9 KiB.
const REGIONS: usize = 64;

/// Blocks that are watched: the short span.
const RECENT: usize = 64;

/// A block that was needed adds so much to its region's score ...
const NEEDED_WEIGHT: u32 = 3;

/// ... and one that was not takes at least so much, as for the blocks of [`super::read_around`]. A larger one costs
/// more for nothing: it takes its order.
const MISSED_WEIGHT_MIN: u32 = 2;

/// A region's blocks become twice as large from this score on ...
const SCORE_GROW: u32 = 12;

/// ... or half as large at zero; then the score begins here. Two blocks that were needed let a region grow.
const SCORE_BEGIN: u32 = 6;

/// Neighbours that are read together: 128 KiB, the pager's group.
const RUN_PAGES: u64 = 32;

/// In place of a region that there is not.
const NONE: u64 = u64::MAX;

/// An aligned block of 2 to the power of `order` pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Block {
    first: u64,
    order: u32,
}

impl Block {
    fn of(page: PageNumber, order: u32) -> Self {
        Self { first: page.0 >> order << order, order }
    }

    fn pages(self) -> u64 {
        1 << self.order
    }

    fn contains(self, page: PageNumber) -> bool {
        page.0 >> self.order == self.first >> self.order
    }

    fn overlaps(self, other: Self) -> bool {
        self.contains(PageNumber(other.first)) || other.contains(PageNumber(self.first))
    }

    fn buddy(self) -> Self {
        Self { first: self.first ^ self.pages(), ..self }
    }

    /// The block of which this one and its buddy are the halves.
    fn parent(self) -> Self {
        Self::of(PageNumber(self.first), self.order + 1)
    }

    fn region(self) -> u64 {
        self.first >> ORDER_MAX
    }

    /// Its bit in the tree of its region: first those of the blocks of two pages, at last that of the whole region.
    fn node(self) -> (usize, u64) {
        let before = BLOCK_PAGES_MAX - (BLOCK_PAGES_MAX >> (self.order - 1));
        let node = before + ((self.first % BLOCK_PAGES_MAX) >> self.order);
        ((node / 64) as usize, 1 << (node % 64))
    }

    /// The others of its pages, the nearest first: those behind `page`, and then those before it by runs that can be
    /// read at once.
    fn others(self, page: PageNumber) -> impl Iterator<Item = PageNumber> {
        let (first, end) = (self.first, self.first + self.pages());
        let runs = (first / RUN_PAGES..=page.0 / RUN_PAGES).rev();
        let before = runs.flat_map(move |run| (run * RUN_PAGES).max(first)..((run + 1) * RUN_PAGES).min(page.0));
        (page.0 + 1..end).chain(before).map(PageNumber)
    }
}

/// What is known of 2 MiB of addresses.
#[derive(Clone, Copy, Debug)]
struct Region {
    number: u64,
    /// When it was used last.
    used_at: u64,
    /// Blocks that merged, a bit for each node of the tree.
    merged: [u64; 8],
    /// Of those, the blocks that were missed the last time.
    doubted: [u64; 8],
    /// The order of blocks that have not merged.
    start: u32,
    score: u32,
}

const UNKNOWN: Region =
    Region { number: NONE, used_at: 0, merged: [0; 8], doubted: [0; 8], start: 0, score: SCORE_BEGIN };

impl Region {
    /// The block of `page`: the largest that merged, or one of the start.
    fn block(&self, page: PageNumber) -> Block {
        let merged = (self.start + 1..=ORDER_MAX).rev().map(|order| Block::of(page, order));
        merged.into_iter().find(|block| self.has_merged(*block)).unwrap_or(Block::of(page, self.start))
    }

    fn has_merged(&self, block: Block) -> bool {
        let (word, bit) = block.node();
        self.merged[word] & bit != 0
    }

    fn merge(&mut self, block: Block) {
        let (word, bit) = block.node();
        self.merged[word] |= bit;
        self.doubted[word] &= !bit;
    }

    /// A block of this size was needed; no block is to be larger than `order_max`.
    fn needed(&mut self, block: Block, order_max: u32) {
        if block.order > self.start {
            let (word, bit) = block.node();
            self.doubted[word] &= !bit;
        }
        self.score += NEEDED_WEIGHT;
        if self.score >= SCORE_GROW {
            let grows = self.start < order_max;
            self.start += u32::from(grows);
            self.score = if grows { SCORE_BEGIN } else { SCORE_GROW };
        }
    }

    /// A block was fetched and not needed.
    fn missed(&mut self, block: Block) {
        if block.order > self.start {
            return self.doubt(block);
        }
        self.score = self.score.saturating_sub(block.order.max(MISSED_WEIGHT_MIN));
        if self.score == 0 && self.start > 0 {
            (self.start, self.score) = (self.start - 1, SCORE_BEGIN);
        }
    }

    /// Splits a block that merged at its second miss in a row; its halves stay as large as they are.
    fn doubt(&mut self, block: Block) {
        let (word, bit) = block.node();
        if self.merged[word] & bit == 0 {
            return;
        }
        if self.doubted[word] & bit == 0 {
            self.doubted[word] |= bit;
            return;
        }
        self.merged[word] &= !bit;
        self.doubted[word] &= !bit;
        if block.order - 1 > self.start {
            let half = Block { first: block.first, order: block.order - 1 };
            [half, half.buddy()].into_iter().for_each(|half| self.merge(half));
        }
    }
}

/// What was found of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Needed,
    Missed,
}

/// A block that was fetched lately.
#[derive(Clone, Copy, Debug)]
struct Recent {
    block: Block,
    /// Pages of it that left unused.
    unused: u64,
    /// Whether it was needed, as far as is known.
    verdict: Option<Verdict>,
}

/// See the module text.
#[derive(Clone, Copy, Debug)]
pub struct Elastic {
    regions: [Region; REGIONS],
    /// The region that was used last.
    latest: usize,
    recent: [Option<Recent>; RECENT],
    next: usize,
    clock: u64,
    order_max: u32,
    /// Finds strides, which no block serves.
    strides: ReadAhead,
}

impl Default for Elastic {
    fn default() -> Self {
        Self {
            regions: [UNKNOWN; REGIONS],
            latest: 0,
            recent: [None; RECENT],
            next: 0,
            clock: 0,
            order_max: ORDER_MAX,
            strides: ReadAhead::default(),
        }
    }
}

impl Elastic {
    /// The region of `number`, made in place of the one that rested longest if it is not known.
    fn region(&mut self, number: u64) -> &mut Region {
        self.clock += 1;
        if self.regions[self.latest].number != number {
            self.latest = self.find_region(number).unwrap_or_else(|| self.begin_region(number));
        }
        let region = &mut self.regions[self.latest];
        region.used_at = self.clock;
        region
    }

    fn find_region(&self, number: u64) -> Option<usize> {
        self.regions.iter().position(|region| region.number == number)
    }

    fn begin_region(&mut self, number: u64) -> usize {
        let beside = [number.wrapping_sub(1), number + 1].into_iter().find_map(|number| self.find_region(number));
        let start = self.regions[beside.unwrap_or(self.latest)].start;
        let age = |index: &usize| self.regions[*index].used_at;
        let oldest = (0..REGIONS).min_by_key(age).expect("there is a region");
        self.regions[oldest] = Region { number, start, ..UNKNOWN };
        oldest
    }

    fn find_recent(&self, page: PageNumber) -> Option<usize> {
        self.recent.iter().position(|recent| recent.is_some_and(|recent| recent.block.contains(page)))
    }

    /// Remembers a block in place of the oldest, which was missed if nothing said that it was needed.
    fn remember(&mut self, block: Block) {
        // Smaller and larger ones that it takes the place of are no more.
        for recent in &mut self.recent {
            if recent.is_some_and(|recent| recent.block.overlaps(block)) {
                *recent = None;
            }
        }
        let new = Recent { block, unused: 0, verdict: None };
        let oldest = self.recent[self.next].replace(new);
        self.next = (self.next + 1) % RECENT;
        if let Some(oldest) = oldest.filter(|oldest| oldest.verdict.is_none()) {
            self.missed(oldest.block);
        }
    }

    fn missed(&mut self, block: Block) {
        if let Some(index) = self.find_region(block.region()) {
            self.regions[index].missed(block);
        }
    }

    /// The block at `index` of the ring was needed: it merges with its buddy as long as that was, too.
    fn needed(&mut self, index: usize) {
        let Some(Recent { mut block, verdict, .. }) = self.recent[index] else { return };
        if verdict == Some(Verdict::Needed) {
            return;
        }
        let order_max = self.order_max;
        self.region(block.region()).needed(block, order_max);
        while block.order < order_max
            && let Some(buddy) = self.like_minded(block.buddy())
        {
            self.recent[buddy] = None;
            block = block.parent();
            self.region(block.region()).merge(block);
        }
        self.recent[index] = Some(Recent { block, unused: 0, verdict: Some(Verdict::Needed) });
    }

    /// Where `block` is in the ring, if it was needed.
    fn like_minded(&self, block: Block) -> Option<usize> {
        let is_like_minded = |recent: Recent| recent.block == block && recent.verdict == Some(Verdict::Needed);
        self.recent.iter().position(|recent| recent.is_some_and(is_like_minded))
    }

    /// The block that comes with `page`.
    fn block(&mut self, page: PageNumber, window_max: usize) -> Block {
        self.order_max = window_max.max(1).ilog2().min(ORDER_MAX);
        let block = self.region(page.0 >> ORDER_MAX).block(page);
        if block.order > self.order_max { Block::of(page, self.order_max) } else { block }
    }

    /// Any place of `count`, so that none stands for a pattern of the program: which one changes with the fetch.
    fn any_of(&self, count: usize) -> usize {
        (self.clock.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33) as usize % count.max(1)
    }

    /// `page` comes alone. Was its buddy fetched alone a moment ago, then two are needed.
    fn fetch_alone(&mut self, page: PageNumber) {
        let block = Block::of(page, 0);
        self.remember(block);
        let is_buddy = |recent: Option<Recent>| recent.is_some_and(|recent| recent.block == block.buddy());
        if let Some(buddy) = self.recent.iter().position(|recent| is_buddy(*recent)) {
            self.needed(buddy);
            let own = self.find_recent(page).expect("it was remembered just now");
            self.needed(own);
        }
    }

    /// Whether `page` is in a stride, along which `candidates` come then. What is next to it is for blocks, and faults
    /// as far apart as those come from them.
    fn has_stride(&mut self, page: PageNumber, block: Block, candidates: &mut Candidates) -> bool {
        self.strides.follow(page, false, candidates);
        let of_blocks = |distance: u64| distance <= 1 || block.order > 0 && distance.is_multiple_of(block.pages());
        let is_stride = candidates.pages().first().is_some_and(|first| !of_blocks(first.0.abs_diff(page.0)));
        if !is_stride {
            candidates.clear();
        }
        is_stride
    }
}

impl Prefetcher for Elastic {
    fn name(&self) -> &'static str {
        "elastic"
    }

    /// Blocks are of memory, whichever thread comes to it.
    fn keying(&self) -> Keying {
        Keying::Process
    }

    fn brings_blocks(&self) -> bool {
        true
    }

    fn on_fault(&mut self, page: PageNumber, candidates: &mut Candidates) {
        let block = self.block(page, candidates.window_max());
        if self.has_stride(page, block, candidates) {
            return;
        }
        if block.order == 0 {
            return self.fetch_alone(page);
        }
        self.strides.came_around(page, block.first, block.pages());
        block.others(page).for_each(|other| candidates.push(other));
        candidates.mark(self.any_of(candidates.pages().len()));
        self.remember(block);
    }

    fn on_hit(&mut self, page: PageNumber, candidates: &mut Candidates) {
        match self.find_recent(page) {
            Some(index) => self.needed(index),
            None => self.strides.on_hit(page, candidates),
        }
    }

    fn go_on(&mut self, page: PageNumber, candidates: &mut Candidates) {
        self.strides.go_on(page, candidates);
    }

    fn on_unused(&mut self, page: PageNumber) {
        let Some(index) = self.find_recent(page) else {
            return if self.strides.has_ahead(page) {
                self.strides.on_unused(page);
            };
        };
        let Some(recent) = self.recent[index].as_mut().filter(|recent| recent.verdict.is_none()) else { return };
        recent.unused += 1;
        if 4 * recent.unused >= 3 * recent.block.pages() {
            recent.verdict = Some(Verdict::Missed);
            let block = recent.block;
            self.missed(block);
        }
    }
}

#[cfg(test)]
#[path = "elastic_tests.rs"]
mod tests;
