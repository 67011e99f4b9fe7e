//! Exact output under a cgroup (version 2) limit of half the working set.

use serde_json::Value;
use spillway_virtual_machine::Kernel;
use spillway_virtual_machine::builder::quoted;

use crate::virtual_machine::front_ends::FrontEnd;
use crate::virtual_machine::guest::{Guest, SLABS};

/// Working sets are above [the smallest budget](crate) twice over, and what one more refault costs in emulation keeps
/// them small.
const PROGRAMS: [&str; 4] = [
    "spillway-bench workload quicksort --size 16M",
    "spillway-bench workload fill-sequential --size 20M",
    FORKS,
    "redis.sh /disk 8000",
];

/// A program whose child has what its parent had.
pub(crate) const FORKS: &str = "exerciser fork 16 /disk/scratch";

/// The same programs, with hardly anything to do.
const SMALL: &str = "spillway-bench workload quicksort --size 1M; exerciser fork 1 /disk/scratch; redis.sh /disk 10";

/// Java and Node take the limit of their memory group for the memory of the machine.
fn programs_find_no_limit_in_their_group(guest: &Guest, front_end: FrontEnd) {
    let script = "ls /sys/fs/cgroup$(sed -n s/^0:://p /proc/self/cgroup)";
    let run = format!("spillway run --frontend {} --local 50% --lend 64M {SLABS}", front_end.name);
    let files = guest.said(&format!("{run} -- sh -c {}", quoted(script)));
    assert!(files.contains("cgroup.procs") && !files.contains("memory.max"), "{files}");
}

pub(crate) fn programs_at_half_their_memory_write_what_they_always_write(guest: &Guest, front_end: FrontEnd) {
    // Their code is read outside of any memory group by that, and does not go in and out of a group's few MiB later.
    guest.said(SMALL);
    programs_find_no_limit_in_their_group(guest, front_end);
    for program in PROGRAMS {
        a_program_at_half_its_memory_writes_what_it_always_writes(guest, front_end, program);
    }
}

/// The host says what that is: the same program, many times as fast.
pub(crate) fn a_program_at_half_its_memory_writes_what_it_always_writes(
    guest: &Guest,
    front_end: FrontEnd,
    program: &str,
) {
    let native = guest.said_on_host(program);
    let run = format!("spillway run --frontend {} --local 50% --lend 128M {SLABS}", front_end.name);
    let lent = guest.said(&format!("{run} --stats /share/statistics.json -- {program}"));
    assert!(lent == native, "{program} wrote something else: {lent}\ninstead of: {native}");
    let text = std::fs::read(guest.share().join("statistics.json")).expect("the run wrote its statistics");
    let statistics: Value = serde_json::from_slice(&text).expect("statistics are JSON");
    // It was not asked for by name: the older kernel has no pager, else the option decides, and root is told so.
    let reason = match front_end.kernel {
        Kernel::Debian61 => "the pager lacks userfaultfd",
        Kernel::Debian612 => "--frontend is for swap devices",
    };
    assert_eq!(statistics["memory"]["via"], serde_json::json!({ "way": "swap", "reason": reason }), "{statistics:#}");
    assert_eq!(statistics["out_of_memory_kills"], 0, "{statistics:#}");
    assert_eq!(statistics["device"]["device"]["pages_lost"], 0, "{statistics:#}");
    let told = statistics["device"]["device"]["frontend"].as_str().expect("the front end is told");
    assert!(told.starts_with(front_end.name), "{told}");
    assert!(statistics["memory"]["swapped_bytes_max"].as_u64() > Some(2 << 20), "little was lent: {statistics:#}");
}
