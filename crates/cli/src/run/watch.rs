//! While the program runs: its budget follows its footprint, and `status` is told.

use std::collections::HashSet;
use std::io;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use spillway_console::log_writer::ChangeLog;
use spillway_console::say;
use spillway_control::donor_change::{self, KeptOut};
use spillway_control::registry::Entry;
use spillway_control::status_socket::{Answer, Question, StatusServer};
use spillway_control::take_down::device_name;
use spillway_fabric::units::PAGE_SIZE_BYTES;
use spillway_machine::cgroup::strays::Stray;
use spillway_machine::cgroup::usage::GroupUsage;
use spillway_machine::interruption::Interruption;
use spillway_machine::memory::Memory;
use spillway_machine::size::human;
use spillway_pager::pager::PagerStatus;
use spillway_report::prefetch::PrefetchReport;
use spillway_report::run::{Choice, RunReport};
use spillway_volume::running::RunningVolume;
use spillway_volume::status::DeviceStatus;

use super::program::Program;
use crate::arguments::run::RunArguments;
use crate::budget::Budget;
use crate::limits::{self, LEND_SPARE_DIVISOR, THRASH_BYTES_MIN, THRASH_TIMES};

/// What keeps a program in its budget: a memory group, or the pager.
pub(crate) trait Governed: Sync {
    /// What the program has where.
    fn usage(&self) -> io::Result<GroupUsage>;

    /// Sets the local part, or lifts the limit.
    fn set_limit(&self, limit_bytes: Option<u64>) -> io::Result<()>;

    /// How many processes depend on it that were left behind by the program.
    fn dependents(&self) -> u64 {
        0
    }

    /// How often to look while the program is at its limit.
    fn interval_at_limit(&self, limit_bytes: u64) -> Duration;

    /// From now on the kernel may kill a process that finds no memory.
    fn let_kernel_kill(&self) {}

    /// Processes of `program` that went to where it is not kept in its budget. Those that can be are brought back.
    fn strays(&self, _program: u32) -> Vec<Stray> {
        Vec::new()
    }

    /// What the pager says, if it is in this process.
    fn report(&self) -> Option<PagerStatus> {
        None
    }

    /// The state of the volume, if it is in this process.
    fn volume_status(&self) -> Option<DeviceStatus> {
        None
    }

    /// The volume, if it is in this process.
    fn volume(&self) -> Option<&RunningVolume> {
        None
    }

    /// The cluster whose donors it uses, as they come and go.
    fn follows(&self) -> Option<String> {
        None
    }

    /// What prefetching does, where it is a part of the way.
    fn prefetch(&self) -> Option<PrefetchReport> {
        None
    }
}

/// A run at one moment, and what the user was told.
#[derive(Debug, Default)]
struct Watched {
    report: RunReport,
    /// The memory groups that the user was told of.
    groups_told: HashSet<PathBuf>,
    /// Whether the user was told that all that may be borrowed is.
    is_told_of_lend: bool,
    /// Whether the user was told that files' pages do not fit.
    is_told_of_files: bool,
}

impl Watched {
    /// What to tell the user, once, of a program whose files' pages go and come all the time: they count in the
    /// limit, leave before memory is paged out, and are read from their files again. That looks like slow paging and
    /// is none.
    fn thrash_of_files(&mut self) -> Option<String> {
        let limit_bytes = self.report.limit_bytes?;
        let read_again_bytes = self.report.usage.file_refaults * PAGE_SIZE_BYTES as u64;
        if self.is_told_of_files || read_again_bytes < (limit_bytes * THRASH_TIMES).max(THRASH_BYTES_MIN) {
            return None;
        }
        self.is_told_of_files = true;
        Some(format!(
            "pages of files, not memory, are what is short: {} of them were dropped and read again under the limit of {}, which counts them; \
             give a larger --local (at best as much as the files that the program works on), or use --via pager, which counts no files",
            human(read_again_bytes),
            human(limit_bytes),
        ))
    }

