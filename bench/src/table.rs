//! Tables for people: Markdown, with columns padded so that they read well as plain text too.

use std::fmt::Write;

use crate::cpu_table;
use crate::result::{Better, StudyResult};

/// Rows of text under a heading; the first column is left-aligned, the others right-aligned.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    heading: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table without rows.
    pub fn new<Text: Into<String>>(heading: impl IntoIterator<Item = Text>) -> Self {
        Self { heading: heading.into_iter().map(Into::into).collect(), rows: Vec::new() }
    }

    /// Adds a row; it must have as many cells as the heading.
    pub fn row<Text: Into<String>>(&mut self, cells: impl IntoIterator<Item = Text>) {
        let cells: Vec<String> = cells.into_iter().map(Into::into).collect();
        assert_eq!(cells.len(), self.heading.len(), "a row has a cell for each column");
        self.rows.push(cells);
    }

    /// Whether it has no rows.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The table as Markdown.
    pub fn markdown(&self) -> String {
        let lines = || std::iter::once(&self.heading).chain(&self.rows);
        let width = |column: usize| lines().map(|row| escape(&row[column]).chars().count()).max().unwrap_or(0).max(3);
        let widths: Vec<usize> = (0..self.heading.len()).map(width).collect();
        let mut text = format_row(&self.heading, &widths);
        text.push_str(&rule(&widths));
        self.rows.iter().for_each(|row| text.push_str(&format_row(row, &widths)));
        text
    }
}

fn escape(cell: &str) -> String {
    cell.replace('|', "\\|").replace('\n', " ")
}

fn format_row(cells: &[String], widths: &[usize]) -> String {
    let mut line = String::from("|");
    for (column, (cell, width)) in cells.iter().zip(widths).enumerate() {
        let (cell, width) = (escape(cell), *width);
        line += &if column == 0 { format!(" {cell:<width$} |") } else { format!(" {cell:>width$} |") };
    }
    line + "\n"
}

fn rule(widths: &[usize]) -> String {
    let cell = |(column, width): (usize, &usize)| {
        if column == 0 { format!(":{}|", "-".repeat(width + 1)) } else { format!("{}:|", "-".repeat(width + 1)) }
    };
    format!("|{}\n", widths.iter().enumerate().map(cell).collect::<String>())
}

/// A number with about three digits.
pub fn format_number(number: f64) -> String {
    match number.abs() {
        size if size >= 100.0 => format!("{number:.0}"),
        size if size >= 10.0 => format!("{number:.1}"),
        size if size >= 0.1 || size == 0.0 => format!("{number:.2}"),
        _ => format!("{number:.4}"),
    }
}

/// A study as a Markdown document: numbers, ratios, goals, and what was left out.
pub fn document(result: &StudyResult) -> String {
    let mut text = format!("# {}: {}\n\n", result.study, result.title);
    let machine = &result.machine;
    let mode = if result.quick { "; quick run, for a look only" } else { "" };
    let _ = writeln!(
        text,
        "Linux {}, {}, {} CPUs{mode}. Medians; quartiles in brackets.\n",
        machine.kernel, machine.processor, machine.cpus
    );
    if !result.complete {
        text += "It did not come to its end: these are the numbers up to there.\n\n";
    }
    text += &numbers(result).markdown();
    let cpu = ("CPU seconds by thread", cpu_table::table(result));
    for (title, table) in [cpu, ("Ratios", ratios(result)), ("Goals", goals(result)), ("Left out", skipped(result))] {
        if !table.is_empty() {
            let _ = writeln!(text, "\n## {title}\n\n{}", table.markdown().trim_end());
        }
    }
    text
}

fn numbers(result: &StudyResult) -> Table {
    let subjects = result.subjects();
    let mut table = Table::new(["case".to_owned(), "unit".to_owned()].into_iter().chain(subjects.iter().cloned()));
    for case in result.cases() {
        let unit = result.measures.iter().find(|measure| measure.case == case).map(|measure| measure.unit.clone());
        if unit.as_deref().is_some_and(cpu_table::shows) {
            continue;
        }
        let cell = |subject: &String| match result.measure(&case, subject).and_then(|measure| measure.summary) {
            Some(one) if one.count > 1 => {
                format!("{} [{}, {}]", format_number(one.median), format_number(one.low), format_number(one.high))
            }
            Some(one) => format_number(one.median),
            None => "-".to_owned(),
        };
        table.row([case.clone(), unit.unwrap_or_default()].into_iter().chain(subjects.iter().map(cell)));
    }
    table
}

