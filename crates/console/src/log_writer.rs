//! Where every line of the log goes: standard error, in the form that its reader wants.
//!
//! journald takes a priority as `<N>` at the start of a line (sd-daemon(3)) and adds the time itself. Any other reader
//! gets the time and the level in words.
//!
//! Invariant: no thread waits for the journal. It may itself wait for a page of ours, so a line that its socket does
//! not take at once is left out, and the next line that it takes says how many were. Of a line that it took a part of
//! the rest is left out.

use std::fmt::{self, Write as _};
use std::io::{self, IsTerminal, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use rustix::net::SendFlags;
use spillway_volume::status::DeviceStatus;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::FmtContext;
use tracing_subscriber::fmt::format::{Format, FormatEvent, FormatFields, Writer};
use tracing_subscriber::registry::LookupSpan;

use crate::limits;
use crate::state_changes::{Change, StateChanges, Weight};

/// The target of lines that tell of a change of state: shown also where the level of others is `warn`.
pub const CHANGES: &str = "spillway::changes";

/// What is shown unless `SPILLWAY_LOG` says otherwise.
const FILTER: &str = "warn,spillway::changes=info";

/// The variable by which a service knows that its standard error is the journal: DEVICE:INODE (systemd.exec(5)).
const JOURNAL_STREAM: &str = "JOURNAL_STREAM";

/// From here on all lines of this process go to standard error.
pub fn start() {
    let filter = tracing_subscriber::EnvFilter::try_from_env("SPILLWAY_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new(FILTER));
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(|| StandardError)
        .with_ansi(io::stderr().is_terminal());
    if is_journal() { lines.event_format(Prefixed).init() } else { lines.init() }
}

/// Whether standard error is the journal.
pub fn is_journal() -> bool {
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
pub fn place(log: &Path) -> String {
    if is_journal() { "the journal (journalctl -u spillway)".to_owned() } else { log.display().to_string() }
}

/// What begins a line that this process writes itself: nothing unless standard error is the journal.
pub fn prefix(level: Level) -> String {
    if is_journal() { format!("<{}>", priority(level)) } else { String::new() }
}

/// What changes in the state of a device or a run, as lines of the log.
#[derive(Debug)]
pub struct ChangeLog {
    title: String,
    changes: StateChanges,
    next_look: Option<Instant>,
}

impl ChangeLog {
    /// Its lines begin with `title`.
    pub fn new(title: String) -> Self {
        Self { title, changes: StateChanges::default(), next_look: None }
    }

    /// Writes what changed since the last look, if it is time for one and there is a state.
    pub fn look(&mut self, status: impl FnOnce() -> Option<DeviceStatus>) {
        let now = Instant::now();
        if self.next_look.is_some_and(|next| now < next) {
            return;
        }
        self.next_look = Some(now + limits::STATE_LOOK_INTERVAL);
        let changes = status().map(|status| self.changes.look(&status)).unwrap_or_default();
        changes.iter().for_each(|change| self.write(change));
    }

    fn write(&self, Change { weight, text }: &Change) {
        let title = &self.title;
        match weight {
            Weight::Notice => tracing::info!(target: CHANGES, "{title}: {text}"),
            Weight::Warning => tracing::warn!(target: CHANGES, "{title}: {text}"),
            Weight::Error => tracing::error!(target: CHANGES, "{title}: {text}"),
        }
    }
}

/// What the journal did not take of the lines of this process.
static UNTAKEN: Untaken = Untaken { lines: AtomicU64::new(0), is_cut: AtomicBool::new(false) };

#[derive(Debug, Default)]
struct Untaken {
    /// Lines that it did not take at once, which the next line tells of.
    lines: AtomicU64,
    /// It took a part of the last line, which the next one has to end.
    is_cut: AtomicBool,
}

/// Sends `bytes`, whole lines, to a socket that may take all, a part or nothing of them.
fn send_lines(socket: BorrowedFd<'_>, bytes: &[u8], untaken: &Untaken) -> rustix::io::Result<()> {
    let (lines, is_cut) = (untaken.lines.swap(0, Ordering::Relaxed), untaken.is_cut.swap(false, Ordering::Relaxed));
    let mut text = Vec::with_capacity(bytes.len());
    if is_cut {
        text.push(b'\n');
    }
    if lines > 0 {
        let mut note = String::new();
        let _ = writeln!(note, "<4>{lines} lines of the log were left out: the journal did not take them");
        text.extend_from_slice(note.as_bytes());
    }
    text.extend_from_slice(bytes);
    let sent = rustix::net::send(socket, &text, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    match sent {
        Ok(count) if count < text.len() => untaken.is_cut.store(true, Ordering::Relaxed),
        Err(rustix::io::Errno::AGAIN) => {
            untaken.is_cut.fetch_or(is_cut, Ordering::Relaxed);
            untaken.lines.fetch_add(lines + 1, Ordering::Relaxed);
        }
        // What is no socket, or has no peer any more, misses nothing that a later line could tell of.
        Ok(_) | Err(_) => {}
    }
    sent.map(drop)
}

/// Standard error. Every write succeeds: the log must not be what ends a process.
struct StandardError;

impl Write for StandardError {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let stderr = io::stderr();
        // A file, a pipe or a terminal; a journal that is gone takes nothing more.
        if send_lines(stderr.as_fd(), bytes, &UNTAKEN) == Err(rustix::io::Errno::NOTSOCK) {
            let _ = stderr.lock().write_all(bytes);
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

    /// What `peer` can read now.
    fn read_all(peer: &mut std::os::unix::net::UnixStream) -> String {
        let mut text = Vec::new();
        let error = io::Read::read_to_end(peer, &mut text).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn a_journal_that_takes_no_more_delays_no_line_and_hears_how_many_it_missed() {
        let (socket, mut peer) = std::os::unix::net::UnixStream::pair().unwrap();
        peer.set_nonblocking(true).unwrap();
        let untaken = Untaken::default();
        let line = |number: usize| format!("<6>line {number} {}\n", "x".repeat(4 << 10));
        // Larger than what a socket buffers (net.core.wmem_max, some 200 KiB): this returns although no peer reads.
        let results: Vec<_> =
            (0..1000).map(|number| send_lines(socket.as_fd(), line(number).as_bytes(), &untaken)).collect();
        let refused = results.iter().filter(|result| **result == Err(rustix::io::Errno::AGAIN)).count();
        assert!(refused > 0 && refused < results.len(), "{refused}");
        let first = read_all(&mut peer);
        assert!(first.starts_with(&line(0)), "{first}");
        assert_eq!(send_lines(socket.as_fd(), line(1000).as_bytes(), &untaken), Ok(()));
        assert_eq!(send_lines(socket.as_fd(), line(1001).as_bytes(), &untaken), Ok(()));
        let cut = if first.ends_with('\n') { "" } else { "\n" };
        let note = format!("<4>{refused} lines of the log were left out: the journal did not take them\n");
        assert_eq!(read_all(&mut peer), format!("{cut}{note}{}{}", line(1000), line(1001)));
    }

    #[test]
    fn a_line_that_was_taken_in_part_is_ended_before_the_next() {
        let (socket, mut peer) = std::os::unix::net::UnixStream::pair().unwrap();
        peer.set_nonblocking(true).unwrap();
        let untaken = Untaken { is_cut: AtomicBool::new(true), ..Untaken::default() };
        send_lines(socket.as_fd(), b"<6>next\n", &untaken).unwrap();
        send_lines(socket.as_fd(), b"<6>last\n", &untaken).unwrap();
        assert_eq!(read_all(&mut peer), "\n<6>next\n<6>last\n");
    }

    #[test]
    fn changes_are_shown_where_other_notices_are_not() {
        assert!(FILTER.contains(&format!("{CHANGES}=info")) && FILTER.starts_with("warn,"));
        FILTER.parse::<tracing_subscriber::EnvFilter>().unwrap();
    }
}
