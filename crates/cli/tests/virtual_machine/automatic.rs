//! `--frontend auto`: the best way into the kernel that is there, and why, in words.

use crate::virtual_machine::guest::{Guest, SLABS};

/// Starts a device without a word about front ends; what it says of its own, to people too.
fn chosen(guest: &Guest) -> String {
    guest.said(&format!("spillway device on --size 32M {SLABS} --redundancy none --key none --donor unix:/run/d.sock"));
    let told = guest.device()["frontend"].as_str().expect("the front end is told").to_owned();
    let status = guest.said("spillway status");
    assert!(status.contains(&format!("front end: {told}\n")), "{status}");
    guest.said("spillway device off");
    told
}

/// What `doctor` says of the choice, which makes no device.
fn announced(guest: &Guest) -> String {
    let doctor: serde_json::Value =
        serde_json::from_str(&guest.said("spillway doctor --json")).expect("doctor writes JSON");
    let checks = doctor["checks"].as_array().expect("doctor lists its checks");
    let check = checks.iter().find(|check| check["name"] == "front end").expect("one is of the choice");
    check["detail"].as_str().expect("it has words").to_owned()
}

/// Lets a device choose; what it says is what `doctor` announced.
fn chosen_as_announced(guest: &Guest) -> String {
    let (announced, told) = (announced(guest), chosen(guest));
    assert_eq!(announced, format!("auto takes {told}"));
    told
}

/// Linux 6.12. Takes its drivers away, one after the other.
pub(crate) fn the_newer_kernel_gives_ublk_then_nbd_then_loop(guest: &Guest) {
    guest.said("modprobe -a ublk_drv nbd");
    let donor = guest.donor("d", "64M", "unix:/run/d.sock", "none");
    let told = chosen_as_announced(guest);
    assert!(told.starts_with("ublk ("), "{told}");
    guest.said("rmmod ublk_drv");
    let told = chosen_as_announced(guest);
    assert!(told.starts_with("nbd (") && told.contains("no ublk: ") && told.contains("modprobe ublk_drv"), "{told}");
    guest.said("rmmod nbd");
    let told = chosen_as_announced(guest);
    assert!(told.starts_with("loop-fuse (") && told.contains("no nbd: ") && told.contains("modprobe nbd"), "{told}");
    guest.end_donor("d", &donor);
}

/// Linux 6.1, which has no ublk.
pub(crate) fn the_older_kernel_gives_nbd(guest: &Guest) {
    let donor = guest.donor("d", "64M", "unix:/run/d.sock", "none");
    let told = chosen_as_announced(guest);
    assert!(told.starts_with("nbd (") && told.contains("no ublk: "), "{told}");
    guest.end_donor("d", &donor);
}
