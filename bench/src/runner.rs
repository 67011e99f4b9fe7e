//! Runs studies and writes what they found: `NAME.json`, `NAME.md` and `NAME-*.svg` for each, as soon as it is over,
//! and over all of them `summary.json`, `summary.md`, and `report.md`: the summary and every study's tables as one
//! document.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use crate::harness::HarnessError;
use crate::harness::interrupt::Interrupt;
use crate::harness::subject::Workshop;
use crate::limits::ROUNDS_MAX;
use crate::machine::Machine;
use crate::result::StudyResult;
use crate::schedule::Schedule;
use crate::studies::{Context, Study};
use crate::summary::RunSummary;
use crate::{cpu_table, plot, table};

/// The status of a program that Ctrl-C ended, as shells give it: 128 and the number of SIGINT.
const INTERRUPTED: u8 = 130;

/// What to run, and where, as the command line says it.
#[derive(Clone, Debug, clap::Args)]
pub struct RunSettings {
    /// Only this study; repeat it for more. A wrong name lists them.
    #[arg(long, value_name = "NAME")]
    pub only: Vec<String>,
    /// Small inputs and two rounds at most: to see that all works, not to measure.
    #[arg(long)]
    pub quick: bool,
    /// Rounds of each comparison [default: 2 to 5 by study, or 2 with --quick]
    #[arg(long)]
    pub rounds: Option<usize>,
    /// The product's binary [default: beside this one]
    #[arg(long, value_name = "FILE")]
    pub spillway: Option<PathBuf>,
    /// Where swap files go; must be on a disk [default: /var/tmp or another usual place]
    #[arg(long, value_name = "DIR")]
    pub directory: Option<PathBuf>,
    /// Where results go
    #[arg(long, value_name = "DIR", default_value = "bench/results")]
    pub results: PathBuf,
    /// For `--only rdma`: the RDMA device of this host to use [default: soft-RoCE in a guest]
    #[arg(long = "device", value_name = "NAME")]
    pub rdma_device: Option<String>,
}

/// How program `name` ends with `result`; tells of an error.
pub fn status(name: &str, result: Result<(), Box<dyn std::error::Error>>) -> ExitCode {
    let Err(error) = result else { return ExitCode::SUCCESS };
    eprintln!("{name}: {error}");
    let is_interrupt = error.downcast_ref::<HarnessError>().is_some_and(HarnessError::is_interrupt);
    if is_interrupt { ExitCode::from(INTERRUPTED) } else { ExitCode::FAILURE }
}

