//! Which programs map which parts of shared objects.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::address_space::AddressSpace;
use crate::page_table::page_indexes::SpaceId;

/// A mapping that one program has of an object. It is registered with the program's userfaultfd.
#[derive(Clone)]
pub struct View {
    /// The program.
    pub space: Arc<AddressSpace>,
    /// Where.
    pub range: Range<u64>,
    /// The object.
    pub object: Arc<AddressSpace>,
    /// Where in the object it begins; bytes.
    pub offset: u64,
}

impl View {
    /// What of the object it maps.
    pub fn part(&self) -> Range<u64> {
        self.offset..self.offset + (self.range.end - self.range.start)
    }

    /// The program's addresses of what it maps of `part` of the object.
    pub fn addresses(&self, part: &Range<u64>) -> Option<Range<u64>> {
        let own = self.part();
        let both = part.start.max(own.start)..part.end.min(own.end);
        let place = |offset: u64| offset - self.offset + self.range.start;
        (!both.is_empty()).then(|| place(both.start)..place(both.end))
    }

    /// What of it lies in `range` of its program.
    fn within(&self, range: &Range<u64>) -> Option<Self> {
        let both = self.range.start.max(range.start)..self.range.end.min(range.end);
        let offset = self.offset + (both.start.max(self.range.start) - self.range.start);
        (!both.is_empty()).then(|| Self { range: both, offset, ..self.clone() })
    }
}

/// All views of all objects.
#[derive(Default)]
pub struct SharedObjects {
    views: RwLock<Vec<View>>,
    /// How many there are, for faults of runs that have none.
    count: AtomicUsize,
}

impl SharedObjects {
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.count.load(Ordering::SeqCst) == 0
    }

    /// All views, for this moment.
    pub fn read(&self) -> RwLockReadGuard<'_, Vec<View>> {
        self.views.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Vec<View>> {
        self.views.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// More views.
    pub fn add(&self, more: impl IntoIterator<Item = View>) {
        self.change(|views| views.extend(more));
    }

    /// The object that `space` has at `address`, and where in it that is.
    pub fn find(&self, space: SpaceId, address: u64) -> Option<(Arc<AddressSpace>, u64)> {
        if self.is_empty() {
            return None;
        }
        let views = self.read();
        let view = views.iter().find(|view| view.space.id == space && view.range.contains(&address))?;
        Some((Arc::clone(&view.object), address - view.range.start + view.offset))
    }

    /// How much of objects `space` maps; bytes.
    pub fn bytes_of(&self, space: SpaceId) -> u64 {
        let views = self.read();
        views.iter().filter(|view| view.space.id == space).map(|view| view.range.end - view.range.start).sum()
    }

    /// The objects of which one of `spaces` has a part in `range`.
    pub fn within(&self, spaces: &[SpaceId], range: &Range<u64>) -> Vec<Arc<AddressSpace>> {
        let mut found: Vec<Arc<AddressSpace>> = Vec::new();
        for view in self.read().iter().filter(|view| spaces.contains(&view.space.id)) {
            if view.within(range).is_some() && found.iter().all(|other| other.id != view.object.id) {
                found.push(Arc::clone(&view.object));
            }
        }
        found
    }

    /// The programs that map a part of `object`, by their numbers.
    pub fn programs_of(&self, object: SpaceId) -> Vec<Arc<AddressSpace>> {
        let views = self.read();
        let of_object = views.iter().filter(|view| view.object.id == object);
        let mut programs: Vec<Arc<AddressSpace>> = of_object.map(|view| Arc::clone(&view.space)).collect();
        programs.sort_unstable_by_key(|space| space.id.0);
        programs.dedup_by_key(|space| space.id.0);
        programs
    }

    /// `range` of `space` is not mapped any more. Threads that wait for a page of it look again.
    pub fn unmapped(&self, space: &AddressSpace, range: &Range<u64>) {
        if self.is_empty() {
            return;
        }
        self.change(|views| take_away(views, space, range));
    }

    /// Changes all of them at once: an object without a view is given up.
    fn change(&self, change: impl FnOnce(&mut Vec<View>)) {
        let mut views = self.write();
        change(&mut views);
        self.count.store(views.len(), Ordering::SeqCst);
    }

    /// `length` bytes of `space` moved from `from` to `to`.
    pub fn moved(&self, space: &AddressSpace, from: u64, to: u64, length: u64) {
        if self.is_empty() {
            return;
        }
        let source = from..from + length;
        let place = |address: u64| address - from + to;
        self.change(|views| {
            let of_space = views.iter().filter(|view| view.space.id == space.id);
            let moving: Vec<View> = of_space.filter_map(|view| view.within(&source)).collect();
            take_away(views, space, &(to..to + length));
            take_away(views, space, &source);
            let moved = |view: View| View { range: place(view.range.start)..place(view.range.end), ..view };
            views.extend(moving.into_iter().map(moved));
        });
    }

    /// `child` is a fork of `parent`: it has the same at the same addresses.
    pub fn forked(&self, parent: SpaceId, child: &Arc<AddressSpace>) {
        if self.is_empty() {
            return;
        }
        let of_parent: Vec<View> = self.read().iter().filter(|view| view.space.id == parent).cloned().collect();
        self.add(of_parent.into_iter().map(|view| View { space: Arc::clone(child), ..view }));
    }

    /// `space` is gone, a program or an object.
    pub fn gone(&self, space: SpaceId) {
        if self.is_empty() {
            return;
        }
        self.change(|views| views.retain(|view| view.space.id != space && view.object.id != space));
    }
}

/// `range` of `space` is none of these any more.
fn take_away(views: &mut Vec<View>, space: &AddressSpace, range: &Range<u64>) {
    let mut kept = Vec::with_capacity(views.len() + 1);
    for view in views.drain(..) {
        if view.space.id != space.id || view.within(range).is_none() {
            kept.push(view);
            continue;
        }
        space.memory.wake(view.range.clone());
        kept.extend(view.within(&(0..range.start)));
        kept.extend(view.within(&(range.end..u64::MAX)));
    }
    *views = kept;
}
