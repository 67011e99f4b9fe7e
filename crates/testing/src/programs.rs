//! Scripts that stand in for programs.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// Makes a program of `text` at `path`. By another process: a script that this one has open for writing, be it in a
/// child of another thread, cannot be run.
///
/// # Panics
///
/// If that fails.
#[expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]
pub fn write_program(path: &Path, text: &str) {
    let mut install = Command::new("install");
    install.args(["-m", "755", "/dev/stdin"]).arg(path).stdin(Stdio::piped());
    let mut child = install.spawn().unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success());
}
