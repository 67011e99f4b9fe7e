//! Pages that come from swap before the program faults on them: `run --via swap --prefetch`, and `swap on --prefetch`.
//!
//! The tests read and change the machine's `vm.page-cluster`, as the commands do; they put back what was there.

use std::os::unix::process::ExitStatusExt;

use super::machine_swap::{Group, swap_on_with};
use crate::both_ways::stage::Stage;
use crate::support::{self, Running, wait_until};
use serde_json::Value;

/// What the kernel reads ahead from swap.
const PAGE_CLUSTER: &str = "/proc/sys/vm/page-cluster";

/// The kernel's default: eight pages.
const DEFAULT: &str = "3";

fn page_cluster() -> String {
    std::fs::read_to_string(PAGE_CLUSTER).unwrap().trim().to_owned()
}

/// Sets `vm.page-cluster` to its default, and back to what it was when dropped.
struct DefaultReadAhead(String);

impl DefaultReadAhead {
    fn set() -> Self {
        let before = page_cluster();
        std::fs::write(PAGE_CLUSTER, DEFAULT).unwrap();
        Self(before)
    }
}

impl Drop for DefaultReadAhead {
    fn drop(&mut self) {
        std::fs::write(PAGE_CLUSTER, &self.0).unwrap();
    }
}

/// Runs the walker in 64 MiB with half of them local; gives what the run told of prefetching.
fn walk(stage: &Stage, policy: &str, stride: &str, threads: &str) -> Value {
    walk_in(stage, "32M", policy, stride, threads)
}

/// [`walk`] with so much of it local.
fn walk_in(stage: &Stage, local: &str, policy: &str, stride: &str, threads: &str) -> Value {
    let walker = stage.compile("walker", &["-lpthread"]);
    let options = ["--local", local, "--lend", "128M", "--slab-size", "4M", "--prefetch", policy, "--summary"];
    let program = [walker.to_str().unwrap(), "64", stride, threads, "1"];
    let said = support::run(&mut stage.run(&options, &program)).done("the walker");
    assert!(said.text().contains("wrong 0"), "{}", said.text());
    let statistics = stage.statistics();
    assert_eq!(statistics["out_of_memory_kills"], 0);
    assert_eq!(statistics["prefetch"]["policy"], policy);
    assert_eq!(said.errors.contains("prefetching: "), policy != "kernel", "{}", said.errors);
    statistics["prefetch"].clone()
}

/// Whether this machine can prefetch; otherwise the run must have said what is lacking.
fn is_active(prefetch: &Value) -> bool {
    if prefetch["is_active"] == true {
        return true;
    }
    assert!(prefetch["note"].is_string(), "{prefetch}");
    support::skip("perf events, or process_madvise(2)");
    false
}

#[test]
fn streams_and_strides_are_prefetched_and_exact() {
    let Some(stage) = Stage::set(&["gcc"]) else { return };
    let _default = DefaultReadAhead::set();
    for (stride, threads) in [("1", "1"), ("10", "1"), ("3", "2")] {
        let prefetch = walk(&stage, "streams", stride, threads);
        assert_eq!(page_cluster(), DEFAULT, "it is put back");
        if !is_active(&prefetch) {
            return;
        }
        let number = |pointer: &str| prefetch.pointer(pointer).and_then(Value::as_u64).unwrap();
        assert!(number("/samples/major") > 0 && number("/advices") > 0, "{prefetch:#}");
        assert!(number("/pages_used") > 100, "stride {stride}, {threads} threads: {prefetch:#}");
    }
    stage.assert_clean();
}

#[test]
fn leaps_trend_is_followed_and_exact() {
    let Some(stage) = Stage::set(&["gcc"]) else { return };
    let _default = DefaultReadAhead::set();
    let prefetch = walk(&stage, "leap", "10", "1");
    if is_active(&prefetch) {
        assert!(prefetch["pages_used"].as_u64().unwrap() > 100, "{prefetch:#}");
    }
    assert_eq!(page_cluster(), DEFAULT, "it is put back");
}

