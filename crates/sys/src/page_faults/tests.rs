//! Known faults are sampled with their addresses.

use std::process::Command;

use super::*;
use crate::mapping::{Mapping, PAGE_SIZE_BYTES};
use crate::skipping::skip;

/// Counters, or a word about why this machine has none.
fn counters(open: impl FnOnce() -> io::Result<FaultCounters>) -> Option<FaultCounters> {
    match open() {
        Ok(counters) => Some(counters),
        Err(error) => {
            skip(format_args!("samples of page faults (perf_event_open: {error})"));
            None
        }
    }
}

fn drained(counters: &mut FaultCounters) -> Vec<FaultSample> {
    let mut samples = Vec::new();
    assert_eq!(counters.drain(&mut samples), 0, "nothing is lost");
    samples
}

#[test]
fn faults_come_with_their_address_and_in_order() {
    let Some(mut counters) = counters(FaultCounters::of_this_thread) else { return };
    let memory = Mapping::anonymous(64 * PAGE_SIZE_BYTES).unwrap();
    let pages = [3, 50, 7, 20];
    let touch = |page: usize| memory.write(page * PAGE_SIZE_BYTES + 8, b"here");
    touch(60);
    assert!(drained(&mut counters).is_empty(), "minor faults are not asked for yet");
    counters.sample_minor(true).unwrap();
    pages.iter().for_each(|page| touch(*page));
    counters.sample_minor(false).unwrap();
    touch(61);
    let base = memory.address() as u64;
    let inside = base..base + memory.length() as u64;
    let samples: Vec<_> =
        drained(&mut counters).into_iter().filter(|sample| inside.contains(&sample.address)).collect();
    let found: Vec<_> = samples.iter().map(|sample| (sample.address - base) as usize / PAGE_SIZE_BYTES).collect();
    assert_eq!(found, pages);
    let thread = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
    for sample in samples {
        assert_eq!(
            (sample.kind, sample.process, sample.thread),
            (FaultKind::Minor, std::process::id(), thread),
            "{sample:?}"
        );
    }
}

#[test]
fn programs_that_are_started_are_sampled_and_not_their_starter() {
    let Some(mut counters) = counters(FaultCounters::of_programs_started) else { return };
    counters.sample_minor(true).unwrap();
    // A shell that starts another program: both are sampled.
    let child = Command::new("sh").args(["-c", "sh -c 'exit 0'; exit 0"]).spawn().unwrap();
    let pid = child.id();
    assert!(child.wait_with_output().unwrap().status.success());
    counters.sample_minor(false).unwrap();
    let mut samples = drained(&mut counters);
    samples.retain(|sample| sample.process != std::process::id());
    assert!(samples.iter().any(|sample| sample.process == pid), "{samples:?}");
    assert!(samples.iter().any(|sample| sample.process != pid), "its child is sampled too: {samples:?}");
}

#[test]
fn many_samples_go_round_the_ring() {
    let Some(mut counters) = counters(FaultCounters::of_this_thread) else { return };
    counters.sample_minor(true).unwrap();
    let mut count = 0;
    for _ in 0..40 {
        let memory = Mapping::anonymous(512 * PAGE_SIZE_BYTES).unwrap();
        (0..512).for_each(|page| memory.write(page * PAGE_SIZE_BYTES, b"x"));
        let base = memory.address() as u64;
        let inside = base..base + memory.length() as u64;
        // A page may fault twice, where the first fault was interrupted.
        let pages = drained(&mut counters).into_iter().map(|sample| sample.address / PAGE_SIZE_BYTES as u64);
        let pages = pages.filter(|page| inside.contains(&(page * PAGE_SIZE_BYTES as u64)));
        count += pages.collect::<std::collections::BTreeSet<u64>>().len();
    }
    assert!(count == 40 * 512 || is_huge_page_made(count), "{count} pages of {}", 40 * 512);
}

/// Where the kernel makes huge pages by itself, a fault brings many pages.
fn is_huge_page_made(count: usize) -> bool {
    let enabled = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
    count > 0 && enabled.contains("[always]")
}

/// Runs a shell that is done with its own start when `begin` is called, and ends after `end`; gives its number.
///
/// The shell itself fills 100 kB of fresh memory in between. Without that work a shell can do all it has to do
/// without a single fault: it starts programs by vfork, and the kernel maps the neighbours of each page of a file.
fn run_between(join: &str, begin: impl FnOnce(), end: impl FnOnce()) -> u32 {
    use std::io::{BufRead, BufReader, Write};
    use std::process::Stdio;
    let mut command = Command::new("sh");
    command.args(["-c", &format!("{join}; echo; read line; text=$(printf %0100000d 1); exit 0")]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut String::new()).unwrap();
    begin();
    child.stdin.take().unwrap().write_all(b"go\n").unwrap();
    assert!(child.wait().unwrap().success());
    end();
    child.id()
}

#[test]
fn programs_that_run_already_are_sampled_among_all() {
    let Some(mut counters) = counters(FaultCounters::of_all) else { return };
    let switch = |wanted| counters.sample_minor(wanted).unwrap();
    let pid = run_between("true", || switch(true), || switch(false));
    let mut samples = Vec::new();
    // Others fault too, perhaps more than there is room for.
    counters.drain(&mut samples);
    assert!(samples.iter().any(|sample| sample.process == pid), "{} samples", samples.len());
}

#[test]
fn programs_of_a_group_are_sampled_and_no_others() {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    let is_version_two = |line: &&str| line.split(' ').nth(2) == Some("cgroup2");
    let root = mounts.lines().find(is_version_two).and_then(|line| line.split(' ').nth(1));
    let group = root.map(|root| std::path::Path::new(root).join(format!("spillway-faults-{}", std::process::id())));
    let Some(group) = group.filter(|group| std::fs::create_dir(group).is_ok()) else {
        return skip("cgroups of version 2, or root");
    };
    let directory = std::fs::File::open(&group).unwrap();
    if let Some(mut counters) = counters(|| FaultCounters::of_group(directory.as_fd())) {
        let switch = |wanted| counters.sample_minor(wanted).unwrap();
        let join = format!("echo $$ > {}/cgroup.procs", group.display());
        let inside = run_between(&join, || switch(true), || switch(false));
        let outside = run_between("true", || switch(true), || switch(false));
        let samples = drained(&mut counters);
        assert!(samples.iter().any(|sample| sample.process == inside), "{samples:?}");
        assert!(!samples.iter().any(|sample| sample.process == outside || sample.process == std::process::id()));
    }
    std::fs::remove_dir(&group).unwrap();
}
