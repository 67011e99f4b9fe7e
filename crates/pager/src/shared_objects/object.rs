//! One shared object, see the text of the parent module.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use std::collections::{BTreeMap, VecDeque};

use crate::shared_objects::page::{Fault, ObjectPage, PageState};

/// Why an object is not paged: it can be reached by a way on which a hole reads as zeroes, or a write is not seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// A descriptor of it is open: read(2) finds zeroes in a hole, and write(2), ftruncate(2), fallocate(2) and seals
    /// change it with no event.
    Descriptor,
    /// A mapping that is not registered, in the run.
    Unregistered,
    /// A process outside of the run maps it.
    Outside,
    /// A device or the kernel may hold pages of it (io_uring, VFIO, `O_DIRECT`): write protection does not stop these.
    Pinned,
    /// A system call that is not told of.
    UnseenCall,
    /// Its pages are huge (hugetlbfs).
    HugePages,
    /// A page of it could not be read back.
    Lost,
}

/// Whether an object is paged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Pages may leave.
    Eligible,
    /// All pages come back, and none leaves.
    Returning(Reach),
    /// The object is whole, and stays so.
    Local(Reach),
}

/// What a program is about to do with an object; it waits until the change is [admitted](Step::Admit).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// One more mapping, registered from its first moment: of a forked child, or by `mremap` of no length.
    MappingComes,
    /// A mapping ends, or moves.
    MappingGoesOrMoves,
    /// Page table entries were dropped. `UFFD_EVENT_REMOVE` does not tell `MADV_DONTNEED`, which keeps the content,
    /// from `MADV_REMOVE`, which has to be asked about as [`Reach::UnseenCall`].
    EntriesDropped,
    /// The object can be reached by another way.
    Reached(Reach),
}

/// Names a change that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// What is to be done next. The steps up to [`Step::Fetch`] take time, and a call says how each went. The others are
/// done, in order, before the next call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Write-protect the page in all mappings, then [`SharedObject::protected`].
    Protect(ObjectPage),
    /// Copy the page out, through a mapping that a program has, then [`SharedObject::copied`]. A mapping of the
    /// pager's own would fill a hole with zeroes.
    Copy(ObjectPage),
    /// Take the page out of the object, then [`SharedObject::punched`].
    Punch(ObjectPage),
    /// Put the page into the object, then [`SharedObject::came`].
    Fetch(ObjectPage),
    /// Take the write protection of the page away in all mappings, and wake what waits for it.
    Unprotect(ObjectPage),
    /// Put a page of zeroes into the object: no program has written to it so far.
    Zero(ObjectPage),
    /// Map the page that the object has (`UFFDIO_CONTINUE`), writable: if the page was leaving, it stays.
    Map(ObjectPage),
    /// The access fails (`UFFDIO_POISON`): nothing has the page any more.
    Poison(ObjectPage),
    /// The change may go on.
    Admit(Ticket),
    /// The change must not happen: its call fails, or its process is killed. A page is lost.
    Refuse(Ticket),
}

/// The decisions on one object. Faults of programs are answered at any time; changes one after the other.
#[derive(Clone, Debug)]
pub struct SharedObject {
    standing: Standing,
    /// Those that are not simply here.
    pages: BTreeMap<ObjectPage, PageState>,
    /// Changes that wait, in order.
    changes: VecDeque<(Ticket, Change)>,
    next_ticket: u64,
}

impl Default for SharedObject {
    fn default() -> Self {
        Self::new()
    }
}

impl SharedObject {
    /// An object of which every mapping is registered, and that nothing else reaches.
    pub fn new() -> Self {
        Self { standing: Standing::Eligible, pages: BTreeMap::new(), changes: VecDeque::new(), next_ticket: 0 }
    }

    /// Whether it is paged.
    pub fn standing(&self) -> Standing {
        self.standing
    }

    /// Whether the object has every page that a program wrote.
    pub fn is_whole(&self) -> bool {
        !self.pages.values().any(|state| state.may_be_hole())
    }

    /// How many pages are not local.
    pub fn away_pages(&self) -> usize {
        self.pages.values().filter(|state| **state == PageState::Away).count()
    }

    /// `page` is to leave; nothing if it cannot now.
    pub fn evict(&mut self, page: ObjectPage) -> Option<Step> {
        let can_leave =
            self.standing == Standing::Eligible && self.changes.is_empty() && self.state(page) == PageState::Here;
        can_leave.then(|| {
            self.set(page, PageState::Protecting { is_disturbed: false });
            Step::Protect(page)
        })
    }

