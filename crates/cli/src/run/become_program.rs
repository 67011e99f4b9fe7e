//! The hidden command that becomes the program of a run.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use rustix::process::Signal;
use spillway_console::failure::{EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND, Failure};
use spillway_fabric::plain_text::plain;
use spillway_sys::core_dumps::CoreDumps;

use super::calls;
use crate::arguments::run::BecomeArguments;
use crate::callers_preload;

/// The hidden command: moves itself into the memory group and becomes the program. Returns only on failure.
pub(crate) fn become_program(arguments: &BecomeArguments) -> Failure {
    // Without `run` no process adjusts its budget or brings its pages back: it goes with it.
    let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    for file in &arguments.procs_file {
        if let Err(error) = fs::write(file, "0") {
            return Failure::during(file.display(), error);
        }
    }
    if let Some(limit) = arguments.core_limit
        && let Err(error) = restore_core_dumps(limit, arguments.core_filter)
    {
        return Failure::during("the program's limit of core files", error);
    }
    if let Some(socket) = &arguments.tells_calls
        && let Err(failure) = calls::tell(socket, arguments.tells_forks, arguments.tells_shared_memory)
    {
        return failure;
    }
    if arguments.small_pages
        && let Err(error) = rustix::thread::disable_transparent_huge_pages(true)
    {
        return Failure::during("doing without huge pages", error);
    }
    let Some((name, rest)) = arguments.program.split_first() else { return Failure::usage("no program") };
    let mut command = Command::new(&arguments.file);
    spillway_sys::signals::keep(&mut command);
    if let Some(limits) = &arguments.limits {
        limits.give_back(&mut command);
    }
    command.arg0(name).args(rest).envs(arguments.set.iter().filter_map(setting));
    callers_preload::give_back(&mut command);
    let error = command.exec();
    let shown = arguments.file.display();
    let (text, status) = match error.kind() {
        // The file was there a moment ago: the kernel says this of the program that the file names.
        ErrorKind::NotFound => (format!("{shown}: {}", missing_interpreter(&arguments.file)), EXIT_NOT_FOUND),
        _ => (format!("{shown}: {error}"), EXIT_NOT_EXECUTABLE),
    };
    Failure::Program { text, status }
}

/// What a file needs that the kernel did not find.
fn missing_interpreter(file: &Path) -> String {
    let mut head = [0; 256];
    let length = File::open(file).and_then(|mut file| file.read(&mut head)).unwrap_or(0);
    let line = head[..length].split(|byte| *byte == b'\n').next().unwrap_or_default();
    match line.strip_prefix(b"#!") {
        Some(rest) => {
            let words = String::from_utf8_lossy(rest);
            let interpreter = words.trim_start().split([' ', '\t']).next().unwrap_or_default();
            let shown = plain(interpreter.trim_end()).into_owned();
            if interpreter.ends_with('\r') {
                return format!(
                    "its lines end as those of Windows, so '{shown}' is not found; `sed -i 's/\\r$//'` mends it"
                );
            }
            if Path::new(interpreter).exists() {
                return format!("what its interpreter '{shown}' needs itself is missing; try to start that by itself");
            }
            format!("its interpreter '{shown}' is missing; install it, or mend the first line of the file")
        }
        None => "it is gone, or its loader is missing: it was built for another system (`file` tells which)".to_owned(),
    }
}

/// What the user allows the program to dump; all bits of `limit` are no limit.
fn restore_core_dumps(limit: u64, filter: Option<u64>) -> std::io::Result<()> {
    let limit_bytes = (limit != u64::MAX).then_some(limit);
    CoreDumps { limit_bytes, filter }.set()
}

/// `NAME=VALUE`, split.
pub(super) fn setting(text: &OsString) -> Option<(&OsStr, &OsStr)> {
    let bytes = text.as_bytes();
    let middle = bytes.iter().position(|byte| *byte == b'=')?;
    Some((OsStr::from_bytes(&bytes[..middle]), OsStr::from_bytes(&bytes[middle + 1..])))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_interpreter_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let script = directory.path().join("script");
        fs::write(&script, "#! /no/such/interpreter -x\ntrue\n").unwrap();
        assert!(missing_interpreter(&script).contains("'/no/such/interpreter' is missing"));
        fs::write(&script, "#!/bin/sh\r\ntrue\r\n").unwrap();
        assert!(missing_interpreter(&script).contains("Windows"));
        fs::write(&script, b"\x7fELF\x02").unwrap();
        assert!(missing_interpreter(&script).contains("another system"));
    }
}
