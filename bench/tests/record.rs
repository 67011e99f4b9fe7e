//! Traces of programs that know nothing of it, recorded and replayed as a user does.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::path::Path;
use std::process::{Command, Output};

use spillway_bench::replay::traces;
use spillway_policy::replay::accesses::Accesses;

fn bench(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_spillway-bench")).args(arguments).output().unwrap()
}

fn has_valgrind() -> bool {
    let found = spillway_bench::harness::tool::find("valgrind").is_some();
    if !found {
        spillway_sys::skipping::skip_because("valgrind is not installed");
    }
    found
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn read(file: &Path) -> Accesses {
    traces::read(&std::fs::read(file).unwrap()).unwrap()
}

#[test]
fn a_program_is_recorded_and_replayed() {
    if !has_valgrind() {
        return;
    }
    let directory = tempfile::tempdir_in("/var/tmp").unwrap();
    let (input, trace) = (directory.path().join("input"), directory.path().join("trace"));
    let lines: String = (0..400_u32).map(|line| format!("{:0>1000}\n", line * 7919 % 401)).collect();
    std::fs::write(&input, &lines).unwrap();
    let arguments = ["record", trace.to_str().unwrap(), "--", "sort", "--parallel=1", "--buffer-size=2M"];
    let output = bench(&[&arguments[..], &[input.to_str().unwrap()]].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let mut sorted: Vec<&str> = lines.lines().collect();
    sorted.sort_unstable();
    assert_eq!(text(&output.stdout).lines().collect::<Vec<_>>(), sorted, "the program's output is its own");
    assert!(text(&output.stderr).contains("0 found no room"), "{}", text(&output.stderr));
    let accesses = read(&trace);
    let pages = u64::from(accesses.pages());
    assert!((98..1000).contains(&pages), "{pages} pages for a text of 98 in a buffer of 512");
    let writes = accesses.as_slice().iter().filter(|access| access.write).count() as u64;
    assert!(writes >= 98 && accesses.as_slice().len() as u64 > 2 * 98, "the text is read, and then looked at");
    let replayed = bench(&["replay", trace.to_str().unwrap()]);
    assert!(replayed.status.success() && text(&replayed.stdout).contains("L(50): refaults"));
}

#[test]
fn what_fails_is_told_and_its_trace_kept() {
    if !has_valgrind() {
        return;
    }
    let directory = tempfile::tempdir_in("/var/tmp").unwrap();
    let trace = directory.path().join("trace");
    let failed = bench(&["record", trace.to_str().unwrap(), "--", "sh", "-c", "exit 7"]);
    assert!(!failed.status.success() && text(&failed.stderr).contains("exit status: 7"), "{}", text(&failed.stderr));
    assert!(read(&trace).pages() > 0);
    assert!(!bench(&["record", trace.to_str().unwrap()]).status.success(), "a program is needed");
}
