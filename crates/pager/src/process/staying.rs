//! Counts memory of programs that stays local, by kind ([`crate::mappings::staying_kinds`]). What is a program's own
//! counts in the budget, so where that is much the budget is not held, and the user is told which kinds there are;
//! again whenever it has doubled.
//!
//! `/proc/PID/smaps` walks the page tables of all memory, 46 ns a page. Here only mappings that stay are walked, by
//! PAGEMAP_SCAN, 24 to 38 ns a page that is there. The survey thread does that, never a fault thread, in steps of a
//! millisecond with fifty times that as a rest ([`STAYING_LOOK_COST_MAX`]). Only smaps tells which memory is locked. It
//! is read of programs that have such memory, where that does not take too long ([`COMMON_WALK_MAX`]).

use std::io;
use std::ops::Range;
use std::time::{Duration, Instant};

use spillway_fabric::units::PAGE_SIZE_BYTES;
use spillway_sys::memfd::Memfd;
use spillway_sys::pagemap::{Categories, Query, Region};

use crate::limits::{
    COMMON_WALK_MAX, COMMON_WALK_NS_PER_PAGE, STAYING_LOOK_COST_MAX, STAYING_LOOK_INTERVAL, STAYING_SCAN_PAGES_MAX,
    STAYING_STEP,
};
use crate::mappings::staying_kinds::{
    DeviceNumber, MemoryDevices, StayingBytes, StayingKind, StayingMapping, staying_mappings,
};
use crate::mappings::staying_tally::{StayingProgram, StayingTally};
use crate::process::fork_shared_pages::cpu_time;
use crate::process::unpaged::untold_bytes_max;
use crate::process::{Survey, TrackedProcess};
use crate::threads::lock::lock;

/// Pages that are in memory, and whether they are an object's or anonymous.
const PRESENT: Query = Query {
    all_of: Categories::PRESENT,
    any_of: Categories(0),
    none_of: Categories::ZERO,
    report: Categories::FILE,
    pages_max: STAYING_SCAN_PAGES_MAX,
};

/// Kinds of which less is no news in a message.
const TOLD_BYTES_MIN: u64 = 1 << 20;

/// How far the counting is.
#[derive(Debug)]
pub(super) struct StayingLook {
    /// Of the file system that shared memory lies in.
    kernels_device: DeviceNumber,
    /// When a round begins that no excess asks for.
    next: Option<Instant>,
    /// Until when the last step's cost is rested.
    rests_until: Option<Instant>,
    round: Option<Round>,
}

/// One round over all programs.
#[derive(Debug)]
struct Round {
    tally: StayingTally,
    /// Processes that are still to be looked at.
    processes: Vec<u32>,
    current: Option<Current>,
}

/// The program that is looked at.
#[derive(Debug)]
struct Current {
    program: StayingProgram,
    /// Those that are still to be scanned, the next one last.
    mappings: Vec<StayingMapping>,
    /// Up to where the next one was.
    place: u64,
}

impl StayingLook {
    /// Nothing was counted yet.
    pub(super) fn new() -> io::Result<Self> {
        let kernels_device = Memfd::create("spillway-device", PAGE_SIZE_BYTES as u64)?.device_number()?;
        Ok(Self { kernels_device, next: None, rests_until: None, round: None })
    }

    /// Of the file system that shared memory lies in.
    pub(super) fn kernels_device(&self) -> DeviceNumber {
        self.kernels_device
    }
}

impl Survey {
    /// Makes a step of the counting, if one is due.
    pub(super) fn count_staying(&mut self, now: Instant) {
        // A deep recursion is over soon: one that passes the budget is looked at at once.
        let is_asked_for =
            self.staying.round.is_some() || self.shared.budget.excess_pages() > pages_of(self.most_bytes());
        let due = if is_asked_for { self.staying.rests_until } else { self.staying.next.max(self.staying.rests_until) };
        if due.is_some_and(|due| now < due) {
            return;
        }
        let mut round = self.staying.round.take().unwrap_or_else(|| Round {
            tally: StayingTally::default(),
            processes: self.tracked.iter().filter_map(|one| Some(one.process.as_ref()?.number())).collect(),
            current: None,
        });
        let begin = cpu_time();
        let mut is_over = false;
        while !is_over && cpu_time().saturating_sub(begin) < STAYING_STEP {
            is_over = !self.count_some(&mut round);
        }
        let rest = cpu_time().saturating_sub(begin) * STAYING_LOOK_COST_MAX;
        self.staying.rests_until = Some(now + rest);
        if is_over {
            self.staying.next = Some(now + STAYING_LOOK_INTERVAL);
            let total = round.tally.total();
            self.shared.budget.set_staying(total.budgeted_bytes());
            lock(&self.shared.staying).ended(total);
        } else {
            self.staying.round = Some(round);
        }
    }

