//! What a run tells of its faults.

use serde_json::Value;

use crate::both_ways::stage::Stage;
use crate::support::{self, Running, UNTIL_TOLD};

/// Touches its memory for the first time, writes all of it twice, reads it three times, and gives a part up and reads
/// zeroes there.
const SCRIPT: &str = "
import mmap
size, page = 64 << 20, 4096
memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for turn in (1, 2):
    for place in range(0, size, page):
        memory[place] = turn
right = all(memory[place] == 2 for turn in range(3) for place in range(0, size, page))
for place in range(0, size, 4 * page):
    memory[place] = 3
memory.madvise(mmap.MADV_DONTNEED, 0, 8 << 20)
print(right and not any(memory[place] for place in range(0, 8 << 20, page)))
";

#[test]
fn faults_are_told_by_kind_with_what_they_took() {
    let Some(stage) = Stage::set(&["/usr/bin/python3"]) else { return };
    let options = ["--local", "24M", "--lend", "256M", "--slab-size", "4M", "--summary"];
    let said = support::run(&mut stage.run(&options, &["/usr/bin/python3", "-c", SCRIPT])).done("the program");
    assert_eq!(said.text(), "True\n");
    let statistics = stage.statistics();
    let pager = &statistics["pager"];
    let number = |pointer: &str| pager.pointer(pointer).and_then(serde_json::Value::as_f64).expect(pointer);
    let mut lost_seconds = 0.0;
    for kind in ["fill", "zero", "write"] {
        let figure = |name: &str| number(&format!("/{kind}/{name}"));
        let [median, high, largest] = ["p50", "p99", "max"].map(|name| figure(&format!("latency/{name}_us")));
        assert!(figure("count") > 0.0, "{kind}: {pager:#}");
        assert!(0.0 < median && median <= high && high <= largest, "{kind}: {pager:#}");
    }
    for kind in ["fill", "staged", "zero", "write"] {
        lost_seconds += number(&format!("/{kind}/count")) * number(&format!("/{kind}/latency/mean_us")) / 1e6;
    }
    let told = number("/lost_seconds");
    assert!((told - lost_seconds).abs() <= 0.02 * told + 1e-4, "{told} and {lost_seconds}: {pager:#}");
    assert!(told < statistics["wall_seconds"].as_f64().unwrap(), "one thread waited: {pager:#}");
    // Of 64 MiB at least 40 are away after each turn.
    let away = f64::from((64 - 24) << 20) / 4096.0;
    let came = number("/fill/count") + number("/staged/count") + number("/pages_prefetched");
    assert!(came >= 4.0 * away, "{came} came: {pager:#}");
    let refaults: Vec<f64> =
        pager["refaults"].as_array().unwrap().iter().filter_map(serde_json::Value::as_f64).collect();
    assert!(refaults.iter().sum::<f64>() <= number("/fill/count"), "{pager:#}");
    // A program that goes round finds a page after all that are away have come, in whose place others left: 4^6 =
    // 4096, 4^7 = 16384.
    assert!(refaults[6] > 0.5 * number("/fill/count"), "{pager:#}");
    let line = said.errors.lines().find(|line| line.contains("faults:")).expect("a summary").to_owned();
    assert!(line.contains(&format!("{} fill", number("/fill/count"))) && line.contains("lost in them"), "{line}");
    stage.assert_clean();
}

/// The case `protected-stays`. Memory that cannot leave counts in the budget; where it is much, the run says what it
/// is.
#[test]
fn memory_that_cannot_leave_is_told_by_its_kind() {
    let Some(stage) = Stage::set(&["gcc"]) else { return };
    let program = stage.compile("staying", &[]);
    for (kind, why) in
        [("protected", "may not be written"), ("none", "may not be written"), ("stack", "of its main stack")]
    {
        let options = ["--local", "24M", "--lend", "128M", "--slab-size", "4M"];
        let mut running = Running::start(&mut stage.run(&options, &[program.to_str().unwrap(), kind, "96"]));
        running.wait_until("the run to tell", || {
            let pager = stage.pager_now()?;
            let is_counted = pager.staying_bytes_peak >= 24 << 20;
            (is_counted && pager.failures.join("; ").contains(why)).then_some(())
        });
        running.signal("USR1");
        let said = running.end().done(kind);
        assert_eq!(said.text(), "wrong 0\n", "{kind}");
        let is_told = |line: &str| line.contains("the budget of 24 MiB is not held") && line.contains(why);
        assert!(said.errors.lines().any(is_told), "{kind}: {}", said.errors);
        let statistics = stage.statistics();
        let staying = statistics["pager"]["staying_bytes_peak"].as_u64().unwrap();
        assert!((24 << 20..128 << 20).contains(&staying), "{kind}: {statistics:#}");
        let field = match kind {
            "protected" => "read_only_bytes",
            "none" => "no_access_bytes",
            _ => "main_stack_bytes",
        };
        let peak = statistics["pager"]["staying_peak"][field].as_u64().unwrap();
        assert!((24 << 20..128 << 20).contains(&peak), "{kind}: {statistics:#}");
        assert!(statistics["pager"]["failures"].to_string().contains(why), "{kind}: {statistics:#}");
    }
    stage.assert_clean();
}

#[test]
fn a_run_tells_each_change_of_the_state_of_its_donors() {
    let Some(mut stage) = Stage::set(&["gcc"]) else { return };
    let verifier = stage.compile("verifier", &[]);
    stage.donor("160M");
    stage.donor("160M");
    let donors = stage.donor_options();
    let mut options = vec!["--local", "24M", "--lend", "96M", "--slab-size", "4M", "--key", "none"];
    options.extend(["--redundancy", "replicas=2"]);
    options.extend(donors.iter().map(String::as_str));
    let program = [verifier.to_str().unwrap(), "64", UNTIL_TOLD, "11"];
    let mut running = Running::start(&mut stage.run(&options, &program));
    let wait_for = |stage: &Stage, running: &mut Running, what: &str, is_reached: fn(&Value) -> Option<bool>| {
        running.wait_until(what, || is_reached(&stage.device_now())?.then_some(()));
    };
    wait_for(&stage, &mut running, "pages to be lent", |device| Some(device["pages_stored"].as_u64()? > 2048));
    stage.signal_donor(1, "KILL");
    wait_for(&stage, &mut running, "slabs to lack a copy", |device| Some(device["slabs"]["degraded"].as_u64()? > 0));
    // A look of the log comes each second.
    std::thread::sleep(std::time::Duration::from_secs(3));
    stage.start_donor(1);
    wait_for(&stage, &mut running, "every copy to be made again", |device| Some(device["slabs"]["degraded"] == 0));
    std::thread::sleep(std::time::Duration::from_secs(3));
    running.signal("USR1");
    let said = running.end().done("the verifier");
    assert!(said.text().contains("wrong 0"), "{}", said.text());
    let lines: Vec<&str> = said.errors.lines().filter(|line| line.contains("run: ")).collect();
    for (level, expected) in [
        ("WARN", "slabs lack a copy (replicas=2 is asked for)"),
        ("INFO", "1.sock is connected"),
        ("INFO", "every slab has all its copies (replicas=2)"),
    ] {
        let is_told = lines.iter().any(|line| line.contains(level) && line.contains(expected));
        assert!(is_told, "{expected}: {}", said.errors);
    }
    stage.wait_returned();
    stage.assert_clean();
}
