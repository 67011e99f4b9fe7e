//! Misses of a memory of any size: a falling line through points.
//!
//! Invariant: sizes grow and misses never do, because an LRU memory holds all that a smaller one holds (Mattson et al.
//! 1970, "Evaluation techniques for storage hierarchies").

/// A place on the curve.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CurvePoint {
    /// The size of the memory, in pages.
    pub pages: f64,
    /// Pages that have to come back, in a second of the program's work.
    pub misses_per_second: f64,
}

/// See the module text.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MissCurve {
    points: Vec<CurvePoint>,
}

/// A part of the curve before it is made to fall.
#[derive(Clone, Copy, Debug)]
struct Block {
    /// Sum of misses by weight.
    weighted: f64,
    weight: f64,
    members: usize,
}

impl MissCurve {
    /// Through `measured` points, each with its weight, in order of their sizes. Where misses would grow with memory,
    /// neighbours get their mean: the least squares under the condition that the curve falls (pool adjacent violators,
    /// Ayer et al. 1955). A memory of `footprint_pages` misses nothing.
    pub fn through(measured: &[(CurvePoint, f64)], footprint_pages: f64) -> Self {
        let mut blocks: Vec<Block> = Vec::new();
        for (point, weight) in measured {
            assert!(*weight > 0.0, "a point that nothing supports is none");
            let mut last = Block { weighted: point.misses_per_second * weight, weight: *weight, members: 1 };
            while let Some(before) = blocks.pop_if(|before| before.mean() < last.mean()) {
                last = before.with(last);
            }
            blocks.push(last);
        }
        let means = blocks.iter().flat_map(|block| std::iter::repeat_n(block.mean(), block.members));
        let sizes = measured.iter().map(|(point, _)| point.pages);
        let mut points: Vec<_> =
            sizes.zip(means).map(|(pages, misses_per_second)| CurvePoint { pages, misses_per_second }).collect();
        points.retain(|point| point.pages < footprint_pages);
        points.push(CurvePoint { pages: footprint_pages, misses_per_second: 0.0 });
        assert!(points.is_sorted_by(|one, next| one.pages <= next.pages), "points come in order of size");
        Self { points }
    }

    /// Its points, the smallest memory first; the last one holds everything.
    pub fn points(&self) -> &[CurvePoint] {
        &self.points
    }

    /// All that the program uses, in pages.
    pub fn footprint_pages(&self) -> f64 {
        self.points.last().map_or(0.0, |point| point.pages)
    }

    /// The smallest memory of which anything is known, in pages.
    pub fn least_pages(&self) -> f64 {
        self.points.first().map_or(0.0, |point| point.pages)
    }

    /// Misses in a second of work with a memory of `pages`. Below the smallest known memory they are as many as there,
    /// which is too few.
    pub fn misses_per_second(&self, pages: f64) -> f64 {
        let after = self.points.partition_point(|point| point.pages <= pages);
        let Some(right) = self.points.get(after) else { return 0.0 };
        let Some(left) = after.checked_sub(1).map(|before| self.points[before]) else { return right.misses_per_second };
        let share = (pages - left.pages) / (right.pages - left.pages);
        left.misses_per_second + share * (right.misses_per_second - left.misses_per_second)
    }

    /// The least memory, in pages, with at most so many misses in a second of work.
    pub fn pages_for(&self, misses_per_second: f64) -> f64 {
        let after = self.points.partition_point(|point| point.misses_per_second > misses_per_second);
        let Some(right) = self.points.get(after) else { return self.footprint_pages() };
        let Some(left) = after.checked_sub(1).map(|before| self.points[before]) else { return right.pages };
        let share = (left.misses_per_second - misses_per_second) / (left.misses_per_second - right.misses_per_second);
        left.pages + share * (right.pages - left.pages)
    }
}

impl Block {
    fn mean(&self) -> f64 {
        self.weighted / self.weight
    }

    fn with(self, next: Self) -> Self {
        Self {
            weighted: self.weighted + next.weighted,
            weight: self.weight + next.weight,
            members: self.members + next.members,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn point(pages: f64, misses_per_second: f64) -> (CurvePoint, f64) {
        (CurvePoint { pages, misses_per_second }, 1.0)
    }

    #[test]
    fn sizes_and_misses_lead_to_each_other() {
        let curve = MissCurve::through(&[point(10.0, 100.0), point(20.0, 50.0), point(60.0, 10.0)], 100.0);
        assert_eq!((curve.misses_per_second(15.0), curve.pages_for(75.0)), (75.0, 15.0));
        assert_eq!((curve.misses_per_second(80.0), curve.pages_for(5.0)), (5.0, 80.0));
        assert_eq!((curve.misses_per_second(1.0), curve.pages_for(1000.0)), (100.0, 10.0), "nothing is known there");
        assert_eq!((curve.misses_per_second(200.0), curve.pages_for(0.0)), (0.0, 100.0));
        assert_eq!(MissCurve::through(&[], 0.0).pages_for(5.0), 0.0);
    }

    #[test]
    fn a_curve_that_would_rise_is_flat_there() {
        let curve = MissCurve::through(&[point(10.0, 20.0), point(20.0, 40.0), point(30.0, 5.0)], 40.0);
        let misses: Vec<_> = curve.points().iter().map(|point| point.misses_per_second).collect();
        assert_eq!(misses, [30.0, 30.0, 5.0, 0.0]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn a_curve_falls_and_keeps_the_mean(misses in proptest::collection::vec(0.0_f64..1e6, 1..40)) {
            let measured: Vec<_> = misses.iter().enumerate().map(|(at, misses)| point(at as f64, *misses)).collect();
            let curve = MissCurve::through(&measured, misses.len() as f64);
            prop_assert!(curve.points().windows(2).all(|two| two[0].misses_per_second >= two[1].misses_per_second));
            let sum: f64 = curve.points().iter().map(|point| point.misses_per_second).sum();
            prop_assert!((sum - misses.iter().sum::<f64>()).abs() < 1e-3);
            for wanted in [0.0, 10.0, 1e5] {
                let got = curve.misses_per_second(curve.pages_for(wanted));
                prop_assert!(got <= wanted + 1e-3);
            }
        }
    }
}
