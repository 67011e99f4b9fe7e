//! Java with a heap of shared memory: ZGC maps one object in several places, and makes room in it by `fallocate`.

use crate::both_ways::java;
use crate::support;

/// Five times as much is allocated in all, of which the heap of 256 MiB has a part at a time.
const ALLOCATED_MIB: &str = "192";

#[test]
fn a_heap_of_shared_memory_is_lent_when_it_begins_small() {
    let collector = "-XX:+UseZGC";
    if !java::has_collector(collector) {
        return support::skip("java with ZGC");
    }
    let Some(stage) = java::stage() else { return };
    let classes = stage.disk().to_str().unwrap();
    // The heap that Java begins with is made by one call, of which nothing can leave before it ends.
    let heap = ["-XX:-UseContainerSupport", "-Xms16m", "-Xmx256m"];
    let program = [&["java"], &heap[..], &[collector, "-cp", classes, "Churn", ALLOCATED_MIB]].concat();
    let options = ["--local", "96M", "--lend", "512M", "--slab-size", "4M"];
    let said = support::run(&mut stage.run(&options, &program)).done("java with ZGC");
    assert!(said.text().contains("as written"), "{}", said.text());
    let statistics = stage.statistics();
    let number = |pointer: &str| statistics.pointer(pointer).and_then(serde_json::Value::as_u64).unwrap();
    assert_eq!((number("/out_of_memory_kills"), number("/device/device/pages_lost")), (0, 0), "{statistics:#}");
    assert!(number("/memory/swapped_bytes_max") > 32 << 20, "{statistics:#}");
    stage.assert_clean();
}
