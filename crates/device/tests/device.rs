//! Whole devices through the kernel: this process's own memory behind the front end.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use spillway_block::cpu_idle::KeepAwake;
use spillway_device::config::DeviceConfig;
use spillway_device::device::{Device, DeviceError};
use spillway_frontend::choice::FrontEndChoice;
use spillway_frontend::front_end::FrontEndError;
use spillway_testing::block_devices::can_run;
use spillway_volume::error::VolumeError;
use spillway_volume::settings::VolumeConfig;

fn config(name: &str) -> DeviceConfig {
    DeviceConfig {
        volume: VolumeConfig {
            donor_wait: Duration::from_secs(60),
            ..VolumeConfig::new(name, 60 << 20, 4 << 20, Vec::new())
        },
        keep_awake: KeepAwake::default(),
        front_end: FrontEndChoice::Auto,
        listen: None,
        io_threads: None,
        local_memory: true,
    }
}

#[test]
fn what_is_written_to_the_block_device_is_read_back() {
    if !can_run() {
        return;
    }
    let mut device = Device::start(config("device-test-bytes")).unwrap();
    assert_eq!(device.size_bytes(), 60 << 20);
    let file = File::options().read(true).write(true).open(device.path()).unwrap();
    let pattern: Vec<u8> = (0..3 << 20).map(|index: u32| (index / 7) as u8).collect();
    file.write_all_at(&pattern, 5 << 20).unwrap();
    file.sync_all().unwrap();
    let mut back = vec![0; pattern.len()];
    file.read_exact_at(&mut back, 5 << 20).unwrap();
    assert!(back == pattern);
    drop(file);
    let status = device.status();
    assert!(status.traffic.pages_out >= 768, "{:?}", status.traffic);
    let name = device.path().file_name().unwrap().to_string_lossy().into_owned();
    let bound_to = || std::fs::read_to_string(format!("/sys/block/{name}/loop/backing_file")).ok();
    let ours = bound_to();
    device.stop().unwrap();
    // Another test may have taken the number since.
    assert!(bound_to().is_none_or(|file| Some(file) != ours), "the loop device is free");
}

#[test]
fn a_device_that_is_open_is_not_stopped() {
    if !can_run() {
        return;
    }
    let mut device = Device::start(config("device-test-busy")).unwrap();
    let file = File::options().read(true).write(true).open(device.path()).unwrap();
    assert!(matches!(device.stop(), Err(DeviceError::FrontEnd(FrontEndError::Busy(_)))));
    file.write_all_at(&[7; 4096], 0).unwrap();
    file.sync_all().unwrap();
    drop(file);
    device.stop().unwrap();
    device.stop().unwrap();
}

#[test]
fn without_a_donor_nothing_is_left_behind() {
    if !can_run() {
        return;
    }
    let mut config = config("device-test-alone");
    config.local_memory = false;
    config.volume.donor_wait = Duration::from_millis(300);
    config.volume.donors = vec!["unix:/nonexistent/donor.sock".parse().unwrap()];
    let Err(error) = Device::start(config) else { panic!("there is no donor") };
    assert!(matches!(error, DeviceError::Volume(VolumeError::NoDonor { .. })), "{error}");
    assert!(error.to_string().contains("/nonexistent/donor.sock"), "{error}");
    let mounts = std::fs::read_to_string("/proc/mounts").unwrap();
    assert!(!mounts.contains("device-test-alone"), "{mounts}");
}
