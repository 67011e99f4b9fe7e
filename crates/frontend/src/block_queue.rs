//! What a block device's queue must not do to pages: delay, reorder, or read ahead of what was asked.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The folder of the queue's settings.
pub(super) fn settings(device: &Path) -> PathBuf {
    Path::new("/sys/block").join(device.file_name().unwrap_or_default()).join("queue")
}

/// Sets the queue up for paging. Whatever a kernel does not have needs no setting. Read-ahead comes last, because
/// changing another limit resets it.
pub(super) fn tune(device: &Path) {
    let queue = settings(device);
    for (setting, value) in [("scheduler", "none"), ("rotational", "0"), ("read_ahead_kb", "0")] {
        let _ = fs::write(queue.join(setting), value);
    }
}

/// Lets each request end on the CPU that made it. Without this, a driver with one queue ends a request on the CPU that
/// answers. That takes one switch more, to the CPU's softirq thread, which then wakes the program from there
/// (`blk_mq_complete_request_remote` in Linux's `block/blk-mq.c`; docs/decisions/fuse.md).
pub(super) fn end_where_made(device: &Path) {
    let _ = fs::write(settings(device).join("rq_affinity"), "2");
}

/// How often the kernel asks the driver about requests that take longer than `timeout`.
pub(super) fn set_timeout(device: &Path, timeout: Duration) {
    let _ = fs::write(settings(device).join("io_timeout"), timeout.as_millis().to_string());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_found_by_the_devices_name() {
        assert_eq!(settings(Path::new("/dev/ublkb3")), Path::new("/sys/block/ublkb3/queue"));
        // Without a device nothing is written and nothing fails.
        tune(Path::new("/dev/no-such-device"));
        end_where_made(Path::new("/dev/no-such-device"));
        set_timeout(Path::new("/dev/no-such-device"), Duration::from_secs(1));
    }
}
