//! DCM's third figure again: a guest that is extended from outside, beside guests that swap by themselves.
//!
//! The extended guest has all its memory configured; the host keeps a part of it, by the pager over QEMU. The others
//! have so much less memory and swap: to a virtio disk, which is a file of the host, past its cache
//! (`cache=none`) or in it (`cache=unsafe`), or to a ramdisk of their own (`brd`), which saves no memory at all.
//!
//! Where guests are emulated, their own swapping is emulated, too, and the pager is not: this flatters the pager, and
//! the result says so.

pub mod sizes;
pub mod told;

use std::collections::HashMap;
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use spillway_bench::harness::spillway::{Donor, Via, pages_in, pages_out, read_run};
use spillway_bench::harness::{HarnessError, tool};
use spillway_bench::limits::{GUEST_STUDY_DEADLINE, GUEST_TRIAL_DEADLINE, TOOL_DEADLINE};
use spillway_bench::result::{Better, PAGES, SECONDS, StudyResult};
use spillway_bench::studies::places::{run_storage, start_donors};
use spillway_bench::studies::program_run::run_within;
use spillway_bench::studies::{Context, Study};
use spillway_report::run::EndedRunReport;
use spillway_virtual_machine::script_guest::{Parts, ScriptGuest};
use spillway_workloads::size::{MIB, Size};

use self::sizes::{FIRST_ROOM_MIB, Sizes};
use self::told::Told;

/// The program of both jobs, and what starts it in the guest.
const SOURCE: &str = include_str!("guest_jobs.c");
const SCRIPT: &str = include_str!("guest.sh");

const JOBS: [&str; 2] = ["grep", "group-by"];

/// The shares of the working set that do not have to leave.
const SHARES_PERCENT: [u64; 3] = [100, 75, 50];

/// Shares at which something has to leave, for which there are goals.
const SHARES_OF_GOALS: [u64; 2] = [75, 50];

const DONORS: usize = 3;

/// The bound of QEMU's memory for translated code, which else is a part of the host's memory.
const TRANSLATED_MIB: u64 = 32;

/// Where the memory is that the guest lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    AllLocal,
    Pager,
    Disk,
    CachedDisk,
    Ramdisk,
}

impl Side {
    const ALL: [Self; 5] = [Self::AllLocal, Self::Pager, Self::Disk, Self::CachedDisk, Self::Ramdisk];

    fn name(self) -> &'static str {
        match self {
            Self::AllLocal => "all local",
            Self::Pager => "extended by the pager",
            Self::Disk => "swaps to its disk",
            Self::CachedDisk => "swaps to its disk, cached",
            Self::Ramdisk => "swaps to its ramdisk",
        }
    }

    /// What the guest's script is told.
    fn swap_word(self) -> &'static str {
        match self {
            Self::AllLocal | Self::Pager => "none",
            Self::Disk | Self::CachedDisk => "disk",
            Self::Ramdisk => "ramdisk",
        }
    }

    /// How the host keeps the guest's disk.
    fn disk_cache(self) -> Option<&'static str> {
        match self {
            Self::Disk => Some("none"),
            Self::CachedDisk => Some("unsafe"),
            Self::AllLocal | Self::Pager | Self::Ramdisk => None,
        }
    }

    /// The guest's memory.
    fn guest(self, sizes: Sizes, percent: u64) -> Size {
        match self {
            Self::AllLocal | Self::Pager => sizes.guest,
            Self::Disk | Self::CachedDisk => sizes.small_guest(percent),
            Self::Ramdisk => Size(sizes.small_guest(percent).0 + sizes.ramdisk(percent).0),
        }
    }
}

fn case(job: &str, percent: u64) -> String {
    format!("{job} L({percent})")
}

fn moved_case(job: &str, percent: u64, direction: &str) -> String {
    format!("{}, pages {direction}", case(job, percent))
}

/// The study of guests that swap.
#[derive(Clone, Copy, Debug)]
pub struct GuestSwapStudy;

