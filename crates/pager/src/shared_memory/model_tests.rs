//! Random schedules of programs that share an object, with the real evictor, memory and views above a model of the
//! kernel: no access may see anything but what was written last, and no thread may wait for ever.

use std::collections::{BTreeSet, VecDeque};
use std::fs::File;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex};

use proptest::prelude::*;
use rustix::fs::{MemfdFlags, SeekFrom, memfd_create, seek};
use spillway_fabric::buffer_pool::BufferPool;
use spillway_sys::mapping::Mapping;
use spillway_sys::userfaultfd::PageError;

use super::evictor::ObjectEvictor;
use super::memory::ObjectMemory;
use super::views::{SharedObjects, View};
use crate::address_space::AddressSpace;
use crate::page_table::PageTable;
use crate::page_table::page_indexes::SpaceId;
use crate::page_table::virtual_page::VirtualPage;
use crate::page_table::volume_pages::PoolPage;
use crate::process::memory::{Event, EvictOutcome, EvictRequest, Evictor, ProgramMemory};
use crate::threads::lock::lock;

const PAGE: u64 = 4096;
const PAGES: u64 = 3;
const PROGRAMS_MAX: usize = 5;
const OBJECT: SpaceId = SpaceId(100);

/// A thread reads a page, or writes `written` to all of it.
#[derive(Clone, Copy, Debug)]
struct Access {
    program: usize,
    page: u64,
    written: Option<u8>,
}

/// What a program did to its mapping. The kernel tells of it; until that is read, the program is changing.
#[derive(Clone, Copy, Debug)]
enum Change {
    Fork { child: usize },
    Move { from: u64, to: u64 },
    Unmap { from: u64 },
}

/// The kernel: the object, and what each program's mapping of it allows.
struct Kernel {
    object: File,
    /// What was written last.
    truth: [u8; PAGES as usize],
    /// Where each program maps the object, if it does.
    mappings: Vec<Option<u64>>,
    protected: BTreeSet<(usize, u64)>,
    changes: Vec<(usize, Change)>,
    waiting: Vec<Access>,
    /// Programs, their addresses, and whether the page is write-protected.
    faults: VecDeque<(usize, u64, bool)>,
    /// Accesses of threads that run while pages leave.
    meanwhile: Vec<Access>,
}

impl Kernel {
    fn content(&self, page: u64) -> Option<u8> {
        let mut content = [0; PAGE as usize];
        (seek(&self.object, SeekFrom::Data(page * PAGE)) == Ok(page * PAGE)).then(|| {
            self.object.read_exact_at(&mut content, page * PAGE).unwrap();
            assert!(content.iter().all(|byte| *byte == content[0]), "half a page");
            content[0]
        })
    }

    fn write(&mut self, page: u64, value: u8) {
        self.object.write_all_at(&[value; PAGE as usize], page * PAGE).unwrap();
    }

    fn access(&mut self, access: Access) {
        let Access { program, page, written } = access;
        let Some(start) = self.mappings[program] else { return };
        let content = self.content(page);
        let is_protected = written.is_some() && self.protected.contains(&(program, page));
        if content.is_none() || is_protected {
            self.waiting.push(access);
            self.faults.push_back((program, start + page * PAGE, content.is_some()));
            return;
        }
        assert_eq!(content, Some(self.truth[page as usize]), "page {page} of program {program}");
        if let Some(value) = written {
            self.write(page, value);
            self.truth[page as usize] = value;
        }
    }

    fn is_changing(&self, program: usize) -> bool {
        self.changes.iter().any(|(changing, _)| *changing == program)
    }

    /// The page at `address` of a program that is not changing.
    fn page_at(&self, program: usize, address: u64) -> Result<u64, PageError> {
        if self.is_changing(program) {
            return Err(PageError::TryAgain);
        }
        let start = self.mappings[program].ok_or(PageError::NotMapped)?;
        Ok((address - start) / PAGE)
    }