    /// What to tell the user, once, when the program has at donors what it may have there.
    fn reached_lend(&mut self) -> Option<String> {
        let most_bytes = self.report.lend_bytes_max?;
        let spare_bytes = (most_bytes / LEND_SPARE_DIVISOR).max(PAGE_SIZE_BYTES as u64);
        if self.is_told_of_lend || self.report.usage.swapped_bytes + spare_bytes < most_bytes {
            return None;
        }
        self.is_told_of_lend = true;
        Some(format!(
            "all of --lend {} is in use: what the program needs beyond it stays in local memory, also beyond --local; give a larger --lend, \
             or less to the program",
            human(most_bytes),
        ))
    }

    /// What to tell the user of processes that went to another memory group, once of each group.
    fn went_outside(&mut self, strays: &[Stray]) -> Vec<String> {
        let outside_bytes = strays.iter().map(|stray| stray.local_bytes).sum();
        self.report.outside_bytes_max = self.report.outside_bytes_max.max(outside_bytes);
        let news = strays.iter().filter(|stray| self.groups_told.insert(stray.group.clone()));
        news.map(Stray::describe).collect()
    }

    fn take(&mut self, usage: GroupUsage, limit_bytes: Option<u64>) {
        let report = &mut self.report;
        report.usage = usage;
        report.limit_bytes = limit_bytes;
        report.limit_bytes_max = report.limit_bytes_max.max(limit_bytes);
        report.footprint_bytes = usage.footprint_bytes();
        report.footprint_bytes_max = report.footprint_bytes_max.max(report.footprint_bytes);
        report.local_bytes_max = report.local_bytes_max.max(usage.charged_bytes);
        report.swapped_bytes_max = report.swapped_bytes_max.max(usage.swapped_bytes);
    }
}

/// Adjusts the budget until the program has ended, and all whom it left behind if they cannot live without it; gives
/// the last report.
pub(crate) fn watch(
    program: &Program,
    governed: &dyn Governed,
    budget: &mut Budget,
    entry: &Entry,
    choice: Choice,
    arguments: &RunArguments,
    interruption: &Interruption,
) -> RunReport {
    // On a busy machine the looks must not come late (limits::BUDGET_INTERVAL_AT_LIMIT). This thread sleeps nearly
    // always; a user who may not raise its priority keeps the ordinary one.
    let _ = rustix::process::setpriority_process(None, limits::WATCH_NICENESS);
    let report = RunReport {
        via: Some(choice),
        program: arguments.program.first().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default(),
        volume: entry_volume(entry),
        lend_bytes_max: arguments.lend.map(|size| size.bytes),
        local: arguments.local.to_string(),
        ..RunReport::default()
    };
    let watched = Mutex::new(Watched { report, ..Watched::default() });
    let ended = AtomicBool::new(false);
    let server = StatusServer::bind(&entry.status_socket());
    std::thread::scope(|scope| {
        match &server {
            Ok(server) => drop(scope.spawn(|| answer(server, governed, &watched, &ended))),
            Err(error) => say!("spillway: `status` cannot see this run: {error}"),
        }
        let mut interval = Duration::ZERO;
        let begun = Instant::now();
        let mut next_search = begun;
        while !program.wait(interval) {
            interval = adjust(governed, budget, &watched, begun.elapsed());
            if Instant::now() >= next_search {
                next_search = search_strays(program, governed, &watched);
            }
        }
        wait_for_left_behind(governed, budget, &watched, begun, interruption);
        adjust(governed, budget, &watched, begun.elapsed());
        ended.store(true, Ordering::SeqCst);
    });
    watched.into_inner().expect("no holder panics").report
}

/// The name of the volume of the run that has this entry.
fn entry_volume(entry: &Entry) -> String {
    entry.path().file_name().map(|name| device_name(&name.to_string_lossy())).unwrap_or_default()
}

