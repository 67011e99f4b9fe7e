//! Which threads the CPUs worked for between two looks, and how long the CPUs were idle.
//!
//! | group | is |
//! |---|---|
//! | `server` | the program that was started here, with the processes that it starts |
//! | `clients` | this program, and the load generators that it started and that ended meanwhile |
//! | `limit guard` | this program's threads that keep the kernel from killing what is at its limit |
//! | `donors` | processes `spillway donate` |
//! | `spillway NAME` | threads of this name in other processes of the product, and in the server (its evictor) |
//! | `kernel NAME` | kernel threads, such as `kswapd` and `kworker`; what a thread does in a system call is its own |
//! | `others` | all other processes of the machine |
//!
//! Numbers at the end of a thread's name are dropped. The kernel counts in clock ticks, of 10 ms mostly.
//!
//! Invariant: what a process of ours has used is not lost when it ends, as it is then in its parent's count.

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::fs;

use spillway_sys::process_stat::ProcessStat;

use super::usage::numbers_in;

/// The group of the program that is measured.
pub const SERVER: &str = "server";
/// The group of what asks it.
pub const CLIENTS: &str = "clients";
/// The group of processes that lend.
const DONORS: &str = "donors";
/// The group of all that is none of ours.
const OTHERS: &str = "others";
/// The group of threads that keep programs at their limit alive.
const LIMIT_GUARD: &str = "limit guard";

/// What those threads are called.
pub const LIMIT_GUARD_THREAD: &CStr = c"limit-guard";

/// What the product's threads in a program's own process are called before their names.
const IN_PROGRAM: &str = "spillway-";

/// The parent of all kernel threads, `kthreadd`.
const KERNEL_PARENT: u32 = 2;

/// What was used between two looks.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CpuUse {
    /// CPU seconds by group.
    pub seconds: BTreeMap<String, f64>,
    /// The part of all CPUs' time in which there was nothing to do but wait.
    pub idle_percent: f64,
}

/// What is asked of a process or a thread.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Stat {
    name: String,
    parent: u32,
    own_ticks: u64,
    /// Of children that ended and were waited for.
    reaped_ticks: u64,
    start_ticks: u64,
}

impl Stat {
    fn of(stat: &ProcessStat) -> Option<Self> {
        Some(Self {
            name: stat.name().into_owned(),
            parent: stat.parent()?,
            own_ticks: stat.cpu_ticks()?,
            reaped_ticks: stat.reaped_ticks()?,
            start_ticks: stat.start_ticks()?,
        })
    }
}

/// What a process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Own,
    Donor,
    Product,
    Program,
    Kernel,
    Other,
}

/// Ticks of one process by group.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Used {
    /// Of a process of ours or of one that ours started.
    is_ours: bool,
    ticks: BTreeMap<String, u64>,
}

/// What all threads of the machine had used at one moment.
#[derive(Clone, Debug, Default)]
pub struct CpuLook {
    /// By the number of the process and its start, which no later process shares.
    processes: BTreeMap<(u32, u64), Used>,
    idle_ticks: u64,
    all_ticks: u64,
}

/// The name without what tells threads of one kind apart: `kworker/u8:1` is `kworker`, `io-0` is `io`.
fn kind_of_name(name: &str) -> &str {
    let name = name.split(['/', '.']).next().unwrap_or(name);
    name.trim_end_matches(|character: char| character.is_ascii_digit() || "-_:".contains(character))
}

/// Idle and all ticks of all CPUs, from `/proc/stat`; guests' time is in that of user mode.
fn idle_and_all(text: &str) -> Option<(u64, u64)> {
    let line = text.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let fields: Vec<u64> = line.split_ascii_whitespace().take(8).map_while(|field| field.parse().ok()).collect();
    Some((fields.get(3)? + fields.get(4)?, fields.iter().sum()))
}

fn kind(process: u32, stats: &BTreeMap<u32, Stat>) -> Kind {
    let own = std::process::id();
    if process == own {
        return Kind::Own;
    }
    let mut ancestor = process;
    while let Some(stat) = stats.get(&ancestor) {
        match stat.parent {
            parent if parent == own => return kind_of_ours(process),
            KERNEL_PARENT => return Kind::Kernel,
            parent => ancestor = parent,
        }
    }
    if process == KERNEL_PARENT { Kind::Kernel } else { Kind::Other }
}

