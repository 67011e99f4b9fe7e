//! Bounds of one run: how much memory it borrows, and how many bytes its pages take a second.

use serde_json::Value;

use super::stage::Stage;
use crate::support;

/// Fills so many MiB with what no other page has, and reads all of it again.
const SCRIPT: &str = "
import mmap, os, sys, zlib
size, block = int(sys.argv[1]) << 20, 1 << 20
memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
sums = []
for place in range(0, size, block):
    memory[place:place + block] = os.urandom(block)
    sums.append(zlib.crc32(memory[place:place + block]))
print(all(zlib.crc32(memory[place * block:(place + 1) * block]) == sums[place] for place in range(len(sums))))
";

const MIB: u64 = 1 << 20;

/// What the run told, and its statistics.
fn run(stage: &Stage, options: &[&str], size_mib: &str) -> (String, Value) {
    let said = support::run(&mut stage.run(options, &["/usr/bin/python3", "-c", SCRIPT, size_mib])).done("the program");
    assert_eq!(said.text(), "True\n");
    (said.errors, stage.statistics())
}

#[test]
fn a_run_with_a_bound_of_traffic_keeps_it_and_tells_what_waited() {
    let Some(stage) = Stage::set(&["/usr/bin/python3"]) else { return };
    let options = ["--local", "24M", "--lend", "256M", "--slab-size", "4M", "--bandwidth", "64M", "--summary"];
    let (errors, statistics) = run(&stage, &options, "64");
    let bound = &statistics["device"]["device"]["bandwidth"];
    assert_eq!(bound["bytes_per_second"], 64 * MIB, "{statistics:#}");
    assert!(bound["requests_held"].as_u64() > Some(0) && bound["held_us"].as_u64() > Some(0), "{bound}");
    assert!(errors.contains("page traffic bounded to 64 MiB/s"), "{errors}");
    let traffic = &statistics["device"]["device"]["traffic"];
    let pages = ["pages_in", "pages_out"].map(|name| traffic[name].as_u64().unwrap()).iter().sum::<u64>();
    // More than what the program has beyond its budget went, and not faster than the bound: a burst, and what was under
    // way at the end, aside. Before the program starts the device moves little.
    let seconds = statistics["wall_seconds"].as_f64().unwrap() + 1.0;
    let most_bytes = seconds * (64 * MIB) as f64 + (8 * MIB) as f64;
    assert!(pages * 4096 > 40 * MIB && (pages * 4096) as f64 <= most_bytes, "{pages} pages in {seconds} s");
    stage.assert_clean();
}

#[test]
fn a_run_that_borrows_all_that_it_may_keeps_the_rest_and_says_so() {
    let Some(stage) = Stage::set(&["/usr/bin/python3"]) else { return };
    let options = ["--local", "16M", "--lend", "32M", "--slab-size", "4M"];
    let (errors, statistics) = run(&stage, &options, "96");
    assert_eq!(errors.matches("all of --lend 32 MiB is in use").count(), 1, "{errors}");
    let memory = &statistics["memory"];
    // The device has 32 MiB; the kernel counts pages of the group that are on their way out or in, too.
    assert!(memory["swapped_bytes_max"].as_u64() <= Some(36 * MIB), "{memory:#}");
    assert_eq!(
        (memory["lend_bytes_max"].as_u64(), memory["program"].as_str()),
        (Some(32 * MIB), Some("/usr/bin/python3"))
    );
    stage.assert_clean();
}
