//! Devices of the kernel's NBD driver that no process serves any more.
//!
//! Their requests already fail, or wait for another process; which of them are waited for, the caller must know.

use std::fs;
use std::io;

use crate::front_end::FrontEndError;
use crate::nbd::device::driver;
use crate::nbd::identity::{self, identifier_of};
use crate::ownership::Ownership;

/// An NBD device of ours whose process is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AbandonedNbd {
    /// Its number: `/dev/nbdN`.
    pub index: u32,
    /// Who made it.
    pub maker: Ownership,
}

impl AbandonedNbd {
    /// The block device.
    pub fn path(&self) -> std::path::PathBuf {
        identity::path_of(self.index)
    }
}

/// NBD devices of ours whose processes are gone. Linux before 5.14 does not say whose a device is.
pub fn list() -> Result<Vec<AbandonedNbd>, FrontEndError> {
    let mut abandoned = Vec::new();
    for index in devices().map_err(FrontEndError::system("cannot list block devices"))? {
        abandoned.extend(examine(index)?);
    }
    Ok(abandoned)
}

/// The device of that number, if no process serves it.
fn examine(index: u32) -> Result<Option<AbandonedNbd>, FrontEndError> {
    let Some(identifier) = identifier_of(index) else { return Ok(None) };
    let found = identity::examine(index, &identifier);
    let found = found.map_err(FrontEndError::system("cannot look for a device's process"))?;
    Ok(found.and_then(|(maker, is_abandoned)| is_abandoned.then_some(AbandonedNbd { index, maker })))
}

/// Ends a device that [`list`] named; the process that has it open gets I/O errors. Its number is free once no process
/// has. Nothing is done if the number is another device's by now, or is served again.
pub fn end(abandoned: &AbandonedNbd) -> Result<(), FrontEndError> {
    if examine(abandoned.index)?.as_ref() != Some(abandoned) {
        return Ok(());
    }
    let ended = driver()?.disconnect(abandoned.index);
    ended.map_err(FrontEndError::system(format!("cannot end {}", abandoned.path().display())))?;
    identity::forget(abandoned.index);
    Ok(())
}

fn devices() -> io::Result<Vec<u32>> {
    let number = |entry: fs::DirEntry| entry.file_name().to_str()?.strip_prefix("nbd")?.parse().ok();
    Ok(fs::read_dir("/sys/block")?.flatten().filter_map(number).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_devices_are_looked_at_and_those_of_others_left_alone() {
        devices().unwrap();
        let mine = std::process::id();
        assert!(list().unwrap().iter().all(|abandoned| abandoned.maker.process.pid != mine));
    }
}
