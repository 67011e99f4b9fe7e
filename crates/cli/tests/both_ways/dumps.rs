//! Programs that dump core while part of their memory is lent: what the dump has, and that everything ends as it would.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::VIA;
use crate::both_ways::programs::{Kind, MIB, same_output};
use crate::both_ways::shares::assert_share;
use crate::both_ways::stage::Stage;
use crate::support::{self, skip};

/// The signal of abort(3).
const ABORTED: i32 = 6;

/// Pages that may come or leave between a program's look at its own and its dump: a batch of evictions, and read-ahead.
const MOVING_PAGES_MAX: u64 = 128 + 512;

/// What keeps a process of this machine from leaving its core in its directory.
fn lacking() -> Option<&'static str> {
    let pattern = fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap_or_default();
    let is_file_here = !pattern.trim().is_empty() && !pattern.starts_with('|') && !pattern.contains('/');
    let unlimited = Command::new("prlimit").args(["--core=unlimited:unlimited", "true"]).status();
    match is_file_here {
        true if unlimited.is_ok_and(|status| status.success()) => None,
        true => Some("core dumps of any size (prlimit --core)"),
        false => Some("core dumps in the directory of their program (kernel.core_pattern)"),
    }
}

/// The only file of a directory.
fn only_file(directory: &Path) -> PathBuf {
    let files: Vec<PathBuf> = fs::read_dir(directory).unwrap().map(|file| file.unwrap().path()).collect();
    let [file] = &files[..] else { panic!("not one core: {files:?}") };
    file.clone()
}

#[test]
fn a_dump_has_every_local_page_and_no_wrong_word() {
    for local in ["50%", "25%"] {
        let Some(stage) = Stage::set(&["gcc", "prlimit"]) else { return };
        if let Some(missing) = lacking() {
            return skip(missing);
        }
        dump(&stage, local);
    }
}

/// A program dumps core with a share of its memory local, and compares that with what it noted before.
fn dump(stage: &Stage, local: &str) {
    let (binary, record, cores) =
        (stage.compile("dumper", &[]), stage.disk().join("record"), stage.disk().join("cores"));
    fs::create_dir(&cores).unwrap();
    let (dumper, record) = (binary.to_str().unwrap(), record.to_str().unwrap());
    let run = stage.run(&["--local", local, "--lend", "384M", "--slab-size", "4M"], &[dumper, "self", MIB, record]);
    // `run` may leave a core as well: it ends by the same signal, in the same directory, and must not replace the
    // program's.
    let mut command = Command::new("prlimit");
    command.arg("--core=unlimited:unlimited").arg(run.get_program()).args(run.get_args()).current_dir(&cores);
    command.envs(run.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let said = support::run(&mut command);
    assert_eq!(said.status.signal(), Some(ABORTED), "{}: {}", said.status, said.errors);
    let statistics = stage.statistics();
    assert_eq!(statistics["ending"], serde_json::json!({ "signalled": ABORTED }), "{statistics:#}");
    assert_share(&statistics);

    let core = only_file(&cores);
    let compared = support::run(Command::new(dumper).args(["compare", core.to_str().unwrap(), record])).done("compare");
    let numbers: Vec<u64> = compared.text().split_whitespace().map(|number| number.parse().unwrap()).collect();
    let [present, present_right, away, away_right] = numbers[..] else { panic!("{numbers:?}") };
    assert!(present > 4 * MOVING_PAGES_MAX && away > 4 * MOVING_PAGES_MAX, "{numbers:?}");
    assert!(present_right + MOVING_PAGES_MAX >= present, "local pages are missing: {numbers:?}");
    // The kernel reads a swap device for a dump, but lets no pager serve faults meanwhile.
    let is_as_stated =
        if VIA == "pager" { away_right <= MOVING_PAGES_MAX } else { away_right == away && present_right == present };
    assert!(is_as_stated, "of pages that were away: {numbers:?}");
    stage.assert_clean();
}

#[test]
fn a_child_that_dumps_its_memory_ends_and_its_parent_lives_on() {
    let Some(stage) = Stage::set(&["gcc"]) else { return };
    let binary = stage.compile("dumper", &[]);
    same_output(Kind::Several, &stage, &[binary.to_str().unwrap(), "child", MIB, stage.disk().to_str().unwrap()]);
}
