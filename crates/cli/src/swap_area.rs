//! A swap area on a device of ours: made, switched on, and brought back.
//!
//! Switching off reads every page back into memory. The kernel undoes it itself when it is interrupted or runs out of
//! memory midway: then the area is on again, with what it still holds.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use spillway_report::status::Memory;
use spillway_sys::swap::SwapDiscard;

use crate::limits;
use crate::machine::memory;
use crate::machine::swap_list;
use crate::progress::Progress;
use crate::progress_line::ProgressLine;
use crate::size::human;

/// The label in the header, for people who find it.
const LABEL: &str = "spillway";

/// Why a swap area could not be switched.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SwapError {
    /// A system call failed.
    #[error("{action} {path}: {source}{advice}")]
    System {
        /// What was being done.
        action: &'static str,
        /// The device.
        path: PathBuf,
        /// The error.
        source: io::Error,
        /// What to do.
        advice: &'static str,
    },
    /// Memory does not suffice to bring everything back.
    #[error(
        "{} of memory are lacking to bring {} back from {path} ({} are available); end some programs and try again. \
         Nothing was changed", human(*.lacking_bytes), human(*.used_bytes), human(*.available_bytes)
    )]
    Lacking {
        /// The device.
        path: PathBuf,
        /// Bytes paged out.
        used_bytes: u64,
        /// Bytes to be had.
        available_bytes: u64,
        /// Bytes that must be freed first.
        lacking_bytes: u64,
    },
}

impl SwapError {
    /// Whether a signal ended it; the area stays on then.
    pub(crate) fn is_interrupted(&self) -> bool {
        matches!(self, Self::System { source, .. } if source.kind() == io::ErrorKind::Interrupted)
    }
}

/// Makes a swap area on a new device and switches it on, with discard so that freed pages return to donors.
pub(crate) fn on(path: &Path, priority: i32) -> Result<(), SwapError> {
    let error = |action, source| SwapError::System {
        action,
        path: path.to_path_buf(),
        source,
        advice: "; run as root on a kernel with swap",
    };
    spillway_sys::swap::make(path, LABEL, [0; 16]).map_err(|source| error("making a swap area on", source))?;
    let priority = u16::try_from(priority).ok();
    spillway_sys::swap::on(path, priority, SwapDiscard::Pages).map_err(|source| error("swapon", source))
}

/// Whether everything that was paged out to `path` fits into memory, of which so much will be free again when the
/// area is off.
pub(crate) fn check_room(path: &Path, kept_back_bytes: u64) -> Result<(), SwapError> {
    let error = |source| SwapError::System { action: "looking at", path: path.to_path_buf(), source, advice: "" };
    let used_bytes = swap_list::find(path).map_err(error)?.map_or(0, |area| area.used_bytes);
    room(path, used_bytes, kept_back_bytes, memory::read().map_err(error)?)
}

fn room(path: &Path, used_bytes: u64, kept_back_bytes: u64, memory: Memory) -> Result<(), SwapError> {
    let reserve = limits::SWAP_OFF_RESERVE_BYTES.min(memory.total_bytes / limits::SWAP_OFF_RESERVE_DIVISOR);
    let reserve = reserve.saturating_sub(kept_back_bytes);
    let needed = used_bytes + if used_bytes == 0 { 0 } else { reserve };
    if needed <= memory.available_bytes {
        return Ok(());
    }
    Err(SwapError::Lacking {
        path: path.to_path_buf(),
        used_bytes,
        available_bytes: memory.available_bytes,
        lacking_bytes: needed - memory.available_bytes,
    })
}

/// Brings every page back and switches the area off, and may show how far that is. An area that is not on is off.
pub(crate) fn off(path: &Path, show_progress: bool) -> Result<(), SwapError> {
    let error = |source| SwapError::System {
        action: "swapoff",
        path: path.to_path_buf(),
        source,
        advice: "; it is still on with all its pages",
    };
    let Some(area) = swap_list::find(path).map_err(error)? else { return Ok(()) };
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            if show_progress {
                watch(path, area.used_bytes, &done);
            }
        });
        let used_bytes = || Ok(swap_list::find(path)?.map(|area| area.used_bytes));
        let result = off_with_patience(|| spillway_sys::swap::off(path), used_bytes, Instant::now);
        done.store(true, Ordering::SeqCst);
        // A line that could not be drawn changes nothing.
        let _ = watcher.join();
        result.map_err(error)
    })
}