    /// [`Step::Protect`] is done in all mappings, or failed.
    pub fn protected(&mut self, page: ObjectPage, is_done: bool) -> Vec<Step> {
        let PageState::Protecting { is_disturbed } = self.state(page) else {
            panic!("{page:?} is not being protected")
        };
        if is_done && !is_disturbed && self.may_leave() {
            self.set(page, PageState::Copying { is_disturbed: false });
            return vec![Step::Copy(page)];
        }
        self.stay(page)
    }

    /// [`Step::Copy`] is done, and the copy kept, or failed.
    pub fn copied(&mut self, page: ObjectPage, is_done: bool) -> Vec<Step> {
        let PageState::Copying { is_disturbed } = self.state(page) else { panic!("{page:?} is not being copied") };
        if is_done && !is_disturbed && self.may_leave() {
            self.set(page, PageState::Punching { is_wanted: false });
            return vec![Step::Punch(page)];
        }
        self.stay(page)
    }

    /// [`Step::Punch`] is done, or the kernel refused it and the object has the page still.
    pub fn punched(&mut self, page: ObjectPage, is_done: bool) -> Vec<Step> {
        let PageState::Punching { is_wanted } = self.state(page) else { panic!("{page:?} is not being punched") };
        if !is_done {
            return self.stay(page);
        }
        self.set(page, if is_wanted { PageState::Coming } else { PageState::Away });
        let mut steps: Vec<Step> = is_wanted.then_some(Step::Fetch(page)).into_iter().collect();
        steps.extend(self.settle());
        steps
    }

    /// [`Step::Fetch`] is done, or no copy could be read.
    pub fn came(&mut self, page: ObjectPage, is_done: bool) -> Vec<Step> {
        assert_eq!(self.state(page), PageState::Coming, "{page:?} is not coming");
        if is_done {
            // Mappings that were protected when it left still are.
            return self.stay(page);
        }
        self.set(page, PageState::Lost);
        let mut steps = vec![Step::Poison(page)];
        steps.extend(self.settle());
        steps
    }

    /// A program's access waits.
    pub fn fault(&mut self, page: ObjectPage, fault: Fault) -> Vec<Step> {
        let state = self.state(page);
        match (state, fault) {
            // Woken when the page is here or lost.
            (PageState::Coming, _) => Vec::new(),
            (PageState::Punching { .. }, _) => {
                self.set(page, PageState::Punching { is_wanted: true });
                Vec::new()
            }
            (PageState::Away, _) => {
                self.set(page, PageState::Coming);
                vec![Step::Fetch(page)]
            }
            (PageState::Lost, _) => vec![Step::Poison(page)],
            (PageState::Here, Fault::Missing) => vec![Step::Zero(page)],
            (PageState::Here, Fault::Minor) => vec![Step::Map(page)],
            (PageState::Here, Fault::Protected) => vec![Step::Unprotect(page)],
            // It is used, and may be written once this is answered.
            (PageState::Protecting { .. } | PageState::Copying { .. }, fault) => {
                self.disturb(page);
                match fault {
                    Fault::Missing => vec![Step::Zero(page)],
                    Fault::Minor => vec![Step::Map(page)],
                    // Answered when the step that is under way is over: it may protect the page once more.
                    Fault::Protected => Vec::new(),
                }
            }
        }
    }

    /// A program is about to change how the object is reached. It waits for [`Step::Admit`] with this ticket.
    pub fn ask(&mut self, change: Change) -> (Ticket, Vec<Step>) {
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        self.changes.push_back((ticket, change));
        let leaving: Vec<ObjectPage> = self.pages_that(PageState::is_leaving);
        for page in leaving {
            self.disturb(page);
        }
        if let (Change::Reached(reach), Standing::Eligible) = (change, self.standing) {
            self.standing = Standing::Returning(reach);
        }
        (ticket, self.settle())
    }

    /// Nothing may leave while a change waits.
    fn may_leave(&self) -> bool {
        self.standing == Standing::Eligible && self.changes.is_empty()
    }

    /// `page` is here, and programs may write to it.
    fn stay(&mut self, page: ObjectPage) -> Vec<Step> {
        self.set(page, PageState::Here);
        let mut steps = vec![Step::Unprotect(page)];
        steps.extend(self.settle());
        steps
    }

