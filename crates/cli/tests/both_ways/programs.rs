//! Exact output at 50 and 25 % of the footprint, for programs of every kind.

use std::fs;
use std::process::Command;

use serde_json::Value;

use crate::VIA;
use crate::both_ways::shares::{all_local, assert_footprint, assert_held, assert_share};
use crate::both_ways::stage::Stage;
use crate::support::{self, skip};

/// How much these tests borrow: all of their programs stay below it.
const LEND: &str = "384M";

/// A variable that tells programs which of their runs is paged, and by what.
pub(crate) const PAGED_BY: &str = "PAGED_BY";

/// What a program does with its memory, which decides what can be held against its budget.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kind {
    /// One process that maps its memory, and then uses it: it is held to its budget.
    Steady,
    /// One process that maps more while it is at its budget, and fills that at full speed: it goes beyond while the
    /// pager has not seen the new mapping yet.
    Growing,
    /// Processes that share pages, none of which leaves before it belongs to one process again (rule 2 of
    /// docs/pager.md), or threads that change their mappings all at once, between which little can leave (rule 11):
    /// they go beyond their budget for a while, and what they have together is another in each run.
    Several,
}

impl Kind {
    /// Runs such a program, and asserts what can be held against it; `run` gives the run's statistics.
    pub(crate) fn judge(self, mut run: impl FnMut() -> Value) {
        match self {
            Self::Steady => assert_held(run),
            Self::Growing | Self::Several => _ = run(),
        }
    }
}

/// Runs a program with all of its memory local and with two budgets; its output must be the same. Gives what each run
/// said on standard error, that with all memory local first.
pub(crate) fn same_output(kind: Kind, stage: &Stage, program: &[&str]) -> Vec<String> {
    same_output_at(&["50%", "25%"], kind, stage, program)
}

/// As [`same_output`], with these shares of what it needs.
pub(crate) fn same_output_at(shares: &[&str], kind: Kind, stage: &Stage, program: &[&str]) -> Vec<String> {
    let (native, peak_bytes) = all_local(stage, program);
    let mut errors = vec![native.errors];
    for local in shares {
        kind.judge(|| {
            let mut command = stage.run(&["--local", local, "--lend", LEND, "--slab-size", "4M"], program);
            let lent = support::run(command.env(PAGED_BY, VIA)).done(local);
            let is_same = lent.output == native.output;
            assert!(is_same, "{program:?} at {local} wrote something else\nstderr: {}", lent.errors);
            errors.push(lent.errors);
            let statistics = stage.statistics();
            assert_eq!(statistics["out_of_memory_kills"], 0, "{statistics:#}");
            assert_eq!(statistics["device"]["device"]["pages_lost"], 0, "{statistics:#}");
            assert_share(&statistics);
            if kind != Kind::Several {
                assert_footprint(&statistics, peak_bytes);
            }
            statistics
        });
    }
    stage.assert_clean();
    errors
}

/// As [`same_output`], for a script in a language.
pub(crate) fn same_output_of_script(kind: Kind, stage: &Stage, interpreter: &[&str], name: &str, script: &str) {
    let path = stage.disk().join(name);
    fs::write(&path, script).unwrap();
    let path = path.to_str().unwrap();
    same_output(kind, stage, &[interpreter, &[path]].concat());
}

/// What programs fill: a quarter of it is more than the pager's least budget of 16 MiB.
pub(crate) const MIB: &str = "80";

/// As [`same_output`], for one mode of the program; nothing where something is lacking.
pub(crate) fn exerciser(kind: Kind, mode: &str, options: &[&str]) -> Vec<String> {
    let Some(stage) = Stage::set(&["gcc"]) else { return Vec::new() };
    let binary = stage.compile("exerciser", options);
    let scratch = stage.disk().join("scratch");
    same_output(kind, &stage, &[binary.to_str().unwrap(), mode, MIB, scratch.to_str().unwrap()])
}

#[test]
fn forked_children_have_their_own_memory() {
    exerciser(Kind::Several, "fork", &[]);
}

#[test]
fn executed_programs_start_afresh() {
    exerciser(Kind::Several, "exec", &[]);
}

#[test]
fn moved_and_resized_mappings_keep_their_pages() {
    exerciser(Kind::Steady, "mremap", &[]);
}

#[test]
fn direct_io_reads_and_writes_lent_pages() {
    exerciser(Kind::Steady, "direct", &[]);
}

