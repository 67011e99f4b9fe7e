//! Everything that a program can do with its memory, at random from many threads, with every word checked.

use std::path::Path;

use serde_json::Value;

use crate::VIA;
use crate::both_ways::shares::assert_share;
use crate::both_ways::stage::Stage;
use crate::support::{self, soak_seconds};

#[test]
fn stress_with_few_threads_finds_no_wrong_word() {
    stress_with(&[], "50%", "2", 1);
}

#[test]
fn stress_with_many_threads_finds_no_wrong_word() {
    stress_with(&[], "25%", "8", 2);
}

/// As many as the program can have.
#[test]
fn stress_with_32_threads_finds_no_wrong_word() {
    stress_with(&[], "25%", "32", 5);
}

/// Runs the stress program for some seconds with a budget, and more options for `run`; gives the run's statistics.
pub(crate) fn stress_with(options: &[&str], local: &str, threads: &str, seed: u64) -> Option<Value> {
    let seconds = soak_seconds(3).to_string();
    let (statistics, said) = exact("stress", options, local, &|disk| {
        let file = disk.join("file").to_str().unwrap().to_owned();
        let mut arguments = vec!["96".into(), seconds.clone(), seed.to_string(), threads.into(), file];
        arguments.extend(registered_buffers_are_written().then(|| "write".into()));
        arguments
    })?;
    assert_share(&statistics);
    assert_did_everything(&said);
    Some(statistics)
}

/// Whether a program must write to the pages of a registered buffer, lest the kernel loses what is read into them.
/// Linux drops such a page of any swap device, a plain disk included, if the program has only read it since it came
/// back (docs/guarantees.md).
fn registered_buffers_are_written() -> bool {
    VIA == "swap"
}

/// Buffers that io_uring has registered keep what is read into them.
#[test]
fn registered_buffers_keep_what_is_read_into_them() {
    let how = if registered_buffers_are_written() { "write" } else { "read" };
    let arguments = |disk: &Path| vec![disk.join("file").to_str().unwrap().to_owned(), how.to_owned()];
    let Some((statistics, _)) = exact("registered", &[], "50%", &arguments) else { return };
    assert_share(&statistics);
}

/// Kinds of operations of the stress program.
const KINDS: usize = 24;

/// Those that a machine may refuse (a file system without direct access, no io_uring, no huge page to be had, a limit
/// of locked memory).
const REFUSED: [&str; 6] = ["direct read", "direct write", "io_uring", "registered buffers", "collapse", "mlock"];

/// Each kind was done at least once, or the machine refuses it.
fn assert_did_everything(said: &str) {
    let did: Vec<(&str, &str)> =
        said.lines().filter_map(|line| line.strip_prefix("stress did ")?.split_once(": ")).collect();
    assert_eq!(did.len(), KINDS, "{said}");
    for (_, kind) in did.iter().filter(|(count, _)| *count == "0") {
        let refusal = said.lines().find(|line| line.starts_with(&format!("stress was refused: {kind}: ")));
        assert!(refusal.is_some() && REFUSED.contains(kind), "'{kind}' was never done: {said}");
        println!("{}", refusal.unwrap_or_default());
    }
}

/// Runs the program `name`, which says how many words were wrong, with a budget; its arguments may name files of a
/// directory. Gives the run's statistics, and what it said besides, unless something is lacking here.
pub(crate) fn exact(
    name: &str,
    options: &[&str],
    local: &str,
    arguments: &dyn Fn(&Path) -> Vec<String>,
) -> Option<(Value, String)> {
    let stage = Stage::set_alone(&["gcc"])?;
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
    Some((statistics, said.errors))
}
