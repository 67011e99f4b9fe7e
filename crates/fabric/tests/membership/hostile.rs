//! Datagrams that no member sent, and datagrams that a member sent once.

use std::time::Duration;

use proptest::prelude::*;
use spillway_fabric::key::ClusterKey;
use spillway_fabric::membership::identity::MachineId;
use spillway_fabric::membership::{Input, MemberState, Output};

use crate::cluster::{Cluster, settings};

/// Eight machines that know each other, and what the first one received.
fn recorded() -> (Cluster, Vec<Vec<u8>>) {
    let mut cluster = Cluster::start(8, 1);
    cluster.recorded = Some(Vec::new());
    cluster.seconds_until(60, "all know all", Cluster::agrees);
    cluster.pass(Duration::from_secs(20));
    let recorded = cluster.recorded.take().unwrap();
    (cluster, recorded)
}

#[test]
fn repeated_datagrams_change_nothing_and_are_counted() {
    let (mut cluster, recorded) = recorded();
    let before = cluster.machines[0].membership.counters();
    let members = cluster.machines[0].membership.members();
    assert!(recorded.len() > 40);
    for datagram in &recorded {
        cluster.give(0, Input::Datagram(datagram));
    }
    let after = cluster.machines[0].membership.counters();
    // The newest ones are still on their way the first time.
    let on_the_way = 10;
    assert!(after.refused_repeated - before.refused_repeated + on_the_way >= recorded.len() as u64);
    assert_eq!(cluster.machines[0].membership.members(), members);
}

#[test]
fn what_was_said_to_a_machine_before_its_restart_brings_no_dead_machine_back_for_long() {
    let (mut cluster, recorded) = recorded();
    cluster.kill(5);
    cluster.seconds_until(60, "it is found dead", Cluster::agrees);
    cluster.kill(0);
    cluster.add(settings(0, 2));
    for datagram in &recorded {
        cluster.give(0, Input::Datagram(datagram));
    }
    cluster.seconds_until(60, "all agree again", Cluster::agrees);
    assert!(!cluster.machines[0].living.contains(&crate::cluster::address(5)));
}

/// A clock that was a year ahead, on a machine that is replaced by one whose clock is right.
#[test]
fn the_successor_of_a_machine_whose_clock_was_a_year_ahead_is_in_at_once() {
    const YEAR_MS: u64 = 365 * 24 * 3_600_000;
    let mut cluster = Cluster::start(8, 1);
    cluster.kill(5);
    cluster.add(settings(5, YEAR_MS));
    cluster.seconds_until(60, "all know all", Cluster::agrees);
    for waits_until_it_is_found_dead in [false, true] {
        cluster.kill(5);
        if waits_until_it_is_found_dead {
            cluster.seconds_until(60, "it is found dead", Cluster::agrees);
        }
        let mut successor = settings(5, 2);
        successor.identity.machine = MachineId(100 + u128::from(waits_until_it_is_found_dead));
        cluster.add(successor);
        cluster.seconds_until(30, "its successor is in", |cluster| {
            let members = cluster.machines[0].membership.members();
            let found = members.into_iter().find(|member| member.address == crate::cluster::address(5));
            let is_alive = found.as_ref().is_some_and(|member| member.state == MemberState::Alive);
            is_alive && found.and_then(|member| member.identity).is_some_and(|identity| identity.machine.0 >= 100)
        });
        cluster.seconds_until(60, "all agree", Cluster::agrees);
        let outputs = &cluster.machines[5].outputs;
        let returns = outputs.iter().filter(|output| matches!(output, Output::Renewed(_))).count();
        assert!((1..=3).contains(&returns), "{returns} returns");
    }
}

#[test]
fn machines_of_another_key_or_name_and_without_a_key_stay_out() {
    let (mut cluster, _) = recorded();
    for (number, change) in [8, 9, 10].into_iter().zip(0..) {
        let mut stranger = settings(number, 1);
        match change {
            0 => stranger.key = Some(ClusterKey::from_bytes([8; 32])),
            1 => stranger.cluster = "other".to_owned(),
            _ => stranger.key = None,
        }
        let number = cluster.add(stranger);
        cluster.pass(Duration::from_secs(30));
        assert!(cluster.machines[number].living.is_empty());
        cluster.kill(number);
    }
    assert!(cluster.agrees());
    assert!(cluster.machines[0].membership.counters().refused_key > 0);
}

#[test]
fn machines_without_a_key_find_each_other_too() {
    let mut cluster = Cluster::start(0, 1);
    for number in 0..4 {
        let mut plain = settings(number, 1);
        plain.key = None;
        cluster.add(plain);
    }
    cluster.seconds_until(60, "all know all", Cluster::agrees);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn garbage_and_changed_datagrams_change_nothing_and_are_counted(
        garbage in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..1400), 1..20),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), 1u8..), 1..40),
    ) {
        let (mut cluster, recorded) = recorded();
        let before = cluster.machines[0].membership.counters();
        let members = cluster.machines[0].membership.members();
        let sent = before.datagrams_sent;
        for datagram in &garbage {
            cluster.give(0, Input::Datagram(datagram));
        }
        for (which, at, change) in &changes {
            let mut datagram = which.get(&recorded).clone();
            let at = at.index(datagram.len());
            datagram[at] ^= change;
            cluster.give(0, Input::Datagram(&datagram));
        }
        let after = cluster.machines[0].membership.counters();
        let refused = after.refused_foreign + after.refused_version + after.refused_key
            - before.refused_foreign - before.refused_version - before.refused_key;
        prop_assert_eq!(refused, (garbage.len() + changes.len()) as u64);
        prop_assert_eq!(cluster.machines[0].membership.members(), members);
        prop_assert_eq!(after.datagrams_sent, sent, "nothing is answered");
    }
}
