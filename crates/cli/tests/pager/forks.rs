//! What a fork shares is in memory once, and counts once.

use crate::both_ways::shares::assert_left;
use crate::both_ways::stage::Stage;
use crate::support;

/// Memory of the program; it and three children have it, so that the kernel counts four times that.
const PROGRAM_MIB: u64 = 96;

/// Enough for one of them, and by far not for four.
const LOCAL_MIB: u64 = 144;

/// The children wait until all are there and the program has closed its pipe, look at every page, and say whether it
/// is right.
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

#[test]
fn children_are_told_apart_from_those_of_other_threads_and_from_other_programs() {
    let Some(stage) = Stage::set(&["gcc"]) else { return };
    let binary = stage.compile("families", &["-pthread"]);
    let program = [binary.to_str().unwrap(), "32", "2", "3", "3"];
    let options = ["--local", "16M", "--lend", "512M", "--slab-size", "4M"];
    let said = support::run(&mut stage.run(&options, &program)).done("families");
    assert_eq!(said.text(), "right\n");
    // An agent in another's process, or one whose address space is not its own, fails.
    let failures = &stage.statistics()["pager"]["failures"];
    assert_eq!(failures.as_array().map(Vec::len), Some(0), "{failures:#}");
    stage.assert_clean();
}

/// `fork-pool`: workers copy the pages of their parent's objects when they count references, of which no message tells.
/// What is too much for long is told.
#[test]
fn a_pool_of_workers_that_read_their_parents_objects_is_right_and_told_of() {
    let Some(stage) = Stage::set(&["/usr/bin/python3"]) else { return };
    let script = "
import multiprocessing
data = [(number, str(number) * 3) for number in range(150000)]
def work(first): return sum(number + len(text) for number, text in data[first::4])
with multiprocessing.get_context('fork').Pool(4) as pool: print(sum(pool.map(work, range(4))))
";
    let options = ["--local", "24M", "--lend", "256M", "--slab-size", "4M", "--summary"];
    let said = support::run(&mut stage.run(&options, &["/usr/bin/python3", "-c", script])).done("a pool");
    assert_eq!(said.text(), "11252291670\n");
    let statistics = stage.statistics();
    assert_left(&statistics);
    let is_exceeded = statistics["pager"]["excess"]["seconds"].as_f64() > Some(0.0);
    assert_eq!(is_exceeded, said.errors.contains("was exceeded for"), "{}{statistics:#}", said.errors);
    stage.assert_clean();
}

/// Its child ends at once, and the child of that has an agent of its own in the end: it looks for it for a minute.
const DAEMON: &str = "
import mmap, os, time
size = 48 << 20
memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for place in range(0, size, 4096):
    memory[place:place + 8] = place.to_bytes(8, 'little')
reading, writing = os.pipe()
child = os.fork()
if child == 0:
    if os.fork() != 0:
        os._exit(0)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and len(os.listdir('/proc/self/task')) < 2:
        for place in range(0, size, 4096):
            memory[place + 8] = 1
    is_right = all(memory[place:place + 8] == place.to_bytes(8, 'little') for place in range(0, size, 4096))
    os.write(writing, b'%d %d' % (len(os.listdir('/proc/self/task')), is_right))
    os._exit(0)
os.waitpid(child, 0)
os.close(writing)
print(os.read(reading, 16).decode())
";

#[test]
fn a_child_whose_parent_has_ended_is_found() {
    let Some(stage) = Stage::set(&["/usr/bin/python3"]) else { return };
    let options = ["--local", "24M", "--lend", "384M", "--slab-size", "4M"];
    for _ in 0..3 {
        let said = support::run(&mut stage.run(&options, &["/usr/bin/python3", "-c", DAEMON])).done("a daemon");
        assert_eq!(said.text(), "2 1\n", "{} {:#}", said.errors, stage.statistics()["pager"]["failures"]);
    }
    stage.assert_clean();
}
