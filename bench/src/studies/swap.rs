//! What a page costs when the kernel swaps to the device: a program fills twice its local memory and visits it, in
//! sequence and at random, under a memory cgroup.
//!
//! The numbers are those of the program: time over pages of each phase, the kernel's own work and read-ahead included.

use super::pinning::{Pinning, SERVER_CPU};
use super::program_run::run_workload;
use super::program_run::workload_command;
use super::{Context, Study};
use crate::harness::HarnessError;
use crate::harness::memory_group::MemoryGroup;
use crate::harness::spillway::pinned;
use crate::harness::subject::Subject;
use crate::harness::swap_area::SwapArea;
use crate::result::{Better, MICROSECONDS, StudyResult};
use spillway_workloads::size::{MIB, Size};

const SUBJECTS: [Subject; 6] = [
    Subject::SpillwayShm,
    Subject::SpillwayTcp,
    Subject::SpillwayLocal,
    Subject::Nbdkit,
    Subject::DiskFile,
    Subject::Zram,
];

/// The workloads, and what their phases are called here.
const WORKLOADS: [(&str, &[(&str, &str)]); 2] = [
    ("fill-sequential", &[("fill", "swap-out"), ("read", "sequential swap-in")]),
    ("fill-random", &[("read", "random swap-in")]),
];

/// A case without anything below the kernel, to tell what no device can be faster than: pages that zram stores by
/// noting one word.
const KERNEL_ALONE: &str = "kernel alone";
/// The workload of it, which is the first one's but for its pages.
const ALIKE: (&str, &[(&str, &str)]) = ("fill-alike", WORKLOADS[0].1);

/// The study of swapping.
#[derive(Clone, Copy, Debug)]
pub struct SwapStudy;

impl Study for SwapStudy {
    fn name(&self) -> &'static str {
        "swap"
    }

    fn title(&self) -> &'static str {
        "a page swapped out and in"
    }

    fn seconds_per_round(&self) -> (u64, u64) {
        (75, 35)
    }

    fn run(&self, context: &Context, result: &mut StudyResult) -> Result<(), HarnessError> {
        assert!(SUBJECTS.iter().all(|subject| subject.may_hold_swap()), "swap goes to what cannot stop the machine");
        let pinnings = Pinning::possible(result.machine.cpus);
        let size = Size(context.choose(96, 32) * MIB);
        context.interleave_devices(result, &SUBJECTS, |round, subject, result| {
            pinnings.iter().try_for_each(|pinning| measure(context, result, (round, subject), size, *pinning))
        })?;
        goals(result, pinnings);
        Ok(())
    }
}

/// Fills and visits memory over `subject`.
pub fn measure(
    context: &Context,
    result: &mut StudyResult,
    (round, subject): (usize, Subject),
    size: Size,
    pinning: Pinning,
) -> Result<(), HarnessError> {
    let interrupt = &context.shop.interrupt;
    let device = subject.attach(&context.shop, Size(size.0 * 2), Some(SERVER_CPU))?;
    let _swap = SwapArea::on(&device.path, interrupt)?;
    let alike = (subject == Subject::Zram).then_some((KERNEL_ALONE, ALIKE));
    for (told, (name, phases)) in WORKLOADS.map(|workload| (subject.name(), workload)).into_iter().chain(alike) {
        let group = MemoryGroup::create(Some(size.0 / 2))?;
        let plain = workload_command(name, size)?;
        let mut command = pinned(plain.get_program().as_ref(), Some(pinning.client_cpu()));
        command.args(plain.get_args());
        let report = run_workload(name, &mut group.enter(&command), interrupt)?;
        for (phase, title) in phases {
            let found = report.phases.iter().find(|found| found.phase == *phase);
            let found = found.ok_or_else(|| HarnessError::failed(name, format!("it has no phase '{phase}'")))?;
            let case = format!("{title}, {}", pinning.name());
            result.record(round, &case, told, MICROSECONDS, found.us_per_page);
        }
    }
    Ok(())
}

fn goals(result: &mut StudyResult, pinnings: &[Pinning]) {
    let (shm, local) = (Subject::SpillwayShm.name(), Subject::SpillwayLocal.name());
    for pinning in pinnings {
        for (_, title) in WORKLOADS.iter().flat_map(|(_, phases)| *phases) {
            let case = format!("{title}, {}", pinning.name());
            for (one, other) in
                [(Subject::SpillwayTcp, Subject::SpillwayLocal), (Subject::DiskFile, Subject::SpillwayShm)]
            {
                result.compare(&case, one.name(), other.name());
            }
            result.compare(&case, shm, Subject::Zram.name());
            result.compare(&case, shm, KERNEL_ALONE);
            result.compare(&case, Subject::Nbdkit.name(), KERNEL_ALONE);
            result.goal("shm within 1.5x of local memory", &case, shm, local, 1.5, Better::Lower);
            result.goal("shm at least 2x faster than nbdkit", &case, Subject::Nbdkit.name(), shm, 2.0, Better::Higher);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;

    #[test]
    fn goals_cover_every_case() {
        let mut result = StudyResult::new("swap", "", true, Machine::default());
        result.record(0, "random swap-in, same CPU", "spillway shm", MICROSECONDS, 10.0);
        result.record(0, "random swap-in, same CPU", "nbdkit", MICROSECONDS, 30.0);
        goals(&mut result, Pinning::possible(2));
        assert_eq!(result.goals.len(), 2 * 3 * 2);
        assert_eq!(result.goals.iter().filter(|goal| goal.met == Some(true)).count(), 1);
    }

    #[test]
    fn the_phases_are_those_of_the_workloads() {
        use spillway_workloads::{WorkloadSettings, run};
        for (name, phases) in WORKLOADS {
            let settings = WorkloadSettings { size: Size(256 * 1024), seed: 1, threads: 1 };
            let report = run(name, &settings).unwrap();
            for (phase, _) in phases {
                assert!(report.phases.iter().any(|found| found.phase == *phase), "{name}: {phase}");
            }
        }
    }
}
