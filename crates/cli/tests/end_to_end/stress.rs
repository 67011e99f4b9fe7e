//! Everything that a program can do with its memory, at random from many threads, with every word checked.

use std::path::Path;

use crate::programs::assert_lent;
use crate::stage::Stage;
use crate::support::{self, soak_seconds};

/// Runs the stress program for some seconds with a budget.
pub(crate) fn stress(local: &str, threads: &str, seed: u64) {
    let seconds = soak_seconds(6).to_string();
    checked("stress", local, &|disk| {
        let file = disk.join("file").to_str().unwrap().to_owned();
        vec!["96".into(), seconds.clone(), seed.to_string(), threads.into(), file]
    });
}

/// Runs the program `name`, which says how many words were wrong, with a budget; its arguments may name files of a directory.
pub(crate) fn checked(name: &str, local: &str, arguments: &dyn Fn(&Path) -> Vec<String>) {
    let Some(stage) = Stage::set(&["gcc"]) else { return };
    let binary = stage.compile(name, &["-pthread"]);
    let arguments = arguments(stage.disk());
    let mut program = vec![binary.to_str().unwrap()];
    program.extend(arguments.iter().map(String::as_str));
    let mut command = stage.run(&["--local", local, "--lend", "384M", "--slab-size", "4M"], &program);
    let said = support::run(&mut command).done(&format!("{program:?} at {local}"));
    assert_eq!(said.text(), format!("{name} wrong 0\n"));
    let statistics = stage.statistics();
    assert_lent(&statistics);
    assert_eq!(statistics["device"]["device"]["pages_lost"], 0, "{statistics:#}");
    stage.assert_clean();
}
