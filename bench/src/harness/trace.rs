//! The kernel's own record of what happened when (tracefs, Documentation/trace/events.rst), in an instance of this
//! run's own.
//!
//! Invariant: when a session is dropped its instance, and its mount of tracefs if it made one, are gone.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use super::HarnessError;
use super::cleanup::Cleanup;
use super::interrupt::Interrupt;
use super::storage::PrivateDirectory;
use super::tool;
use crate::limits::{POLL_INTERVAL, TOOL_DEADLINE};

/// Kilobytes of each CPU's buffer: some hundred thousand events.
const BUFFER_KIB: u32 = 32 * 1024;

/// One event.
#[derive(Clone, Debug, PartialEq)]
pub struct TraceEvent {
    /// The thread in whose context it happened.
    pub thread: u32,
    /// Seconds of the monotonic clock, in microseconds.
    pub time_us: f64,
    /// Its name, such as `block_rq_issue`.
    pub name: String,
    /// What it says.
    pub details: String,
}

impl TraceEvent {
    /// From a line of `trace`: `command-123  [001] d..3.  12.345678: name: details`. Commands may hold any character.
    pub fn parse(line: &str) -> Option<Self> {
        let (before, after) = line.split_once(" [").filter(|_| !line.starts_with('#'))?;
        let thread = before.rsplit_once('-')?.1.trim().parse().ok()?;
        let mut fields = after.split_once("] ")?.1.trim_start().splitn(3, ": ");
        let time_us = fields.next()?.rsplit(' ').next()?.parse::<f64>().ok()? * 1e6;
        let name = fields.next()?.trim();
        // `sys_exit` events of single system calls print `sys_read -> 0x1` without a colon.
        let (name, details) = match fields.next() {
            Some(details) => (name, details),
            None => name.split_once([' ', ':']).unwrap_or((name, "")),
        };
        Some(Self { thread, time_us, name: name.to_owned(), details: details.trim().to_owned() })
    }

    /// The value of `name=value` in the details.
    pub fn field(&self, name: &str) -> Option<&str> {
        self.details.split([' ', ',']).find_map(|part| part.strip_prefix(name)?.strip_prefix('='))
    }
}

/// A place for events, and those that it has recorded.
#[derive(Debug)]
pub struct TraceSession {
    instance: PathBuf,
    _cleanup: Cleanup,
}

impl TraceSession {
    /// Begins to record `events`: each `group/name` with a filter, or an empty one.
    pub fn start(events: &[(&str, String)], interrupt: &Interrupt) -> Result<Self, HarnessError> {
        let session = Self::open(BUFFER_KIB, interrupt)?;
        session.record(events)?;
        Ok(session)
    }

    /// A place for events, `buffer_kib` of them for each CPU, the newest, that records nothing yet.
    pub fn open(buffer_kib: u32, interrupt: &Interrupt) -> Result<Self, HarnessError> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let mut cleanup = Cleanup::default();
        let root = mounted(&mut cleanup, interrupt)?;
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let instance = root.join("instances").join(format!("spillway-bench-{}-{number}", std::process::id()));
        fs::create_dir(&instance).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound | std::io::ErrorKind::PermissionDenied => {
                HarnessError::Missing(format!("this kernel, or this user, cannot trace apart from others: {error}"))
            }
            _ => HarnessError::system(format!("making {}", instance.display()))(error),
        })?;
        let made = instance.clone();
        cleanup.push(format!("rmdir {}", made.display()), move || {
            // Stopped first: an instance whose events are on is busy.
            let _ = fs::write(made.join("events/enable"), "0");
            remove(&made).map_err(HarnessError::system(format!("removing {}", made.display())))
        });
        let session = Self { instance, _cleanup: cleanup };
        session.write("trace_clock", "mono")?;
        session.write("buffer_size_kb", &buffer_kib.to_string())?;
        Ok(session)
    }

    /// Records `events` from now on, besides what it records already.
    pub fn record(&self, events: &[(&str, String)]) -> Result<(), HarnessError> {
        for (event, filter) in events {
            if !filter.is_empty() {
                self.write(&format!("events/{event}/filter"), filter)?;
            }
            self.write(&format!("events/{event}/enable"), "1")?;
        }
        Ok(())
    }

    fn write(&self, file: &str, text: &str) -> Result<(), HarnessError> {
        let path = self.instance.join(file);
        fs::write(&path, text).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => HarnessError::Missing(format!("this kernel cannot trace {file}")),
            _ => HarnessError::system(format!("writing '{text}' to {}", path.display()))(error),
        })
    }

    /// Its directory.
    pub fn instance(&self) -> &Path {
        &self.instance
    }

    /// Stops recording; gives every event in the order of time.
    pub fn finish(self) -> Result<Vec<TraceEvent>, HarnessError> {
        self.write("tracing_on", "0")?;
        let path = self.instance.join("trace");
        let text = fs::read(&path).map_err(HarnessError::system(format!("reading {}", path.display())))?;
        Ok(String::from_utf8_lossy(&text).lines().filter_map(TraceEvent::parse).collect())
    }
}

