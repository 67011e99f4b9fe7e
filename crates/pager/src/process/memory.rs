//! A program's memory as the pager gets at it: filled through its userfaultfd, emptied by its evictor.
//!
//! Both are traits, so that tests run the real decisions against a simulated memory.

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use spillway_sys::mapping::Mapping;
use spillway_sys::userfaultfd::{Fault, Message, PageError, RegisterMode, Userfaultfd, Wake};

use crate::page_table::virtual_page::VirtualPage;
use crate::page_table::volume_pages::PoolPage;

/// What a program's memory tells.
pub enum Event {
    /// A thread waits for a page.
    Fault(Fault),
    /// The process forked; the child's memory is this.
    Fork(Box<dyn ProgramMemory>),
    /// `mremap` moved pages.
    Remap {
        /// The old address.
        from: u64,
        /// The new one.
        to: u64,
        /// Bytes.
        length: u64,
    },
    /// `madvise` takes pages away, after this was read.
    Remove(Range<u64>),
    /// The range is unmapped.
    Unmap(Range<u64>),
}

/// The memory of one program.
///
/// A fake program with one page shows how the pager answers a fault. A real one is a [`Userfaultfd`]:
///
/// ```
/// use std::io;
/// use std::ops::Range;
/// use std::os::fd::{AsFd, BorrowedFd};
/// use std::sync::Mutex;
///
/// use spillway_pager::page_table::virtual_page::VirtualPage;
/// use spillway_pager::process::memory::{Event, ProgramMemory};
/// use spillway_sys::event::EventFd;
/// use spillway_sys::mapping::Mapping;
/// use spillway_sys::userfaultfd::{Fault, PageError};
///
/// const PAGE: u64 = 4096;
///
/// /// A program whose only page is missing until the pager fills it.
/// struct OnePage {
///     fault: Mutex<Option<Fault>>,
///     content: Mutex<Option<Vec<u8>>>,
///     event: EventFd,
/// }
///
/// impl OnePage {
///     fn fill(&self, bytes: Vec<u8>) -> Result<u64, PageError> {
///         let mut content = self.content.lock().unwrap();
///         if content.is_some() {
///             return Err(PageError::Exists);
///         }
///         *content = Some(bytes);
///         Ok(PAGE)
///     }
/// }
///
/// impl ProgramMemory for OnePage {
///     fn copy(&self, _: VirtualPage, source: &Mapping, at: usize, length: usize, _: bool) -> Result<u64, PageError> {
///         let mut bytes = vec![0; length];
///         source.read(at, &mut bytes);
///         self.fill(bytes)
///     }
///
///     fn zero(&self, _: Range<u64>) -> Result<u64, PageError> {
///         self.fill(vec![0; PAGE as usize])
///     }
///
///     fn read_event(&self) -> io::Result<Option<Event>> {
///         Ok(self.fault.lock().unwrap().take().map(Event::Fault))
///     }
///
///     fn event(&self) -> BorrowedFd<'_> {
///         self.event.as_fd()
///     }
///
///     // This program neither changes its mappings nor has write-protected pages.
///     fn unprotect(&self, _: Range<u64>) -> Result<(), PageError> {
///         Ok(())
///     }
///
///     fn wake(&self, _: Range<u64>) {}
///
///     fn poison(&self, _: Range<u64>) -> Result<u64, PageError> {
///         Err(PageError::Refused)
///     }
///
///     fn register(&self, _: Range<u64>) -> Result<(), PageError> {
///         Ok(())
///     }
///
///     fn unregister(&self, _: Range<u64>) -> Result<(), PageError> {
///         Ok(())
///     }
///
///     fn mark(&self, _: Range<u64>, _: bool) -> Result<(), PageError> {
///         Ok(())
///     }
///
///     fn covers(&self, _: &Range<u64>) -> Result<bool, PageError> {
///         Ok(true)
///     }
///
///     fn is_changing(&self) -> bool {
///         false
///     }
/// }
///
/// /// Fills each page that a thread waits for from the start of `pool`; returns the bytes filled.
/// fn answer_faults(memory: &dyn ProgramMemory, pool: &Mapping) -> Result<u64, Box<dyn std::error::Error>> {
///     let mut filled = 0;
///     while let Some(event) = memory.read_event()? {
///         let Event::Fault(fault) = event else { continue };
///         match memory.copy(VirtualPage::containing(fault.address), pool, 0, PAGE as usize, false) {
///             Ok(bytes) => filled += bytes,
///             // Another thread filled the page first.
///             Err(PageError::Exists) => memory.wake(fault.address..fault.address + PAGE),
///             Err(error) => return Err(error.into()),
///         }
///     }
///     Ok(filled)
/// }
///
/// let fault = Fault { address: 0x7000_0000, is_write: false, is_write_protected: false, thread: 0 };
/// let program = OnePage { fault: Mutex::new(Some(fault)), content: Mutex::new(None), event: EventFd::new()? };
/// let pool = Mapping::anonymous(PAGE as usize)?;
/// pool.write(0, b"content");
///
/// assert_eq!(answer_faults(&program, &pool)?, PAGE);
/// assert!(program.content.lock().unwrap().as_ref().is_some_and(|bytes| bytes.starts_with(b"content")));
/// assert_eq!(answer_faults(&program, &pool)?, 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait ProgramMemory: Send + Sync {
    /// Fills missing pages from `first` on with bytes of `source`, write-protected if asked for, and wakes the threads
    /// that wait. Says how many bytes.
    fn copy(
        &self,
        first: VirtualPage,
        source: &Mapping,
        offset: usize,
        length: usize,
        protect: bool,
    ) -> Result<u64, PageError>;

    /// Fills missing pages with zeroes and wakes the threads that wait.
    fn zero(&self, range: Range<u64>) -> Result<u64, PageError>;

    /// Takes write protection away and wakes the threads that wait.
    fn unprotect(&self, range: Range<u64>) -> Result<(), PageError>;

    /// Write-protects pages, also where none is: of shared memory, whose pages other programs may bring. Private memory
    /// is protected when its pages come.
    fn protect(&self, _: Range<u64>) -> Result<(), PageError> {
        Err(PageError::Refused)
    }

    /// Lets the threads that wait look again.
    fn wake(&self, range: Range<u64>);

    /// A thread that touches `range` gets SIGBUS from now on.
    fn poison(&self, range: Range<u64>) -> Result<u64, PageError>;

    /// Asks for faults in `range`.
    fn register(&self, range: Range<u64>) -> Result<(), PageError>;

    /// Asks for none any more, and wakes the threads that wait. All of it must be registered.
    fn unregister(&self, range: Range<u64>) -> Result<(), PageError>;

    /// Asks for faults in `range` or for none any more, which parts the mapping that it is in, or joins it again, in
    /// its process's maps. Of memory that all programs share, which is never missing.
    fn mark(&self, range: Range<u64>, is_set: bool) -> Result<(), PageError>;

    /// Whether one registered mapping covers `range` (rule 1); fails while the program changes its mappings. The
    /// mapping at its begin is prepared for pages, which the program can see if it had none
    /// ([`spillway_sys::userfaultfd::Userfaultfd::covers`]).
    fn covers(&self, range: &Range<u64>) -> Result<bool, PageError>;

    /// Whether the program changes its mappings: something of that is to be read, or its thread did not go on yet.
    fn is_changing(&self) -> bool;

    /// Takes the next thing that the program has to tell now, without waiting.
    fn read_event(&self) -> std::io::Result<Option<Event>>;

    /// Readable when there is something to tell.
    fn event(&self) -> BorrowedFd<'_>;
}