impl Study for GuestSwapStudy {
    fn name(&self) -> &'static str {
        "guest-swap"
    }

    fn title(&self) -> &'static str {
        "a guest extended from outside, and guests that swap by themselves (DCM)"
    }

    fn rounds(&self) -> usize {
        1
    }

    fn rounds_quick(&self) -> usize {
        1
    }

    fn seconds_per_round(&self) -> (u64, u64) {
        (250, 135)
    }

    fn run(&self, context: &Context, result: &mut StudyResult) -> Result<(), HarnessError> {
        let mut bench = match Bench::new(context) {
            Ok(bench) => bench,
            Err(error) if error.is_interrupt() => return Err(error),
            Err(error) => {
                result.skip("guests", &error.to_string());
                return Ok(());
            }
        };
        if bench.guest.is_emulated() {
            let reason = "guests are emulated here, their swapping included, and the pager is not: this flatters it";
            result.skip("hardware virtualisation", reason);
        }
        let subjects = Side::ALL.map(|side| SHARES_PERCENT.map(|percent| (side, percent))).concat();
        // All-local does not depend on the share: it is measured once and stands in each case.
        let subjects: Vec<_> = subjects
            .into_iter()
            .filter(|(side, percent)| *side != Side::AllLocal || *percent == SHARES_PERCENT[0])
            .collect();
        let name = |(side, percent): (Side, u64)| format!("{}, L({percent})", side.name());
        let outcome =
            context.interleave(result, &subjects, name, |round, subject, result| bench.measure(result, round, subject));
        judge(result);
        outcome
    }
}

/// Ratios to all-local, and of the extended guest to those that swap.
fn judge(result: &mut StudyResult) {
    let pager = Side::Pager.name();
    for job in JOBS {
        for percent in SHARES_PERCENT {
            let case = case(job, percent);
            for side in Side::ALL.into_iter().filter(|side| *side != Side::AllLocal) {
                result.compare(&case, side.name(), Side::AllLocal.name());
            }
            for side in [Side::CachedDisk, Side::Ramdisk] {
                result.compare(&case, pager, side.name());
            }
        }
        for percent in SHARES_OF_GOALS {
            let goal = "a guest extended from outside ahead of one that swaps to its disk (DCM)";
            result.goal(goal, &case(job, percent), pager, Side::Disk.name(), 1.0, Better::Lower);
        }
    }
}

/// A packed guest, donors, and how large everything is.
struct Bench<'context> {
    context: &'context Context,
    guest: ScriptGuest,
    sizes: Sizes,
    donors: Vec<Donor>,
    checksums: HashMap<String, String>,
    end: Instant,
}

/// What a boot had of the host.
#[derive(Clone, Copy)]
struct Boot {
    side: Side,
    guest: Size,
    /// What the host keeps of it; under the pager only.
    local: Size,
    ramdisk: Size,
}

impl<'context> Bench<'context> {
    fn new(context: &'context Context) -> Result<Self, HarnessError> {
        let directory = context.shop.directory.path();
        let program = compile(context)?;
        let parts = Parts { modules: &["virtio_blk"], modules_later: &["brd"], programs: &[program], script: SCRIPT };
        let guest = ScriptGuest::pack(directory, &parts);
        let guest = guest.map_err(|failure| HarnessError::Missing(failure.to_string()))?;
        let working_set = Size(context.choose(64, 32) * MIB);
        let first = Size(working_set.0 + FIRST_ROOM_MIB * MIB);
        let sizes = Sizes { working_set, guest: first, footprint: first };
        let donors = start_donors(context, DONORS, room(sizes))?;
        let end = Instant::now() + GUEST_STUDY_DEADLINE;
        let mut bench = Self { context, guest, sizes, donors, checksums: HashMap::new(), end };
        eprintln!("guest-swap: how much memory the guest and QEMU need");
        let boot = Boot { side: Side::AllLocal, guest: first, local: Size(0), ramdisk: Size(0) };
        let free = bench.boot(boot)?.0.free;
        bench.sizes.guest = Sizes::guest_for(working_set, free);
        let boot = Boot { side: Side::Pager, guest: bench.sizes.guest, local: Size(first.0 * 2), ramdisk: Size(0) };
        let report = bench.boot(boot)?.1;
        let footprint = report.map(|report| report.memory.footprint_bytes_max).unwrap_or_default();
        if footprint <= working_set.0 {
            return Err(HarnessError::failed("the pager", format!("it saw QEMU with {footprint} bytes only")));
        }
        bench.sizes.footprint = Size(footprint);
        let mib = |size: Size| size.0 / MIB;
        eprintln!("guest-swap: {} MiB, QEMU {} MiB", mib(bench.sizes.guest), mib(bench.sizes.footprint));
        Ok(bench)
    }