    fn wake(&mut self, program: usize, addresses: &Range<u64>) {
        let Some(start) = self.mappings[program] else { return };
        let is_woken =
            |access: &mut Access| access.program == program && addresses.contains(&(start + access.page * PAGE));
        let woken: Vec<Access> = self.waiting.extract_if(.., is_woken).collect();
        woken.into_iter().for_each(|access| self.access(access));
    }
}

/// The memory of one program, as its userfaultfd shows it.
struct Program {
    number: usize,
    kernel: Arc<Mutex<Kernel>>,
}

impl Program {
    fn fill(&self, addresses: &Range<u64>, value: u8) -> Result<u64, PageError> {
        let mut kernel = lock(&self.kernel);
        let page = kernel.page_at(self.number, addresses.start)?;
        if kernel.content(page).is_some() {
            return Err(PageError::Exists);
        }
        kernel.write(page, value);
        kernel.protected.remove(&(self.number, page));
        kernel.wake(self.number, addresses);
        Ok(PAGE)
    }
}

impl ProgramMemory for Program {
    fn copy(&self, at: VirtualPage, source: &Mapping, from: usize, _: usize, _: bool) -> Result<u64, PageError> {
        let mut content = [0];
        source.read(from, &mut content);
        self.fill(&at.range(), content[0])
    }

    fn zero(&self, addresses: Range<u64>) -> Result<u64, PageError> {
        self.fill(&addresses, 0)
    }

    fn protect(&self, addresses: Range<u64>) -> Result<(), PageError> {
        let mut kernel = lock(&self.kernel);
        if let Some(access) = kernel.meanwhile.pop() {
            kernel.access(access);
        }
        for page in VirtualPage::all_in(addresses) {
            let page = kernel.page_at(self.number, page.address())?;
            kernel.protected.insert((self.number, page));
        }
        Ok(())
    }

    fn unprotect(&self, addresses: Range<u64>) -> Result<(), PageError> {
        let mut kernel = lock(&self.kernel);
        let page = kernel.page_at(self.number, addresses.start)?;
        kernel.protected.remove(&(self.number, page));
        kernel.wake(self.number, &addresses);
        Ok(())
    }

    fn wake(&self, addresses: Range<u64>) {
        lock(&self.kernel).wake(self.number, &addresses);
    }

    fn is_changing(&self) -> bool {
        lock(&self.kernel).is_changing(self.number)
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

    fn read_event(&self) -> std::io::Result<Option<Event>> {
        unreachable!("the test tells")
    }

    fn event(&self) -> BorrowedFd<'_> {
        unreachable!("no thread waits for it")
    }
}

/// The pager's side: copies of pages that are away, and the code under test.
struct World {
    kernel: Arc<Mutex<Kernel>>,
    shared: Arc<SharedObjects>,
    object: Arc<AddressSpace>,
    programs: Vec<Arc<AddressSpace>>,
    evictor: ObjectEvictor,
    pool: Arc<BufferPool>,
    copies: [Option<u8>; PAGES as usize],
    left: usize,
}