/// The kernel's number of a block device, as events have it: major and minor in 12 and 20 bits.
pub fn device_number(path: &Path) -> Result<String, HarnessError> {
    let number =
        rustix::fs::stat(path).map_err(HarnessError::system(format!("looking at {}", path.display())))?.st_rdev;
    Ok(((u64::from(rustix::fs::major(number)) << 20) | u64::from(rustix::fs::minor(number))).to_string())
}

/// Where tracefs is, mounted for as long as `cleanup` lives if it was not.
fn mounted(cleanup: &mut Cleanup, interrupt: &Interrupt) -> Result<PathBuf, HarnessError> {
    let mounts = fs::read_to_string("/proc/mounts").map_err(HarnessError::system("reading /proc/mounts"))?;
    if let Some(place) = find(&mounts) {
        return Ok(place);
    }
    let directory = PrivateDirectory::on_disk(None)?;
    let place = directory.path().to_owned();
    cleanup.keep(format!("rmdir {}", place.display()), directory);
    let unmounted = place.clone();
    // Before the mount, which an interrupt may end at any moment.
    cleanup.push(format!("umount {}", place.display()), move || {
        let mounts = fs::read_to_string("/proc/mounts").unwrap_or_default();
        let is_mounted = places(&mounts).any(|place| place == unmounted);
        if is_mounted { tool::undo("umount", [&unmounted], TOOL_DEADLINE) } else { Ok(()) }
    });
    let mount = |error: HarnessError| match error.is_interrupt() {
        true => error,
        false => HarnessError::Missing(format!("tracefs cannot be mounted: {error}")),
    };
    tool::run("mount", [Path::new("-t"), Path::new("tracefs"), Path::new("tracefs"), &place], interrupt)
        .map_err(mount)?;
    Ok(place)
}

/// Where tracefs is for all: what another session mounted for itself goes with it.
fn find(mounts: &str) -> Option<PathBuf> {
    let is_private =
        |place: &PathBuf| place.file_name().is_some_and(|name| name.to_string_lossy().starts_with("spillway-bench-"));
    places(mounts).find(|place| !is_private(place))
}

/// Where tracefs is mounted.
fn places(mounts: &str) -> impl Iterator<Item = PathBuf> {
    mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(1);
        let (place, kind) = (fields.next()?, fields.next()?);
        (kind == "tracefs").then(|| PathBuf::from(place))
    })
}

/// Removes an instance. A process that another thread is just starting has its files open until it becomes its own
/// program, and meanwhile the instance is busy.
fn remove(instance: &Path) -> std::io::Result<()> {
    let begin = Instant::now();
    loop {
        match fs::remove_dir(instance) {
            Err(error) if error.kind() == ErrorKind::ResourceBusy && begin.elapsed() < TOOL_DEADLINE => {
                std::thread::sleep(POLL_INTERVAL);
            }
            other => return other,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn lines_of_the_kernel_are_read() {
        let line =
            "  kworker/u8:2-loop0-1234    [001] d..2.  3661.123456: block_rq_issue: 7,0 R 4096 () 8 + 8 none,0,0 [x-y]";
        let event = TraceEvent::parse(line).unwrap();
        assert_eq!((event.thread, event.name.as_str()), (1234, "block_rq_issue"));
        assert!((event.time_us - 3_661_123_456.0).abs() < 0.5);
        assert!(event.details.starts_with("7,0 R 4096"));
        let line = "          <idle>-0       [000] d..2. 1.000001: sched_switch: prev_comm=a b prev_pid=0 ==> next_comm=c next_pid=77 next_prio=120";
        let event = TraceEvent::parse(line).unwrap();
        assert_eq!(
            (event.field("next_pid"), event.field("prev_pid"), event.field("pid")),
            (Some("77"), Some("0"), None)
        );
        let line = "     bench-9   [001] .....  2.000000: sys_exit: NR 0 = 40";
        assert_eq!(TraceEvent::parse(line).unwrap().details, "NR 0 = 40");
    }

    #[test]
    fn headings_are_no_events() {
        for line in ["# tracer: nop", "", "#  TASK-PID     CPU#  |||||  TIMESTAMP  FUNCTION", "CPU:0 [LOST 12 EVENTS]"]
        {
            assert_eq!(TraceEvent::parse(line), None, "{line}");
        }
    }

    #[test]
    fn the_mount_is_found() {
        assert_eq!(
            find("a /x tmpfs rw 0 0\nt /sys/kernel/tracing tracefs rw 0 0\n"),
            Some("/sys/kernel/tracing".into())
        );
        assert_eq!(find("a /x tmpfs rw 0 0\n"), None);
        assert_eq!(find("t /var/tmp/spillway-bench-1-0 tracefs rw 0 0\n"), None, "another session's");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

        #[test]
        fn no_line_is_too_odd(line in "\\PC{0,80}|[-a-z0-9 \\[\\]:.=]{0,60}") {
            let _ = TraceEvent::parse(&line);
        }
    }
}
