//! Memory of this process whose pages are taken out of it: what a page that leaves costs at least. A yardstick for
//! measurements, without replacement, page tables, or another process.

use std::io;
use std::ops::Range;

use rustix::mm::{Advice, madvise};

use super::{Features, RegisterMode, Scope, Userfaultfd, Wake};
use crate::mapping::{Mapping, PAGE_SIZE_BYTES};

/// See the module text. Every page is present until it was taken.
#[derive(Debug)]
pub struct LeavingMemory {
    // Dropped first: unmapping waits for its reader.
    userfaultfd: Userfaultfd,
    memory: Mapping,
    staging: Mapping,
}

fn range(memory: &Mapping, first_page: usize, pages: usize) -> Range<u64> {
    let start = (memory.address() + first_page * PAGE_SIZE_BYTES) as u64;
    start..start + (pages * PAGE_SIZE_BYTES) as u64
}

fn advise(memory: &Mapping, advice: Advice) -> io::Result<()> {
    // SAFETY: the range is that of the mapping, whose bytes may change at any time.
    unsafe { madvise(memory.address() as *mut _, memory.length(), advice)? };
    Ok(())
}

impl LeavingMemory {
    /// Memory of `pages` pages that hold something, of which up to `batch_pages` are taken at a time.
    pub fn new(pages: usize, batch_pages: usize) -> io::Result<Self> {
        let memory = Mapping::anonymous(pages * PAGE_SIZE_BYTES)?;
        let staging = Mapping::anonymous(batch_pages * PAGE_SIZE_BYTES)?;
        for memory in [&memory, &staging] {
            // A kernel without huge pages refuses this, and needs it not.
            let _ = advise(memory, Advice::LinuxNoHugepage);
        }
        for page in 0..pages {
            memory.write(page * PAGE_SIZE_BYTES, &[page as u8 | 1; PAGE_SIZE_BYTES]);
        }
        // SAFETY: only ranges of the mappings are given to it.
        let userfaultfd = unsafe { Userfaultfd::create(Scope::Everything) }?;
        userfaultfd.agree(Features::default())?;
        let leaving = Self { userfaultfd, memory, staging };
        let all = range(&leaving.memory, 0, pages);
        leaving.userfaultfd.register(all, RegisterMode::MISSING).map_err(io::Error::other)?;
        Ok(leaving)
    }

    /// Takes the pages from `first` on that fill `target`, at most a batch: moves them in runs of `run_pages`, copies
    /// them, and drops them.
    pub fn take(&self, first: usize, run_pages: usize, target: &Mapping) -> io::Result<()> {
        let pages = target.length() / PAGE_SIZE_BYTES;
        let all = range(&self.staging, 0, pages);
        self.userfaultfd.register(all.clone(), RegisterMode::MISSING).map_err(io::Error::other)?;
        for run in (0..pages).step_by(run_pages) {
            let count = run_pages.min(pages - run);
            let (from, to) = (range(&self.memory, first + run, count), range(&self.staging, run, count));
            let length = from.end - from.start;
            let moved = self.userfaultfd.move_pages(to.start, from.start, length, false, Wake::NoThread);
            if moved.map_err(io::Error::other)? != length {
                return Err(io::Error::other("the kernel moved a part of a run"));
            }
        }
        target.copy_from(0, &self.staging, 0, target.length());
        self.userfaultfd.unregister(all).map_err(io::Error::other)?;
        advise(&self.staging, Advice::LinuxDontNeed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_that_is_taken_is_copied_and_gone() {
        let leaving = LeavingMemory::new(12, 8).expect("these tests need userfaultfd");
        let target = Mapping::anonymous(4 * PAGE_SIZE_BYTES).unwrap();
        leaving.take(4, 3, &target).unwrap();
        for (page, place) in (4_u8..8).zip((0..).step_by(PAGE_SIZE_BYTES)) {
            let mut byte = [0];
            target.read(place, &mut byte);
            assert_eq!(byte[0], page | 1, "page {page}");
        }
        assert!(leaving.take(4, 4, &target).is_err(), "they are not there any more");
        leaving.take(8, 4, &target).unwrap();
    }
}
