//! Other donors for a device while a program writes to it and verifies what it wrote.

use std::path::Path;

use serde_json::Value;

use crate::both_ways::stage::Stage;
use crate::support::{self, Running, wait_until};

/// The donors that the device uses, by address, and how many slabs each has.
fn donors(stage: &Stage) -> Vec<(String, u64)> {
    let device = stage.device();
    let donors = device["donors"].as_array().unwrap().iter();
    donors.map(|donor| (donor["address"].as_str().unwrap().to_owned(), donor["slabs"].as_u64().unwrap())).collect()
}

/// fio that verifies what it writes, until it is told to end; in the first 96 MiB of the device.
pub(super) fn writer(path: &str) -> Running {
    let file = format!("--filename={path}");
    let mut command = std::process::Command::new("fio");
    command.args(["--name=changes", &file, "--direct=1", "--ioengine=libaio", "--size=96M", "--rw=randrw", "--bs=64k"]);
    command.args(["--iodepth=4", "--verify=crc32c", "--verify_fatal=1", "--verify_state_save=0", "--loops=1000"]);
    command.args(["--rate=40M"]);
    Running::start(&mut command)
}

#[test]
fn a_device_gets_other_donors_while_it_is_written_to() {
    let Some(mut stage) = Stage::set_beside_others(&["fio"]) else { return };
    stage.donor("160M");
    let first = stage.donor_options();
    let mut options = vec!["device", "on", "--size", "128M", "--slab-size", "4M", "--redundancy", "none", "--key"];
    options.push("none");
    options.extend(first.iter().map(String::as_str));
    let said = support::run(&mut stage.spillway(&options)).done("device on");
    let path = said.text().trim().to_owned();
    stage.donor("160M");
    let addresses: Vec<String> = stage.donor_options().chunks(2).map(|option| option[1].clone()).collect();
    let (one, two) = (addresses[0].as_str(), addresses[1].as_str());
    let refused = |command: &[&str]| {
        let said = support::run(&mut stage.spillway(command));
        assert!(!said.status.success());
        said.errors
    };
    let text = refused(&["device", "remove-donor", "device", one]);
    assert!(text.contains("last donor"), "{text}");
    let text = refused(&["device", "remove-donor", "device", two]);
    assert!(text.contains("is not used") && text.contains(one), "{text}");
    let text = refused(&["device", "add-donor", "device", one]);
    assert!(text.contains("used already"), "{text}");
    let text = refused(&["device", "add-donor", "other", two]);
    assert!(text.contains("no device or run 'other'") && text.contains("there is device"), "{text}");
    let text = refused(&["swap", "add-donor", "device", two]);
    assert!(text.contains("no swap device 'device'"), "{text}");

    let mut fio = writer(&path);
    fio.wait_until("pages at the donor", || (donors(&stage).first()?.1 >= 20).then_some(()));
    let said = support::run(&mut stage.spillway(&["device", "add-donor", "device", two])).done("add-donor");
    assert!(said.text().contains("is added"), "{}", said.text());
    wait_until("the new donor", || {
        let device = stage.device();
        let all = device["donors"].as_array()?;
        (all.len() == 2 && all.iter().all(|donor| donor["state"] == "connected")).then_some(())
    });
    let said = support::run(&mut stage.spillway(&["device", "remove-donor", "device", one, "--json"]));
    let said = said.done("remove-donor");
    let told: Value = serde_json::from_slice(&said.output).unwrap();
    assert_eq!(told["removed"], true);
    let left = donors(&stage);
    assert!(left.len() == 1 && left[0].0 == two && left[0].1 >= 20, "{left:?}");
    assert_eq!(stage.device()["pages_lost"], 0);
    // The first one is not needed any more.
    stage.signal_donor(0, "KILL");
    fio.signal("INT");
    let said = fio.end();
    assert!(!said.errors.contains("verify"), "{}", said.errors);
    assert!(Path::new(&path).exists());
    super::plain_device::fio(Path::new(&path), &["--rw=randwrite", "--bs=64k", "--iodepth=4", "--size=96M"]);
    support::run(&mut stage.spillway(&["device", "off"])).done("device off");
    stage.assert_clean();
}
