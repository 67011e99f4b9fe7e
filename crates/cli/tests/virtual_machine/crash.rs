//! The process that serves the machine's swap is killed, again and again, while the machine is far beyond its memory: its
//! keeper starts another one, the kernel gives that one every request without an answer, and no byte is wrong.

use std::time::Duration;

use crate::front_ends::{FrontEnd, NBD, UBLK};
use crate::guest::{Guest, SLABS, builder};
use crate::overcommit::{assert_exact, verifiers, wait_swapped};

/// How often.
const KILLS: u64 = 3;

/// On front ends whose block devices outlive their processes.
fn swap_goes_on(front_end: FrontEnd, redundancy: &str) {
    let Some(guest) = Guest::boot(builder(front_end, 448)) else { return };
    let start = |name: &str| guest.donor(name, "80M", &format!("unix:/run/{name}.sock"), "none");
    let donors = [("d0", start("d0")), ("d1", start("d1"))];
    let backing = if redundancy.contains("disk") { "--backing /disk/backing" } else { "" };
    guest.said(&format!(
        "spillway swap on --frontend {} --size 144M {SLABS} --redundancy {redundancy} {backing} --key none \
         --donor unix:/run/d0.sock --donor unix:/run/d1.sock",
        front_end.name
    ));
    let total_mib = guest.memory_mib("MemAvailable") + 96;
    let programs = guest.start(&verifiers(total_mib, 40));
    wait_swapped(&guest, 64);
    for kill in 1..=KILLS {
        guest.said("kill -9 $(pgrep -f -- --kept)");
        guest.wait_for(&format!("spillway status --json | grep -q 'started again, {kill} times'"));
        std::thread::sleep(Duration::from_secs(3));
    }
    assert_exact(&guest.end_of(&programs));
    let device = guest.device();
    assert_eq!(device["pages_lost"], 0, "{device:#}");
    guest.said("spillway swap off");
    for (name, donor) in donors {
        guest.signal_donor(name, "TERM");
        guest.end_of(&donor);
    }
    guest.said("! pgrep -f serve-device");
    guest.finish();
}

#[test]
fn swap_over_ublk_goes_on_with_a_disk_copy() {
    swap_goes_on(UBLK, "disk");
}

#[test]
fn swap_over_ublk_goes_on_with_donors_alone() {
    swap_goes_on(UBLK, "none");
}

#[test]
fn swap_over_nbd_goes_on_with_a_disk_copy() {
    swap_goes_on(NBD, "disk");
}