#[test]
fn many_streams_in_the_smallest_budget_kill_no_program() {
    let Some(stage) = Stage::set(&["gcc"]) else { return };
    let _default = DefaultReadAhead::set();
    // Eight threads want two windows of 64 pages each, and 2048 pages are all that is local.
    let prefetch = walk_in(&stage, "8M", "streams", "1", "8");
    if is_active(&prefetch) {
        assert!(prefetch["pages_held_back"].as_u64().unwrap() > 0, "{prefetch:#}");
    }
}

#[test]
fn random_walks_are_left_alone() {
    let Some(stage) = Stage::set(&["gcc"]) else { return };
    let _default = DefaultReadAhead::set();
    let prefetch = walk(&stage, "streams", "0", "1");
    if is_active(&prefetch) {
        let number = |pointer: &str| prefetch.pointer(pointer).and_then(Value::as_u64).unwrap();
        assert!(number("/pages_asked") < number("/samples/major") / 4, "{prefetch:#}");
    }
}

#[test]
fn the_kernels_read_ahead_stays_unless_told_otherwise() {
    let Some(stage) = Stage::set(&["gcc"]) else { return };
    let _default = DefaultReadAhead::set();
    for policy in ["kernel", "none"] {
        let prefetch = walk(&stage, policy, "1", "1");
        assert_eq!((&prefetch["is_active"], &prefetch["pages_asked"]), (&Value::Bool(false), &Value::from(0)));
        assert_eq!(page_cluster(), DEFAULT);
    }
}

#[test]
fn read_ahead_is_put_back_for_a_killed_run() {
    let Some(stage) = Stage::set(&["gcc"]) else { return };
    let _default = DefaultReadAhead::set();
    let walker = stage.compile("walker", &["-lpthread"]);
    let options = ["--local", "16M", "--lend", "128M", "--slab-size", "4M", "--prefetch", "streams"];
    let program = [walker.to_str().unwrap(), "48", "10", "1", support::UNTIL_TOLD];
    let mut running = Running::start(&mut stage.run(&options, &program));
    stage.wait_lent(&mut running, 8 << 20);
    let run = stage.items("run").remove(0);
    let is_prefetching = is_active(&run.report["prefetch"]);
    assert_eq!(page_cluster(), if is_prefetching { "0" } else { DEFAULT });
    running.signal("KILL");
    let entry = stage.registry().join(format!("run-{}", running.pid()));
    assert_eq!(running.end().status.signal(), Some(9));
    wait_until("the remains to go", || {
        support::run(&mut stage.spillway(&["doctor", "--mend", "--json"]));
        (!entry.exists()).then_some(())
    });
    assert_eq!(page_cluster(), DEFAULT);
    stage.assert_clean();
}

/// A walker with a stride in a memory group of the test's own, 64 MiB of it with half of them local: how many of its
/// page-ins it waited for, of a thousand.
fn walk_in_group(stage: &Stage, group: &Group) -> u64 {
    let walker = stage.compile("walker", &["-lpthread"]);
    let before = group.major_faults();
    let said = support::run(&mut group.command(&[walker.to_str().unwrap(), "64", "10", "1", "3"])).done("the walker");
    assert!(said.text().contains("wrong 0"), "{}", said.text());
    let read = said.text().split("read ").nth(1).and_then(|text| text.split(',').next()?.parse::<u64>().ok()).unwrap();
    1000 * (group.major_faults() - before) / read
}

/// What the swap device tells of prefetching.
fn told(stage: &Stage) -> Value {
    wait_until("the swap device to tell", || {
        Some(stage.items("device").first()?.report["prefetch"].clone()).filter(Value::is_object)
    })
}

/// The same once the process that prefetches is at work; `None` where this machine cannot prefetch.
fn told_at_work(stage: &Stage) -> Option<Value> {
    wait_until("the prefetching process to be at work, or given up", || {
        let told = told(stage);
        let is_over = told["note"].as_str().is_some_and(|note| note.contains("read-ahead stays"));
        (is_over || told["is_active"] == true && page_cluster() == "0").then_some(())
    });
    Some(told(stage)).filter(is_active)
}