/// Processes that the program left behind and that cannot live without this one go on like it, until a signal ends
/// the run.
fn wait_for_left_behind(
    governed: &dyn Governed,
    budget: &mut Budget,
    watched: &Mutex<Watched>,
    begun: Instant,
    interruption: &Interruption,
) {
    let (start, mut is_told) = (Instant::now(), false);
    while governed.dependents() > 0 && interruption.signal().is_none() {
        if !is_told && start.elapsed() > limits::LEFT_BEHIND_NOTICE {
            let count = governed.dependents();
            say!("spillway: the program ended and left {count} process(es) that live on this run; Ctrl-C ends them");
            is_told = true;
        }
        std::thread::sleep(adjust(governed, budget, watched, begun.elapsed()));
    }
}

/// One look at the group, `now` after the begin; gives when to look again.
fn adjust(governed: &dyn Governed, budget: &mut Budget, watched: &Mutex<Watched>, now: Duration) -> Duration {
    let Ok(usage) = governed.usage() else { return limits::BUDGET_INTERVAL };
    budget.steer(now, &usage);
    if usage.is_stalled && is_machine_short() {
        governed.let_kernel_kill();
    } else if let Some(limit_bytes) = budget.observe(&usage) {
        // Refused only for a moment, and tried again then.
        let _ = governed.set_limit(Some(limit_bytes));
    }
    let mut watched = watched.lock().expect("no holder panics");
    watched.take(usage, budget.limit_bytes());
    watched.report.relief_bytes_max = watched.report.relief_bytes_max.max(budget.relief_bytes());
    if let Some(told) = watched.reached_lend() {
        say!("spillway: {told}");
    }
    if let Some(told) = watched.thrash_of_files() {
        say!("spillway: {told}");
    }
    budget.interval(&usage, |limit_bytes| governed.interval_at_limit(limit_bytes))
}

/// Looks for processes that went elsewhere; when to do so again, for it takes a look at each process.
fn search_strays(program: &Program, governed: &dyn Governed, watched: &Mutex<Watched>) -> Instant {
    let begun = Instant::now();
    let strays = program.process().map(|process| governed.strays(process)).unwrap_or_default();
    for told in watched.lock().expect("no holder panics").went_outside(&strays) {
        say!("spillway: {told}");
    }
    let ended = Instant::now();
    let pause = (ended - begun) * limits::STRAY_SEARCH_SHARE;
    ended + pause.clamp(limits::BUDGET_INTERVAL, limits::STRAY_SEARCH_INTERVAL_MAX)
}

/// Whether the machine has nothing to give to a group that cannot go on.
fn is_machine_short() -> bool {
    Memory::read().is_ok_and(|memory| memory.available_bytes < limits::RELIEF_RESERVE_BYTES)
}

