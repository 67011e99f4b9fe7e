//! A swap area on a device of ours: made, switched on, and brought back.
//!
//! Switching off reads every page back into memory. The kernel undoes it itself when it is interrupted or runs out of
//! memory midway: then the area is on again, with what it still holds.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use spillway_sys::swap::SwapDiscard;

use crate::limits;
use crate::machine::memory::Memory;
use crate::machine::swap_list;
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

/// Whether everything that was paged out to `path` fits into memory.
pub(crate) fn check_room(path: &Path) -> Result<(), SwapError> {
    let error = |source| SwapError::System { action: "looking at", path: path.to_path_buf(), source, advice: "" };
    let used_bytes = swap_list::find(path).map_err(error)?.map_or(0, |area| area.used_bytes);
    room(path, used_bytes, Memory::read().map_err(error)?)
}

fn room(path: &Path, used_bytes: u64, memory: Memory) -> Result<(), SwapError> {
    let reserve = limits::SWAP_OFF_RESERVE_BYTES.min(memory.total_bytes / limits::SWAP_OFF_RESERVE_DIVISOR);
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

/// Brings every page back and switches the area off, with a progress bar on a terminal. An area that is not on is off.
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
        let result = off_with_patience(path);
        done.store(true, Ordering::SeqCst);
        // A bar that could not be drawn changes nothing.
        let _ = watcher.join();
        result.map_err(error)
    })
}

/// The kernel refuses for a moment's lack of memory; its reclaim mends that.
fn off_with_patience(path: &Path) -> io::Result<()> {
    let mut attempts = 0;
    loop {
        attempts += 1;
        match spillway_sys::swap::off(path) {
            Err(error) if error.kind() == io::ErrorKind::OutOfMemory && attempts < limits::SWAP_OFF_ATTEMPTS => {
                std::thread::sleep(limits::POLL_INTERVAL * 10);
            }
            result => return result,
        }
    }
}

/// Draws how much came back, until `done`. Draws nothing when standard error is no terminal.
fn watch(path: &Path, used_bytes: u64, done: &AtomicBool) {
    let bar = ProgressBar::with_draw_target(Some(used_bytes), ProgressDrawTarget::stderr());
    if let Ok(style) = ProgressStyle::with_template("bringing back {wide_bar} {bytes} of {total_bytes}, {eta} left") {
        bar.set_style(style);
    }
    while !done.load(Ordering::SeqCst) {
        let left = swap_list::find(path).ok().flatten().map_or(0, |area| area.used_bytes);
        bar.set_position(used_bytes.saturating_sub(left));
        std::thread::sleep(limits::POLL_INTERVAL);
    }
    bar.finish_and_clear();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lacking_memory_is_told_in_numbers() {
        let memory = Memory { total_bytes: 4 << 30, available_bytes: 1 << 30 };
        assert!(room(Path::new("/dev/x"), 0, memory).is_ok());
        assert!(room(Path::new("/dev/x"), (1 << 30) - limits::SWAP_OFF_RESERVE_BYTES, memory).is_ok());
        let text = room(Path::new("/dev/x"), 2 << 30, memory).unwrap_err().to_string();
        assert!(text.contains("1.1 GiB of memory are lacking") && text.contains("Nothing was changed"), "{text}");
    }

    #[test]
    fn an_area_that_is_not_on_is_off() {
        off(Path::new("/dev/nonexistent-swap"), false).unwrap();
        check_room(Path::new("/dev/nonexistent-swap")).unwrap();
    }
}