fn kind_of_ours(process: u32) -> Kind {
    let program = fs::read_link(format!("/proc/{process}/exe")).unwrap_or_default();
    let arguments = fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
    match program.file_name().is_some_and(|name| name == "spillway") {
        true if arguments.split(|byte| *byte == 0).nth(1) == Some(b"donate") => Kind::Donor,
        true => Kind::Product,
        false => Kind::Program,
    }
}

/// Of a process of ours: threads that have a group of their own by `group`, and the rest.
fn by_thread(process: u32, stat: &Stat, rest: &str, group: impl Fn(&str) -> Option<String>) -> BTreeMap<String, u64> {
    let mut ticks = BTreeMap::from([(rest.to_owned(), stat.own_ticks + stat.reaped_ticks)]);
    for thread in numbers_in(&format!("/proc/{process}/task")) {
        let stat = ProcessStat::of_thread(process, thread).ok();
        let Some(thread) = stat.and_then(|stat| Stat::of(&stat)) else { continue };
        let Some(group) = group(&thread.name) else { continue };
        *ticks.entry(group).or_default() += thread.own_ticks;
        let rest = ticks.entry(rest.to_owned()).or_default();
        *rest = rest.saturating_sub(thread.own_ticks);
    }
    ticks
}

fn used(process: u32, stat: &Stat, kind: Kind) -> Used {
    let plain = |group: &str| BTreeMap::from([(group.to_owned(), stat.own_ticks + stat.reaped_ticks)]);
    let ticks = match kind {
        Kind::Own => {
            let guard = LIMIT_GUARD_THREAD.to_bytes();
            by_thread(process, stat, CLIENTS, |name| (name.as_bytes() == guard).then(|| LIMIT_GUARD.to_owned()))
        }
        Kind::Donor => plain(DONORS),
        // The first thread has the program's name.
        Kind::Product => by_thread(process, stat, "spillway main", |name| {
            (name != stat.name).then(|| format!("spillway {}", kind_of_name(name)))
        }),
        Kind::Program => by_thread(process, stat, SERVER, |name| {
            name.strip_prefix(IN_PROGRAM).filter(|_| name != "spillway-bench").map(|name| format!("spillway {name}"))
        }),
        Kind::Kernel => BTreeMap::from([(format!("kernel {}", kind_of_name(&stat.name)), stat.own_ticks)]),
        Kind::Other => BTreeMap::from([(OTHERS.to_owned(), stat.own_ticks)]),
    };
    Used { is_ours: !matches!(kind, Kind::Kernel | Kind::Other), ticks }
}

impl CpuLook {
    /// Looks at all processes.
    pub fn now() -> Self {
        let stat = |process| Stat::of(&ProcessStat::of_process(process).ok()?);
        let stats: BTreeMap<u32, Stat> =
            numbers_in("/proc").filter_map(|process| Some((process, stat(process)?))).collect();
        let processes = stats.iter().map(|(process, stat)| {
            let used = used(*process, stat, kind(*process, &stats));
            ((*process, stat.start_ticks), used)
        });
        let machine = fs::read_to_string("/proc/stat").unwrap_or_default();
        let (idle_ticks, all_ticks) = idle_and_all(&machine).unwrap_or_default();
        Self { processes: processes.collect(), idle_ticks, all_ticks }
    }

    /// What the program that is measured had used; `None` when it was not there.
    fn server_ticks(&self) -> Option<u64> {
        self.processes.values().filter_map(|used| used.ticks.get(SERVER).copied()).reduce(|one, other| one + other)
    }

    /// What was used since `earlier`.
    pub fn since(&self, earlier: &Self) -> CpuUse {
        let mut ticks: BTreeMap<&str, i64> = BTreeMap::new();
        for (sign, from, other) in [(1, self, earlier), (-1, earlier, self)] {
            for (process, used) in &from.processes {
                // What a process of others used before it ended is not in any count any more.
                if sign < 0 && !used.is_ours && !other.processes.contains_key(process) {
                    continue;
                }
                for (group, count) in &used.ticks {
                    *ticks.entry(group).or_default() += sign * i64::try_from(*count).unwrap_or(0);
                }
            }
        }
        let a_second = rustix::param::clock_ticks_per_second() as f64;
        let seconds = ticks.into_iter().filter(|(_, ticks)| *ticks > 0);
        let all_ticks = self.all_ticks.saturating_sub(earlier.all_ticks).max(1);
        CpuUse {
            seconds: seconds.map(|(group, ticks)| (group.to_owned(), ticks as f64 / a_second)).collect(),
            idle_percent: 100.0 * self.idle_ticks.saturating_sub(earlier.idle_ticks) as f64 / all_ticks as f64,
        }
    }
}