/// Those of `all` that `only` names.
fn select(all: &[&'static dyn Study], only: &[String]) -> Result<Vec<&'static dyn Study>, HarnessError> {
    let known = || all.iter().map(|study| study.name()).collect::<Vec<_>>().join(", ");
    if let Some(unknown) = only.iter().find(|name| !all.iter().any(|study| study.name() == *name)) {
        return Err(HarnessError::Missing(format!("there is no study '{unknown}'; choose from: {}", known())));
    }
    Ok(all.iter().copied().filter(|study| only.is_empty() || only.iter().any(|name| name == study.name())).collect())
}

/// Runs the selected ones of `all` studies. A study that fails does not stop the next; the error of the first that
/// failed comes back.
pub fn run(all: &[&'static dyn Study], settings: &RunSettings, interrupt: &Interrupt) -> Result<(), HarnessError> {
    let studies = select(all, &settings.only)?;
    if settings.rounds.is_some_and(|rounds| !(1..=ROUNDS_MAX).contains(&rounds)) {
        return Err(HarnessError::Missing(format!("--rounds takes a number from 1 to {ROUNDS_MAX}")));
    }
    let shop = Workshop::open(settings.spillway.as_deref(), settings.directory.as_deref(), interrupt)?;
    let usual = |study: &dyn Study| if settings.quick { study.rounds_quick() } else { study.rounds() };
    let rounds = |study: &dyn Study| settings.rounds.unwrap_or_else(|| usual(study));
    let schedule = Schedule::new(studies.iter().map(|study| study.expected(settings.quick, rounds(*study))));
    let mut context =
        Context { shop, quick: settings.quick, rounds: 1, schedule, rdma_device: settings.rdma_device.clone() };
    let mut report = Report::new(settings.quick);
    let mut first_error = Ok(());
    for (index, study) in studies.into_iter().enumerate() {
        context.rounds = rounds(study);
        context.schedule.begin(index, Instant::now());
        let outcome = run_one(study, &context, &settings.results, &mut report);
        if let Err(error) = outcome {
            if error.is_interrupt() {
                return Err(error);
            }
            eprintln!("{}: {error}", study.name());
            first_error = first_error.and(Err(error));
        }
    }
    println!("{}", report.summary.text());
    first_error
}

fn run_one(study: &dyn Study, context: &Context, results: &Path, report: &mut Report) -> Result<(), HarnessError> {
    let mut result = StudyResult::new(study.name(), study.title(), context.quick, Machine::here());
    // A mistake in one study must not cost the results of those after it.
    let outcome = catch_unwind(AssertUnwindSafe(|| study.run(context, &mut result)))
        .unwrap_or_else(|_| Err(HarnessError::failed(study.name(), "it panicked, as told above")));
    result.complete = outcome.is_ok();
    // What was measured before a failure or an interrupt is worth keeping.
    if !result.measures.is_empty() || !result.skipped.is_empty() {
        write(&result, &study.plots(&result), results)?;
        report.push(&result);
        report.write(results)?;
        println!("{}", table::document(&result));
        eprintln!("{}: the report is {}", study.name(), results.join(format!("{}.md", study.name())).display());
    }
    outcome
}

fn write_file(results: &Path, name: &str, content: &str) -> Result<(), HarnessError> {
    let file = results.join(name);
    std::fs::create_dir_all(results).map_err(HarnessError::system(format!("making {}", results.display())))?;
    std::fs::write(&file, content).map_err(HarnessError::system(format!("writing {}", file.display())))
}

/// What a run has found so far.
struct Report {
    summary: RunSummary,
    /// Each study's document.
    documents: Vec<String>,
}

impl Report {
    fn new(quick: bool) -> Self {
        Self { summary: RunSummary::new(Machine::here(), quick), documents: Vec::new() }
    }

    fn push(&mut self, result: &StudyResult) {
        self.summary.push(result);
        self.documents.push(table::document(result));
    }

    /// The summary and all tables as one document.
    fn text(&self) -> String {
        let parts = std::iter::once(self.summary.text()).chain(self.documents.iter().cloned());
        parts.map(|part| part.trim_end().to_owned() + "\n").collect::<Vec<String>>().join("\n")
    }

    fn write(&self, results: &Path) -> Result<(), HarnessError> {
        let summary = &self.summary;
        let json = serde_json::to_string_pretty(summary).map_err(HarnessError::system("forming the summary's JSON"))?;
        write_file(results, "summary.json", &json)?;
        write_file(results, "summary.md", &summary.text())?;
        write_file(results, "report.md", &self.text())
    }
}

/// Writes a result as JSON, Markdown and SVG.
fn write(result: &StudyResult, plots: &[(String, String)], results: &Path) -> Result<(), HarnessError> {
    let json = serde_json::to_string_pretty(result).map_err(HarnessError::system("forming the result's JSON"))?;
    let mut files =
        vec![(format!("{}.json", result.study), json), (format!("{}.md", result.study), table::document(result))];
    files.extend(plots.iter().map(|(name, svg)| (format!("{name}.svg"), svg.clone())));
    files.extend(unit_plots(result));
    files.iter().try_for_each(|(name, content)| write_file(results, name, content))
}

/// A plot of bars for each unit of the study.
fn unit_plots(result: &StudyResult) -> Vec<(String, String)> {
    // CPU time by thread would be hundreds of bars.
    let measures = result.measures.iter().filter(|measure| !cpu_table::shows(&measure.unit));
    let mut units: Vec<&str> = measures.map(|measure| measure.unit.as_str()).collect();
    units.sort_unstable();
    units.dedup();
    let file = |unit: &str| {
        let plain: String =
            unit.chars().map(|character| if character.is_alphanumeric() { character } else { '-' }).collect();
        format!("{}-{}.svg", result.study, plain.to_lowercase())
    };
    units.into_iter().filter_map(|unit| Some((file(unit), plot::study_bars(result, unit)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::tests::sample;
    use crate::studies::ALL;

    fn settings(only: &[&str], results: &Path) -> RunSettings {
        RunSettings {
            only: only.iter().map(|name| (*name).to_owned()).collect(),
            quick: true,
            rounds: Some(1),
            spillway: Some("/nonexistent/spillway".into()),
            directory: Some("/var/tmp".into()),
            results: results.to_owned(),
            rdma_device: None,
        }
    }

    #[test]
    fn studies_are_chosen_by_name() {
        assert_eq!(select(&ALL, &[]).unwrap().len(), ALL.len());
        assert_eq!(select(&ALL, &["swap".to_owned()]).unwrap()[0].name(), "swap");
        let error = select(&ALL, &["magic".to_owned()]).err().unwrap().to_string();
        assert!(error.contains("magic") && error.contains("servers"), "{error}");
    }

    #[test]
    fn results_are_written_in_three_forms() {
        let directory = tempfile::tempdir().unwrap();
        let results = directory.path().join("new");
        write(&sample(), &[("extra".to_owned(), "<svg/>".to_owned())], &results).unwrap();
        let read = |name: &str| std::fs::read_to_string(results.join(name)).unwrap();
        let back: StudyResult = serde_json::from_str(&read("sample.json")).unwrap();
        assert_eq!(back, sample());
        assert!(read("sample.md").contains("# sample") && read("sample-us.svg").contains("<svg"));
        assert_eq!(read("extra.svg"), "<svg/>");
    }

    #[test]
    fn a_run_without_the_product_writes_what_was_left_out() {
        let directory = tempfile::tempdir().unwrap();
        let result = run(&ALL, &settings(&["cost"], directory.path()), &Interrupt::never());
        if crate::harness::tool::find("spillway").is_some() {
            return spillway_sys::skipping::skip_because("a spillway is installed on this machine");
        }
        result.unwrap();
        let text = std::fs::read_to_string(directory.path().join("cost.md")).unwrap();
        assert!(text.contains("Left out") && text.contains("--spillway"), "{text}");
        let summary = std::fs::read_to_string(directory.path().join("summary.json")).unwrap();
        let summary: RunSummary = serde_json::from_str(&summary).unwrap();
        assert_eq!((summary.studies.len(), summary.studies[0].study.as_str()), (1, "cost"));
        assert!(summary.studies[0].complete && summary.studies[0].left_out > 0);
    }

    /// A study that measures once and then panics.
    struct Panicking;

    impl Study for Panicking {
        fn name(&self) -> &'static str {
            "panicking"
        }

        fn title(&self) -> &'static str {
            "Panicking"
        }

        fn seconds_per_round(&self) -> (u64, u64) {
            (1, 1)
        }

        fn run(&self, _context: &Context, result: &mut StudyResult) -> Result<(), HarnessError> {
            result.record(0, "case", "subject", crate::result::SECONDS, 1.0);
            panic!("on purpose");
        }
    }

    #[test]
    fn a_study_that_panics_fails_and_keeps_what_it_measured() {
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        let context = crate::studies::tests::context(directory.path(), 1);
        let mut report = Report::new(true);
        let error = run_one(&Panicking, &context, directory.path(), &mut report).unwrap_err();
        assert!(!error.is_interrupt() && error.to_string().contains("panicked"), "{error}");
        assert!(directory.path().join("panicking.json").is_file() && !report.summary.studies[0].complete);
    }

    #[test]
    fn the_report_holds_the_summary_and_every_studys_tables() {
        let directory = tempfile::tempdir().unwrap();
        let mut report = Report::new(true);
        let mut other = sample();
        other.study = "other".to_owned();
        other.goal_of("be good", "a case", Some(1.0), 2.0, crate::result::Better::Lower);
        [sample(), other].iter().for_each(|result| report.push(result));
        report.write(directory.path()).unwrap();
        let text = std::fs::read_to_string(directory.path().join("report.md")).unwrap();
        let headings: Vec<&str> = text.lines().filter(|line| line.starts_with("# ")).collect();
        assert_eq!(headings, ["# Summary", "# sample: A sample", "# other: A sample"]);
        for document in &report.documents {
            assert!(text.contains(document.trim_end()), "{text}");
        }
        assert!(text.contains("be good") && text.ends_with("|\n") && !text.contains("\n\n\n"), "{text}");
    }

    #[test]
    fn results_that_cannot_be_written_are_told_with_their_place() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = write(&sample(), &[], &file.path().join("below")).unwrap_err().to_string();
        assert!(error.contains("below"), "{error}");
    }

    #[test]
    fn each_unit_has_its_plot() {
        let mut result = sample();
        result.record(0, "rate", "disk", crate::result::MIB_PER_SECOND, 3.0);
        let names: Vec<_> = unit_plots(&result).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["sample-mib-s.svg", "sample-us.svg"]);
    }

    #[test]
    fn an_interrupt_and_nonsense_end_a_run() {
        let directory = tempfile::tempdir().unwrap();
        let interrupt = Interrupt::never();
        for rounds in [0, ROUNDS_MAX + 1] {
            let nonsense = RunSettings { rounds: Some(rounds), ..settings(&["cost"], directory.path()) };
            assert!(run(&ALL, &nonsense, &interrupt).unwrap_err().to_string().contains("--rounds"));
        }
        interrupt.raise();
        assert!(run(&ALL, &settings(&["cost"], directory.path()), &interrupt).unwrap_err().is_interrupt());
    }
}
