//! What a run tells at its end: JSON for `--stats`, a few lines for `--summary`.

use std::io::Write;
use std::time::Duration;

use spillway_block::latency::LatencyStatus;
use spillway_block::metrics::TrafficStatus;
use spillway_console::output_file::OutputFile;
use spillway_console::{output, say};
use spillway_machine::size::human;
use spillway_observe::staying_report::{self, When};
use spillway_observe::{bandwidth_report, prefetch_report};
use spillway_pager::statistics::FaultStatistics;
use spillway_report::run::{EndedRunReport, Ending};

use crate::arguments::run::RunArguments;

/// What a run tells at its end.
#[derive(Debug)]
pub(crate) struct Statistics(EndedRunReport);

impl Statistics {
    /// Puts together what every part said while it was still there; `paging` has what was paged, and by which way.
    pub(crate) fn new(wall: Duration, paging: EndedRunReport, arguments: &RunArguments) -> Self {
        let program = arguments.program.iter().map(|part| part.to_string_lossy().into_owned()).collect();
        Self(EndedRunReport { program, wall_seconds: wall.as_secs_f64(), ..paging })
    }

    /// Writes what was asked for, and what the user must know. The program has ended by itself, so nothing that cannot
    /// be written changes how the run ends.
    pub(crate) fn deliver(&self, has_summary: bool, file: Option<&OutputFile>) {
        for warning in self.warnings() {
            say!("spillway: {warning}");
        }
        if has_summary {
            output::tell(format_args!("{}", self.summary()));
        }
        let Some(file) = file else { return };
        let written = file.fill(|target| {
            serde_json::to_writer_pretty(&mut *target, &self.0)?;
            target.write_all(b"\n")
        });
        if let Err(error) = written {
            say!("spillway: the run's figures cannot be written to {}: {error}", file.path().display());
        }
    }

    fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if self.0.out_of_memory_kills > 0 {
            let kills = self.0.out_of_memory_kills;
            warnings.push(format!(
                "the kernel killed {kills} process(es) for lack of memory: the group's limit was {}, the program had {} in all, of which {} lay at donors; --local {} \
                 would have done, or more for --lend",
                human(self.0.memory.limit_bytes_max.unwrap_or(0)),
                human(self.0.memory.footprint_bytes_max),
                human(self.0.memory.swapped_bytes_max),
                size_text(self.0.memory.footprint_bytes_max),
            ));
        }
        if self.0.memory.relief_bytes_max > 0 {
            warnings.push(format!(
                "up to {} beyond --local stayed local, because nothing of the program could leave: locked memory, page tables, or memory of the kernel's; --via \
                 pager has no such limit",
                human(self.0.memory.relief_bytes_max),
            ));
        }
        warnings.extend(self.refused_call());
        if self.0.memory.outside_bytes_max > 0 {
            warnings.push(format!(
                "up to {} beside --local were local in other memory groups, to which processes of the program went",
                human(self.0.memory.outside_bytes_max),
            ));
        }
        if self.0.ending == Ending::Signalled(rustix::process::Signal::SYS.as_raw()) && self.0.pager.is_some() {
            warnings.push(
                "the program was ended by SIGSYS: it may have a filter of system calls (seccomp) that forbids what the pager's agent calls \
                 in it once its memory exceeds --local; `sudo spillway run --via swap ...` needs no agent"
                    .to_owned(),
            );
        }
        let health = self.0.volume().map(|device| &device.health);
        if let Some(health) = health.filter(|health| !health.is_empty() && !health.starts_with("ok")) {
            warnings.push(format!("the device was not well: {health}"));
        }
        warnings
    }

    /// A call that asks for more shared memory than fits fails, and no kernel counts that. It shows where the program
    /// failed, and its group was full while little had left it.
    fn refused_call(&self) -> Option<String> {
        let (memory, limit_bytes) = (&self.0.memory, self.0.memory.limit_bytes_max?);
        let was_full = self.0.limit_hits > 0 && memory.usage.file_bytes < limit_bytes / 4;
        let nothing_left = memory.swapped_bytes_max < limit_bytes / 2;
        let failed = matches!(self.0.ending, Ending::Exited(1..));
        (failed && was_full && nothing_left && self.0.out_of_memory_kills == 0).then(|| {
            format!(
                "the program failed, and its memory group was full at {} with little at donors: one fallocate of shared memory \
                 beyond the limit fails so (ENOMEM; PostgreSQL, Java with ZGC); give a --local above that memory, or use --via pager",
                human(limit_bytes),
            )
        })
    }

    fn summary(&self) -> String {
        let memory = &self.0.memory;
        let traffic = self.0.volume().map(|device| &device.traffic);
        let traffic = traffic.map_or("page traffic unknown".to_owned(), |traffic| {
            let TrafficStatus { pages_in, pages_out, read_latency: LatencyStatus { p50_us, p99_us, .. }, .. } = traffic;
            format!("{pages_out} pages out, {pages_in} in at {p50_us:.0}/{p99_us:.0} us (p50/p99)")
        });
        format!(
            "spillway: {:.2} s, footprint {} (local {}, lent {}), {} faults, {traffic}{}\n",
            self.0.wall_seconds,
            human(memory.footprint_bytes_max),
            human(memory.local_bytes_max),
            human(memory.swapped_bytes_max),
            self.0.major_faults,
            memory.via.as_ref().map(|via| format!("\nspillway: memory came {via}")).unwrap_or_default(),
        ) + &self.faults().unwrap_or_default()
            + &self.lines().into_iter().map(|line| format!("spillway: {line}\n")).collect::<String>()
    }

    /// What a bound of traffic did, what stayed local, and what was prefetched.
    fn lines(&self) -> Vec<String> {
        let bound = self.0.volume().and_then(|device| device.bandwidth.as_ref()).map(bandwidth_report::describe);
        let staying = self.0.pager.iter().flat_map(|pager| staying_report::describe(pager, When::AtMost));
        bound.into_iter().chain(staying).chain(self.0.prefetch.as_ref().and_then(prefetch_report::describe)).collect()
    }

    /// What the pager answered, if there was one.
    fn faults(&self) -> Option<String> {
        let pager = self.0.pager.as_ref()?;
        let kinds = [("fill", &pager.fill), ("staged", &pager.staged), ("zero", &pager.zero), ("write", &pager.write)];
        let kinds = kinds.map(|(kind, FaultStatistics { count, latency })| match count {
            0 => format!("0 {kind}"),
            _ => format!("{count} {kind} ({:.0}/{:.0} us)", latency.p50_us, latency.p99_us),
        });
        let (given_back, split, refused) =
            (pager.huge_pages_given_back, pager.huge_pages_split, pager.huge_pages_refused);
        let huge = if given_back + refused == 0 {
            String::new()
        } else {
            format!("spillway: huge pages: {given_back} given back, {split} of them split again, {refused} refused\n")
        };
        let lost_seconds = pager.lost_seconds;
        Some(format!("spillway: faults: {}; {lost_seconds:.2} s lost in them\n{huge}", kinds.join(", ")))
    }
}

/// A size as `--local` takes it, with an eighth to spare, in whole MiB.
fn size_text(bytes: u64) -> String {
    format!("{}M", (bytes + bytes / 8).div_ceil(1 << 20))
}

#[cfg(test)]
mod tests {
    use spillway_pager::statistics::PagerStatistics;
    use spillway_report::run::{Choice, RunDevice, RunReport, Way};
    use spillway_report::test_support;
    use spillway_volume::status::{BandwidthStatus, DeviceStatus};

    use super::*;

    fn statistics(device: Option<DeviceStatus>) -> Statistics {
        let memory = RunReport {
            via: Some(Choice { way: Way::Swap, reason: "asked for".to_owned() }),
            footprint_bytes_max: 64 << 20,
            ..RunReport::default()
        };
        let device = device.map(|device| RunDevice::Volume { device: Box::new(device) });
        Statistics(EndedRunReport {
            program: vec!["sort".to_owned()],
            wall_seconds: 1.5,
            major_faults: 7,
            device,
            memory,
            ..EndedRunReport::default()
        })
    }

