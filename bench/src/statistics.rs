//! Medians, spread and paired ratios.
//!
//! Every claim is a ratio of two things measured in the same run, round by round, so that what disturbs a round
//! disturbs both. A median and quartiles of few rounds say more than a mean, which one disturbed round moves.

use serde::{Deserialize, Serialize};

/// The middle and the spread of some samples.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// The median.
    pub median: f64,
    /// The first quartile; of fewer than four samples it lies near the smallest.
    pub low: f64,
    /// The third quartile.
    pub high: f64,
    /// How many samples there are.
    pub count: usize,
}

impl Summary {
    /// The summary of `samples`; `None` without any, or when one is not a number.
    pub fn of(samples: &[f64]) -> Option<Self> {
        if samples.is_empty() || samples.iter().any(|sample| sample.is_nan()) {
            return None;
        }
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        let at = |share| quantile(&sorted, share);
        Some(Self { median: at(0.5), low: at(0.25), high: at(0.75), count: sorted.len() })
    }
}

/// The value below which `share` of the `sorted` samples lie, interpolated between neighbours.
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let place = share * (sorted.len() - 1) as f64;
    let (below, part) = (place.floor() as usize, place.fract());
    let above = (below + 1).min(sorted.len() - 1);
    sorted[below] + (sorted[above] - sorted[below]) * part
}

/// The ratio `subject / baseline` of each round that both have; `None` where either is missing.
pub fn paired_ratio(subject: &[Option<f64>], baseline: &[Option<f64>]) -> Option<Summary> {
    let pairs = subject.iter().zip(baseline);
    let ratio = |(one, other): (&Option<f64>, &Option<f64>)| match (one, other) {
        (Some(one), Some(other)) if *other != 0.0 => Some(one / other),
        _ => None,
    };
    Summary::of(&pairs.filter_map(ratio).collect::<Vec<f64>>())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn known_medians_and_quartiles() {
        let summary = Summary::of(&[5.0, 1.0, 3.0, 2.0, 4.0]).unwrap();
        assert_eq!((summary.low, summary.median, summary.high, summary.count), (2.0, 3.0, 4.0, 5));
        assert_eq!(Summary::of(&[1.0, 2.0]).unwrap().median, 1.5);
        assert_eq!(Summary::of(&[]), None);
        assert_eq!(Summary::of(&[1.0, f64::NAN]), None);
    }

    #[test]
    fn one_disturbed_round_does_not_move_the_ratio() {
        let subject = [Some(2.0), Some(200.0), Some(2.2)];
        let baseline = [Some(1.0), Some(100.0), Some(1.1)];
        let ratio = paired_ratio(&subject, &baseline).unwrap();
        assert!((ratio.median - 2.0).abs() < 1e-12 && ratio.high - ratio.low < 1e-9);
    }

    #[test]
    fn rounds_that_one_side_misses_are_left_out() {
        let ratio = paired_ratio(&[None, Some(3.0), Some(8.0)], &[Some(1.0), None, Some(4.0)]).unwrap();
        assert_eq!((ratio.median, ratio.count), (2.0, 1));
        assert_eq!(paired_ratio(&[Some(1.0)], &[Some(0.0)]), None);
        assert_eq!(paired_ratio(&[], &[]), None);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn a_summary_is_in_order_and_in_range(samples in proptest::collection::vec(-1e6_f64..1e6, 1..40)) {
            let summary = Summary::of(&samples).unwrap();
            let (least, most) = samples.iter().fold((f64::MAX, f64::MIN), |(low, high), one| (low.min(*one), high.max(*one)));
            prop_assert!(least <= summary.low && summary.low <= summary.median);
            prop_assert!(summary.median <= summary.high && summary.high <= most);
        }

        #[test]
        fn order_does_not_matter(mut samples in proptest::collection::vec(-1e6_f64..1e6, 1..40)) {
            let summary = Summary::of(&samples);
            samples.reverse();
            prop_assert_eq!(summary, Summary::of(&samples));
        }

        #[test]
        fn swapping_the_sides_inverts_a_ratio(pairs in proptest::collection::vec((0.1_f64..1e3, 0.1_f64..1e3), 1..2)) {
            let (one, other): (Vec<_>, Vec<_>) = pairs.into_iter().map(|(one, other)| (Some(one), Some(other))).unzip();
            let (there, back) = (paired_ratio(&one, &other).unwrap(), paired_ratio(&other, &one).unwrap());
            prop_assert!((there.median * back.median - 1.0).abs() < 1e-9);
        }
    }
}