/// The kernel refuses for a moment's lack of memory; its reclaim mends that. And it refuses what another process is
/// switching off just now (systemd does so with every area at shutdown): its area is still listed then, with pages
/// that are on their way, and is off when that one has done it, or ours to try again. `used_bytes` is nothing when
/// the area is off.
fn off_with_patience(
    mut off: impl FnMut() -> io::Result<()>,
    used_bytes: impl Fn() -> io::Result<Option<u64>>,
    now: impl Fn() -> Instant,
) -> io::Result<()> {
    let mut attempts = 0;
    let (mut least_bytes, mut progress_at) = (u64::MAX, now());
    loop {
        match off() {
            Err(error) if error.kind() == io::ErrorKind::OutOfMemory && attempts + 1 < limits::SWAP_OFF_ATTEMPTS => {
                attempts += 1;
            }
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                let Some(used_bytes) = used_bytes()? else { return Ok(()) };
                if used_bytes < least_bytes {
                    (least_bytes, progress_at) = (used_bytes, now());
                } else if now().saturating_duration_since(progress_at) >= limits::SWAP_OFF_STALL {
                    return Err(error);
                }
            }
            result => return result,
        }
        std::thread::sleep(limits::POLL_INTERVAL * 10);
    }
}

/// Shows how much came back, until `done`.
fn watch(path: &Path, used_bytes: u64, done: &AtomicBool) {
    let mut progress = Progress::new("brought back", Instant::now(), used_bytes);
    let mut line = ProgressLine::new("swap off", true);
    while !done.load(Ordering::SeqCst) {
        let left_bytes = swap_list::find(path).ok().flatten().map_or(0, |area| area.used_bytes);
        let now = Instant::now();
        progress.look(now, left_bytes);
        line.show_bytes(now, &progress);
        std::thread::sleep(limits::POLL_INTERVAL);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use rustix::io::Errno;

    use super::*;

    #[test]
    fn lacking_memory_is_told_in_numbers() {
        let memory = Memory { total_bytes: 4 << 30, available_bytes: 1 << 30 };
        let room = |used_bytes, kept_back_bytes| room(Path::new("/dev/x"), used_bytes, kept_back_bytes, memory);
        assert!(room(0, 0).is_ok());
        assert!(room((1 << 30) - limits::SWAP_OFF_RESERVE_BYTES, 0).is_ok());
        assert!(room((1 << 30) - 1, 0).is_err());
        assert!(room(1 << 30, limits::SWAP_OFF_RESERVE_BYTES).is_ok(), "as much is kept back already");
        let text = room(2 << 30, 0).unwrap_err().to_string();
        assert!(text.contains("1.1 GiB of memory are lacking") && text.contains("Nothing was changed"), "{text}");
    }

    /// Switches off with these answers of the kernel, of whether it refuses and whether the area is still on; gives
    /// how often it was asked.
    fn off_with(answers: &[(Option<Errno>, bool)]) -> (io::Result<()>, usize) {
        let asked = Cell::new(0);
        let off = || {
            asked.set(asked.get() + 1);
            answers[asked.get() - 1].0.map_or(Ok(()), |error| Err(error.into()))
        };
        let used_bytes = || Ok(answers[asked.get() - 1].1.then_some(4096));
        // A quarter of the patience at each look.
        let start = Instant::now();
        let looks = Cell::new(0);
        let now = || start + limits::SWAP_OFF_STALL / 4 * looks.replace(looks.get() + 1);
        (off_with_patience(off, used_bytes, now), asked.get())
    }

    #[test]
    fn an_area_that_another_command_switches_off_is_awaited() {
        let busy = (Some(Errno::INVAL), true);
        let (result, asked) = off_with(&[busy, busy, (Some(Errno::INVAL), false)]);
        assert!(result.is_ok() && asked == 3, "the other one did it");
        let (result, asked) = off_with(&[busy, (None, false)]);
        assert!(result.is_ok() && asked == 2, "the other one gave up");
        let (result, _) = off_with(&[busy; 20]);
        assert_eq!(result.unwrap_err().kind(), io::ErrorKind::InvalidInput, "the other one hangs");
    }

    #[test]
    fn a_lack_of_memory_is_tried_again_some_times_and_other_errors_never() {
        let short = (Some(Errno::NOMEM), true);
        let (result, asked) = off_with(&[short; limits::SWAP_OFF_ATTEMPTS]);
        assert_eq!((result.unwrap_err().kind(), asked), (io::ErrorKind::OutOfMemory, limits::SWAP_OFF_ATTEMPTS));
        assert!(off_with(&[short, (None, false)]).0.is_ok());
        let (result, asked) = off_with(&[(Some(Errno::PERM), true)]);
        assert!(result.is_err() && asked == 1);
    }

    #[test]
    fn an_area_that_is_not_on_is_off() {
        off(Path::new("/dev/nonexistent-swap"), false).unwrap();
        check_room(Path::new("/dev/nonexistent-swap"), 0).unwrap();
    }
}
