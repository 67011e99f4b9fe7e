//! Quicksort of random integers: HPBD's first program.
//!
//! Hoare's partition around the median of three, the smaller side by recursion and the larger by iteration, insertion
//! sort for short pieces. Each level of partitions sweeps the array from both ends, so while pieces exceed local
//! memory all of it is paged once per level; below that it runs from memory.
//!
//! Invariant: the result holds the same numbers as the input (an order-free checksum of both) in ascending order.

use super::phase::PhaseClock;
use super::{Workload, WorkloadError, WorkloadSettings, wrong};
use crate::checksum::{Checksum, Ordered, Unordered};
use crate::random::Random;

/// Pieces up to this length are sorted by insertion: the usual crossover of 10 to 30 elements (Sedgewick 1978).
const INSERTION_LENGTH_MAX: usize = 24;

/// Sorts random 64-bit integers.
#[derive(Clone, Copy, Debug)]
pub struct Quicksort;

/// Sorts `numbers` with up to `threads` threads.
fn sort(numbers: &mut [u64], threads: usize) {
    if threads <= 1 || numbers.len() <= INSERTION_LENGTH_MAX {
        return sort_alone(numbers);
    }
    let middle = partition(numbers);
    let (left, right) = numbers.split_at_mut(middle);
    std::thread::scope(|scope| {
        scope.spawn(|| sort(left, threads / 2));
        sort(right, threads - threads / 2);
    });
}

fn sort_alone(mut numbers: &mut [u64]) {
    while numbers.len() > INSERTION_LENGTH_MAX {
        let middle = partition(numbers);
        let (left, right) = numbers.split_at_mut(middle);
        let (shorter, longer) = if left.len() < right.len() { (left, right) } else { (right, left) };
        sort_alone(shorter);
        numbers = longer;
    }
    sort_by_insertion(numbers);
}

/// Orders `numbers` so that none before the returned place exceeds any from it on; both sides have at least one.
fn partition(numbers: &mut [u64]) -> usize {
    let pivot = median_of_three(numbers);
    let (mut low, mut high) = (0, numbers.len() - 1);
    loop {
        while numbers[low] < pivot {
            low += 1;
        }
        while numbers[high] > pivot {
            high -= 1;
        }
        if low >= high {
            return high + 1;
        }
        numbers.swap(low, high);
        low += 1;
        high -= 1;
    }
}

/// Puts the first, middle and last number in order, so that neither end is the pivot's only home, and gives the median.
fn median_of_three(numbers: &mut [u64]) -> u64 {
    let (middle, last) = ((numbers.len() - 1) / 2, numbers.len() - 1);
    for (one, other) in [(0, middle), (middle, last), (0, middle)] {
        if numbers[one] > numbers[other] {
            numbers.swap(one, other);
        }
    }
    numbers[middle]
}

fn sort_by_insertion(numbers: &mut [u64]) {
    for end in 1..numbers.len() {
        let number = numbers[end];
        let mut place = end;
        while place > 0 && numbers[place - 1] > number {
            numbers[place] = numbers[place - 1];
            place -= 1;
        }
        numbers[place] = number;
    }
}

fn content(numbers: &[u64]) -> Unordered {
    let mut checksum = Unordered::default();
    numbers.iter().for_each(|number| checksum.add(*number));
    checksum
}

impl Workload for Quicksort {
    fn name(&self) -> &'static str {
        "quicksort"
    }

    fn run(&self, settings: &WorkloadSettings, clock: &mut PhaseClock) -> Result<Checksum, WorkloadError> {
        let pages = settings.size.pages();
        let count = settings.size.0 as usize / size_of::<u64>();
        let mut random = Random::new(settings.seed);
        let mut numbers = clock.measure("fill", pages, || {
            let numbers: Vec<u64> = (0..count).map(|_| random.next_u64()).collect();
            numbers
        });
        let before = clock.measure("count", pages, || content(&numbers));
        clock.measure("sort", pages, || sort(&mut numbers, settings.threads));
        clock.measure("check", pages, || self.check(&numbers, &before))
    }
}

impl Quicksort {
    fn check(&self, numbers: &[u64], before: &Unordered) -> Result<Checksum, WorkloadError> {
        if let Some(place) = numbers.windows(2).position(|pair| pair[0] > pair[1]) {
            return Err(wrong(self, format!("numbers {place} and {} are out of order", place + 1)));
        }
        if content(numbers) != *before {
            return Err(wrong(self, "the sorted numbers are not those of the input".to_owned()));
        }
        let mut checksum = Ordered::default();
        numbers.iter().for_each(|number| checksum.add(*number));
        Ok(checksum.finish())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn known_inputs_are_sorted() {
        for input in [vec![], vec![1], vec![2, 1], vec![5; 100], (0..100).collect(), (0..100).rev().collect::<Vec<_>>()]
        {
            let mut expected: Vec<u64> = input.clone();
            expected.sort_unstable();
            let mut sorted = input;
            sort(&mut sorted, 1);
            assert_eq!(sorted, expected);
        }
    }

    #[test]
    fn disorder_and_exchange_are_seen() {
        let before = content(&[1, 2, 3]);
        assert!(Quicksort.check(&[1, 2, 3], &before).is_ok());
        assert!(Quicksort.check(&[2, 1, 3], &before).unwrap_err().to_string().contains("out of order"));
        assert!(Quicksort.check(&[1, 2, 4], &before).unwrap_err().to_string().contains("not those"));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn sorts_as_the_standard_library_does(
            input in proptest::collection::vec(0_u64..1000, 0..600), threads in 1_usize..6
        ) {
            let mut expected = input.clone();
            expected.sort_unstable();
            let mut sorted = input;
            sort(&mut sorted, threads);
            prop_assert_eq!(sorted, expected);
        }

        #[test]
        fn a_partition_parts(input in proptest::collection::vec(0_u64..50, 2..200)) {
            let mut numbers = input;
            let middle = partition(&mut numbers);
            prop_assert!(middle > 0 && middle < numbers.len());
            let largest = numbers[..middle].iter().max();
            prop_assert!(numbers[middle..].iter().all(|number| Some(number) >= largest));
        }
    }
}
