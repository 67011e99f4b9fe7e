//! Rule 15: answers wait while the budget is used up, so that no process that writes faster than pages leave goes
//! beyond it; what no answer could hold back is held, and told if it was too much for long.

use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;

use crate::both_ways::shares::{assert_held, assert_left, assert_within_slack};
use crate::both_ways::stage::Stage;
use crate::support::{self, Running};

#[test]
fn a_program_that_fills_memory_as_fast_as_it_can_waits_for_its_pages_to_leave() {
    let Some(stage) = Stage::set(&["gcc"]) else { return };
    let binary = stage.compile("exerciser", &[]);
    let program = [binary.to_str().unwrap(), "touch", "512", "/nonexistent"];
    assert_held(|| {
        let options = ["--local", "64M", "--lend", "768M", "--slab-size", "4M"];
        let said = support::run(&mut stage.run(&options, &program)).done("a fast writer");
        assert_eq!(said.text(), "touch 131072 pages as written\n");
        let statistics = stage.statistics();
        assert_left(&statistics);
        assert!(statistics["pager"]["held_back"].as_u64() > Some(0), "it never waited: {statistics:#}");
        statistics
    });
    stage.assert_clean();
}

/// Threads that take all CPUs, until this is dropped.
struct Load {
    is_over: Arc<AtomicBool>,
}

impl Load {
    const THREADS: usize = 4;

    fn begin() -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        for _ in 0..Self::THREADS {
            let is_over = Arc::clone(&is_over);
            std::thread::spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        Self { is_over }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

/// A donor at a TCP port of this machine, and the port's address.
fn donor_over_tcp(stage: &Stage) -> (Running, String) {
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let options = ["donate", "--key", "none", "--headroom", "16M", "--slab-size", "4M", "--memory", "512M", "--listen"];
    let mut donor = Running::start(stage.spillway(&options).arg(&address));
    donor.wait_until("a donor to listen", || TcpStream::connect(&address).ok());
    (donor, address)
}

/// Writers of one MiB of fresh mappings after the other, on a machine that is busy.
fn writers_on_a_busy_machine(threads: &str, (mib, local, rounds): (&str, &str, &str), is_over_tcp: bool) {
    let Some(stage) = Stage::set_alone(&["gcc"]) else { return };
    let binary = stage.compile("pieces", &["-pthread"]);
    let program = [binary.to_str().unwrap(), threads, mib, rounds];
    let donor = is_over_tcp.then(|| donor_over_tcp(&stage));
    let mut options = vec!["--local", local, "--lend", "400M", "--slab-size", "4M", "--summary"];
    if let Some((_, address)) = &donor {
        options.extend(["--key", "none", "--donor", address]);
    }
    let load = Load::begin();
    assert_within_slack(|| {
        let said = support::run(&mut stage.run(&options, &program)).done("writers");
        assert_eq!(said.text(), "pieces wrong 0\n");
        let statistics = stage.statistics();
        assert_left(&statistics);
        let is_told = said.errors.contains("was exceeded for");
        assert_eq!(is_told, has_excess(&statistics), "{}{statistics:#}", said.errors);
        statistics
    });
    drop(load);
    stage.assert_clean();
}

fn has_excess(statistics: &Value) -> bool {
    statistics["pager"]["excess"]["seconds"].as_f64() > Some(0.0)
}

#[test]
fn a_writer_of_fresh_mappings_keeps_its_budget_on_a_busy_machine() {
    writers_on_a_busy_machine("1", ("200", "64M", "1"), true);
}

#[test]
fn writers_of_fresh_mappings_keep_their_budget_on_a_busy_machine() {
    writers_on_a_busy_machine("4", ("200", "64M", "1"), false);
}

#[test]
#[ignore = "takes minutes"]
fn all_writers_under_load_keep_their_budget() {
    for threads in ["1", "2", "4"] {
        for is_over_tcp in [false, true] {
            writers_on_a_busy_machine(threads, ("300", "80M", "3"), is_over_tcp);
        }
    }
}

/// `one-call`: one system call fills much, and its only thread can start no evictor meanwhile.
#[test]
fn a_call_that_fills_more_than_the_budget_is_told() {
    let Some(stage) = Stage::set(&["/usr/bin/python3"]) else { return };
    let script = "
import os
size, file = 160 << 20, os.memfd_create('f')
os.ftruncate(file, size)
memory = bytearray(size)
print(os.preadv(file, [memory], 0) == size and not any(memory[::4096]))
";
    let options = ["--local", "24M", "--lend", "256M", "--slab-size", "4M", "--summary"];
    let said = support::run(&mut stage.run(&options, &["/usr/bin/python3", "-c", script])).done("a call");
    assert_eq!(said.text(), "True\n");
    let statistics = stage.statistics();
    let allowed = (24.0 + 16.0) * f64::from(1 << 20);
    let peak = statistics["pager"]["local_bytes_peak"].as_f64().unwrap();
    assert!(peak <= allowed || said.errors.contains("the budget of 24 MiB was exceeded for"), "{}", said.errors);
    stage.assert_clean();
}

/// `file-changes`: changed pages of files cannot leave; the rest keeps a part of the budget, and the run says so.
#[test]
fn what_can_be_paged_keeps_a_part_of_a_budget_that_changed_pages_of_files_fill() {
    let Some(stage) = Stage::set(&["/usr/bin/python3"]) else { return };
    let script = "
import mmap, sys
changed, rest, page = 40 << 20, 64 << 20, 4096
with open(sys.argv[1], 'wb') as file:
    file.truncate(changed)
with open(sys.argv[1], 'rb') as file:
    changes = mmap.mmap(file.fileno(), changed, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
for place in range(0, changed, page):
    changes[place] = 7
memory = mmap.mmap(-1, rest, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for turn in range(1, 4):
    for place in range(0, rest, page):
        memory[place] = turn
print(all(memory[place] == 3 for place in range(0, rest, page)), all(changes[place] == 7 for place in range(0, changed, page)))
";
    let file = stage.disk().join("changed");
    let options = ["--local", "24M", "--lend", "256M", "--slab-size", "4M", "--summary"];
    let program = ["/usr/bin/python3", "-c", script, file.to_str().unwrap()];
    let said = support::run(&mut stage.run(&options, &program)).done("changes of files");
    assert_eq!(said.text(), "True True\n");
    let line = said.errors.lines().find(|line| line.contains("the budget of 24 MiB was exceeded for"));
    assert!(line.is_some_and(|line| line.contains("memory that cannot be paged")), "{}", said.errors);
    stage.assert_clean();
}
