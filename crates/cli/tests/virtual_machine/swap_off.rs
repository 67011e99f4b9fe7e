//! The end of swap whose process is gone: what can be brought back is, and no process waits for what cannot.

use spillway_virtual_machine::emulated;
use spillway_virtual_machine::machine::Job;

use crate::virtual_machine::agent::{end_paging, lift_limit, start_paging};
use crate::virtual_machine::front_ends::{FrontEnd, LOOP_FUSE, NBD, UBLK};
use crate::virtual_machine::guest::{Guest, SLABS, builder};

/// What the kernel keeps back, in KiB.
fn reserve(guest: &Guest) -> String {
    guest.said("cat /proc/sys/vm/min_free_kbytes")
}

/// As little as on a small machine; with huge pages the kernel's own choice suffices.
fn lower_reserve(guest: &Guest) -> String {
    guest.said("echo 2048 >/proc/sys/vm/min_free_kbytes");
    reserve(guest)
}

/// Swap with a copy on disk at one donor `d`.
fn swap_on(guest: &Guest, front_end: FrontEnd) -> Job {
    let donor = guest.donor("d", "72M", "unix:/run/d.sock", "none");
    guest.said(&format!(
        "spillway swap on --frontend {} --size 64M {SLABS} --redundancy disk --backing /disk/backing --key none \
         --donor unix:/run/d.sock",
        front_end.name
    ));
    donor
}

/// What a kernel says when swap fails.
const LOST_SWAP: [&str; 3] = ["I/O error", "Memory cgroup out of memory", "invoked oom-killer"];

/// One machine, because none of them disturbs the next.
#[test]
fn swap_over_ublk_comes_to_a_good_end_after_every_death() {
    emulated(|| {
        let Some(guest) = Guest::boot(builder(UBLK, 640)) else { return };
        the_kernels_reserve_is_raised_until_the_last_of_two_swap_devices_is_off(&guest);
        swap_whose_process_was_given_up_comes_back_whole(&guest, UBLK);
        swap_over_ublk_whose_keeper_died_too_is_given_up(&guest);
        guest.finish_after(&LOST_SWAP);
    });
}

/// Nothing starts a keeper again, and nothing needs it until the serving process dies as well.
pub(crate) fn swap_whose_keeper_alone_died_is_switched_off_as_ever(guest: &Guest, front_end: FrontEnd) {
    let donor = swap_on(guest, front_end);
    let programs = start_paging(guest);
    guest.said("kill -9 $(grep -o '\"pid\":[0-9]*' /run/spillway/device-swap/owner.json | tr -dc 0-9)");
    guest.wait_for("spillway swap status --json | grep -q orphaned");
    lift_limit(guest);
    guest.said("spillway swap off");
    end_paging(guest, &programs);
    assert!(guest.items("device").is_empty());
    guest.end_donor("d", &donor);
}

fn swap_whose_process_was_given_up_comes_back_whole(guest: &Guest, front_end: FrontEnd) {
    let donor = swap_on(guest, front_end);
    let programs = start_paging(guest);
    // Without its backing file no process can go on with the device. The programs wait meanwhile.
    guest.said("pkill -STOP verifier; mv /disk/backing /disk/aside; kill -9 $(pgrep -f -- --kept)");
    guest.wait_for("spillway status --json | grep -q 'not started any more'");
    // Requests fail, and do not wait for a process that does not come; also when the one that fails them was killed.
    for _ in 0..2 {
        guest.said(
            "area=$(awk 'NR>1 { print $1 }' /proc/swaps); ! timeout 60 dd if=$area of=/dev/null bs=4k count=1 iflag=direct \
             2>/tmp/dd; grep 'Input/output error' /tmp/dd; kill -9 $(pgrep -f -- --kept)",
        );
    }
    guest.said("mv /disk/aside /disk/backing");
    guest.wait_for(
        "spillway doctor --mend | grep -q 'is served again, at /dev/'; \
         spillway swap status --json | grep -q '\"given_up\": *false'",
    );
    guest.said("pkill -CONT verifier");
    lift_limit(guest);
    guest.said("spillway swap off || { cat /run/spillway/device-swap.log >&2; exit 1; }");
    end_paging(guest, &programs);
    guest.end_donor("d", &donor);
}

fn swap_over_ublk_whose_keeper_died_too_is_given_up(guest: &Guest) {
    let donor = swap_on(guest, UBLK);
    let programs = start_paging(guest);
    guest.said("kill -9 $(pgrep -f serve-device)");
    // A process that needs a page waits for a process that will not come; so would `swapoff`.
    guest.said("spillway doctor --mend");
    guest.said("! grep ublkb /proc/swaps");
    // Their pages are lost, so they cannot have found them right.
    assert_ne!(guest.machine_end(&programs), 0);
    guest.end_donor("d", &donor);
}

/// The kernel gives the block device up with the process that served it.
#[test]
fn swap_over_loop_and_fuse_ends_with_its_process_and_the_machine_goes_on() {
    emulated(|| {
        let Some(guest) = Guest::boot(builder(LOOP_FUSE, 640)) else { return };
        let donor = swap_on(&guest, LOOP_FUSE);
        let programs = start_paging(&guest);
        guest.said("kill -9 $(pgrep -f -- --kept)");
        assert_ne!(guest.machine_end(&programs), 0, "their pages are lost, so they cannot have found them right");
        guest.said("spillway doctor --mend");
        guest.said("! grep loop /proc/swaps");
        guest.end_donor("d", &donor);
        guest.finish_after(&LOST_SWAP);
    });
}

#[test]
#[ignore = "two minutes, emulated, of what is done on ublk: `make soak` runs it"]
fn swap_over_nbd_whose_process_was_given_up_comes_back_whole() {
    emulated(|| {
        let Some(guest) = Guest::boot(builder(NBD, 640)) else { return };
        swap_whose_process_was_given_up_comes_back_whole(&guest, NBD);
        guest.finish_after(&LOST_SWAP);
    });
}

#[test]
#[ignore = "waits for the minute that the kernel does: `make soak` runs it"]
fn swap_over_nbd_whose_keeper_died_too_fails_after_a_minute() {
    emulated(|| {
        let Some(guest) = Guest::boot(builder(NBD, 640)) else { return };
        let before = lower_reserve(&guest);
        let donor = swap_on(&guest, NBD);
        assert_ne!(reserve(&guest), before, "it is raised while swap is on");
        let programs = start_paging(&guest);
        guest.said("kill -9 $(pgrep -f serve-device)");
        assert_ne!(guest.machine_end(&programs), 0, "their pages are lost, so they cannot have found them right");
        guest.said("spillway doctor --mend");
        guest.said("! grep nbd /proc/swaps");
        assert_eq!(reserve(&guest), before, "what the killed keeper raised");
        guest.end_donor("d", &donor);
        guest.finish_after(&LOST_SWAP);
    });
}

fn the_kernels_reserve_is_raised_until_the_last_of_two_swap_devices_is_off(guest: &Guest) {
    let before = lower_reserve(guest);
    let donor = guest.donor("d", "64M", "unix:/run/d.sock", "none");
    for name in ["one", "two"] {
        guest.said(&format!(
            "spillway swap on --name {name} --frontend ublk --size 32M {SLABS} --redundancy none --key none \
             --donor unix:/run/d.sock"
        ));
    }
    let raised = reserve(guest);
    assert_ne!(raised, before);
    guest.said("spillway swap off --name one");
    assert_eq!(reserve(guest), raised, "the other one needs it");
    guest.said("spillway swap off --name two");
    assert_eq!(reserve(guest), before);
    guest.end_donor("d", &donor);
}
