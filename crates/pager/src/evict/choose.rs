//! Which pages leave: the policy hears what happened to pages, and names victims.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use std::sync::atomic::Ordering;

use spillway_policy::replacement::{Arrival, CachePage};

use super::Eviction;
use crate::limits::{BATCH_PAGES, BATCHES_IN_A_ROW_MAX, GROUP_PAGES};
use crate::page_table::page_indexes::{Coming, News};

impl Eviction {
    /// Tells the policy what happened.
    pub(super) fn hear(&mut self) {
        let mut news = std::mem::take(&mut self.news);
        let pages = {
            let mut page_indexes = self.shared.page_indexes();
            page_indexes.cache_pages.take_news(&mut news);
            page_indexes.cache_pages.pages()
        };
        self.policy.grow(pages);
        self.shadows.grow(pages);
        for one in news.drain(..) {
            match one {
                News::Came(page, coming) => {
                    let arrival = self.arrival(page, coming);
                    self.policy.inserted(page, arrival);
                }
                News::Learnt(page, evidence) => self.policy.touched(page, evidence),
                News::Gone(page) => {
                    self.policy.removed(page);
                    self.shadows.forget(page);
                }
            }
        }
        self.news = news;
    }

    fn arrival(&self, page: CachePage, coming: Coming) -> Arrival {
        match coming {
            Coming::New => Arrival::New,
            Coming::Staged => Arrival::Staged,
            Coming::ReadAhead => Arrival::Prefetched,
            Coming::Around => Arrival::Around { distance: self.shadows.distance(page).unwrap_or(u32::MAX) },
            Coming::Back => {
                let distance = self.shadows.distance(page).unwrap_or(u32::MAX);
                self.shared.counters.refault(distance);
                Arrival::Refault { distance }
            }
        }
    }

    /// Whether an evictor gets another batch behind the one that it has. Only what was [looked ahead
    /// for](Self::look_ahead) is given to it, and to none whose program has forked: it may be needed for something
    /// else first (`own_again`).
    pub(super) fn may_follow(&self) -> bool {
        let [batch] = &self.batches[..] else { return false };
        let is_free = self.is_undisturbed && self.in_a_row < BATCHES_IN_A_ROW_MAX;
        is_free && !self.candidates.is_empty() && !batch.space.has_forked.load(Ordering::Relaxed)
    }

    /// Chooses the next victims while evictors work, if they will be needed.
    pub(super) fn look_ahead(&mut self) {
        let leaving: usize = self.batches.iter().map(|batch| batch.pages.len()).sum();
        let budget = &self.shared.budget;
        let is_enough = leaving == 0 || budget.resident_pages() - leaving as i64 <= budget.high_pages();
        if self.candidates.is_empty() && !is_enough && self.staging.available() > 0 {
            self.choose(leaving as i64);
        }
    }

    /// Asks the policy for victims besides `leaving` pages. False: there is no room for any now.
    pub(super) fn choose(&mut self, leaving: i64) -> bool {
        let budget = &self.shared.budget;
        let wanted = (budget.resident_pages() - leaving - budget.low_pages()).max(1) as usize;
        let wanted = wanted.min(BATCH_PAGES).min(self.staging.available() * GROUP_PAGES);
        if wanted == 0 {
            // The pool is full of pages that are being written; if they cannot be, no thread waits for them.
            self.shared.budget.set_stuck(!self.retries.is_empty());
            return false;
        }
        let mut victims = [CachePage(0); BATCH_PAGES];
        let count = self.policy.victims(&mut victims[..wanted]);
        let page_indexes = self.shared.page_indexes();
        let homes =
            victims[..count].iter().filter_map(|number| Some((page_indexes.cache_pages.home(*number)?, *number)));
        self.candidates.extend(homes.map(|(home, number)| (home.space, home.page, number)));
        self.candidates.sort_unstable();
        true
    }
}
