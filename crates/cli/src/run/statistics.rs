//! What a run tells at its end: JSON for `--stats`, a few lines for `--summary`.

use std::io::Write;
use std::time::Duration;

use serde::Serialize;
use serde_json::Value;
use spillway_machine::size::human;

use super::program::Ending;
use super::watch::RunReport;
use crate::arguments::run::RunArguments;
use crate::bandwidth_report;
use crate::output::{self, say};
use crate::output_file::OutputFile;
use crate::prefetch_report;
use crate::staying_report;

/// A run, told at its end.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Statistics {
    /// The program and its arguments.
    program: Vec<String>,
    /// How it ended.
    ending: Ending,
    /// From its start to its end.
    wall_seconds: f64,
    /// Memory: peaks and the last look, and how it reached the program.
    memory: RunReport,
    /// What was paged, and by whom.
    #[serde(flatten)]
    paging: Paging,
}

/// What the pager or the devices tell at the end.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Paging {
    /// Faults that waited for a page to come in.
    pub(crate) major_faults: u64,
    /// Processes killed by the kernel because the budget was too small for them.
    pub(crate) out_of_memory_kills: u64,
    /// How often the program's memory group was at its limit; 0 by the pager.
    pub(crate) limit_hits: u64,
    /// The device's report, by the pager that of its volume; null if it did not answer.
    pub(crate) device: Value,
    /// The pager's report; null over a swap device.
    pub(crate) pager: Value,
    /// What prefetching from swap did; null by the pager.
    pub(crate) prefetch: Value,
}