    fn measure(
        &mut self,
        result: &mut StudyResult,
        round: usize,
        (side, percent): (Side, u64),
    ) -> Result<(), HarnessError> {
        let sizes = self.sizes;
        let (local, ramdisk) = (sizes.local(percent), sizes.ramdisk(percent));
        let (told, report) = self.boot(Boot { side, guest: side.guest(sizes, percent), local, ramdisk })?;
        for job in JOBS {
            let found = told.job(job)?;
            let first = self.checksums.entry(job.to_owned()).or_insert_with(|| found.checksum.clone());
            if *first != found.checksum {
                let detail = format!("WRONG OUTPUT: checksum {} where the first run had {first}", found.checksum);
                return Err(HarnessError::wrong(job, detail));
            }
            let shares: &[u64] = if side == Side::AllLocal { &SHARES_PERCENT } else { &[percent] };
            for share in shares {
                result.record(round, &case(job, *share), side.name(), SECONDS, found.seconds);
            }
            if side.swap_word() != "none" {
                for (direction, pages) in [("in", found.swapped_in), ("out", found.swapped_out)] {
                    result.record(round, &moved_case(job, percent, direction), side.name(), PAGES, pages as f64);
                }
            }
        }
        if percent < 100 && side.swap_word() != "none" && told.jobs.iter().all(|job| job.swapped_out == 0) {
            let reason = "the guest had room for all and swapped nothing, so this figure says nothing of swapping";
            result.skip(&format!("{}, L({percent})", side.name()), reason);
        }
        // The pager does not see where a job ends: its pages are those of the whole boot.
        if let Some(report) = report {
            for (direction, pages) in [("in", pages_in(&report)), ("out", pages_out(&report))] {
                result.record(round, &moved_case("whole boot", percent, direction), side.name(), PAGES, pages as f64);
            }
        }
        Ok(())
    }

    /// Boots a guest, which ends by itself; gives what it and the pager told.
    fn boot(&self, boot: Boot) -> Result<(Told, Option<EndedRunReport>), HarnessError> {
        if Instant::now() >= self.end {
            return Err(HarnessError::Missing("the time of this study was over".to_owned()));
        }
        let shop = &self.context.shop;
        let directory = shop.directory.path();
        let (console, stats) = (directory.join("console"), directory.join("guest-swap-stats.json"));
        for file in [&console, &stats] {
            // What an earlier boot said must not be taken for this one's.
            let _ = fs::remove_file(file);
        }
        let mut qemu = self.qemu(boot, &console)?;
        if boot.side == Side::Pager {
            let storage = run_storage(self.context, &self.donors, "none", room(self.sizes));
            let local = boot.local.to_string();
            qemu = shop.product()?.run_via(Via::Pager, None, &local, &storage, &stats, &qemu);
        }
        let ran = run_within(GUEST_TRIAL_DEADLINE, "a guest", &mut qemu, &shop.interrupt);
        let said = String::from_utf8_lossy(&fs::read(&console).unwrap_or_default()).into_owned();
        ran?;
        let told = Told::parse(&said)?;
        let areas = u64::from(boot.side.swap_word() != "none");
        if told.swap_areas != areas {
            let detail = format!("it has {} swap areas where it must have {areas}", told.swap_areas);
            return Err(HarnessError::failed("the guest", detail));
        }
        if boot.side != Side::Pager {
            return Ok((told, None));
        }
        let (report, volume) = read_run(&stats)?;
        match volume.pages_lost {
            0 => Ok((told, Some(report))),
            lost => Err(HarnessError::failed("the pager", format!("{lost} pages were lost"))),
        }
    }

