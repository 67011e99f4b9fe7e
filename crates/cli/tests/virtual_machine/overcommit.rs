//! The whole machine far beyond its memory, the agent and donors inside of the same pressure.

use std::time::Duration;

use crate::support::soak_seconds;
use crate::virtual_machine::front_ends::FrontEnd;
use crate::virtual_machine::guest::{Guest, SLABS, builder};

/// How long programs may take that fill a machine twice and then go on for `seconds`: to fill it took four minutes,
/// emulated on a loaded host.
pub(crate) fn overcommit_within(seconds: u64) -> Duration {
    Duration::from_secs(1200 + 2 * seconds)
}

on_front_end!(ublk, UBLK, a_machine_beyond_its_memory_loses_nothing_when_donors_die_and_stop);
on_front_end!(
    nbd,
    NBD,
    #[ignore = "a minute, emulated, of what it does on ublk: `make soak` runs it"]
    a_machine_beyond_its_memory_loses_nothing_when_donors_die_and_stop
);
on_front_end!(
    loop_fuse,
    LOOP_FUSE,
    #[ignore = "a minute, emulated, of what it does on ublk: `make soak` runs it"]
    a_machine_beyond_its_memory_loses_nothing_when_donors_die_and_stop
);

/// Verifiers that fill `total_mib` together, as one script; each checks and rewrites its pages for `seconds`.
pub(crate) fn verifiers(total_mib: u64, seconds: u64) -> String {
    let one = |seed: u64| format!("verifier {} {seconds} {seed} & p{seed}=$!; ", total_mib / 4);
    let all: String = (1..=4).map(one).collect();
    format!("{all} for p in $p1 $p2 $p3 $p4; do wait $p; done")
}

/// What [`verifiers`] say when no page is lost.
pub(crate) fn assert_exact(output: &str) {
    assert_eq!(output.matches("wrong 0").count(), 4, "{output}");
}

/// Waits until the backing file has all its blocks: from then on writing pages to it changes no map of the file
/// system's.
pub(crate) fn wait_filled(guest: &Guest) {
    guest.wait_for("spillway status --json | grep -q '\"blocks\": *\"all\"'");
}

/// Waits until programs have so much in swap.
pub(crate) fn wait_swapped(guest: &Guest, mib: u64) {
    guest.wait_for(&format!(
        "[ $(awk 'NR>1 {{ used += $4 }} END {{ print int(used / 1024) }}' /proc/swaps) -ge {mib} ]"
    ));
}

fn a_machine_beyond_its_memory_loses_nothing_when_donors_die_and_stop(front_end: FrontEnd) {
    let Some(guest) = Guest::boot(builder(front_end, 448)) else { return };
    let start = |name: &str| guest.donor(name, "64M", &format!("unix:/run/{name}.sock"), "none");
    let (first, second) = (start("d0"), start("d1"));
    guest.said(&format!(
        "spillway swap on --frontend {} --size 384M {SLABS} --redundancy disk --backing /disk/backing --key none \
         --donor unix:/run/d0.sock --donor unix:/run/d1.sock",
        front_end.name
    ));
    wait_filled(&guest);
    // Donors and agent have their memory; the programs fill twice what is left.
    let total_mib = 2 * guest.memory_mib("MemAvailable");
    let seconds = soak_seconds(12);
    let programs = guest.start(&verifiers(total_mib, seconds));
    wait_swapped(&guest, total_mib / 4);
    guest.signal_donor("d0", "KILL");
    let killed = guest.machine_end(&first);
    assert_eq!(killed, 137);
    std::thread::sleep(Duration::from_secs(2));
    // Another one would find no memory to lend.
    guest.said("spillway doctor --mend");
    guest.signal_donor("d1", "STOP");
    // Silence is allowed for two seconds.
    std::thread::sleep(Duration::from_secs(4));
    guest.signal_donor("d1", "CONT");
    assert_exact(&guest.end_within(&programs, overcommit_within(seconds)));
    let device = guest.device();
    assert_eq!(device["pages_lost"], 0, "{device:#}");
    guest.said("spillway swap off");
    guest.signal_donor("d1", "TERM");
    guest.end_of(&second);
    guest.finish();
}
