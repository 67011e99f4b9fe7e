//! Machines find each other, and hear of the dead, on clusters of hundreds and thousands of machines.

use spillway_simulator::membership::{Findings, run};

/// Traffic of a machine in a large cluster, against one of 32.
fn costs_as_much_as_thirty_two(machines: usize) {
    let (small, large) = (run(32, 1, true), run(machines, 2, true));
    println!("{small}\n{large}");
    let of = |found: &Findings| (found.traffic.datagrams_per_s, found.traffic.bytes_per_s);
    let ((small_datagrams, small_bytes), (datagrams, bytes)) = (of(&small), of(&large));
    assert!(datagrams < 1.5 * small_datagrams, "datagrams grow with the cluster: {datagrams}, {small_datagrams}");
    // The datagrams of a large cluster are full: that is the end of it.
    assert!(bytes < 2.5 * small_bytes, "bytes grow with the cluster: {bytes}, {small_bytes}");
    assert!(large.renewals > 0, "no living machine was taken for dead in the cut");
}

#[test]
fn a_hundred_machines_know_each_other_at_the_cost_of_thirty_two() {
    costs_as_much_as_thirty_two(100);
}

#[test]
#[ignore = "minutes: the CPU time is the square of the machines; `make soak` runs it"]
fn a_thousand_machines_know_each_other_at_the_cost_of_thirty_two() {
    costs_as_much_as_thirty_two(1000);
}

#[test]
fn a_seed_repeats_a_run() {
    assert_eq!(run(20, 7, true), run(20, 7, true));
}
