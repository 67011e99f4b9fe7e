//! Points, of which there may be millions, as marks on a grid: a picture has no more than its cells.
//!
//! Invariant: a mark lies within the grid, and each cell has at most one of a cloud.

use std::collections::BTreeSet;
use std::fmt::Write;

/// Points of one colour on a grid of pixels.
#[derive(Clone, Debug, Default)]
pub struct Cloud {
    /// Rows first, so that neighbours in a row follow each other.
    cells: BTreeSet<(u16, u16)>,
}

impl Cloud {
    /// Marks the cell of a point.
    pub fn mark(&mut self, (x, y): (f64, f64)) {
        self.cells.insert((y as u16, x as u16));
    }

    /// Cells that are marked.
    pub fn len(&self) -> usize {
        self.cells.len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.cells.is_empty()
    }

    /// The marks as the data of an SVG path: a line for each run of neighbours in a row.
    pub fn path(&self) -> String {
        let mut path = String::new();
        let mut cells = self.cells.iter().copied().peekable();
        while let Some((y, x)) = cells.next() {
            let mut length = 1;
            while cells.next_if_eq(&(y, x.saturating_add(length))).is_some() {
                length += 1;
            }
            // What is written to a string cannot fail.
            let _ = write!(path, "M{x} {y}.5h{length}");
        }
        path
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn neighbours_in_a_row_are_one_line() {
        let mut cloud = Cloud::default();
        for point in [(3.2, 7.9), (4.0, 7.0), (4.9, 7.1), (6.0, 7.0), (4.0, 8.0)] {
            cloud.mark(point);
        }
        assert_eq!((cloud.path().as_str(), cloud.len()), ("M3 7.5h2M6 7.5h1M4 8.5h1", 4));
        assert!(Cloud::default().is_empty() && Cloud::default().path().is_empty());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn every_marked_cell_is_drawn_once(points in proptest::collection::vec((0.0_f64..20.0, 0.0_f64..5.0), 0..200)) {
            let mut cloud = Cloud::default();
            points.iter().for_each(|point| cloud.mark(*point));
            let path = cloud.path();
            let lengths = path.split('h').skip(1).map(|rest| rest.split('M').next().unwrap().parse::<usize>().unwrap());
            prop_assert_eq!(lengths.sum::<usize>(), cloud.len());
        }
    }
}