impl Statistics {
    /// Puts together what every part said while it was still there.
    pub(crate) fn new(
        memory: &RunReport,
        wall: Duration,
        ending: Ending,
        paging: Paging,
        arguments: &RunArguments,
    ) -> Self {
        Self {
            program: arguments.program.iter().map(|part| part.to_string_lossy().into_owned()).collect(),
            ending,
            wall_seconds: wall.as_secs_f64(),
            memory: memory.clone(),
            paging,
        }
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
            serde_json::to_writer_pretty(&mut *target, self)?;
            target.write_all(b"\n")
        });
        if let Err(error) = written {
            say!("spillway: the run's figures cannot be written to {}: {error}", file.path().display());
        }
    }

    fn traffic(&self, pointer: &str) -> f64 {
        self.paging.device.pointer(&format!("/device/traffic/{pointer}")).and_then(Value::as_f64).unwrap_or(0.0)
    }

    fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if self.paging.out_of_memory_kills > 0 {
            let kills = self.paging.out_of_memory_kills;
            warnings.push(format!(
                "the kernel killed {kills} process(es) for lack of memory: the group's limit was {}, the program had {} in all, of which {} lay at donors; --local {} \
                 would have done, or more for --lend",
                human(self.memory.limit_bytes_max.unwrap_or(0)),
                human(self.memory.footprint_bytes_max),
                human(self.memory.swapped_bytes_max),
                size_text(self.memory.footprint_bytes_max),
            ));
        }
        if self.memory.relief_bytes_max > 0 {
            warnings.push(format!(
                "up to {} beyond --local stayed local, because nothing of the program could leave: locked memory, page tables, or memory of the kernel's; --via \
                 pager has no such limit",
                human(self.memory.relief_bytes_max),
            ));
        }
        warnings.extend(self.refused_call());
        if self.memory.outside_bytes_max > 0 {
            warnings.push(format!(
                "up to {} beside --local were local in other memory groups, to which processes of the program went",
                human(self.memory.outside_bytes_max),
            ));
        }
        if self.ending == Ending::Signalled(rustix::process::Signal::SYS.as_raw()) && !self.paging.pager.is_null() {
            warnings.push(
                "the program was ended by SIGSYS: it may have a filter of system calls (seccomp) that forbids what the pager's agent calls \
                 in it once its memory exceeds --local; `sudo spillway run --via swap ...` needs no agent"
                    .to_owned(),
            );
        }
        let health = self.paging.device.pointer("/device/health").and_then(Value::as_str);
        if let Some(health) = health.filter(|health| !health.is_empty() && !health.starts_with("ok")) {
            warnings.push(format!("the device was not well: {health}"));
        }
        warnings
    }

    /// A call that asks for more shared memory than fits fails, and no kernel counts that. It shows where the program
    /// failed, and its group was full while little had left it.
    fn refused_call(&self) -> Option<String> {
        let (memory, limit_bytes) = (&self.memory, self.memory.limit_bytes_max?);
        let was_full = self.paging.limit_hits > 0 && memory.usage.file_bytes < limit_bytes / 4;
        let nothing_left = memory.swapped_bytes_max < limit_bytes / 2;
        let failed = matches!(self.ending, Ending::Exited(1..));
        (failed && was_full && nothing_left && self.paging.out_of_memory_kills == 0).then(|| {
            format!(
                "the program failed, and its memory group was full at {} with little at donors: one fallocate of shared memory \
                 beyond the limit fails so (ENOMEM; PostgreSQL, Java with ZGC); give a --local above that memory, or use --via pager",
                human(limit_bytes),
            )
        })
    }

    fn summary(&self) -> String {
        let memory = &self.memory;
        format!(
            "spillway: {:.2} s, footprint {} (local {}, lent {}), {} faults, {} pages out, {} in at {:.0}/{:.0} us (p50/p99){}\n",
            self.wall_seconds,
            human(memory.footprint_bytes_max),
            human(memory.local_bytes_max),
            human(memory.swapped_bytes_max),
            self.paging.major_faults,
            self.traffic("pages_out"),
            self.traffic("pages_in"),
            self.traffic("read_latency/p50_us"),
            self.traffic("read_latency/p99_us"),
            memory.via.as_ref().map(|via| format!("\nspillway: memory came {via}")).unwrap_or_default(),
        ) + &self.faults().unwrap_or_default()
            + &self.bandwidth().unwrap_or_default()
            + &staying_report::describe(&self.paging.pager, "staying_peak")
                .into_iter()
                .map(|line| format!("spillway: {line}\n"))
                .collect::<String>()
            + &prefetch_report::describe(&self.paging.prefetch)
                .map(|line| format!("spillway: {line}\n"))
                .unwrap_or_default()
    }

    /// What the bound of its traffic did, if there was one.
    fn bandwidth(&self) -> Option<String> {
        let bound = self.paging.device.pointer("/device/bandwidth")?;
        Some(format!("spillway: {}\n", bandwidth_report::describe(bound)?))
    }

    /// What the pager answered, if there was one.
    fn faults(&self) -> Option<String> {
        let pager = self.paging.pager.as_object()?;
        let kinds = ["fill", "staged", "zero", "write"].map(|kind| {
            let figure = |pointer| pager.get(kind).and_then(|kind| kind.pointer(pointer)).and_then(Value::as_f64);
            let [count, p50, p99] =
                ["/count", "/latency/p50_us", "/latency/p99_us"].map(figure).map(Option::unwrap_or_default);
            if count > 0.0 { format!("{count} {kind} ({p50:.0}/{p99:.0} us)") } else { format!("0 {kind}") }
        });
        let lost_seconds = pager.get("lost_seconds")?.as_f64()?;
        let count = |name: &str| pager.get(name).and_then(Value::as_u64).unwrap_or(0);
        let [given_back, split, refused] =
            ["huge_pages_given_back", "huge_pages_split", "huge_pages_refused"].map(count);
        let huge = if given_back + refused == 0 {
            String::new()
        } else {
            format!("spillway: huge pages: {given_back} given back, {split} of them split again, {refused} refused\n")
        };
        Some(format!("spillway: faults: {}; {lost_seconds:.2} s lost in them\n{huge}", kinds.join(", ")))
    }
}

