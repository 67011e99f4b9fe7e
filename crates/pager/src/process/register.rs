//! What of a program may be paged: mappings are registered whole, probed, and looked through.

use std::collections::HashSet;
use std::ops::Range;
use std::time::Instant;

use spillway_fabric::units::PAGE_SIZE_BYTES;
use spillway_stub::protocol::EvictorState;
use spillway_stub::seat::Seat;
use spillway_sys::pagemap::{Categories, Query};

use crate::address_space::AddressSpace;
use crate::limits::{BATCH_PAGES, REGISTER_INTERVAL, REGISTER_REST_TIMES, REGISTERED_AT_ONCE_MAX};
use crate::mappings::maps;
use crate::mappings::maps::Span;
use crate::page_table::PageTable;
use crate::page_table::ranges::Ranges;
use crate::page_table::virtual_page::VirtualPage;
use crate::process::proc_files::Process;
use crate::process::{Survey, TrackedProcess};

impl Survey {
    pub(super) fn register_all(&mut self, now: Instant) {
        // By more than what may be on its way out: the fault threads fill nothing then.
        let budget = &self.shared.budget;
        let is_exceeded = budget.resident_pages() - budget.limit_pages() > BATCH_PAGES as i64;
        let mut tracked = std::mem::take(&mut self.tracked);
        let programs = tracked.len() as u32;
        let rest_times = is_exceeded.then_some(REGISTER_REST_TIMES.saturating_mul(programs));
        let is_due = |tracked: &&mut TrackedProcess| tracked.register_pace.is_due(rest_times, REGISTER_INTERVAL, now);
        for tracked in tracked.iter_mut().filter(is_due) {
            self.look_for_mappings(tracked);
        }
        self.tracked = tracked;
    }

    /// Of one program, whenever that was done last.
    pub(super) fn register_at_once(&mut self, space: &AddressSpace) {
        let mut tracked = std::mem::take(&mut self.tracked);
        for tracked in tracked.iter_mut().filter(|tracked| tracked.space.id == space.id) {
            self.look_for_mappings(tracked);
        }
        self.tracked = tracked;
    }

    fn look_for_mappings(&mut self, tracked: &mut TrackedProcess) {
        let begin = Instant::now();
        self.register(tracked);
        tracked.register_pace.ended(begin, Instant::now());
    }

    fn register(&mut self, tracked: &mut TrackedProcess) {
        if tracked.whole.is_some() || is_evictor_settling(tracked.seat.as_ref()) {
            return;
        }
        let Some(process) = &tracked.process else { return };
        let Ok(text) = process.maps() else { return };
        let (mut is_complete, mut new_mappings) = (true, 0);
        let evictors = tracked.space.evictors_ranges();
        let spans =
            pageable(&text, &tracked.excluded, evictors.into_iter().chain(left_alone(&mut tracked.left_alone, &text)));
        tracked.prepared.retain(|mapping| spans.iter().any(|span| span.has_whole(mapping)));
        for span in &spans {
            // Once a look is enough.
            let mut prepared = Some(&mut tracked.prepared);
            for mapping in &span.mappings {
                if new_mappings == REGISTERED_AT_ONCE_MAX {
                    is_complete = false;
                    break;
                }
                match self.register_mapping(&tracked.space, process, mapping, span, &mut prepared) {
                    Registered::Before => {}
                    Registered::Now => new_mappings += 1,
                    Registered::Not => is_complete = false,
                }
            }
        }
        if is_complete {
            tracked.space.lock().page_table.scanned();
        }
    }

