//! One run of a program somewhere, its output compared with that of the all-local run.
//!
//! Invariants: the donors that a run begins with are all alive; a killed one is replaced before the next run; one
//! swap area is on at a time.

use std::path::PathBuf;
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

use spillway_workloads::size::{MIB, PAGE_SIZE_BYTES, Size};

use super::compare::Output;
use super::programs::DemoProgram;
use super::progress::Progress;
use super::redis_job::Served;
use super::report::{Disk, Lent};
use super::{DISK_PATIENCE, Scale};
use crate::harness::fault_latency::{FaultLatency, Waits};
use crate::harness::memory_group::MemoryGroup;
use crate::harness::process::Running;
use crate::harness::spillway::{Donor, Storage, Transport, Via, read_run};
use crate::harness::subject::{Subject, Workshop};
use crate::harness::swap_area::SwapArea;
use crate::harness::usage::SwapCount;
use crate::harness::working_set::{WorkingSet, is_root};
use crate::harness::{HarnessError, tool};
use crate::limits::{PROGRAM_DEADLINE, START_DEADLINE, with_slack};

/// Whether a donor is killed during a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kill {
    /// None is.
    None,
    /// The first one, once as much was paged out as does not fit local memory.
    InTheMiddle,
}

/// What the run with all memory local showed.
#[derive(Clone, Debug)]
pub struct AllLocal {
    /// The most memory it needed: its working set.
    pub footprint: Size,
    /// Its time.
    pub seconds: f64,
    /// What a server's clients saw.
    pub served: Option<Served>,
    output: PathBuf,
}

/// Runs programs.
#[derive(Debug)]
pub struct Trials<'shop> {
    shop: &'shop Workshop,
    scale: Scale,
    progress: &'shop Progress,
    donors: Vec<Donor>,
}

fn check(name: &str, status: ExitStatus, message: &str) -> Result<(), HarnessError> {
    if status.success() { Ok(()) } else { Err(HarnessError::failed(name, format!("{message} ({status})"))) }
}

/// Whether it is the middle of a run: what does not fit local memory was paged out once.
fn is_the_middle(swapped: SwapCount, footprint: Size, local: Size) -> bool {
    swapped.pages_out > 0 && swapped.pages_out * PAGE_SIZE_BYTES >= footprint.0.saturating_sub(local.0)
}

impl<'shop> Trials<'shop> {
    /// Starts `donors` donors.
    pub fn start(
        shop: &'shop Workshop,
        scale: Scale,
        progress: &'shop Progress,
        donors: usize,
    ) -> Result<Self, HarnessError> {
        let mut trials = Self { shop, scale, progress, donors: Vec::new() };
        progress.step(&format!("starting {donors} donors"), || (0..donors).try_for_each(|_| trials.add_donor()))?;
        Ok(trials)
    }

    fn add_donor(&mut self) -> Result<(), HarnessError> {
        // Without one of three, the others must still hold the largest program.
        let memory = Size(self.scale.text.0 + 128 * MIB);
        let donor = self.shop.product()?.donor(memory, Transport::SharedMemory, None, &self.shop.interrupt)?;
        self.donors.push(donor);
        Ok(())
    }

    /// Whether this machine lets the pager work; an error that says what it lacks otherwise.
    pub fn try_pager(&self) -> Result<(), HarnessError> {
        let mut command = Command::new(self.shop.product()?.binary());
        command.args(["run", "--via", "pager", "--local", "16M", "--lend", "64M", "--", "true"]);
        command.env("SPILLWAY_OWN_DONORS", "1");
        tool::run_command(&mut command, START_DEADLINE, &self.shop.interrupt)
            .map(drop)
            .map_err(|error| if error.is_interrupt() { error } else { HarnessError::Missing(error.to_string()) })
    }

    /// Whether this user may use the swap device; an error that says what to do otherwise.
    pub fn try_swap(&self) -> Result<(), HarnessError> {
        let why = "the swap way and disk swap need root: run the demo as root to see them";
        if is_root() { Ok(()) } else { Err(HarnessError::Missing(why.to_owned())) }
    }

    /// Runs it with all memory local: the reference for time, working set and output.
    pub fn all_local(&mut self, program: &DemoProgram) -> Result<AllLocal, HarnessError> {
        let output = self.shop.directory.path().join(format!("{}.out", program.name));
        let recorded = Output::record(&output)?;
        let working_set = WorkingSet::new()?;
        let step = self.progress.begin(&format!("{}: all memory local", program.name));
        let (mut footprint, mut looked) = (0, Instant::now());
        let running = Running::start(program.name, &mut working_set.enter(&program.command()), recorded.clone())?;
        let (messages, process) = (running.messages.clone(), running.id());
        let finished = running.wait(PROGRAM_DEADLINE, &self.shop.interrupt, || {
            if looked.elapsed() >= working_set.interval() {
                footprint = footprint.max(working_set.now(process).0);
                looked = Instant::now();
            }
            step.tick();
        })?;
        check(program.name, finished.status, &messages.last_line())?;
        recorded.finish()?;
        step.end(&format!("working set {}", spillway_workloads::size::format_bytes(footprint)));
        if footprint < MIB {
            return Err(HarnessError::failed(program.name, "it ended before its working set could be seen"));
        }
        let footprint = with_slack(Size(footprint));
        let served = Served::find(&messages.text());
        Ok(AllLocal { footprint, seconds: finished.elapsed.as_secs_f64(), served, output })
    }

