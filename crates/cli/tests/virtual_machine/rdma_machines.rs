//! A machine whose swap lives in another machine, by RDMA: soft-RoCE on the network between them.
//!
//! One boot of both sees every fault after another while programs page: packets that are lost, a link that is down or
//! flaps, donors that are killed or stopped, and the borrower's process killed. After each of them pages travel by RDMA
//! again, and at the end no byte was wrong.

use std::time::{Duration, Instant};

use serde_json::Value;
use spillway_virtual_machine::builder::ADDRESSES;
use spillway_virtual_machine::emulated;
use spillway_virtual_machine::machine::Job;

use crate::support::soak_seconds;
use crate::virtual_machine::agent::{end_paging, lift_limit, start_paging};
use crate::virtual_machine::crash::kill_the_server;
use crate::virtual_machine::front_ends::UBLK;
use crate::virtual_machine::guest::{Guest, SLABS, WITHIN, builder};

/// Modules of soft-RoCE, and those that drop packets.
const MODULES: [&str; 6] = ["rdma_rxe", "ib_uverbs", "sch_netem", "sch_ingress", "cls_u32", "act_gact"];

/// Silence that costs a donor its session is two seconds; this is longer.
const LONG: Duration = Duration::from_secs(4);

/// Pages that come in until paging is said to go on: a guest brings some hundreds a second.
const PAGES: u64 = 200;

/// Packets from the lender that are lost: those of RDMA only (UDP to the port of RoCE), or all.
const DROP_RDMA: &str = "tc qdisc add dev eth0 clsact; tc filter add dev eth0 egress protocol ip u32 match ip protocol \
                         17 0xff match ip dport 4791 0xffff action drop";
const PASS_RDMA: &str = "tc qdisc del dev eth0 clsact";
const DROP_ALL: &str = "tc qdisc add dev eth0 root netem loss 100%";
const PASS_ALL: &str = "tc qdisc del dev eth0 root";

/// Both machines, and the donors of one in the other.
struct Machines {
    borrower: Guest,
    lender: Guest,
    donors: Vec<Option<Job>>,
}

impl Machines {
    /// Boots both, with a device on the network between them and a donor in the lender.
    fn boot() -> Option<Self> {
        let [one, other] = [384, 640].map(|memory_mib| builder(UBLK, memory_mib).modules(&MODULES));
        let [borrower, lender] = Guest::boot_pair(one, other)?;
        for guest in [&borrower, &lender] {
            guest.said("rdma link add rxe0 type rxe netdev eth0");
        }
        let key = lender.share().join("key");
        spillway_fabric::key::ClusterKey::load_or_create(&key).expect("a key can be made");
        std::fs::copy(&key, borrower.share().join("key")).expect("it is copied with its mode");
        Some(Self { borrower, lender, donors: Vec::new() })
    }

    fn address(number: usize) -> String {
        format!("{}:{}", ADDRESSES[1], 7070 + number)
    }

    fn start_donor(&mut self, number: usize) {
        let donor = self.lender.donor(&format!("d{number}"), "176M", &Self::address(number), "/share/key");
        self.donors.resize_with(self.donors.len().max(number + 1), || None);
        self.donors[number] = Some(donor);
    }

    fn kill_donor(&mut self, number: usize) {
        self.lender.signal_donor(&format!("d{number}"), "KILL");
        let donor = self.donors[number].take().expect("it runs");
        assert_eq!(self.lender.machine_end(&donor), 137);
    }

    /// Makes swap from the first `count` donors, which run, and programs that page.
    fn start_paging(&self, count: usize, redundancy: &str) -> Job {
        let donors: String = (0..count).map(|number| format!(" --donor {}", Self::address(number))).collect();
        self.borrower.said(&format!(
            "spillway swap on --transport rdma --frontend ublk --size 144M {SLABS} --redundancy {redundancy} --key \
             /share/key{donors}"
        ));
        let programs = start_paging(&self.borrower);
        self.by_rdma("at first");
        programs
    }

    /// The programs find all their pages, and swap ends.
    fn end_paging(&self, programs: &Job) {
        lift_limit(&self.borrower);
        end_paging(&self.borrower, programs);
        let device = self.borrower.device();
        assert_eq!(device["pages_lost"], 0, "{device:#}");
        self.borrower.said("spillway swap off");
    }

    /// Waits for a state of the device.
    fn wait(&self, what: &str, is_there: impl Fn(&Value) -> bool) -> Value {
        let end = Instant::now() + WITHIN;
        loop {
            let device = self.borrower.device();
            let are_right = |donor: &Value| donor["wrong_pages"] == 0;
            let all_right = device["donors"].as_array().is_some_and(|donors| donors.iter().all(are_right));
            let is_exact = device["pages_lost"] == 0 && all_right;
            assert!(is_exact, "{what}: a page was lost or wrong: {device:#}\n{}", self.borrower.logs());
            if is_there(&device) {
                return device;
            }
            assert!(Instant::now() < end, "{what} is waited for in vain: {device:#}");
            std::thread::sleep(Duration::from_millis(300));
        }
    }

    fn wait_lost(&self, number: usize) {
        self.wait("the loss of a donor", |device| device["donors"][number]["state"] != "connected");
    }

    /// Programs go on, whatever brings their pages.
    fn pages_come(&self, when: &str) {
        let pages = |device: &Value| device["traffic"]["pages_in"].as_u64().expect("pages are counted");
        let before = pages(&self.borrower.device());
        self.wait(&format!("a page {when}"), |device| pages(device) >= before + PAGES);
    }

