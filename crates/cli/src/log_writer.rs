//! Where every line of the log goes: standard error, in the form that its reader wants.
//!
//! journald takes a priority as `<N>` at the start of a line (sd-daemon(3)) and adds the time itself. Any other reader
//! gets the time and the level in words.
//!
//! Invariant: no thread waits for the journal. It may itself wait for a page of ours, so a line that its socket does
//! not take at once is left out, and the next line that it takes says how many were.

use std::fmt::{self, Write as _};
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::net::SendFlags;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::FmtContext;
use tracing_subscriber::fmt::format::{Format, FormatEvent, FormatFields, Writer};
use tracing_subscriber::registry::LookupSpan;

use crate::state_changes::{Change, Weight};

/// The target of lines that tell of a change of state: shown also where the level of others is `warn`.
pub(crate) const CHANGES: &str = "spillway::changes";

/// What is shown unless `SPILLWAY_LOG` says otherwise.
const FILTER: &str = "warn,spillway::changes=info";

/// The variable by which a service knows that its standard error is the journal: DEVICE:INODE (systemd.exec(5)).
const JOURNAL_STREAM: &str = "JOURNAL_STREAM";

/// From here on all lines of this process go to standard error.
pub(crate) fn start() {
    let filter = tracing_subscriber::EnvFilter::try_from_env("SPILLWAY_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new(FILTER));
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(|| StandardError)
        .with_ansi(io::stderr().is_terminal());
    if is_journal() { lines.event_format(Prefixed).init() } else { lines.init() }
}

/// Whether standard error is the journal.
pub(crate) fn is_journal() -> bool {
    let Some(told) = std::env::var_os(JOURNAL_STREAM) else { return false };
    rustix::fs::fstat(io::stderr())
        .is_ok_and(|stat| told.to_str().is_some_and(|told| names(told, stat.st_dev, stat.st_ino)))
}

/// Whether `told`, as DEVICE:INODE, is this file.
fn names(told: &str, device: u64, inode: u64) -> bool {
    let number = |text: &str| text.parse::<u64>().ok();
    told.split_once(':').is_some_and(|(first, second)| number(first) == Some(device) && number(second) == Some(inode))
}

/// The journal's priority, which is syslog's.
fn priority(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        _ => 7,
    }
}

/// A line with its priority, and without the time.
struct Prefixed;

impl<S: Subscriber + for<'a> LookupSpan<'a>, N: for<'a> FormatFields<'a> + 'static> FormatEvent<S, N> for Prefixed {
    fn format_event(&self, context: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let mut line = String::new();
        let plain = Format::default().without_time().with_level(false).with_target(false).with_ansi(false);
        plain.format_event(context, Writer::new(&mut line), event)?;
        let priority = priority(*event.metadata().level());
        // Each line of a message is an entry of its own.
        line.lines().try_for_each(|line| writeln!(writer, "<{priority}>{line}"))
    }
}

/// Where the lines of a process are whose standard error is the journal or else `log`, for people.
pub(crate) fn place(log: &Path) -> String {
    if is_journal() { "the journal (journalctl -u spillway)".to_owned() } else { log.display().to_string() }
}

/// What begins a line that this process writes itself: nothing unless standard error is the journal.
pub(crate) fn prefix(level: Level) -> String {
    if is_journal() { format!("<{}>", priority(level)) } else { String::new() }
}

/// Writes one change of state.
pub(crate) fn change(title: &str, change: &Change) {
    let text = &change.text;
    match change.weight {
        Weight::Notice => tracing::info!(target: CHANGES, "{title}: {text}"),
        Weight::Warning => tracing::warn!(target: CHANGES, "{title}: {text}"),
        Weight::Error => tracing::error!(target: CHANGES, "{title}: {text}"),
    }
}

/// Lines that the journal did not take at once.
static LEFT_OUT: AtomicU64 = AtomicU64::new(0);

/// Standard error. Every write succeeds: the log must not be what ends a process.
struct StandardError;

impl Write for StandardError {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let stderr = io::stderr();
        let at_once = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let left_out = LEFT_OUT.swap(0, Ordering::Relaxed);
        let mut text = Vec::new();
        if left_out > 0 {
            let mut note = String::new();
            let _ = writeln!(note, "<4>{left_out} lines of the log were left out: the journal did not take them");
            text.extend_from_slice(note.as_bytes());
        }
        text.extend_from_slice(bytes);
        match rustix::net::send(stderr.as_fd(), &text, at_once) {
            // A file, a pipe or a terminal.
            Err(rustix::io::Errno::NOTSOCK) => drop(stderr.lock().write_all(&text)),
            Err(rustix::io::Errno::AGAIN) => drop(LEFT_OUT.fetch_add(left_out + 1, Ordering::Relaxed)),
            // A journal that is gone takes nothing more.
            _ => {}
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_journal_is_known_by_device_and_inode() {
        assert!(names("8:123456", 8, 123_456));
        for told in ["", "8", "8:", ":123456", "8:123457", "9:123456", "8:123456:1", "x:y", "08:0x1"] {
            assert!(!names(told, 8, 123_456), "{told}");
        }
    }

    #[test]
    fn levels_are_syslogs_priorities() {
        let levels = [Level::ERROR, Level::WARN, Level::INFO, Level::DEBUG, Level::TRACE];
        assert_eq!(levels.map(priority), [3, 4, 6, 7, 7]);
    }

    #[test]
    fn changes_are_shown_where_other_notices_are_not() {
        assert!(FILTER.contains(&format!("{CHANGES}=info")) && FILTER.starts_with("warn,"));
        FILTER.parse::<tracing_subscriber::EnvFilter>().unwrap();
    }
}
