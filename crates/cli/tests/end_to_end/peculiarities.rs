//! What the kernel does with memory on the side: spawned children, signal stacks, locks that outlive threads, advice, dumps; and
//! all of it at random from many threads.

use crate::overcommit::soak_seconds;
use crate::programs::same_output;
use crate::stage::Stage;
use crate::support;

/// One mode of the program `peculiarities`, with the same output at every budget.
fn peculiarity(mode: &str) {
    let Some(stage) = Stage::set(&["gcc"]) else { return };
    let binary = stage.compile("peculiarities", &["-pthread"]);
    same_output(&stage, &[binary.to_str().unwrap(), mode, "48", stage.disk().to_str().unwrap()]);
}

#[test]
fn spawned_children_borrow_their_parents_memory() {
    peculiarity("spawn");
}

#[test]
fn memory_that_is_given_back_and_taken_again_is_fresh() {
    peculiarity("churn");
}

#[test]
fn signals_arrive_on_a_stack_of_their_own() {
    peculiarity("altstack");
}

#[test]
fn a_dead_holders_lock_is_told_from_a_free_one() {
    peculiarity("robust");
}

#[test]
fn secrets_are_wiped_in_a_child() {
    peculiarity("wipe");
}

#[test]
fn a_child_that_dumps_its_memory_ends_and_its_parent_lives_on() {
    peculiarity("core");
}

/// Runs the stress program for some seconds with a budget.
fn stress(local: &str, threads: &str, seed: u64) {
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

#[test]
fn stress_with_few_threads_finds_no_wrong_word() {
    stress("50%", "2", 1);
}

#[test]
fn stress_with_many_threads_finds_no_wrong_word() {
    stress("25%", "8", 2);
}
