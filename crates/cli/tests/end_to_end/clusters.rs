//! Donors that a device, the machine's swap and an agent find by themselves: those of the cluster.

use std::path::Path;

use super::donor_changes::writer;
use super::machine_swap::{Group, used_bytes};
use super::plain_device::fio;
use crate::both_ways::stage::Stage;
use crate::support::agents::Agents;
use crate::support::{Running, Said, UNTIL_TOLD, run, wait_until};

/// Two machines lend 64 MiB each, so more than that needs both.
const LENT_BY_BOTH_BYTES: u64 = 65 << 20;

/// The first of three machines is the stage's.
fn cluster(stage: &Stage) -> Agents {
    Agents::lending(3, "64M").with_first_registry(stage.registry())
}

/// The device of the stage has the other machines as donors, and the user was told.
fn assert_uses_others(stage: &Stage, cluster: &Agents, said: &Said, borrower: &str) {
    assert_eq!(Agents::connected_donors(&stage.device()), [cluster.address(1), cluster.address(2)]);
    let expected = format!("the {borrower} uses all 2 lending machines of cluster 'test'");
    assert!(said.errors.contains(&expected), "{}", said.errors);
}

/// Pages a program out to the stage's swap, to both donors, and brings every page back by `off`.
fn comes_back(stage: &Stage, off: impl FnOnce()) {
    let verifier = stage.compile("verifier", &[]);
    let group = Group::new("33554432").expect("a memory group can be made");
    let running = Running::start(&mut group.command(&[verifier.to_str().unwrap(), "112", UNTIL_TOLD, "3"]));
    wait_until("pages to be lent by both", || (used_bytes(stage)? > LENT_BY_BOTH_BYTES).then_some(()));
    group.lift();
    off();
    running.signal("USR1");
    let said = running.end().done("the verifier");
    assert!(said.text().contains("wrong 0"), "{}", said.text());
}

#[test]
fn swap_without_named_donors_is_at_the_clusters() {
    let Some(stage) = Stage::set(&["gcc"]) else { return };
    let cluster = cluster(&stage);
    let agents = cluster.start_all("");
    let options = ["swap", "on", "--size", "112M", "--slab-size", "4M", "--redundancy", "none"];
    let said = run(&mut stage.spillway(&options)).done("swap on");
    assert_uses_others(&stage, &cluster, &said, "swap device");
    comes_back(&stage, || drop(run(&mut stage.spillway(&["swap", "off"])).done("swap off")));
    drop(agents);
    stage.assert_clean();
}

#[test]
fn a_device_without_named_donors_is_at_the_clusters() {
    let Some(stage) = Stage::set_beside_others(&["fio"]) else { return };
    let cluster = cluster(&stage);
    let agents = cluster.start_all("");
    let options = ["--slab-size", "4M", "--redundancy", "replicas=2", "--transport", "tcp"];
    let said = run(stage.spillway(&["device", "on", "--size", "48M"]).args(options)).done("device on");
    assert_uses_others(&stage, &cluster, &said, "device");
    fio(Path::new(said.text().trim()), &["--rw=randwrite", "--bs=4k", "--iodepth=16", "--size=48M"]);
    assert_eq!(stage.device()["pages_lost"], 0);
    run(&mut stage.spillway(&["device", "off"])).done("device off");
    drop(agents);
    stage.assert_clean();
}

#[test]
fn an_agents_borrower_without_donors_uses_the_clusters() {
    let Some(stage) = Stage::set(&["gcc"]) else { return };
    let cluster = cluster(&stage);
    let borrower = "[borrower.far]\nsize = \"112M\"\nredundancy = \"none\"\nslab_size = \"4M\"\n";
    let mut agents = cluster.start_all(borrower);
    agents[0].wait_until("the agent's swap device", || used_bytes(&stage));
    assert_eq!(Agents::connected_donors(&stage.device()), [cluster.address(1), cluster.address(2)]);
    let first = agents.remove(0);
    comes_back(&stage, || {
        // It ends when every page is back, which it needs the donors for.
        first.signal("TERM");
        first.end().done("the agent");
    });
    drop(agents);
    stage.assert_clean();
}

/// A device that named no donor, while a machine joins, is drained, lends again, and leaves.
#[test]
fn a_device_follows_its_cluster_and_a_drained_machine_is_empty() {
    let Some(stage) = Stage::set_beside_others(&["fio"]) else { return };
    let cluster = Agents::lending(3, "160M").with_first_registry(stage.registry());
    let start = |machine| cluster.start(machine, &cluster.configure(machine, &cluster.key(), ""));
    let mut agents = vec![start(0), start(1)];
    agents[0].wait_until("the first machine to know what the second lends", || {
        let members = cluster.ask(0)?["members"].as_array()?.clone();
        let lends = |address: &str| {
            let is_it = |member: &&serde_json::Value| member["address"] == address;
            members.iter().find(is_it)?["quota_bytes"].as_u64().filter(|bytes| *bytes > 0)
        };
        lends(&cluster.address(1))
    });
    let options = ["device", "on", "--size", "128M", "--slab-size", "4M", "--redundancy", "none"];
    let said = run(&mut stage.spillway(&options)).done("device on");
    assert!(said.errors.contains("machines that join later are used too"), "{}", said.errors);
    let mut fio = writer(said.text().trim());
    let slabs = |machine: usize| {
        let device = stage.device_now();
        let donor =
            device["donors"].as_array()?.iter().find(|it| it["address"] == cluster.address(machine).as_str())?;
        donor["slabs"].as_u64()
    };
    fio.wait_until("pages at the only lender", || slabs(1).filter(|slabs| *slabs >= 20));
    agents.push(start(2));
    let uses = |machines: &[usize]| {
        let expected: Vec<String> = machines.iter().map(|machine| cluster.address(*machine)).collect();
        (Agents::connected_donors(&stage.device_now()) == expected).then_some(())
    };
    wait_until("the machine that joined to be used", || uses(&[1, 2]));

    let said = run(&mut cluster.spillway(2, &["drain", &cluster.address(1)])).done("drain");
    assert!(said.text().contains("is empty and lends nothing"), "{}", said.text());
    assert!(slabs(2).is_some_and(|slabs| slabs >= 20), "{:?}", stage.device_now());
    let said = run(&mut cluster.spillway(1, &["status"])).done("status");
    assert!(said.text().contains("lent 0 B of 160 MiB, 0 B free, DRAINING"), "{}", said.text());
    cluster.wait_for(&[0, 2], &["alive", "draining", "alive"]);
    run(&mut cluster.spillway(1, &["drain", "--undo"])).done("drain --undo");
    cluster.wait_for(&[0, 2], &["alive", "alive", "alive"]);
    let said = run(&mut cluster.spillway(0, &["drain", "nowhere"]));
    assert!(!said.status.success() && said.errors.contains("no machine 'nowhere'"), "{}", said.errors);

    let second = agents.remove(1);
    second.signal("TERM");
    second.end().done("the agent");
    wait_until("the machine that left to be let go", || {
        let device = stage.device_now();
        (device["donors"].as_array()?.len() == 1).then_some(())
    });
    uses(&[2]).expect("the other one stays");
    // Killed: it says nothing, and is kept.
    agents.pop().expect("two are left").signal("KILL");
    wait_until("the dead machine to be known as gone", || (cluster.states(0)[2] == "gone").then_some(()));
    assert_eq!(stage.device()["donors"].as_array().map(Vec::len), Some(1));
    fio.signal("INT");
    drop(fio.end());
    run(&mut stage.spillway(&["device", "off"])).done("device off");
    drop(agents);
    stage.assert_clean();
}
