//! Every bound of what is asked of the machine, with its origin.

use std::time::Duration;

/// How often a wait looks again.
pub const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// A lock that one process of ours holds for a moment, and another waits for; longer than any takes on a busy machine.
pub const LOCK_PATIENCE: Duration = Duration::from_secs(5);

/// A memory group of our own goes once the kernel has let go of the last thread in it, which takes milliseconds (seen
/// to fail without a wait once in some hundred, cgroup v2).
pub const GROUP_REMOVAL_DEADLINE: Duration = Duration::from_secs(2);

/// Room between the throttling and the killing limit of a group of version 2 at least: a hard limit kills on a short
/// peak.
pub const HARD_LIMIT_ROOM_BYTES: u64 = 64 << 20;

/// The kernel's largest swap priority.
pub const SWAP_PRIORITY_MAX: i32 = 32767;

/// Memory that must stay available after a swap area came back, besides its pages: the kernel kills processes earlier
/// than it uses the last page.
pub const SWAP_OFF_RESERVE_BYTES: u64 = 64 << 20;

/// On a small machine, this part of its memory instead.
pub const SWAP_OFF_RESERVE_DIVISOR: u64 = 16;

/// How long `swap off` waits for another process's that brings no page back: longer than a device fails a request in.
pub const SWAP_OFF_STALL: Duration = Duration::from_secs(60);

/// How often `swap off` tries again when the kernel was short of memory for a moment.
pub const SWAP_OFF_ATTEMPTS: usize = 5;
