//! Whole clusters of up to 300 machines in one process, with delay and loss by a seed. Larger ones:
//! `crates/simulator/tests/clusters/membership.rs`.
//!
//! - `cluster.rs`: the machines, their network and their clock.
//! - `hostile.rs`: garbage, changed and repeated datagrams, and machines without the key.
//!
//! Every bound is a count: of periods of the protocol, of datagrams, of bytes. The simulated clock does not depend on
//! the speed of the machine that runs the test.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::time::Duration;

use spillway_fabric::membership::identity::{Identity, MachineId};
use spillway_fabric::membership::{Input, MemberState, Output};

use self::cluster::{Cluster, address, settings};

mod cluster;
mod hostile;

/// Periods of a second within which a dead machine is found: ten until one probes it (none does with 1 in 20,000), the
/// time of a suspect, and fifteen until all have heard.
fn periods_until_found(machines: usize) -> u32 {
    let suspicion = 4.0 * (machines as f64).log10().max(1.0);
    10 + suspicion.ceil() as u32 + 15
}

fn knows_all_profiles(cluster: &Cluster, by: usize) -> bool {
    let members = cluster.machines[by].membership.members();
    members.iter().all(|member| member.profile.as_ref().is_some_and(|profile| !profile.zone.as_str().is_empty()))
}

#[test]
fn small_and_middle_clusters_agree_and_find_the_dead() {
    for (machines, seed) in [(2, 1), (8, 2), (8, 3), (100, 4)] {
        let mut cluster = Cluster::start(machines, seed);
        cluster.loss = 50;
        let together = cluster.seconds_until(90, "all know all", Cluster::agrees);
        let told = cluster.seconds_until(90, "all profiles are known", |cluster| {
            (0..machines).all(|number| knows_all_profiles(cluster, number))
        });
        cluster.kill(machines - 1);
        let most = periods_until_found(machines);
        let found = cluster.seconds_until(most, "the dead machine is found", Cluster::agrees);
        println!("{machines} machines, 5 % lost: together after {together} s, profiles {told} s later, dead {found} s");
        cluster.pass(Duration::from_secs(120));
        assert!(cluster.agrees(), "no living machine is taken for dead in the long run");
        assert_eq!(cluster.state(0, machines - 1), Some(MemberState::Gone));
    }
}

/// A cluster of `machines` costs each what one of 32 does.
fn costs_each_as_much_as_thirty_two(machines: usize) {
    let load_of = |count: usize, seed| {
        let mut cluster = Cluster::start(count, seed);
        let together = cluster.seconds_until(180, "all know all", Cluster::agrees);
        cluster.pass(Duration::from_secs(20));
        let (datagrams, bytes) = cluster.load(30);
        println!("{count} machines: together after {together} s; {datagrams:.1} datagrams, {bytes:.0} bytes");
        (cluster, datagrams, bytes)
    };
    println!("each machine and second, sent and received, while every machine has news of itself each second");
    let (_, small_datagrams, small_bytes) = load_of(32, 1);
    let (mut large, datagrams, bytes) = load_of(machines, 2);
    assert!(datagrams < 1.5 * small_datagrams, "datagrams grow with the cluster");
    assert!(bytes < 2.0 * small_bytes, "bytes grow with the cluster");
    assert!(large.agrees(), "nothing is lost under load");
    large.kill(machines / 2);
    let found = large.seconds_until(periods_until_found(machines), "all find one dead", Cluster::agrees);
    println!("{machines} machines: all found one dead after {found} periods");
}

#[test]
fn three_hundred_machines_cost_each_what_thirty_two_do() {
    costs_each_as_much_as_thirty_two(300);
}

#[test]
fn a_partition_heals() {
    let mut cluster = Cluster::start(60, 5);
    cluster.seconds_until(60, "all know all", Cluster::agrees);
    cluster.partition = Some(20);
    let split = |cluster: &Cluster| {
        let sees = |number: usize, count: usize| cluster.machines[number].living.len() == count - 1;
        (0..20).all(|number| sees(number, 20)) && (20..60).all(|number| sees(number, 40))
    };
    let apart = cluster.seconds_until(120, "each side is alone", split);
    cluster.partition = None;
    let healed = cluster.seconds_until(120, "the sides are together again", Cluster::agrees);
    println!("60 machines: apart after {apart} s, together again {healed} s after the partition");
    let is_renewed = |output: &Output| matches!(output, Output::Renewed(_));
    assert!(cluster.machines.iter().any(|machine| machine.outputs.iter().any(is_renewed)));
    cluster.pass(Duration::from_secs(120));
    assert!(cluster.agrees(), "and they stay together");
}

