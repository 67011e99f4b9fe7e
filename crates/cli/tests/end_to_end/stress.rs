//! Everything that a program can do with its memory, at random from many threads, with every word checked.

use crate::overcommit::soak_seconds;
use crate::stage::Stage;
use crate::support;

/// Runs the stress program for some seconds with a budget.
pub(crate) fn stress(local: &str, threads: &str, seed: u64) {
    let Some(stage) = Stage::set(&["gcc"]) else { return };
    let binary = stage.compile("stress", &["-pthread"]);
    let seconds = soak_seconds(6).to_string();
    let (seed, file) = (seed.to_string(), stage.disk().join("file"));
    let program = [binary.to_str().unwrap(), "96", &seconds, &seed, threads, file.to_str().unwrap()];
    let mut command = stage.run(&["--local", local, "--lend", "384M", "--slab-size", "4M"], &program);
    let said = support::run(&mut command).done(&format!("stress at {local} with seed {seed}"));
    assert_eq!(said.text(), "stress wrong 0\n");
    let statistics = stage.statistics();
    assert!(statistics["memory"]["swapped_bytes_max"].as_u64().unwrap() > 0, "nothing was lent: {statistics:#}");
    assert_eq!(statistics["device"]["device"]["pages_lost"], 0, "{statistics:#}");
    stage.assert_clean();
}
