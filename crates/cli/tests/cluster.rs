//! Agents that make a cluster, as `tests/support/agents.rs` starts them: what each sees of the others and tells.

// In a test a panic is the report.
#![allow(clippy::unwrap_used)]

use std::fs;

use serde_json::Value;
use support::agents::{Agents, write_key};
use support::{run, wait_until};

#[allow(dead_code, unused_imports)]
mod support;

#[test]
fn agents_see_each_other_and_those_that_die_return_or_leave() {
    let stage = Agents::new(3);
    let configurations: Vec<_> = (0..3).map(|machine| stage.configure(machine, &stage.key(), "")).collect();
    let mut agents: Vec<_> = (0..3).map(|machine| stage.start(machine, &configurations[machine])).collect();
    stage.wait_for(&[0, 1, 2], &["alive"; 3]);
    // What each lends comes along.
    let is_told = |member: &Value| member["quota_bytes"] == 16 << 20 && member["zone"].is_string();
    for machine in 0..3 {
        wait_until("all to be known", || stage.ask(machine)?["members"].as_array()?.iter().all(is_told).then_some(()));
    }
    let view = stage.ask(0).unwrap();
    assert_eq!((view["sealed"].clone(), view["warnings"].clone()), (true.into(), Value::Array(Vec::new())));
    let people = run(&mut stage.spillway(1, &["cluster"])).done("cluster").text();
    assert!(people.starts_with("cluster test (gossip, sealed): 3 machines\n"), "{people}");
    assert!(people.contains("zone-2") && people.contains("16 MiB"), "{people}");
    let status: Value =
        serde_json::from_slice(&run(&mut stage.spillway(1, &["status", "--json"])).done("status").output).unwrap();
    assert_eq!(status["items"][0]["report"]["cluster"]["machines"], 3);

    let identity_before = fs::read_to_string(stage.identity(2)).unwrap();
    agents[2].signal("KILL");
    agents.pop().unwrap().end();
    stage.wait_for(&[0, 1], &["alive", "alive", "gone"]);
    let people = run(&mut stage.spillway(0, &["cluster"])).done("cluster").text();
    assert!(people.contains("2 machines, 1 gone"), "{people}");
    agents.push(stage.start(2, &configurations[2]));
    stage.wait_for(&[0, 1, 2], &["alive"; 3]);
    let identity = fs::read_to_string(stage.identity(2)).unwrap();
    let machine = |text: &str| serde_json::from_str::<Value>(text).unwrap()["machine"].clone();
    assert_eq!(machine(&identity), machine(&identity_before), "it kept its identity");
    assert_ne!(identity, identity_before, "in another life");

    agents[1].signal("TERM");
    agents.remove(1).end().done("the agent");
    stage.wait_for(&[0, 2], &["alive", "left", "alive"]);
}

#[test]
fn two_machines_with_one_identity_are_told() {
    let stage = Agents::new(3);
    fs::create_dir_all(stage.identity(1).parent().unwrap()).unwrap();
    fs::create_dir_all(stage.identity(2).parent().unwrap()).unwrap();
    let identity = format!("{{\"machine\": \"{}\", \"generation\": 1}}", "a7".repeat(16));
    fs::write(stage.identity(1), &identity).unwrap();
    fs::write(stage.identity(2), &identity).unwrap();
    let agents: Vec<_> =
        (0..3).map(|machine| stage.start(machine, &stage.configure(machine, &stage.key(), ""))).collect();
    for machine in 0..3 {
        let warning = wait_until("the warning", || {
            let view = stage.ask(machine)?;
            Some(view["warnings"].as_array()?.first()?.as_str()?.to_owned())
        });
        for expected in ["same identity", &stage.address(1), &stage.address(2), "remove the identity file"] {
            assert!(warning.contains(expected), "{warning}");
        }
    }
    drop(agents);
}

#[test]
fn without_a_key_agents_meet_on_this_host_and_say_so() {
    let stage = Agents::new(2);
    let agents: Vec<_> = (0..2).map(|machine| stage.start(machine, &stage.configure(machine, "none", ""))).collect();
    stage.wait_for(&[0, 1], &["alive"; 2]);
    let people = run(&mut stage.spillway(0, &["cluster"])).done("cluster").text();
    assert!(people.contains("NOT sealed") && people.contains("no cluster key"), "{people}");
    drop(agents);
    let exposed = stage.configure(0, "none", "listen = \"0.0.0.0:7070\"");
    let said = stage.start(0, &exposed).end();
    assert!(!said.status.success() && said.errors.contains("no cluster key"), "{}", said.errors);
}

#[test]
fn a_machine_with_another_key_stays_out_and_is_told() {
    let stage = Agents::new(2);
    let other = stage.file("other.key");
    write_key(&other, "5f");
    let first = stage.start(0, &stage.configure(0, &stage.key(), ""));
    let second = stage.start(1, &stage.configure(1, &other.display().to_string(), ""));
    let warning =
        wait_until("the warning", || Some(stage.ask(0)?["warnings"].as_array()?.first()?.as_str()?.to_owned()));
    assert!(warning.contains("another key"), "{warning}");
    assert_eq!(
        (stage.states(0), stage.states(1)),
        (vec!["alive".into(), "unknown".into()], vec!["unknown".into(), "alive".into()])
    );
    drop((first, second));
}

#[test]
fn a_list_of_members_needs_no_gossip() {
    let stage = Agents::new(3);
    let all: Vec<String> = (0..3).map(|machine| format!("\"{}\"", stage.address(machine))).collect();
    let configuration = stage.configure(0, &stage.key(), "discovery = \"static\"");
    let text = fs::read_to_string(&configuration).unwrap();
    let seeds = format!("seeds = [\"{}\"]", stage.address(0));
    assert!(text.contains(&seeds));
    fs::write(&configuration, text.replace(&seeds, &format!("seeds = [{}]", all.join(", ")))).unwrap();
    let agent = stage.start(0, &configuration);
    stage.wait_for(&[0], &["alive", "listed", "listed"]);
    drop(agent);
}

#[test]
fn without_an_agent_or_a_cluster_the_command_says_what_to_do() {
    let stage = Agents::new(1);
    let said = run(&mut stage.spillway(0, &["cluster"]));
    assert!(!said.status.success() && said.errors.contains("[cluster]"), "{}", said.errors);
    let configuration = stage.configure(0, &stage.key(), "");
    let text = fs::read_to_string(&configuration).unwrap();
    fs::write(&configuration, text.split("[cluster]").next().unwrap()).unwrap();
    let mut agent = stage.start(0, &configuration);
    let said = agent.wait_until("an answer", || {
        let said = run(&mut stage.spillway(0, &["cluster"]));
        said.errors.contains("only an agent belongs").then_some(said)
    });
    assert!(!said.status.success());
}

#[test]
fn without_a_machine_that_lends_the_command_says_what_to_do() {
    let stage = Agents::new(1);
    let agent = stage.start(0, &stage.configure(0, &stage.key(), ""));
    stage.wait_for(&[0], &["alive"]);
    let listen = format!("unix:{}", stage.file("disk.sock").display());
    let said = run(&mut stage.spillway(0, &["device", "on", "--size", "64M", "--listen", &listen]));
    assert_eq!(said.status.code(), Some(1), "{}", said.errors);
    for expected in ["no other machine of cluster 'test'", "`spillway cluster`", "--donor"] {
        assert!(said.errors.contains(expected), "{}", said.errors);
    }
    drop(agent);
}
