//! Threads of this process on one CPU.

use std::io;

use rustix::thread::{CpuSet, sched_setaffinity};

/// Binds the calling thread to `cpu`, if one is named.
pub fn pin(cpu: Option<usize>) -> io::Result<()> {
    let Some(cpu) = cpu else { return Ok(()) };
    let mut set = CpuSet::new();
    set.set(cpu);
    Ok(sched_setaffinity(None, &set)?)
}
