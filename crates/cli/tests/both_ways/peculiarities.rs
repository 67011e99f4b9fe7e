//! What the kernel does with memory on the side: spawned children, signal stacks, locks that outlive threads, advice.

use crate::both_ways::programs::{Kind, MIB, same_output_at};
use crate::both_ways::stage::Stage;

/// One mode of the program `peculiarities`, at a quarter, where more of it is away than at half.
pub(crate) fn peculiarity(kind: Kind, mode: &str) {
    let Some(stage) = Stage::set(&["gcc"]) else { return };
    let binary = stage.compile("peculiarities", &["-pthread"]);
    let program = [binary.to_str().unwrap(), mode, MIB, stage.disk().to_str().unwrap()];
    same_output_at(&["25%"], kind, &stage, &program);
}

#[test]
fn spawned_children_borrow_their_parents_memory() {
    peculiarity(Kind::Several, "spawn");
}

#[test]
fn copies_of_borrowed_memory_are_exact() {
    peculiarity(Kind::Several, "borrow");
}

#[test]
fn memory_that_is_given_back_and_taken_again_is_fresh() {
    peculiarity(Kind::Several, "churn");
}

#[test]
fn signals_arrive_on_a_stack_of_their_own() {
    peculiarity(Kind::Steady, "altstack");
}

#[test]
fn a_dead_holders_lock_is_told_from_a_free_one() {
    peculiarity(Kind::Steady, "robust");
}

/// Case `raw-threads`, and what else the kernel writes or reads later.
#[test]
fn what_the_kernel_writes_later_is_written() {
    let Some(stage) = Stage::set(&["gcc"]) else { return };
    let binary = stage.compile("kernel_writes", &["-lrt"]);
    let program = [binary.to_str().unwrap(), "48", stage.disk().to_str().unwrap()];
    same_output_at(&["50%"], Kind::Several, &stage, &program);
}

/// What an evictor maps is in no stack's way.
#[test]
fn stacks_that_the_kernel_grows_keep_their_words() {
    let Some(stage) = Stage::set(&["gcc"]) else { return };
    let binary = stage.compile("growing_stack", &["-pthread"]);
    same_output_at(&["50%"], Kind::Several, &stage, &[binary.to_str().unwrap(), "48"]);
}

#[test]
fn secrets_are_wiped_in_a_child() {
    peculiarity(Kind::Several, "wipe");
}

/// Rule 3 of the pager: a mapping that is only partly its own could not grow.
#[test]
fn growing_mappings_are_never_refused() {
    peculiarity(Kind::Several, "grow");
}

/// Rule 1 of the pager has mappings probed, which could keep parts of one mapping apart.
#[test]
fn a_mapping_of_which_a_part_was_protected_can_grow() {
    peculiarity(Kind::Steady, "protect");
}

#[test]
fn private_pages_of_a_file_keep_what_was_written() {
    peculiarity(Kind::Steady, "file");
}
