//! Lines: a number over another one. The horizontal scale has one step for each value that was measured, as sweeps
//! double from step to step.

use super::bars::{draw_legend, draw_scale, height_of};
use crate::statistics::Summary;
use crate::table::format_number;
use spillway_plot::axis::Axis;
use spillway_plot::svg::{Anchor, Svg, colour};

const LEFT: f64 = 70.0;
const STEP_WIDTH: f64 = 80.0;
const RIGHT: f64 = 190.0;
const HEIGHT: f64 = 400.0;
const LABEL_HEIGHT: f64 = 358.0;

/// One line.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// The subject.
    pub name: String,
    /// One value a step; `None` leaves a gap.
    pub values: Vec<Option<Summary>>,
}

/// A chart of lines.
#[derive(Clone, Debug, PartialEq)]
pub struct LineChart {
    /// Stands above it.
    pub title: String,
    /// What the steps are.
    pub steps_title: String,
    /// The steps' labels.
    pub steps: Vec<String>,
    /// The subjects.
    pub lines: Vec<Line>,
}

impl LineChart {
    /// The chart as SVG.
    pub fn svg(&self) -> String {
        let right = LEFT + STEP_WIDTH * self.steps.len() as f64;
        let mut svg = Svg::new(right + RIGHT, HEIGHT);
        let values = self.lines.iter().flat_map(|line| line.values.iter().flatten());
        let axis = Axis::over(values.flat_map(|value| [value.low, value.high]));
        svg.text((LEFT, 22.0), Anchor::Start, 15, &self.title);
        draw_scale(&mut svg, &axis, right);
        for (index, step) in self.steps.iter().enumerate() {
            svg.text((x_of(index), LABEL_HEIGHT), Anchor::Middle, 11, step);
        }
        svg.text((f64::midpoint(LEFT, right), LABEL_HEIGHT + 22.0), Anchor::Middle, 12, &self.steps_title);
        for (index, line) in self.lines.iter().enumerate() {
            self.draw(&mut svg, &axis, line, colour(index));
        }
        draw_legend(&mut svg, right + 12.0, self.lines.iter().map(|line| line.name.as_str()));
        svg.finish()
    }

    fn draw(&self, svg: &mut Svg, axis: &Axis, line: &Line, colour: &str) {
        let mut previous = None;
        for (index, (value, step)) in line.values.iter().zip(&self.steps).enumerate() {
            let here = value.map(|value| (x_of(index), height_of(axis, value.median)));
            if let (Some(from), Some(to)) = (previous, here) {
                svg.line(from, to, colour, 2.0);
            }
            if let (Some(to), Some(value)) = (here, value) {
                svg.line((to.0, height_of(axis, value.low)), (to.0, height_of(axis, value.high)), colour, 1.0);
                svg.dot(to, colour, &format!("{}, {step}: {}", line.name, format_number(value.median)));
            }
            previous = here;
        }
    }
}

fn x_of(step: usize) -> f64 {
    LEFT + STEP_WIDTH * (step as f64 + 0.5)
}

#[cfg(test)]
mod tests {
    use super::*;
    use spillway_testing::svg::is_well_formed;

    fn chart(values: Vec<Option<f64>>) -> LineChart {
        let summary = |median: f64| Summary { median, low: median, high: median, count: 1 };
        LineChart {
            title: "Sweep".to_owned(),
            steps_title: "slab".to_owned(),
            steps: (0..values.len()).map(|step| format!("{step} M")).collect(),
            lines: vec![Line {
                name: "random".to_owned(),
                values: values.into_iter().map(|one| one.map(summary)).collect(),
            }],
        }
    }

    #[test]
    fn every_value_has_its_dot_and_neighbours_are_joined() {
        let svg = chart(vec![Some(1.0), Some(2.0), Some(4.0)]).svg();
        assert!(is_well_formed(&svg));
        assert_eq!(svg.matches("<circle").count(), 3);
        assert_eq!(svg.matches(r#"stroke-width="2""#).count(), 2);
        assert!(svg.contains("random, 2 M: 4.00"));
    }

    #[test]
    fn a_missing_value_leaves_a_gap() {
        let svg = chart(vec![Some(1.0), None, Some(4.0), Some(5.0)]).svg();
        assert_eq!(svg.matches("<circle").count(), 3);
        assert_eq!(svg.matches(r#"stroke-width="2""#).count(), 1);
    }

    #[test]
    fn nothing_at_all_is_a_picture_too() {
        assert!(is_well_formed(&chart(vec![]).svg()));
    }
}
