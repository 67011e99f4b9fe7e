//! `spillway trace record`: a run whose page faults are written down.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use spillway_console::failure::Failure;
use spillway_device_process::prefetch::choice::PrefetchChoice;
use spillway_machine::size::human;
use spillway_policy::trace::Kind;
use spillway_report::run::Ending;

use crate::arguments::trace::RecordArguments;
use crate::limits::TRACE_BYTES_MAX;
use crate::run;
use crate::run::recording::Recording;
use crate::trace_file::TraceFile;

/// Runs the program and records; gives how it ended.
pub(crate) fn execute(arguments: RecordArguments) -> Result<Ending, Failure> {
    let RecordArguments { output, limit, all_faults, mut run } = arguments;
    if limit.bytes > TRACE_BYTES_MAX {
        return Err(Failure::Usage(format!("--limit is at most {}; give less", human(TRACE_BYTES_MAX))));
    }
    // What cannot be started leaves no file.
    run::program::find(&run.program)?;
    let path = output.unwrap_or_else(|| default_output(&run.program));
    let kind = if all_faults { Kind::Faults } else { Kind::MajorFaults };
    run.prefetch.get_or_insert(PrefetchChoice::None);
    run.recording = Some(Recording { kind, room_bytes: limit.bytes, file: Arc::new(TraceFile::create(&path)?) });
    run::run(&run)
}

/// A file in the current directory that is called after the program.
fn default_output(program: &[OsString]) -> PathBuf {
    let name = program.first().and_then(|name| Path::new(name).file_name());
    let mut name = name.unwrap_or(OsStr::new("program")).to_owned();
    name.push(".trace.gz");
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_is_called_after_its_program() {
        assert_eq!(default_output(&["/usr/bin/sort".into(), "big".into()]), Path::new("sort.trace.gz"));
        assert_eq!(default_output(&[]), Path::new("program.trace.gz"));
    }
}
