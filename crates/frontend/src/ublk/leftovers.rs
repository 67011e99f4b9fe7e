//! Ublk devices of Spillway that no process serves any more.
//!
//! After a kill of the serving process, a device is in one of two states. A plain device has lost its block device, and
//! only its number is left. A recoverable device keeps its block device, and its users wait for another process. The
//! caller must know for which recoverable devices no process will come.

use std::fs;
use std::io;

use spillway_sys::process::{self, ProcessIdentity};
use spillway_sys::ublk::abi::{DeviceInfo, DeviceState};
use spillway_sys::ublk::control::{CONTROL_PATH, Control};

use crate::front_end::FrontEndError;
use crate::identity::UblkIdentity;
use crate::limits::{UBLK_COMMAND_DEADLINE, UBLK_DELETE_DEADLINE, UBLK_STOP_DEADLINE};
use crate::ublk::device::open_driver;
use crate::ublk::identity;

/// A ublk device of Spillway whose serving process has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AbandonedUblk {
    /// The number of the device.
    pub identity: UblkIdentity,
    /// The process that added the device.
    pub maker_pid: u32,
    /// Whether the users of the device wait for another process; if not, the block device is gone.
    pub is_waited_for: bool,
}

/// The ublk devices of Spillway whose serving processes have ended.
pub fn list() -> Result<Vec<AbandonedUblk>, FrontEndError> {
    // Without the driver, or with a driver that must not be used, Spillway has no device.
    if !std::path::Path::new(CONTROL_PATH).exists() {
        return Ok(Vec::new());
    }
    let Ok(mut control) = open_driver() else { return Ok(Vec::new()) };
    let devices = devices().map_err(FrontEndError::system("cannot list ublk devices"))?;
    Ok(devices.into_iter().filter_map(|device| examine(&mut control, device)).collect())
}

/// Deletes a device that [`list`] named; processes that wait for the device get I/O errors. Does nothing if the number
/// belongs to another device by now, or if a process serves the device again.
pub fn delete(identity: UblkIdentity) -> Result<(), FrontEndError> {
    let mut control = open_driver()?;
    let device = identity.device_id;
    if examine(&mut control, device).is_none() {
        return Ok(());
    }
    match control.stop(device, UBLK_STOP_DEADLINE) {
        // Another process was faster.
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::NODEV.raw_os_error()) => return Ok(()),
        result => result.map_err(FrontEndError::system(format!("cannot stop {}", identity.path().display())))?,
    }
    match control.delete(device, UBLK_DELETE_DEADLINE) {
        // The kernel removes the device when its last user closes it.
        Err(error) if error.kind() == io::ErrorKind::TimedOut => Err(FrontEndError::Busy(format!(
            "{path} has lost its server and is still open; free it with swapoff {path} or umount {path}",
            path = identity.path().display()
        ))),
        result => result.map_err(FrontEndError::system(format!("cannot delete ublk device {device}"))),
    }
}

/// The numbers of all ublk devices, also those of other programs.
fn devices() -> io::Result<Vec<u32>> {
    let entries = match fs::read_dir("/sys/class/ublk-char") {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        result => result?,
    };
    let number = |entry: fs::DirEntry| entry.file_name().to_str()?.strip_prefix("ublkc")?.parse().ok();
    Ok(entries.flatten().filter_map(number).collect())
}

fn examine(control: &mut Control, device: u32) -> Option<AbandonedUblk> {
    // A device may be deleted during the listing.
    let info = control.info(device, UBLK_COMMAND_DEADLINE).ok()?;
    let alive = |pid| ProcessIdentity::of_trusted(pid).ok().flatten();
    judge(&info, alive).filter(|abandoned| !may_live_elsewhere(info.tag, abandoned.maker_pid))
}

/// Whether the maker of a device may live in another PID namespace, in which the maker has this number.
fn may_live_elsewhere(tag: u64, maker_pid: u32) -> bool {
    let is_maker = |process: &ProcessIdentity| identity::is_maker(tag, *process);
    !process::sees_every_process() || process::nested(maker_pid).is_ok_and(|found| found.iter().any(is_maker))
}

/// Whether no process serves the device, by what the kernel says of the device and of processes.
fn judge(info: &DeviceInfo, alive: impl Fn(u32) -> Option<ProcessIdentity>) -> Option<AbandonedUblk> {
    // Any user may make a device with any tag where the kernel allows it (UBLK_F_UNPRIVILEGED_DEV).
    let is_own = info.owner == rustix::process::geteuid().as_raw();
    let maker_pid = identity::maker(info.tag).filter(|_| is_own)?;
    let maker_lives = alive(maker_pid).is_some_and(|process| identity::is_maker(info.tag, process));
    // A recovered device is served by a process that is not its maker. A live device is served.
    let server_lives =
        info.state == DeviceState::Live && u32::try_from(info.server_pid).ok().and_then(&alive).is_some();
    let is_waited_for = info.state == DeviceState::Quiesced;
    let is_abandoned = is_waited_for || (!maker_lives && !server_lives);
    let identity = UblkIdentity { device_id: info.device };
    is_abandoned.then_some(AbandonedUblk { identity, maker_pid, is_waited_for })
}

#[cfg(test)]
mod tests {
    use spillway_sys::ublk::abi::Features;

    use super::*;

    const MAKER: ProcessIdentity = ProcessIdentity { pid: 100, start_ticks: 5000 };
    const OTHER: ProcessIdentity = ProcessIdentity { pid: 200, start_ticks: 6000 };

    fn device(state: DeviceState, server_pid: i32) -> DeviceInfo {
        DeviceInfo {
            queue_count: 1,
            queue_depth: 1,
            state,
            request_size_bytes_max: 4096,
            device: 3,
            server_pid,
            features: Features::default(),
            tag: identity::tag_of(MAKER),
            owner: rustix::process::geteuid().as_raw(),
        }
    }

    fn among(living: &[ProcessIdentity]) -> impl Fn(u32) -> Option<ProcessIdentity> {
        move |pid| living.iter().copied().find(|process| process.pid == pid)
    }

    #[test]
    fn a_device_whose_maker_lives_is_not_abandoned_served_or_not() {
        for info in [device(DeviceState::Live, 100), device(DeviceState::Dead, -1)] {
            assert_eq!(judge(&info, among(&[MAKER])), None, "{info:?}");
        }
    }

    #[test]
    fn a_device_whose_maker_died_is_abandoned_unless_another_serves_it() {
        let reused = ProcessIdentity { start_ticks: 7000, ..MAKER };
        for living in [&[][..], &[OTHER], &[reused]] {
            let found = judge(&device(DeviceState::Dead, -1), among(living)).unwrap();
            assert_eq!((found.identity.device_id, found.maker_pid, found.is_waited_for), (3, 100, false));
        }
        assert_eq!(judge(&device(DeviceState::Live, 200), among(&[OTHER])), None);
        assert!(judge(&device(DeviceState::Live, 200), among(&[])).is_some());
    }

    #[test]
    fn a_device_that_waits_is_told_apart() {
        // The maker may live: an agent that lost its I/O threads.
        for living in [&[][..], &[MAKER]] {
            assert!(judge(&device(DeviceState::Quiesced, 100), among(living)).unwrap().is_waited_for);
        }
    }

    #[test]
    fn devices_of_others_are_never_ours() {
        let dead = device(DeviceState::Dead, -1);
        let owner = dead.owner + 1;
        for info in [DeviceInfo { tag: 0, ..dead }, DeviceInfo { owner, ..dead }] {
            assert_eq!(judge(&info, among(&[])), None);
        }
    }
}