    /// Registers one mapping with the span that it is in, and tells the policy of its pages. Events of the program
    /// that come meanwhile are read later, and so are younger than what is found here.
    fn register_mapping(
        &mut self,
        space: &AddressSpace,
        process: &Process,
        range: &Range<u64>,
        span: &Span,
        prepared: &mut Option<&mut HashSet<Range<u64>>>,
    ) -> Registered {
        let mut state = space.lock();
        if state.batch || !self.shared.apply_events(space, &mut state) {
            return Registered::Not;
        }
        let was_surveyed = state.page_table.surveyed.contain(range);
        if was_surveyed && !state.page_table.is_unscanned() {
            return Registered::Before;
        }
        let may_be_registered = |part: &Range<u64>| !matches!(space.memory.covers(part), Ok(false));
        state.page_table.forget_strays(range, may_be_registered, &mut self.shared.page_indexes());
        let present = Query {
            all_of: Categories::PRESENT,
            none_of: Categories::FILE,
            report: Categories::PRESENT,
            ..Query::default()
        };
        // Of what was only read nothing need leave.
        let own = Query { none_of: Categories::FILE | Categories::ZERO, ..present };
        let may_be_prepared = span.has_whole(range) || was_surveyed;
        let (mut start, mut is_probed) = (range.start, false);
        while start < range.end {
            let query = if may_be_prepared || is_probed { &present } else { &own };
            let Ok(scan) = process.pagemap.scan(start..range.end, query, &mut self.regions) else {
                return Registered::Not;
            };
            let regions = &self.regions[..scan.regions];
            if !is_probed && !regions.is_empty() {
                if !note_if_registered(space, &mut state.page_table, span, prepared, range) {
                    return Registered::Not;
                }
                is_probed = true;
                // What was touched before it was registered raised no fault, and may be where there was nothing yet.
                start = range.start;
                continue;
            }
            let page_indexes = &mut self.shared.page_indexes();
            for region in regions {
                VirtualPage::all_in(region.start..region.end)
                    .for_each(|page| state.page_table.found(page, page_indexes));
            }
            start = scan.end.max(start + PAGE_SIZE_BYTES as u64);
        }
        if was_surveyed || !is_probed { Registered::Before } else { Registered::Now }
    }
}

/// What became of a mapping in one look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Registered {
    /// It was registered, or has no pages yet.
    Before,
    /// It is now.
    Now,
    /// It is to be tried again.
    Not,
}

/// Whether an evictor was given a seat and has not said yet where it has mapped that, and where its staging area is:
/// they may come into a hole of what would be registered just now. The evictor would wait for a page of them,
/// which no thread gives it while its batch is under way (rules 7 and 14).
fn is_evictor_settling(seat: Option<&Seat>) -> bool {
    seat.is_some_and(|seat| matches!(seat.state(), EvictorState::Absent | EvictorState::Starting))
}

/// What is left to the program, as far as it is still mapped: another mapping in its place may be paged again.
fn left_alone(all: &mut Ranges, maps: &[u8]) -> Vec<Range<u64>> {
    if !all.is_empty() {
        let mut left = Ranges::default();
        for mapped in maps::parse(maps) {
            all.within(&mapped.range).into_iter().for_each(|part| left.insert(part));
        }
        *all = left;
    }
    all.iter().collect()
}

/// What of a program may be paged by its maps, but for what is ours in it (rule 7), to which an evictor adds its seat
/// and its staging area.
fn pageable(maps: &[u8], own: &[Range<u64>], evictors: impl IntoIterator<Item = Range<u64>>) -> Vec<Span> {
    let excluded: Vec<Range<u64>> = own.iter().cloned().chain(evictors).collect();
    maps::spans(&maps::parse(maps), &excluded)
}

/// Registers `range`, and notes it only once that is proved: what is noted is moved, and what is moved without being
/// registered is lost (rule 1).
fn note_if_registered(
    space: &AddressSpace,
    page_table: &mut PageTable,
    span: &Span,
    prepared: &mut Option<&mut HashSet<Range<u64>>>,
    range: &Range<u64>,
) -> bool {
    let is_proved = is_registered(space, page_table, span, prepared, range);
    if is_proved {
        page_table.registered.insert(range.clone());
        page_table.surveyed.insert(range.clone());
    }
    is_proved
}

/// Registers `span`, or `range` alone where the span has memory of another kind in it, and proves that one registered
/// mapping covers all of `range` (rule 1): what the maps told may have changed since. Nothing becomes registered
/// while the program changes its mappings, or the end of what was not registered when a change began would be told
/// among those of others.
fn is_registered(
    space: &AddressSpace,
    page_table: &PageTable,
    span: &Span,
    prepared: &mut Option<&mut HashSet<Range<u64>>>,
    range: &Range<u64>,
) -> bool {
    let memory = &space.memory;
    if memory.is_changing() {
        return false;
    }
    // Once its span was registered in this look: a walk of all mappings of that for each of them would take the square
    // of their number.
    if prepared.is_none() && matches!(memory.covers(range), Ok(true)) {
        return true;
    }
    if memory.register(span.range.clone()).is_ok() {
        if let Some(prepared) = prepared.take() {
            prepare(space, page_table, span, prepared);
        }
    } else if memory.register(range.clone()).is_err() {
        return false;
    }
    matches!(memory.covers(range), Ok(true))
}

