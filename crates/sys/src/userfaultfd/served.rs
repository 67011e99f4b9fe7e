//! Memory of this process whose missing pages a thread of it fills: what a page fault that is handled in user space
//! costs at least. A yardstick for measurements, without page tables, eviction, or another process.

use std::io;
use std::ops::Range;
use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags};

use super::{Features, Message, RegisterMode, Scope, Userfaultfd, Wake};
use crate::mapping::{Mapping, PAGE_SIZE_BYTES};

/// What the thread does that fills pages, while none is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Idle {
    /// It sleeps.
    Sleeps,
    /// It asks again and again, which only makes sense on a CPU of its own.
    Polls,
}

/// See the module text. Every page is missing until it is touched for the first time.
#[derive(Debug)]
pub struct ServedMemory {
    // Dropped first: unmapping waits for its reader.
    userfaultfd: Userfaultfd,
    memory: Mapping,
    pages: usize,
}

impl ServedMemory {
    /// Memory of `pages` pages that no thread serves yet.
    pub fn new(pages: usize) -> io::Result<Self> {
        let memory = Mapping::anonymous(pages * PAGE_SIZE_BYTES)?;
        // SAFETY: only ranges of the mapping are given to it.
        let userfaultfd = unsafe { Userfaultfd::create(Scope::Everything) }?;
        userfaultfd.agree(Features::default())?;
        let served = Self { userfaultfd, memory, pages };
        served.userfaultfd.register(served.range(), RegisterMode::MISSING).map_err(io::Error::other)?;
        Ok(served)
    }

    fn range(&self) -> Range<u64> {
        let start = self.memory.address() as u64;
        start..start + (self.pages * PAGE_SIZE_BYTES) as u64
    }

    /// Reads the first byte of a page; waits for [`ServedMemory::serve`] if it is missing.
    pub fn touch(&self, page: usize) -> u8 {
        let mut byte = [0];
        self.memory.read(page * PAGE_SIZE_BYTES, &mut byte);
        byte[0]
    }

    /// Fills each page that is touched with the page of `source` at the same place, until all have been. On an error
    /// the thread that waits goes on with zeroes.
    pub fn serve(&self, source: &Mapping, idle: Idle) -> io::Result<()> {
        let result = self.serve_all(source, idle);
        if result.is_err() {
            // Nothing else can be done for threads that wait, and there is nothing to serve any more if it fails.
            let _ = self.userfaultfd.unregister(self.range());
        }
        result
    }

    fn serve_all(&self, source: &Mapping, idle: Idle) -> io::Result<()> {
        let mut left = self.pages;
        while left > 0 {
            if idle == Idle::Sleeps {
                let mut ready = [PollFd::from_borrowed_fd(self.userfaultfd.as_fd(), PollFlags::IN)];
                rustix::event::poll(&mut ready, None)?;
            }
            let mut result = Ok(0);
            let count = self.userfaultfd.read_messages(|message| {
                if let Message::Fault(fault) = message {
                    let page = fault.address & !(PAGE_SIZE_BYTES as u64 - 1);
                    let place = (page - self.range().start) as usize;
                    result = self.userfaultfd.copy(page, source, place, PAGE_SIZE_BYTES, false, Wake::Waiters);
                }
            })?;
            result.map_err(io::Error::other)?;
            left -= count.min(left);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_is_filled_once() {
        for idle in [Idle::Sleeps, Idle::Polls] {
            let served = ServedMemory::new(16).expect("these tests need userfaultfd");
            let source = Mapping::anonymous(16 * PAGE_SIZE_BYTES).unwrap();
            (0..16).for_each(|page| source.write(page * PAGE_SIZE_BYTES, &[page as u8; PAGE_SIZE_BYTES]));
            std::thread::scope(|scope| {
                let server = scope.spawn(|| served.serve(&source, idle));
                for page in [3, 0, 15].into_iter().chain(0..16) {
                    assert_eq!(served.touch(page), page as u8, "page {page}");
                }
                server.join().unwrap().unwrap();
            });
        }
    }
}