#[test]
fn io_uring_reads_and_writes_lent_pages() {
    exerciser(Kind::Steady, "uring", &[]);
}

#[test]
fn huge_pages_are_lent_in_parts() {
    let runs = exerciser(Kind::Growing, "huge", &[]);
    let had_huge_pages = |errors: &String| !errors.contains("huge pages: 0 KiB") && errors.contains("huge pages: ");
    if runs.first().is_some_and(|native| !had_huge_pages(native)) {
        let enabled = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
        return skip(format!(
            "transparent huge pages (enabled: '{}'; {})",
            enabled.trim(),
            runs[0].trim().replace('\n', ", ")
        ));
    }
    assert!(runs.iter().all(had_huge_pages), "none before anything left: {runs:?}");
}

#[test]
fn locked_pages_stay_local() {
    exerciser(Kind::Steady, "mlock", &[]);
}

/// What sorts `sort_input`, without files of its own, in two threads.
pub(crate) const SORT: [&str; 3] = ["sort", "--buffer-size=256M", "--parallel=2"];

pub(crate) fn sort_input() -> String {
    lines(SORTED_LINES, 40)
}

#[test]
fn sort_writes_what_it_always_writes() {
    let Some(stage) = Stage::set(&["sort"]) else { return };
    let input = stage.disk().join("input");
    fs::write(&input, sort_input()).unwrap();
    same_output(Kind::Steady, &stage, &[&SORT[..], &[input.to_str().unwrap()]].concat());
}

/// GNU sort starts a second thread for 131,072 lines and more (`SUBTHREAD_LINES_HEURISTIC` in its `sort.c`).
const SORTED_LINES: u64 = 140_000;

/// Lines of so many words in no order, the same at every call.
fn lines(count: u64, words: usize) -> String {
    let mut state: u64 = 88_172_645_463_325_252;
    let mut text = String::new();
    for _ in 0..count {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        text.push_str(&format!("{state:016x} "));
        text.push_str(&format!("words-{:04} ", state % 9973).repeat(words));
        text.push('\n');
    }
    text
}

#[test]
fn python_and_numpy_compute_the_same() {
    let Some(stage) = Stage::set(&["/usr/bin/python3"]) else { return };
    if !Command::new("/usr/bin/python3").args(["-c", "import numpy"]).status().is_ok_and(|status| status.success()) {
        return skip("numpy (apt-get install python3-numpy)");
    }
    let script = "import hashlib, numpy\n\
        random = numpy.random.RandomState(7)\n\
        table = random.randint(0, 1 << 40, size=(3 << 20), dtype=numpy.int64)\n\
        table.sort()\n\
        print(hashlib.sha256(table.tobytes()).hexdigest())\n\
        other = numpy.cumsum(table % 1000003)[::-1] ^ table\n\
        print(hashlib.sha256(other.tobytes()).hexdigest())\n\
        words = [str(i * 7919 % 1000003) for i in range(40000)]\n\
        print(hashlib.sha256(''.join(sorted(words)).encode()).hexdigest())\n\
        print(int((other.reshape(512, -1) % 1000003).sum(axis=0).max()))\n";
    same_output_of_script(Kind::Growing, &stage, &["/usr/bin/python3"], "compute.py", script);
}

/// Entries of a dictionary lie in no order; growing copies its table, and removing leaves holes.
pub(crate) const DICTIONARIES: &str = "import hashlib\n\
    counts = {}\n\
    for i in range(70000):\n    \
        key = i * 7919 % 60013\n    \
        counts[key] = counts.get(key, 0) + i\n\
    for key in range(0, 60013, 3):\n    \
        counts.pop(key, None)\n\
    nested = {f'key {i}': {'number': i, 'parts': (i, str(i))} for i in range(90000)}\n\
    total = sum(nested[f'key {i * 31 % 90000}']['number'] * (i % 7) for i in range(10000))\n\
    print(len(counts), sum(counts.values()), total)\n\
    print(hashlib.sha256(repr(sorted(counts.items())).encode()).hexdigest())\n\
    print(hashlib.sha256(repr(nested).encode()).hexdigest())\n";

#[test]
fn python_keeps_its_dictionaries() {
    let Some(stage) = Stage::set(&["/usr/bin/python3"]) else { return };
    same_output_of_script(Kind::Growing, &stage, &["/usr/bin/python3"], "dictionaries.py", DICTIONARIES);
}

