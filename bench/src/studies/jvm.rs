//! Jobs in a JVM after DCM's Grep and GroupBy: one program of ours (`Dcm.java`), with the data set as objects on the
//! heap, and the collector that Spark had by default when DCM was measured.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::Context;
use crate::harness::HarnessError;
use crate::harness::tool;
use crate::limits::TOOL_DEADLINE;
use spillway_workloads::size::{MIB, Size};

/// The program of all jobs.
const SOURCE: &str = include_str!("Dcm.java");

/// Heap over data: objects have heads, and a collector that copies wants room.
const HEAP_FACTOR: u64 = 3;

/// The seed of all jobs: any, as long as all runs have the same.
const SEED: u64 = 20_261_122;

/// Compiles the jobs; gives the directory of their classes.
pub fn compile(context: &Context) -> Result<PathBuf, HarnessError> {
    tool::need("java")?;
    let directory = context.shop.directory.path();
    let (source, classes) = (directory.join("Dcm.java"), directory.join("dcm-classes"));
    std::fs::write(&source, SOURCE).map_err(HarnessError::system("writing the jobs' source"))?;
    let mut command = Command::new(tool::need("javac")?);
    command.arg("-d").arg(&classes).arg(&source);
    tool::run_command(&mut command, TOOL_DEADLINE, &context.shop.interrupt)?;
    Ok(classes)
}

/// The heap of a job with `size` of data.
pub fn heap(size: Size) -> Size {
    Size(size.0 * HEAP_FACTOR)
}

/// `job` with `size` of data, of the compiled `classes`.
pub fn java_command(classes: &Path, job: &str, size: Size) -> Result<Command, HarnessError> {
    let heap_mib = heap(size).0 / MIB;
    let mut command = Command::new(tool::need("java")?);
    // A fixed heap, so that memory is no matter of speed.
    command.arg("-XX:+UseParallelGC").args([format!("-Xms{heap_mib}m"), format!("-Xmx{heap_mib}m")]);
    command.arg("-cp").arg(classes).args(["Dcm", job, &(size.0 / MIB).to_string(), &SEED.to_string()]);
    Ok(command)
}
