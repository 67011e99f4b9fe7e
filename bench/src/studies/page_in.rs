//! The life of a page-in: where the time between a program's fault and its next instruction goes, stage by stage,
//! from the kernel's own trace (compare Leap's figure of the same name, ATC '20: 34 us of 38 were spent above the
//! network).
//!
//! The program is the workload `touch`: a random page, then a system call, which marks the fault's end. Stages are
//! taken from events that every front end causes: the fault, the bio, the request's start, the I/O thread's system
//! calls, the request's end, the switch back to the program. Tracing itself costs each stage a few tenths of a
//! microsecond.
//!
//! [`Assembler`] turns events into lives and does no I/O.

use std::path::Path;

use spillway_workloads::size::{MIB, Size};

use super::pinning::{Pinning, SERVER_CPU};
use super::program_run::workload_command;
use super::{Context, Study};
use crate::harness::HarnessError;
use crate::harness::interrupt::Interrupt;
use crate::harness::memory_group::MemoryGroup;
use crate::harness::process::{Collected, Running};
use crate::harness::spillway::pinned;
use crate::harness::subject::{Subject, Workshop};
use crate::harness::swap_area::SwapArea;
use crate::harness::trace::{TraceEvent, TraceSession, device_number};
use crate::limits::PROGRAM_DEADLINE;
use crate::plot::stages::StageChart;
use crate::result::{MICROSECONDS, StudyResult};
use crate::statistics::Summary;

const SUBJECTS: [Subject; 2] = [Subject::SpillwayShm, Subject::SpillwayTcp];

/// The stages, in the order of time.
pub const STAGES: [&str; 7] = [
    "fault, until the kernel asks the device",
    "block layer",
    "driver, until our thread has it",
    "our thread: engine, fabric, donor",
    "driver, until the request is done",
    "until the program runs again",
    "mapping the page, back to the program",
];

/// The case of the whole.
const WHOLE: &str = "whole page-in";

/// Numbers of system calls on x86-64 and, where they differ, none: by which an I/O thread takes a request or answers
/// one. read, readv, recvfrom, recvmsg, io_uring_enter; write, writev, sendto, sendmsg, io_uring_enter.
const ARRIVALS: [&str; 5] = ["0", "19", "45", "47", "426"];
const ANSWERS: [&str; 5] = ["1", "20", "44", "46", "426"];

/// The study of one page-in.
#[derive(Clone, Copy, Debug)]
pub struct PageInStudy;

impl Study for PageInStudy {
    fn name(&self) -> &'static str {
        "page-in"
    }

    fn title(&self) -> &'static str {
        "the life of a page-in, stage by stage"
    }

    fn rounds(&self) -> usize {
        2
    }

    fn seconds_per_round(&self) -> (u64, u64) {
        (15, 8)
    }

    fn run(&self, context: &Context, result: &mut StudyResult) -> Result<(), HarnessError> {
        let size = Size(context.choose(64, 16) * MIB);
        let pinnings = Pinning::possible(result.machine.cpus);
        context.interleave_devices(result, &SUBJECTS, |round, subject, result| {
            pinnings.iter().try_for_each(|pinning| {
                let lives = trace(context, subject, size, *pinning)?;
                record(result, round, &format!("{}, {}", subject.name(), pinning.name()), &lives)
            })
        })
    }

    fn plots(&self, result: &StudyResult) -> Vec<(String, String)> {
        vec![("page-in-life".to_owned(), life_chart(result))]
    }
}

/// A bar for each subject, with a part for each stage.
pub fn life_chart(result: &StudyResult) -> String {
    let mut subjects: Vec<&str> = result.measures.iter().map(|measure| measure.subject.as_str()).collect();
    subjects.sort_unstable();
    subjects.dedup();
    let stages = |subject: &str| STAGES.map(|stage| result.median(stage, subject).unwrap_or(0.0)).to_vec();
    let chart = StageChart {
        title: "The life of a page-in (median microseconds)".to_owned(),
        stages: STAGES.map(str::to_owned).to_vec(),
        bars: subjects.iter().map(|subject| ((*subject).to_owned(), stages(subject))).collect(),
    };
    chart.svg()
}

/// The times of one page-in, in microseconds, by stage.
pub type Life = [f64; STAGES.len()];

/// Notes the medians of `lives`.
pub fn record(result: &mut StudyResult, round: usize, subject: &str, lives: &[Life]) -> Result<(), HarnessError> {
    let median = |values: Vec<f64>| Summary::of(&values).map(|summary| summary.median);
    let whole = median(lives.iter().map(|life| life.iter().sum()).collect());
    let whole = whole.ok_or_else(|| HarnessError::failed("tracing", "no whole page-in was seen"))?;
    result.record(round, WHOLE, subject, MICROSECONDS, whole);
    for (index, stage) in STAGES.iter().enumerate() {
        if let Some(sample) = median(lives.iter().map(|life| life[index]).collect()) {
            result.record(round, stage, subject, MICROSECONDS, sample);
        }
    }
    Ok(())
}