#[test]
fn halves_that_started_apart_find_each_other_by_their_seeds() {
    let mut cluster = Cluster::start(12, 6);
    cluster.partition = Some(1);
    cluster.pass(Duration::from_secs(60));
    assert!(cluster.machines[0].living.is_empty() && cluster.machines[5].living.len() == 10);
    cluster.partition = None;
    cluster.seconds_until(60, "all know all", Cluster::agrees);
}

#[test]
fn one_that_leaves_is_known_to_have_left_and_may_return() {
    let mut cluster = Cluster::start(8, 7);
    cluster.seconds_until(60, "all know all", Cluster::agrees);
    cluster.pass(Duration::from_secs(10));
    cluster.give(5, Input::Leave);
    assert!(cluster.machines[5].membership.on(cluster.now, Input::Timer).is_empty(), "it is silent from here on");
    cluster.kill(5);
    let gone = cluster.seconds_until(10, "all know that it left", |cluster| {
        cluster.running().into_iter().all(|number| cluster.state(number, 5) == Some(MemberState::Left))
    });
    println!("8 machines: all know after {gone} s that one left");
    assert!(cluster.agrees());
    cluster.add(settings(5, 2));
    cluster.seconds_until(60, "it is back", Cluster::agrees);
    assert_eq!(cluster.state(0, 5), Some(MemberState::Alive));
}

#[test]
fn one_that_was_killed_returns_with_its_identity() {
    let mut cluster = Cluster::start(8, 8);
    cluster.seconds_until(60, "all know all", Cluster::agrees);
    cluster.kill(3);
    cluster.seconds_until(60, "it is found dead", Cluster::agrees);
    cluster.add(settings(3, 2));
    cluster.seconds_until(60, "it is back", Cluster::agrees);
    // At once, before it is found dead, too.
    cluster.kill(4);
    cluster.add(settings(4, 2));
    cluster.seconds_until(60, "it is back", Cluster::agrees);
    let members = cluster.machines[0].membership.members();
    let lives: Vec<_> =
        members.iter().filter_map(|member| member.identity).map(|identity| identity.generation).collect();
    assert_eq!((lives.len(), lives[3], lives[4]), (8, 2, 2));
    // A machine that lost its file has a new id and the same address.
    cluster.kill(6);
    let mut stranger = settings(6, 3);
    stranger.identity = Identity::new(MachineId(99), 3, address(6));
    cluster.add(stranger);
    cluster.seconds_until(60, "it is back", Cluster::agrees);
}

#[test]
fn two_machines_with_one_identity_are_told_everywhere() {
    let mut cluster = Cluster::start(6, 9);
    let mut copy = settings(6, 1);
    copy.identity = Identity::new(MachineId(3), 1, address(6));
    cluster.add(copy);
    cluster.seconds_until(60, "all know all", Cluster::agrees);
    let expected = vec![(MachineId(3), vec![address(2), address(6)])];
    cluster.seconds_until(60, "all are told", |cluster| {
        cluster.machines.iter().all(|machine| machine.membership.twins() == expected)
    });
    let count = |machine: &cluster::Machine| {
        machine.outputs.iter().filter(|output| matches!(output, Output::Twins { .. })).count()
    };
    assert!(cluster.machines.iter().all(|machine| count(machine) == 1), "once");
    cluster.kill(6);
    cluster.seconds_until(60, "the trouble is over", |cluster| {
        cluster.running().iter().all(|number| cluster.machines[*number].membership.twins().is_empty())
    });
}

#[test]
fn a_machine_at_anothers_address_is_told() {
    let mut cluster = Cluster::start(4, 10);
    cluster.seconds_until(60, "all know all", Cluster::agrees);
    let mut wrong = settings(4, 9);
    wrong.identity = Identity::new(MachineId(77), 9, address(4));
    let number = cluster.add(wrong);
    // It says that it is where machine 3 is.
    let mut wrong = settings(4, 9);
    wrong.identity = Identity::new(MachineId(77), 9, address(3));
    wrong.sender = [9; 16];
    cluster.machines[number].membership = spillway_fabric::membership::Membership::new(cluster.now, wrong);
    cluster.give(number, Input::Join((0..3).map(address).collect()));
    let told = Output::SameAddress(MachineId(77));
    cluster.seconds_until(120, "machine 3 is told", |cluster| cluster.machines[3].outputs.contains(&told));
}

#[test]
fn the_same_seed_gives_the_same_history() {
    let history = |seed| {
        let mut cluster = Cluster::start(20, seed);
        cluster.loss = 100;
        cluster.pass(Duration::from_secs(60));
        cluster.total()
    };
    assert_eq!(history(1), history(1));
    assert_ne!(history(1), history(2));
}
