//! Which pages are private anonymous memory, by what the program asked of the kernel.
//!
//! Invariant: ranges do not overlap.

use std::collections::BTreeMap;

use super::line::Arguments;
use crate::size::PAGE_SIZE_BYTES;

/// Flags of mmap(2).
const MAP_PRIVATE: u64 = 0x02;
/// See [`MAP_PRIVATE`].
const MAP_ANONYMOUS: u64 = 0x20;

/// See the module text.
#[derive(Clone, Debug, Default)]
pub struct Anonymous {
    /// Page numbers: where each range starts, and its end.
    ranges: BTreeMap<u64, u64>,
    /// Addresses where the heap starts and ends, once the program has asked.
    heap: Option<(u64, u64)>,
}

impl Anonymous {
    /// Whether `page` is private anonymous memory.
    pub fn holds(&self, page: u64) -> bool {
        self.ranges.range(..=page).next_back().is_some_and(|(_, end)| page < *end)
    }

    /// The system call `name` succeeded with `result`.
    pub fn succeeded(&mut self, name: &str, arguments: &Arguments, result: u64) {
        let [first, second, third, flags, ..] = *arguments;
        match name {
            "sys_mmap" => {
                self.remove(result, second);
                if flags & (MAP_PRIVATE | MAP_ANONYMOUS) == MAP_PRIVATE | MAP_ANONYMOUS {
                    self.insert(result, second);
                }
            }
            "sys_munmap" => self.remove(first, second),
            "sys_mremap" => {
                let was_anonymous = self.holds(first / PAGE_SIZE_BYTES);
                self.remove(first, second);
                self.remove(result, third);
                if was_anonymous {
                    self.insert(result, third);
                }
            }
            "sys_brk" => self.set_heap_end(result),
            _ => {}
        }
    }

    fn set_heap_end(&mut self, end: u64) {
        let (start, old_end) = self.heap.unwrap_or((end, end));
        self.heap = Some((start, end));
        self.remove(start, old_end.saturating_sub(start));
        self.insert(start, end.saturating_sub(start));
    }

    fn insert(&mut self, start: u64, length: u64) {
        if let Some((start, end)) = pages(start, length) {
            self.ranges.insert(start, end);
        }
    }

    fn remove(&mut self, start: u64, length: u64) {
        let Some((start, end)) = pages(start, length) else { return };
        while let Some((from, to)) = self.ranges.range(..end).next_back().map(|(from, to)| (*from, *to)) {
            if to <= start {
                break;
            }
            self.ranges.remove(&from);
            if to > end {
                self.ranges.insert(end, to);
            }
            if from < start {
                self.ranges.insert(from, start);
            }
        }
    }
}

/// The pages that bytes from `start` on lie in; none for no bytes, or for such that end beyond all addresses.
fn pages(start: u64, length: u64) -> Option<(u64, u64)> {
    let end = start.checked_add(length).filter(|_| length > 0)?;
    Some((start / PAGE_SIZE_BYTES, end.div_ceil(PAGE_SIZE_BYTES)))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    const PAGE: u64 = PAGE_SIZE_BYTES;

    #[test]
    fn only_private_anonymous_mappings_count() {
        for (flags, counts) in [(0x22, true), (0x32, true), (0x02, false), (0x21, false), (0x0812, false)] {
            let mut memory = Anonymous::default();
            memory.succeeded("sys_mmap", &[0, 2 * PAGE - 1, 3, flags, 0, 0], 10 * PAGE);
            assert_eq!([9, 10, 11, 12].map(|page| memory.holds(page)), [false, counts, counts, false], "{flags:#x}");
        }
    }

    #[test]
    fn a_file_that_is_mapped_over_it_ends_it() {
        let mut memory = Anonymous::default();
        memory.succeeded("sys_mmap", &[0, 10 * PAGE, 0, 0x22, 0, 0], 10 * PAGE);
        memory.succeeded("sys_mmap", &[12 * PAGE, PAGE, 3, 0x12, 4, 0], 12 * PAGE);
        assert_eq!([11, 12, 13, 19, 20].map(|page| memory.holds(page)), [true, false, true, true, false]);
    }

    #[test]
    fn the_heap_follows_its_end() {
        let mut memory = Anonymous::default();
        for (end, held) in [(10, false), (20, true), (12, false), (18, true)] {
            memory.succeeded("sys_brk", &[0; 6], end * PAGE);
            assert_eq!(memory.holds(15), held, "{end}");
            assert!(!memory.holds(9) && !memory.holds(end));
        }
    }

    #[test]
    fn what_moves_stays_what_it_is() {
        let mut memory = Anonymous::default();
        memory.succeeded("sys_mmap", &[0, 2 * PAGE, 3, 0x22, 0, 0], 10 * PAGE);
        memory.succeeded("sys_mremap", &[10 * PAGE, 2 * PAGE, 4 * PAGE, 1, 0, 0], 30 * PAGE);
        assert_eq!([10, 30, 33, 34].map(|page| memory.holds(page)), [false, true, true, false]);
        memory.succeeded("sys_mremap", &[50 * PAGE, 2 * PAGE, 4 * PAGE, 1, 0, 0], 60 * PAGE);
        assert!(!memory.holds(60), "a mapped file");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

        #[test]
        fn ranges_are_sets_of_pages(steps in proptest::collection::vec((any::<bool>(), 0_u64..60, 0_u64..20), 1..40)) {
            let (mut memory, mut model) = (Anonymous::default(), HashSet::new());
            for (maps, start, pages) in steps {
                if maps {
                    memory.succeeded("sys_mmap", &[0, pages * PAGE, 3, 0x22, 0, 0], start * PAGE);
                    model.extend(start..start + pages);
                } else {
                    memory.succeeded("sys_munmap", &[start * PAGE, pages * PAGE, 0, 0, 0, 0], 0);
                    model.retain(|page| !(start..start + pages).contains(page));
                }
                for page in 0..90 {
                    prop_assert_eq!(memory.holds(page), model.contains(&page), "page {}", page);
                }
            }
        }

        #[test]
        fn no_call_is_too_odd(arguments: Arguments, result: u64, which in 0_usize..4) {
            let mut memory = Anonymous::default();
            for _ in 0..2 {
                memory.succeeded(["sys_mmap", "sys_munmap", "sys_mremap", "sys_brk"][which], &arguments, result);
            }
        }
    }
}