    /// What of it stays without being told.
    fn most_bytes(&self) -> u64 {
        untold_bytes_max(&self.shared.budget)
    }

    /// Scans once; false: the round is over.
    fn count_some(&mut self, round: &mut Round) -> bool {
        let Some(current) = &mut round.current else {
            let Some(number) = round.processes.pop() else { return false };
            round.current = self.begin_program(number, &mut round.tally);
            return true;
        };
        let Some(mapping) = current.mappings.last() else {
            let program = std::mem::take(&mut current.program);
            round.current = None;
            self.end_program(program);
            return true;
        };
        let place = current.place.max(mapping.range.start);
        let process = tracked_of(&self.tracked, current.program.process).and_then(|one| one.process.as_ref());
        let scan = process
            .and_then(|process| process.pagemap.scan(place..mapping.range.end, &PRESENT, &mut self.regions).ok());
        // One that has ended has nothing more.
        let Some(scan) = scan else {
            round.current = None;
            return true;
        };
        for &Region { start, end, categories } in &self.regions[..scan.regions] {
            round.tally.add(&mut current.program, mapping, &(start..end), categories.contains(Categories::FILE));
        }
        current.place = scan.end;
        if scan.end >= mapping.range.end || scan.end <= place {
            current.mappings.pop();
            current.place = 0;
        }
        true
    }

    fn begin_program(&self, number: u32, tally: &mut StayingTally) -> Option<Current> {
        let tracked = tracked_of(&self.tracked, number)?;
        let process = tracked.process.as_ref()?;
        let ours: Vec<Range<u64>> = tracked.excluded.iter().cloned().chain(tracked.space.evictors_ranges()).collect();
        let devices = MemoryDevices::of(self.staying.kernels_device, &process.mounts().ok()?);
        let mut mappings = staying_mappings(&process.maps().ok()?, &devices, &ours);
        mappings.retain(|mapping| mapping.object.is_none_or(|(id, _)| !self.is_paged_object(id)));
        mappings.reverse();
        let mut program = StayingProgram { process: number, name: process.name()?, bytes: StayingBytes::default() };
        let walk = Duration::from_nanos(tracked.pages.unsigned_abs() * COMMON_WALK_NS_PER_PAGE);
        tally.add_bytes(&mut program, StayingKind::Locked, process.locked_bytes(walk <= COMMON_WALK_MAX));
        tally.add_bytes(&mut program, StayingKind::Merged, process.merged_bytes());
        Some(Current { program, mappings, place: 0 })
    }

    fn end_program(&mut self, program: StayingProgram) {
        let most_bytes = self.most_bytes();
        let bytes = program.bytes.budgeted_bytes();
        self.shared.counters.staying_bytes_peak.set_max(bytes);
        let is_much = bytes > most_bytes && self.shared.budget.excess_pages() > pages_of(most_bytes);
        let tracked = self.tracked.iter_mut().find(|one| is_process(one, program.process));
        if let Some(tracked) = tracked.filter(|tracked| is_much && bytes >= tracked.staying_told_bytes * 2) {
            tracked.staying_told_bytes = bytes;
            self.shared.fail(advice(&program, self.shared.budget.bytes()));
        }
        lock(&self.shared.staying).saw(program);
    }
}

fn is_process(tracked: &TrackedProcess, number: u32) -> bool {
    tracked.process.as_ref().is_some_and(|process| process.number() == number)
}

fn tracked_of(all: &[TrackedProcess], number: u32) -> Option<&TrackedProcess> {
    all.iter().find(|one| is_process(one, number))
}

fn pages_of(bytes: u64) -> i64 {
    (bytes / PAGE_SIZE_BYTES as u64).cast_signed()
}

fn advice(program: &StayingProgram, budget_bytes: u64) -> String {
    format!(
        "process {} ({}) has {} MiB that the pager cannot page, so that the budget of {} MiB is not held: {}; --via swap pages all but locked memory",
        program.process,
        program.name,
        program.bytes.budgeted_bytes() >> 20,
        budget_bytes >> 20,
        program.bytes.describe(TOLD_BYTES_MIN, StayingKind::is_in_budget),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_names_the_kinds_that_matter() {
        let bytes = StayingBytes {
            no_access_bytes: 187 << 20,
            main_stack_bytes: 4096,
            locked_bytes: 2 << 20,
            memfd_bytes: 500 << 20,
            ..StayingBytes::default()
        };
        let program = StayingProgram { process: 77, name: "java".to_owned(), bytes };
        let text = advice(&program, 32 << 20);
        for part in [
            "process 77 (java)",
            "189 MiB",
            "budget of 32 MiB",
            "187 MiB of memory that may not be written",
            "2 MiB of locked",
            "--via swap",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains("stack") && !text.contains("memfd"), "{text}");
    }
}
