//! Several doubly linked lists over the same pages, in arrays: what policies are made of.
//!
//! The links of a page lie at its number, so moving a page between lists allocates nothing and searches nothing.
//! Twelve bytes a page: two links, its list, a byte of marks that the policy may use as it likes, and when it entered
//! its list.
//!
//! That time is counted in *epochs*, of which a full memory sees `EPOCHS_PER_MEMORY`: a neighbour of a victim that
//! entered the same list in nearly the same epoch leaves with it, so that both are written as one request.
//!
//! Invariant: a page is in one list or in none, and the links of each list agree in both directions.

use super::CachePage;

/// No page.
const NONE: u32 = u32::MAX;

/// Epochs in which as many pages enter lists as are listed. A neighbour that leaves early loses at most
/// [`EPOCHS_NEAR`] / 16 of its time.
const EPOCHS_PER_MEMORY: u32 = 16;

/// A neighbour entered in nearly the same epoch as the victim when at most so many lie between.
const EPOCHS_NEAR: i16 = 1;

/// One of the lists of a [`Lists`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct List(pub u8);

/// The list of pages in no list.
const NOWHERE: List = List(u8::MAX);

#[derive(Clone, Copy, Debug)]
struct Entry {
    /// Towards the head: the page that entered next.
    younger: u32,
    /// Towards the tail: the page that entered before.
    older: u32,
    /// When it entered its list.
    epoch: u16,
    list: List,
    marks: u8,
}

const FREE: Entry = Entry { younger: NONE, older: NONE, epoch: 0, list: NOWHERE, marks: 0 };

#[derive(Clone, Copy, Debug)]
struct Ends {
    head: u32,
    tail: u32,
    length: u32,
}

/// `COUNT` lists. Pages enter at the head and, unless taken from elsewhere, leave at the tail.
#[derive(Clone, Debug)]
pub struct Lists<const COUNT: usize> {
    entries: Vec<Entry>,
    ends: [Ends; COUNT],
    /// Wraps: what is compared is never half a turn old but by a rare accident that costs a guess.
    epoch: u16,
    entered_in_epoch: u32,
}

/// Victims in the order in which they are found, in memory of the caller.
#[derive(Debug)]
pub struct Victims<'room> {
    pages: &'room mut [CachePage],
    count: usize,
}

impl<'room> Victims<'room> {
    /// None yet, and room for as many as `pages` has.
    pub fn new(pages: &'room mut [CachePage]) -> Self {
        Self { pages, count: 0 }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Those behind the first `count`.
    pub fn since(&self, count: usize) -> &[CachePage] {
        &self.pages[count..self.count]
    }

    /// Whether there is no room for another one.
    pub fn is_full(&self) -> bool {
        self.count == self.pages.len()
    }

    fn push(&mut self, page: CachePage) {
        self.pages[self.count] = page;
        self.count += 1;
    }
}

impl<const COUNT: usize> Lists<COUNT> {
    /// Bytes for each page number.
    pub const BYTES_PER_PAGE: usize = size_of::<Entry>();

    /// Empty lists, with room for page numbers below `pages`.
    pub fn new(pages: u32) -> Self {
        let empty = Ends { head: NONE, tail: NONE, length: 0 };
        Self { entries: vec![FREE; pages as usize], ends: [empty; COUNT], epoch: 0, entered_in_epoch: 0 }
    }

    /// Page numbers below `pages` are in use from now on: the only call that allocates.
    pub fn grow(&mut self, pages: u32) {
        assert!(pages < NONE, "page numbers end below {NONE}");
        let length = (pages as usize).max(self.entries.len());
        self.entries.resize(length, FREE);
    }

    /// Page numbers in use are below this.
    pub fn numbers(&self) -> u32 {
        self.entries.len() as u32
    }

    /// The list of `page`, if it is in one.
    pub fn list_of(&self, page: CachePage) -> Option<List> {
        let list = self.entries[page.0 as usize].list;
        (list != NOWHERE).then_some(list)
    }

    /// Pages in `list`.
    pub fn length(&self, list: List) -> u32 {
        self.ends[usize::from(list.0)].length
    }

    /// Pages in all lists.
    pub fn total(&self) -> u32 {
        self.ends.iter().map(|ends| ends.length).sum()
    }

    /// The page at the end of `list`.
    pub fn tail(&self, list: List) -> Option<CachePage> {
        known(self.ends[usize::from(list.0)].tail)
    }

    /// The page that entered next after `page`.
    pub fn younger(&self, page: CachePage) -> Option<CachePage> {
        known(self.entries[page.0 as usize].younger)
    }

