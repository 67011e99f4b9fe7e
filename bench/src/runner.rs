//! Runs studies and writes what they found: `NAME.json`, `NAME.md` and `NAME-*.svg` for each.

use std::path::{Path, PathBuf};

use crate::harness::HarnessError;
use crate::harness::interrupt::Interrupt;
use crate::harness::spillway::Spillway;
use crate::harness::storage::PrivateDirectory;
use crate::harness::subject::Workshop;
use crate::limits::ROUNDS_MAX;
use crate::machine::Machine;
use crate::result::StudyResult;
use crate::studies::{ALL, Context, Study};
use crate::{plot, table};

/// What to run, and where.
#[derive(Clone, Debug)]
pub struct RunSettings {
    /// Only studies of these names; all without any.
    pub only: Vec<String>,
    /// Small inputs and few rounds.
    pub quick: bool,
    /// Rounds of each comparison; 5, or 2 in a quick run, without.
    pub rounds: Option<usize>,
    /// The product's binary; looked for beside this one without.
    pub spillway: Option<PathBuf>,
    /// Where swap files and the like go; must be on a disk.
    pub directory: Option<PathBuf>,
    /// Where results go.
    pub results: PathBuf,
}

/// The studies that `only` names.
fn select(only: &[String]) -> Result<Vec<&'static dyn Study>, HarnessError> {
    let known = || ALL.iter().map(|study| study.name()).collect::<Vec<_>>().join(", ");
    if let Some(unknown) = only.iter().find(|name| !ALL.iter().any(|study| study.name() == *name)) {
        return Err(HarnessError::Missing(format!("there is no study '{unknown}'; choose from: {}", known())));
    }
    Ok(ALL.into_iter().filter(|study| only.is_empty() || only.iter().any(|name| name == study.name())).collect())
}

/// Runs the selected studies. A study that fails does not stop the next; the error of the first that failed comes back.
pub fn run(settings: &RunSettings, interrupt: &Interrupt) -> Result<(), HarnessError> {
    let studies = select(&settings.only)?;
    let rounds = settings.rounds.unwrap_or(if settings.quick { 2 } else { 5 });
    if !(1..=ROUNDS_MAX).contains(&rounds) {
        return Err(HarnessError::Missing(format!("--rounds takes a number from 1 to {ROUNDS_MAX}")));
    }
    let directory = PrivateDirectory::on_disk(settings.directory.as_deref())?;
    let spillway = Spillway::find(settings.spillway.as_deref(), directory.path()).map_err(|error| error.to_string());
    let shop = Workshop { interrupt: interrupt.clone(), spillway, directory };
    let context = Context { shop, quick: settings.quick, rounds };
    let mut first_error = Ok(());
    for study in studies {
        let result = run_one(study, &context, &settings.results);
        match result {
            Err(error) if error.is_interrupt() => return Err(error),
            Err(error) => {
                eprintln!("{}: {error}", study.name());
                first_error = first_error.and(Err(error));
            }
            Ok(()) => {}
        }
    }
    first_error
}

fn run_one(study: &dyn Study, context: &Context, results: &Path) -> Result<(), HarnessError> {
    let mut result = StudyResult::new(study.name(), study.title(), context.quick, Machine::here());
    let outcome = study.run(context, &mut result);
    // What was measured before a failure or an interrupt is worth keeping.
    if !result.measures.is_empty() || !result.skipped.is_empty() {
        write(&result, &study.plots(&result), results)?;
        println!("{}", table::document(&result));
    }
    outcome
}

/// Writes a result as JSON, Markdown and SVG.
fn write(result: &StudyResult, plots: &[(String, String)], results: &Path) -> Result<(), HarnessError> {
    let failed = |file: &Path| HarnessError::system::<std::io::Error>(format!("writing {}", file.display()));
    std::fs::create_dir_all(results).map_err(failed(results))?;
    let json = serde_json::to_string_pretty(result).map_err(HarnessError::system("forming the result's JSON"))?;
    let mut files =
        vec![(format!("{}.json", result.study), json), (format!("{}.md", result.study), table::document(result))];
    files.extend(plots.iter().map(|(name, svg)| (format!("{name}.svg"), svg.clone())));
    files.extend(unit_plots(result));
    for (name, content) in files {
        let file = results.join(name);
        std::fs::write(&file, content).map_err(failed(&file))?;
    }
    Ok(())
}

/// A plot of bars for each unit of the study.
fn unit_plots(result: &StudyResult) -> Vec<(String, String)> {
    let mut units: Vec<&str> = result.measures.iter().map(|measure| measure.unit.as_str()).collect();
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

    fn settings(only: &[&str], results: &Path) -> RunSettings {
        RunSettings {
            only: only.iter().map(|name| (*name).to_owned()).collect(),
            quick: true,
            rounds: Some(1),
            spillway: Some("/nonexistent/spillway".into()),
            directory: Some("/var/tmp".into()),
            results: results.to_owned(),
        }
    }

    #[test]
    fn studies_are_chosen_by_name() {
        assert_eq!(select(&[]).unwrap().len(), ALL.len());
        assert_eq!(select(&["swap".to_owned()]).unwrap()[0].name(), "swap");
        let error = select(&["magic".to_owned()]).err().unwrap().to_string();
        assert!(error.contains("magic") && error.contains("hpbd"), "{error}");
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
        let result = run(&settings(&["slab"], directory.path()), &Interrupt::never());
        if crate::harness::tool::find("spillway").is_some() {
            println!("left out: a spillway is installed on this machine");
            return;
        }
        result.unwrap();
        let text = std::fs::read_to_string(directory.path().join("slab.md")).unwrap();
        assert!(text.contains("Left out") && text.contains("--spillway"), "{text}");
    }

    #[test]
    fn an_interrupt_and_nonsense_end_a_run() {
        let directory = tempfile::tempdir().unwrap();
        let interrupt = Interrupt::never();
        let nonsense = RunSettings { rounds: Some(0), ..settings(&["slab"], directory.path()) };
        assert!(run(&nonsense, &interrupt).unwrap_err().to_string().contains("--rounds"));
        interrupt.raise();
        assert!(run(&settings(&["slab"], directory.path()), &interrupt).unwrap_err().is_interrupt());
    }
}
