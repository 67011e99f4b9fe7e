//! Containers on 32 machines: what is not local finds room elsewhere, about as evenly as a planner could place it.

use spillway_research::cluster::balance::run;
use spillway_volume::limits::PLACEMENT_CHOICES;

#[test]
fn decentralised_placement_comes_close_to_a_planner_that_knows_everything() {
    for seed in 0..5 {
        let found = run(32, PLACEMENT_CHOICES, seed);
        assert_eq!(found.unplaced, 0, "{found:?}");
        assert!((found.with.mean / found.planned.mean - 1.0).abs() <= 0.05, "{found:?}");
        assert!(found.with.mean > 1.1 * found.without.mean, "{found:?}");
        assert!(found.with.max_to_min < found.without.max_to_min, "{found:?}");
        assert!(found.with.max_to_median < found.without.max_to_median, "{found:?}");
    }
}
