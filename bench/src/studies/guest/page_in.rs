//! The life of a page-in over the front ends of a stock kernel, stage by stage, as [`crate::studies::page_in`] takes
//! it apart on the host.

use std::time::Instant;

use super::trial::Trial;
use super::{merge, run_trial};
use crate::harness::HarnessError;
use crate::harness::guest::{Guest, PROCESSORS};
use crate::harness::memory_group::MemoryGroup;
use crate::harness::subject::Subject;
use crate::harness::subject::Workshop;
use crate::limits::GUEST_STUDY_DEADLINE;
use crate::result::StudyResult;
use crate::studies::page_in::{Servers, io_threads, life_chart, record, trace_touch};
use crate::studies::pinning::{Pinning, SERVER_CPU};
use crate::studies::program_run::own_program;
use crate::studies::{Context, Study};

const SUBJECTS: [Subject; 3] = [Subject::Ublk, Subject::Nbd, Subject::LoopFuse];

/// The study of one page-in in a guest.
#[derive(Clone, Copy, Debug)]
pub struct GuestPageInStudy;

impl Study for GuestPageInStudy {
    fn name(&self) -> &'static str {
        "guest-page-in"
    }

    fn title(&self) -> &'static str {
        "the life of a page-in over ublk and NBD, in a guest"
    }

    fn rounds(&self) -> usize {
        1
    }

    fn seconds_per_round(&self) -> (u64, u64) {
        (45, 25)
    }

    fn run(&self, context: &Context, result: &mut StudyResult) -> Result<(), HarnessError> {
        let mut guest = Guest::new(own_program()?, Instant::now() + GUEST_STUDY_DEADLINE);
        let name = |subject: Subject| subject.name().to_owned();
        context.interleave(result, &SUBJECTS, name, |round, subject, result| {
            let trial = Trial::of(context, subject);
            merge(result, round, run_trial(context, &mut guest, &trial, Some("--page-in"))?);
            Ok(())
        })
    }

    fn plots(&self, result: &StudyResult) -> Vec<(String, String)> {
        vec![("page-in-ublk".to_owned(), life_chart(result))]
    }
}

/// A subject's turn, inside the guest.
pub fn run(trial: &Trial, shop: &Workshop) -> StudyResult {
    let mut result = trial.empty();
    if let Err(error) = measure(trial, shop, &mut result) {
        result.skip(trial.subject.name(), &error.to_string());
    }
    result
}

fn measure(trial: &Trial, shop: &Workshop, result: &mut StudyResult) -> Result<(), HarnessError> {
    let device = trial.subject.attach(shop, trial.device_size(), Some(SERVER_CPU))?;
    trial.set_page_cluster(0)?;
    let threads = io_threads(shop, device.device.as_deref().unwrap_or_default())?;
    let servers = Servers { threads, by_ring: trial.subject == Subject::Ublk };
    let measured = Pinning::possible(PROCESSORS as usize).iter().try_for_each(|pinning| {
        let group = MemoryGroup::strict(trial.limit_bytes())?;
        let lives = trace_touch(&device.path, &servers, trial.size, &group, *pinning, &shop.interrupt)?;
        record(result, 0, &format!("{}, {}", trial.subject.name(), pinning.name()), &lives)
    });
    measured.and(device.detach())
}