fn ratios(result: &StudyResult) -> Table {
    let mut table = Table::new(["case", "ratio", "median", "quartiles", "rounds"]);
    for one in &result.comparisons {
        let ratio = &one.ratio;
        table.row([
            one.case.clone(),
            format!("{} / {}", one.subject, one.baseline),
            format_number(ratio.median),
            format!("{} to {}", format_number(ratio.low), format_number(ratio.high)),
            ratio.count.to_string(),
        ]);
    }
    table
}

fn goals(result: &StudyResult) -> Table {
    let mut table = Table::new(["goal", "case", "ratio", "bound", "verdict"]);
    for goal in &result.goals {
        let sign = if goal.better == Better::Lower { "<=" } else { ">=" };
        table.row([
            goal.goal.clone(),
            goal.case.clone(),
            goal.ratio.map_or("-".to_owned(), format_number),
            format!("{sign} {}", format_number(goal.bound)),
            goal.verdict().to_owned(),
        ]);
    }
    table
}

fn skipped(result: &StudyResult) -> Table {
    let mut table = Table::new(["what", "why"]);
    result.skipped.iter().for_each(|skip| table.row([&skip.what, &skip.reason]));
    table
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::result::tests::sample;

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(["name", "n"]);
        table.row(["a", "1"]);
        table.row(["longer", "12345"]);
        let text = table.markdown();
        assert_eq!(text, "| name   |     n |\n|:-------|------:|\n| a      |     1 |\n| longer | 12345 |\n");
    }

    #[test]
    fn bars_and_line_ends_do_not_break_a_row() {
        let mut table = Table::new(["a"]);
        table.row(["x|y\nz"]);
        assert!(table.markdown().contains("x\\|y z"));
        assert_eq!(table.markdown().lines().count(), 3);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn every_line_has_every_column_and_one_width(
            rows in proptest::collection::vec(proptest::collection::vec("[a-zäß| \n]{0,12}", 3), 0..8)
        ) {
            let mut table = Table::new(["one", "two", "three"]);
            rows.iter().for_each(|row| table.row(row.iter().cloned()));
            let text = table.markdown();
            let lines: Vec<&str> = text.lines().collect();
            prop_assert_eq!(lines.len(), rows.len() + 2);
            for line in &lines {
                prop_assert_eq!(line.replace("\\|", "").matches('|').count(), 4, "{}", line);
                prop_assert_eq!(line.chars().count(), lines[0].chars().count());
            }
        }

        #[test]
        fn numbers_come_back_to_within_five_per_cent(number in 0.001_f64..1e9) {
            let back: f64 = format_number(number).parse().unwrap();
            prop_assert!((back - number).abs() <= number * 0.051, "{number} became {back}");
        }
    }

    #[test]
    #[should_panic(expected = "each column")]
    fn short_rows_are_refused() {
        Table::new(["a", "b"]).row(["only one"]);
    }

    #[test]
    fn numbers_have_three_digits() {
        for (number, text) in [(1234.5, "1234"), (12.345, "12.3"), (1.2345, "1.23"), (0.0, "0.00"), (0.01234, "0.0123")]
        {
            assert_eq!(format_number(number), text);
        }
    }

    #[test]
    fn a_document_shows_all_there_is() {
        let mut result = sample();
        result.record(0, "verify", "disk", crate::result::MICROSECONDS, 1.0);
        assert!(!document(&result).contains("## Goals"), "empty parts are left out");
        result.compare_with("disk");
        result.goal("half", "read", "spillway", "disk", 0.5, Better::Lower);
        result.skip("zram", "the kernel has no zram");
        assert!(document(&result).contains("did not come to its end"));
        result.complete = true;
        let text = document(&result);
        assert!(!text.contains("did not come to its end"));
        for part in
            ["| read ", "11.0 [10.5, 11.5]", "spillway / disk", "| half", "<= 0.50", " met |", "no zram", "quick run"]
        {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
        assert!(text.contains("  - |"), "a case without a number shows a dash");
    }
}