    /// The policy's marks of `page`; 0 for a page that was never marked.
    pub fn marks(&self, page: CachePage) -> u8 {
        self.entries[page.0 as usize].marks
    }

    /// Sets the policy's marks of `page`; they outlive its leaving.
    pub fn set_marks(&mut self, page: CachePage, marks: u8) {
        self.entries[page.0 as usize].marks = marks;
    }

    /// Puts `page`, which is in no list, at the head of `list`.
    pub fn push(&mut self, list: List, page: CachePage) {
        assert_eq!(self.entries[page.0 as usize].list, NOWHERE, "a page is in one list at a time");
        let ends = &mut self.ends[usize::from(list.0)];
        let older = std::mem::replace(&mut ends.head, page.0);
        ends.length += 1;
        match known(older) {
            Some(older) => self.entries[older.0 as usize].younger = page.0,
            None => ends.tail = page.0,
        }
        let entry = &mut self.entries[page.0 as usize];
        (entry.younger, entry.older, entry.list, entry.epoch) = (NONE, older, list, self.epoch);
        self.entered_in_epoch += 1;
        if self.entered_in_epoch * EPOCHS_PER_MEMORY >= self.total() {
            (self.epoch, self.entered_in_epoch) = (self.epoch.wrapping_add(1), 0);
        }
    }

    /// Takes `page` out of its list; gives that list, if it was in one.
    pub fn remove(&mut self, page: CachePage) -> Option<List> {
        let Entry { younger, older, list, .. } = self.entries[page.0 as usize];
        let ends = self.ends.get_mut(usize::from(list.0))?;
        ends.length -= 1;
        match known(younger) {
            Some(younger) => self.entries[younger.0 as usize].older = older,
            None => ends.head = older,
        }
        match known(older) {
            Some(older) => self.entries[older.0 as usize].younger = younger,
            None => ends.tail = younger,
        }
        let entry = &mut self.entries[page.0 as usize];
        (entry.younger, entry.older, entry.list) = (NONE, NONE, NOWHERE);
        Some(list)
    }

    /// Takes the page at the end of `list`.
    pub fn pop(&mut self, list: List) -> Option<CachePage> {
        let page = self.tail(list)?;
        self.remove(page);
        Some(page)
    }

    /// Moves `page` to the head of `list`, from wherever it is.
    pub fn renew(&mut self, list: List, page: CachePage) {
        self.remove(page);
        self.push(list, page);
    }

    /// Takes `page`, which is in a list, as a victim. With it come, as far as there is room, its neighbours in the
    /// same list and the same aligned group of `group` numbers. A neighbour comes if it entered before `page` or
    /// nearly at the same time, and is `cold` by its marks. Only what joins `page` without a gap is a neighbour: with
    /// a gap it would be another request.
    pub fn take(&mut self, page: CachePage, group: u32, cold: impl Fn(u8) -> bool, victims: &mut Victims<'_>) {
        let Entry { list, epoch, .. } = self.entries[page.0 as usize];
        self.remove(page);
        victims.push(page);
        let start = page.0 - page.0 % group;
        let end = (start + group).min(self.numbers());
        let leaves_too =
            |entry: &Entry| entry.list == list && younger_by(entry.epoch, epoch) <= EPOCHS_NEAR && cold(entry.marks);
        self.take_while(page.0 + 1..end, leaves_too, victims);
        self.take_while((start..page.0).rev(), leaves_too, victims);
    }

    /// Takes `pages` up to the first one that stays.
    fn take_while(
        &mut self,
        pages: impl Iterator<Item = u32>,
        leaves: impl Fn(&Entry) -> bool,
        victims: &mut Victims<'_>,
    ) {
        for page in pages {
            if victims.is_full() || !leaves(&self.entries[page as usize]) {
                break;
            }
            self.remove(CachePage(page));
            victims.push(CachePage(page));
        }
    }
}

/// By how many epochs `one` is later than `other`.
fn younger_by(one: u16, other: u16) -> i16 {
    one.wrapping_sub(other).cast_signed()
}

fn known(page: u32) -> Option<CachePage> {
    (page != NONE).then_some(CachePage(page))
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;
    use crate::replacement::LEAVING_MAX;

    const PAGES: u32 = 40;

    /// What may be done to a page.
    #[derive(Clone, Copy, Debug)]
    enum Step {
        Push(u8, u32),
        Remove(u32),
        Pop(u8),
        Renew(u8, u32),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (0_u8..3, 0..PAGES).prop_map(|(list, page)| Step::Push(list, page)),
            (0..PAGES).prop_map(Step::Remove),
            (0_u8..3).prop_map(Step::Pop),
            (0_u8..3, 0..PAGES).prop_map(|(list, page)| Step::Renew(list, page)),
        ]
    }

