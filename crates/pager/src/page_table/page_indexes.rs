//! Which page of which program a [`CachePage`] number stands for, and what the replacement policy is told of it.
//!
//! Numbers are handed out by whole groups of neighbours, for all programs of a pager together, since they share one
//! budget.
//!
//! Invariant: news of a page are in the order in which they happened, also across address spaces that use one number
//! after the other: a group's number goes back only behind the news that its pages are gone.

use spillway_policy::replacement::{CachePage, Evidence};

use crate::limits::GROUP_PAGES;
use crate::page_table::virtual_page::VirtualPage;

/// An address space, as the pager counts them; never given again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SpaceId(pub u32);

/// Where a page is, or a group of neighbours, which its first page stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Home {
    /// The address space.
    pub space: SpaceId,
    /// The page.
    pub page: VirtualPage,
}

/// How a page came (see [`spillway_policy::replacement::Arrival`]; the distance of a refault is known to the eviction
/// thread).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coming {
    /// Found resident, or filled with zeroes.
    New,
    /// From afar.
    Back,
    /// From afar, with a neighbour in no trend, and taken for needed.
    Around,
    /// From the write-back pool.
    Staged,
    /// With another page.
    ReadAhead,
}

/// What the policy is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News {
    /// A page is resident now.
    Came(CachePage, Coming),
    /// Something was learnt of a resident page.
    Learnt(CachePage, Evidence),
    /// The program gave a page up.
    Gone(CachePage),
}

/// News that wait for the eviction thread at most without allocating: it takes them every few milliseconds.
const NEWS_EXPECTED: usize = 1 << 16;

/// See the module text.
#[derive(Debug)]
pub struct CachePages {
    homes: Vec<Option<Home>>,
    free: Vec<u32>,
    news: Vec<News>,
}

impl Default for CachePages {
    fn default() -> Self {
        Self { homes: Vec::new(), free: Vec::new(), news: Vec::with_capacity(NEWS_EXPECTED) }
    }
}

impl CachePages {
    /// A number for the group at `home`.
    pub fn open_group(&mut self, home: Home) -> u32 {
        if let Some(number) = self.free.pop() {
            self.homes[number as usize] = Some(home);
            return number;
        }
        self.homes.push(Some(home));
        u32::try_from(self.homes.len() - 1).expect("2^32 groups are 512 TiB")
    }

    /// The group is gone; its pages were [told](CachePages::tell) to be gone before.
    pub fn close_group(&mut self, number: u32) {
        assert!(self.homes[number as usize].take().is_some(), "a group is closed once");
        self.free.push(number);
    }

    /// The address space and the page that `number` stands for, if a page has that number.
    pub fn home(&self, number: CachePage) -> Option<Home> {
        let home = self.homes.get(number.0 as usize / GROUP_PAGES).copied().flatten()?;
        Some(Home { page: home.page + u64::from(number.0) % GROUP_PAGES as u64, ..home })
    }

    /// Numbers of pages are below this.
    pub fn pages(&self) -> u32 {
        (self.homes.len() * GROUP_PAGES) as u32
    }

    /// Groups that are in use.
    pub fn groups_open(&self) -> usize {
        self.homes.len() - self.free.len()
    }

    /// Puts down what the policy is to know.
    pub fn tell(&mut self, news: News) {
        self.news.push(news);
    }

    /// Exchanges the news so far for `room`, which is emptied: no memory is given back or taken.
    pub fn take_news(&mut self, room: &mut Vec<News>) {
        room.clear();
        std::mem::swap(&mut self.news, room);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_lead_home_and_are_given_again() {
        let mut directory = CachePages::default();
        let home = |address| Home { space: SpaceId(3), page: VirtualPage::at(address) };
        assert_eq!(directory.open_group(home(0x20_0000)), 0);
        assert_eq!(directory.open_group(home(0x40_0000)), 1);
        assert_eq!(directory.home(CachePage(33)), Some(home(0x40_1000)));
        directory.close_group(0);
        assert_eq!(directory.home(CachePage(5)), None);
        assert_eq!(directory.open_group(home(0x60_0000)), 0);
        assert_eq!((directory.pages(), directory.groups_open()), (64, 2));
        assert_eq!(directory.home(CachePage(1000)), None);
    }

    #[test]
    fn news_keep_their_order() {
        let mut directory = CachePages::default();
        let mut room = Vec::new();
        directory.tell(News::Gone(CachePage(1)));
        directory.tell(News::Came(CachePage(1), Coming::New));
        directory.take_news(&mut room);
        assert_eq!(room, [News::Gone(CachePage(1)), News::Came(CachePage(1), Coming::New)]);
        directory.take_news(&mut room);
        assert!(room.is_empty());
    }
}
