//! The process that serves the machine's swap is killed, again and again, while programs page far beyond their memory: its
//! keeper starts another one, the kernel gives that one every request without an answer, and no byte is wrong.

use std::time::Duration;

use spillway_virtual_machine::emulated;
use spillway_virtual_machine::machine::Job;

use crate::front_ends::{FrontEnd, NBD, UBLK};
use crate::guest::{Guest, SLABS, builder};
use crate::overcommit::{assert_exact, verifiers, wait_swapped};

/// How often.
const KILLS: u64 = 3;

/// Starts programs, of which half is in swap when this returns; they work until they get SIGUSR1. Donors have their memory, with
/// which they are alone.
fn start_paging(guest: &Guest) -> Job {
    guest.said("cd /sys/fs/cgroup; echo +memory >cgroup.subtree_control; mkdir paging; echo 64M >paging/memory.max");
    let programs = guest.start(&format!("echo 0 >/sys/fs/cgroup/paging/cgroup.procs; {}", verifiers(128, 3600)));
    wait_swapped(guest, 32);
    programs
}

/// On front ends whose block devices outlive their processes. Every page has a second copy, because in an emulated guest a donor may
/// get no processor for two seconds, and is given up.
fn swap_goes_on(front_end: FrontEnd, redundancy: &str) {
    let Some(guest) = Guest::boot(builder(front_end, 768)) else { return };
    let start = |name: &str| guest.donor(name, "160M", &format!("unix:/run/{name}.sock"), "none");
    let donors = [("d0", start("d0")), ("d1", start("d1"))];
    let backing = if redundancy.contains("disk") { "--backing /disk/backing" } else { "" };
    guest.said(&format!(
        "spillway swap on --frontend {} --size 144M {SLABS} --redundancy {redundancy} {backing} --key none \
         --donor unix:/run/d0.sock --donor unix:/run/d1.sock",
        front_end.name
    ));
    let programs = start_paging(&guest);
    for kill in 1..=KILLS {
        guest.wait_for("pgrep -f -- --kept >/dev/null");
        guest.said("kill -9 $(pgrep -f -- --kept)");
        // More often where one failed to start, on a guest short of memory.
        guest.wait_for(&format!(
            "[ \"0$(spillway status --json | grep -o 'started again, [0-9]*' | tr -dc 0-9)\" -ge {kill} ]"
        ));
        // Paging goes on for a while.
        std::thread::sleep(Duration::from_secs(1));
    }
    guest.said("pkill -USR1 verifier");
    assert_exact(&guest.end_of(&programs));
    let device = guest.device();
    assert_eq!(device["pages_lost"], 0, "{device:#}");
    guest.said("spillway swap off");
    for (name, donor) in donors {
        guest.signal_donor(name, "TERM");
        guest.end_of(&donor);
    }
    assert!(guest.items("device").is_empty());
    guest.finish();
}

#[test]
fn swap_over_ublk_whose_keeper_died_too_is_given_up() {
    emulated(|| {
        let Some(guest) = Guest::boot(builder(UBLK, 768)) else { return };
        let donor = guest.donor("d", "160M", "unix:/run/d.sock", "none");
        guest.said(&format!(
            "spillway swap on --frontend ublk --size 144M {SLABS} --redundancy none --key none --donor unix:/run/d.sock"
        ));
        let programs = start_paging(&guest);
        guest.said("kill -9 $(pgrep -f serve-device)");
        // Whoever needs a page waits for a process that will not come; so would `swapoff`.
        guest.said("spillway doctor --mend");
        guest.said("! grep ublkb /proc/swaps");
        // Their pages are lost, so they cannot have found them right.
        assert_ne!(guest.machine_end(&programs), 0);
        guest.signal_donor("d", "TERM");
        guest.end_of(&donor);
        guest.finish_after(&["I/O error, dev ublkb", "Memory cgroup out of memory"]);
    });
}

#[test]
fn swap_over_ublk_goes_on_with_a_disk_copy() {
    emulated(|| {
        swap_goes_on(UBLK, "disk");
    });
}

#[test]
fn swap_over_ublk_goes_on_with_donors_alone() {
    emulated(|| {
        swap_goes_on(UBLK, "replicas=2");
    });
}

#[test]
fn swap_over_nbd_goes_on_with_a_disk_copy() {
    emulated(|| {
        swap_goes_on(NBD, "disk");
    });
}
