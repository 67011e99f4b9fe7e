//! Two machines that fail at one moment take no page that has a third copy, and of pages with two copies only those
//! that lay on these two.

use std::time::Instant;

use spillway_simulator::cluster::Cluster;
use spillway_simulator::settings::Settings;

/// Pairs of machines, in clusters of their own.
const SEEDS: u64 = 12;

/// A cluster in which nothing happened yet but writes.
fn settled(replicas: u8, seed: u64) -> Cluster {
    // Room for every copy, however unevenly the machines that are known first get slabs.
    let settings = Settings {
        replicas,
        has_disk: false,
        has_membership: seed.is_multiple_of(2),
        memory_slabs: 512,
        ..Settings::storm(seed)
    };
    let mut cluster = Cluster::without_faults(settings, Instant::now());
    cluster.settle();
    cluster
}

#[test]
fn three_copies_outlive_two_machines() {
    let mut copies_lost = 0;
    for seed in 0..SEEDS {
        let mut cluster = settled(3, seed);
        let stored = cluster.slabs_stored();
        assert!(stored > 50, "seed {seed}: programs have written only {stored} slabs");
        let fate = cluster.lose_two_at_once(seed.is_multiple_of(3));
        assert_eq!(fate.lost, 0, "seed {seed}: {fate:?}");
        copies_lost += fate.copies_lost;
        cluster.mend();
    }
    // Two machines that the others found late may hold nothing, so that one cluster shows nothing.
    assert!(copies_lost > 20 * SEEDS, "all pairs together held only {copies_lost} copies");
}

#[test]
fn two_copies_are_lost_only_where_both_lay_on_the_two_machines() {
    let mut lost = 0;
    for seed in 0..SEEDS {
        let mut cluster = settled(2, seed);
        let fate = cluster.lose_two_at_once(seed.is_multiple_of(3));
        assert_eq!(fate.lost, fate.on_both, "seed {seed}: {fate:?}");
        lost += fate.lost;
        cluster.mend();
    }
    assert!(lost > 0, "in {SEEDS} clusters some slab had both copies on the two");
}
