//! Stress over a swap device.

use crate::both_ways::stress::stress;

#[test]
fn stress_with_few_threads_finds_no_wrong_word() {
    stress("50%", "2", 1);
}

#[test]
fn stress_with_many_threads_finds_no_wrong_word() {
    stress("25%", "8", 2);
}

#[test]
fn stress_with_32_threads_finds_no_wrong_word() {
    stress("25%", "32", 3);
}
