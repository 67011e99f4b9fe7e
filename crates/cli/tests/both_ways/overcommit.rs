//! Several processes fill far more than their memory group may have: no deadlock, no lost page.

use crate::both_ways::stage::Stage;
use crate::support::{self, soak_seconds};

#[test]
fn overcommit_by_several_processes_loses_nothing() {
    let Some(stage) = Stage::set(&["gcc", "sh"]) else { return };
    let verifier = stage.compile("verifier", &[]);
    let seconds = soak_seconds(5);
    let one = |seed: usize| format!("{} 64 {seconds} {seed} & p{seed}=$!;", verifier.display());
    let waits = "for p in $p1 $p2 $p3 $p4; do wait $p || exit 1; done";
    let script = format!("{} {waits}", (1..=4).map(one).collect::<String>());
    // 256 MiB in a group of 48 MiB.
    let options = ["--local", "48M", "--lend", "384M", "--slab-size", "4M"];
    let said = support::run(&mut stage.run(&options, &["sh", "-c", &script])).done("four verifiers");
    assert_eq!(said.text().matches("wrong 0").count(), 4, "{}", said.text());
    let statistics = stage.statistics();
    assert_eq!(statistics["out_of_memory_kills"], 0, "{statistics:#}");
    // The kernel charges some allocations that may not fail beyond the limit (`try_charge_memcg`, mm/memcontrol.c),
    // how many is its own affair. The pager must first learn of what four programs fill at once, which takes it longer
    // beside ten others (it was 106 MiB once). 256 MiB of working set would show if the limit did not hold.
    assert!(statistics["memory"]["local_bytes_max"].as_u64().unwrap() <= 128 << 20, "{statistics:#}");
    stage.assert_clean();
}

#[test]
fn overcommit_beside_reading_files_loses_nothing() {
    let Some(stage) = Stage::set(&["gcc", "sh", "dd"]) else { return };
    let verifier = stage.compile("verifier", &[]);
    let file = stage.disk().join("file");
    support::run(
        std::process::Command::new("dd")
            .args(["if=/dev/zero", "bs=1M", "count=128"])
            .arg(format!("of={}", file.display())),
    )
    .done("dd");
    let script = format!(
        "{} 96 {} 5 & p=$!; while kill -0 $p 2>/dev/null; do cat {} > /dev/null; done; wait $p",
        verifier.display(),
        soak_seconds(4),
        file.display()
    );
    let options = ["--local", "32M", "--lend", "256M", "--slab-size", "4M"];
    let said = support::run(&mut stage.run(&options, &["sh", "-c", &script])).done("a verifier beside cat");
    assert!(said.text().contains("wrong 0"), "{}", said.text());
    stage.assert_clean();
}