    /// Every donor is connected by RDMA, and the device brings pages.
    fn by_rdma(&self, when: &str) {
        let is_by_rdma =
            |donor: &Value| donor["state"] == "connected" && donor["transport"] == "rdma" && donor["slabs_by_tcp"] == 0;
        let all = |device: &Value| device["donors"].as_array().is_some_and(|donors| donors.iter().all(is_by_rdma));
        self.wait(&format!("RDMA {when}"), all);
        let before = self.packets();
        let end = Instant::now() + WITHIN;
        while self.packets() < before + PAGES {
            assert!(Instant::now() < end, "no page comes by RDMA {when}: {:#}", self.borrower.device());
        }
    }

    /// Packets of RDMA that came.
    fn packets(&self) -> u64 {
        let text = self.borrower.said("cat /sys/class/infiniband/rxe0/ports/1/hw_counters/rcvd_pkts");
        text.trim().parse().expect("a count of packets")
    }

    /// Breaks something of the lender, sees that programs go on, mends it, and sees pages come by RDMA.
    fn through(&self, what: &str, break_it: &str, loses_donor: bool, mend_it: &str) {
        self.lender.said(break_it);
        if loses_donor {
            self.wait_lost(0);
        }
        self.pages_come(what);
        self.lender.said(mend_it);
        self.by_rdma(&format!("after {what}"));
    }

    /// The link goes down and comes up again, on a quiet host for less than silence is allowed: queue pairs break,
    /// sessions stay.
    fn flap(&self) {
        for _ in 0..3 {
            self.lender.said("ip link set eth0 down; ip link set eth0 up");
        }
        self.by_rdma("after a link that flapped");
    }

    fn end_donors(&mut self) {
        for (number, donor) in self.donors.iter_mut().enumerate() {
            if let Some(donor) = donor.take() {
                self.lender.end_donor(&format!("d{number}"), &donor);
            }
        }
    }

    fn finish(mut self) {
        self.end_donors();
        self.borrower.finish();
        self.lender.finish();
    }
}

/// The donor is one, and every page is on the disk too.
fn every_fault(machines: &mut Machines) {
    machines.start_donor(0);
    let programs = machines.start_paging(1, "disk --backing /disk/backing");
    machines.through("without packets of RDMA", DROP_RDMA, false, PASS_RDMA);
    machines.through("without any packets", DROP_ALL, true, PASS_ALL);
    machines.through("without a link", "ip link set eth0 down", true, "ip link set eth0 up");
    machines.flap();
    machines.through("beside a stopped donor", "kill -STOP $(cat /run/d0.pid)", true, "kill -CONT $(cat /run/d0.pid)");
    machines.kill_donor(0);
    machines.wait_lost(0);
    machines.pages_come("after the donor's death");
    machines.start_donor(0);
    machines.by_rdma("with the donor started again");
    kill_the_server(&machines.borrower, 1);
    machines.by_rdma("with the borrower started again");
    machines.end_paging(&programs);
}

/// Pages are at two donors, and nowhere else: queue pairs are repaired for as long as a sole copy is waited for.
fn two_copies(machines: &mut Machines, rounds: u64) {
    machines.start_donor(1);
    let programs = machines.start_paging(2, "replicas=2");
    let all_copies = |device: &Value| device["slabs"]["degraded"] == 0 && device["slabs"]["migrating"] == 0;
    for round in 0..rounds {
        machines.flap();
        machines.wait("every slab's copies", all_copies);
        let number = (round % 2) as usize;
        if round % 4 < 2 {
            machines.kill_donor(number);
            machines.pages_come("with one donor of two");
            machines.start_donor(number);
        } else {
            machines.lender.signal_donor(&format!("d{number}"), "STOP");
            std::thread::sleep(LONG);
            machines.pages_come("with one donor of two");
            machines.lender.signal_donor(&format!("d{number}"), "CONT");
        }
        machines.by_rdma("with both donors");
    }
    machines.wait("every slab's copies", all_copies);
    machines.end_paging(&programs);
}

#[test]
#[ignore = "ten minutes on emulated machines: `make soak` runs it"]
fn swap_in_another_machine_by_rdma_is_exact_through_every_fault() {
    emulated(|| {
        let Some(mut machines) = Machines::boot() else { return };
        every_fault(&mut machines);
        machines.finish();
    });
}

/// The part of the next test that once lost pages: a late read filled the buffer of a write.
#[test]
#[ignore = "ten minutes on emulated machines: `make soak` runs it"]
fn swap_in_two_other_donors_by_rdma_is_exact_though_the_link_flaps() {
    emulated(|| {
        let Some(mut machines) = Machines::boot() else { return };
        machines.start_donor(0);
        two_copies(&mut machines, 2);
        machines.finish();
    });
}

#[test]
#[ignore = "half an hour on emulated machines: `make soak` runs it"]
fn swap_in_two_other_donors_by_rdma_is_exact_through_faults_for_minutes() {
    emulated(|| {
        let Some(mut machines) = Machines::boot() else { return };
        let end = Instant::now() + Duration::from_secs(soak_seconds(120));
        while Instant::now() < end {
            every_fault(&mut machines);
            two_copies(&mut machines, 8);
            machines.end_donors();
        }
        machines.finish();
    });
}
