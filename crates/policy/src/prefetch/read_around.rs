//! Read-ahead, and the neighbours of a page that is in no trend, where programs come back to a neighbourhood soon.
//!
//! The kernel's swap brings an aligned block of pages along with each fault (`page-cluster`), used or not. Here it
//! comes only where experience says that most of it will be used. Of each block in which a fault falls one page that
//! is away is the *probe*: it is left where it is, and a fault on it before 128 other blocks had theirs says that the
//! neighbourhood was needed. Since probes are taken whether blocks come along or not, the same count says when to
//! begin and when to end.
//!
//! Where blocks are not worth it, the next one to three pages come along if programs need as many of them as
//! [`super::runs`] has seen.
//!
//! What comes so is taken for needed: no marker follows that could tell.

use super::read_ahead::ReadAhead;
use super::runs::{RUN_MAX, Runs};
use super::{Candidates, Keying, PageNumber, Prefetcher};
use crate::limits::{BLOCK_SCORE_MAX, BLOCK_SCORE_WORTH, NEEDED_WEIGHT, PROBES, UNNEEDED_WEIGHT};

/// Pages of a block: the kernel's default for swap (`page-cluster` is 3).
pub const BLOCK_PAGES: u64 = 8;

/// In place of a block that there is not.
const NONE: u32 = u32::MAX;

/// Numbers that are compared at once.
const LANES: usize = 16;

/// Of a block in which a fault fell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Probe {
    /// If it was not needed yet.
    page: Option<PageNumber>,
    /// Whether the others of its block came along.
    is_alone: bool,
}

/// See the module text.
#[derive(Clone, Copy, Debug)]
pub struct ReadAround {
    ahead: ReadAhead,
    /// Numbers of blocks, together and short, as all are looked through at a fault.
    blocks: [u32; PROBES],
    probes: [Probe; PROBES],
    next: usize,
    score: u32,
    runs: Runs,
    /// Whether the last fault was beside no other.
    is_begin: bool,
    /// Whether the block of the last fault is known.
    is_known: bool,
}

impl Default for ReadAround {
    fn default() -> Self {
        let probes = [Probe::default(); PROBES];
        let (ahead, runs) = (ReadAhead::default(), Runs::default());
        Self { ahead, blocks: [NONE; PROBES], probes, next: 0, score: 0, runs, is_begin: false, is_known: false }
    }
}

impl ReadAround {
    /// The place of the block of `page`. Without a branch for each, which takes half of the time.
    fn find(&self, page: PageNumber) -> Option<usize> {
        let number = block_number(page);
        let has = |lanes: &[u32]| lanes.iter().fold(false, |found, known| found | (*known == number));
        let group = self.blocks.chunks_exact(LANES).position(has)?;
        self.blocks[group * LANES..].iter().position(|known| *known == number).map(|place| group * LANES + place)
    }

    /// Remembers a block in place of the oldest, whose probe was not needed if it is still there.
    fn remember(&mut self, page: PageNumber, probe: Probe) {
        self.blocks[self.next] = block_number(page);
        let oldest = std::mem::replace(&mut self.probes[self.next], probe);
        self.next = (self.next + 1) % PROBES;
        if oldest.page.is_some() {
            self.score = self.score.saturating_sub(UNNEEDED_WEIGHT);
        }
    }
}

/// The number of the block of `page`; blocks that are 128 TiB apart share theirs.
fn block_number(page: PageNumber) -> u32 {
    (page.0 / BLOCK_PAGES) as u32
}

/// The other pages of the block of `page`: those behind it first, as far as there are any.
fn others(page: PageNumber) -> impl Iterator<Item = PageNumber> {
    let (first, place) = (page.0 / BLOCK_PAGES * BLOCK_PAGES, page.0 % BLOCK_PAGES);
    (place + 1..BLOCK_PAGES).chain((0..place).rev()).map(move |other| PageNumber(first + other))
}

