//! The page faults of a run, recorded: where they go, and what is told of them at the end.

use std::sync::Arc;

use spillway_console::say;
use spillway_machine::size::human;
use spillway_pager::fault::recording::RecordingConfig;
use spillway_policy::trace::Kind;
use spillway_policy::trace::fault_log::{FaultLog, LogCounts};

use crate::trace_file::TraceFile;

/// What is recorded, and the file for it, which was made before anything starts.
#[derive(Clone, Debug)]
pub(crate) struct Recording {
    /// Which faults.
    pub(crate) kind: Kind,
    /// Memory for them.
    pub(crate) room_bytes: u64,
    /// The file.
    pub(crate) file: Arc<TraceFile>,
}

impl Recording {
    /// Bytes of memory, as this process counts them.
    pub(crate) fn room(&self) -> usize {
        usize::try_from(self.room_bytes).unwrap_or(usize::MAX)
    }

    /// As the pager is told.
    pub(crate) fn of_pager(&self) -> RecordingConfig {
        RecordingConfig { kind: self.kind, room_bytes: self.room() }
    }

    /// Writes the trace, and says what it has. The program has ended by itself: a trace that cannot be written does not
    /// change how the run ends.
    pub(crate) fn deliver(&self, log: &FaultLog) {
        let size_bytes = match self.file.fill(|target| log.write_to(target)) {
            Ok(size_bytes) => size_bytes,
            Err(failure) => return say!("spillway: {failure}"),
        };
        let counts = log.counts();
        say!("spillway: {} to {} ({})", told(&counts), self.file.path().display(), human(size_bytes));
        for loss in losses(&counts, self.room_bytes) {
            say!("spillway: {loss}");
        }
    }
}

fn counted(count: u64, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

fn told(counts: &LogCounts) -> String {
    format!(
        "recorded {} of {} in {} over {:.2} s",
        counted(counts.recorded, "fault", "faults"),
        counted(counts.threads, "thread", "threads"),
        counted(counts.spaces, "address space", "address spaces"),
        counts.last_time_us as f64 / 1e6,
    )
}

/// What is not in the trace, and what to do about it.
fn losses(counts: &LogCounts, room_bytes: u64) -> Vec<String> {
    let mut losses = Vec::new();
    if counts.without_room > 0 {
        losses.push(format!(
            "{} after that found no room in {}; give a larger --limit",
            counted(counts.without_room, "fault", "faults"),
            human(room_bytes)
        ));
    }
    if counts.missed > 0 {
        losses.push(format!(
            "{} faults were lost between others, because they came faster than they could be written down; --via pager loses none",
            counts.missed,
        ));
    }
    losses
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_recorded_and_lost_is_told() {
        let counts = LogCounts { recorded: 12, threads: 2, spaces: 1, last_time_us: 1_500_000, ..LogCounts::default() };
        assert_eq!(told(&counts), "recorded 12 faults of 2 threads in 1 address space over 1.50 s");
        assert_eq!(losses(&counts, 1 << 20), Vec::<String>::new());
        let text = losses(&LogCounts { without_room: 3, missed: 1, ..counts }, 1 << 20).join("\n");
        assert!(text.contains("3 faults after that found no room in 1 MiB; give a larger --limit"), "{text}");
        assert!(text.contains("1 faults were lost") && text.contains("--via pager"), "{text}");
    }
}
