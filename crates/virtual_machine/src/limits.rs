//! Every bound of the harness, with its origin.

use std::time::Duration;

/// How long a guest has to boot: 4 s when measured alone, emulated; a loaded machine takes several times that.
pub const BOOT_DEADLINE: Duration = Duration::from_secs(180);

/// Attempts where the emulator fails: with a fault in thirty machines, three failures in a row come once in 27,000.
pub const ATTEMPTS_MAX: u32 = 3;

/// How long a guest has to unmount its disks and end: it writes back at most what its memory holds, to a host whose
/// disk others may keep busy.
pub const END_DEADLINE: Duration = Duration::from_secs(180);

/// How long the trial with hardware virtualisation may take: one that works boots in about a second, one that does not
/// crashes at once or hangs.
pub const TRIAL_DEADLINE: Duration = Duration::from_secs(20);

/// How old the look for a newer kernel package may be before it is repeated: security updates come every few weeks.
pub const PACKAGE_AGE_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// How often a wait looks again.
pub const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// How much of the console a failure shows, from its end: some screens.
pub const CONSOLE_BYTES_SHOWN: usize = 8 << 10;

/// Memory of a guest unless told otherwise; the smallest that boots is about 128 MiB.
pub const MEMORY_MIB_DEFAULT: u32 = 512;

/// Processors of a guest unless told otherwise: two, so that races show.
pub const PROCESSORS_DEFAULT: u32 = 2;

/// Frame size between two machines: emulated processors pay per frame, so frames are jumbo frames.
pub const FRAME_BYTES: u32 = 9000;
