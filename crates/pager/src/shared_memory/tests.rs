//! Views against a map of single pages, and what is done through them to a memory that remembers it.

use std::collections::BTreeMap;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};

use proptest::prelude::*;
use spillway_sys::mapping::Mapping;
use spillway_sys::userfaultfd::PageError;

use super::memory::ObjectMemory;
use super::views::{SharedObjects, View};
use crate::address_space::AddressSpace;
use crate::page_table::PageTable;
use crate::page_table::page_indexes::SpaceId;
use crate::page_table::virtual_page::VirtualPage;
use crate::process::memory::{Event, ProgramMemory};
use crate::threads::lock::lock;

const PAGE: u64 = 4096;

/// What was done to a program's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Done {
    Zeroed(Range<u64>),
    Unprotected(Range<u64>),
    Woken(Range<u64>),
}

type Log = Arc<Mutex<Vec<Done>>>;

/// A program's memory that answers a fill with `fill`.
struct Program {
    fill: fn(&Range<u64>) -> Result<u64, PageError>,
    log: Log,
}

impl ProgramMemory for Program {
    fn copy(&self, _: VirtualPage, _: &Mapping, _: usize, _: usize, _: bool) -> Result<u64, PageError> {
        unreachable!("zeroes do here")
    }

    fn zero(&self, range: Range<u64>) -> Result<u64, PageError> {
        let result = (self.fill)(&range);
        lock(&self.log).push(Done::Zeroed(range));
        result
    }

    fn unprotect(&self, range: Range<u64>) -> Result<(), PageError> {
        lock(&self.log).push(Done::Unprotected(range));
        Ok(())
    }

    fn wake(&self, range: Range<u64>) {
        lock(&self.log).push(Done::Woken(range));
    }

    fn poison(&self, _: Range<u64>) -> Result<u64, PageError> {
        unreachable!("nothing is lost")
    }

    fn register(&self, _: Range<u64>) -> Result<(), PageError> {
        unreachable!("views are registered")
    }

    fn unregister(&self, _: Range<u64>) -> Result<(), PageError> {
        unreachable!("views stay registered")
    }

    fn mark(&self, _: Range<u64>, _: bool) -> Result<(), PageError> {
        unreachable!("that is about the head")
    }

    fn covers(&self, _: &Range<u64>) -> Result<bool, PageError> {
        unreachable!("views are known")
    }

    fn is_changing(&self) -> bool {
        false
    }

    fn read_event(&self) -> std::io::Result<Option<Event>> {
        Ok(None)
    }

    fn event(&self) -> BorrowedFd<'_> {
        unreachable!("no thread waits for it")
    }
}

fn program(number: u32, fill: fn(&Range<u64>) -> Result<u64, PageError>) -> (Arc<AddressSpace>, Log) {
    let log = Log::default();
    let memory = Program { fill, log: Arc::clone(&log) };
    (Arc::new(AddressSpace::new(PageTable::new(SpaceId(number)), Box::new(memory), None)), log)
}

fn fills(range: &Range<u64>) -> Result<u64, PageError> {
    Ok(range.end - range.start)
}

const OBJECT: SpaceId = SpaceId(100);

/// An object of 16 pages without a view.
fn object(shared: &Arc<SharedObjects>) -> Arc<AddressSpace> {
    let memory = ObjectMemory::new(OBJECT, Arc::clone(shared)).unwrap();
    Arc::new(AddressSpace::of_object(PageTable::of_object(OBJECT, 16 * PAGE), Box::new(memory)))
}

fn view(space: &Arc<AddressSpace>, object: &Arc<AddressSpace>, start: u64, pages: u64, offset: u64) -> View {
    let range = start * PAGE..(start + pages) * PAGE;
    View { space: Arc::clone(space), range, object: Arc::clone(object), offset: offset * PAGE }
}

fn pages(range: Range<u64>) -> Range<u64> {
    range.start * PAGE..range.end * PAGE
}

#[test]
fn a_page_comes_through_one_view_and_the_others_are_told() {
    let shared = Arc::new(SharedObjects::default());
    let object = object(&shared);
    let (gone, gones) = program(1, |_| Err(PageError::Gone));
    let (one, ones) = program(2, fills);
    let (other, others) = program(3, fills);
    // The last has it twice, and only a part the second time.
    shared.add([view(&gone, &object, 10, 16, 0), view(&one, &object, 20, 16, 0), view(&other, &object, 40, 16, 0)]);
    shared.add([view(&other, &object, 80, 2, 4)]);
    assert_eq!(object.memory.zero(pages(4..5)).unwrap(), PAGE);
    assert_eq!(*lock(&gones), [Done::Zeroed(pages(14..15)), Done::Unprotected(pages(14..15))]);
    assert_eq!(*lock(&ones), [Done::Zeroed(pages(24..25))]);
    assert_eq!(*lock(&others), [Done::Unprotected(pages(44..45)), Done::Unprotected(pages(80..81))]);
}

