//! How often a page was needed soon after it left: what a pager that sees faults and no references knows of them.
//!
//! A page that comes back after `distance` others have left was away for `distance` departures, while a page in memory
//! sees `capacity` departures until as many pages have left as there are. So `capacity / distance` says how many times
//! sooner than an average page it was needed. Its *rate* is half of that and half of the rate that it had before: a
//! page in steady use keeps a high rate, and one that is not needed any more loses it by coming back late, or never
//! comes back.
//!
//! A policy passes a page over as often as its rate says, each time that it comes back. With random victims and no
//! rates a page in use leaves as soon as any other; with them, the order is near to that of a kernel with referenced
//! bits (docs/decisions/replacement.md). It is learnt from faults alone, which are few where memory suffices.
//!
//! One byte for each page number.

use super::{Arrival, CachePage};

/// The highest rate: pages in memory are passed over so often at most. With 8 and with 32 a server's trace has 1.05
/// and 0.97 of the refaults; a high one holds pages for longer that are not needed any more.
pub const RATE_MAX: u8 = 15;

/// A page that is touched while staged was needed at once, often because a program works there just now and will be
/// done with it soon. 15 is better for steady servers (a Zipf trace 0.97) and worse for phases (quicksort 1.12).
const STAGED_RECENT: u8 = 4;

/// The rate of each page. See the module text.
#[derive(Clone, Debug, Default)]
pub struct Rates {
    rates: Vec<u8>,
}

impl Rates {
    /// Bytes for each page number.
    pub const BYTES_PER_PAGE: usize = size_of::<u8>();

    /// Nothing is known of page numbers below `pages`.
    pub fn new(pages: u32) -> Self {
        Self { rates: vec![0; pages as usize] }
    }

    /// Page numbers below `pages` are in use from now on: the only call that allocates.
    pub fn grow(&mut self, pages: u32) {
        let length = (pages as usize).max(self.rates.len());
        self.rates.resize(length, 0);
    }

    /// `page` came because it was needed, into a memory of `capacity` pages; its rate from now on.
    pub fn arrived(&mut self, page: CachePage, arrival: Arrival, capacity: u32) -> u8 {
        let rate = &mut self.rates[page.0 as usize];
        *rate = match arrival {
            // The number was another page's.
            Arrival::New => 0,
            Arrival::Prefetched => *rate,
            Arrival::Staged => renewed(*rate, STAGED_RECENT),
            Arrival::Refault { distance } | Arrival::Around { distance } => {
                let recent = capacity / distance.saturating_add(1);
                renewed(*rate, recent.min(RATE_MAX.into()) as u8)
            }
        };
        *rate
    }
}

/// The rate of a page with `rate` so far that was needed `recent` times sooner than an average one.
fn renewed(rate: u8, recent: u8) -> u8 {
    // Needed soon for the first time, it is passed over once.
    rate.midpoint(recent).max(recent.min(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CAPACITY: u32 = 1000;

    fn rates_of(arrivals: &[Arrival]) -> Vec<u8> {
        let mut rates = Rates::new(0);
        rates.grow(3);
        arrivals.iter().map(|arrival| rates.arrived(CachePage(2), *arrival, CAPACITY)).collect()
    }

    #[test]
    fn a_page_is_passed_over_as_many_times_as_it_was_needed_sooner_than_an_average_one() {
        let after = |distance| Arrival::Refault { distance };
        assert_eq!(rates_of(&[after(99); 6]), [5, 7, 8, 9, 9, 9], "ten times sooner");
        assert_eq!(rates_of(&[after(0); 6]), [7, 11, 13, 14, 14, 14], "at once");
        assert_eq!(rates_of(&[after(999), after(999), after(1000)]), [1, 1, 0], "once in a memory's time, or later");
        assert_eq!(rates_of(&[after(u32::MAX)]), [0]);
    }

    #[test]
    fn a_rate_is_lost_with_late_returns_and_with_the_page() {
        let soon = Arrival::Refault { distance: 9 };
        let late = Arrival::Refault { distance: 5 * CAPACITY };
        assert_eq!(rates_of(&[soon, soon, late, late, late, late]), [7, 11, 5, 2, 1, 0]);
        assert_eq!(rates_of(&[soon, Arrival::Prefetched, Arrival::New]), [7, 7, 0]);
        assert_eq!(rates_of(&[Arrival::New, Arrival::Staged, Arrival::Staged]), [0, 2, 3], "it is in use just now");
        let around = Arrival::Around { distance: 9 };
        assert_eq!(rates_of(&[soon, around]), [7, 11], "what comes along and is taken for needed");
    }
}
