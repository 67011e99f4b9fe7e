//! Everything that a program can do with its memory, at random from many threads, with every word checked.

use std::path::Path;

use serde_json::Value;

use crate::programs::assert_lent;
use crate::stage::Stage;
use crate::support::{self, soak_seconds};

/// Runs the stress program for some seconds with a budget.
pub(crate) fn stress(local: &str, threads: &str, seed: u64) {
    stress_with(&[], local, threads, seed);
}

/// As [`stress`], with more options for `run`; gives the run's statistics.
pub(crate) fn stress_with(options: &[&str], local: &str, threads: &str, seed: u64) -> Option<Value> {
    let seconds = soak_seconds(6).to_string();
    let statistics = exact("stress", options, local, &|disk| {
        let file = disk.join("file").to_str().unwrap().to_owned();
        vec!["96".into(), seconds.clone(), seed.to_string(), threads.into(), file]
    });
    statistics.inspect(assert_lent)
}

/// Runs the program `name`, which says how many words were wrong, with a budget; its arguments may name files of a directory. Gives
/// the run's statistics, unless something is lacking here.
pub(crate) fn exact(
    name: &str,
    options: &[&str],
    local: &str,
    arguments: &dyn Fn(&Path) -> Vec<String>,
) -> Option<Value> {
    let stage = Stage::set(&["gcc"])?;
    let binary = stage.compile(name, &["-pthread"]);
    let arguments = arguments(stage.disk());
    let mut program = vec![binary.to_str().unwrap()];
    program.extend(arguments.iter().map(String::as_str));
    let options = [&["--local", local, "--lend", "384M", "--slab-size", "4M"], options].concat();
    let mut command = stage.run(&options, &program);
    let said = support::run(&mut command).done(&format!("{program:?} at {local}"));
    assert_eq!(said.text(), format!("{name} wrong 0\n"));
    let statistics = stage.statistics();
    assert_eq!(statistics["device"]["device"]["pages_lost"], 0, "{statistics:#}");
    stage.assert_clean();
    Some(statistics)
}
