//! Random schedules of programs, steps and changes against a plain model of what the kernel does with a shared object.
//! No access may see anything but what was written last, and none may wait for ever.

use proptest::prelude::*;

use super::{Change, Fault, ObjectPage, Reach, SharedObject, Standing, Step, Ticket};

const PAGES: usize = 3;

/// A mapping, as the kernel has it.
#[derive(Clone, Debug)]
struct Mapping {
    is_registered: bool,
    present: [bool; PAGES],
    protected: [bool; PAGES],
}

/// An access that waits for its page.
#[derive(Clone, Copy, Debug)]
struct Access {
    mapping: usize,
    page: usize,
    written: Option<u8>,
}

/// A step that takes time: how far it is.
#[derive(Clone, Copy, Debug)]
struct UnderWay {
    step: Step,
    /// Mappings that were protected so far.
    mappings: usize,
    /// Its effect is there, and was not told yet; whether it succeeded.
    outcome: Option<bool>,
}

struct World {
    object: SharedObject,
    /// What was written last.
    truth: [u8; PAGES],
    /// What the object has; none: a hole.
    content: [Option<u8>; PAGES],
    copies: [Option<u8>; PAGES],
    is_lost: [bool; PAGES],
    mappings: Vec<Option<Mapping>>,
    under_way: Vec<UnderWay>,
    waiting: Vec<Access>,
    changes: Vec<(Ticket, Change, usize)>,
    /// How many pages left.
    punched: usize,
    /// Page table entries that are dropped lose their protection.
    loses_markers: bool,
}

fn number(page: usize) -> ObjectPage {
    ObjectPage(page as u32)
}

fn index(page: ObjectPage) -> usize {
    page.0 as usize
}

impl World {
    fn new(loses_markers: bool) -> Self {
        let mut world = Self {
            object: SharedObject::new(),
            truth: [0; PAGES],
            content: [None; PAGES],
            copies: [None; PAGES],
            is_lost: [false; PAGES],
            mappings: Vec::new(),
            under_way: Vec::new(),
            waiting: Vec::new(),
            changes: Vec::new(),
            punched: 0,
            loses_markers,
        };
        world.map(true);
        world.map(true);
        world
    }

    fn map(&mut self, is_registered: bool) {
        let mapping = Mapping { is_registered, present: [false; PAGES], protected: [false; PAGES] };
        self.mappings.push(Some(mapping));
    }

    fn mapping(&mut self, number: usize) -> &mut Mapping {
        self.mappings[number].as_mut().expect("a mapping that is there")
    }

    /// A program reads or writes; what waits is tried again whenever the page is woken.
    fn access(&mut self, access: Access) {
        let Access { mapping: number_of, page, written } = access;
        let Some(mapping) = self.mappings[number_of].clone() else { return };
        if self.is_lost[page] && self.content[page].is_none() {
            assert!(mapping.is_registered, "a hole of a lost page is read without a userfaultfd");
            return;
        }
        let fault = match self.content[page] {
            _ if !mapping.is_registered => None,
            None => Some(Fault::Missing),
            Some(_) if !mapping.present[page] => Some(Fault::Minor),
            Some(_) if written.is_some() && mapping.protected[page] => Some(Fault::Protected),
            Some(_) => None,
        };
        if let Some(fault) = fault {
            self.waiting.push(access);
            let steps = self.object.fault(number(page), fault);
            self.take(steps, Some(number_of));
            return;
        }
        // An unregistered mapping fills a hole with zeroes.
        let seen = *self.content[page].get_or_insert(0);
        assert_eq!(seen, self.truth[page], "page {page} by mapping {number_of}");
        if let Some(value) = written {
            (self.content[page], self.truth[page]) = (Some(value), value);
        }
    }

    fn wake(&mut self, page: usize) {
        let woken: Vec<Access> = self.waiting.extract_if(.., |access| access.page == page).collect();
        woken.into_iter().for_each(|access| self.access(access));
    }

    /// Does what takes no time, in order, and keeps the rest for later.
    fn take(&mut self, steps: Vec<Step>, faulting: Option<usize>) {
        let mut woken = Vec::new();
        for step in steps {
            match step {
                Step::Protect(_) | Step::Copy(_) | Step::Punch(_) | Step::Fetch(_) => {
                    self.under_way.push(UnderWay { step, mappings: 0, outcome: None });
                }
                Step::Unprotect(page) => {
                    self.mappings.iter_mut().flatten().for_each(|mapping| mapping.protected[index(page)] = false);
                    woken.push(index(page));
                }
                Step::Zero(page) => {
                    let page = index(page);
                    assert!(self.content[page].is_none() && self.truth[page] == 0, "zeroes in place of page {page}");
                    self.content[page] = Some(0);
                    self.mapping(faulting.expect("a fault")).present[page] = true;
                    woken.push(page);
                }
                Step::Map(page) => {
                    let mapping = self.mapping(faulting.expect("a fault"));
                    mapping.present[index(page)] = true;
                    mapping.protected[index(page)] = false;
                    woken.push(index(page));
                }
                Step::Poison(page) => {
                    assert!(self.is_lost[index(page)], "{page:?} can be had");
                    self.waiting.retain(|access| access.page != index(page));
                }
                Step::Admit(ticket) => self.admit(ticket),
                Step::Refuse(ticket) => {
                    assert!(self.is_lost.contains(&true));
                    self.changes.retain(|(waiting, ..)| *waiting != ticket);
                }
            }
        }
        woken.into_iter().for_each(|page| self.wake(page));
    }

