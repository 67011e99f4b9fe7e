//! Every metric: its name by the conventions of Prometheus, its help, its kind and its labels.
//!
//! Names end with their base unit (`_bytes`, `_seconds`); those of counters get `_total` when they are written. Each
//! label says how many values it may have at most.
//!
//! Invariant: nothing is exposed that is not in [`ALL`], and everything in [`ALL`] is exposed by some machine (a test
//! of [`super::samples`] says so).

/// What a metric's values are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A value that goes up and down; values of things that share labels add up.
    Gauge,
    /// The same, but the largest of them counts.
    LargestGauge,
    /// A value that only grows.
    Counter,
    /// A distribution.
    Histogram,
}

/// A label, and how many values it may have: a further one becomes [`OTHER`].
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Label {
    /// Its name.
    pub(crate) name: &'static str,
    /// Different values in the life of an agent.
    pub(crate) values_max: usize,
}

/// What stands for all values of a label beyond its bound.
pub(crate) const OTHER: &str = "(other)";

/// One metric.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Metric {
    /// Its name, without `_total`.
    pub(crate) name: &'static str,
    /// What it says.
    pub(crate) help: &'static str,
    /// What its values are.
    pub(crate) kind: Kind,
    /// Its labels.
    pub(crate) labels: &'static [&'static Label],
}

/// Devices that do not belong to a run. More of them on one machine are a test's, and a histogram has 28 lines for
/// each.
static DEVICE: Label = Label { name: "device", values_max: 16 };
/// Donors of all devices, and donors on this machine: as many as one volume may have
/// ([`spillway_volume::limits::DONORS_MAX`]).
static DONOR: Label = Label { name: "donor", values_max: spillway_volume::limits::DONORS_MAX };
/// Words of fixed lists: of processes, slabs and donors twelve together.
static STATE: Label = Label { name: "state", values_max: 16 };
/// See [`STATE`]: of things and faults eight together.
static KIND: Label = Label { name: "kind", values_max: 16 };
/// See [`STATE`]: read, write.
static OPERATION: Label = Label { name: "operation", values_max: 8 };
/// See [`STATE`]: swap, pager.
static VIA: Label = Label { name: "via", values_max: 8 };
/// See [`STATE`]: 50 and 99. (The name `quantile` is for summaries.)
static PERCENTILE: Label = Label { name: "percentile", values_max: 8 };
/// The one of this binary.
static VERSION: Label = Label { name: "version", values_max: 1 };

macro_rules! catalogue {
    ($($constant:ident: $kind:ident $name:literal [$($label:ident),*] $help:literal;)*) => {
        $(
            #[doc = $help]
            pub(crate) static $constant: Metric =
                Metric { name: $name, help: $help, kind: Kind::$kind, labels: &[$(&$label),*] };
        )*
        /// Every metric, in the order in which they are exposed.
        pub(crate) static ALL: &[&Metric] = &[$(&$constant),*];
    };
}

