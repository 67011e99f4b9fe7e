//! A trace, made ready for replays.
//!
//! Pages get the numbers that a pager would give: whole groups of neighbours, in the order of first touches.

use std::collections::HashMap;

use crate::prefetch::PageNumber;
use crate::replacement::{CachePage, NEIGHBOURS_MAX};
use crate::trace::{Kind, Reader, TraceError, space_of};

/// Groups of neighbours in a trace: a replay keeps 24 bytes for each of their pages, so that is 800 MB. Dense, they are
/// 128 GiB of memory.
const GROUPS_MAX: usize = 1 << 20;

/// One access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// The page.
    pub page: CachePage,
    /// The thread.
    pub thread: u32,
    /// Whether it is a write.
    pub write: bool,
    /// Ticks since the access before.
    pub ticks: u32,
}

/// All accesses of a trace.
#[derive(Clone, Debug)]
pub struct Accesses {
    kind: Kind,
    accesses: Vec<Access>,
    /// By number, whether a page is accessed at all.
    used: Vec<bool>,
    /// The numbers of groups, by address.
    groups: HashMap<u64, u32>,
    /// The addresses of groups, by number.
    addresses: Vec<u64>,
    pages: u32,
}

impl Accesses {
    /// All of `reader`.
    pub fn read(reader: Reader<'_>) -> Result<Self, TraceError> {
        let (kind, mut time) = (reader.kind(), 0);
        let (used, groups) = (Vec::new(), HashMap::new());
        let mut all = Self { kind, accesses: Vec::new(), used, groups, addresses: Vec::new(), pages: 0 };
        for event in reader {
            let event = event?;
            let page = all.number(event.page);
            if all.addresses.len() > GROUPS_MAX {
                return Err(TraceError::TooManyPages);
            }
            all.used.resize(all.page_end() as usize, false);
            all.pages += u32::from(!std::mem::replace(&mut all.used[page.0 as usize], true));
            let ticks = u32::try_from(event.time - time).unwrap_or(u32::MAX);
            time = event.time;
            all.accesses.push(Access { page, thread: event.thread, write: event.write, ticks });
        }
        Ok(all)
    }

    /// The number of `page`, given now if it had none.
    fn number(&mut self, page: PageNumber) -> CachePage {
        let (group, place) = (page.0 / u64::from(NEIGHBOURS_MAX), page.0 % u64::from(NEIGHBOURS_MAX));
        let next = self.addresses.len() as u32;
        let number = *self.groups.entry(group).or_insert(next);
        if number == next {
            self.addresses.push(group);
        }
        CachePage(number * NEIGHBOURS_MAX + place as u32)
    }

    /// What the trace tells.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Whether the page of a number is accessed; its group has others.
    pub fn is_used(&self, page: CachePage) -> bool {
        self.used[page.0 as usize]
    }

    /// The address space of a page.
    pub fn space(&self, page: CachePage) -> u32 {
        space_of(self.virtual_page(page)).0
    }

    /// In their order.
    pub fn as_slice(&self) -> &[Access] {
        &self.accesses
    }

    /// Different pages that are accessed.
    pub fn pages(&self) -> u32 {
        self.pages
    }

    /// All page numbers are below this.
    pub fn page_end(&self) -> u32 {
        self.addresses.len() as u32 * NEIGHBOURS_MAX
    }

    /// The number of `page`, if its group has one.
    pub fn find(&self, page: PageNumber) -> Option<CachePage> {
        let group = self.groups.get(&(page.0 / u64::from(NEIGHBOURS_MAX)))?;
        Some(CachePage(group * NEIGHBOURS_MAX + (page.0 % u64::from(NEIGHBOURS_MAX)) as u32))
    }

    /// The page of a number.
    pub fn virtual_page(&self, page: CachePage) -> PageNumber {
        let group = self.addresses[(page.0 / NEIGHBOURS_MAX) as usize];
        PageNumber(group * u64::from(NEIGHBOURS_MAX) + u64::from(page.0 % NEIGHBOURS_MAX))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use crate::trace::{Event, Kind, Recorder};

    use super::*;

    /// Accesses of `pages` in order, a tick apart.
    pub(crate) fn accesses(pages: &[(u64, bool)]) -> Accesses {
        accesses_of(Kind::Touches, pages)
    }

    /// The same for a trace of any kind.
    pub(crate) fn accesses_of(kind: Kind, pages: &[(u64, bool)]) -> Accesses {
        let mut recorder = Recorder::new(kind, 100 + 30 * pages.len());
        for (time, (page, write)) in pages.iter().enumerate() {
            assert!(recorder.record(Event { page: PageNumber(*page), thread: 0, write: *write, time: time as u64 }));
        }
        let mut bytes = Vec::new();
        recorder.write_to(&mut bytes).unwrap();
        Accesses::read(Reader::new(&bytes).unwrap()).unwrap()
    }

    #[test]
    fn neighbours_have_neighbouring_numbers() {
        let all = accesses(&[(1000, false), (5, true), (1001, false), (5, false)]);
        let numbers: Vec<u32> = all.as_slice().iter().map(|access| access.page.0).collect();
        assert_eq!(numbers, [8, NEIGHBOURS_MAX + 5, 9, NEIGHBOURS_MAX + 5]);
        assert_eq!((all.pages(), all.page_end()), (3, 2 * NEIGHBOURS_MAX));
        assert_eq!(all.virtual_page(CachePage(9)), PageNumber(1001));
        assert_eq!(all.find(PageNumber(6)), Some(CachePage(NEIGHBOURS_MAX + 6)), "unused, in a known group");
        assert_eq!(all.find(PageNumber(500)), None);
        assert!(all.as_slice()[1].write && all.as_slice()[1].ticks == 1);
    }

    #[test]
    fn damage_is_passed_on() {
        let mut recorder = Recorder::new(Kind::Touches, 100);
        recorder.record(Event { page: PageNumber(77), thread: 0, write: false, time: 0 });
        let mut bytes = Vec::new();
        recorder.write_to(&mut bytes).unwrap();
        *bytes.last_mut().unwrap() |= 0x80;
        assert!(Accesses::read(Reader::new(&bytes).unwrap()).is_err());
    }
}