/// One page that an evictor is to take out of its program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EvictRequest {
    /// The page.
    pub page: VirtualPage,
    /// Where its content goes; `None`: nowhere, there is a copy.
    pub target: Option<PoolPage>,
}

/// What became of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EvictOutcome {
    /// It left; its content is where it was to go.
    Moved,
    /// It left, and had nothing but zeroes, of which there is no copy: a fault on it gets zeroes.
    Zero,
    /// It was not there.
    Absent,
    /// The kernel did not let it go (pinned, locked, shared after a fork). It is there as before.
    Refused,
    /// The program was changing its mappings. It is there as before, or absent.
    Changing,
}

/// What became of a block that was to be a huge page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CollapseOutcome {
    /// It is one.
    Done,
    /// Not now: no free memory in one piece, or pages in use.
    Later,
    /// The kernel refused.
    Refused,
    /// The program or its evictor is gone.
    Gone,
}

/// An evictor that has ended a batch, by what its program says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EvictorSeen {
    /// The process.
    pub process: u32,
    /// The thread's number, right if the program is in the pager's PID namespace.
    pub thread: u32,
    /// The CPU that it had when it began the batch, or the next one by now.
    pub cpu: usize,
}

/// Takes pages out of a program, one batch after the other.
///
/// A fake evictor shows a batch from begin to end. Its program is a set of pages without content:
///
/// ```
/// use std::collections::{BTreeSet, VecDeque};
/// use std::time::Duration;
///
/// use spillway_pager::limits::EVICTOR_BATCHES_MAX;
/// use spillway_pager::page_table::virtual_page::VirtualPage;
/// use spillway_pager::page_table::volume_pages::PoolPage;
/// use spillway_pager::process::memory::{EvictOutcome, EvictRequest, Evictor};
///
/// /// The pages of a program, and the outcomes of batches that were not polled yet.
/// struct Pages {
///     resident: BTreeSet<VirtualPage>,
///     batches: VecDeque<Vec<EvictOutcome>>,
/// }
///
/// impl Evictor for Pages {
///     fn begin(&mut self, requests: &[EvictRequest]) -> bool {
///         if self.batches.len() == EVICTOR_BATCHES_MAX {
///             return false;
///         }
///         let evict = |request: &EvictRequest| {
///             let was_resident = self.resident.remove(&request.page);
///             if was_resident { EvictOutcome::Moved } else { EvictOutcome::Absent }
///         };
///         self.batches.push_back(requests.iter().map(evict).collect());
///         true
///     }
///
///     fn own(&mut self, _: &[VirtualPage]) -> bool {
///         self.batches.is_empty()
///     }
///
///     fn end(&mut self, _: u8) {}
///
///     fn poll(&mut self, outcomes: &mut [EvictOutcome]) -> bool {
///         let batch = self.batches.pop_front().expect("a batch is under way");
///         outcomes.copy_from_slice(&batch);
///         true
///     }
///
///     fn is_broken(&self) -> bool {
///         false
///     }
/// }
///
/// /// Evicts pages into the first pages of the write-back pool; `None` if the evictor takes no batch now.
/// fn evict(evictor: &mut dyn Evictor, pages: &[VirtualPage]) -> Option<Vec<EvictOutcome>> {
///     let request =
///         |(target, page): (u32, &VirtualPage)| EvictRequest { page: *page, target: Some(PoolPage(target)) };
///     let requests: Vec<_> = (0..).zip(pages).map(request).collect();
///     if !evictor.begin(&requests) {
///         return None;
///     }
///     let mut outcomes = vec![EvictOutcome::Changing; requests.len()];
///     while !evictor.poll(&mut outcomes) {
///         evictor.wait(Duration::from_millis(1));
///     }
///     Some(outcomes)
/// }
///
/// let [one, two, missing] = [0x1000, 0x2000, 0x5000].map(VirtualPage::at);
/// let mut evictor = Pages { resident: BTreeSet::from([one, two]), batches: VecDeque::new() };
/// let outcomes = evict(&mut evictor, &[one, missing]);
/// assert_eq!(outcomes, Some(vec![EvictOutcome::Moved, EvictOutcome::Absent]));
/// assert_eq!(evictor.resident, BTreeSet::from([two]));
/// ```
pub trait Evictor: Send {
    /// Takes on `requests`, at most [`crate::limits::BATCH_PAGES`], for when it is done with the batch under way, if
    /// there is one; there may be [`crate::limits::EVICTOR_BATCHES_MAX`] with this one. False: the program is gone,
    /// or has no evictor now, or it has enough to do.
    fn begin(&mut self, requests: &[EvictRequest]) -> bool;