/// Does `work`; gives what the CPUs did meanwhile.
pub fn counted<Value>(work: impl FnOnce() -> Value) -> (Value, CpuUse) {
    let before = CpuLook::now();
    let value = work();
    (value, CpuLook::now().since(&before))
}

/// Watches a program of which only its whole life is measured: from the last look before it was there to the one at
/// which it had used most. Small helpers that run before and after it use less.
#[derive(Debug)]
pub struct CpuWatch {
    before: CpuLook,
    most: Option<(u64, CpuLook)>,
}

impl CpuWatch {
    /// Before the program starts.
    pub fn start() -> Self {
        Self { before: CpuLook::now(), most: None }
    }

    /// To be called now and then.
    pub fn look(&mut self) {
        let look = CpuLook::now();
        match (look.server_ticks(), &self.most) {
            (Some(ticks), most) if most.as_ref().is_none_or(|(most, _)| ticks >= *most) => {
                self.most = Some((ticks, look));
            }
            (None, None) => self.before = look,
            _ => {}
        }
    }

    /// What was used; `None` when the program was never seen.
    pub fn finish(self) -> Option<CpuUse> {
        self.most.map(|(_, most)| most.since(&self.before))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::harness::interrupt::Interrupt;
    use crate::harness::process::{Collected, Running, bound};

    #[test]
    fn names_with_anything_in_them_are_read() {
        let fields = "S 7 1 1 0 -1 0 0 0 0 0 11 22 3 4 20 0 1 0 900 0";
        let parse = |text: &str| Stat::of(&ProcessStat::parse(text.to_owned())?);
        let stat = parse(&format!("5 (a (b) c) {fields}")).unwrap();
        let expected = Stat { name: "a (b) c".to_owned(), parent: 7, own_ticks: 33, reaped_ticks: 7, start_ticks: 900 };
        assert_eq!(stat, expected);
        assert_eq!((parse("5 (a"), parse("5 (a) S 7")), (None, None));
    }

    #[test]
    fn threads_of_one_kind_have_one_name() {
        let kinds = ["kworker/u8:1-events", "kswapd0", "io-1", "donor-listener", "kdamond.0"].map(kind_of_name);
        assert_eq!(kinds, ["kworker", "kswapd", "io", "donor-listener", "kdamond"]);
        assert_eq!(idle_and_all("cpu  1 2 3 40 5 6 7 8 9 10\ncpu0 1\n"), Some((45, 72)));
        assert_eq!(idle_and_all("cpu  1 2 3 4\n"), None);
    }

    fn look(processes: &[(u32, bool, &str, u64)], idle_ticks: u64, all_ticks: u64) -> CpuLook {
        let used = |is_ours, group: &str, ticks| Used { is_ours, ticks: BTreeMap::from([(group.to_owned(), ticks)]) };
        let processes = processes.iter().map(|(number, ours, group, ticks)| ((*number, 0), used(*ours, group, *ticks)));
        CpuLook { processes: processes.collect(), idle_ticks, all_ticks }
    }

    #[test]
    fn ended_processes_of_ours_count_and_those_of_others_are_forgotten() {
        let earlier = look(&[(1, true, SERVER, 100), (2, true, SERVER, 50), (3, false, OTHERS, 1000)], 0, 1000);
        // Process 2 had used 70 when it ended, which its parent now has.
        let later = look(&[(1, true, SERVER, 170), (4, false, OTHERS, 30)], 50, 1200);
        let a_second = rustix::param::clock_ticks_per_second() as f64;
        let expected = BTreeMap::from([(SERVER.to_owned(), 20.0 / a_second), (OTHERS.to_owned(), 30.0 / a_second)]);
        assert_eq!(later.since(&earlier), CpuUse { seconds: expected, idle_percent: 25.0 });
    }

    #[test]
    fn a_program_that_works_is_seen_until_it_ends() {
        let mut watch = CpuWatch::start();
        let script = "while :; do :; done";
        let mut running = Running::start("work", bound("sh").args(["-c", script]), Collected::default()).unwrap();
        let worked = || {
            watch.look();
            let used = watch.most.as_ref()?.1.since(&watch.before);
            (used.seconds.get(SERVER) > Some(&0.2)).then_some(())
        };
        Interrupt::never().poll("its work", Duration::from_secs(60), worked).unwrap();
        running.stop();
        watch.look();
        let used = watch.finish().unwrap();
        assert!(used.seconds.contains_key(SERVER) && (0.0..=100.0).contains(&used.idle_percent), "{used:?}");
    }
}
