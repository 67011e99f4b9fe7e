//! Memory that cannot leave does not get its program killed: the limit makes room for it, and the user is told where nothing said how much.

use crate::stage::Stage;
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
