//! Every bound of the benchmarks, with its origin. Relations between them are checked at compile time.

use std::time::Duration;

use spillway_workloads::size::Size;

/// A helper command (`mkswap`, `losetup`) that takes longer than this is stuck; they take milliseconds.
pub const TOOL_DEADLINE: Duration = Duration::from_secs(30);

/// `swapoff` reads everything back: at 20 MB/s, a slow disk's random reads, 2 GiB take 100 s.
pub const SWAP_OFF_DEADLINE: Duration = Duration::from_secs(180);

/// How long to wait until another run of this program has turned its swap area off: as long as that may take.
pub const SWAP_LOCK_DEADLINE: Duration = SWAP_OFF_DEADLINE;

/// How long a program of ours may take to end after SIGTERM before it gets SIGKILL. `spillway run` detaches its device
/// meanwhile, which reads pages back if the program still holds some.
pub const STOP_DEADLINE: Duration = Duration::from_secs(30);

/// How long a server (donor, nbdkit, Redis) may take until it answers.
pub const START_DEADLINE: Duration = Duration::from_secs(15);

/// How long a server under a limit may take until it answers: under `spillway run` its device is set up first.
pub const SERVER_START_DEADLINE: Duration = Duration::from_secs(60);

/// A server under a limit may take so long for one answer: over a slow disk it reads thousands of pages at random
/// while it loads a table or moves it.
pub const ANSWER_DEADLINE: Duration = Duration::from_secs(60);

/// One measured program may take so long; the slowest, a sort over disk swap at 25 %, took a tenth of it.
pub const PROGRAM_DEADLINE: Duration = Duration::from_secs(600);

/// One run under another project's pager may take so long: the slowest takes eight seconds on a quiet machine, and
/// one that hangs must not cost the rest of the study.
pub const PEER_DEADLINE: Duration = Duration::from_secs(120);

/// A load generator may take so long to be fetched and built: `go-tpc` takes a minute on the development machine.
pub const BUILD_DEADLINE: Duration = Duration::from_secs(600);

/// Pause between two looks at something that has no event to wait for (a file that appears, a cgroup that empties).
pub const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// How often a limited program's cgroup is looked at: as `spillway run` does for its own programs.
pub const GUARD_INTERVAL: Duration = Duration::from_millis(20);

/// How often when the program is at its limit. A program that pages at full speed makes some hundred pages active in
/// that time, of thousands: the kernel's count of inactive ones is never wrong enough to stop its reclaim. As
/// `spillway run`.
pub const GUARD_INTERVAL_AT_LIMIT: Duration = Duration::from_millis(1);
/// So many bytes of a limit make that interval a millisecond longer, up to [`GUARD_INTERVAL_AT_LIMIT_MAX`]. As
/// `spillway run`.
pub const GUARD_BYTES_PER_INTERVAL: u64 = 16 << 20;
/// See [`GUARD_BYTES_PER_INTERVAL`].
pub const GUARD_INTERVAL_AT_LIMIT_MAX: Duration = Duration::from_millis(10);

/// "At its limit" is within this part of it. As `spillway run`.
pub const GUARD_NEAR_LIMIT_DIVISOR: u64 = 16;

/// Captured output of a helper command; what exceeds it is cut. `fio` writes about 20 KiB of JSON.
pub const OUTPUT_BYTES_MAX: usize = 4 << 20;

/// Rounds of a paired comparison at most.
pub const ROUNDS_MAX: usize = 100;

/// Priority of our swap areas: above any that a system sets by default (negative) or by hand (usually 0 to 100), so
/// that only ours is used.
pub const SWAP_PRIORITY: i32 = 30_000;

/// One part in so many is added to a working set that was seen by looking now and then: a limit that is a little too
/// low makes a program that goes through its memory in turn page all of it, and L(100) would not be what it says.
const WORKING_SET_SLACK: u64 = 32;

/// A working set with what looking now and then may have missed.
pub fn with_slack(seen: Size) -> Size {
    Size(seen.0 + seen.0 / WORKING_SET_SLACK)
}

/// One subject's turn in a guest: 20 s when emulated on a quiet machine.
pub const GUEST_TRIAL_DEADLINE: Duration = Duration::from_secs(180);

/// One round of the study `rdma` in a guest: ten minutes when emulated on a host with ten times as much to do as it
/// can.
pub const RDMA_TRIAL_DEADLINE: Duration = Duration::from_secs(840);

/// No part of that round is begun after this: what was measured before is told then. A block device took four
/// minutes on that host.
pub const RDMA_PARTS_DEADLINE: Duration = Duration::from_secs(420);

/// A study in a guest begins nothing more after this: it takes about eight minutes on a quiet machine.
pub const GUEST_STUDY_DEADLINE: Duration = Duration::from_secs(900);

/// Attempts of a trial whose guest's kernel the emulator broke, which happens once in some thirty machines.
pub const GUEST_TRIALS_MAX: u32 = 3;

const _: () = {
    assert!(TOOL_DEADLINE.as_millis() > POLL_INTERVAL.as_millis());
    assert!(GUARD_INTERVAL_AT_LIMIT.as_micros() <= GUARD_INTERVAL.as_micros());
    assert!(SWAP_PRIORITY <= spillway_machine::limits::SWAP_PRIORITY_MAX);
    assert!(GUEST_TRIAL_DEADLINE.as_secs() < GUEST_STUDY_DEADLINE.as_secs());
    assert!(RDMA_PARTS_DEADLINE.as_secs() < RDMA_TRIAL_DEADLINE.as_secs());
    assert!(RDMA_TRIAL_DEADLINE.as_secs() < GUEST_STUDY_DEADLINE.as_secs());
    assert!(STOP_DEADLINE.as_secs() < PEER_DEADLINE.as_secs() && PEER_DEADLINE.as_secs() < PROGRAM_DEADLINE.as_secs());
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slack_is_small_and_never_negative() {
        assert_eq!(with_slack(Size(3200)), Size(3300));
        assert_eq!(with_slack(Size(0)), Size(0));
    }
}