fn trace(context: &Context, subject: Subject, size: Size, pinning: Pinning) -> Result<Vec<Life>, HarnessError> {
    let device = subject.attach(&context.shop, Size(size.0 * 2), Some(SERVER_CPU))?;
    let threads = io_threads(&context.shop, device.device.as_deref().unwrap_or_default())?;
    let group = MemoryGroup::create(Some(size.0 / 2))?;
    trace_touch(&device.path, &Servers { threads, by_ring: false }, size, &group, pinning, &context.shop.interrupt)
}

/// Who serves a device.
#[derive(Clone, Debug)]
pub struct Servers {
    /// The threads.
    pub threads: Vec<u32>,
    /// Whether the kernel puts requests into a ring that they share (ublk): then they have one as they wake, without
    /// a call.
    pub by_ring: bool,
}

/// The lives of the page-ins of a program of `size` in `group`, over a swap area on `device` that `servers` serve.
pub fn trace_touch(
    device: &Path,
    servers: &Servers,
    size: Size,
    group: &MemoryGroup,
    pinning: Pinning,
    interrupt: &Interrupt,
) -> Result<Vec<Life>, HarnessError> {
    let _swap = SwapArea::on(device, interrupt)?;
    let plain = workload_command("touch", size)?;
    let mut command = pinned(plain.get_program().as_ref(), Some(pinning.client_cpu()));
    command.args(plain.get_args());
    let running = Running::start("touch", &mut group.enter(&command), Collected::default())?;
    let program = running.id().as_raw_nonzero().get() as u32;
    let session = TraceSession::start(&events(program, &servers.threads, &device_number(device)?), interrupt)?;
    let messages = running.messages.clone();
    let finished = running.wait(PROGRAM_DEADLINE, interrupt, || {})?;
    if !finished.status.success() {
        return Err(HarnessError::failed("touch", messages.last_line()));
    }
    let mut assembler = Assembler::new(program, servers.clone());
    session.finish()?.iter().for_each(|event| assembler.take(event));
    Ok(assembler.lives)
}

/// What is recorded, of whom.
fn events(program: u32, threads: &[u32], device: &str) -> Vec<(&'static str, String)> {
    let any = |threads: &[u32]| {
        threads.iter().map(|thread| format!("common_pid == {thread}")).collect::<Vec<_>>().join(" || ")
    };
    let ours = any(&[&[program], threads].concat());
    vec![
        ("exceptions/page_fault_user", any(&[program])),
        ("block/block_bio_queue", format!("dev == {device}")),
        ("block/block_rq_issue", format!("dev == {device}")),
        ("block/block_rq_complete", format!("dev == {device}")),
        ("raw_syscalls/sys_enter", ours),
        ("raw_syscalls/sys_exit", any(threads)),
        ("sched/sched_switch", format!("next_pid == {program}")),
    ]
}

/// The threads of the device's process that serve requests.
pub fn io_threads(shop: &Workshop, device: &str) -> Result<Vec<u32>, HarnessError> {
    let (_, process) = shop.product()?.device_with_process(device, &shop.interrupt)?;
    let process =
        process.map(u32::cast_signed).ok_or_else(|| HarnessError::failed("spillway status", "it names no process"))?;
    // The process that is named keeps another one, which serves.
    let found: Vec<u32> = family(process).into_iter().flat_map(|process| threads_named(process, "io-")).collect();
    if found.is_empty() {
        return Err(HarnessError::failed(
            "finding the I/O threads",
            format!("process {process} and its children have none"),
        ));
    }
    Ok(found)
}

/// A process and its children.
fn family(process: i32) -> Vec<i32> {
    let parent = |pid: i32| {
        let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        text.lines().find_map(|line| line.strip_prefix("PPid:")?.trim().parse::<i32>().ok())
    };
    let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    std::iter::once(process).chain(pids.filter(|pid| parent(*pid) == Some(process))).collect()
}

/// Threads of a process whose names begin so; none when it has ended.
fn threads_named(process: i32, prefix: &str) -> Vec<u32> {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let has_name = |path: &Path| std::fs::read_to_string(path.join("comm")).is_ok_and(|name| name.starts_with(prefix));
    let found = tasks.map(|entry| entry.path()).filter(|path| has_name(path));
    found.filter_map(|path| path.file_name()?.to_str()?.parse().ok()).collect()
}