impl World {
    fn new() -> Self {
        let object = File::from(memfd_create("object", MemfdFlags::CLOEXEC).unwrap());
        object.set_len(PAGES * PAGE).unwrap();
        let shared = Arc::new(SharedObjects::default());
        let memory = ObjectMemory::new(OBJECT, Arc::clone(&shared)).unwrap();
        let pool = BufferPool::unlocked(PAGES as usize, PAGE as usize).unwrap();
        let descriptor = Arc::new(object.try_clone().unwrap());
        let evictor = ObjectEvictor::new(OBJECT, Arc::clone(&shared), descriptor, Arc::clone(&pool), Arc::default());
        let kernel = Kernel {
            object,
            truth: [0; PAGES as usize],
            mappings: Vec::new(),
            protected: BTreeSet::new(),
            changes: Vec::new(),
            waiting: Vec::new(),
            faults: VecDeque::new(),
            meanwhile: Vec::new(),
        };
        let object = AddressSpace::of_object(PageTable::of_object(OBJECT, PAGES * PAGE), Box::new(memory));
        let mut world = Self {
            kernel: Arc::new(Mutex::new(kernel)),
            shared,
            object: Arc::new(object),
            programs: Vec::new(),
            evictor,
            pool,
            copies: [None; PAGES as usize],
            left: 0,
        };
        for start in [10 * PAGE, 20 * PAGE] {
            let program = world.program(Some(start));
            let (space, object) = (Arc::clone(&world.programs[program]), Arc::clone(&world.object));
            world.shared.add([View { space, range: start..start + PAGES * PAGE, object, offset: 0 }]);
        }
        world
    }

    fn program(&mut self, mapping: Option<u64>) -> usize {
        let number = self.programs.len();
        let memory = Program { number, kernel: Arc::clone(&self.kernel) };
        let space = AddressSpace::new(PageTable::new(SpaceId(number as u32)), Box::new(memory), None);
        self.programs.push(Arc::new(space));
        lock(&self.kernel).mappings.push(mapping);
        number
    }

    /// A page that is there and not protected stays; one that left has its copy here.
    fn evict(&mut self, first: u64, count: u64) {
        let pages: Vec<u64> = (first..PAGES.min(first + count)).collect();
        let request =
            |page: &u64| EvictRequest { page: VirtualPage::at(page * PAGE), target: Some(PoolPage(*page as u32)) };
        let requests: Vec<EvictRequest> = pages.iter().map(request).collect();
        let mut outcomes = vec![EvictOutcome::Refused; requests.len()];
        assert!(self.evictor.begin(&requests) && self.evictor.poll(&mut outcomes));
        let kernel = lock(&self.kernel);
        for (page, outcome) in pages.into_iter().zip(outcomes) {
            if !matches!(outcome, EvictOutcome::Moved | EvictOutcome::Zero) {
                continue;
            }
            let mut mapped = (0..kernel.mappings.len()).filter(|program| kernel.mappings[*program].is_some());
            assert!(mapped.all(|program| kernel.protected.contains(&(program, page))), "page {page} can be written");
            assert_eq!(kernel.content(page), None);
            let mut content = [0];
            self.pool.memory().read((page * PAGE) as usize, &mut content);
            self.copies[page as usize] = (outcome == EvictOutcome::Moved).then_some(content[0]);
            self.left += 1;
        }
    }

    /// Answers one fault as the pager does; puts it off while its program is changing.
    fn answer(&mut self) {
        let Some((program, address, is_protected)) = lock(&self.kernel).faults.pop_front() else { return };
        let Some((object, offset)) = self.shared.find(SpaceId(program as u32), address) else {
            let mut kernel = lock(&self.kernel);
            if kernel.is_changing(program) {
                kernel.faults.push_back((program, address, is_protected));
            }
            return;
        };
        let (page, part) = ((offset / PAGE) as usize, offset..offset + PAGE);
        let result = match self.copies[page] {
            Some(value) => {
                self.pool.memory().write(page * PAGE as usize, &[value; PAGE as usize]);
                let place = VirtualPage::at(offset);
                object.memory.copy(place, self.pool.memory(), page * PAGE as usize, PAGE as usize, false)
            }
            None if is_protected => object.memory.unprotect(part.clone()).map(|()| 0),
            None => object.memory.zero(part.clone()),
        };
        match result {
            Ok(0) => {}
            Ok(_) => self.copies[page] = None,
            Err(PageError::TryAgain) => lock(&self.kernel).faults.push_back((program, address, is_protected)),
            Err(_) => object.memory.wake(part),
        }
    }

