//! Programs whose pages travel by RDMA: soft-RoCE within one machine.

use serde_json::Value;
use spillway_virtual_machine::emulated;

use crate::virtual_machine::front_ends::UBLK;
use crate::virtual_machine::guest::{Guest, SLABS, builder};

/// Modules of soft-RoCE.
const MODULES: [&str; 2] = ["rdma_rxe", "ib_uverbs"];

/// A program with twice the smallest budget.
const PROGRAM: &str = "spillway-bench workload quicksort --size 16M";

/// Runs the program with half its memory, and says what `--stats` told.
fn run(guest: &Guest, options: &str, program: &str) -> Value {
    let native = guest.said_on_host(program);
    let run = format!("spillway run {options} --lend 64M {SLABS} --stats /share/statistics.json -- {program}");
    let lent = guest.said(&run);
    assert!(lent == native, "{program} wrote something else: {lent}\ninstead of: {native}");
    let text = std::fs::read(guest.share().join("statistics.json")).expect("the run wrote its statistics");
    let statistics: Value = serde_json::from_slice(&text).expect("statistics are JSON");
    let device = &statistics["device"]["device"];
    assert_eq!(device["pages_lost"], 0, "{statistics:#}");
    assert_eq!(device["donors"][0]["transport"], "rdma", "{device:#}");
    assert!(device["traffic"]["pages_in"].as_u64() > Some(100), "few pages came back: {device:#}");
    statistics
}

#[test]
fn swap_and_pager_over_rdma_are_exact() {
    emulated(|| {
        let Some(guest) = Guest::boot(builder(UBLK, 640).modules(&MODULES)) else { return };
        let address = "127.0.0.1:7070";
        let donor = guest.donor("d0", "128M", address, "none");
        let options = format!("--transport rdma --redundancy none --key none --donor {address}");
        // There is no device yet, and nothing else is wanted.
        let refused = guest.run(&format!("spillway run {options} --local 16M --lend 64M {SLABS} -- echo ran"));
        assert_eq!((refused.status, refused.output.as_str()), (1, ""), "{refused:?}");
        assert!(refused.errors.contains("there is no RDMA device"), "{}", refused.errors);
        guest.said("rdma link add rxe_lo type rxe netdev lo");
        let doctor = guest.said("spillway doctor");
        assert!(doctor.contains("RDMA: donors that have it too are reached by") && doctor.contains("rxe_lo 127.0.0.1"));
        run(&guest, &format!("{options} --via swap --frontend ublk --local 50%"), PROGRAM);
        run(&guest, &format!("{options} --via pager --local 16M"), PROGRAM);
        guest.end_donor("d0", &donor);
        guest.finish();
    });
}