impl Prefetcher for ReadAround {
    fn name(&self) -> &'static str {
        "read-around"
    }

    fn keying(&self) -> Keying {
        Keying::Thread
    }

    fn has_ahead(&self, page: PageNumber) -> bool {
        self.ahead.has_ahead(page)
    }

    fn on_fault(&mut self, page: PageNumber, candidates: &mut Candidates) {
        let is_watched = self.runs.on_fault(page);
        self.is_begin = false;
        let found = self.find(page);
        self.is_known = found.is_some();
        if let Some(index) = found.filter(|index| self.probes[*index].page == Some(page)) {
            self.probes[index].page = None;
            self.score = (self.score + NEEDED_WEIGHT).min(BLOCK_SCORE_MAX);
            if self.probes[index].is_alone {
                // Had it come with the others, there would have been no fault here.
                return;
            }
        }
        self.is_begin = !is_watched && !self.ahead.is_beside(page);
        self.ahead.follow(page, is_watched, candidates);
    }

    fn around(&mut self, page: PageNumber, is_away: &dyn Fn(PageNumber) -> bool, candidates: &mut Candidates) {
        self.block_around(page, is_away, candidates);
        if candidates.pages().is_empty() && self.is_begin {
            self.run_behind(page, is_away, candidates);
        }
    }

    fn on_hit(&mut self, page: PageNumber, candidates: &mut Candidates) {
        self.ahead.on_hit(page, candidates);
    }

    fn go_on(&mut self, page: PageNumber, candidates: &mut Candidates) {
        self.ahead.go_on(page, candidates);
    }

    fn on_unused(&mut self, page: PageNumber) {
        self.ahead.on_unused(page);
    }

    fn learn_from(&mut self, other: &Self) {
        // What is not seen again is forgotten by and by.
        self.ahead = ReadAhead::heir(&other.ahead);
        (self.score, self.runs) = (other.score.saturating_sub(UNNEEDED_WEIGHT), other.runs.experience());
    }
}

