//! Which runs of faults are regular, seen strictly and by majority.
//!
//! Leap's question (Maruf and Chowdhury, USENIX ATC 2020, section 2.3): of all windows of faults, how many are
//! sequential, a stride, or neither? A strict look wants all distances of a window equal; a majority is content with
//! more than half of them, so one page out of line does not hide a trend.

use crate::prefetch::PageNumber;

/// Distances of a window: Leap's, the first that its vote looks at.
const WINDOW: usize = 8;

/// How a window is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// All distances are equal.
    Strict,
    /// More than half are.
    Majority,
}

/// Windows of a trace by what they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Windows {
    /// All of them.
    pub count: u64,
    /// From a page to its neighbour, up or down.
    pub sequential: u64,
    /// By any other distance.
    pub stride: u64,
}

impl Windows {
    /// Those of both.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            count: self.count + other.count,
            sequential: self.sequential + other.sequential,
            stride: self.stride + other.stride,
        }
    }

    /// Those that are neither.
    pub fn irregular(self) -> u64 {
        self.count - self.sequential - self.stride
    }

    /// As parts of all.
    pub fn shares(self) -> Shares {
        let part = |windows: u64| windows as f64 / self.count.max(1) as f64;
        Shares { sequential: part(self.sequential), stride: part(self.stride), irregular: part(self.irregular()) }
    }
}

/// Parts of the windows of a trace.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Shares {
    /// From a page to its neighbour, up or down.
    pub sequential: f64,
    /// By any other distance.
    pub stride: f64,
    /// Neither.
    pub irregular: f64,
}

/// The distance that `window` shares.
fn trend(window: &[i64], look: Look) -> Option<i64> {
    let least = if look == Look::Strict { window.len() } else { window.len() / 2 + 1 };
    let shared = |delta: &&i64| window.iter().filter(|other| other == delta).count() >= least;
    window.iter().find(shared).copied().filter(|delta| *delta != 0)
}

/// All windows of `faults`, which one thread or process had in this order.
pub fn windows(faults: &[PageNumber], look: Look) -> Windows {
    let deltas: Vec<i64> = faults.windows(2).map(|pair| pair[1].distance_from(pair[0])).collect();
    let mut windows = Windows::default();
    for window in deltas.windows(WINDOW) {
        let delta = trend(window, look).unwrap_or(0);
        windows.count += 1;
        windows.sequential += u64::from(delta.unsigned_abs() == 1);
        windows.stride += u64::from(delta.unsigned_abs() > 1);
    }
    windows
}

/// The parts of all windows of `faults`.
pub fn shares(faults: &[PageNumber], look: Look) -> Shares {
    windows(faults, look).shares()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(pages: impl Iterator<Item = u64>, look: Look) -> (f64, f64) {
        let Shares { sequential, stride, .. } = shares(&pages.map(PageNumber).collect::<Vec<_>>(), look);
        (sequential, stride)
    }

    #[test]
    fn sequences_strides_and_neither_are_told_apart() {
        for look in [Look::Strict, Look::Majority] {
            assert_eq!(of(0..100, look), (1.0, 0.0));
            assert_eq!(of((0..100).rev(), look), (1.0, 0.0));
            assert_eq!(of((0..100).map(|page| 7 * page), look), (0.0, 1.0));
            assert_eq!(of((0..100).map(|page| page * page), look), (0.0, 0.0));
            assert_eq!(of((0..100).map(|_| 3), look), (0.0, 0.0), "one page again and again");
            assert_eq!(of(0..5, look), (0.0, 0.0), "no window");
        }
    }

    #[test]
    fn windows_of_several_threads_add_up() {
        let (up, none) = (windows(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9].map(PageNumber), Look::Strict), Windows::default());
        assert_eq!((up, none.shares()), (Windows { count: 2, sequential: 2, stride: 0 }, Shares::default()));
        let stride = Windows { count: 2, sequential: 0, stride: 1 };
        assert_eq!((up.and(stride).irregular(), up.and(stride).shares().sequential), (1, 0.5));
    }

    #[test]
    fn a_page_out_of_line_hides_a_trend_from_a_strict_look_only() {
        let pages = || (0..99).map(|page| if page % 9 == 4 { 5000 + page } else { page });
        assert_eq!(of(pages(), Look::Strict), (0.0, 0.0), "each window has one of them");
        assert_eq!(of(pages(), Look::Majority), (1.0, 0.0));
    }
}
