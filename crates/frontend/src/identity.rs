//! Which block device a dead process left, as the process after it finds it.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// A block device that waits for another process, see [`take_over`](crate::choice::take_over).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FrontEndIdentity {
    /// Of the ublk driver.
    Ublk(UblkIdentity),
    /// Of the NBD driver.
    Nbd(NbdIdentity),
}

/// What a process must know to serve the device of another that died; to be stored where it survives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UblkIdentity {
    /// The device's number: `/dev/ublkbN`.
    pub device_id: u32,
}

impl UblkIdentity {
    /// The block device.
    pub fn path(self) -> PathBuf {
        format!("/dev/ublkb{}", self.device_id).into()
    }
}

/// What a process must know to serve the device of another that died; to be stored where it survives.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NbdIdentity {
    /// The device's number: `/dev/nbdN`.
    pub index: u32,
    /// The text that the kernel keeps.
    pub identifier: String,
    /// Its connections, one for each I/O thread.
    pub connections: usize,
}

impl NbdIdentity {
    /// The block device.
    pub fn path(&self) -> PathBuf {
        format!("/dev/nbd{}", self.index).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_is_one_number() {
        assert_eq!(UblkIdentity { device_id: 7 }.path(), PathBuf::from("/dev/ublkb7"));
    }
}