    /// Runs it with `local` in local memory (`percent` of its working set) and the rest with the donors, one of the
    /// two ways.
    pub fn lent(
        &mut self,
        via: Via,
        program: &DemoProgram,
        reference: &AllLocal,
        (percent, local): (u64, Size),
        kill: Kill,
    ) -> Result<Lent, HarnessError> {
        let directory = self.shop.directory.path();
        let storage = Storage {
            donors: self.donors.iter().map(|donor| donor.address.clone()).collect(),
            redundancy: "disk".to_owned(),
            backing: Some(directory.join("backing")),
            slab_size: None,
            transport: None,
            mapping: None,
            front_end: None,
            keep_awake: None,
            lend: Some(Size(reference.footprint.0 * 2 + 256 * MIB)),
            prefetch: None,
        };
        let stats = directory.join("stats.json");
        let command = {
            let product = self.shop.product()?;
            product.run_via(via, None, &local.to_string(), &storage, &stats, &program.command())
        };
        let way = match via {
            Via::Swap => "over the swap device",
            Via::Pager => "by the pager",
        };
        let title = format!("{}: {percent} % local, {way}", program.name);
        let latency = (via == Via::Swap).then(|| FaultLatency::start(&self.shop.interrupt));
        let (killed, wrong_bytes, waits, served) =
            self.run_and_kill(command, program, reference, (&title, local), kill, latency)?;
        let (report, volume) = read_run(&stats)?;
        if killed {
            self.donors.remove(0);
            self.add_donor()?;
        }
        let (seconds, pages_in) = (report.wall_seconds, volume.traffic.pages_in);
        Ok(Lent { seconds, pages_in, waits, wrong_bytes, donor_killed: killed, served })
    }

    fn run_and_kill(
        &mut self,
        mut command: Command,
        program: &DemoProgram,
        reference: &AllLocal,
        (title, local): (&str, Size),
        kill: Kill,
        mut latency: Option<FaultLatency>,
    ) -> Result<(bool, u64, Waits, Option<Served>), HarnessError> {
        let output = Output::compare(&reference.output)?;
        let step = self.progress.begin(title);
        let running = Running::start(program.name, &mut command, output.clone())?;
        let messages = running.messages.clone();
        let (mut killed, donors) = (false, &mut self.donors);
        let finished = running.wait(PROGRAM_DEADLINE, &self.shop.interrupt, || {
            if kill == Kill::InTheMiddle && !killed && is_the_middle(step.swapped(), reference.footprint, local) {
                donors[0].running.kill();
                killed = true;
                self.progress.note("one of the donors was killed (SIGKILL)");
            }
            latency.iter_mut().for_each(FaultLatency::look);
            step.tick();
        })?;
        check(program.name, finished.status, &messages.last_line())?;
        let wrong_bytes = output.finish()?;
        step.end(if wrong_bytes == 0 { "output exact" } else { "output WRONG" });
        let waits = latency.map(FaultLatency::finish).unwrap_or_default();
        Ok((killed, wrong_bytes, waits, Served::find(&messages.text())))
    }

    /// Runs it with the same limit over disk swap; not much longer than `patience`.
    pub fn over_disk(
        &mut self,
        program: &DemoProgram,
        reference: &AllLocal,
        (percent, local): (u64, Size),
        patience: Duration,
    ) -> Result<Disk, HarnessError> {
        let interrupt = &self.shop.interrupt;
        let file = Subject::DiskFile.attach(self.shop, Size(reference.footprint.0 * 2 + 64 * MIB), None)?;
        let _swap = SwapArea::on(&file.path, interrupt)?;
        let group = MemoryGroup::create(Some(local.0))?;
        let output = Output::compare(&reference.output)?;
        let step = self.progress.begin(&format!("{}: {percent} % local, over disk swap", program.name));
        let running = Running::start(program.name, &mut group.enter(&program.command()), output)?;
        let messages = running.messages.clone();
        let limit = patience.mul_f64(DISK_PATIENCE).max(Duration::from_secs(self.scale.disk_seconds_min));
        match running.wait(limit, interrupt, || step.tick()) {
            Ok(finished) => {
                check(program.name, finished.status, &messages.last_line())?;
                step.end("");
                Ok(Disk::Took(finished.elapsed.as_secs_f64(), Served::find(&messages.text())))
            }
            Err(HarnessError::TimedOut { .. }) => {
                step.end("ended early");
                Ok(Disk::LongerThan(limit.as_secs_f64()))
            }
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::studies::tests::context;

    #[test]
    fn the_middle_is_when_the_overflow_was_paged_out() {
        let swapped = |pages_out| SwapCount { pages_in: 0, pages_out };
        let (footprint, local) = (Size(100 * PAGE_SIZE_BYTES), Size(60 * PAGE_SIZE_BYTES));
        assert!(!is_the_middle(swapped(39), footprint, local));
        assert!(is_the_middle(swapped(40), footprint, local));
        assert!(!is_the_middle(swapped(0), local, footprint), "a run that fits has no middle");
    }

    #[test]
    fn a_failing_program_is_told_with_its_message() {
        let status = Command::new("sh").args(["-c", "exit 9"]).status().unwrap();
        let error = check("sort", status, "out of memory").unwrap_err().to_string();
        assert!(error.contains("sort") && error.contains("out of memory") && error.contains('9'), "{error}");
    }

    #[test]
    fn without_the_product_no_donor_starts() {
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        let context = context(directory.path(), 1);
        let progress = Progress::on_stderr();
        assert!(matches!(Trials::start(&context.shop, Scale::QUICK, &progress, 3), Err(HarnessError::Missing(_))));
    }
}
