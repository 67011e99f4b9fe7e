//! Matrix multiplication in blocks: much computation per page, and strided reads of the right factor.
//!
//! The entries are small integers, so every sum is exact in a double: blocks, threads and vector units cannot change
//! the result. It is checked by Freivalds' method (1977): for a vector x, A(Bx) must equal (AB)x; a wrong entry goes
//! unnoticed with a chance below 1/16 per check, and the checksum covers all entries.

use super::phase::PhaseClock;
use super::{Workload, WorkloadError, WorkloadSettings, part_length, wrong};
use crate::checksum::{Checksum, Ordered};
use crate::random::{Random, word_at};

/// Rows and columns of a block: three blocks of 64 x 64 doubles are 96 KiB, well within a second-level cache.
const BLOCK: usize = 64;

/// Entries are from -8 to 7: products of rows of up to 2^45 entries are exact in a double.
const ENTRY_BITS: u32 = 4;

/// Vectors of Freivalds' check.
const CHECKS: usize = 2;

/// Multiplies two square matrices.
#[derive(Clone, Copy, Debug)]
pub struct Matrix;

/// A square matrix by rows.
#[derive(Clone, Debug, PartialEq)]
struct Square {
    side: usize,
    entries: Vec<f64>,
}

/// The small integer at `index`.
fn entry(seed: u64, index: usize) -> f64 {
    ((word_at(seed, index as u64) >> (u64::BITS - ENTRY_BITS)) as i64 - (1 << (ENTRY_BITS - 1))) as f64
}

impl Square {
    fn zero(side: usize) -> Self {
        Self { side, entries: vec![0.0; side * side] }
    }

    fn random(side: usize, seed: u64) -> Self {
        Self { side, entries: (0..side * side).map(|index| entry(seed, index)).collect() }
    }

    fn row(&self, row: usize) -> &[f64] {
        &self.entries[row * self.side..(row + 1) * self.side]
    }

    fn times(&self, vector: &[f64]) -> Vec<f64> {
        let product = |row| self.row(row).iter().zip(vector).map(|(one, other)| one * other).sum();
        (0..self.side).map(product).collect()
    }
}

/// Adds `left * right` to the rows from `first_row` on that `rows` holds.
fn multiply_rows(left: &Square, right: &Square, first_row: usize, rows: &mut [f64]) {
    let side = left.side;
    for (block, rows) in rows.chunks_mut(BLOCK * side).enumerate() {
        for inner in (0..side).step_by(BLOCK) {
            for column in (0..side).step_by(BLOCK) {
                let (inner_end, column_end) = ((inner + BLOCK).min(side), (column + BLOCK).min(side));
                for (offset, row) in rows.chunks_mut(side).enumerate() {
                    let factors = &left.row(first_row + block * BLOCK + offset)[inner..inner_end];
                    let target = &mut row[column..column_end];
                    for (factor, index) in factors.iter().zip(inner..) {
                        let source = &right.row(index)[column..column_end];
                        target.iter_mut().zip(source).for_each(|(sum, entry)| *sum += factor * entry);
                    }
                }
            }
        }
    }
}

fn multiply(left: &Square, right: &Square, product: &mut Square, threads: usize) {
    let side = left.side;
    let rows_each = part_length(side, threads).next_multiple_of(BLOCK);
    std::thread::scope(|scope| {
        for (part, rows) in product.entries.chunks_mut(rows_each * side).enumerate() {
            scope.spawn(move || multiply_rows(left, right, part * rows_each, rows));
        }
    });
}

impl Workload for Matrix {
    fn name(&self) -> &'static str {
        "matrix"
    }

    fn run(&self, settings: &WorkloadSettings, clock: &mut PhaseClock) -> Result<Checksum, WorkloadError> {
        let (pages, seed) = (settings.size.pages(), settings.seed);
        let side = (settings.size.0 / (3 * size_of::<f64>() as u64)).isqrt() as usize;
        let (left, right) = clock.measure("fill", pages * 2 / 3, || {
            (Square::random(side, seed), Square::random(side, seed.wrapping_add(1)))
        });
        let mut product = Square::zero(side);
        clock.measure("multiply", pages, || multiply(&left, &right, &mut product, settings.threads));
        clock.measure("check", pages, || self.check([&left, &right, &product], seed))
    }
}

impl Matrix {
    /// Checks that the third is the product of the others.
    fn check(&self, [left, right, product]: [&Square; 3], seed: u64) -> Result<Checksum, WorkloadError> {
        let mut random = Random::new(seed ^ 2);
        for _ in 0..CHECKS {
            let vector: Vec<f64> = (0..left.side).map(|_| random.below(16) as f64).collect();
            let (expected, found) = (left.times(&right.times(&vector)), product.times(&vector));
            if let Some(row) = expected.iter().zip(&found).position(|(one, other)| one != other) {
                return Err(wrong(self, format!("row {row} of the product is wrong")));
            }
        }
        let mut checksum = Ordered::default();
        product.entries.iter().for_each(|entry| checksum.add(entry.to_bits()));
        Ok(checksum.finish())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn product(left: &Square, right: &Square, threads: usize) -> Square {
        let mut product = Square::zero(left.side);
        multiply(left, right, &mut product, threads);
        product
    }

    fn naive(left: &Square, right: &Square) -> Square {
        let side = left.side;
        let entry = |index: usize| (0..side).map(|k| left.row(index / side)[k] * right.row(k)[index % side]).sum();
        Square { side, entries: (0..side * side).map(entry).collect() }
    }

    #[test]
    fn a_known_product() {
        let left = Square { side: 2, entries: vec![1.0, 2.0, 3.0, 4.0] };
        let right = Square { side: 2, entries: vec![5.0, 6.0, 7.0, 8.0] };
        assert_eq!(product(&left, &right, 1).entries, [19.0, 22.0, 43.0, 50.0]);
    }

    #[test]
    fn entries_are_small_integers() {
        assert!((0..1000).all(|index| entry(3, index).fract() == 0.0 && (-8.0..8.0).contains(&entry(3, index))));
    }

    #[test]
    fn a_wrong_entry_is_found() {
        let (left, right) = (Square::random(20, 1), Square::random(20, 2));
        let mut found = product(&left, &right, 1);
        assert!(Matrix.check([&left, &right, &found], 5).is_ok());
        found.entries[13 * 20 + 4] += 1.0;
        assert!(Matrix.check([&left, &right, &found], 5).unwrap_err().to_string().contains("row 13"));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(12))]

        #[test]
        fn blocks_and_threads_do_not_matter(side in 1_usize..150, seed: u64, threads in 1_usize..4) {
            let (left, right) = (Square::random(side, seed), Square::random(side, !seed));
            prop_assert_eq!(product(&left, &right, threads), naive(&left, &right));
        }
    }
}