    /// The pages of `list`, the oldest first.
    fn pages(lists: &Lists<3>, list: List) -> Vec<u32> {
        std::iter::successors(lists.tail(list), |page| lists.younger(*page)).map(|page| page.0).collect()
    }

    fn remove(model: &mut [VecDeque<u32>; 3], page: u32) {
        model.iter_mut().for_each(|list| list.retain(|other| *other != page));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn lists_are_queues(steps in proptest::collection::vec(step(), 0..200)) {
            let mut lists = Lists::<3>::new(PAGES / 2);
            lists.grow(PAGES);
            let mut model: [VecDeque<u32>; 3] = Default::default();
            for step in steps {
                match step {
                    Step::Push(list, page) => {
                        if lists.list_of(CachePage(page)).is_none() {
                            lists.push(List(list), CachePage(page));
                            model[usize::from(list)].push_back(page);
                        }
                    }
                    Step::Remove(page) => {
                        let held = model.iter().position(|list| list.contains(&page));
                        prop_assert_eq!(lists.remove(CachePage(page)), held.map(|list| List(list as u8)));
                        remove(&mut model, page);
                    }
                    Step::Pop(list) => {
                        let expected = model[usize::from(list)].pop_front().map(CachePage);
                        prop_assert_eq!(lists.pop(List(list)), expected);
                    }
                    Step::Renew(list, page) => {
                        lists.renew(List(list), CachePage(page));
                        remove(&mut model, page);
                        model[usize::from(list)].push_back(page);
                    }
                }
                for (index, expected) in model.iter().enumerate() {
                    prop_assert_eq!(expected, &pages(&lists, List(index as u8)));
                    prop_assert_eq!(lists.length(List(index as u8)) as usize, expected.len());
                }
            }
            prop_assert_eq!(lists.total() as usize, model.iter().map(VecDeque::len).sum::<usize>());
        }
    }

    #[test]
    #[should_panic(expected = "one list at a time")]
    fn a_page_is_not_listed_twice() {
        let mut lists = Lists::<2>::new(1);
        lists.push(List(0), CachePage(0));
        lists.push(List(1), CachePage(0));
    }

    #[test]
    fn marks_outlive_lists() {
        let mut lists = Lists::<1>::new(1);
        lists.push(List(0), CachePage(0));
        lists.set_marks(CachePage(0), 5);
        lists.pop(List(0));
        assert_eq!(lists.marks(CachePage(0)), 5);
    }

    /// Pages of a fresh list in their order of entering, and the pages that leave with `page` into room for `room`.
    fn taken(entered: &[u32], page: u32, room: usize) -> Vec<u32> {
        let mut lists = Lists::<1>::new(2 * LEAVING_MAX);
        entered.iter().for_each(|page| lists.push(List(0), CachePage(*page)));
        let mut pages = vec![CachePage(0); room];
        let mut victims = Victims::new(&mut pages);
        lists.take(CachePage(page), LEAVING_MAX, |marks| marks == 0, &mut victims);
        let count = victims.count();
        assert_eq!(lists.total() as usize, entered.len() - count);
        pages[..count].iter().map(|page| page.0).collect()
    }

    #[test]
    fn neighbours_of_the_same_time_leave_together() {
        // 256 pages enter; an epoch of a full list has 16.
        let entered: Vec<u32> = (0..256).collect();
        assert_eq!(taken(&entered, 160, 10)[..3], [160, 161, 162]);
        assert!(taken(&entered, 160, 256).iter().all(|page| (128..256).contains(page)), "no further than the group");
        assert!(taken(&entered, 160, 256).len() < 96, "and not those that entered much later");
        assert_eq!(taken(&[1, 2, 3, 5], 2, 1), [2], "no more than there is room for");
        assert_eq!(taken(&[127, 128], 127, 4), [127], "neighbours are of one group");
    }

    #[test]
    fn what_is_marked_or_apart_stays() {
        let mut lists = Lists::<2>::new(8);
        [2, 3, 4, 6].iter().for_each(|page| lists.push(List(0), CachePage(*page)));
        lists.push(List(1), CachePage(1));
        lists.set_marks(CachePage(4), 1);
        let mut pages = [CachePage(0); 8];
        let mut victims = Victims::new(&mut pages);
        lists.take(CachePage(3), LEAVING_MAX, |marks| marks == 0, &mut victims);
        assert_eq!((victims.count(), &pages[..2]), (2, &[CachePage(3), CachePage(2)][..]));
    }

    #[test]
    fn a_page_costs_what_is_said() {
        assert_eq!(Lists::<3>::BYTES_PER_PAGE, 12);
    }
}