/// Turns events, in the order of time, into lives of page-ins.
#[derive(Debug)]
pub struct Assembler {
    program: u32,
    servers: Servers,
    /// When each stage of the current fault began; the first is the fault.
    marks: Vec<f64>,
    /// Every whole page-in so far.
    pub lives: Vec<Life>,
}

impl Assembler {
    /// For the faults of `program`, served by `servers`.
    pub fn new(program: u32, servers: Servers) -> Self {
        Self { program, servers, marks: Vec::new(), lives: Vec::new() }
    }

    /// Takes the next event.
    pub fn take(&mut self, event: &TraceEvent) {
        let by_program = event.thread == self.program;
        let by_thread = self.servers.threads.contains(&event.thread);
        match (event.name.as_str(), self.marks.len()) {
            ("page_fault_user", _) if by_program => self.marks = vec![event.time_us],
            ("block_bio_queue", 1) if by_program && is_read(event) => self.marks.push(event.time_us),
            ("block_rq_issue", 2) if is_read(event) => self.marks.push(event.time_us),
            // What the thread then exchanges with a donor lies between its first arrival and its last answer.
            ("sys_exit", 3) if by_thread && is_arrival(event, self.servers.by_ring) => self.marks.push(event.time_us),
            ("sys_enter", 4 | 5) if by_thread && is_answer(event) => {
                self.marks.truncate(4);
                self.marks.push(event.time_us);
            }
            ("block_rq_complete", 5) if is_read(event) => self.marks.push(event.time_us),
            ("sched_switch", 6) => self.marks.push(event.time_us),
            ("sys_enter", _) if by_program => self.end(event.time_us),
            _ => {}
        }
    }

    fn end(&mut self, time_us: f64) {
        self.marks.push(time_us);
        if self.marks.len() == STAGES.len() + 1 {
            let mut life = Life::default();
            life.iter_mut().zip(self.marks.windows(2)).for_each(|(stage, marks)| *stage = marks[1] - marks[0]);
            self.lives.push(life);
        }
        self.marks.clear();
    }
}

/// `block_bio_queue: 7,0 R 4096 + 8 [touch]`: the second word holds R for reads.
fn is_read(event: &TraceEvent) -> bool {
    event.details.split(' ').nth(1).is_some_and(|flags| flags.starts_with('R'))
}

/// epoll_wait and epoll_pwait: on their way out the kernel puts requests into the ring, and the call says that it was
/// interrupted.
const WAKES: [&str; 2] = ["232", "281"];

/// io_uring_enter: a look into the ring does not count what it brings.
const RING_ENTER: &str = "426";

/// `sys_exit: NR 0 = 40`: a call that brings requests, and brought something.
fn is_arrival(event: &TraceEvent, by_ring: bool) -> bool {
    let words: Vec<&str> = event.details.split(' ').collect();
    let ["NR", number, "=", result] = words[..] else { return false };
    if by_ring {
        return WAKES.contains(&number) || number == RING_ENTER;
    }
    ARRIVALS.contains(&number) && result.parse::<i64>().is_ok_and(|result| result > 0)
}

