//! A cluster moves from one key to the next: no daemon starts again, and a program pages all the while.

use std::path::{Path, PathBuf};

use crate::both_ways::stage::Stage;
use crate::support::agents::{Agents, write_key};
use crate::support::{Running, UNTIL_TOLD, run, wait_until};

/// Machines of the cluster; the first one borrows.
const MACHINES: usize = 3;

/// What the program's donors lend at least: pages are at both.
const LENT_BYTES: u64 = 65 << 20;

/// The names of the keys in a file.
fn ids(cluster: &Agents, file: &Path) -> Vec<String> {
    let said = run(&mut cluster.spillway(0, &["key", "show-id", file.to_str().unwrap()])).done("key show-id");
    said.text().lines().map(|line| line.split(' ').next().unwrap().to_owned()).collect()
}

/// One step of the change on one machine; its agent sees it by itself.
fn step(cluster: &Agents, machine: usize, name: &str, next: &Path, key: &Path) {
    let arguments = ["key", "rotate", name, next.to_str().unwrap(), "--key", key.to_str().unwrap()];
    run(&mut cluster.spillway(machine, &arguments)).done(name);
    let expected = ids(cluster, key);
    wait_until("the agent to have read its key anew", || {
        let view = cluster.ask(machine)?;
        let known = view["key_ids"].as_array()?.iter().map(|id| id.as_str().unwrap_or_default().to_owned());
        (known.collect::<Vec<_>>() == expected).then_some(())
    });
}

/// Every machine asks the next one's donor something, which takes a handshake of its own; and all see all.
fn assert_all_meet(cluster: &Agents) {
    for machine in 0..MACHINES {
        let other = cluster.address((machine + 1) % MACHINES);
        run(&mut cluster.spillway(machine, &["drain", "--undo", &other])).done("a question to another machine's donor");
    }
    cluster.wait_for(&[0, 1, 2], &["alive"; MACHINES]);
}

#[test]
fn a_cluster_moves_to_another_key_while_a_program_pages() {
    let Some(stage) = Stage::set(&["gcc"]) else { return };
    let verifier = stage.compile("verifier", &[]);
    let cluster = Agents::lending(MACHINES, "64M").with_first_registry(stage.registry());
    let keys: Vec<PathBuf> = (0..MACHINES).map(|machine| cluster.file(&format!("machine-{machine}.key"))).collect();
    keys.iter().for_each(|key| write_key(key, "5e"));
    let [old, next] = ["old.key", "next.key"].map(|name| cluster.file(name));
    write_key(&old, "5e");
    run(&mut cluster.spillway(0, &["key", "new", next.to_str().unwrap()])).done("key new");
    let start = |machine| cluster.start(machine, &cluster.configure(machine, keys[machine].to_str().unwrap(), ""));
    let mut agents: Vec<Running> = (0..MACHINES).map(start).collect();
    cluster.wait_for(&[0, 1, 2], &["alive"; MACHINES]);
    agents[0].wait_until("the first machine to know what the others lend", || {
        let view = cluster.ask(0)?;
        let lends = |member: &serde_json::Value| member["quota_bytes"].as_u64().is_some_and(|bytes| bytes > 0);
        view["members"].as_array()?.iter().all(lends).then_some(())
    });
    let options = ["--local", "24M", "--lend", "128M", "--slab-size", "4M", "--redundancy", "none"];
    let mut running = Running::start(&mut stage.run(&options, &[verifier.to_str().unwrap(), "112", UNTIL_TOLD, "5"]));
    stage.wait_lent(&mut running, LENT_BYTES);
    let pids: Vec<u32> = agents.iter().map(Running::pid).collect();

    for name in ["accept", "use", "finish"] {
        for machine in [1, 0, 2] {
            step(&cluster, machine, name, &next, &keys[machine]);
            assert_all_meet(&cluster);
            assert!(!running.has_ended(), "the program goes on: {}", running.last_errors());
        }
    }
    assert!(keys.iter().all(|key| ids(&cluster, key) == ids(&cluster, &next)), "only the next key is left");
    let refused =
        run(&mut cluster.spillway(1, &["drain", "--undo", &cluster.address(2), "--key", old.to_str().unwrap()]));
    assert!(!refused.status.success() && refused.errors.contains("key"), "{}", refused.errors);
    for machine in 0..MACHINES {
        let view = cluster.ask(machine).expect("the agent answers");
        assert_eq!(view["traffic"]["refused_key"], 0, "no datagram was lost to the change: {view}");
        assert_eq!(agents[machine].pid(), pids[machine]);
        assert!(!agents[machine].has_ended(), "no agent ended");
    }
    assert_eq!(stage.device_now()["pages_lost"], 0);
    running.signal("USR1");
    let said = running.end().done("the verifier");
    assert!(said.text().contains("wrong 0"), "{}", said.text());
    drop(agents);
    stage.assert_clean();
}
