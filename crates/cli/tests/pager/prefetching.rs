//! Pages that come along with those that a program waits for: `run --via pager --prefetch`.

use crate::both_ways::stage::Stage;
use crate::support;

#[test]
fn every_policy_is_exact_and_only_none_brings_nothing_along() {
    let Some(stage) = Stage::set(&["gcc"]) else { return };
    let walker = stage.compile("walker", &["-lpthread"]);
    for policy in ["none", "streams", "leap", "elastic"] {
        let options = ["--local", "32M", "--lend", "128M", "--slab-size", "4M", "--prefetch", policy];
        let said = support::run(&mut stage.run(&options, &[walker.to_str().unwrap(), "64", "1", "1", "2"]));
        let said = said.done("the walker");
        assert!(said.text().contains("wrong 0"), "{}", said.text());
        let brought = stage.statistics()["pager"]["pages_prefetched"].as_u64().unwrap();
        assert_eq!(brought > 0, policy != "none", "{policy}: {brought} pages");
    }
    stage.assert_clean();
}

#[test]
fn the_kernels_read_ahead_is_for_swap_devices() {
    let Some(stage) = Stage::set(&[]) else { return };
    let said = support::run(&mut stage.run(&["--prefetch", "kernel"], &["true"]));
    assert_eq!(said.status.code(), Some(2));
    assert!(said.errors.contains("--prefetch kernel") && said.errors.contains("--via swap"), "{}", said.errors);
}
