//! The agent, and the process that serves its swap, are stopped, killed, started again and told to end, while
//! programs page.

use std::time::Duration;

use spillway_virtual_machine::machine::Job;

use crate::virtual_machine::crash::kill_the_server;
use crate::virtual_machine::front_ends::FrontEnd;
use crate::virtual_machine::guest::{Guest, builder};
use crate::virtual_machine::overcommit::{assert_exact, verifiers, wait_swapped};

on_front_end!(ublk, UBLK, an_agent_that_is_stopped_killed_and_told_to_end_costs_programs_no_page);
on_front_end!(
    nbd,
    NBD,
    #[ignore = "four minutes, emulated, of what it does on ublk: `make soak` runs it"]
    an_agent_that_is_stopped_killed_and_told_to_end_costs_programs_no_page
);
on_front_end!(
    loop_fuse,
    LOOP_FUSE,
    #[ignore = "the host's end-to-end tests do most of it: `make soak` runs it"]
    an_agent_that_is_stopped_killed_and_told_to_end_costs_programs_no_page
);

/// Programs that page half of their memory in and out, until they are told that it [is enough](end_paging).
pub(crate) fn start_paging(guest: &Guest) -> Job {
    guest.said("cd /sys/fs/cgroup; echo +memory >cgroup.subtree_control; mkdir -p paging; echo 24M >paging/memory.max");
    let programs = guest.start(&format!("echo 0 >/sys/fs/cgroup/paging/cgroup.procs; {}", verifiers(48, 3600)));
    wait_swapped(guest, 16);
    programs
}

/// From here on the programs may have all their memory.
pub(crate) fn lift_limit(guest: &Guest) {
    guest.said("echo max >/sys/fs/cgroup/paging/memory.max");
}

/// The programs look at all their pages and end; none was wrong.
pub(crate) fn end_paging(guest: &Guest, programs: &Job) {
    guest.said("pkill -USR1 verifier");
    assert_exact(&guest.end_of(programs));
}

/// The swap area of ours.
fn area(guest: &Guest) -> String {
    guest.said("awk 'NR>1 { print $1 }' /proc/swaps")
}

fn start_agent(guest: &Guest) -> Job {
    let agent = guest.start("echo $$ >/run/agent.pid; exec spillway agent --config /run/agent.toml");
    guest.wait_for("[ $(wc -l </proc/swaps) = 2 ] && spillway status | grep -q '^agent agent: running'");
    agent
}

fn an_agent_that_is_stopped_killed_and_told_to_end_costs_programs_no_page(front_end: FrontEnd) {
    let Some(guest) = Guest::boot(builder(front_end, 640)) else { return };
    let donor = guest.donor("d", "72M", "unix:/run/d.sock", "none");
    guest.said(&format!(
        "printf '[borrower]\\nsize = \"64M\"\\ndonors = [\"unix:/run/d.sock\"]\\nredundancy = \"disk\"\\n\
         backing = \"/disk/backing\"\\nkey = \"none\"\\nslab_size = \"4M\"\\nfrontend = \"{}\"\\n' >/run/agent.toml",
        front_end.name
    ));
    let agent = start_agent(&guest);
    let device = area(&guest);
    let programs = start_paging(&guest);
    for process in ["$(cat /run/agent.pid)", "$(pgrep -f -- --kept)"] {
        guest.said(&format!("kill -STOP {process}"));
        // Longer than the two seconds after which a donor takes a silent borrower for dead.
        std::thread::sleep(Duration::from_secs(4));
        guest.said(&format!("kill -CONT {process}"));
    }
    if front_end.outlives_its_process {
        kill_the_server(&guest, 1);
    }
    guest.said("kill -KILL $(cat /run/agent.pid)");
    assert_eq!(guest.machine_end(&agent), 137);
    let agent = start_agent(&guest);
    assert_eq!(area(&guest), device, "the next agent takes it over");
    is_refused_without_memory(&guest);
    lift_limit(&guest);
    // What the programs may have in swap, and what is to stay.
    guest.wait_for("[ $(awk '/MemAvailable/ { print int($2 / 1024) }' /proc/meminfo) -ge 88 ]");
    guest.said("kill -TERM $(cat /run/agent.pid)");
    guest.end_of(&agent);
    assert_eq!(area(&guest), "", "an agent that ends well brings every page back");
    end_paging(&guest, &programs);
    guest.end_donor("d", &donor);
    guest.finish();
}

/// `swap off` with memory for less than what is in swap; the memory is there again afterwards.
fn is_refused_without_memory(guest: &Guest) {
    // At least 16 MiB are in swap, and a sixteenth of the memory is to stay, 16 MiB of which are kept back now.
    guest.said(
        // Memory of which nothing can leave.
        "mkdir /ballast; mount -t tmpfs -o size=100%,noswap ballast /ballast; \
         available=$(awk '/MemAvailable/ { print int($2 / 1024) }' /proc/meminfo); \
         fallocate -l $((available - 44))M /ballast/ballast",
    );
    let refusal = guest.run("spillway swap off");
    assert!(refusal.status != 0 && refusal.errors.contains("are lacking"), "{refusal:?}");
    guest.said("umount /ballast");
    assert_eq!(guest.device()["pages_lost"], 0);
}
