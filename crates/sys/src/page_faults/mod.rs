//! Page faults of other programs as they happen, on a stock kernel (perf_event_open(2), software events).
//!
//! A counter with a sampling period of one writes a record for each fault: address, process, thread and time. The
//! records go to one ring in memory for each CPU (`ring`); `abi` has the kernel's structures.
//!
//! For programs that this process starts, counters are opened for a thread, and what that thread starts afterwards
//! inherits them: children, and their children, from their first instruction on. So no fault is missed, and nothing
//! depends on cgroups: of version 1 the controller `perf_event` would have to be mounted beside that for memory.
//! Programs that run already are counted all together, or by a cgroup of version 2.
//!
//! A fault is reported when it has been served, so a major one after its page came. Major faults wake the reader at
//! once. Minor ones are many (every first touch of fresh memory is one), so they are sampled only while asked for
//! ([`FaultCounters::sample_minor`]), and [`MINORS_PER_WAKE`] of them wake the reader once.

mod abi;
mod ring;

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use self::abi::{Attribute, Counted};
use self::ring::Ring;
use crate::cpu_list;

/// A wake-up is an interrupt to the faulting CPU itself, which costs a virtual machine more than the record; a window
/// of 64 pages is still noticed in its first quarter.
pub const MINORS_PER_WAKE: u32 = 16;

/// Whether the program waited for the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// It waited for a read.
    Major,
    /// The page was in memory, or fresh.
    Minor,
}

/// One page fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultSample {
    /// Whether the program waited.
    pub kind: FaultKind,
    /// The process that faulted.
    pub process: u32,
    /// Its thread that did.
    pub thread: u32,
    /// The address that it wanted.
    pub address: u64,
    /// When the fault had been served: nanoseconds of a clock that all CPUs share.
    pub time_ns: u64,
}

/// The counters of one CPU.
#[derive(Debug)]
struct CpuCounters {
    major: OwnedFd,
    minor: OwnedFd,
    /// The kernel's number of `major`, by which its samples are known.
    major_id: u64,
    ring: Ring,
}

/// Counters of page faults, on every CPU that is online.
#[derive(Debug)]
pub struct FaultCounters {
    cpus: Vec<CpuCounters>,
}

impl FaultCounters {
    /// Counts faults of the programs that the calling thread starts from now on, each from its exec on.
    pub fn of_programs_started() -> io::Result<Self> {
        Self::open(Counted::ThisThread, true)
    }

    /// Counts faults of the calling thread, and of what it starts.
    pub fn of_this_thread() -> io::Result<Self> {
        Self::open(Counted::ThisThread, false)
    }

    /// Counts faults of every process of the machine; for root.
    pub fn of_all() -> io::Result<Self> {
        Self::open(Counted::All, false)
    }

    /// Counts faults of the processes in a cgroup of version 2, and in the groups in it, given by its directory.
    pub fn of_group(directory: BorrowedFd<'_>) -> io::Result<Self> {
        Self::open(Counted::Group(directory), false)
    }

    fn open(counted: Counted<'_>, is_from_exec_on: bool) -> io::Result<Self> {
        let mut cpus = Vec::new();
        for cpu in cpu_list::read(cpu_list::ONLINE)? {
            match CpuCounters::open(counted, cpu.into(), is_from_exec_on) {
                // It went offline meanwhile.
                Err(error) if error.raw_os_error() == Some(libc::ENODEV) => {}
                counters => cpus.push(counters?),
            }
        }
        if cpus.is_empty() {
            return Err(io::Error::from_raw_os_error(libc::ENODEV));
        }
        Ok(Self { cpus })
    }

    /// Samples minor faults too, or no more.
    pub fn sample_minor(&self, wanted: bool) -> io::Result<()> {
        self.cpus.iter().try_for_each(|cpu| abi::switch(&cpu.minor, wanted))
    }

    /// Adds what was sampled since the last call to `samples`, in order of time. Returns how many were lost because
    /// nothing was taken out for too long.
    pub fn drain(&mut self, samples: &mut Vec<FaultSample>) -> u64 {
        let first = samples.len();
        let mut lost = 0;
        for cpu in &mut self.cpus {
            let major_id = cpu.major_id;
            lost += cpu.ring.drain(|record| samples.push(record.sample(major_id)));
        }
        // A thread that moves between CPUs has samples in several rings.
        samples[first..].sort_by_key(|sample| sample.time_ns);
        lost
    }

    /// One descriptor for each CPU, readable when there is something to [`FaultCounters::drain`].
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.cpus.iter().map(|cpu| cpu.major.as_fd())
    }
}

impl CpuCounters {
    fn open(counted: Counted<'_>, cpu: u32, is_from_exec_on: bool) -> io::Result<Self> {
        let mut of_major = Attribute::of_faults(abi::MAJOR_FAULTS, 1);
        let mut of_minor = Attribute::of_faults(abi::MINOR_FAULTS, MINORS_PER_WAKE);
        if matches!(counted, Counted::ThisThread) {
            [&mut of_major, &mut of_minor].into_iter().for_each(Attribute::inherit);
        }
        if is_from_exec_on {
            of_major.start_at_exec();
        }
        of_minor.start_disabled();
        let major = abi::open(&of_major, counted, cpu)?;
        let minor = abi::open(&of_minor, counted, cpu)?;
        let ring = Ring::map(&major)?;
        abi::redirect(&minor, major.as_raw_fd())?;
        let major_id = abi::id(&major)?;
        Ok(Self { major, minor, major_id, ring })
    }
}

/// Whether this kernel lets this user sample page faults of its own programs, or what it says instead.
pub fn probe() -> io::Result<()> {
    FaultCounters::of_this_thread().map(drop)
}

#[cfg(test)]
mod tests;
