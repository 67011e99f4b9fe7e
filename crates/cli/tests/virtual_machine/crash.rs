//! The process that serves the machine's swap is killed, again and again, while programs page far beyond their
//! memory: its keeper starts another one, the kernel gives that one every request without an answer, and no byte is
//! wrong.

use std::time::Duration;

use spillway_virtual_machine::emulated;

use crate::virtual_machine::agent::{end_paging, start_paging};
use crate::virtual_machine::front_ends::{FrontEnd, NBD, UBLK};
use crate::virtual_machine::guest::{Guest, SLABS, builder};

/// How often.
const KILLS: u64 = 3;

/// Kills the process that serves swap, for the `kill`th time; another one serves when this returns.
pub(crate) fn kill_the_server(guest: &Guest, kill: u64) {
    guest.wait_for("pgrep -f -- --kept >/dev/null");
    guest.said("kill -9 $(pgrep -f -- --kept)");
    // More often where one failed to start, on a guest short of memory.
    guest.wait_for(&format!(
        "[ \"0$(spillway status --json | grep -o 'started again, [0-9]*' | tr -dc 0-9)\" -ge {kill} ]"
    ));
}

/// Kills some of the next serving processes as soon as each is there: while it takes the block device over.
fn kill_followers(guest: &Guest) {
    let area = guest.said("awk 'NR>1 { print $1 }' /proc/swaps");
    let kill = "until pid=$(pgrep -f -- --kept) && kill -9 $pid 2>/dev/null; do :; done; \
                while [ -d /proc/$pid ]; do :; done";
    guest.said(&format!("for kill in 1 2 3 4 5; do {kill}; done"));
    // Followers that died before they counted their start are not counted.
    kill_the_server(guest, KILLS + 1);
    let devices = guest.said("ls -d /dev/ublkb* /dev/nbd*p* 2>/dev/null | wc -l");
    assert!(devices.parse::<u32>().is_ok_and(|count| count <= 1), "{devices} block devices in place of {area}");
}

/// On front ends whose block devices outlive their processes. Every page has a second copy, because in an emulated
/// guest a donor may get no processor for two seconds, and is given up.
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
        kill_the_server(&guest, kill);
        // Paging goes on for a while.
        std::thread::sleep(Duration::from_secs(1));
    }
    kill_followers(&guest);
    end_paging(&guest, &programs);
    let device = guest.device();
    assert_eq!(device["pages_lost"], 0, "{device:#}");
    guest.said("spillway swap off");
    for (name, donor) in donors {
        guest.end_donor(name, &donor);
    }
    assert!(guest.items("device").is_empty());
    guest.finish();
}

#[test]
#[ignore = "the agent's test kills it once: `make soak` runs it"]
fn swap_over_ublk_goes_on_with_a_disk_copy() {
    emulated(|| {
        swap_goes_on(UBLK, "disk");
    });
}

#[test]
#[ignore = "the agent's test kills it once: `make soak` runs it"]
fn swap_over_ublk_goes_on_with_donors_alone() {
    emulated(|| {
        swap_goes_on(UBLK, "replicas=2");
    });
}

#[test]
#[ignore = "the agent's test kills it once: `make soak` runs it"]
fn swap_over_nbd_goes_on_with_a_disk_copy() {
    emulated(|| {
        swap_goes_on(NBD, "disk");
    });
}
