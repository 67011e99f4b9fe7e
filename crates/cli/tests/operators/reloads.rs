//! An agent reads its configuration again at SIGHUP: what changes at once, what is named, and what a mistake does.

use std::fs;

use serde_json::Value;

use crate::support::agents::Agents;
use crate::support::{Running, run};

/// What the agent of the first machine tells of its donor.
fn donor(stage: &Agents) -> Option<Value> {
    let said = run(&mut stage.spillway(0, &["status", "--json"]));
    let status: Value = serde_json::from_slice(&said.output).ok()?;
    Some(status["items"].as_array()?.iter().find(|item| item["kind"] == "agent")?["report"]["donor"].clone())
}

/// Waits until the agent tells this of its donor.
fn wait_for(stage: &Agents, agent: &mut Running, what: &str, is_there: impl Fn(&Value) -> bool) {
    agent.wait_until(what, || is_there(&donor(stage)?).then_some(()));
}

const MIB: u64 = 1 << 20;

#[test]
fn sizes_weights_and_seeds_are_followed_and_what_is_not_is_named() {
    let stage = Agents::new(2);
    let configuration = stage.configure(0, &stage.key(), "");
    let first = fs::read_to_string(&configuration).unwrap();
    // The two do not know of each other yet.
    let alone = first.replace(&format!("seeds = [\"{}\"]", stage.address(0)), "seeds = []");
    assert_ne!(alone, first);
    fs::write(&configuration, &alone).unwrap();
    let mut agent = stage.start(0, &configuration);
    wait_for(&stage, &mut agent, "the donor", |donor| donor["quota_bytes"] == 16 * MIB);
    let other = stage.configure(1, &stage.key(), "");
    let text = fs::read_to_string(&other).unwrap();
    fs::write(&other, text.replace(&format!("seeds = [\"{}\"]", stage.address(0)), "seeds = []")).unwrap();
    let second = stage.start(1, &other);
    stage.wait_for(&[0], &["alive", "unknown"]);

    let changed = alone
        .replace("memory = \"16M\"", "memory = \"24M\"\nmachine_limit = \"8M\"\nweights = { \"127.0.0.9\" = 4 }")
        .replace("headroom = \"16M\"", "headroom = \"20M\"")
        .replace("slab_size = \"4M\"", "slab_size = \"8M\"")
        .replace("seeds = []", &format!("seeds = [\"{}\"]", stage.address(1)));
    fs::write(&configuration, &changed).unwrap();
    agent.signal("HUP");
    wait_for(&stage, &mut agent, "the new sizes", |donor| {
        donor["quota_bytes"] == 24 * MIB && donor["headroom_bytes"] == 20 * MIB
    });
    stage.wait_for(&[0, 1], &["alive", "alive"]);

    // A mistake changes nothing, whatever else was written; once it is mended, all is followed.
    let more = changed.replace("memory = \"24M\"", "memory = \"32M\"");
    for mistake in [more.replace("[cluster]", "[clutter]"), more.replace("= 4 }", "= 400 }")] {
        fs::write(&configuration, mistake).unwrap();
        agent.signal("HUP");
    }
    fs::write(&configuration, changed.replace("headroom = \"20M\"", "headroom = \"18M\"")).unwrap();
    agent.signal("HUP");
    wait_for(&stage, &mut agent, "the mended file", |donor| donor["headroom_bytes"] == 18 * MIB);
    assert_eq!(donor(&stage).unwrap()["quota_bytes"], 24 * MIB);
    agent.signal("TERM");
    let errors = agent.end().done("the agent").errors;
    assert!(errors.contains("[donor] slab_size cannot change meanwhile; restart the agent"), "{errors}");
    drop(second);
}

#[test]
fn a_mistake_is_told_and_the_agent_goes_on() {
    let stage = Agents::new(1);
    let configuration = stage.configure(0, &stage.key(), "");
    let good = fs::read_to_string(&configuration).unwrap();
    let mut agent = stage.start(0, &configuration);
    wait_for(&stage, &mut agent, "the donor", |donor| donor["quota_bytes"] == 16 * MIB);
    fs::write(&configuration, good.replace("memory = \"16M\"", "memory = \"24M\"\nmemmory = \"1M\"")).unwrap();
    agent.signal("HUP");
    agent.wait_until("the agent to have read it", || Some(()));
    std::thread::sleep(std::time::Duration::from_secs(1));
    assert_eq!(donor(&stage).unwrap()["quota_bytes"], 16 * MIB);
    agent.signal("TERM");
    let errors = agent.end().done("the agent").errors;
    assert!(errors.contains("nothing was changed") && errors.contains("memmory"), "{errors}");
}
