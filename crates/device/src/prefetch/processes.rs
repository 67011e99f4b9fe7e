//! The processes that fault: which of their pages are in swap, and advice to the kernel about them.
//!
//! The kernel tells page by page what is in swap (`/proc/PID/pagemap`), which is exact: a page that is not mapped is
//! not in swap, so no advice reaches beyond a mapping, and no list of mappings has to be kept fresh. Memory of shared
//! objects is not told of there, and not prefetched. A mapping that goes between the look and the advice makes the
//! kernel stop at its range; the ranges behind it are given again.

use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};

use rustix::process::{Pid, PidfdFlags};
use spillway_policy::prefetch::PageNumber;
use spillway_sys::mapping::PAGE_SIZE_BYTES;
use spillway_sys::pagemap::Pagemap;
use spillway_sys::process_advice::{RANGES_MAX, will_need};

use super::decide::SwappedPages;
use crate::limits::PROCESSES_MAX;

/// Pages that are looked at in one read: the entries of a page's worth.
const BLOCK_PAGES: u64 = 512;

/// Why no advice could be given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The process has ended.
    Ended,
    /// A range, for instance because it is not mapped any more.
    Range,
}

/// A process that faulted.
#[derive(Debug)]
struct Process {
    descriptor: OwnedFd,
    pagemap: Pagemap,
}

impl Process {
    fn open(process: u32) -> io::Result<Self> {
        let pid = i32::try_from(process).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        let descriptor = rustix::process::pidfd_open(pid, PidfdFlags::empty())?;
        Ok(Self { descriptor, pagemap: Pagemap::open(process)? })
    }
}

/// See the module text.
#[derive(Debug, Default)]
pub struct Processes {
    known: HashMap<u32, Process>,
    ranges: Vec<Range<u64>>,
}

impl Processes {
    /// The pages of a process, as they are when each is first looked at.
    pub fn pages(&mut self, process: u32) -> ProcessPages<'_> {
        ProcessPages { processes: self, process, blocks: Vec::new() }
    }

    /// Asks the kernel for `pages`; calls `refused` for what it does not take.
    pub fn advise(&mut self, process: u32, pages: &[PageNumber], mut refused: impl FnMut(Refusal)) {
        self.ranges.clear();
        collect_ranges(pages, &mut self.ranges);
        let Some(known) = self.known.get(&process) else { return refused(Refusal::Ended) };
        let mut rest = &self.ranges[..];
        while !rest.is_empty() {
            let now = &rest[..rest.len().min(RANGES_MAX)];
            match will_need(known.descriptor.as_fd(), now) {
                Ok(bytes) => {
                    let taken = count_taken(now, bytes);
                    if taken < now.len() {
                        refused(Refusal::Range);
                    }
                    rest = &rest[(taken + 1).min(now.len()).max(taken)..];
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error()) => {
                    self.known.remove(&process);
                    return refused(Refusal::Ended);
                }
                Err(_) => {
                    refused(Refusal::Range);
                    rest = &rest[1..];
                }
            }
        }
    }

    fn process(&mut self, process: u32) -> io::Result<&Process> {
        if !self.known.contains_key(&process) {
            if self.known.len() >= PROCESSES_MAX {
                // Those that still live are opened again.
                self.known.clear();
            }
            self.known.insert(process, Process::open(process)?);
        }
        self.known.get(&process).ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))
    }

    /// What of a block is in swap; nothing of a process that has ended.
    fn read(&mut self, process: u32, first: u64) -> Box<[bool]> {
        let mut swapped = vec![false; BLOCK_PAGES as usize].into_boxed_slice();
        for _ in 0..2 {
            let Ok(known) = self.process(process) else { break };
            match known.pagemap.read_swapped(first, &mut swapped) {
                Ok(count) if count > 0 => break,
                // It may have become another program (execve) since it was opened.
                _ => drop(self.known.remove(&process)),
            }
        }
        swapped
    }
}

/// Pages of one process, read in blocks.
#[derive(Debug)]
pub struct ProcessPages<'a> {
    processes: &'a mut Processes,
    process: u32,
    blocks: Vec<(u64, Box<[bool]>)>,
}

impl SwappedPages for ProcessPages<'_> {
    fn is_swapped(&mut self, page: PageNumber) -> bool {
        let first = page.0 - page.0 % BLOCK_PAGES;
        let place = (page.0 % BLOCK_PAGES) as usize;
        if let Some((_, swapped)) = self.blocks.iter().find(|(known, _)| *known == first) {
            return swapped[place];
        }
        let swapped = self.processes.read(self.process, first);
        let is_swapped = swapped[place];
        self.blocks.push((first, swapped));
        is_swapped
    }
}

/// Adds the ranges of addresses of `pages`; neighbours make one.
fn collect_ranges(pages: &[PageNumber], ranges: &mut Vec<Range<u64>>) {
    for page in pages {
        let start = page.0 * PAGE_SIZE_BYTES as u64;
        let end = start + PAGE_SIZE_BYTES as u64;
        match ranges.last_mut() {
            Some(last) if last.end == start => last.end = end,
            _ => ranges.push(start..end),
        }
    }
}

/// How many ranges make up the first `bytes`.
fn count_taken(ranges: &[Range<u64>], bytes: u64) -> usize {
    let mut left = bytes;
    let fits = |range: &&Range<u64>| {
        let length = range.end - range.start;
        let fits = length <= left;
        left = left.saturating_sub(length);
        fits
    };
    ranges.iter().take_while(fits).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_one_range() {
        let mut ranges = Vec::new();
        collect_ranges(&[1, 2, 3, 9, 8].map(PageNumber), &mut ranges);
        assert_eq!(ranges, [4096..16384, 36864..40960, 32768..36864]);
        assert_eq!([0, 4096, 12288, 16384, 20480].map(|bytes| count_taken(&ranges, bytes)), [0, 0, 1, 2, 3]);
    }

    #[test]
    fn this_process_has_no_page_in_swap_at_address_zero() {
        let mut processes = Processes::default();
        let mut pages = processes.pages(std::process::id());
        assert!(!pages.is_swapped(PageNumber(0)) && !pages.is_swapped(PageNumber(1)));
        assert_eq!(pages.blocks.len(), 1, "both are in one block");
    }

    #[test]
    fn a_process_that_has_ended_is_told() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let (mut processes, id) = (Processes::default(), child.id());
        assert!(!processes.pages(id).is_swapped(PageNumber(0)));
        child.kill().unwrap();
        child.wait().unwrap();
        let mut refusals = Vec::new();
        processes.advise(id, &[PageNumber(1)], |refusal| refusals.push(refusal));
        assert_eq!(refusals, [Refusal::Ended]);
        assert!(!processes.pages(id).is_swapped(PageNumber(0)));
    }

    #[test]
    fn ranges_that_are_not_mapped_are_left_out() {
        let mut processes = Processes::default();
        let id = std::process::id();
        processes.pages(id).is_swapped(PageNumber(0));
        let memory = spillway_sys::mapping::Mapping::anonymous(8 * PAGE_SIZE_BYTES).unwrap();
        let first = (memory.address() / PAGE_SIZE_BYTES) as u64;
        let pages = [first, 0, first + 2, 1, first + 4].map(PageNumber);
        let mut refusals = Vec::new();
        processes.advise(id, &pages, |refusal| refusals.push(refusal));
        assert_eq!(refusals, [Refusal::Range; 2]);
    }
}