fn answer(server: &StatusServer, governed: &dyn Governed, watched: &Mutex<Watched>, ended: &AtomicBool) {
    let mut kept_out = KeptOut::default();
    let mut changes = ChangeLog::new("run".to_owned());
    while !ended.load(Ordering::SeqCst) {
        changes.look(|| governed.volume_status());
        server.serve(limits::BUDGET_INTERVAL, &mut |question| match question {
            Question::Ping => Answer::done(),
            Question::Cluster => Answer::no_cluster(),
            Question::Donor(change) => match governed.volume() {
                None => Answer::no_donors(),
                volume => donor_change::carry_out(change, volume, &mut kept_out),
            },
            Question::Status => {
                let now = watched.lock().expect("no holder panics").report.clone();
                Answer::status(&RunReport {
                    pager: governed.report(),
                    prefetch: governed.prefetch(),
                    follows: governed.follows(),
                    ..now
                })
            }
            Question::Stop => Answer::refused("end the program, and its run ends"),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peaks_stay_when_the_program_shrinks() {
        let mut watched = Watched::default();
        let large = GroupUsage { charged_bytes: 100, swapped_bytes: 50, ..GroupUsage::default() };
        watched.take(large, Some(100));
        watched.take(GroupUsage::default(), Some(20));
        let report = watched.report;
        assert_eq!((report.footprint_bytes_max, report.local_bytes_max, report.swapped_bytes_max), (150, 100, 50));
        assert_eq!((report.footprint_bytes, report.limit_bytes, report.limit_bytes_max), (0, Some(20), Some(100)));
    }

    #[test]
    fn a_bound_that_is_reached_is_told_once() {
        let mut watched = Watched::default();
        watched.report.lend_bytes_max = Some(64 << 20);
        let lent = |bytes| GroupUsage { swapped_bytes: bytes, ..GroupUsage::default() };
        watched.take(lent(60 << 20), None);
        assert_eq!(watched.reached_lend(), None);
        watched.take(lent(64 << 20), None);
        let told = watched.reached_lend().unwrap();
        assert!(told.contains("--lend 64 MiB") && told.contains("stays in local memory"), "{told}");
        assert_eq!(watched.reached_lend(), None, "once");
        watched.is_told_of_lend = false;
        assert!(watched.reached_lend().is_some());
        (watched.report.lend_bytes_max, watched.is_told_of_lend) = (None, false);
        assert_eq!(watched.reached_lend(), None, "no bound");
    }

    #[test]
    fn groups_that_processes_went_to_are_told_of_once() {
        let mut watched = Watched::default();
        let stray = |process, group: &str| Stray { process, group: group.into(), local_bytes: 5 << 20, is_back: false };
        assert_eq!(watched.went_outside(&[]), Vec::<String>::new());
        let told = watched.went_outside(&[stray(7, "/a"), stray(8, "/a"), stray(9, "/b")]);
        assert!(told.len() == 2 && told[0].contains("process 7") && told[1].contains("/b"), "{told:?}");
        assert_eq!(watched.report.outside_bytes_max, 15 << 20);
        assert_eq!(watched.went_outside(&[stray(10, "/b")]), Vec::<String>::new());
        assert_eq!(watched.report.outside_bytes_max, 15 << 20);
    }

    #[test]
    fn files_that_do_not_fit_are_told_of_once() {
        let mut watched = Watched::default();
        let pages = |bytes: u64| bytes / PAGE_SIZE_BYTES as u64;
        let usage = |bytes| GroupUsage { file_refaults: pages(bytes), ..GroupUsage::default() };
        watched.take(usage(THRASH_BYTES_MIN - 4096), Some(32 << 20));
        assert_eq!(watched.thrash_of_files(), None);
        watched.take(usage(THRASH_BYTES_MIN.max(THRASH_TIMES * (32 << 20))), Some(32 << 20));
        let told = watched.thrash_of_files().unwrap();
        assert!(told.contains("pages of files, not memory") && told.contains("limit of 32 MiB"), "{told}");
        assert_eq!(watched.thrash_of_files(), None, "once");
        watched.take(usage(1 << 40), None);
        watched.is_told_of_files = false;
        assert_eq!(watched.thrash_of_files(), None, "no limit");
    }

    /// A process that is needed for so many looks.
    struct Needed(std::sync::atomic::AtomicU64);

    impl Governed for Needed {
        fn usage(&self) -> io::Result<GroupUsage> {
            Ok(GroupUsage { charged_bytes: 1 << 30, ..GroupUsage::default() })
        }

        fn set_limit(&self, _: Option<u64>) -> io::Result<()> {
            Ok(())
        }

        fn interval_at_limit(&self, _: u64) -> Duration {
            limits::BUDGET_INTERVAL_AT_LIMIT
        }

        fn dependents(&self) -> u64 {
            let left = self.0.load(Ordering::Relaxed);
            self.0.store(left.saturating_sub(1), Ordering::Relaxed);
            left
        }
    }

    #[test]
    fn a_program_left_behind_keeps_its_budget_until_it_ends() {
        let (needed, watched) = (Needed(3.into()), Mutex::new(Watched::default()));
        let mut budget = Budget::new("50%".parse().unwrap());
        wait_for_left_behind(&needed, &mut budget, &watched, Instant::now(), &Interruption::default());
        assert_eq!(needed.dependents(), 0);
        assert_eq!(watched.into_inner().unwrap().report.limit_bytes, Some(512 << 20));
    }
}
