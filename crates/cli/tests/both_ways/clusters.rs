//! Donors that a run finds by itself: those of the cluster of this machine's agent.

use crate::both_ways::stage::Stage;
use crate::support::agents::Agents;
use crate::support::{Running, UNTIL_TOLD};

/// Two machines lend 64 MiB each, so more than that needs both.
const LENT_BY_BOTH_BYTES: u64 = 65 << 20;

#[test]
fn a_run_without_named_donors_pages_to_the_cluster_and_not_to_its_own_machine() {
    let Some(stage) = Stage::set(&["gcc"]) else { return };
    let verifier = stage.compile("verifier", &[]);
    let cluster = Agents::lending(3, "64M").with_first_registry(stage.registry());
    let agents = cluster.start_all("");
    let options = ["--local", "24M", "--lend", "128M", "--slab-size", "4M", "--redundancy", "none"];
    let program = [verifier.to_str().unwrap(), "112", UNTIL_TOLD, "5"];
    let mut running = Running::start(&mut stage.run(&options, &program));
    stage.wait_lent(&mut running, LENT_BY_BOTH_BYTES);
    assert_eq!(Agents::connected_donors(&stage.device()), [cluster.address(1), cluster.address(2)]);
    running.signal("USR1");
    let said = running.end().done("the verifier");
    assert!(said.text().contains("wrong 0"), "{}", said.text());
    assert_eq!(stage.statistics()["device"]["device"]["pages_lost"], 0);
    for expected in
        ["the program uses all 2 lending machines of cluster 'test'", &cluster.address(2), "join later are used"]
    {
        assert!(said.errors.contains(expected), "{}", said.errors);
    }
    drop(agents);
    stage.assert_clean();
}
