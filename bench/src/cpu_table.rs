//! CPU time by thread in a study's result: how it is recorded, and the table that shows it.
//!
//! Each group of threads is a case of its own, `CASE, CPU of GROUP`, so that the JSON has all of them. Next to other
//! numbers they would be too many: [`crate::table::document`] shows them in a table of their own, a row for each run.

use crate::harness::cpu_use::CpuUse;
use crate::result::{CPU_SECONDS, PER_CENT_IDLE, StudyResult};
use crate::table::{Table, format_number};

/// Between a case and a group's name.
const CPU_OF: &str = ", CPU of ";
/// After a case.
const IDLE: &str = ", idle";

/// A group that never has such a part of its row's CPU time has no column.
const COLUMN_PART_MIN: f64 = 0.02;

/// Whether numbers of this unit are shown here.
pub fn shows(unit: &str) -> bool {
    [CPU_SECONDS.sign, PER_CENT_IDLE.sign].contains(&unit)
}

/// Records what the CPUs did in a run of round `round`.
pub fn record(result: &mut StudyResult, round: usize, (case, subject): (&str, &str), cpu: &CpuUse) {
    for (group, seconds) in &cpu.seconds {
        result.record(round, &format!("{case}{CPU_OF}{group}"), subject, CPU_SECONDS, *seconds);
    }
    result.record(round, &format!("{case}{IDLE}"), subject, PER_CENT_IDLE, cpu.idle_percent);
}

/// A run's medians.
struct Row<'result> {
    case: &'result str,
    subject: &'result str,
    idle_percent: f64,
    seconds: Vec<(&'result str, f64)>,
}

impl Row<'_> {
    fn of(&self, group: &str) -> Option<f64> {
        self.seconds.iter().find(|(name, _)| *name == group).map(|(_, seconds)| *seconds)
    }

    fn all(&self) -> f64 {
        self.seconds.iter().map(|(_, seconds)| seconds).sum()
    }
}

fn rows(result: &StudyResult) -> Vec<Row<'_>> {
    let idle = result.measures.iter().filter(|measure| measure.unit == PER_CENT_IDLE.sign);
    idle.filter_map(|measure| {
        let idle_percent = measure.summary?.median;
        let case = measure.case.strip_suffix(IDLE)?;
        let of_run = result.measures.iter().filter(|other| other.subject == measure.subject);
        let seconds = of_run.filter_map(|other| {
            let (of, group) = other.case.split_once(CPU_OF)?;
            Some((group, other.summary?.median)).filter(|_| of == case)
        });
        Some(Row { case, subject: &measure.subject, idle_percent, seconds: seconds.collect() })
    })
    .collect()
}

/// Groups that have a column, those with most time first.
fn columns<'result>(rows: &[Row<'result>]) -> Vec<&'result str> {
    let mut groups: Vec<(&str, f64)> = Vec::new();
    for row in rows {
        for (group, seconds) in &row.seconds {
            match groups.iter_mut().find(|(known, _)| known == group) {
                Some((_, all)) => *all += seconds,
                None => groups.push((group, *seconds)),
            }
        }
    }
    groups.sort_by(|one, other| other.1.total_cmp(&one.1));
    let is_seen = |group: &str| {
        rows.iter().any(|row| row.of(group).is_some_and(|seconds| seconds >= row.all() * COLUMN_PART_MIN))
    };
    groups.into_iter().map(|(group, _)| group).filter(|group| is_seen(group)).collect()
}

/// CPU seconds by thread and the part that was idle, a row for each case and subject.
pub fn table(result: &StudyResult) -> Table {
    let rows = rows(result);
    let columns = columns(&rows);
    let heading = ["case", "subject", "idle %"].into_iter().chain(columns.iter().copied()).chain(["rest"]);
    let mut table = Table::new(heading);
    for row in &rows {
        let cell = |seconds: Option<f64>| seconds.map_or("-".to_owned(), format_number);
        let shown: f64 = columns.iter().filter_map(|group| row.of(group)).sum();
        let mut cells = vec![row.case.to_owned(), row.subject.to_owned(), format!("{:.0}", row.idle_percent)];
        cells.extend(columns.iter().map(|group| cell(row.of(group))));
        cells.push(format_number((row.all() - shown).max(0.0)));
        table.row(cells);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::tests::sample;

    #[test]
    fn each_run_has_a_row_and_small_groups_share_a_column() {
        let mut result = sample();
        let seconds = [("server", 9.0), ("spillway faults", 1.0), ("kernel rcu", 0.01)];
        let seconds = seconds.into_iter().map(|(group, seconds)| (group.to_owned(), seconds)).collect();
        record(&mut result, 0, ("read", "spillway"), &CpuUse { seconds, idle_percent: 40.2 });
        let seconds = [("server".to_owned(), 2.0)].into_iter().collect();
        record(&mut result, 0, ("read", "disk"), &CpuUse { seconds, idle_percent: 80.0 });
        let text = table(&result).markdown();
        let lines: Vec<String> = text.lines().map(|line| line.split_ascii_whitespace().collect()).collect();
        assert_eq!(lines[0], "|case|subject|idle%|server|spillwayfaults|rest|");
        assert_eq!(lines[2..], ["|read|spillway|40|9.00|1.00|0.0100|", "|read|disk|80|2.00|-|0.00|"]);
        let document = crate::table::document(&result);
        assert!(document.contains("## CPU seconds") && !document.contains("CPU of server"), "{document}");
    }

    #[test]
    fn a_study_without_them_has_no_table() {
        assert!(table(&sample()).is_empty());
        assert!(!crate::table::document(&sample()).contains("CPU seconds"));
    }
}
