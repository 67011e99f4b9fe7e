//! A machine far beyond its memory whose pages live in another machine, over TCP with a cluster key.

use std::time::Duration;

use spillway_virtual_machine::builder::ADDRESSES;

use crate::support::soak_seconds;
use crate::virtual_machine::front_ends::FrontEnd;
use crate::virtual_machine::guest::{Guest, SLABS, builder};
use crate::virtual_machine::overcommit::{assert_exact, overcommit_within, verifiers, wait_filled, wait_swapped};

on_front_end!(
    ublk,
    UBLK,
    #[ignore = "minutes, emulated, of what `overcommit.rs` does here and `cut_off.rs` on the host: `make soak` runs it"]
    a_machine_pages_to_another_through_cut_cables_and_a_killed_donor
);
on_front_end!(
    nbd,
    NBD,
    #[ignore = "a minute and more, emulated, of what it does on ublk: `make soak` runs it"]
    a_machine_pages_to_another_through_cut_cables_and_a_killed_donor
);
on_front_end!(
    loop_fuse,
    LOOP_FUSE,
    #[ignore = "a minute and more, emulated, of what it does on ublk: `make soak` runs it"]
    a_machine_pages_to_another_through_cut_cables_and_a_killed_donor
);

fn a_machine_pages_to_another_through_cut_cables_and_a_killed_donor(front_end: FrontEnd) {
    let machines = Guest::boot_pair(builder(front_end, 256), builder(front_end, 640));
    let Some([borrower, lender]) = machines else { return };
    let address = format!("{}:7070", ADDRESSES[1]);
    let key = lender.share().join("key");
    spillway_fabric::key::ClusterKey::load_or_create(&key).expect("a key can be made");
    std::fs::copy(&key, borrower.share().join("key")).expect("it is copied with its mode");
    let donor = lender.donor("d0", "448M", &address, "/share/key");
    borrower.said(&format!(
        "spillway swap on --frontend {} --size 512M {SLABS} --redundancy disk --backing /disk/backing --key /share/key \
         --donor {address}",
        front_end.name
    ));
    wait_filled(&borrower);
    let total_mib = 2 * borrower.memory_mib("MemTotal");
    let seconds = soak_seconds(25);
    let programs = borrower.start(&verifiers(total_mib, seconds));
    wait_swapped(&borrower, total_mib / 3);
    assert_eq!(borrower.device()["donors"][0]["transport"], "tcp");
    // The cable is pulled for longer than silence is allowed.
    lender.said("ip link set eth0 down");
    std::thread::sleep(Duration::from_secs(4));
    lender.said("ip link set eth0 up");
    std::thread::sleep(Duration::from_secs(4));
    lender.signal_donor("d0", "KILL");
    lender.machine_end(&donor);
    let donor = lender.donor("d0", "448M", &address, "/share/key");
    assert_exact(&borrower.end_within(&programs, overcommit_within(seconds)));
    let device = borrower.device();
    assert_eq!(device["pages_lost"], 0, "{device:#}");
    borrower.said("spillway swap off");
    lender.signal_donor("d0", "TERM");
    lender.end_of(&donor);
    borrower.finish();
    lender.finish();
}
