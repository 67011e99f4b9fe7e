//! `--frontend auto`: the best way into the kernel that is there, and why, in words.

use crate::guest::{Guest, SLABS};

/// Starts a device without a word about front ends; what it says of its own.
fn chosen(guest: &Guest) -> String {
    guest.said(&format!("spillway device on --size 32M {SLABS} --redundancy none --key none --donor unix:/run/d.sock"));
    let told = guest.device()["frontend"].as_str().expect("the front end is told").to_owned();
    guest.said("spillway device off");
    told
}

/// Linux 6.12. Takes its drivers away, one after the other.
pub(crate) fn the_newer_kernel_gives_ublk_then_nbd_then_loop(guest: &Guest) {
    guest.said("modprobe -a ublk_drv nbd");
    let donor = guest.donor("d", "64M", "unix:/run/d.sock", "none");
    let told = chosen(guest);
    assert!(told.starts_with("ublk ("), "{told}");
    guest.said("rmmod ublk_drv");
    let told = chosen(guest);
    assert!(told.starts_with("nbd (") && told.contains("no ublk: ") && told.contains("modprobe ublk_drv"), "{told}");
    guest.said("rmmod nbd");
    let told = chosen(guest);
    assert!(told.starts_with("loop-fuse (") && told.contains("no nbd: ") && told.contains("modprobe nbd"), "{told}");
    guest.end_donor("d", &donor);
}

/// Linux 6.1, which has no ublk.
pub(crate) fn the_older_kernel_gives_nbd(guest: &Guest) {
    let donor = guest.donor("d", "64M", "unix:/run/d.sock", "none");
    let told = chosen(guest);
    assert!(told.starts_with("nbd (") && told.contains("no ublk: "), "{told}");
    let doctor = guest.said("spillway doctor --json").to_lowercase();
    assert!(doctor.contains("ublk") && doctor.contains("nbd"), "{doctor}");
    guest.end_donor("d", &donor);
}
