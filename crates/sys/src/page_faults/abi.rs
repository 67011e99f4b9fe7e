//! The kernel's side of counters: `include/uapi/linux/perf_event.h`.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// `PERF_TYPE_SOFTWARE`.
const SOFTWARE: u32 = 1;

/// `PERF_COUNT_SW_PAGE_FAULTS_MIN`.
pub(super) const MINOR_FAULTS: u64 = 5;

/// `PERF_COUNT_SW_PAGE_FAULTS_MAJ`.
pub(super) const MAJOR_FAULTS: u64 = 6;

/// `PERF_SAMPLE_TID`, `_TIME`, `_ADDR` and `_ID`: what a sample says, in this order.
const SAMPLED: u64 = 1 << 1 | 1 << 2 | 1 << 3 | 1 << 6;

/// Bits of [`Attribute::flags`].
const DISABLED: u64 = 1;
const INHERIT: u64 = 1 << 1;
const ENABLE_ON_EXEC: u64 = 1 << 12;

/// `PERF_FLAG_PID_CGROUP`.
const IS_GROUP: u64 = 1 << 2;
/// `PERF_FLAG_FD_CLOEXEC`.
const CLOSE_ON_EXEC: u64 = 1 << 3;

/// `PERF_EVENT_IOC_ENABLE` and `_DISABLE`: `_IO('$', 0)` and `_IO('$', 1)`.
const ENABLE: u64 = 0x2400;
const DISABLE: u64 = 0x2401;
/// `PERF_EVENT_IOC_SET_OUTPUT`: `_IO('$', 5)`.
const SET_OUTPUT: u64 = 0x2405;
/// `PERF_EVENT_IOC_ID`: `_IOR('$', 7, __u64 *)`.
const ID: u64 = 0x8008_2407;

/// `struct perf_event_attr` as of its first version, which every kernel takes (`PERF_ATTR_SIZE_VER0`).
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Attribute {
    kind: u32,
    size_bytes: u32,
    config: u64,
    period: u64,
    sampled: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    breakpoint_kind: u32,
    breakpoint_address: u64,
}

impl Attribute {
    /// A sample for each fault, a wake-up for each `wakeup_events` of them.
    pub(super) fn of_faults(event: u64, wakeup_events: u32) -> Self {
        Self {
            kind: SOFTWARE,
            size_bytes: size_of::<Self>() as u32,
            config: event,
            period: 1,
            sampled: SAMPLED,
            read_format: 0,
            flags: 0,
            wakeup_events,
            breakpoint_kind: 0,
            breakpoint_address: 0,
        }
    }

    /// What the thread starts inherits the counter.
    pub(super) fn inherit(&mut self) {
        self.flags |= INHERIT;
    }

    /// Nothing is sampled until the thread, or one that inherited the counter, becomes another program.
    pub(super) fn start_at_exec(&mut self) {
        self.flags |= DISABLED | ENABLE_ON_EXEC;
    }

    /// Nothing is sampled until the counter is switched on.
    pub(super) fn start_disabled(&mut self) {
        self.flags |= DISABLED;
    }
}

/// What a counter counts for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Counted<'a> {
    /// The calling thread.
    ThisThread,
    /// All processes.
    All,
    /// Those in a cgroup, given by its directory, and in the groups in it.
    Group(BorrowedFd<'a>),
}

/// Opens a counter on one CPU.
pub(super) fn open(attribute: &Attribute, counted: Counted<'_>, cpu: u32) -> io::Result<OwnedFd> {
    let (process, flags) = match counted {
        Counted::ThisThread => (0, CLOSE_ON_EXEC),
        Counted::All => (-1, CLOSE_ON_EXEC),
        Counted::Group(directory) => (directory.as_raw_fd(), CLOSE_ON_EXEC | IS_GROUP),
    };
    // SAFETY: the kernel reads a structure of ours, whose size stands in it. -1 is no group of counters.
    let descriptor =
        unsafe { libc::syscall(libc::SYS_perf_event_open, std::ptr::from_ref(attribute), process, cpu, -1, flags) };
    let descriptor = RawFd::try_from(descriptor).map_err(io::Error::other)?;
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just gave it to this process, and no other value owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// Switches a counter on or off, in every process that inherited it.
pub(super) fn switch(counter: &OwnedFd, wanted: bool) -> io::Result<()> {
    request(counter, if wanted { ENABLE } else { DISABLE }, 0)
}

/// From now on `counter` writes its samples to the ring of the counter `target`.
pub(super) fn redirect(counter: &OwnedFd, target: RawFd) -> io::Result<()> {
    request(counter, SET_OUTPUT, target)
}

fn request(counter: &OwnedFd, number: u64, argument: i32) -> io::Result<()> {
    // SAFETY: these requests take a number and touch no memory of ours.
    let result = unsafe { libc::ioctl(counter.as_raw_fd(), number, argument) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The number that a counter's samples carry.
pub(super) fn id(counter: &OwnedFd) -> io::Result<u64> {
    let mut id = 0_u64;
    // SAFETY: the kernel writes one word of ours.
    let result = unsafe { libc::ioctl(counter.as_raw_fd(), ID, &raw mut id) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(id) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_attribute_has_the_size_of_its_first_version() {
        assert_eq!(size_of::<Attribute>(), 64);
    }
}
