//! Memory that stays local is counted by kind and process, and told: in `status`, the statistics and the summary.

use std::fs;
use std::ops::Range;
use std::path::PathBuf;

use serde_json::Value;

use crate::both_ways::stage::Stage;
use crate::support::{self, Running, skip};

const MEBIBYTES: u64 = 48;

/// Pages of the program's own and of its libraries, beside what it is asked for.
const OTHER_BYTES_MAX: u64 = 8 << 20;

/// A file that is gone when the test is over.
struct SharedFile(PathBuf);

impl Drop for SharedFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Huge pages that the machine has more than before, until the test is over.
struct HugePages {
    before: String,
}

impl HugePages {
    const SETTING: &str = "/proc/sys/vm/nr_hugepages";

    /// So many of 2 MiB, as far as the kernel has them; `None` without the right to.
    fn reserve(pages: u64) -> Option<Self> {
        let before = fs::read_to_string(Self::SETTING).ok()?;
        let count = before.trim().parse::<u64>().ok()? + pages;
        fs::write(Self::SETTING, count.to_string()).ok()?;
        Some(Self { before })
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        let restored = fs::write(Self::SETTING, &self.before);
        assert!(restored.is_ok() || std::thread::panicking(), "{} is as it was before", Self::SETTING);
    }
}

/// A program with memory of one kind, under the pager.
struct Case {
    /// How `staying` calls it.
    kind: &'static str,
    /// The field of the statistics.
    field: &'static str,
    /// What people read.
    words: &'static str,
    path: Option<PathBuf>,
    /// Processes that have it.
    processes: usize,
}

/// Bytes that are told of a program's memory.
const EXPECTED: Range<u64> = MEBIBYTES << 20..(MEBIBYTES << 20) + OTHER_BYTES_MAX;

impl Case {
    fn new(kind: &'static str, field: &'static str, words: &'static str) -> Self {
        Self { kind, field, words, path: None, processes: 1 }
    }

    /// How many of its processes are named with all of it.
    fn named(&self, pager: &Value) -> usize {
        let programs = pager["staying_programs"].as_array().into_iter().flatten();
        let has_it = |one: &Value| one[self.field].as_u64().is_some_and(|bytes| EXPECTED.contains(&bytes));
        programs.filter(|one| one["name"] == "staying" && has_it(one)).count()
    }

    /// Runs it; false: the machine has no such memory.
    fn check(&self, stage: &Stage) -> bool {
        let program = stage.compile("staying", &[]);
        let amount = MEBIBYTES.to_string();
        let mut words = vec![program.to_str().unwrap(), self.kind, &amount];
        words.extend(self.path.iter().map(|path| path.to_str().unwrap()));
        let options = ["--local", "24M", "--lend", "128M", "--slab-size", "4M", "--summary"];
        let mut running = Running::start(&mut stage.run(&options, &words));
        let told = support::wait_until(&format!("{} memory to be told of", self.kind), || {
            if running.has_ended() {
                return Some(false);
            }
            let pager = serde_json::json!(stage.pager_now()?);
            let is_told = EXPECTED.contains(&pager["staying"][self.field].as_u64()?);
            (is_told && self.named(&pager) == self.processes).then_some(true)
        });
        if told {
            let text = support::run(&mut stage.spillway(&["status"])).done("status").text();
            assert!(text.contains("stays local, ") && text.contains(self.words), "{}: {text}", self.kind);
            running.signal("USR1");
        }
        let said = running.end().done(self.kind);
        if !told {
            assert!(said.text().starts_with("no memory"), "{}: {}", self.kind, said.text());
            return false;
        }
        assert_eq!(said.text(), "wrong 0\n", "{}", self.kind);
        let summary = said.errors.lines().find(|line| line.contains("stayed local")).expect("a summary").to_owned();
        assert!(summary.contains(self.words), "{}: {summary}", self.kind);
        let statistics = stage.statistics();
        let pager = &statistics["pager"];
        let peak = pager["staying_peak"][self.field].as_u64().unwrap();
        assert!(EXPECTED.contains(&peak), "{}: {peak} {pager:#}", self.kind);
        assert_eq!(self.named(pager), self.processes, "{}: {pager:#}", self.kind);
        true
    }
}

#[test]
fn shared_memory_is_told_by_kind_and_process() {
    let Some(stage) = Stage::set(&["gcc"]) else { return };
    let shared = SharedFile(PathBuf::from(format!("/dev/shm/spillway-staying-{}", std::process::id())));
    let mut cases = vec![
        Case::new("anonymous", "shared_anonymous_bytes", "shared anonymous memory"),
        Case::new("memfd", "memfd_bytes", "memfd objects"),
        Case::new("sysv", "shared_memory_bytes", "shared memory (tmpfs, SysV)"),
        // Each of the three has looked at it; it counts once.
        Case { processes: 3, ..Case::new("children", "shared_anonymous_bytes", "shared anonymous memory") },
    ];
    if fs::metadata("/dev/shm").is_ok() {
        let path = Some(shared.0.clone());
        cases.push(Case { path, ..Case::new("shmem", "shared_memory_bytes", "shared memory (tmpfs, SysV)") });
    }
    for case in cases {
        assert!(case.check(&stage), "{}: every Linux has it", case.kind);
    }
    stage.assert_clean();
}

#[test]
fn pages_of_files_are_told_by_kind() {
    let Some(stage) = Stage::set(&["gcc"]) else { return };
    for (kind, field, words) in [
        ("shared-file", "shared_file_bytes", "files mapped shared"),
        ("file", "file_changes_bytes", "changed pages of files"),
    ] {
        let path = Some(stage.disk().join(kind));
        assert!(Case { path, ..Case::new(kind, field, words) }.check(&stage), "{kind}");
    }
    stage.assert_clean();
}

#[test]
fn huge_pages_are_told() {
    let Some(stage) = Stage::set(&["gcc"]) else { return };
    let _reserved = HugePages::reserve(MEBIBYTES / 2);
    if !Case::new("huge", "huge_pages_bytes", "huge pages (hugetlbfs)").check(&stage) {
        skip("24 free huge pages (vm.nr_hugepages)");
    }
    stage.assert_clean();
}
