//! Memory that programs lock.

use crate::both_ways::stage::Stage;
use crate::support;

/// Fills memory beyond the budget, looks at every page of it, gives it up, and locks all that is left for a moment:
/// the agent's staging area too, which comes to be filled so. Again and again.
const SCRIPT: &str = "
import ctypes, mmap
libc = ctypes.CDLL(None)
size = 48 << 20
for turn in range(6):
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for place in range(0, size, 4096):
        memory[place:place + 8] = (place + turn).to_bytes(8, 'little')
    print(all(memory[place:place + 8] == (place + turn).to_bytes(8, 'little') for place in range(0, size, 4096)))
    memory.close()
    print(libc.mlockall(1), libc.munlockall())
";

#[test]
fn a_program_that_locks_all_its_memory_now_and_then_keeps_every_word() {
    if !support::is_root() {
        return support::skip("root, who may lock all memory");
    }
    let Some(stage) = Stage::set(&["/usr/bin/python3"]) else { return };
    let options = ["--local", "16M", "--lend", "128M", "--slab-size", "4M"];
    let said = support::run(&mut stage.run(&options, &["/usr/bin/python3", "-c", SCRIPT])).done("locks");
    assert_eq!(said.text(), "True\n0 0\n".repeat(6));
    let pager = &stage.statistics()["pager"];
    assert!(pager["pages_out_dirty"].as_u64().unwrap() > 6 * 4096, "its pages left: {pager:#}");
    stage.assert_clean();
}

/// Buffers that a program registers with io_uring are pinned for the device: the kernel does not let them go, and
/// what it reads into them is there. The program does nothing else that pages could be refused for.
#[test]
fn pages_that_the_kernel_has_pinned_stay_and_have_what_it_reads_there() {
    let Some(stage) = Stage::set(&["gcc"]) else { return };
    let binary = stage.compile("exerciser", &["-pthread"]);
    let file = stage.disk().join("file");
    let program = [binary.to_str().unwrap(), "uring", "80", file.to_str().unwrap()];
    let options = ["--local", "25%", "--lend", "384M", "--slab-size", "4M"];
    let said = support::run(&mut stage.run(&options, &program)).done("uring");
    assert_eq!(said.text(), "uring 20480 pages as written\n");
    let statistics = stage.statistics();
    assert!(statistics["pager"]["refused"].as_u64() > Some(0), "{statistics:#}");
    stage.assert_clean();
}
