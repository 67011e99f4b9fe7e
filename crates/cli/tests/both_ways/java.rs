//! A Java program whose collector goes through its heap again and again, with part of it lent.

use std::fs;
use std::process::Command;

use crate::both_ways::programs::{Kind, same_output};
use crate::both_ways::stage::Stage;
use crate::support;

/// It ends with another status than 0 unless the collector ran, four times at least, and left the live set as it was.
const CHURN: &str = include_str!("programs/Churn.java");

/// A stage with the program's class in its directory.
pub(crate) fn stage() -> Option<Stage> {
    let stage = Stage::set(&["java", "javac"])?;
    let path = stage.disk().join("Churn.java");
    fs::write(&path, CHURN).unwrap();
    support::run(Command::new("javac").arg("-d").arg(stage.disk()).arg(&path)).done("javac");
    Some(stage)
}

/// Whether this build of Java has a collector, which is the name of an option.
pub(crate) fn has_collector(collector: &str) -> bool {
    Command::new("java").args([collector, "-version"]).output().is_ok_and(|told| told.status.success())
}

fn churn(collector: &str) {
    let Some(stage) = stage() else { return };
    let classes = stage.disk().to_str().unwrap();
    // What is young is a part of the heap that is used again and again: with more of it, most of the time goes into
    // fetching what is written anew.
    let heap = ["-Xms56m", "-Xmx56m", "-Xmn16m"];
    same_output(Kind::Steady, &stage, &[&["java"], &heap[..], &[collector, "-cp", classes, "Churn", "56"]].concat());
}

#[test]
#[ignore = "a minute beside the collector of several threads: `make soak` runs it"]
fn java_collects_its_garbage() {
    churn("-XX:+UseSerialGC");
}

#[test]
fn java_collects_its_garbage_with_several_threads() {
    churn("-XX:+UseParallelGC");
}

#[test]
#[ignore = "a minute beside the collector of several threads: `make soak` runs it"]
fn java_collects_its_garbage_while_it_runs() {
    churn("-XX:+UseG1GC");
}

#[test]
#[ignore = "a minute beside the collector of several threads: `make soak` runs it"]
fn java_moves_its_objects_while_it_runs() {
    let collector = "-XX:+UseShenandoahGC";
    if !has_collector(collector) {
        return support::skip("java with Shenandoah");
    }
    churn(collector);
}
