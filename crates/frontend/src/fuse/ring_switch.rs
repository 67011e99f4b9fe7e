//! Whether the kernel offers rings to FUSE filesystems, and how they are switched on for one mount.
//!
//! Linux 6.14 and later have FUSE over io_uring, switched off for the whole machine (`fuse.enable_uring`). The kernel
//! reads the switch when a filesystem is mounted and when its first reply comes. So it is on for that moment only, and
//! then as the administrator had it. A filesystem that is mounted meanwhile is offered rings too, and has none unless
//! it asks for them. A lock on the switch keeps processes of ours from putting back what another one has set.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use spillway_sys::cpu_list;

use crate::front_end::FrontEndError;
use crate::limits::RING_CPUS_MAX;

/// The switch (kernel document `filesystems/fuse/fuse-io-uring.rst`).
const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

/// How long another process may be mounting: far longer than a mount takes.
const LOCK_PATIENCE: Duration = Duration::from_secs(10);

/// The kernel's queues, one for each CPU that is possible, present or not.
pub(super) fn queue_count() -> io::Result<u16> {
    let count = cpu_list::read(cpu_list::POSSIBLE)?.len();
    u16::try_from(count).map_err(|_| io::Error::other(format!("{count} CPUs are more than there are numbers for")))
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
        let (mut switch, writable) = match open_switch() {
            Ok(switch) => (switch, true),
            Err(_) => (File::open(SWITCH).map_err(FrontEndError::system(format!("cannot open {SWITCH}")))?, false),
        };
        // Only under the lock is it known that the administrator has them on, and not a process that puts them back.
        lock(&switch)?;
        if is_on()? {
            return Ok(Self { switch: None });
        }
        if !writable {
            switch = open_switch()?;
        }
        switch.write_all(b"Y").map_err(FrontEndError::system(format!("cannot write to {SWITCH}")))?;
        Ok(Self { switch: Some(switch) })
    }
}

/// Locks the switch. Every process that may read it may lock it, so the wait has an end.
fn lock(switch: &File) -> Result<(), FrontEndError> {
    let give_up = Instant::now() + LOCK_PATIENCE;
    loop {
        match flock(switch, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(()),
            Err(Errno::WOULDBLOCK) if Instant::now() < give_up => thread::sleep(Duration::from_millis(1)),
            Err(Errno::WOULDBLOCK) => {
                let text = format!("another process keeps {SWITCH} locked (lslocks names it)");
                return Err(FrontEndError::Missing(text));
            }
            Err(errno) => return Err(FrontEndError::system(format!("cannot lock {SWITCH}"))(errno.into())),
        }
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