#[test]
fn sqlite_answers_the_same() {
    let Some(stage) = Stage::set(&["sqlite3"]) else { return };
    let script = "PRAGMA temp_store=MEMORY; PRAGMA cache_size=-200000;\n\
        CREATE TABLE pairs(key INTEGER PRIMARY KEY, value TEXT, other INTEGER);\n\
        WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 80000)\n\
        INSERT INTO pairs SELECT n, printf('%0240d', n * 7919 % 1000003), n * 104729 % 65537 FROM numbers;\n\
        CREATE INDEX by_other ON pairs(other, value);\n\
        SELECT count(*), sum(other), min(value), max(value) FROM pairs;\n\
        SELECT other, count(*), max(key) FROM pairs GROUP BY other ORDER BY count(*) DESC, other LIMIT 20;\n\
        DELETE FROM pairs WHERE other % 3 = 0;\n\
        SELECT count(*), sum(key * other % 1009) FROM pairs;\n\
        PRAGMA integrity_check;\n";
    let path = stage.disk().join("queries.sql");
    fs::write(&path, script).unwrap();
    let read = format!(".read {}", path.display());
    same_output(Kind::Steady, &stage, &["sqlite3", ":memory:", &read]);
}

#[test]
fn a_compiler_writes_the_same_object() {
    let Some(stage) = Stage::set(&["gcc"]) else { return };
    let source = stage.disk().join("large.c");
    fs::write(&source, large_source(60, 500_000)).unwrap();
    same_output(Kind::Growing, &stage, &["gcc", "-O2", "-S", "-o", "/dev/stdout", source.to_str().unwrap()]);
}

/// Many small functions that an optimizer has something to do with, and a table, which takes much memory and little
/// time.
fn large_source(functions: usize, numbers: usize) -> String {
    let table = (0..numbers).map(|number| format!("{}u,\n", number * 104_729 % 65_537));
    let mut text = format!("const unsigned table[] = {{\n{}}};\n", table.collect::<String>());
    for number in 0..functions {
        text.push_str(&format!(
            "unsigned f{number}(unsigned *a, unsigned n) {{ unsigned s = {number}; \
             for (unsigned i = 0; i < n; i++) {{ s = s * 31 + a[i] % {}; a[i] ^= s >> {}; \
             switch (s % 7) {{ case 0: s += i; break; case 3: s ^= a[i]; break; case 5: s -= n; }} }} return s; }}\n",
            number % 97 + 2,
            number % 13 + 1
        ));
    }
    text.push_str("unsigned all(unsigned *a, unsigned n) { unsigned s = 0;\n");
    for number in 0..functions {
        text.push_str(&format!("s += f{number}(a, n);\n"));
    }
    text.push_str("return s; }\n");
    text
}

#[test]
fn a_pipeline_of_programs_shares_one_budget() {
    let Some(stage) = Stage::set(&["sh", "sort", "sha256sum"]) else { return };
    let input = stage.disk().join("input");
    fs::write(&input, lines(25_000, 140)).unwrap();
    let script = format!(
        "sort --buffer-size=64M {0} | tee {1} | sort -r --buffer-size=64M | sha256sum; wc -l < {1}",
        input.display(),
        stage.disk().join("sorted").display()
    );
    // A quarter would be the 8 MiB that every run has at least: five programs that read and write files in so little
    // are killed now and then by a kernel with cgroups of version 1, beside others' work.
    same_output_at(&["50%"], Kind::Several, &stage, &["sh", "-c", &script]);
}

#[test]
fn memory_that_is_all_local_has_no_limit() {
    let Some(stage) = Stage::set(&["gcc"]) else { return };
    let binary = stage.compile("exerciser", &[]);
    let program = [binary.to_str().unwrap(), "mremap", "64", "/nonexistent"];
    support::run(&mut stage.run(&["--local", "100%", "--lend", "64M", "--slab-size", "4M"], &program)).done("100%");
    let memory = &stage.statistics()["memory"];
    assert_eq!(memory["limit_bytes"], Value::Null);
    // A busy kernel may age out a few idle pages of any program; a limit would have paged out half.
    assert!(memory["swapped_bytes_max"].as_u64().unwrap() < 16 << 20, "{memory}");
    stage.assert_clean();
}