catalogue! {
    BUILD_INFO: Gauge "spillway_build_info" [VERSION] "1, with the version of the agent.";
    MACHINE_MEMORY: Gauge "spillway_machine_memory_bytes" [] "Memory of the machine.";
    MACHINE_AVAILABLE: Gauge "spillway_machine_memory_available_bytes" []
        "Memory that can be had without swapping, by the kernel's estimate.";
    PROCESSES: Gauge "spillway_processes" [KIND, STATE]
        "Devices, donors, runs and agents: running, silent (does not answer), orphaned (served without a keeper) or dead (left something behind).";

    DEVICE_SIZE: Gauge "spillway_device_size_bytes" [DEVICE] "Size of a device that belongs to no run.";
    DEVICE_STORED: Gauge "spillway_device_stored_bytes" [DEVICE] "Pages stored now: written and not discarded.";
    DEVICE_LOST: Gauge "spillway_device_lost_bytes" [DEVICE] "Pages whose every copy was lost; reading one fails.";
    DEVICE_SWAP_USED: Gauge "spillway_device_swap_used_bytes" [DEVICE]
        "What the kernel has in the swap area on the device; absent for a plain device.";
    DEVICE_DEGRADED: Gauge "spillway_device_degraded" [DEVICE]
        "1 if the device is less safe or slower than asked; `spillway status` says why.";
    DEVICE_FAILED: Gauge "spillway_device_failed" [DEVICE] "1 if every request fails: an I/O thread panicked, or the device was given up.";
    DEVICE_DISK_ONLY: Gauge "spillway_device_disk_only" [DEVICE]
        "1 if no donor is connected and pages go to the local disk only.";
    DEVICE_IN: Counter "spillway_device_page_in_bytes" [DEVICE] "Pages read by the kernel.";
    DEVICE_OUT: Counter "spillway_device_page_out_bytes" [DEVICE] "Pages written by the kernel.";
    DEVICE_DISCARDED: Counter "spillway_device_discarded_bytes" [DEVICE] "Pages discarded by the kernel.";
    DEVICE_IN_FROM_DISK: Counter "spillway_device_page_in_from_disk_bytes" [DEVICE]
        "Pages that were read from the copy on disk.";
    DEVICE_REQUESTS: Counter "spillway_device_requests" [DEVICE, OPERATION] "Requests that succeeded.";
    DEVICE_FAILED_REQUESTS: Counter "spillway_device_failed_requests" [DEVICE] "Requests that failed.";
    DEVICE_LATENCY: Histogram "spillway_device_request_latency_seconds" [DEVICE, OPERATION]
        "Latency of requests inside the device.";
    DEVICE_CPU: Counter "spillway_device_cpu_seconds" [DEVICE] "CPU time of the device's process.";
    DEVICE_SLABS: Gauge "spillway_device_slabs" [DEVICE, STATE]
        "Slabs: unmapped (no donor has them), mapped, degraded (a copy is missing), migrating or lost.";
    DEVICE_BACKLOG: Gauge "spillway_device_disk_backlog_bytes" [DEVICE] "Pages accepted and not yet on disk.";
    DEVICE_BACKLOG_MAX: Gauge "spillway_device_disk_backlog_limit_bytes" [DEVICE] "Bound of the backlog.";
    DEVICE_DISK_ERRORS: Counter "spillway_device_disk_write_errors" [DEVICE]
        "Writes to the backing file that failed; their pages live at donors only.";
    DEVICE_DISK_WRONG: Counter "spillway_device_disk_wrong_reads" [DEVICE]
        "Pages read from the backing file that were not what was written.";
    DEVICE_DONORS: Gauge "spillway_device_donors" [DEVICE, STATE] "Donors of a device: connected, connecting or lost.";

    LINK_CONNECTED: Gauge "spillway_device_donor_connected" [DEVICE, DONOR] "1 if the donor is connected.";
    LINK_SLOW: Gauge "spillway_device_donor_slow" [DEVICE, DONOR] "1 if reads avoid the donor because it answers late.";
    LINK_SLABS: Gauge "spillway_device_donor_slabs" [DEVICE, DONOR] "Slabs of the device that the donor holds.";
    LINK_FREE: Gauge "spillway_device_donor_free_bytes" [DEVICE, DONOR]
        "Memory that the donor said it can still lend.";
    LINK_WAITING: LargestGauge "spillway_device_donor_waiting_seconds" [DEVICE, DONOR]
        "How long the donor has owed an answer and sent none.";
    LINK_LATENCY: LargestGauge "spillway_device_donor_read_latency_seconds" [DEVICE, DONOR, PERCENTILE]
        "Latency of reads in the last ten to twenty seconds; of donors that are reached over sockets.";
    LINK_ELSEWHERE: Counter "spillway_device_donor_reads_taken_elsewhere" [DEVICE, DONOR]
        "Reads that waited so long for the donor that another copy was asked.";
    LINK_WRONG: Counter "spillway_device_donor_wrong_reads" [DEVICE, DONOR]
        "Pages read from the donor that were not what was written.";

    RUNS: Gauge "spillway_runs" [VIA] "Programs under `spillway run`.";
    RUNS_DEGRADED: Gauge "spillway_runs_degraded" [VIA] "Runs whose memory is less safe or slower than asked.";
    RUN_LOCAL: Gauge "spillway_run_local_bytes" [VIA] "Local memory of all runs.";
    RUN_LENT: Gauge "spillway_run_lent_bytes" [VIA] "Memory of all runs that is paged out.";
    RUN_LOST: Gauge "spillway_run_lost_bytes" [VIA] "Pages of runs whose every copy was lost.";
    RUN_IN: Counter "spillway_run_page_in_bytes" [VIA] "Pages of runs that came in.";
    RUN_OUT: Counter "spillway_run_page_out_bytes" [VIA] "Pages of runs that went out.";
    RUN_IN_FROM_DISK: Counter "spillway_run_page_in_from_disk_bytes" [VIA]
        "Pages of runs that were read from the copy on disk.";
    RUN_FAULTS: Counter "spillway_run_faults" [KIND]
        "Faults that pagers answered: fill (from a donor or the disk), staged, zero, or write (the first one to a clean page).";
    RUN_FAULT_LATENCY: Histogram "spillway_run_fault_latency_seconds" [KIND]
        "Latency of faults that pagers answered, from the message to the answer.";

    DONOR_QUOTA: Gauge "spillway_donor_quota_bytes" [DONOR] "Most that a donor on this machine may lend.";
    DONOR_LENT: Gauge "spillway_donor_lent_bytes" [DONOR] "What it lends.";
    DONOR_PREPARED: Gauge "spillway_donor_prepared_bytes" [DONOR] "What it holds ready for the next leases.";
    DONOR_FREE: Gauge "spillway_donor_free_to_lend_bytes" [DONOR] "What it could lend now.";
    DONOR_HEADROOM: Gauge "spillway_donor_headroom_bytes" [DONOR]
        "What it leaves to the machine's own programs.";
    DONOR_AVAILABLE: Gauge "spillway_donor_available_bytes" [DONOR] "The machine's available memory as it sees it, smoothed.";
    DONOR_DRAINING: Gauge "spillway_donor_draining" [DONOR] "1 if it lends nothing any more.";
    DONOR_SESSIONS: Gauge "spillway_donor_sessions" [DONOR] "Its borrowers.";
    DONOR_LINGERING: Gauge "spillway_donor_sessions_lingering" [DONOR]
        "Borrowers that ended without a goodbye and whose slabs are kept for a while.";
    DONOR_READ: Counter "spillway_donor_read_bytes" [DONOR] "Pages that borrowers read over sockets.";
    DONOR_WRITTEN: Counter "spillway_donor_written_bytes" [DONOR] "Pages that borrowers wrote over sockets.";
    DONOR_RECALLS: Counter "spillway_donor_recalls" [DONOR] "Slabs asked back.";
    DONOR_RECALLS_RETURNED: Counter "spillway_donor_recalls_returned" [DONOR]
        "Slabs asked back that were released, or lost with their session.";
    DONOR_RECALLS_WITHDRAWN: Counter "spillway_donor_recalls_withdrawn" [DONOR]
        "Slabs asked back that may stay after all, as a drain was undone.";
    DONOR_RECALLS_OVERDUE: Gauge "spillway_donor_recalls_overdue" [DONOR]
        "Slabs asked back, not returned, and past their deadline now.";
    DONOR_SESSIONS_OPENED: Counter "spillway_donor_sessions_opened" [DONOR] "Sessions opened.";
    DONOR_REFUSED: Counter "spillway_donor_connections_refused" [DONOR]
        "Connections turned away: no key, another version, another program, too many.";
    DONOR_LEASES: Counter "spillway_donor_leases_granted" [DONOR] "Slabs lent.";
    DONOR_LEASES_REFUSED: Counter "spillway_donor_leases_refused" [DONOR] "Slabs not lent for lack of memory.";
    DONOR_UNLOCKED: Counter "spillway_donor_slabs_unlocked" [DONOR]
        "Slabs lent that are not locked in memory: this machine may swap them out.";
}

