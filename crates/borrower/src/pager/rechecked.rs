//! Faults on pages that are there by all that is known.
//!
//! Mostly the page came while the fault waited to be read. But the kernel may take a page back that the program gave up with MADV_FREE
//! (madvise(2)), also one of which we have a copy, and tells nobody: then whoever misses it comes again.

use spillway_sys::userfaultfd::Fault;

use super::directory::SpaceId;

/// Faults that are remembered: more threads than these can miss such pages at one time, and come a third time.
const REMEMBERED: usize = 32;

/// The last such faults.
#[derive(Debug, Default)]
pub struct Rechecked {
    faults: [Option<(SpaceId, u64, u32)>; REMEMBERED],
    next: usize,
}

impl Rechecked {
    /// Whether the same thread has missed the same page before; remembers it otherwise.
    pub fn met_again(&mut self, space: SpaceId, fault: Fault) -> bool {
        let key = Some((space, fault.address, fault.thread));
        if let Some(met) = self.faults.iter_mut().find(|met| **met == key) {
            *met = None;
            return true;
        }
        self.faults[self.next] = key;
        self.next = (self.next + 1) % REMEMBERED;
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_time_is_told_once() {
        let mut rechecked = Rechecked::default();
        let fault = |address| Fault { address, is_write: false, is_write_protected: false, thread: 7 };
        assert!(!rechecked.met_again(SpaceId(1), fault(4096)));
        assert!(!rechecked.met_again(SpaceId(2), fault(4096)) && !rechecked.met_again(SpaceId(1), fault(8192)));
        assert!(rechecked.met_again(SpaceId(1), fault(4096)));
        assert!(!rechecked.met_again(SpaceId(1), fault(4096)), "and then it starts anew");
        (0..REMEMBERED as u64).for_each(|page| assert!(!rechecked.met_again(SpaceId(3), fault(page))));
        assert!(!rechecked.met_again(SpaceId(2), fault(4096)), "forgotten");
    }
}
