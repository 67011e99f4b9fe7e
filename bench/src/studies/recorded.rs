//! Which page leaves and which comes along, on traces of real programs, recorded in the same run (`crate::recording`).
//!
//! The cases are those of the study `replacement`, and with `ahead` in their names those of the study `prefetching`.
//! Recording takes a minute or two a program.

use super::{Context, Study, prefetching, replacement};
use crate::harness::HarnessError;
use crate::recording::programs::RealProgram;
use crate::replay::traces;
use crate::result::{MEBIBYTES, StudyResult};
use spillway_policy::replay::accesses::Accesses;

/// Pages of 4 KiB.
const PAGES_PER_MEBIBYTE: f64 = 256.0;

/// See the module text.
#[derive(Clone, Copy, Debug)]
pub struct RecordedStudy;

impl Study for RecordedStudy {
    fn name(&self) -> &'static str {
        "recorded"
    }

    fn title(&self) -> &'static str {
        "which page leaves and which comes along, on traces of real programs"
    }

    fn rounds(&self) -> usize {
        1
    }

    fn seconds_per_round(&self) -> (u64, u64) {
        (330, 100)
    }

    fn run(&self, context: &Context, result: &mut StudyResult) -> Result<(), HarnessError> {
        context.shop.interrupt.check()?;
        let (size, shop) = (replacement::trace_size(context), &context.shop);
        // All at once: nothing of this is a time.
        eprintln!("recorded: {}", RealProgram::ALL.map(RealProgram::name).join(", "));
        let recorded = std::thread::scope(|scope| {
            let record = |program: RealProgram| {
                (program, scope.spawn(move || program.record(size, shop.directory.path(), &shop.interrupt)))
            };
            let threads = RealProgram::ALL.map(record);
            threads.map(|(program, thread)| {
                let panicked = |_| Err(HarnessError::failed(program.name(), "its recording panicked"));
                (program.name(), thread.join().unwrap_or_else(panicked))
            })
        });
        for (name, recorder) in recorded {
            context.shop.interrupt.check()?;
            match recorder
                .and_then(|recorder| traces::accesses(&recorder).map_err(|reason| HarnessError::failed(name, reason)))
            {
                Err(error) if error.is_interrupt() => return Err(error),
                Err(error) => result.skip(name, &error.to_string()),
                Ok(accesses) => measure(&accesses, name, result),
            }
        }
        replacement::sum_up(result);
        replacement::judge(result);
        prefetching::judge(result);
        Ok(())
    }
}

fn measure(accesses: &Accesses, program: &str, result: &mut StudyResult) {
    let (touches, pages) = (accesses.as_slice().len(), accesses.pages());
    eprintln!("recorded: {program}: {touches} touches of {pages} pages");
    result.record(0, "pages touched", program, MEBIBYTES, f64::from(pages) / PAGES_PER_MEBIBYTE);
    replacement::measure(accesses, program, result);
    prefetching::measure(accesses, &format!("{program}, ahead"), result);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;
    use crate::replay::patterns::Pattern;
    use crate::replay::traces::Source;
    use crate::size::{MIB, Size};
    use crate::studies::tests::context;

    #[test]
    fn replacement_and_prefetching_do_not_mix() {
        let mut result = StudyResult::new("recorded", "", true, Machine::default());
        let accesses = Source::Pattern(Pattern::Loop).accesses(Size(MIB)).unwrap();
        measure(&accesses, "program", &mut result);
        replacement::sum_up(&mut result);
        prefetching::judge(&mut result);
        assert!(result.median("program L(50): time", "fifo").is_some());
        assert_eq!(result.median("program L(50): time", "stride"), None);
        assert!(result.median("program, ahead L(50): time", "stride").is_some());
        assert_eq!(result.median("geometric mean L(50): time", "stride"), None);
        // Over none, and over Leap in its three forms.
        assert_eq!(result.goals.len(), 4 * replacement::LOCAL_PER_CENT.len());
        assert!(result.goals.iter().all(|goal| goal.met.is_some()));
    }

    #[test]
    fn an_interrupt_ends_it() {
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        let context = context(directory.path(), 1);
        context.shop.interrupt.raise();
        let mut result = StudyResult::new("recorded", "", true, Machine::default());
        assert!(RecordedStudy.run(&context, &mut result).unwrap_err().is_interrupt());
    }
}