#[test]
fn what_no_view_has_all_of_is_refused_as_more_than_one_mapping() {
    let shared = Arc::new(SharedObjects::default());
    let object = object(&shared);
    let (one, _) = program(1, fills);
    shared.add([view(&one, &object, 10, 4, 0), view(&one, &object, 20, 12, 4)]);
    assert!(matches!(object.memory.zero(pages(2..6)), Err(PageError::NotMapped)), "the caller halves it");
    assert_eq!(object.memory.zero(pages(2..4)).unwrap(), 2 * PAGE);
    assert!(matches!(object.memory.zero(pages(20..21)), Err(PageError::NotMapped)));
}

#[test]
fn a_program_that_changes_its_mappings_does_not_keep_others_from_a_page() {
    let shared = Arc::new(SharedObjects::default());
    let object = object(&shared);
    let (changing, _) = program(1, |_| Err(PageError::TryAgain));
    let (other, _) = program(2, fills);
    shared.add([view(&changing, &object, 10, 16, 0)]);
    assert!(matches!(object.memory.zero(pages(1..2)), Err(PageError::TryAgain)));
    shared.add([view(&other, &object, 10, 16, 0)]);
    assert_eq!(object.memory.zero(pages(1..2)).unwrap(), PAGE);
}

#[test]
fn threads_that_wait_in_what_goes_or_moves_look_again() {
    let shared = Arc::new(SharedObjects::default());
    let object = object(&shared);
    let (one, log) = program(1, fills);
    shared.add([view(&one, &object, 10, 16, 0)]);
    shared.unmapped(&one, &pages(12..13));
    assert_eq!(*lock(&log), [Done::Woken(pages(10..26))]);
    assert!(shared.find(one.id, 12 * PAGE).is_none() && shared.find(one.id, 11 * PAGE).is_some());
    shared.gone(one.id);
    assert!(shared.is_empty());
}

/// One change of one of three programs.
#[derive(Clone, Debug)]
enum Change {
    Map { program: u32, start: u64, pages: u64, offset: u64 },
    Unmap { program: u32, start: u64, pages: u64 },
    Move { program: u32, from: u64, to: u64, pages: u64 },
    Fork { program: u32 },
}

fn change() -> impl Strategy<Value = Change> {
    let program = 0_u32..3;
    prop_oneof![
        (program.clone(), 0_u64..64, 1_u64..9, 0_u64..8).prop_map(|(program, start, pages, offset)| Change::Map {
            program,
            start,
            pages,
            offset
        }),
        (program.clone(), 0_u64..64, 1_u64..17).prop_map(|(program, start, pages)| Change::Unmap {
            program,
            start,
            pages
        }),
        (program.clone(), 0_u64..32, 32_u64..64, 1_u64..17).prop_map(|(program, from, to, pages)| Change::Move {
            program,
            from,
            to,
            pages
        }),
        program.prop_map(|program| Change::Fork { program }),
    ]
}

proptest! {
    /// Whatever is mapped, unmapped, moved and forked: each address leads to the page that it had in a map of single
    /// pages, and to none where there is none.
    #[test]
    fn views_are_what_programs_map(changes in proptest::collection::vec(change(), 1..40)) {
        let shared = Arc::new(SharedObjects::default());
        let object = object(&shared);
        let mut programs: Vec<Arc<AddressSpace>> = (0..3).map(|number| program(number, fills).0).collect();
        let mut model: Vec<BTreeMap<u64, u64>> = vec![BTreeMap::new(); 3];
        for change in changes {
            match change {
                Change::Map { program, start, pages, offset } => {
                    let (space, map) = (&programs[program as usize], &mut model[program as usize]);
                    // The kernel tells of what was there.
                    shared.unmapped(space, &(start * PAGE..(start + pages) * PAGE));
                    shared.add([view(space, &object, start, pages, offset)]);
                    map.extend((0..pages).map(|page| (start + page, offset + page)));
                }
                Change::Unmap { program, start, pages } => {
                    shared.unmapped(&programs[program as usize], &(start * PAGE..(start + pages) * PAGE));
                    model[program as usize].retain(|page, _| !(start..start + pages).contains(page));
                }
                Change::Move { program, from, to, pages } => {
                    let pages = pages.min(to - from);
                    shared.moved(&programs[program as usize], from * PAGE, to * PAGE, pages * PAGE);
                    let map = &mut model[program as usize];
                    let moving: Vec<(u64, u64)> = map.range(from..from + pages).map(|(page, at)| (*page, *at)).collect();
                    map.retain(|page, _| !(from..from + pages).contains(page) && !(to..to + pages).contains(page));
                    map.extend(moving.into_iter().map(|(page, at)| (page - from + to, at)));
                }
                Change::Fork { program: parent } => {
                    let (child, _) = program(programs.len() as u32, fills);
                    shared.forked(programs[parent as usize].id, &child);
                    programs.push(child);
                    model.push(model[parent as usize].clone());
                }
            }
            for (space, map) in programs.iter().zip(&model) {
                for page in 0..96 {
                    let found = shared.find(space.id, page * PAGE + 8).map(|(_, offset)| offset);
                    prop_assert_eq!(found, map.get(&page).map(|at| at * PAGE + 8));
                }
            }
            let mapping = programs.iter().zip(&model).filter(|(_, map)| !map.is_empty());
            let mapping: Vec<u32> = mapping.map(|(space, _)| space.id.0).collect();
            let told: Vec<u32> = shared.programs_of(OBJECT).iter().map(|space| space.id.0).collect();
            prop_assert_eq!(told, mapping);
        }
    }
}