    /// What is to be brought back, and which changes may go on.
    fn settle(&mut self) -> Vec<Step> {
        let mut steps = Vec::new();
        if self.standing != Standing::Eligible {
            for page in self.pages_that(|state| state == PageState::Away) {
                self.set(page, PageState::Coming);
                steps.push(Step::Fetch(page));
            }
        }
        // Pages that leave are the last to be served by mappings as they are now.
        while let Some(&(ticket, change)) = self.changes.front()
            && !self.pages.values().any(|state| state.is_leaving())
        {
            let is_reached = matches!(change, Change::Reached(_));
            if is_reached && self.pages.values().any(|state| *state == PageState::Coming) {
                break;
            }
            self.changes.pop_front();
            steps.push(if is_reached && !self.is_whole() { Step::Refuse(ticket) } else { Step::Admit(ticket) });
        }
        if let Standing::Returning(reach) = self.standing
            && self.pages.values().all(|state| *state == PageState::Lost)
        {
            self.standing = Standing::Local(if self.pages.is_empty() { reach } else { Reach::Lost });
        }
        steps
    }

    fn pages_that(&self, is_wanted: impl Fn(PageState) -> bool) -> Vec<ObjectPage> {
        self.pages.iter().filter(|(_, state)| is_wanted(**state)).map(|(page, _)| *page).collect()
    }

    fn state(&self, page: ObjectPage) -> PageState {
        self.pages.get(&page).copied().unwrap_or_default()
    }

    fn set(&mut self, page: ObjectPage, state: PageState) {
        if state == PageState::Here {
            self.pages.remove(&page);
        } else {
            self.pages.insert(page, state);
        }
    }

    fn disturb(&mut self, page: ObjectPage) {
        if let Some(state) = self.pages.get_mut(&page) {
            state.disturb();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: ObjectPage = ObjectPage(3);

    /// An object of which one page is away.
    fn with_a_page_away() -> SharedObject {
        let mut object = SharedObject::new();
        assert_eq!(object.evict(PAGE), Some(Step::Protect(PAGE)));
        assert_eq!(object.protected(PAGE, true), [Step::Copy(PAGE)]);
        assert_eq!(object.copied(PAGE, true), [Step::Punch(PAGE)]);
        assert_eq!(object.punched(PAGE, true), []);
        assert!(!object.is_whole() && object.away_pages() == 1);
        object
    }

    #[test]
    fn a_page_leaves_and_comes_back() {
        let mut object = with_a_page_away();
        assert_eq!(object.fault(PAGE, Fault::Missing), [Step::Fetch(PAGE)]);
        assert_eq!(object.fault(PAGE, Fault::Missing), [], "it is on its way");
        assert_eq!(object.came(PAGE, true), [Step::Unprotect(PAGE)]);
        assert!(object.is_whole() && object.standing() == Standing::Eligible);
    }

    #[test]
    fn a_write_while_a_page_leaves_keeps_it() {
        let mut object = SharedObject::new();
        object.evict(PAGE);
        object.protected(PAGE, true);
        assert_eq!(object.fault(PAGE, Fault::Protected), []);
        assert_eq!(object.copied(PAGE, true), [Step::Unprotect(PAGE)]);
        assert!(object.is_whole());
    }

    #[test]
    fn an_object_that_can_be_reached_otherwise_is_whole_first_and_stays_so() {
        let mut object = with_a_page_away();
        let (ticket, steps) = object.ask(Change::Reached(Reach::Outside));
        assert_eq!(steps, [Step::Fetch(PAGE)]);
        assert_eq!(object.standing(), Standing::Returning(Reach::Outside));
        assert_eq!(object.came(PAGE, true), [Step::Unprotect(PAGE), Step::Admit(ticket)]);
        assert_eq!(object.standing(), Standing::Local(Reach::Outside));
        assert_eq!(object.evict(PAGE), None);
        let (again, steps) = object.ask(Change::Reached(Reach::Pinned));
        assert_eq!(steps, [Step::Admit(again)]);
    }

    #[test]
    fn a_forked_child_waits_for_pages_that_leave_and_for_no_other() {
        let mut object = with_a_page_away();
        let other = ObjectPage(4);
        object.evict(other);
        let (ticket, steps) = object.ask(Change::MappingComes);
        assert_eq!(steps, [], "it could write where the page is not protected");
        assert_eq!(object.protected(other, true), [Step::Unprotect(other), Step::Admit(ticket)]);
        assert_eq!((object.away_pages(), object.standing()), (1, Standing::Eligible));
    }

    #[test]
    fn a_lost_page_lets_no_mapping_read_a_hole() {
        let mut object = with_a_page_away();
        let (ticket, _) = object.ask(Change::Reached(Reach::Descriptor));
        assert_eq!(object.came(PAGE, false), [Step::Poison(PAGE), Step::Refuse(ticket)]);
        assert_eq!(object.standing(), Standing::Local(Reach::Lost));
        assert_eq!(object.fault(PAGE, Fault::Missing), [Step::Poison(PAGE)]);
        let (other, steps) = object.ask(Change::Reached(Reach::Outside));
        assert_eq!(steps, [Step::Refuse(other)]);
    }
}
