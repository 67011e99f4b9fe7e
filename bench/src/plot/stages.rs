//! Stacked bars: one bar for each subject, one part for each stage, in the order of time.

use crate::table::format_number;
use spillway_plot::svg::{Anchor, Svg, colour};

/// Room around the bars, in pixels.
const LEFT: f64 = 210.0;
const TOP: f64 = 44.0;
const RIGHT: f64 = 90.0;
const WIDTH: f64 = 620.0;
const BAR_HEIGHT: f64 = 26.0;
const BAR_GAP: f64 = 14.0;
const LEGEND_LINE: f64 = 20.0;
/// A part narrower than this has no room for its number.
const NUMBER_WIDTH: f64 = 34.0;

/// A chart of stages.
#[derive(Clone, Debug, PartialEq)]
pub struct StageChart {
    /// Stands above it.
    pub title: String,
    /// The stages' names.
    pub stages: Vec<String>,
    /// Each subject with its times by stage.
    pub bars: Vec<(String, Vec<f64>)>,
}

impl StageChart {
    /// The chart as SVG.
    pub fn svg(&self) -> String {
        let height =
            TOP + (BAR_HEIGHT + BAR_GAP) * self.bars.len() as f64 + LEGEND_LINE * self.stages.len() as f64 + 20.0;
        let mut svg = Svg::new(LEFT + WIDTH + RIGHT, height);
        svg.text((LEFT, 24.0), Anchor::Start, 15, &self.title);
        let longest = self.bars.iter().map(|(_, times)| times.iter().sum::<f64>()).fold(0.0, f64::max);
        let scale = if longest > 0.0 { WIDTH / longest } else { 0.0 };
        for (row, (name, times)) in self.bars.iter().enumerate() {
            self.draw_bar(&mut svg, TOP + (BAR_HEIGHT + BAR_GAP) * row as f64, name, times, scale);
        }
        let legend = TOP + (BAR_HEIGHT + BAR_GAP) * self.bars.len() as f64 + 8.0;
        for (index, stage) in self.stages.iter().enumerate() {
            let y = legend + LEGEND_LINE * index as f64;
            svg.rectangle((LEFT, y), (12.0, 12.0), colour(index), stage);
            svg.text((LEFT + 18.0, y + 11.0), Anchor::Start, 12, stage);
        }
        svg.finish()
    }

    fn draw_bar(&self, svg: &mut Svg, y: f64, name: &str, times: &[f64], scale: f64) {
        let middle = y + BAR_HEIGHT * 0.68;
        svg.text((LEFT - 8.0, middle), Anchor::End, 12, name);
        let mut x = LEFT;
        for (index, (time, stage)) in times.iter().zip(&self.stages).enumerate() {
            let width = time * scale;
            svg.rectangle((x, y), (width, BAR_HEIGHT), colour(index), &format!("{stage}: {}", format_number(*time)));
            if width >= NUMBER_WIDTH {
                svg.text((x + width / 2.0, middle), Anchor::Middle, 11, &format_number(*time));
            }
            x += width;
        }
        svg.text((x + 6.0, middle), Anchor::Start, 12, &format_number(times.iter().sum()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use spillway_testing::svg::is_well_formed;

    fn chart(bars: Vec<(String, Vec<f64>)>) -> StageChart {
        StageChart { title: "t < u".to_owned(), stages: vec!["first".to_owned(), "second & last".to_owned()], bars }
    }

    #[test]
    fn every_bar_and_stage_is_there_and_the_longest_fills_the_width() {
        let svg = chart(vec![("a".to_owned(), vec![1.0, 3.0]), ("b".to_owned(), vec![1.0, 1.0])]).svg();
        assert!(is_well_formed(&svg));
        assert_eq!(svg.matches("<rect").count(), 1 + 4 + 2, "background, parts, legend");
        assert!(svg.contains(&format!("width=\"{:.1}\"", WIDTH * 0.75)));
        assert!(svg.contains("second &amp; last"));
    }

    #[test]
    fn nothing_to_show_is_a_picture_too() {
        assert!(is_well_formed(&chart(Vec::new()).svg()));
        assert!(is_well_formed(&chart(vec![("a".to_owned(), vec![0.0, 0.0])]).svg()));
    }
}
