//! One subject's turn, inside the guest: requests to the raw device, then a program that swaps to it.
//!
//! Its numbers are those of one round of a [`StudyResult`]; what failed is among what was left out, so that a trial
//! tells what it could measure before.

use std::time::Duration;

use super::{DEPTHS, PAGE_CLUSTERS, PHASES, RANDOM, SIDES, cost_case, page_in_case, request_case, swap_case};
use crate::harness::HarnessError;
use crate::harness::fio::{self, Job, Length};
use crate::harness::memory_group::MemoryGroup;
use crate::harness::subject::Workshop;
use crate::harness::subject::{Attached, Subject};
use crate::harness::swap_area::SwapArea;
use crate::machine::Machine;
use crate::result::{CPU_SECONDS_PER_GIB, MICROSECONDS, StudyResult};
use crate::studies::Context;
use crate::studies::program_run::{run_workload, workload_command};
use spillway_workloads::size::{GIB, MIB, Size};

/// The device is so many times the working set. A swap area more than half full gives a page's room back when the
/// page is read, which makes every page-in a page-out as well (`vm_swap_full` in the kernel's mm/swap.h).
const DEVICE_SHARE: u64 = 4;

/// The program may hold this part of its working set,
const LIMIT_SHARE: u64 = 2;

/// and what it has besides: its own code, which it would else read from the host again and again, and page tables.
const PROGRAM_BYTES: u64 = 4 * MIB;

/// What a trial does.
#[derive(Clone, Copy, Debug)]
pub struct Trial {
    /// With which device.
    pub subject: Subject,
    /// The program's working set.
    pub size: Size,
    /// How long requests are made to the device at each depth.
    pub time: Duration,
}

impl Trial {
    /// A full or quick one.
    pub fn of(context: &Context, subject: Subject) -> Self {
        let (size, milliseconds) = context.choose((16, 1500), (8, 500));
        Self { subject, size: Size(size * MIB), time: Duration::from_millis(milliseconds) }
    }

    /// Its result without numbers yet.
    pub fn empty(&self) -> StudyResult {
        StudyResult::new("guest-trial", self.subject.name(), false, Machine::here())
    }

    /// Sets how far the kernel reads ahead. The machine was made for this and ends with it.
    pub fn set_page_cluster(&self, page_cluster: u32) -> Result<(), HarnessError> {
        let what = HarnessError::system("setting the guest's page-cluster");
        std::fs::write("/proc/sys/vm/page-cluster", page_cluster.to_string()).map_err(what)
    }

    /// The device's size.
    pub fn device_size(&self) -> Size {
        Size(self.size.0 * DEVICE_SHARE)
    }

    /// The program's limit.
    pub fn limit_bytes(&self) -> u64 {
        self.size.0 / LIMIT_SHARE + PROGRAM_BYTES
    }

    /// Builds the device, measures, takes it apart.
    pub fn run(&self, shop: &Workshop) -> StudyResult {
        let mut result = self.empty();
        if let Err(error) = self.measure(shop, &mut result) {
            result.skip(self.subject.name(), &error.to_string());
        }
        result
    }

    fn measure(&self, shop: &Workshop, result: &mut StudyResult) -> Result<(), HarnessError> {
        let device = self.subject.attach(shop, self.device_size(), None)?;
        let measured = self
            .requests(shop, &device, result)
            .and_then(|()| PAGE_CLUSTERS.iter().try_for_each(|cluster| self.swap(shop, &device, *cluster, result)));
        measured.and(device.detach())
    }

    fn requests(&self, shop: &Workshop, device: &Attached, result: &mut StudyResult) -> Result<(), HarnessError> {
        fio::fill(&device.path, self.size, &shop.interrupt)?;
        for depth in DEPTHS {
            let job = Job { pattern: "randread", block_bytes: 4096, depth };
            let before = device.cpu_seconds(shop)?;
            let found = job.run(&device.path, self.size, Length::Time(self.time), None, &shop.interrupt);
            let found = found.map_err(|error| device.explain(shop, error))?;
            let after = device.cpu_seconds(shop)?;
            for (number, value) in [("p50", found.p50_us), ("p99", found.p99_us)] {
                result.record(0, &request_case(depth, number), self.subject.name(), MICROSECONDS, value);
            }
            let gibibytes = found.mib_per_second * self.time.as_secs_f64() * MIB as f64 / GIB as f64;
            for (side, before, after) in [(SIDES[0], before.0, after.0), (SIDES[1], before.1, after.1)] {
                if let (Some(before), Some(after)) = (before, after) {
                    let (case, cost) = (cost_case(depth, side), (after - before) / gibibytes);
                    result.record(0, &case, self.subject.name(), CPU_SECONDS_PER_GIB, cost);
                }
            }
        }
        Ok(())
    }

    fn swap(
        &self,
        shop: &Workshop,
        device: &Attached,
        page_cluster: u32,
        result: &mut StudyResult,
    ) -> Result<(), HarnessError> {
        self.set_page_cluster(page_cluster)?;
        let _swap = SwapArea::on(&device.path, &shop.interrupt)?;
        let group = MemoryGroup::strict(self.limit_bytes())?;
        let command = workload_command("visit", self.size)?;
        let report = run_workload("visit", &mut group.enter(&command), &shop.interrupt);
        let report = report.map_err(|error| device.explain(shop, error))?;
        for phase in PHASES {
            let found = report.phases.iter().find(|found| found.phase == phase);
            let found = found.ok_or_else(|| HarnessError::failed("visit", format!("it has no phase '{phase}'")))?;
            result.record(0, &swap_case(phase, page_cluster), self.subject.name(), MICROSECONDS, found.us_per_page);
            if let Some(page_ins) = found.page_ins.filter(|_| phase == RANDOM) {
                for (number, value) in [("p50", page_ins.p50_us), ("p99", page_ins.p99_us)] {
                    let case = page_in_case(page_cluster, number);
                    result.record(0, &case, self.subject.name(), MICROSECONDS, value);
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::studies::guest::page_in;
    use crate::studies::tests::context;

    #[test]
    fn half_of_the_working_set_does_not_fit_and_a_quarter_of_the_device_holds_it() {
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        for subject in Subject::STOCK {
            let trial = Trial::of(&context(directory.path(), 1), subject);
            assert_eq!(trial.limit_bytes() - PROGRAM_BYTES, trial.size.0 / 2);
            assert!(trial.limit_bytes() <= trial.size.0, "{trial:?}");
            assert_eq!(trial.device_size().0, trial.size.0 * 4);
        }
    }

    #[test]
    fn a_device_that_cannot_be_had_is_left_out_with_its_reason() {
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        let context = context(directory.path(), 1);
        let trial = Trial::of(&context, Subject::Ublk);
        for result in [trial.run(&context.shop), page_in::run(&trial, &context.shop)] {
            assert!(result.measures.is_empty());
            assert_eq!(result.skipped.len(), 1, "{:?}", result.skipped);
        }
    }
}
