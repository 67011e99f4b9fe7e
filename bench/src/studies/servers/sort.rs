//! GNU sort of text in memory, in seconds: no server, but the program that other work on remote memory shows.
//!
//! Its buffer is twice the text, so that it needs no temporary file. Its output is compared byte by byte with that of
//! its first run.

use crate::demo::Scale;
use crate::demo::programs::prepare;
use crate::demo::text::Lines;
use crate::harness::HarnessError;
use crate::studies::Context;
use crate::studies::job::Job;
use spillway_workloads::size::{MIB, Size};

/// Its name in results.
pub const NAME: &str = "sort";

/// Text of a full run: several times that of study `programs`.
pub const TEXT: Size = Size(275 * MIB);

/// The sort with so much text.
pub fn sort_job(context: &Context, text: Size) -> Result<Job, HarnessError> {
    let scale = Scale { text, lines: Lines::Paragraphs, ..Scale::FULL };
    Ok(Job::real(NAME, text, &prepare("sort", &context.shop, scale)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::memory_group::MemoryGroup;
    use crate::studies::places::Place;
    use crate::studies::program_run::ProgramRunner;
    use crate::studies::tests::context;

    #[test]
    fn it_sorts_with_all_memory_local() {
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        let context = context(directory.path(), 1);
        let job = match MemoryGroup::create(None).and_then(|_| sort_job(&context, Size(2 * MIB))) {
            Ok(job) => job,
            Err(error) => return spillway_sys::skipping::skip_because(error),
        };
        let mut runner = ProgramRunner::new(&context, "disk");
        for _ in 0..2 {
            assert!(runner.seconds(&job, Place::AllLocal).unwrap() > 0.0);
        }
        assert!(runner.told().is_none());
    }
}
