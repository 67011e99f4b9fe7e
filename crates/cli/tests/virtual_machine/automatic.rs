//! `--frontend auto`: the best way into the kernel that is there, and why, in words.

use spillway_virtual_machine::{Kernel, emulated};

use crate::front_ends::FrontEnd;
use crate::guest::{Guest, SLABS, builder};

/// Starts a device without a word about front ends; what it says of its own.
fn chosen(guest: &Guest) -> String {
    guest.said(&format!("spillway device on --size 32M {SLABS} --redundancy none --key none --donor unix:/run/d.sock"));
    let told = guest.device()["frontend"].as_str().expect("the front end is told").to_owned();
    guest.said("spillway device off");
    told
}

fn boot(kernel: Kernel, modules: &'static [&'static str]) -> Option<Guest> {
    let guest = Guest::boot(builder(FrontEnd { name: "auto", kernel, modules }, 512))?;
    let _ends_with_the_machine = guest.donor("d", "64M", "unix:/run/d.sock", "none");
    Some(guest)
}

fn finish(guest: Guest) {
    guest.signal_donor("d", "TERM");
    guest.wait_for("[ -z \"$(spillway status --json | grep donor)\" ]");
    guest.finish();
}

#[test]
fn the_newer_kernel_gives_ublk_then_nbd_then_loop() {
    emulated(|| {
        let Some(guest) = boot(Kernel::Debian612, &["ublk_drv", "nbd"]) else { return };
        let told = chosen(&guest);
        assert!(told.starts_with("ublk ("), "{told}");
        guest.said("rmmod ublk_drv");
        let told = chosen(&guest);
        assert!(
            told.starts_with("nbd (") && told.contains("no ublk: ") && told.contains("modprobe ublk_drv"),
            "{told}"
        );
        guest.said("rmmod nbd");
        let told = chosen(&guest);
        assert!(
            told.starts_with("loop-fuse (") && told.contains("no nbd: ") && told.contains("modprobe nbd"),
            "{told}"
        );
        finish(guest);
    });
}

#[test]
fn the_older_kernel_gives_nbd() {
    emulated(|| {
        let Some(guest) = boot(Kernel::Debian61, &["nbd"]) else { return };
        let told = chosen(&guest);
        assert!(told.starts_with("nbd (") && told.contains("no ublk: "), "{told}");
        let doctor = guest.said("spillway doctor --json").to_lowercase();
        assert!(doctor.contains("ublk") && doctor.contains("nbd"), "{doctor}");
        finish(guest);
    });
}
