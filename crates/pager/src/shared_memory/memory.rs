//! The memory of a shared object, through those of its views that can be used.

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, RwLockReadGuard};

use spillway_sys::event::EventFd;
use spillway_sys::mapping::Mapping;
use spillway_sys::userfaultfd::PageError;

use crate::page_table::page_indexes::SpaceId;
use crate::page_table::virtual_page::VirtualPage;
use crate::process::memory::{Event, ProgramMemory};
use crate::shared_memory::views::{SharedObjects, View};

/// An object, by offset. Its pages come in writable: a page that is protected in one view only would be written to
/// through another.
pub struct ObjectMemory {
    object: SpaceId,
    shared: Arc<SharedObjects>,
    /// Never readable: programs tell of what they do, and an object of nothing.
    event: EventFd,
}

impl ObjectMemory {
    /// Of the object that is address space `object`.
    pub fn new(object: SpaceId, shared: Arc<SharedObjects>) -> std::io::Result<Self> {
        Ok(Self { object, shared, event: EventFd::new()? })
    }

    fn views(&self) -> RwLockReadGuard<'_, Vec<View>> {
        self.shared.read()
    }

    /// Puts pages in place through the first view that has all of `part`, and tells the others: their threads may wait,
    /// and their page tables may say that these pages are protected.
    fn fill(
        &self,
        part: &Range<u64>,
        fill: impl Fn(&dyn ProgramMemory, Range<u64>) -> Result<u64, PageError>,
    ) -> Result<u64, PageError> {
        let views = self.views();
        let mut result = Err(PageError::NotMapped);
        let of_object = || views.iter().filter(|view| view.object.id == self.object);
        let mut through = None;
        for view in of_object().filter(|view| !view.space.is_gone()) {
            let Some(addresses) = view.addresses(part).filter(|all| all.end - all.start == part.end - part.start)
            else {
                continue;
            };
            match fill(&*view.space.memory, addresses) {
                Err(PageError::Gone | PageError::NotMapped) => {}
                // Another view may do.
                Err(PageError::TryAgain) => result = Err(PageError::TryAgain),
                other => {
                    result = other;
                    through = Some(view);
                    break;
                }
            }
        }
        let Ok(bytes) = result else { return result };
        let filled = part.start..part.start + bytes;
        for view in of_object() {
            let is_other = through.is_none_or(|used| !std::ptr::eq(used, view));
            if let Some(addresses) = view.addresses(&filled).filter(|_| is_other) {
                // Wakes as well; where that is refused for now, the thread that wakes writes again and asks.
                if view.space.memory.unprotect(addresses.clone()).is_err() {
                    view.space.memory.wake(addresses);
                }
            }
        }
        Ok(bytes)
    }

    fn each(&self, part: &Range<u64>, mut act: impl FnMut(&dyn ProgramMemory, Range<u64>)) {
        for view in self.views().iter().filter(|view| view.object.id == self.object) {
            if let Some(addresses) = view.addresses(part) {
                act(&*view.space.memory, addresses);
            }
        }
    }
}

impl ProgramMemory for ObjectMemory {
    fn copy(
        &self,
        first: VirtualPage,
        source: &Mapping,
        offset: usize,
        length: usize,
        protect: bool,
    ) -> Result<u64, PageError> {
        assert!(!protect, "pages of objects come writable");
        let part = first.address()..first.address() + length as u64;
        self.fill(&part, |memory, addresses| {
            memory.copy(VirtualPage::at(addresses.start), source, offset, length, false)
        })
    }

    fn zero(&self, range: Range<u64>) -> Result<u64, PageError> {
        self.fill(&range, |memory, addresses| memory.zero(addresses))
    }

    fn unprotect(&self, range: Range<u64>) -> Result<(), PageError> {
        let mut result = Ok(());
        self.each(&range, |memory, addresses| match memory.unprotect(addresses.clone()) {
            Err(PageError::TryAgain) => result = Err(PageError::TryAgain),
            // Its mapping has changed, or is gone: the thread that waits looks again.
            Err(_) => memory.wake(addresses),
            Ok(()) => {}
        });
        result
    }

    fn wake(&self, range: Range<u64>) {
        self.each(&range, |memory, addresses| memory.wake(addresses));
    }

    fn poison(&self, range: Range<u64>) -> Result<u64, PageError> {
        let mut result = Err(PageError::NotMapped);
        self.each(&range, |memory, addresses| {
            let poisoned = memory.poison(addresses);
            if result.is_err() {
                result = poisoned;
            }
        });
        result
    }

    /// Its views are registered one by one, before they are views.
    fn register(&self, _: Range<u64>) -> Result<(), PageError> {
        Err(PageError::Refused)
    }

    fn unregister(&self, _: Range<u64>) -> Result<(), PageError> {
        Err(PageError::Refused)
    }

    fn mark(&self, _: Range<u64>, _: bool) -> Result<(), PageError> {
        Err(PageError::Refused)
    }

    /// So no page comes as zeroes ahead of a fault.
    fn covers(&self, _: &Range<u64>) -> Result<bool, PageError> {
        Err(PageError::Refused)
    }

    fn is_changing(&self) -> bool {
        self.views().iter().any(|view| view.object.id == self.object && view.space.memory.is_changing())
    }

    fn read_event(&self) -> std::io::Result<Option<Event>> {
        Ok(None)
    }

    fn event(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}