#[test]
fn a_swap_device_prefetches_for_the_cgroup_that_is_named() {
    let Some(mut stage) = Stage::set(&["gcc"]) else { return };
    let _default = DefaultReadAhead::set();
    stage.donor("256M");
    let group = Group::new("33554432").expect("a memory group can be made");
    swap_on_with(&stage, &[]);
    assert_eq!((&told(&stage)["policy"], page_cluster().as_str()), (&Value::from("kernel"), DEFAULT));
    let by_kernel = walk_in_group(&stage, &group);
    support::run(&mut stage.spillway(&["swap", "off"])).done("swap off");
    swap_on_with(&stage, &["--prefetch", "streams", "--prefetch-cgroup", group.path()]);
    let is_prefetching = told_at_work(&stage).is_some();
    if is_prefetching {
        let by_streams = walk_in_group(&stage, &group);
        assert!(
            by_streams * 2 < by_kernel,
            "{by_streams} of 1000 page-ins were waited for, {by_kernel} by the kernel's"
        );
        wait_until("the device to tell of the pages", || (told(&stage)["pages_used"].as_u64()? > 100).then_some(()));
        let people = support::run(&mut stage.spillway(&["swap", "status"])).done("swap status");
        assert!(people.text().contains("vm.page-cluster is 0 instead of 3"), "{}", people.text());
    }
    support::run(&mut stage.spillway(&["swap", "off"])).done("swap off");
    assert_eq!(page_cluster(), DEFAULT, "it is put back");
    drop(group);
    stage.assert_clean();
}

#[test]
fn a_swap_device_leaves_programs_alone_that_are_not_named() {
    let Some(mut stage) = Stage::set(&["gcc"]) else { return };
    let _default = DefaultReadAhead::set();
    stage.donor("256M");
    let group = Group::new("33554432").expect("a memory group can be made");
    for (name, is_for_it) in [("no-such-program", false), ("walker", true)] {
        swap_on_with(&stage, &["--prefetch", "streams", "--prefetch-process", name]);
        if told_at_work(&stage).is_none() {
            return;
        }
        walk_in_group(&stage, &group);
        if is_for_it {
            wait_until("pages to be asked for", || (told(&stage)["pages_asked"].as_u64()? > 100).then_some(()));
        }
        let told = told(&stage);
        assert_eq!(told["pages_asked"].as_u64().unwrap() > 0, is_for_it, "{name}: {told:#}");
        support::run(&mut stage.spillway(&["swap", "off"])).done("swap off");
        assert_eq!(page_cluster(), DEFAULT, "it is put back");
    }
}

/// The number of the process that prefetches for this stage's swap device.
fn prefetching_process(stage: &Stage) -> Option<u32> {
    let entry = stage.registry().join("device-swap");
    let entry = entry.to_str().unwrap();
    let processes =
        std::fs::read_dir("/proc").unwrap().filter_map(|file| file.ok()?.file_name().to_str()?.parse().ok());
    processes.into_iter().find(|process: &u32| {
        let line = std::fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line);
        line.split('\0').nth(1) == Some("prefetch-swap") && line.contains(entry)
    })
}

#[test]
fn read_ahead_is_put_back_for_a_killed_prefetcher_and_a_killed_keeper() {
    let Some(mut stage) = Stage::set(&[]) else { return };
    let _default = DefaultReadAhead::set();
    stage.donor("256M");
    swap_on_with(&stage, &["--prefetch", "streams"]);
    if told_at_work(&stage).is_none() {
        return;
    }
    let first = prefetching_process(&stage).expect("it is at work");
    support::signal(first, "KILL");
    wait_until("the kernel to read ahead again", || (page_cluster() == DEFAULT).then_some(()));
    assert!(told(&stage)["note"].as_str().is_some_and(|note| note.contains("signal: 9")), "{}", told(&stage));
    wait_until("another one to go on", || prefetching_process(&stage).filter(|process| *process != first));
    assert!(told_at_work(&stage).is_some());
    let owner = std::fs::read(stage.registry().join("device-swap/owner.json")).unwrap();
    let keeper = serde_json::from_slice::<Value>(&owner).unwrap()["pid"].as_u64().unwrap();
    support::signal(keeper as u32, "KILL");
    wait_until("the prefetching process to end", || prefetching_process(&stage).is_none().then_some(()));
    support::run(&mut stage.spillway(&["swap", "off"])).done("swap off");
    assert_eq!(page_cluster(), DEFAULT, "the mender put it back");
    stage.assert_clean();
}
