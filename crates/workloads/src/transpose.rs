//! Transpose: a matrix is turned over into another one in square tiles, and back again.
//!
//! Rows are longer than a page, so the reads of a tile go down one stride and its writes down another. Turned over
//! twice, a matrix is what it was, which is checked entry by entry.
//!
//! Invariant: the checksum covers all entries of the turned matrix, so one that was not turned is found.

use super::phase::PhaseClock;
use super::{Workload, WorkloadError, WorkloadSettings, part_length, wrong};
use crate::checksum::{Checksum, Ordered};
use crate::random::word_at;

/// Rows and columns of a tile: two tiles of 64 x 64 words are 64 KiB, within a second-level cache.
const TILE: usize = 64;

/// See the module text.
#[derive(Clone, Copy, Debug)]
pub struct Transpose;

/// Writes the columns of `from` to the rows of `to` from `first_row` on, tile by tile.
fn turn_rows(from: &[u64], rows: &mut [u64], side: usize, first_row: usize) {
    for (band, rows) in rows.chunks_mut(TILE * side).enumerate() {
        let columns = first_row + band * TILE..first_row + band * TILE + rows.len() / side;
        for tile in (0..side).step_by(TILE) {
            let end = (tile + TILE).min(side);
            for source in tile..end {
                let words = &from[source * side + columns.start..source * side + columns.end];
                for (row, word) in rows.chunks_mut(side).zip(words) {
                    row[source] = *word;
                }
            }
        }
    }
}

fn turn(from: &[u64], to: &mut [u64], side: usize, threads: usize) {
    let rows_each = part_length(side, threads).next_multiple_of(TILE);
    std::thread::scope(|scope| {
        for (part, rows) in to.chunks_mut(rows_each * side).enumerate() {
            scope.spawn(move || turn_rows(from, rows, side, part * rows_each));
        }
    });
}

impl Workload for Transpose {
    fn name(&self) -> &'static str {
        "transpose"
    }

    fn run(&self, settings: &WorkloadSettings, clock: &mut PhaseClock) -> Result<Checksum, WorkloadError> {
        let (pages, seed) = (settings.size.pages(), settings.seed);
        let side = (settings.size.0 / (2 * size_of::<u64>() as u64)).isqrt() as usize;
        let mut first = clock.measure("fill", pages / 2, || {
            let words: Vec<u64> = (0..(side * side) as u64).map(|index| word_at(seed, index)).collect();
            words
        });
        let mut second = vec![0; side * side];
        clock.measure("transpose", pages, || turn(&first, &mut second, side, settings.threads));
        let mut checksum = Ordered::default();
        second.iter().for_each(|word| checksum.add(*word));
        clock.measure("back", pages, || turn(&second, &mut first, side, settings.threads));
        match first.iter().zip(0_u64..).position(|(word, index)| *word != word_at(seed, index)) {
            Some(index) => Err(wrong(self, format!("entry {index} is another one after two turns"))),
            None => Ok(checksum.finish()),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(12))]

        #[test]
        fn rows_become_columns_whatever_the_tiles(side in 1_usize..200, threads in 1_usize..4, seed: u64) {
            let from: Vec<u64> = (0..(side * side) as u64).map(|index| word_at(seed, index)).collect();
            let mut to = vec![0; side * side];
            turn(&from, &mut to, side, threads);
            for row in 0..side {
                prop_assert!((0..side).all(|column| to[row * side + column] == from[column * side + row]));
            }
        }
    }
}
