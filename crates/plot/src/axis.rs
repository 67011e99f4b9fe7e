//! Scales: from a number to a place on the picture, and where to put ticks.
//!
//! A scale is logarithmic when its numbers span more than a factor of `LOGARITHMIC_FROM`: paging costs span from one
//! to a thousand microseconds, and on a linear scale only the slowest would be seen.

/// Spans from here on are shown on a logarithmic scale.
const LOGARITHMIC_FROM: f64 = 30.0;

/// Ticks on a linear scale, about.
const TICKS: f64 = 5.0;

/// A scale over some positive numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct Axis {
    low: f64,
    high: f64,
    logarithmic: bool,
}

impl Axis {
    /// A scale for `numbers`; those that are not positive and finite are not looked at.
    pub fn over(numbers: impl Iterator<Item = f64>) -> Self {
        let usable = numbers.filter(|number| number.is_finite() && *number > 0.0);
        let (least, most) = usable.fold((f64::MAX, 0.0_f64), |(low, high), number| (low.min(number), high.max(number)));
        if most == 0.0 {
            return Self { low: 0.0, high: 1.0, logarithmic: false };
        }
        if most / least > LOGARITHMIC_FROM {
            let (low, high) = (10_f64.powf(least.log10().floor()), 10_f64.powf(most.log10().ceil()));
            return Self { low, high, logarithmic: true };
        }
        let step = round_step(most);
        Self { low: 0.0, high: (most / step).ceil() * step, logarithmic: false }
    }

    /// How far along the scale `number` is, from 0 to 1.
    pub fn place(&self, number: f64) -> f64 {
        let share = if self.logarithmic {
            (number.max(self.low) / self.low).log10() / (self.high / self.low).log10()
        } else {
            (number - self.low) / (self.high - self.low)
        };
        share.clamp(0.0, 1.0)
    }

    /// Round numbers within the scale.
    pub fn ticks(&self) -> Vec<f64> {
        if self.logarithmic {
            let (first, last) = (self.low.log10().round() as i32, self.high.log10().round() as i32);
            return (first..=last).map(|power| 10_f64.powi(power)).collect();
        }
        let step = round_step(self.high);
        (0..=(self.high / step).round() as u32).map(|index| f64::from(index) * step).collect()
    }
}

/// 1, 2 or 5 times a power of ten, so that about [`TICKS`] steps make up `span`.
fn round_step(span: f64) -> f64 {
    let raw = span / TICKS;
    let power = 10_f64.powf(raw.log10().floor());
    [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .map(|factor| factor * power)
        .find(|step| *step >= raw * 0.999)
        .unwrap_or(power * 10.0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn small_spans_start_at_zero() {
        let axis = Axis::over([3.0, 9.4].into_iter());
        assert!(!axis.logarithmic);
        assert_eq!(axis.ticks(), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
        assert_eq!((axis.place(0.0), axis.place(5.0), axis.place(10.0)), (0.0, 0.5, 1.0));
    }

    #[test]
    fn large_spans_are_logarithmic() {
        let axis = Axis::over([2.0, 500.0].into_iter());
        assert!(axis.logarithmic);
        assert_eq!(axis.ticks(), [1.0, 10.0, 100.0, 1000.0]);
        assert!((axis.place(10.0) - 1.0 / 3.0).abs() < 1e-9);
        assert_eq!(axis.place(0.0), 0.0);
    }

    #[test]
    fn nothing_to_show_is_no_error() {
        for numbers in [vec![], vec![0.0], vec![f64::NAN, f64::INFINITY]] {
            assert_eq!(Axis::over(numbers.into_iter()).place(0.5), 0.5);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

        #[test]
        fn places_keep_the_order_and_stay_inside(numbers in proptest::collection::vec(1e-3_f64..1e6, 1..20)) {
            let axis = Axis::over(numbers.iter().copied());
            let mut sorted = numbers;
            sorted.sort_by(f64::total_cmp);
            prop_assert!(sorted.windows(2).all(|pair| axis.place(pair[0]) <= axis.place(pair[1])));
            prop_assert!(sorted.iter().all(|number| (0.0..=1.0).contains(&axis.place(*number))));
        }

        #[test]
        fn ticks_are_few_and_ascend(most in 1e-3_f64..1e9, least in 1e-3_f64..1e9) {
            let ticks = Axis::over([most, least].into_iter()).ticks();
            prop_assert!((2..=16).contains(&ticks.len()), "{:?}", ticks);
            prop_assert!(ticks.windows(2).all(|pair| pair[0] < pair[1]));
        }
    }
}
