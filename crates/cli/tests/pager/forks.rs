//! What a fork shares is in memory once, and counts once.

use crate::stage::Stage;
use crate::support;

/// Memory of the program; it and three children have it, so that the kernel counts four times that.
const PROGRAM_MIB: u64 = 96;

/// Enough for one of them, and by far not for four.
const LOCAL_MIB: u64 = 144;

/// The children wait until all are there and the program has closed its pipe, look at every page, and say whether it is right.
const SCRIPT: &str = "
import mmap, os, sys, time
size = int(sys.argv[1]) << 20
memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for place in range(0, size, 4096):
    memory[place:place + 8] = place.to_bytes(8, 'little')
reading, writing = os.pipe()
children = []
for child in range(3):
    number = os.fork()
    if number == 0:
        os.close(writing)
        os.read(reading, 1)
        is_right = all(memory[place:place + 8] == place.to_bytes(8, 'little') for place in range(0, size, 4096))
        os._exit(0 if is_right else 1)
    children.append(number)
time.sleep(1)
os.close(writing)
print([os.waitpid(number, 0)[1] for number in children])
";

#[test]
fn pages_that_a_fork_shares_count_once() {
    let Some(stage) = Stage::set(&["/usr/bin/python3"]) else { return };
    let local = format!("{LOCAL_MIB}M");
    let size = PROGRAM_MIB.to_string();
    let options = ["--local", &local, "--lend", "768M", "--slab-size", "4M"];
    let said = support::run(&mut stage.run(&options, &["/usr/bin/python3", "-c", SCRIPT, &size])).done("forks");
    assert_eq!(said.text(), "[0, 0, 0]\n");
    let statistics = stage.statistics();
    let peak = statistics["pager"]["local_bytes_peak"].as_u64().unwrap();
    // By the kernel's count it is 400 MiB, and 120 MiB as it is.
    assert!(peak < (LOCAL_MIB + PROGRAM_MIB) << 20, "{} MiB at a time: {statistics:#}", peak >> 20);
    stage.assert_clean();
}