#[cfg(test)]
impl Metric {
    /// The name in expressions; a histogram has its suffixes after it.
    pub(crate) fn full_name(&self) -> String {
        format!("{}{}", self.name, if self.kind == Kind::Counter { "_total" } else { "" })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_follow_the_conventions() {
        let names: BTreeSet<_> = ALL.iter().map(|metric| metric.name).collect();
        assert_eq!(names.len(), ALL.len(), "a name twice");
        for metric in ALL {
            let Metric { name, help, .. } = metric;
            assert!(name.starts_with("spillway_") && !name.ends_with("_total"), "{name}");
            assert!(name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'), "{name}");
            assert!(help.ends_with('.') && !help.contains('\n'), "{name}: {help}");
            let in_other_units = ["_ms", "_us", "_pages", "_mib", "_kib", "_percent"];
            assert!(!in_other_units.iter().any(|unit| name.ends_with(unit)), "{name} has no base unit");
            if metric.kind == Kind::Histogram {
                assert!(name.ends_with("_seconds"), "{name}");
            }
        }
    }

    #[test]
    fn every_label_has_a_bound_and_so_has_the_whole() {
        let series = |metric: &Metric| {
            let lines = if metric.kind == Kind::Histogram { 28 } else { 1 };
            metric.labels.iter().map(|label| label.values_max + 1).product::<usize>() * lines
        };
        let all: usize = ALL.iter().copied().map(series).sum();
        assert!(all < 30_000, "up to {all} series");
        assert!(ALL.iter().all(|metric| metric.labels.iter().all(|label| (1..=64).contains(&label.values_max))));
    }
}
