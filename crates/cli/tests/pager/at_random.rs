//! Programs that change their memory at random from many threads, with every word checked.

use std::path::Path;

use crate::both_ways::shares::assert_share;
use crate::both_ways::stress;
use crate::support::soak_seconds;

/// More fault threads than this machine may have CPUs for: what they do to one another is what matters.
#[test]
fn stress_with_several_fault_threads_finds_no_wrong_word() {
    let options = ["--fault-threads", "4", "--transport", "tcp"];
    let Some(statistics) = stress::stress_with(&options, "25%", "8", 3) else { return };
    assert!(statistics["pager"]["faults_helped"].as_u64() > Some(0), "{statistics:#}");
}

/// All of its threads change mappings without a pause, so it is given one where the kernel lets nothing leave else.
#[test]
fn memory_that_moves_to_where_other_memory_was_a_moment_ago_keeps_its_words() {
    let arguments = |_: &Path| vec!["96".into(), soak_seconds(3).to_string(), "8".into()];
    let Some((statistics, _)) = stress::exact("movers", &[], "25%", &arguments) else { return };
    assert_share(&statistics);
}
