//! Every slab that has fewer copies than promised gets them in a bound, as soon as that is possible.
//!
//! It is possible while the borrower reaches the pages, at a donor or on its disk, and a donor that it uses could take
//! a copy, or holds one that misses pages. A copy at a donor that has fallen silent is waited for until the session is
//! over, which the borrower's patience bounds; the bound begins then. A slab that was placed while too few donors were
//! known, or had room, counts the copies that it never had as lost; this bound ends that.

use std::time::Duration;

use spillway_volume::limits::COPIES_MAX;

use super::Cluster;
use crate::links::Reach;

/// A slab that could have its copies has them within so long: twice what was seen in 180 storms. A donor that
/// did not answer is passed over for a second, and the mover fills one slab after the other.
const RESTORED_WITHIN: Duration = Duration::from_secs(5);

impl Cluster {
    /// Looks at every slab that has too few copies. As often as at recalls.
    pub(crate) fn watch_shortages(&mut self) {
        for borrower in 0..self.borrowers.len() {
            if !self.borrowers[borrower].is_alive {
                continue;
            }
            let slabs = self.borrowers[borrower].volume.slabs.borrow().len();
            for slab in 0..slabs {
                self.watch_shortage(borrower, slab);
            }
        }
    }

    fn watch_shortage(&mut self, borrower: usize, slab: usize) {
        let since = self.borrowers[borrower].volume.slabs.borrow()[slab].short_since;
        let is_short = {
            let slabs = self.borrowers[borrower].volume.slabs.borrow();
            let entry = &slabs[slab];
            entry.is_stored && entry.valid_copies() < usize::from(self.settings.replicas)
        };
        let now_since = (is_short && self.can_be_restored(borrower, slab)).then(|| since.unwrap_or(self.time));
        if let Some(since) = since {
            let short = self.time - since;
            self.report.shortage_longest = self.report.shortage_longest.max(short);
            let state = self.borrowers[borrower].volume.slabs.borrow()[slab].clone();
            assert!(
                now_since.is_none() || short <= RESTORED_WITHIN,
                "borrower {borrower} could restore slab {slab} since {since:?}: {state:?}"
            );
        }
        self.borrowers[borrower].volume.slabs.borrow_mut()[slab].short_since = now_since;
    }

    fn can_be_restored(&self, borrower: usize, slab: usize) -> bool {
        let slabs = self.borrowers[borrower].volume.slabs.borrow();
        let entry = &slabs[slab];
        let is_open = |copy: usize| {
            entry.locations[copy].is_some_and(|location| {
                let is_usable = self.is_usable(borrower, usize::from(location.donor.0));
                is_usable && self.reach(borrower, location) == Reach::Open
            })
        };
        let has_source = entry.is_on_disk || (0..COPIES_MAX).any(|copy| entry.valid[copy] && is_open(copy));
        let is_waited_for = (0..COPIES_MAX).any(|copy| entry.locations[copy].is_some() && !is_open(copy));
        let has_target = (0..COPIES_MAX).any(|copy| !entry.valid[copy] && is_open(copy))
            || (!is_waited_for && self.has_room_elsewhere(borrower, entry));
        has_source && has_target
    }
}
