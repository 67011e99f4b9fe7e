//! Whether the kernel offers rings to FUSE filesystems, and how they are switched on for one mount.
//!
//! Linux 6.14 and later have FUSE over io_uring, switched off for the whole machine (`fuse.enable_uring`). The kernel
//! reads the switch when a filesystem is mounted and when its first reply comes. So it is on for that moment only, and
//! then as the administrator had it. A filesystem that is mounted meanwhile is offered rings too, and has none unless
//! it asks for them. A lock on the switch keeps processes of ours from putting back what another one has set.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use rustix::fs::{FlockOperation, flock};

use crate::front_end::FrontEndError;
use crate::limits::RING_CPUS_MAX;

/// The switch (kernel document `filesystems/fuse/fuse-io-uring.rst`).
const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

/// CPUs that the kernel may have: it makes a queue for each.
const POSSIBLE_CPUS: &str = "/sys/devices/system/cpu/possible";

/// The kernel's queues: CPUs that are possible, present or not.
pub(super) fn queue_count() -> io::Result<u16> {
    let text = fs::read_to_string(POSSIBLE_CPUS)?;
    count_of(&text).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, format!("{POSSIBLE_CPUS} holds '{text}'")))
}

/// The CPUs in a list of ranges such as `0-3,8`.
fn count_of(list: &str) -> Option<u16> {
    list.trim().split(',').try_fold(0_u16, |count, range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last) = (first.parse::<u16>().ok()?, last.parse::<u16>().ok()?);
        count.checked_add(last.checked_sub(first)?.checked_add(1)?)
    })
}

/// Whether a filesystem of this process can have rings, or what is missing for them.
pub(super) fn probe() -> Result<(), FrontEndError> {
    if !Path::new(SWITCH).exists() {
        let text = "this kernel's FUSE has no rings; Linux 6.14 or later has them";
        return Err(FrontEndError::Missing(text.to_owned()));
    }
    let count = queue_count().map_err(FrontEndError::system("cannot count CPUs"))?;
    if count > RING_CPUS_MAX {
        let text = format!("this machine may have {count} CPUs, and rings are for {RING_CPUS_MAX} at most");
        return Err(FrontEndError::Missing(text));
    }
    if !is_on()? {
        open_switch()?;
    }
    Ok(())
}

fn is_on() -> Result<bool, FrontEndError> {
    let text = fs::read_to_string(SWITCH).map_err(FrontEndError::system(format!("cannot read {SWITCH}")))?;
    Ok(text.starts_with('Y'))
}

fn open_switch() -> Result<File, FrontEndError> {
    File::options().read(true).write(true).open(SWITCH).map_err(|error| {
        FrontEndError::Missing(format!(
            "rings for FUSE are off and cannot be switched on ({error}); switch them on as root (echo Y > {SWITCH})"
        ))
    })
}

/// Rings are switched on while this lives.
#[derive(Debug)]
pub(super) struct RingsOn {
    /// The switch, where it was off; its lock goes with it.
    switch: Option<File>,
}

impl RingsOn {
    /// Switches rings on, if they are off.
    pub(super) fn new() -> Result<Self, FrontEndError> {
        probe()?;
        if is_on()? {
            return Ok(Self { switch: None });
        }
        let mut switch = open_switch()?;
        flock(&switch, FlockOperation::LockExclusive)
            .map_err(|errno| FrontEndError::system(format!("cannot lock {SWITCH}"))(errno.into()))?;
        // The administrator may have switched it on meanwhile; a process of ours has put it back by now.
        if is_on()? {
            return Ok(Self { switch: None });
        }
        switch.write_all(b"Y").map_err(FrontEndError::system(format!("cannot write to {SWITCH}")))?;
        Ok(Self { switch: Some(switch) })
    }
}

impl Drop for RingsOn {
    fn drop(&mut self) {
        let Some(mut switch) = self.switch.take() else { return };
        if let Err(error) = switch.write_all(b"N") {
            tracing::error!("{SWITCH} stays on: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_are_counted() {
        assert_eq!(count_of("0\n"), Some(1));
        assert_eq!(count_of("0-1\n"), Some(2));
        assert_eq!(count_of("0-3,8,10-11\n"), Some(7));
        for nonsense in ["", "3-1", "a", "0-70000", "-"] {
            assert_eq!(count_of(nonsense), None, "{nonsense}");
        }
    }
}
