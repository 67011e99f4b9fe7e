//! The curve drawn: as SVG, and with letters for a terminal.

use spillway_machine::size::human;
use spillway_plot::axis::Axis;
use spillway_plot::svg::{Anchor, Svg, colour};

/// What is drawn.
pub(super) trait Slowdowns {
    /// It in a sentence.
    fn sentence(&self) -> String;

    /// All that the program uses.
    fn footprint_bytes(&self) -> f64;

    /// With a part of that local.
    fn slowdown_percent(&self, part: f64) -> f64;
}

/// Where the plot is, and how large, in pixels.
const LEFT: f64 = 90.0;
const TOP: f64 = 48.0;
const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 360.0;
const RIGHT: f64 = 40.0;
const BOTTOM: f64 = 60.0;

/// Sizes that are drawn.
const STEPS: u32 = 128;

/// The plot in a terminal of 80 columns.
const COLUMNS: u32 = 64;
const LINES: u32 = 10;

/// Parts of the footprint that are labelled, in percent.
const LABELLED: [u32; 5] = [0, 25, 50, 75, 100];

fn slowdowns(found: &dyn Slowdowns, steps: u32) -> Vec<f64> {
    (0..=steps).map(|step| found.slowdown_percent(f64::from(step) / f64::from(steps))).collect()
}

/// Slowdown over memory.
pub(super) fn svg(found: &dyn Slowdowns) -> String {
    let slowdowns = slowdowns(found, STEPS);
    let most = slowdowns.iter().copied().fold(0.0, f64::max);
    // One number, so that it is linear: it begins at no slowdown.
    let axis = Axis::over(std::iter::once(most));
    let mut svg = Svg::new(LEFT + WIDTH + RIGHT, TOP + HEIGHT + BOTTOM);
    svg.text((LEFT, 24.0), Anchor::Start, 14, &found.sentence());
    let height = |slowdown: f64| TOP + HEIGHT * (1.0 - axis.place(slowdown));
    for tick in axis.ticks() {
        svg.line((LEFT, height(tick)), (LEFT + WIDTH, height(tick)), "#ddd", 1.0);
        svg.text((LEFT - 6.0, height(tick) + 4.0), Anchor::End, 11, &format!("{tick:.0} %"));
    }
    for percent in LABELLED {
        let part = f64::from(percent) / 100.0;
        let x = LEFT + WIDTH * part;
        svg.line((x, TOP + HEIGHT), (x, TOP + HEIGHT + 5.0), "#888", 1.0);
        svg.text((x, TOP + HEIGHT + 20.0), Anchor::Middle, 11, &human((found.footprint_bytes() * part) as u64));
    }
    svg.text((LEFT + WIDTH / 2.0, TOP + HEIGHT + 44.0), Anchor::Middle, 12, "local memory");
    let place = |step: usize| LEFT + WIDTH * step as f64 / f64::from(STEPS);
    for (step, pair) in slowdowns.windows(2).enumerate() {
        svg.line((place(step), height(pair[0])), (place(step + 1), height(pair[1])), colour(0), 2.0);
    }
    svg.finish()
}

/// The same for a terminal.
pub(super) fn terminal(found: &dyn Slowdowns) -> String {
    let slowdowns = slowdowns(found, COLUMNS);
    let most = slowdowns.iter().copied().fold(0.0, f64::max);
    let mut text = String::from("\n");
    for line in (1..=LINES).rev() {
        let label = if line == LINES { format!("{most:.0} %") } else { String::new() };
        let floor = most * (f64::from(line) - 0.5) / f64::from(LINES);
        let marks: String =
            slowdowns.iter().map(|slowdown| if *slowdown >= floor && most > 0.0 { '#' } else { ' ' }).collect();
        text += &format!("{label:>9} |{}\n", marks.trim_end());
    }
    text += &format!("{:>9} +{}\n", "0 %", "-".repeat(COLUMNS as usize + 1));
    let end = human(found.footprint_bytes() as u64);
    text + &format!("{:>10} 0{end:>1$}\n", "", COLUMNS as usize)
}

#[cfg(test)]
mod tests {
    use spillway_testing::svg::is_well_formed;

    use super::super::finding::tests::finding;
    use super::*;

    #[test]
    fn pictures_fall_to_nothing_at_the_footprint() {
        let svg = svg(&finding(40.0));
        assert!(is_well_formed(&svg) && svg.contains("100 MiB") && svg.contains("40 %"), "{svg}");
        let drawn = terminal(&finding(40.0));
        let lines: Vec<_> = drawn.lines().collect();
        assert!(lines[1].starts_with("     40 % |####") && lines[1].len() < lines[9].len(), "{drawn}");
        assert!(lines.iter().all(|line| line.len() < 80) && drawn.ends_with("100 MiB\n"), "{drawn}");
    }
}