    fn change(&mut self, program: usize, kind: u8) {
        let mut kernel = lock(&self.kernel);
        let Some(from) = kernel.mappings[program].filter(|_| !kernel.is_changing(program)) else { return };
        let change = match kind {
            0 if self.programs.len() < PROGRAMS_MAX => {
                drop(kernel);
                let child = self.program(None);
                kernel = lock(&self.kernel);
                Change::Fork { child }
            }
            0 | 1 => {
                let to = if from == 10 * PAGE { 40 * PAGE } else { 10 * PAGE };
                kernel.mappings[program] = Some(to);
                Change::Move { from, to }
            }
            _ => {
                kernel.mappings[program] = None;
                kernel.waiting.retain(|access| access.program != program);
                Change::Unmap { from }
            }
        };
        kernel.changes.push((program, change));
    }

    /// The pager reads what changed first; then the program goes on.
    fn tell(&mut self) {
        let mut kernel = lock(&self.kernel);
        let Some(&(program, change)) = kernel.changes.first() else { return };
        let length = PAGES * PAGE;
        let space = &self.programs[program];
        if let Change::Fork { child } = change {
            kernel.mappings[child] = kernel.mappings[program];
            let inherited = kernel.protected.iter().filter(|(of, _)| *of == program).map(|(_, page)| (child, *page));
            let inherited: Vec<_> = inherited.collect();
            kernel.protected.extend(inherited);
        }
        drop(kernel);
        match change {
            Change::Fork { child } => self.shared.forked(space.id, &self.programs[child]),
            Change::Move { from, to } => self.shared.moved(space, from, to, length),
            Change::Unmap { from } => self.shared.unmapped(space, &(from..from + length)),
        }
        let mut kernel = lock(&self.kernel);
        kernel.changes.remove(0);
        // Threads that were on their way to the old place find the new one.
        kernel.wake(program, &(0..u64::MAX));
    }

    /// Everything is told and answered.
    fn end(&mut self) {
        for _ in 0..PROGRAMS_MAX {
            self.tell();
        }
        for program in 0..self.programs.len() {
            (0..PAGES).for_each(|page| lock(&self.kernel).access(Access { program, page, written: None }));
        }
        while !lock(&self.kernel).faults.is_empty() {
            self.answer();
        }
        let kernel = lock(&self.kernel);
        assert!(kernel.waiting.is_empty(), "{:?} wait for ever", kernel.waiting);
    }
}

/// What happens next: kind, program, page, value.
type Happening = (u8, usize, u64, u8);

fn play(happenings: &[Happening]) -> World {
    let mut world = World::new();
    for &(kind, program, page, value) in happenings {
        let program = program % world.programs.len();
        let access = |written| Access { program, page, written };
        match kind {
            0..=3 => world.evict(page, 1 + u64::from(value % 2)),
            4..=5 => lock(&world.kernel).access(access(None)),
            6..=8 => lock(&world.kernel).access(access(Some(value))),
            9..=10 => lock(&world.kernel).meanwhile.push(access(Some(value))),
            11 => world.change(program, value % 8),
            12..=13 => world.tell(),
            _ => world.answer(),
        }
    }
    world.end();
    world
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn every_access_sees_what_was_written_last(
        happenings in proptest::collection::vec((0_u8..20, 0..PROGRAMS_MAX, 0..PAGES, any::<u8>()), 0..200)
    ) {
        play(&happenings);
    }
}

/// The schedules reach what they are about.
#[test]
fn pages_leave_and_come_back_in_the_model() {
    // Two writes and an eviction, with a write on its way; then a fork, whose child reads.
    let happenings = [(6, 0, 1, 77), (15, 0, 0, 0), (9, 1, 1, 88), (0, 0, 1, 0), (11, 0, 0, 0), (12, 0, 0, 0)];
    let world = play(&happenings);
    let kernel = lock(&world.kernel);
    assert_eq!((world.left, world.programs.len(), kernel.content(1)), (1, 3, Some(88)));
}
