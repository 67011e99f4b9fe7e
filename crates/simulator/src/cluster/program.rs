//! What a borrower's program does with its remote memory: writes, reads and discards, most of them in a few slabs.
//!
//! A write reaches every valid copy at once. It waits while a donor of the slab is cut off, as the product does, and
//! it ends the session of a donor that fails it. A read takes any valid copy within reach, and must find the version
//! that was written last.

use spillway_fabric::units::SlabIndex;
use spillway_volume::limits::COPIES_MAX;
use spillway_volume::slab_map::slab_entry::Location;
use spillway_volume::steward::Input;
use spillway_volume::steward::placement::Random;

use super::Cluster;
use crate::links::Reach;
use crate::machine::Content;
use crate::volume::Slab;

/// What an access came to.
enum Access {
    Done,
    Waits,
    /// The donor in this slot failed it.
    Fails(usize),
}

impl Cluster {
    /// A program uses its memory once.
    pub(crate) fn work(&mut self, borrower: usize) {
        if self.is_filled_only {
            return self.fill_next(borrower);
        }
        // Of two draws the smaller number: low slabs are used most.
        let count = self.settings.volume_slabs as usize;
        let slab = self.random.below(count).min(self.random.below(count));
        let access = match self.random.below(20) {
            0 => {
                self.discard(borrower, slab);
                Access::Done
            }
            1..=10 => self.write(borrower, slab),
            _ => self.read(borrower, slab),
        };
        match access {
            Access::Done => self.report.accesses += 1,
            Access::Waits => self.report.waits += 1,
            Access::Fails(slot) => self.lose_session(borrower, slot),
        }
    }

    /// Writes the first slab that holds nothing.
    pub(crate) fn fill_next(&mut self, borrower: usize) {
        let first = self.borrowers[borrower].filled;
        let next = self.borrowers[borrower].volume.slabs.borrow()[first..].iter().position(|slab| !slab.is_stored);
        let next = next.map(|slab| first + slab);
        self.borrowers[borrower].filled = next.unwrap_or(first);
        match next.map(|slab| self.write(borrower, slab)) {
            None => {}
            Some(Access::Done) => self.report.accesses += 1,
            Some(Access::Waits) => self.report.waits += 1,
            Some(Access::Fails(slot)) => self.lose_session(borrower, slot),
        }
    }

    fn slab(&self, borrower: usize, slab: usize) -> Slab {
        self.borrowers[borrower].volume.slabs.borrow()[slab].clone()
    }

    fn edit(&mut self, borrower: usize, slab: usize, change: impl FnOnce(&mut Slab)) {
        change(&mut self.borrowers[borrower].volume.slabs.borrow_mut()[slab]);
    }

    /// The program of `borrower` gives up all that it has in `slab`.
    pub fn discard(&mut self, borrower: usize, slab: usize) {
        self.edit(borrower, slab, |slab| {
            slab.is_stored = false;
            slab.is_on_disk = false;
            slab.valid = [false; COPIES_MAX];
            slab.lost_since_whole = 0;
        });
    }

    fn write(&mut self, borrower: usize, slab: usize) -> Access {
        let before = self.slab(borrower, slab);
        let copies: Vec<(usize, Location)> =
            (0..).zip(before.locations).filter_map(|(at, it)| Some((at, it?))).collect();
        for (_, location) in &copies {
            match self.reach(borrower, *location) {
                Reach::Open => {}
                Reach::Waits => return Access::Waits,
                Reach::Fails => return Access::Fails(location.donor.0.into()),
            }
        }
        if copies.is_empty() {
            let (slab, now) = (SlabIndex(slab as u32), self.time);
            self.borrowers[borrower].wanted_since.entry(slab).or_insert(now);
            self.feed_steward(borrower, Input::Wanted { slab });
            if !self.settings.has_disk {
                return Access::Waits;
            }
        }
        // The first write to a slab makes every copy whole; later ones do not mend one that misses pages.
        let is_first = !before.is_stored;
        let version = before.version + 1;
        for (copy_index, location) in copies.iter().filter(|(at, _)| is_first || before.valid[*at]) {
            self.write_copy(borrower, slab, *location, version);
            self.edit(borrower, slab, |slab| slab.valid[*copy_index] = true);
        }
        let (has_disk, replicas) = (self.settings.has_disk, usize::from(self.settings.replicas));
        self.edit(borrower, slab, |slab| {
            (slab.version, slab.is_stored, slab.is_on_disk) = (version, true, has_disk);
            slab.accesses += 64;
            if is_first {
                // With fewer donors than copies the program goes on; the status tells.
                slab.lost_since_whole = replicas.saturating_sub(slab.valid_copies());
            } else if slab.valid_copies() >= replicas {
                slab.lost_since_whole = 0;
            }
        });
        Access::Done
    }

    pub(crate) fn write_copy(&mut self, borrower: usize, slab: usize, location: Location, version: u64) {
        let content = Content { borrower: self.borrowers[borrower].identity, slab: slab as u32, version };
        *self.content(borrower, location).expect("a copy within reach is lent") = content;
    }

    fn read(&mut self, borrower: usize, slab: usize) -> Access {
        let state = self.slab(borrower, slab);
        if !state.is_stored {
            return Access::Done;
        }
        let mut waits = false;
        let first = self.random.below(COPIES_MAX);
        for copy_index in (0..COPIES_MAX).map(|turn| (first + turn) % COPIES_MAX) {
            let Some(location) = state.locations[copy_index].filter(|_| state.valid[copy_index]) else { continue };
            match self.reach(borrower, location) {
                Reach::Open => {
                    self.check_copy(borrower, slab, location, state.version);
                    self.edit(borrower, slab, |slab| slab.accesses += 64);
                    return Access::Done;
                }
                Reach::Waits => waits = true,
                Reach::Fails => return Access::Fails(location.donor.0.into()),
            }
        }
        assert!(waits || state.is_on_disk, "{state:?} is stored nowhere");
        if state.is_on_disk { Access::Done } else { Access::Waits }
    }

    /// Reads a copy.
    pub(crate) fn check_copy(&mut self, borrower: usize, slab: usize, location: Location, version: u64) {
        let expected = Content { borrower: self.borrowers[borrower].identity, slab: slab as u32, version };
        let found = self.content(borrower, location).copied();
        assert_eq!(found, Some(expected), "a stale read of slab {slab} at {location:?}");
    }
}