impl ReadAround {
    /// The rest of the page's block, if blocks are worth it.
    fn block_around(&mut self, page: PageNumber, is_away: &dyn Fn(PageNumber) -> bool, candidates: &mut Candidates) {
        if self.is_known {
            return;
        }
        let away = || others(page).filter(|page| is_away(*page));
        // Any of them, so that none stands for a pattern of the program: which one changes with the block.
        let block = page.0 / BLOCK_PAGES;
        let chosen = (block.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize;
        let Some(probe) = away().nth(chosen % away().count().max(1)) else { return };
        let is_alone = self.score >= BLOCK_SCORE_WORTH;
        if is_alone {
            away().filter(|page| *page != probe).for_each(|page| candidates.push(page));
            candidates.are_around();
            self.ahead.came_around(page, block * BLOCK_PAGES, BLOCK_PAGES);
        }
        self.remember(page, Probe { page: Some(probe), is_alone });
    }

    /// The next pages, as many as runs have that begin so.
    fn run_behind(&mut self, page: PageNumber, is_away: &dyn Fn(PageNumber) -> bool, candidates: &mut Candidates) {
        let behind = || (1..i64::from(RUN_MAX)).map_while(|step| page.offset(step)).take_while(|page| is_away(*page));
        if behind().next().is_none() {
            // Nothing could be seen of a run that goes on in pages that are here.
            return;
        }
        behind().take(self.runs.on_begin(page).into()).for_each(|page| candidates.push(page));
        let count = candidates.pages().len() as u64;
        if count > 0 {
            candidates.are_around();
            self.ahead.came_around(page, page.0, count + 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What a fault brings along where `is_away` says which pages are elsewhere.
    fn fault(policy: &mut ReadAround, page: u64, is_away: &dyn Fn(PageNumber) -> bool) -> Candidates {
        let mut candidates = Candidates::default();
        policy.on_fault(PageNumber(page), &mut candidates);
        if candidates.pages().is_empty() {
            policy.around(PageNumber(page), is_away, &mut candidates);
        }
        candidates
    }

    /// The next number of a fixed sequence, below `end`.
    fn random(state: &mut u64, end: u64) -> u64 {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (*state >> 33) % end
    }

    /// A program that goes to blocks at random and needs `used` pages of each, in no order that is a trend: how many
    /// faults it has, and how many pages come along.
    fn blocks_at_random(policy: &mut ReadAround, used: usize, visits: u64) -> (u64, usize) {
        let (mut state, mut faults, mut brought) = (visits, 0, 0);
        for _ in 0..visits {
            let first = random(&mut state, 1 << 13) * BLOCK_PAGES;
            let mut here = Vec::new();
            for place in [1, 3, 0, 2, 5, 7, 4, 6].iter().take(used) {
                let page = first + place;
                if !here.contains(&page) {
                    let away: Vec<u64> = (first..first + BLOCK_PAGES).filter(|page| !here.contains(page)).collect();
                    let candidates = fault(policy, page, &|page| away.contains(&page.0));
                    brought += candidates.pages().len();
                    here.extend(candidates.pages().iter().map(|page| page.0).chain([page]));
                    faults += 1;
                }
            }
        }
        (faults, brought)
    }

    #[test]
    fn neighbours_come_along_once_they_were_needed() {
        let mut policy = ReadAround::default();
        blocks_at_random(&mut policy, 8, 20);
        let (faults, brought) = blocks_at_random(&mut policy, 8, 100);
        // A few are taken for the beginning of a trend.
        assert!(
            (180..=220).contains(&faults) && brought >= 560,
            "a fault for the block and one for its probe: {faults}, {brought}"
        );
    }

    #[test]
    fn neighbours_that_are_not_needed_do_not_come() {
        let mut policy = ReadAround::default();
        let (_, brought) = blocks_at_random(&mut policy, 1, 10_000);
        assert!(brought < 50, "some are taken for the beginning of a trend: {brought}");
        let (_, brought) = blocks_at_random(&mut policy, 2, 10_000);
        assert!(brought < 200, "one neighbour in seven is needed: {brought}");
    }

    #[test]
    fn neighbours_stop_coming_when_they_are_needed_no_more() {
        let mut policy = ReadAround::default();
        blocks_at_random(&mut policy, 8, 100);
        let (_, brought) = blocks_at_random(&mut policy, 1, 10_000);
        assert!((100..2000).contains(&brought), "until {PROBES} probes were forgotten: {brought}");
    }

    #[test]
    fn a_probe_whose_block_came_begins_nothing() {
        let mut taught = ReadAround::default();
        for place in 0..100 {
            let page = 5_000 * place;
            if fault(&mut taught, page, &|_| true).pages().is_empty() {
                fault(&mut taught, page + 1, &|_| true);
            }
        }
        for block in 0..10 {
            let mut policy =
                ReadAround { score: BLOCK_SCORE_MAX, runs: taught.runs.experience(), ..ReadAround::default() };
            assert_eq!(fault(&mut policy, 10_000 * block, &|_| true).pages().len(), 6);
            let probe = policy.probes[0].page.unwrap();
            assert!(fault(&mut policy, probe.0, &|_| true).pages().is_empty(), "the rest is here");
        }
    }

    #[test]
    fn a_program_that_needs_two_pages_at_each_place_gets_the_second_with_the_first() {
        let mut policy = ReadAround::default();
        let (mut state, mut faults, mut wasted) = (1, 0, 0);
        for visit in 0..2_000 {
            let page = 2 * random(&mut state, 1 << 13);
            let brought = fault(&mut policy, page, &|_| true);
            let has_second = brought.pages().contains(&PageNumber(page + 1));
            let others = brought.pages().len() - usize::from(has_second);
            if !has_second {
                wasted += fault(&mut policy, page + 1, &|_| true).pages().len();
            }
            if visit >= 1_000 {
                faults += if has_second { 1 } else { 2 };
                wasted += others;
            }
        }
        assert!((1_000..1_150).contains(&faults) && wasted < 1_200, "{faults} faults, {wasted} pages for nothing");
        let mut heir = ReadAround::default();
        heir.learn_from(&policy);
        let brought =
            (0..8).filter(|place| !fault(&mut heir, 1_000_000 + 50_000 * place, &|_| true).pages().is_empty());
        assert!(brought.count() >= 6, "it knows from the start");
    }

    #[test]
    fn a_page_that_is_there_is_no_probe_and_does_not_come() {
        let mut policy = ReadAround { score: BLOCK_SCORE_MAX, ..ReadAround::default() };
        let candidates = fault(&mut policy, 81, &|page| page.0 == 83 || page.0 == 87);
        assert_eq!((candidates.pages().len(), policy.probes[0].page.is_some()), (1, true));
        let alone = fault(&mut policy, 161, &|_| false);
        assert!(alone.pages().is_empty() && policy.blocks[1] == NONE, "nothing can be learnt of it");
    }

    #[test]
    fn a_stream_goes_on_behind_a_block_that_came() {
        for (page, next, first) in [(82, 88, 89), (82, 79, 78)] {
            let mut policy = ReadAround { score: BLOCK_SCORE_MAX, ..ReadAround::default() };
            assert_eq!(fault(&mut policy, page, &|_| true).pages().len(), 6);
            let probe = policy.probes[0].page.unwrap();
            assert!(fault(&mut policy, probe.0, &|_| true).pages().is_empty(), "the rest is here");
            let window = fault(&mut policy, next, &|_| true);
            assert_eq!(window.pages().first(), Some(&PageNumber(first)));
            assert!(window.marker().is_some(), "a stream");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn what_comes_is_away_distinct_and_beside_the_page(
            pages in proptest::collection::vec((0_u64..300, any::<u64>()), 1..300), score in 0..=BLOCK_SCORE_MAX
        ) {
            let mut policy = ReadAround { score, ..ReadAround::default() };
            for (page, away) in pages {
                let is_away = |page: PageNumber| away >> (page.0 % 64) & 1 == 1;
                let candidates = fault(&mut policy, page, &is_away);
                prop_assert!(policy.score <= BLOCK_SCORE_MAX);
                if candidates.comes_around() {
                    prop_assert!(candidates.marker().is_none());
                    let mut found: Vec<u64> = candidates.pages().iter().map(|page| page.0).collect();
                    prop_assert!(found.iter().all(|other| is_away(PageNumber(*other)) && *other != page));
                    prop_assert!(found.iter().all(|other| other / BLOCK_PAGES == page / BLOCK_PAGES));
                    found.sort_unstable();
                    let count = found.len();
                    found.dedup();
                    prop_assert_eq!(found.len(), count);
                }
            }
        }
    }
}
