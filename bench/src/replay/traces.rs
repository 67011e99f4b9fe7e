//! The traces of the studies: our workloads, recorded at their source, and patterns by rule.

use std::sync::Mutex;

use spillway_policy::trace::{Reader, Recorder, TraceError};

use super::patterns::Pattern;
use crate::size::Size;
use crate::touches::{Recording, TouchLog};
use crate::workloads::{self, WorkloadError, WorkloadSettings};
use spillway_policy::replay::accesses::Accesses;

/// Memory for a trace while it is recorded. PageRank's, the longest, takes about 40 MB for 16 MiB of working set.
pub const ROOM_BYTES: usize = 512 << 20;

/// Where a trace comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// A workload, by name.
    Workload(&'static str),
    /// A pattern.
    Pattern(Pattern),
}

/// All sources of the studies. Without `touch` and the fills, each of which reads its pages once: the patterns do
/// that better.
pub fn sources() -> Vec<Source> {
    let workloads = ["fill-modify", "key-value", "quicksort", "page-rank", "matrix", "barnes-hut"];
    Pattern::ALL.into_iter().map(Source::Pattern).chain(workloads.into_iter().map(Source::Workload)).collect()
}

impl Source {
    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Workload(name) => name,
            Self::Pattern(pattern) => pattern.name(),
        }
    }

    /// Its trace over a working set of `size`.
    pub fn accesses(self, size: Size) -> Result<Accesses, String> {
        let recorder = match self {
            Self::Workload(name) => record(name, &WorkloadSettings { size, seed: 1, threads: 1 }),
            Self::Pattern(pattern) => Ok(pattern.record(size.pages(), 1)),
        };
        accesses(&recorder.map_err(|error| error.to_string())?)
    }
}

/// Runs the workload called `name` and records what it touches.
pub fn record(name: &str, settings: &WorkloadSettings) -> Result<Recorder, WorkloadError> {
    let log = Mutex::new(TouchLog::new(ROOM_BYTES));
    workloads::trace(name, settings, Recording(&log))?;
    Ok(log.into_inner().expect("nobody panics while recording").into_recorder())
}

/// All accesses that `recorder` took; an error unless it took all.
pub fn accesses(recorder: &Recorder) -> Result<Accesses, String> {
    if recorder.lost() > 0 {
        return Err(format!("{} touches found no room in the trace; take a smaller working set", recorder.lost()));
    }
    let mut bytes = Vec::new();
    recorder.write_to(&mut bytes).expect("memory takes all that is written");
    read(&bytes).map_err(|error| error.to_string())
}

/// The accesses of the trace in `bytes`.
pub fn read(bytes: &[u8]) -> Result<Accesses, TraceError> {
    Accesses::read(Reader::new(bytes)?)
}

#[cfg(test)]
pub(crate) mod tests {
    use spillway_policy::prefetch::PageNumber;
    use spillway_policy::trace::{Event, Kind};

    use super::*;

    /// Accesses of `pages` in order, a tick apart.
    pub(crate) fn accesses(pages: &[(u64, bool)]) -> Accesses {
        let mut recorder = Recorder::new(Kind::Touches, 100 + 30 * pages.len());
        for (time, (page, write)) in pages.iter().enumerate() {
            assert!(recorder.record(Event { page: PageNumber(*page), thread: 0, write: *write, time: time as u64 }));
        }
        super::accesses(&recorder).unwrap()
    }

    const SMALL: Size = Size(256 * 1024);

    #[test]
    fn every_source_has_a_trace_of_its_size() {
        for source in sources() {
            let accesses = source.accesses(SMALL).unwrap();
            let pages = u64::from(accesses.pages());
            assert!((32..80).contains(&pages), "{}: {pages} pages for 64", source.name());
            assert!(accesses.as_slice().len() as u64 > pages, "{}", source.name());
        }
    }

    #[test]
    fn every_workload_can_be_recorded() {
        for name in workloads::names() {
            let recorder = record(name, &WorkloadSettings { size: SMALL, seed: 1, threads: 1 }).unwrap();
            assert!(recorder.events() > 32 && recorder.lost() == 0, "{name}");
        }
        let unknown = record("magic", &WorkloadSettings { size: SMALL, seed: 1, threads: 1 });
        assert!(matches!(unknown, Err(WorkloadError::Unknown(_))));
    }
}