/// Prepares what was registered just now for pages.
///
/// The kernel does that with a mapping before it fills its first page, also with zeroes, and before it says whether
/// it could (`find_vma_and_prepare_anon` in mm/userfaultfd.c); without us writes alone would do it. A program that
/// protects a part of a mapping (mprotect(2)) makes three of it: if two of them are prepared apart, the three are
/// never one again, and the program can neither move nor grow them as one. So mappings are prepared before that, and
/// parts beside protected memory by writes alone.
fn prepare(space: &AddressSpace, page_table: &PageTable, span: &Span, prepared: &mut HashSet<Range<u64>>) {
    for whole in span.wholes.iter().filter(|whole| !page_table.surveyed.contain(whole)) {
        if !prepared.contains(whole) && space.memory.covers(whole).is_ok() {
            prepared.insert(whole.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::BorrowedFd;
    use std::sync::{Arc, Mutex};

    use spillway_stub::protocol::{Hello, HelloKind};
    use spillway_sys::mapping::Mapping;
    use spillway_sys::userfaultfd::PageError;

    use super::*;
    use crate::page_table::page_indexes::SpaceId;
    use crate::process::greeting::own_ranges;
    use crate::process::memory::{Event, ProgramMemory};
    use crate::threads::lock::lock;

    const HELLO: Hello = Hello {
        kind: HelloKind::Program,
        process: 1,
        attempt: 0,
        status: 0,
        token: 0,
        start_evictor: 0x3100,
        library_start: 0,
        library_end: 0,
        cell: 0,
        head: 0,
    };

    const PAGE: u64 = PAGE_SIZE_BYTES as u64;
    /// What is registered at once, holes too.
    const SPAN: Range<u64> = 0x1000_0000..0x1000_0000 + 64 * PAGE;
    /// What the maps told of in it; another one may have taken a part of its place since.
    const MAPPING: Range<u64> = SPAN.start..SPAN.start + 16 * PAGE;

    /// What the kernel says of a program's memory, and what it was asked to do.
    struct Kernel {
        is_changing: bool,
        has_one_kind: bool,
        covers: fn() -> Result<bool, PageError>,
        asked: Asked,
    }

    #[derive(Clone, Default)]
    struct Asked {
        registered: Arc<Mutex<Vec<Range<u64>>>>,
        probed: Arc<Mutex<Vec<Range<u64>>>>,
    }

    impl Kernel {
        fn new(covers: fn() -> Result<bool, PageError>) -> Self {
            Self { is_changing: false, has_one_kind: true, covers, asked: Asked::default() }
        }
    }

    impl ProgramMemory for Kernel {
        fn register(&self, range: Range<u64>) -> Result<(), PageError> {
            let is_refused = range == SPAN && !self.has_one_kind;
            lock(&self.asked.registered).push(range);
            if is_refused { Err(PageError::NotMapped) } else { Ok(()) }
        }

        fn unregister(&self, _: Range<u64>) -> Result<(), PageError> {
            unreachable!("nothing is left to the program")
        }

        fn covers(&self, range: &Range<u64>) -> Result<bool, PageError> {
            lock(&self.asked.probed).push(range.clone());
            (self.covers)()
        }

        fn is_changing(&self) -> bool {
            self.is_changing
        }

        fn copy(&self, _: VirtualPage, _: &Mapping, _: usize, _: usize, _: bool) -> Result<u64, PageError> {
            unreachable!("nothing is filled before it is registered")
        }

        fn zero(&self, _: Range<u64>) -> Result<u64, PageError> {
            unreachable!("a page of zeroes in a hole would be seen by the program")
        }

        fn unprotect(&self, _: Range<u64>) -> Result<(), PageError> {
            unreachable!("nothing is protected yet")
        }

        fn wake(&self, _: Range<u64>) {
            unreachable!("no thread waits yet")
        }

        fn poison(&self, _: Range<u64>) -> Result<u64, PageError> {
            unreachable!("nothing is lost yet")
        }

        fn mark(&self, _: Range<u64>, _: bool) -> Result<(), PageError> {
            unreachable!("that is about the head")
        }

        fn read_event(&self) -> std::io::Result<Option<Event>> {
            unreachable!("the fault thread does that")
        }

        fn event(&self) -> BorrowedFd<'_> {
            unreachable!("the fault thread waits for that")
        }
    }

    /// Looks at [`MAPPING`] once: whether it was taken for registered, and what was asked for that. What is noted
    /// must be the same.
    fn look(kernel: Kernel) -> (bool, Asked) {
        look_again(kernel, false)
    }

    /// As [`look`]; its span may have been registered in the same look.
    fn look_again(kernel: Kernel, is_span_registered: bool) -> (bool, Asked) {
        let asked = kernel.asked.clone();
        let space = AddressSpace::new(PageTable::new(SpaceId(1)), Box::new(kernel), None);
        let span = Span { range: SPAN, mappings: vec![MAPPING], wholes: Vec::new() };
        let mut state = space.lock();
        let (mut none, mut prepared) = (HashSet::new(), None);
        if !is_span_registered {
            prepared = Some(&mut none);
        }
        let is_noted = note_if_registered(&space, &mut state.page_table, &span, &mut prepared, &MAPPING);
        let page_table = &state.page_table;
        let noted: Vec<Range<u64>> = page_table.registered.iter().chain(page_table.surveyed.iter()).collect();
        assert_eq!(noted, if is_noted { vec![MAPPING; 2] } else { Vec::new() });
        (is_noted, asked)
    }

    #[test]
    fn nothing_is_registered_while_an_evictor_maps_its_seat() {
        assert!(!is_evictor_settling(None));
        assert!(is_evictor_settling(Some(&Seat::create().unwrap())), "it has not said where");
    }

    #[test]
    fn nothing_of_ours_may_be_paged() {
        // Rule 7: by address, since what the library has without a file has no name either, and so has the staging
        // area.
        let hello = Hello { library_start: 0x3000, library_end: 0x6000, head: 0x9000, ..HELLO };
        let own = own_ranges(&hello);
        assert_eq!(own, [0x3000..0x6000, 0x9000..0xc000]);
        let line = |range: &str, rest: &str| format!("{range} {rest}\n");
        let maps = [
            line("1000-2000", "rw-p 00000000 00:00 0 [heap]"),
            line("3000-5000", "r-xp 00000000 fe:01 7 /tmp/libspillway.so"),
            line("5000-6000", "rw-p 00000000 00:00 0"),
            line("7000-8000", "rw-p 00000000 00:00 0"),
            line("9000-c000", "r--p 00000000 00:01 8 /memfd:spillway-head (deleted)"),
            line("e000-f000", "rw-p 00000000 00:00 0"),
        ];
        let spans = pageable(maps.concat().as_bytes(), &own, Some(0xe000..0xf000));
        let mappings: Vec<Range<u64>> = spans.iter().flat_map(|span| span.mappings.clone()).collect();
        assert_eq!(mappings, [0x1000..0x2000, 0x7000..0x8000]);
        let touches = |one: &Range<u64>, other: &Range<u64>| one.start < other.end && other.start < one.end;
        let staging = 0xe000..0xf000;
        assert!(
            own.iter().chain([&staging]).all(|own| spans.iter().all(|span| !touches(own, &span.range))),
            "{spans:x?}"
        );
    }

    #[test]
    fn only_what_a_probe_finds_in_one_registered_mapping_is_noted() {
        // Rule 1.
        let (is_noted, asked) = look(Kernel::new(|| Ok(true)));
        assert!(is_noted);
        assert_eq!(*lock(&asked.registered), [SPAN]);
        assert_eq!(*lock(&asked.probed), [MAPPING], "all of it, and nothing beside it");
        let answers: [fn() -> Result<bool, PageError>; 4] = [
            || Ok(false),
            || Err(PageError::TryAgain),
            || Err(PageError::Gone),
            || Err(PageError::Kernel(std::io::Error::from_raw_os_error(22))),
        ];
        for answer in answers {
            assert!(!look(Kernel::new(answer)).0, "{:?} was taken for a proof", answer());
        }
    }

    #[test]
    fn a_mapping_that_is_registered_alone_is_probed_too() {
        // Rule 1.
        for is_covered in [true, false] {
            let covers: fn() -> Result<bool, PageError> = if is_covered { || Ok(true) } else { || Ok(false) };
            let (is_noted, asked) = look(Kernel { has_one_kind: false, ..Kernel::new(covers) });
            assert_eq!(is_noted, is_covered);
            assert_eq!((&*lock(&asked.registered), &*lock(&asked.probed)), (&vec![SPAN, MAPPING], &vec![MAPPING]));
        }
    }

    #[test]
    fn a_span_is_registered_once_for_all_of_its_mappings() {
        let (is_noted, asked) = look_again(Kernel::new(|| Ok(true)), true);
        assert!(is_noted && lock(&asked.registered).is_empty());
        assert_eq!(*lock(&asked.probed), [MAPPING], "rule 1");
    }

    #[test]
    fn nothing_is_registered_while_the_program_changes_its_mappings() {
        // Rule 1: the probe would say that all is well.
        let (is_noted, asked) = look(Kernel { is_changing: true, ..Kernel::new(|| Ok(true)) });
        assert!(!is_noted && lock(&asked.registered).is_empty());
    }
}
