//! Memory that cannot leave does not get its program killed: the limit makes room for it, and the user is told where
//! nothing said how much.

use crate::both_ways::stage::Stage;
use crate::support;

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

/// Pages of files count in the limit of a memory group; where these are what is short, the run says so while the
/// program runs.
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
