//! Memory that cannot leave does not get its program killed: the limit makes room for it, and the user is told where
//! nothing said how much.

use spillway_sys::memory_hierarchy::{Hierarchy, Version};

use crate::both_ways::stage::Stage;
use crate::support;

/// `locked-swap` and `page-tables-swap`.
#[test]
fn programs_with_memory_that_cannot_leave_are_not_killed() {
    let Some(stage) = Stage::set(&["gcc"]) else { return };
    let program = stage.compile("unmovable", &[]);
    for (kind, local) in [("locked", "24M"), ("locked", "50%"), ("tables", "24M"), ("tables", "50%")] {
        let options = ["--local", local, "--lend", "256M", "--slab-size", "4M"];
        let program = [program.to_str().unwrap(), kind, "96"];
        let said = support::run(&mut stage.run(&options, &program)).done(kind);
        assert_eq!(said.text(), "wrong 0\n", "{kind} in {local}");
        let statistics = stage.statistics();
        assert_eq!(statistics["out_of_memory_kills"], 0, "{statistics:#}");
        let relief = statistics["memory"]["relief_bytes_max"].as_u64().unwrap();
        assert_eq!(relief > 0, said.errors.contains("beyond --local"), "{relief}: {}", said.errors);
    }
}

/// `own-group`: a program that goes to another memory group, as what container engines start. Without a limit of its
/// own that group says nothing about memory, so the program is put back; with one the user is told.
#[test]
fn programs_that_go_to_another_memory_group_are_put_back_or_told_of() {
    let Some(stage) = Stage::set(&["sh", "sleep"]) else { return };
    let Some(hierarchy) = Hierarchy::detect().filter(|found| found.version == Version::V1) else {
        return support::skip("a memory cgroup of version 1");
    };
    let group = hierarchy.root.join(format!("spillway-test-{}", std::process::id()));
    for (limit, told) in [("-1", "was put back"), ("1073741824", "--local does not hold there")] {
        let _ = std::fs::create_dir(&group);
        std::fs::write(group.join("memory.limit_in_bytes"), limit).unwrap();
        let procs = group.join("cgroup.procs").display().to_string();
        let script = format!("echo $$ >{procs}; sleep 2; grep memory: /proc/self/cgroup");
        let options = ["--local", "24M", "--lend", "64M", "--slab-size", "4M", "--summary"];
        let said = support::run(&mut stage.run(&options, &["sh", "-c", &script])).done(told);
        assert!(said.errors.contains(told), "{}", said.errors);
        assert!(said.errors.contains("in other memory groups"), "{}", said.errors);
        assert_eq!(said.text().contains("/spillway/"), limit == "-1", "{}", said.text());
        assert!(stage.statistics()["memory"]["outside_bytes_max"].as_u64().unwrap() > 0);
        std::fs::remove_dir(&group).unwrap();
    }
}

/// One `posix_fallocate` of 96 MiB.
const ALLOCATES: &str = "
import os
os.posix_fallocate(os.memfd_create('heap'), 0, 96 << 20)
";

/// `fallocate-swap`: pages of a call under way cannot leave, so one that does not fit fails. The run says why.
#[test]
fn an_allocation_that_does_not_fit_the_limit_is_told_of() {
    let Some(stage) = Stage::set(&["python3"]) else { return };
    let program = ["python3", "-c", ALLOCATES];
    let small = ["--local", "32M", "--lend", "128M", "--slab-size", "4M"];
    let said = support::run(&mut stage.run(&small, &program));
    assert!(!said.status.success() && said.errors.contains("Cannot allocate memory"), "{}", said.errors);
    assert!(said.errors.contains("one fallocate of shared memory"), "{}", said.errors);
    let large = ["--local", "128M", "--lend", "64M", "--slab-size", "4M"];
    let said = support::run(&mut stage.run(&large, &program)).done("what the message names");
    assert!(!said.errors.contains("fallocate"), "{}", said.errors);
    stage.assert_clean();
}

/// Fills 48 MiB and reads them.
const FILLS: &str = "
memory = bytearray(48 << 20)
for place in range(0, 48 << 20, 4096):
    memory[place] = place >> 12 & 255
print('wrong', sum(memory[place] != place >> 12 & 255 for place in range(0, 48 << 20, 4096)))
";

/// A run by the pager inside of a run over swap: what it keeps of its volume is larger than one call may allocate
/// there.
#[test]
fn a_run_by_the_pager_inside_of_a_run_over_swap_is_right() {
    let Some(stage) = Stage::set(&["python3"]) else { return };
    let spillway = env!("CARGO_BIN_EXE_spillway");
    let inner = [spillway, "run", "--via", "pager", "--local", "16M", "--", "python3", "-c", FILLS];
    let outer = ["--local", "64M", "--lend", "256M", "--slab-size", "4M"];
    let said = support::run(&mut stage.run(&outer, &inner)).done("a run in a run");
    assert_eq!(said.text(), "wrong 0\n");
    stage.assert_clean();
}

/// Reads a file of 96 MiB through a mapping, all of it, again and again.
const FILES: &str = "
import mmap, sys
with open(sys.argv[1], 'w+b') as file:
    file.truncate(96 << 20)
    for piece in range(96):
        file.write(b'x' * (1 << 20))
    file.flush()
    memory = mmap.mmap(file.fileno(), 96 << 20)
    wrong = 0
    for turn in range(10):
        for place in range(0, 96 << 20, 4096):
            wrong += memory[place] != 120
print('wrong', wrong)
";

/// `lmdb-swap`: pages of files count in the limit of a memory group; where these are what is short, the run says so
/// while the program runs.
#[test]
fn files_that_do_not_fit_the_limit_are_told_of() {
    let Some(stage) = Stage::set(&["python3"]) else { return };
    let file = stage.disk().join("data");
    let options = ["--local", "32M", "--lend", "64M", "--slab-size", "4M"];
    let program = ["python3", "-c", FILES, file.to_str().unwrap()];
    let said = support::run(&mut stage.run(&options, &program)).done("a program of a large file");
    assert_eq!(said.text(), "wrong 0\n");
    assert!(said.errors.contains("pages of files, not memory, are what is short"), "{}", said.errors);
    assert!(said.errors.contains("--via pager"), "{}", said.errors);
    stage.assert_clean();
}