/// `sys_enter: NR 20 (6, ...)`: a call that answers.
fn is_answer(event: &TraceEvent) -> bool {
    event.details.strip_prefix("NR ").and_then(|rest| rest.split(' ').next()).is_some_and(|nr| ANSWERS.contains(&nr))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROGRAM: u32 = 10;
    const THREAD: u32 = 20;

    fn event(thread: u32, time_us: f64, name: &str, details: &str) -> TraceEvent {
        TraceEvent { thread, time_us, name: name.to_owned(), details: details.to_owned() }
    }

    /// One page-in whose stages take 1, 2, 3... microseconds, beginning at `start`.
    fn page_in(start: f64) -> Vec<TraceEvent> {
        vec![
            event(PROGRAM, start, "page_fault_user", "address=0x1"),
            event(PROGRAM, start + 1.0, "block_bio_queue", "7,0 R 8 + 8 [x]"),
            event(PROGRAM, start + 3.0, "block_rq_issue", "7,0 R 4096 () 8 + 8 none,0,0 [x]"),
            event(THREAD, start + 6.0, "sys_exit", "NR 0 = 80"),
            event(THREAD, start + 10.0, "sys_enter", "NR 20 (6, 7f, 2, 0, 0, 0)"),
            event(30, start + 15.0, "block_rq_complete", "7,0 R () 8 + 8 none,0,0 [0]"),
            event(0, start + 21.0, "sched_switch", "next_pid=10"),
            event(PROGRAM, start + 28.0, "sys_enter", "NR 110 (0)"),
        ]
    }

    fn lives(events: &[TraceEvent]) -> Vec<Life> {
        served(events, false)
    }

    fn served(events: &[TraceEvent], by_ring: bool) -> Vec<Life> {
        let mut assembler = Assembler::new(PROGRAM, Servers { threads: vec![THREAD], by_ring });
        events.iter().for_each(|event| assembler.take(event));
        assembler.lives
    }

    #[test]
    fn stages_are_what_lies_between_events() {
        let found = lives(&[page_in(100.0), page_in(200.0)].concat());
        assert_eq!(found, [[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]; 2]);
    }

    #[test]
    fn a_missing_event_leaves_the_page_in_out() {
        for missing in 0..8 {
            let mut events = page_in(100.0);
            events.remove(missing);
            assert!(lives(&events).is_empty(), "without event {missing}");
            let found = lives(&[events, page_in(200.0)].concat());
            assert_eq!(found.len(), 1, "the next one counts, without event {missing}");
        }
    }

    #[test]
    fn empty_handed_looks_and_others_do_not_count() {
        let mut events = page_in(100.0);
        events.insert(3, event(THREAD, 104.0, "sys_exit", "NR 0 = -11"));
        events.insert(4, event(THREAD, 104.5, "sys_exit", "NR 232 = 1"));
        events.insert(5, event(99, 105.0, "sys_exit", "NR 0 = 80"));
        events.insert(6, event(PROGRAM, 105.5, "block_bio_queue", "7,0 W 99 + 8 [x]"));
        assert_eq!(lives(&events), [[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]]);
    }

    #[test]
    fn a_ring_has_the_request_when_its_thread_wakes() {
        let mut events = page_in(100.0);
        events[3] = event(THREAD, 106.0, "sys_exit", "NR 281 = -4");
        events[4] = event(THREAD, 110.0, "sys_enter", "NR 426 (5, 1, 0, 0, 0, 0)");
        assert_eq!(served(&events, true), [[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]]);
        assert!(lives(&events).is_empty(), "elsewhere a thread that wakes has nothing yet");
        // A look into the ring before the answer is the thread's own time.
        events.insert(4, event(THREAD, 107.0, "sys_enter", "NR 426 (5, 0, 0, 1, 0, 0)"));
        events.insert(5, event(THREAD, 108.0, "sys_exit", "NR 426 = 0"));
        assert_eq!(served(&events, true), [[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]]);
    }

    #[test]
    fn an_exchange_with_a_donor_is_the_threads_own_time() {
        let mut events = page_in(100.0);
        events.insert(4, event(THREAD, 107.0, "sys_enter", "NR 46 (9)"));
        events.insert(5, event(THREAD, 109.0, "sys_exit", "NR 47 = 4120"));
        assert_eq!(lives(&events), [[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]]);
    }

    #[test]
    fn medians_and_a_picture_come_of_lives() {
        let mut result = StudyResult::new("page-in", "", true, crate::machine::Machine::default());
        record(&mut result, 0, "spillway shm, same CPU", &lives(&page_in(1.0))).unwrap();
        assert_eq!(result.median(WHOLE, "spillway shm, same CPU"), Some(28.0));
        let plots = PageInStudy.plots(&result);
        assert!(plots[0].1.contains("our thread") && plots[0].1.contains("spillway shm"));
        assert!(record(&mut result, 0, "x", &[]).is_err());
    }

    #[test]
    fn threads_are_found_in_a_process_and_in_its_children() {
        let own = std::process::id() as i32;
        let (leave, wait) = std::sync::mpsc::channel::<()>();
        let (began, is_named) = std::sync::mpsc::channel();
        let thread = std::thread::Builder::new().name("io-test".to_owned()).spawn(move || {
            began.send(()).unwrap();
            wait.recv()
        });
        // A thread takes its name when it runs first.
        is_named.recv().unwrap();
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let family = family(own);
        let found = (family.contains(&(child.id() as i32)), family.contains(&own), threads_named(own, "io-test").len());
        child.kill().unwrap();
        child.wait().unwrap();
        drop(leave);
        assert!(thread.unwrap().join().unwrap().is_err());
        assert_eq!(found, (true, true, 1));
        assert!(threads_named(i32::MAX, "").is_empty());
    }

    #[test]
    fn filters_name_everyone_once() {
        let events = events(1, &[2, 3], "7340032");
        let (_, filter) = events.iter().find(|(name, _)| *name == "raw_syscalls/sys_enter").unwrap();
        assert_eq!(filter, "common_pid == 1 || common_pid == 2 || common_pid == 3");
        assert_eq!(device_number(Path::new("/dev/null")).unwrap(), ((1 << 20) | 3).to_string());
    }
}