    /// Makes `pages` the program's own again, which a fork shared (rule 2), like a batch whose outcomes tell nothing.
    /// They were never write-protected, or are not any more. False as for [`Evictor::begin`], and while a batch is
    /// under way.
    fn own(&mut self, pages: &[VirtualPage]) -> bool;

    /// Makes a huge page of `block`, 2 MiB at a multiple of that, if all pages are there and writable; contents stay.
    /// False as for [`Evictor::own`].
    fn collapse(&mut self, _block: Range<u64>) -> bool {
        false
    }

    /// What became of that; `None` while it is under way.
    fn collapsed(&mut self) -> Option<CollapseOutcome> {
        Some(CollapseOutcome::Gone)
    }

    /// Nothing begins any more, and the evictor is told to end with `status` once no batch is under way: to be called
    /// until the program is gone.
    fn end(&mut self, status: u8);

    /// Whether the oldest batch ended; then `outcomes` has the outcome of each of its requests. An evictor that died
    /// with its program has ended: every page is absent.
    fn poll(&mut self, outcomes: &mut [EvictOutcome]) -> bool;

    /// Ends the oldest batch under way without its evictor, which is stopped, and fills `outcomes` as [`Evictor::poll`]
    /// does; the others under way end at the next polls. False: it cannot be done now, or is not needed.
    fn withdraw(&mut self, _process: u32, _outcomes: &mut [EvictOutcome]) -> bool {
        false
    }

