//! A trace from a file: its accesses, and what it says of itself.

use std::collections::BTreeSet;
use std::path::Path;

use serde::Serialize;
use spillway_console::failure::Failure;
use spillway_policy::replay::accesses::Accesses;
use spillway_policy::trace::{Kind, Reader};

use crate::trace_file;

/// A trace in a few numbers; its JSON form is stable.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Overview {
    /// The file.
    pub(crate) file: String,
    /// `touches`, `faults` or `major-faults`.
    pub(crate) kind: &'static str,
    /// Events in it.
    pub(crate) events: u64,
    /// Events that the recording lost.
    pub(crate) lost: u64,
    /// Different pages.
    pub(crate) pages: u32,
    /// Threads.
    pub(crate) threads: usize,
    /// Address spaces.
    pub(crate) address_spaces: usize,
    /// From its begin to its last event; null for touches, which have no clock.
    pub(crate) seconds: Option<f64>,
}

/// A trace.
#[derive(Clone, Debug)]
pub(crate) struct Loaded {
    /// Its accesses.
    pub(crate) accesses: Accesses,
    /// What it says of itself.
    pub(crate) overview: Overview,
}

impl Loaded {
    /// The trace in a file, which must have an event.
    pub(crate) fn read(path: &Path) -> Result<Self, Failure> {
        Self::of_bytes(&trace_file::read(path)?, &path.display().to_string())
    }

    fn of_bytes(bytes: &[u8], file: &str) -> Result<Self, Failure> {
        let failed = |error| Failure::during(file, error);
        let reader = Reader::new(bytes).map_err(failed)?;
        let (events, lost) = (reader.events(), reader.lost());
        let accesses = Accesses::read(reader).map_err(failed)?;
        if events == 0 {
            return Err(Failure::during(
                file,
                "no fault was recorded, so there is nothing to see; record with a smaller --local, or with --all-faults",
            ));
        }
        let all = accesses.as_slice();
        let threads: BTreeSet<u32> = all.iter().map(|access| access.thread).collect();
        let spaces: BTreeSet<u32> = all.iter().map(|access| accesses.space(access.page)).collect();
        let ticks: u64 = all.iter().map(|access| u64::from(access.ticks)).sum();
        let kind = accesses.kind();
        let seconds = (kind != Kind::Touches).then_some((ticks * kind.tick_ns()) as f64 / 1e9);
        let overview = Overview {
            file: file.to_owned(),
            kind: kind.name(),
            events,
            lost,
            pages: accesses.pages(),
            threads: threads.len(),
            address_spaces: spaces.len(),
            seconds,
        };
        Ok(Self { accesses, overview })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use spillway_policy::prefetch::PageNumber;
    use spillway_policy::trace::fault_log::{FaultLog, NotedFault};

    use super::*;

    /// Faults of pages by thread and address space, 10 us apart.
    pub(crate) fn loaded(faults: impl IntoIterator<Item = (u32, u32, u64)>) -> Result<Loaded, Failure> {
        let mut log = FaultLog::new(Kind::MajorFaults, 1 << 20);
        for (number, (space, thread, page)) in faults.into_iter().enumerate() {
            log.note(NotedFault { space, thread, page: PageNumber(page), write: false }, 10 * number as u64);
        }
        let mut bytes = Vec::new();
        log.write_to(&mut bytes).unwrap();
        Loaded::of_bytes(&bytes, "a.trace")
    }

    #[test]
    fn a_trace_tells_of_itself() {
        let Overview { events, pages, threads, address_spaces, seconds, .. } =
            loaded([(5, 1, 100), (5, 2, 101), (6, 3, 100), (5, 1, 100)]).unwrap().overview;
        assert_eq!((events, pages, threads, address_spaces, seconds), (4, 3, 3, 2, Some(3e-5)));
    }

    #[test]
    fn an_empty_trace_is_told() {
        let failure = loaded([]).unwrap_err();
        assert!(failure.to_string().contains("smaller --local"), "{failure}");
    }
}