/// A size as `--local` takes it, with an eighth to spare, in whole MiB.
fn size_text(bytes: u64) -> String {
    format!("{}M", (bytes + bytes / 8).div_ceil(1 << 20))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::doctor::check::Way;
    use crate::run::via::Choice;

    fn statistics(device: Value) -> Statistics {
        Statistics {
            program: vec!["sort".to_owned()],
            ending: Ending::Exited(0),
            wall_seconds: 1.5,
            memory: RunReport {
                via: Some(Choice { way: Way::Swap, reason: "asked for".to_owned() }),
                footprint_bytes_max: 64 << 20,
                ..RunReport::default()
            },
            paging: Paging {
                major_faults: 7,
                out_of_memory_kills: 0,
                limit_hits: 0,
                device,
                pager: Value::Null,
                prefetch: Value::Null,
            },
        }
    }

    #[test]
    fn the_summary_names_what_matters() {
        let device =
            json!({"device": {"health": "ok", "traffic": {"pages_out": 12, "read_latency": {"p50_us": 25.2}}}});
        let statistics = statistics(device);
        let text = statistics.summary();
        assert!(
            text.contains("1.50 s")
                && text.contains("64 MiB")
                && text.contains("12 pages out, 0 in at 25/0")
                && text.contains("over a swap device (asked for)"),
            "{text}"
        );
        assert_eq!(statistics.warnings(), Vec::<String>::new());
    }

    #[test]
    fn the_summary_tells_what_the_pager_answered() {
        let mut statistics = statistics(Value::Null);
        assert!(!statistics.summary().contains("lost in them"));
        let fill = json!({"count": 12, "latency": {"p50_us": 6.4, "p99_us": 20.0}});
        statistics.paging.pager = json!({"fill": fill, "write": {"count": 0}, "lost_seconds": 0.123});
        let text = statistics.summary();
        assert!(
            text.ends_with("spillway: faults: 12 fill (6/20 us), 0 staged, 0 zero, 0 write; 0.12 s lost in them\n"),
            "{text}"
        );
        statistics.paging.pager["huge_pages_given_back"] = json!(7);
        let text = statistics.summary();
        assert!(text.ends_with("spillway: huge pages: 7 given back, 0 of them split again, 0 refused\n"), "{text}");
        statistics.paging.pager["staying_peak"] = json!({"shared_anonymous_bytes": 9 << 20});
        let text = statistics.summary();
        let line = "spillway: stayed local (most of each kind), beside the budget: 9 MiB of shared anonymous memory\n";
        assert!(text.ends_with(line), "{text}");
    }

    #[test]
    fn the_summary_tells_what_a_bound_of_traffic_did() {
        let bound = json!({"bytes_per_second": 10 << 20, "requests_held": 3, "held_us": 1_500_000});
        let text = statistics(json!({"device": {"health": "ok", "bandwidth": bound}})).summary();
        let line = "spillway: page traffic bounded to 10 MiB/s: 3 requests waited for that, 1.50 s together\n";
        assert!(text.contains(line), "{text}");
        assert!(!statistics(json!({"device": {"health": "ok", "bandwidth": null}})).summary().contains("bounded"));
    }

    #[test]
    fn what_went_wrong_is_told() {
        let mut statistics = statistics(json!({"device": {"health": "disk only: no donor"}}));
        statistics.paging.out_of_memory_kills = 2;
        let warnings = statistics.warnings().join("\n");
        assert!(warnings.contains("killed 2") && warnings.contains("disk only"), "{warnings}");
    }

    #[test]
    fn a_call_that_did_not_fit_is_told_of() {
        let mut statistics = statistics(Value::Null);
        statistics.memory.limit_bytes_max = Some(32 << 20);
        statistics.paging.limit_hits = 7;
        assert_eq!(statistics.warnings(), Vec::<String>::new(), "it ended well");
        statistics.ending = Ending::Exited(1);
        let warnings = statistics.warnings().join("\n");
        assert!(warnings.contains("fallocate") && warnings.contains("at 32 MiB"), "{warnings}");
        statistics.memory.swapped_bytes_max = 16 << 20;
        assert_eq!(statistics.warnings(), Vec::<String>::new(), "it was paged");
    }

    #[test]
    fn a_filter_that_kills_is_named() {
        let mut statistics = statistics(Value::Null);
        statistics.ending = Ending::Signalled(31);
        assert_eq!(statistics.warnings(), Vec::<String>::new(), "nothing of ours was in it");
        statistics.paging.pager = json!({"lost_seconds": 0.0});
        assert!(statistics.warnings().join("\n").contains("--via swap"));
    }

    #[test]
    fn the_json_is_stable() {
        let text = serde_json::to_value(statistics(Value::Null)).unwrap();
        for key in ["program", "ending", "wall_seconds", "major_faults", "out_of_memory_kills", "memory", "device"] {
            assert!(text.get(key).is_some(), "{key}");
        }
        assert_eq!(text["ending"], json!({"exited": 0}));
        assert_eq!(text["memory"]["footprint_bytes_max"], 64 << 20);
    }
}