    /// Sleeps until the oldest batch under way has ended, at most for `patience`.
    fn wait(&self, patience: Duration) {
        std::thread::sleep(patience);
    }

    /// The CPU that it had when it began its last batch, if that is known. Any number: the program can say what it
    /// likes.
    fn cpu(&self) -> Option<usize> {
        None
    }

    /// Whether it ended in the middle of a batch while its program lives: it is unknown which pages it has taken out.
    fn is_broken(&self) -> bool;
}

impl ProgramMemory for Userfaultfd {
    fn copy(
        &self,
        first: VirtualPage,
        source: &Mapping,
        offset: usize,
        length: usize,
        protect: bool,
    ) -> Result<u64, PageError> {
        self.copy(first.address(), source, offset, length, protect, Wake::Waiters)
    }

    fn zero(&self, range: Range<u64>) -> Result<u64, PageError> {
        self.zero_page(range, Wake::Waiters)
    }

    fn unprotect(&self, range: Range<u64>) -> Result<(), PageError> {
        self.write_protect(range, false, Wake::Waiters)
    }

    fn protect(&self, range: Range<u64>) -> Result<(), PageError> {
        self.write_protect(range, true, Wake::NoThread)
    }

    fn wake(&self, range: Range<u64>) {
        // No thread may be left to wake.
        let _ = self.wake(range);
    }

    fn poison(&self, range: Range<u64>) -> Result<u64, PageError> {
        self.poison(range, Wake::Waiters)
    }

    fn register(&self, range: Range<u64>) -> Result<(), PageError> {
        self.register(range, RegisterMode::MISSING | RegisterMode::WRITE_PROTECT)
    }

    fn unregister(&self, range: Range<u64>) -> Result<(), PageError> {
        self.unregister(range)
    }

    fn mark(&self, range: Range<u64>, is_set: bool) -> Result<(), PageError> {
        if is_set { self.register(range, RegisterMode::MISSING) } else { self.unregister(range) }
    }

    fn covers(&self, range: &Range<u64>) -> Result<bool, PageError> {
        self.covers(range)
    }

    fn is_changing(&self) -> bool {
        self.is_changing()
    }

    fn read_event(&self) -> std::io::Result<Option<Event>> {
        Ok(match self.read_message()? {
            None => None,
            Some(Message::Fault(fault)) => Some(Event::Fault(fault)),
            Some(Message::Fork(child)) => Some(Event::Fork(Box::new(child))),
            Some(Message::Remap { from, to, length }) => Some(Event::Remap { from, to, length }),
            Some(Message::Remove(range)) => Some(Event::Remove(range)),
            Some(Message::Unmap(range)) => Some(Event::Unmap(range)),
            Some(Message::Unknown(kind)) => {
                return Err(std::io::Error::other(format!("a message of kind {kind}, which was not agreed on")));
            }
        })
    }

    fn event(&self) -> BorrowedFd<'_> {
        self.as_fd()
    }
}
