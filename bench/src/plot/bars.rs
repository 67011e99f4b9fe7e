//! Grouped bars: a group for each case, a bar for each subject, quartiles as whiskers.

use crate::statistics::Summary;
use crate::table::format_number;
use spillway_plot::axis::Axis;
use spillway_plot::svg::{Anchor, Svg, colour};

/// Room around the bars, in pixels: left for numbers, top for title and legend, bottom for slanted labels.
const MARGIN_LEFT: f64 = 70.0;
const MARGIN_TOP: f64 = 40.0;
const MARGIN_BOTTOM: f64 = 110.0;
const MARGIN_RIGHT: f64 = 190.0;
const PLOT_HEIGHT: f64 = 300.0;
const BAR_WIDTH: f64 = 16.0;
const GROUP_GAP: f64 = 24.0;
const LEGEND_LINE: f64 = 18.0;

/// One subject's bars.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// The subject.
    pub name: String,
    /// One value a group; `None` leaves its place empty.
    pub values: Vec<Option<Summary>>,
}

/// A chart of grouped bars.
#[derive(Clone, Debug, PartialEq)]
pub struct BarChart {
    /// Stands above it.
    pub title: String,
    /// The unit of all values.
    pub unit: String,
    /// The groups' labels.
    pub groups: Vec<String>,
    /// The subjects.
    pub series: Vec<Series>,
}

impl BarChart {
    /// The chart as SVG.
    pub fn svg(&self) -> String {
        let width = MARGIN_LEFT + self.group_width() * self.groups.len() as f64 + MARGIN_RIGHT;
        let legend = LEGEND_LINE * self.series.len() as f64;
        let mut svg = Svg::new(width, MARGIN_TOP + PLOT_HEIGHT.max(legend) + MARGIN_BOTTOM);
        let values = self.series.iter().flat_map(|series| series.values.iter().flatten());
        let axis = Axis::over(values.flat_map(|value| [value.low, value.high]));
        svg.text((MARGIN_LEFT, 22.0), Anchor::Start, 15, &self.title);
        draw_scale(&mut svg, &axis, width - MARGIN_RIGHT);
        for (index, group) in self.groups.iter().enumerate() {
            self.draw_group(&mut svg, &axis, index, group);
        }
        draw_legend(&mut svg, width - MARGIN_RIGHT + 12.0, self.series.iter().map(|series| series.name.as_str()));
        svg.finish()
    }

    fn group_width(&self) -> f64 {
        BAR_WIDTH * self.series.len() as f64 + GROUP_GAP
    }

    fn draw_group(&self, svg: &mut Svg, axis: &Axis, index: usize, label: &str) {
        let left = MARGIN_LEFT + self.group_width() * index as f64 + GROUP_GAP / 2.0;
        for (bar, series) in self.series.iter().enumerate() {
            let Some(value) = series.values.get(index).copied().flatten() else { continue };
            let (x, top) = (left + BAR_WIDTH * bar as f64, height_of(axis, value.median));
            let hint = format!("{}, {label}: {} {}", series.name, format_number(value.median), self.unit);
            let size = (BAR_WIDTH - 2.0, (MARGIN_TOP + PLOT_HEIGHT - top).max(1.0));
            svg.rectangle((x, top), size, colour(bar), &hint);
            let middle = x + BAR_WIDTH / 2.0 - 1.0;
            svg.line((middle, height_of(axis, value.low)), (middle, height_of(axis, value.high)), "#222", 1.2);
        }
        let middle = left + BAR_WIDTH * self.series.len() as f64 / 2.0;
        svg.slanted_text((middle, MARGIN_TOP + PLOT_HEIGHT + 16.0), 11, label);
    }
}

/// Where a value lies on the picture, from its top.
pub(super) fn height_of(axis: &Axis, value: f64) -> f64 {
    MARGIN_TOP + PLOT_HEIGHT * (1.0 - axis.place(value))
}

/// The scale at the left with thin lines across to `right`.
pub(super) fn draw_scale(svg: &mut Svg, axis: &Axis, right: f64) {
    for tick in axis.ticks() {
        let y = height_of(axis, tick);
        svg.line((MARGIN_LEFT, y), (right, y), "#ddd", 1.0);
        svg.text((MARGIN_LEFT - 6.0, y + 4.0), Anchor::End, 11, &format_number(tick));
    }
}

/// Names beside their colours.
pub(super) fn draw_legend<'name>(svg: &mut Svg, left: f64, names: impl Iterator<Item = &'name str>) {
    for (index, name) in names.enumerate() {
        let y = MARGIN_TOP + LEGEND_LINE * index as f64;
        svg.rectangle((left, y), (11.0, 11.0), colour(index), name);
        svg.text((left + 17.0, y + 10.0), Anchor::Start, 12, name);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use spillway_testing::svg::is_well_formed;

    fn value(median: f64) -> Option<Summary> {
        Some(Summary { median, low: median * 0.9, high: median * 1.1, count: 3 })
    }

    fn chart() -> BarChart {
        let series = |name: &str, values| Series { name: name.to_owned(), values };
        BarChart {
            title: "Times <of> it".to_owned(),
            unit: "us".to_owned(),
            groups: vec!["read".to_owned(), "write".to_owned()],
            series: vec![
                series("one & only", vec![value(10.0), None]),
                series("other", vec![value(20.0), value(30.0)]),
            ],
        }
    }

    #[test]
    fn every_value_has_its_bar() {
        let svg = chart().svg();
        assert!(is_well_formed(&svg));
        // The background, three bars and two legend entries.
        assert_eq!(svg.matches("<rect").count(), 6);
        for part in ["Times &lt;of&gt; it", "one &amp; only", "other, write: 30.0 us", ">read<"] {
            assert!(svg.contains(part), "{part}");
        }
    }

    #[test]
    fn larger_values_are_higher() {
        let axis = Axis::over([10.0, 20.0].into_iter());
        assert!(height_of(&axis, 20.0) < height_of(&axis, 10.0));
        assert_eq!(height_of(&axis, 0.0), MARGIN_TOP + PLOT_HEIGHT);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn any_chart_is_well_formed_and_complete(
            medians in proptest::collection::vec(proptest::collection::vec(proptest::option::of(1e-3_f64..1e6), 4), 0..6),
            name in "[a-z<>&\"]{0,10}"
        ) {
            let count = medians.iter().flatten().flatten().count();
            let series: Vec<Series> = medians
                .into_iter()
                .map(|values| Series { name: name.clone(), values: values.into_iter().map(|one| value(one?)).collect() })
                .collect();
            let legend = series.len();
            let groups = (0..4).map(|index| format!("{name}{index}")).collect();
            let svg = BarChart { title: name, unit: "us".to_owned(), groups, series }.svg();
            prop_assert!(is_well_formed(&svg));
            prop_assert_eq!(svg.matches("<rect").count(), 1 + count + legend);
        }

        #[test]
        fn bars_stay_inside_the_picture(number in 1e-3_f64..1e6, other in 1e-3_f64..1e6) {
            let axis = Axis::over([number, other].into_iter());
            for one in [number, other] {
                prop_assert!((MARGIN_TOP..=MARGIN_TOP + PLOT_HEIGHT).contains(&height_of(&axis, one)));
            }
        }
    }

    #[test]
    fn an_empty_chart_is_a_picture_too() {
        let empty = BarChart { groups: Vec::new(), series: Vec::new(), ..chart() };
        assert!(is_well_formed(&empty.svg()));
    }
}