    #[test]
    fn the_summary_names_what_matters() {
        let statistics = statistics(Some(test_support::device_status(200)));
        let text = statistics.summary();
        for expected in ["1.50 s", "64 MiB", "400 pages out, 200 in at 10/", "over a swap device (asked for)"] {
            assert!(text.contains(expected), "{text}");
        }
        assert_eq!(statistics.warnings(), Vec::<String>::new());
    }

    #[test]
    fn the_summary_tells_what_the_pager_answered() {
        let mut statistics = statistics(None);
        let text = statistics.summary();
        assert!(!text.contains("lost in them") && text.contains("page traffic unknown"), "no device answered: {text}");
        let mut pager = PagerStatistics { lost_seconds: 0.123, ..PagerStatistics::default() };
        (pager.fill.count, pager.fill.latency.p50_us, pager.fill.latency.p99_us) = (12, 6.4, 20.0);
        statistics.0.pager = Some(pager.clone());
        let text = statistics.summary();
        assert!(
            text.ends_with("spillway: faults: 12 fill (6/20 us), 0 staged, 0 zero, 0 write; 0.12 s lost in them\n"),
            "{text}"
        );
        pager.huge_pages_given_back = 7;
        statistics.0.pager = Some(pager.clone());
        let text = statistics.summary();
        assert!(text.ends_with("spillway: huge pages: 7 given back, 0 of them split again, 0 refused\n"), "{text}");
        pager.staying_peak.shared_anonymous_bytes = 9 << 20;
        statistics.0.pager = Some(pager);
        let text = statistics.summary();
        let line = "spillway: stayed local (most of each kind), beside the budget: 9 MiB of shared anonymous memory\n";
        assert!(text.ends_with(line), "{text}");
    }

    #[test]
    fn the_summary_tells_what_a_bound_of_traffic_did() {
        let bound = BandwidthStatus { bytes_per_second: 10 << 20, requests_held: 3, held_us: 1_500_000 };
        let text = |bandwidth| statistics(Some(DeviceStatus { bandwidth, ..test_support::device_status(1) })).summary();
        let line = "spillway: page traffic bounded to 10 MiB/s: 3 requests waited for that, 1.50 s together\n";
        assert!(text(Some(bound)).contains(line) && !text(None).contains("bounded"));
    }

    #[test]
    fn what_went_wrong_is_told() {
        let health = "disk only: no donor".to_owned();
        let mut statistics = statistics(Some(DeviceStatus { health, ..DeviceStatus::default() }));
        statistics.0.out_of_memory_kills = 2;
        let warnings = statistics.warnings().join("\n");
        assert!(warnings.contains("killed 2") && warnings.contains("disk only"), "{warnings}");
    }

    #[test]
    fn a_call_that_did_not_fit_is_told_of() {
        let mut statistics = statistics(None);
        statistics.0.memory.limit_bytes_max = Some(32 << 20);
        statistics.0.limit_hits = 7;
        assert_eq!(statistics.warnings(), Vec::<String>::new(), "it ended well");
        statistics.0.ending = Ending::Exited(1);
        let warnings = statistics.warnings().join("\n");
        assert!(warnings.contains("fallocate") && warnings.contains("at 32 MiB"), "{warnings}");
        statistics.0.memory.swapped_bytes_max = 16 << 20;
        assert_eq!(statistics.warnings(), Vec::<String>::new(), "it was paged");
    }

    #[test]
    fn a_filter_that_kills_is_named() {
        let mut statistics = statistics(None);
        statistics.0.ending = Ending::Signalled(31);
        assert_eq!(statistics.warnings(), Vec::<String>::new(), "nothing of ours was in it");
        statistics.0.pager = Some(PagerStatistics::default());
        assert!(statistics.warnings().join("\n").contains("--via swap"));
    }
}
