//! Programs that were built with a sanitizer, whose library wants to be the first one, and that stop all their
//! threads, the agent too, to read all memory.

use std::process::Command;

use crate::both_ways::stage::Stage;
use crate::support::{self, skip};

/// Keeps words in three times its budget.
const SOURCE: &str = "
#include <stdio.h>
#include <stdlib.h>
int main(void) {
    enum { BLOCKS = 48, WORDS = 1 << 17 };
    unsigned long *blocks[BLOCKS], sum = 0;
    for (int block = 0; block < BLOCKS; block++) {
        blocks[block] = malloc(WORDS * 8);
        for (int word = 0; word < WORDS; word++) blocks[block][word] = block + word;
    }
    for (int block = 0; block < BLOCKS; block++) {
        for (int word = 0; word < WORDS; word += 511) sum += blocks[block][word] - word;
        free(blocks[block]);
    }
    printf(\"%lu\\n\", sum);
    return 0;
}
";

/// The cases `asan-order` and `lsan-exit`.
#[test]
fn programs_with_an_address_sanitizer_start_and_are_paged() {
    let Some(stage) = Stage::set(&["gcc"]) else { return };
    let (source, program) = (stage.disk().join("sanitized.c"), stage.disk().join("sanitized"));
    std::fs::write(&source, SOURCE).unwrap();
    let mut compiler = Command::new("gcc");
    compiler.args(["-O1", "-fsanitize=address", "-o"]).arg(&program).arg(&source);
    if !support::run(&mut compiler).status.success() {
        return skip("AddressSanitizer's library (libasan)");
    }
    let options = ["--local", "16M", "--lend", "256M", "--slab-size", "4M"];
    let mut run = stage.run(&options, &[program.to_str().unwrap()]);
    // At its end all threads are stopped and its memory is looked through. What a user asks sanitizers for is kept.
    let said = support::run(run.env("ASAN_OPTIONS", "detect_leaks=1")).done("a sanitized program");
    let words = (1_u64 << 17).div_ceil(511);
    assert_eq!(said.text(), format!("{}\n", words * (0..48).sum::<u64>()));
    assert!(stage.statistics()["pager"]["pages_out_dirty"].as_u64().unwrap() > 4096, "{}", said.errors);
}

/// What a check for leaks does at a program's end, 200 times while pages leave: the agent is stopped with a batch
/// that it has not begun, or in the middle of one.
#[test]
fn a_reader_that_stops_all_threads_does_not_wait() {
    let Some(stage) = Stage::set(&["gcc"]) else { return };
    let stopped = stage.compile("stopped", &["-pthread"]);
    let options = ["--local", "24M", "--lend", "256M", "--slab-size", "4M"];
    let said = support::run(&mut stage.run(&options, &[stopped.to_str().unwrap(), "48", "200"])).done("stopped");
    assert_eq!(said.text(), "12288 pages read while all threads were stopped\n");
    let paging = &stage.statistics()["pager"];
    // The program is whole while it is traced, or its evictor's batches are taken over.
    let is_whole = paging["failures"].to_string().contains("is stopped by process");
    assert!(is_whole || paging["batches_withdrawn"].as_u64().unwrap() > 0, "{paging:#}");
    assert!(paging["pages_out_dirty"].as_u64().unwrap() > 0, "{paging:#}");
    assert_eq!(paging["pages_lost"], 0, "{paging:#}");
}