    fn qemu(&self, boot: Boot, console: &std::path::Path) -> Result<Command, HarnessError> {
        let mut more = Vec::new();
        if let Some(cache) = boot.side.disk_cache() {
            let path = self.context.shop.directory.path().join("guest-swap-disk");
            let file = File::create(&path).map_err(HarnessError::system("making the guest's disk"))?;
            file.set_len(room(self.sizes).0).map_err(HarnessError::system("making the guest's disk"))?;
            let drive = format!("if=none,id=swap,format=raw,cache={cache},file={}", path.display());
            more.extend(["-drive".to_owned(), drive, "-device".to_owned(), "virtio-blk-device,drive=swap".to_owned()]);
        }
        let settings = format!(
            "study.swap={} study.ramdisk_mib={} study.size_mib={}",
            boot.side.swap_word(),
            boot.ramdisk.0 / MIB,
            self.sizes.working_set.0 / MIB
        );
        let words = self.guest.clone().translated_mib(TRANSLATED_MIB).kernel_options(&settings);
        let words = words.words(boot.guest.0 / MIB, console, &more);
        let words = words.map_err(|failure| HarnessError::Missing(failure.to_string()))?;
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]);
        Ok(command)
    }
}

/// What may have to be lent or swapped at most.
fn room(sizes: Sizes) -> Size {
    Size(sizes.working_set.0 + 2 * FIRST_ROOM_MIB * MIB)
}

/// Compiles the jobs for a guest without libraries.
fn compile(context: &Context) -> Result<PathBuf, HarnessError> {
    let directory = context.shop.directory.path();
    let (source, program) = (directory.join("guest_jobs.c"), directory.join("guest_jobs"));
    fs::write(&source, SOURCE).map_err(HarnessError::system("writing the jobs' source"))?;
    let mut command = Command::new(tool::need("gcc")?);
    command.args(["-O2", "-static", "-o"]).arg(&program).arg(&source);
    tool::run_command(&mut command, TOOL_DEADLINE, &context.shop.interrupt)?;
    Ok(program)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::studies::tests::context;
    use spillway_bench::machine::Machine;

    #[test]
    fn the_extended_guest_is_judged_against_the_one_with_a_disk() {
        let mut result = StudyResult::new("guest-swap", "", true, Machine::default());
        for (side, seconds) in Side::ALL.into_iter().zip([1.0, 2.0, 4.0, 1.0, 1.5]) {
            for job in JOBS {
                for percent in SHARES_PERCENT {
                    result.record(0, &case(job, percent), side.name(), SECONDS, seconds);
                }
            }
        }
        judge(&mut result);
        assert_eq!(result.goals.len(), JOBS.len() * SHARES_OF_GOALS.len());
        assert!(result.goals.iter().all(|goal| goal.verdict() == "met"), "half of its time");
        let ratio = |side: Side| {
            let mut all = result.comparisons.iter();
            all.find(|one| one.baseline == side.name()).map(|one| one.ratio.median)
        };
        assert_eq!((ratio(Side::CachedDisk), ratio(Side::Ramdisk)), (Some(2.0), Some(2.0 / 1.5)));
    }

    #[test]
    fn only_the_ramdisk_takes_memory_besides() {
        let sizes = Sizes { working_set: Size(64 * MIB), guest: Size(128 * MIB), footprint: Size(160 * MIB) };
        let guests = Side::ALL.map(|side| side.guest(sizes, 50).0 / MIB);
        assert_eq!(guests[..4], [128, 128, 96, 96]);
        assert!(guests[4] > 128, "it has a ramdisk for all that does not fit");
    }

    #[test]
    fn jobs_say_what_the_study_reads() {
        if tool::find("gcc").is_none() {
            return spillway_sys::skipping::skip("gcc");
        }
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        let context = context(directory.path(), 1);
        let program = compile(&context).unwrap();
        for job in JOBS {
            let results = [4, 4, 8].map(|mib: u64| {
                let mut command = Command::new(&program);
                let said =
                    tool::run_command(command.args([job, &mib.to_string()]), TOOL_DEADLINE, &context.shop.interrupt);
                let told = Told::parse(&format!("free_kib 1\nswap_areas 0\n{}", said.unwrap())).unwrap();
                told.job(job).unwrap().checksum.clone()
            });
            assert!(results[0] == results[1] && results[1] != results[2], "{job}: {results:?}");
        }
    }
}
