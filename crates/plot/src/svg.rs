//! A writer for the few SVG elements that a plot needs.
//!
//! Invariant: the result is well-formed XML whatever the texts are.

use std::fmt::Write;

/// Colours that are told apart by colour-blind readers too (Okabe and Ito 2008).
pub const COLOURS: [&str; 8] = ["#0072b2", "#e69f00", "#009e73", "#d55e00", "#56b4e9", "#cc79a7", "#f0e442", "#555555"];

/// Where a text is tied to its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Anchor {
    /// Its start.
    Start,
    /// Its middle.
    Middle,
    /// Its end.
    End,
}

/// A picture in the making.
#[derive(Debug)]
pub struct Svg {
    body: String,
    width: f64,
    height: f64,
}

/// Replaces what has a meaning in XML, and drops control characters, which it forbids.
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            control if control.is_control() => escaped.push(' '),
            other => escaped.push(other),
        }
    }
    escaped
}

/// The colour of series `index`.
pub fn colour(index: usize) -> &'static str {
    COLOURS[index % COLOURS.len()]
}

impl Svg {
    /// An empty picture.
    pub fn new(width: f64, height: f64) -> Self {
        Self { body: String::new(), width, height }
    }

    /// A filled rectangle, with a hint that shows when pointed at.
    pub fn rectangle(&mut self, (x, y): (f64, f64), (width, height): (f64, f64), colour: &str, hint: &str) {
        let hint = escape(hint);
        let _ = writeln!(
            self.body,
            r#"<rect x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}" fill="{colour}"><title>{hint}</title></rect>"#
        );
    }

    /// A line.
    pub fn line(&mut self, (x1, y1): (f64, f64), (x2, y2): (f64, f64), colour: &str, width: f64) {
        let _ = writeln!(
            self.body,
            r#"<line x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}" stroke="{colour}" stroke-width="{width}"/>"#
        );
    }

    /// A dot.
    pub fn dot(&mut self, (x, y): (f64, f64), colour: &str, hint: &str) {
        let hint = escape(hint);
        let _ = writeln!(
            self.body,
            r#"<circle cx="{x:.1}" cy="{y:.1}" r="3.5" fill="{colour}"><title>{hint}</title></circle>"#
        );
    }

    /// Lines along `data`, an SVG path, with a hint that shows when pointed at.
    pub fn path(&mut self, data: &str, colour: &str, width: f64, hint: &str) {
        let (data, hint) = (escape(data), escape(hint));
        let _ = writeln!(
            self.body,
            r#"<path d="{data}" stroke="{colour}" stroke-width="{width}" fill="none"><title>{hint}</title></path>"#
        );
    }

    /// A text.
    pub fn text(&mut self, (x, y): (f64, f64), anchor: Anchor, size: u32, text: &str) {
        let (anchor, text) = (anchor_name(anchor), escape(text));
        let _ = writeln!(
            self.body,
            r#"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}" font-size="{size}">{text}</text>"#
        );
    }

    /// A slanted text that ends at its place: labels below an axis that would overlap.
    pub fn slanted_text(&mut self, (x, y): (f64, f64), size: u32, text: &str) {
        let text = escape(text);
        let _ = writeln!(
            self.body,
            r#"<text transform="translate({x:.1} {y:.1}) rotate(-30)" text-anchor="end" font-size="{size}">{text}</text>"#
        );
    }

    /// The whole picture.
    pub fn finish(self) -> String {
        let (width, height) = (self.width, self.height);
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" width=\"{width:.0}\" \
             height=\"{height:.0}\" font-family=\"sans-serif\" fill=\"#222\">\n\
             <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n{}</svg>\n",
            self.body
        )
    }
}

fn anchor_name(anchor: Anchor) -> &'static str {
    match anchor {
        Anchor::Start => "start",
        Anchor::Middle => "middle",
        Anchor::End => "end",
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use spillway_testing::svg::is_well_formed;

    use super::*;

    #[test]
    fn colours_start_again_when_used_up() {
        assert_eq!(colour(0), colour(COLOURS.len()));
        assert_ne!(colour(0), colour(1));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn any_text_gives_well_formed_xml(text in "\\PC{0,30}|[<>&\"'\\x00-\\x1f]{0,30}") {
            let mut svg = Svg::new(10.0, 10.0);
            svg.text((1.0, 2.0), Anchor::Middle, 12, &text);
            svg.slanted_text((1.0, 2.0), 12, &text);
            svg.rectangle((0.0, 0.0), (1.0, 1.0), "red", &text);
            svg.dot((0.0, 0.0), "red", &text);
            svg.line((0.0, 0.0), (1.0, 1.0), "red", 1.0);
            svg.path("M1 1h2", "red", 1.0, &text);
            prop_assert!(is_well_formed(&svg.finish()));
        }
    }
}