    fn admit(&mut self, ticket: Ticket) {
        let place = self.changes.iter().position(|(waiting, ..)| *waiting == ticket).expect("a change that waits");
        let (_, change, mapping) = self.changes.remove(place);
        match change {
            Change::MappingComes => self.map(true),
            Change::MappingGoesOrMoves => {
                self.mappings[mapping] = None;
                self.waiting.retain(|access| access.mapping != mapping);
            }
            Change::EntriesDropped => {
                let loses_markers = self.loses_markers;
                if let Some(mapping) = &mut self.mappings[mapping] {
                    mapping.present = [false; PAGES];
                    mapping.protected = mapping.protected.map(|is_protected| is_protected && !loses_markers);
                }
            }
            Change::Reached(_) => self.map(false),
        }
    }

    fn ask(&mut self, change: Change, mapping: usize) {
        let (ticket, steps) = self.object.ask(change);
        self.changes.push((ticket, change, mapping));
        self.take(steps, None);
    }

    /// One thing more of a step that is under way: of its effect, or its report.
    fn go_on(&mut self, place: usize, succeeds: bool) {
        let UnderWay { step, mappings, outcome } = self.under_way[place];
        if let Some(is_done) = outcome {
            self.under_way.remove(place);
            let steps = match step {
                Step::Protect(page) => self.object.protected(page, is_done),
                Step::Copy(page) => self.object.copied(page, is_done),
                Step::Punch(page) => self.object.punched(page, is_done),
                Step::Fetch(page) => self.object.came(page, is_done),
                _ => unreachable!("takes no time"),
            };
            self.take(steps, None);
            return;
        }
        let mut outcome = Some(succeeds);
        match step {
            // One mapping after the other.
            Step::Protect(page) if succeeds && mappings < self.mappings.len() => {
                if let Some(mapping) = &mut self.mappings[mappings] {
                    assert!(mapping.is_registered, "{page:?} cannot be protected there");
                    mapping.protected[index(page)] = true;
                }
                self.under_way[place].mappings += 1;
                outcome = None;
            }
            Step::Copy(page) => {
                // A hole cannot be copied.
                self.copies[index(page)] = self.content[index(page)].filter(|_| succeeds);
                outcome = Some(self.copies[index(page)].is_some());
            }
            Step::Punch(page) if succeeds => {
                let page = index(page);
                assert_eq!(self.copies[page], Some(self.truth[page]), "page {page} is lost");
                self.content[page] = None;
                self.punched += 1;
                self.mappings.iter_mut().flatten().for_each(|mapping| mapping.present[page] = false);
            }
            Step::Fetch(page) => {
                let page = index(page);
                assert_eq!(self.content[page], None, "page {page} is there");
                self.is_lost[page] = !succeeds;
                self.content[page] = self.copies[page].filter(|_| succeeds);
            }
            _ => {}
        }
        self.under_way[place].outcome = outcome;
    }

    /// All steps come to their end, and nothing waits any more.
    fn end(&mut self) {
        while !self.under_way.is_empty() {
            self.go_on(0, true);
        }
        assert!(self.waiting.is_empty(), "{:?} wait for ever", self.waiting);
        assert!(self.changes.is_empty(), "{:?} wait for ever", self.changes);
        for page in 0..PAGES {
            for mapping in 0..self.mappings.len() {
                self.access(Access { mapping, page, written: None });
                while !self.under_way.is_empty() {
                    self.go_on(0, true);
                }
            }
        }
        assert!(self.waiting.is_empty(), "{:?} wait for ever", self.waiting);
        let is_local = matches!(self.object.standing(), Standing::Local(_));
        let is_reached = self.mappings.iter().flatten().any(|mapping| !mapping.is_registered);
        assert!(is_local || !is_reached, "pages may leave that a hole would replace");
    }
}

/// What happens next: kind, mapping or step, page, value.
type Happening = (u8, usize, usize, u8);

fn play(happenings: &[Happening], loses_markers: bool, may_lose: bool) -> World {
    let mut world = World::new(loses_markers);
    for &(kind, which, page, value) in happenings {
        let mapping = which % world.mappings.len();
        match kind {
            0..=3 => {
                let steps = world.object.evict(number(page)).into_iter().collect();
                world.take(steps, None);
            }
            4..=5 => world.access(Access { mapping, page, written: None }),
            6..=8 => world.access(Access { mapping, page, written: Some(value) }),
            9 => world.ask(Change::MappingComes, mapping),
            10 => world.ask(Change::EntriesDropped, mapping),
            11 if mapping > 0 => world.ask(Change::MappingGoesOrMoves, mapping),
            12 if value < 40 => world.ask(Change::Reached(Reach::Unregistered), mapping),
            _ if !world.under_way.is_empty() => {
                let place = which % world.under_way.len();
                let is_fetch = matches!(world.under_way[place].step, Step::Fetch(_));
                world.go_on(place, value >= 20 || (is_fetch && !may_lose));
            }
            _ => {}
        }
    }
    world.end();
    world
}

fn happenings() -> impl Strategy<Value = Vec<Happening>> {
    proptest::collection::vec((0_u8..32, 0_usize..8, 0..PAGES, any::<u8>()), 0..200)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn every_access_sees_what_was_written_last(happenings in happenings(), loses_markers in any::<bool>()) {
        play(&happenings, loses_markers, false);
    }

    #[test]
    fn a_copy_that_is_lost_is_never_read_as_zeroes(happenings in happenings(), loses_markers in any::<bool>()) {
        play(&happenings, loses_markers, true);
    }
}

/// The schedules reach what they are about.
#[test]
fn pages_leave_and_come_back_in_the_model() {
    let mut happenings = vec![(6, 0, 1, 77), (0, 0, 1, 0)];
    happenings.extend([(20, 0, 0, 255); 9]);
    let world = play(&happenings, false, false);
    assert_eq!((world.punched, world.truth[1], world.content[1]), (1, 77, Some(77)));
}
