//! `spillway swap on` and `off`: a swap device for the whole machine.

use std::fs;
use std::process::Command;

use crate::both_ways::stage::Stage;
use crate::support::{self, Running, UNTIL_TOLD, wait_until};

fn swap_on(stage: &mut Stage) {
    stage.donor("256M");
    swap_on_with(stage, &[]);
}

/// Swaps to the donors that the stage has, with these options besides.
pub(super) fn swap_on_with(stage: &Stage, more: &[&str]) {
    let donors = stage.donor_options();
    let options = ["swap", "on", "--size", "192M", "--slab-size", "4M", "--redundancy", "none", "--key", "none"];
    let options: Vec<&str> =
        options.iter().copied().chain(donors.iter().map(String::as_str)).chain(more.iter().copied()).collect();
    support::run(&mut stage.spillway(&options)).done("swap on");
}

/// What lies in the stage's swap area.
pub(super) fn used_bytes(stage: &Stage) -> Option<u64> {
    stage.items("device").first()?.swap.as_ref().map(|area| area.used_bytes)
}

/// A memory group of the test's own, because only what is limited is paged out.
pub(super) struct Group(std::path::PathBuf);

impl Group {
    pub(super) fn new(limit: &str) -> Option<Self> {
        let (v1, v2) = ("/sys/fs/cgroup/memory", "/sys/fs/cgroup");
        let is_v1 = std::path::Path::new(v1).is_dir();
        let path =
            std::path::Path::new(if is_v1 { v1 } else { v2 }).join(format!("spillway-test-{}", std::process::id()));
        fs::create_dir(&path).ok()?;
        let group = Self(path);
        fs::write(group.0.join(if is_v1 { "memory.limit_in_bytes" } else { "memory.high" }), limit).ok()?;
        Some(group)
    }

    /// Its directory.
    pub(super) fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }

    /// Faults of its programs that waited for a page.
    pub(super) fn major_faults(&self) -> u64 {
        let text = fs::read_to_string(self.0.join("memory.stat")).unwrap();
        let of = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
        // Version 1 has both, of which this is the whole.
        of("total_pgmajfault ").or_else(|| of("pgmajfault ")).expect("the kernel counts faults")
    }

    /// Lifts its limit.
    pub(super) fn lift(&self) {
        for (file, text) in [("memory.limit_in_bytes", "-1"), ("memory.high", "max")] {
            if self.0.join(file).exists() {
                fs::write(self.0.join(file), text).unwrap();
            }
        }
    }

    /// A command that runs inside.
    pub(super) fn command(&self, program: &[&str]) -> Command {
        let mut command = Command::new("sh");
        let join = format!("echo $$ > {}/cgroup.procs && exec \"$@\"", self.0.display());
        command.args(["-c", &join, "sh"]).args(program);
        command
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let group = self.0.clone();
        wait_until("the test's memory group to be empty", || fs::remove_dir(&group).is_ok().then_some(()));
    }
}

#[test]
fn every_page_comes_back() {
    comes_back_after(|_| ());
}

#[test]
fn every_page_comes_back_when_the_devices_keeper_alone_was_killed() {
    comes_back_after(|stage| {
        let owner = fs::read(stage.registry().join("device-swap/owner.json")).unwrap();
        let keeper = serde_json::from_slice::<serde_json::Value>(&owner).unwrap()["pid"].as_u64().unwrap();
        support::signal(keeper as u32, "KILL");
        wait_until("the status to tell of it", || (stage.items("device").first()?.state == "orphaned").then_some(()));
        assert!(used_bytes(stage).is_some_and(|bytes| bytes > 0), "its swap goes on");
    });
}

/// Lends a program's pages, lets `happen` what may, and brings them back by `swap off`.
fn comes_back_after(happen: impl FnOnce(&Stage)) {
    let Some(mut stage) = Stage::set(&["gcc"]) else { return };
    let verifier = stage.compile("verifier", &[]);
    swap_on(&mut stage);
    let said = support::run(&mut stage.spillway(&["device", "off", "--name", "swap"]));
    assert!(said.errors.contains("swap off"), "{}", said.errors);
    let group = Group::new("33554432").expect("a memory group can be made");
    let running = Running::start(&mut group.command(&[verifier.to_str().unwrap(), "96", UNTIL_TOLD, "3"]));
    wait_until("pages to be lent", || (used_bytes(&stage)? > 16 << 20).then_some(()));
    happen(&stage);
    // The program goes on; lifted first, because otherwise its pages would have nowhere to come back to.
    group.lift();
    support::run(&mut stage.spillway(&["swap", "off"])).done("swap off");
    running.signal("USR1");
    let said = running.end().done("the verifier");
    assert!(said.text().contains("wrong 0"), "{}", said.text());
    drop(group);
    stage.assert_clean();
}

#[test]
fn the_status_of_a_swap_device_is_told() {
    let Some(mut stage) = Stage::set(&[]) else { return };
    swap_on(&mut stage);
    let said = support::run(&mut stage.spillway(&["swap", "status", "--json"])).done("swap status");
    let status: serde_json::Value = serde_json::from_slice(&said.output).unwrap();
    let item = &status["items"][0];
    assert_eq!(item["name"], "swap");
    assert_eq!(stage.device()["donors"][0]["state"], "connected");
    let people = support::run(&mut stage.spillway(&["swap", "status"])).done("swap status");
    assert!(people.text().contains("priority"), "{}", people.text());
    support::run(&mut stage.spillway(&["swap", "off"])).done("swap off");
    stage.assert_clean();
}

#[test]
fn an_agent_lends_and_swaps_until_it_is_told_to_end() {
    let Some(stage) = Stage::set(&[]) else { return };
    let sockets = support::registry_directory();
    let address = format!("unix:{}", sockets.path().join("agent.sock").display());
    let configuration = stage.disk().join("spillway.toml");
    let text = format!(
        "[donor]\nmemory = \"96M\"\nheadroom = \"16M\"\nlisten = [\"{address}\"]\nkey = \"none\"\nslab_size = \"4M\"\n\
         [borrower]\nsize = \"64M\"\ndonors = [\"{address}\"]\nredundancy = \"none\"\nkey = \"none\"\nslab_size = \"4M\"\n"
    );
    fs::write(&configuration, &text).unwrap();
    let mut agent = Running::start(stage.spillway(&["agent", "--config"]).arg(&configuration));
    agent.wait_until("the agent's swap device", || used_bytes(&stage));
    // The device lives in a process of its own: an agent that crashes leaves it at work, and the next one takes it
    // over.
    let device = stage.items("device")[0].pid;
    agent.signal("KILL");
    agent.end();
    support::run(&mut stage.spillway(&["doctor", "--mend", "--json"]));
    assert_eq!(stage.items("device")[0].pid, device, "the device works on");
    let mut agent = Running::start(stage.spillway(&["agent", "--config"]).arg(&configuration));
    agent.wait_until("the next agent's donor to lend", || {
        let agents = stage.items("agent");
        (agents.first()?.read().ok()?.donor()?.sessions.len() == 1).then_some(())
    });
    // Taken out of the configuration it is brought back, and put in again it is on again.
    let without = text.split("[borrower]").next().unwrap();
    for (text, devices) in [(without, 0), (text.as_str(), 1)] {
        fs::write(&configuration, text).unwrap();
        agent.signal("HUP");
        let is_there =
            || (stage.items("device").len() == devices && used_bytes(&stage).is_some() == (devices == 1)).then_some(());
        agent.wait_until("the reloaded configuration to be followed", is_there);
    }
    agent.signal("TERM");
    agent.end().done("the agent");
    stage.assert_clean();
}
