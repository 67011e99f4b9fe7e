//! Two fresh machines with systemd go from the package to swap over the network by the lines of the README, and the
//! package is upgraded and purged while swap holds data.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use spillway_virtual_machine::builder::ADDRESSES;
use spillway_virtual_machine::emulated;

use crate::support::{self, has_program, skip};
use crate::virtual_machine::front_ends::UBLK;
use crate::virtual_machine::guest::{Guest, builder};
use crate::virtual_machine::overcommit::{assert_exact, verifiers, wait_swapped};

/// The heading of the README's part that a newcomer follows.
const HEADING: &str = "## Two machines, five commands";

/// The commands that the README has for a newcomer: the machine's number, 0 or 1, and the line.
fn commands(readme: &str) -> Vec<(usize, String)> {
    let part = readme.split(HEADING).nth(1).expect("the README has this part");
    let part = part.split("\n## ").next().unwrap_or_default();
    let prompt = |line: &str| {
        let line = line.strip_prefix("    node")?;
        let (number, line) = line.split_once("# ")?;
        Some((number.parse::<usize>().ok()? - 1, line.to_owned()))
    };
    part.lines().filter_map(prompt).collect()
}

/// Makes the packages of this version and of a later one, in folders of their own below the machine's share.
fn make_packages(guest: &Guest) {
    let build = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/build");
    for (folder, version) in [("now", env!("CARGO_PKG_VERSION")), ("later", "99.0.0")] {
        let mut command = Command::new(&build);
        command.arg(env!("CARGO_BIN_EXE_spillway")).arg(guest.share().join(folder));
        command.env("GZIP_LEVEL", "1").env("PACKAGE_VERSION", version);
        support::run(&mut command).done("packaging/build");
    }
}

/// What a fresh machine has: names, a disk under `/var/lib`, and no Spillway. Pages of manuals are not indexed, which
/// takes minutes where processors are emulated.
fn make_fresh(guest: &Guest) {
    guest.said(&format!(
        "printf '{} node1\\n{} node2\\n' >>/etc/hosts; mkdir -p /disk/lib /disk/work /root/package; \
         mount -t overlay -o lowerdir=/var/lib,upperdir=/disk/lib,workdir=/disk/work overlay /var/lib; \
         rm -rf /var/lib/man-db/auto-update /etc/spillway /var/lib/spillway; cp /share/now/*.deb /root/package; \
         spillway uninstall-check",
        ADDRESSES[0], ADDRESSES[1]
    ));
}

/// root of the second machine may log in at the first one, as administrators of both can.
fn let_in([first, second]: &[Guest; 2]) {
    let key = second.share().join("id");
    let mut command = Command::new("ssh-keygen");
    command.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(&key);
    support::run(&mut command).done("ssh-keygen");
    std::fs::copy(key.with_extension("pub"), first.share().join("id.pub")).expect("it can be copied");
    first.said(
        "mkdir -p /run/sshd; /usr/sbin/sshd -o AuthorizedKeysFile=/share/id.pub -o StrictModes=no -o UsePAM=no \
         -o PermitRootLogin=yes",
    );
    second.said(
        "mkdir -p -m 700 /root/.ssh; install -m 600 /share/id /root/.ssh/id_ed25519; \
         printf 'Host node1\\n StrictHostKeyChecking no\\n' >/root/.ssh/config; chmod 600 /root/.ssh/config",
    );
}

/// Only what the machine has itself, not the tests' programs.
fn plainly(line: &str) -> String {
    format!("export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root; cd /root/package; {line}")
}

#[test]
fn the_readme_has_five_commands_for_two_machines() {
    let commands = commands(include_str!("../../../../README.md"));
    assert_eq!(commands.len(), 5, "{commands:?}");
    assert!(commands.iter().any(|(machine, _)| *machine == 0) && commands.iter().all(|(machine, _)| *machine < 2));
}

#[test]
#[ignore = "takes eight minutes, emulated: `make soak` runs it"]
fn a_newcomers_lines_bring_swap_and_an_upgrade_and_a_purge_lose_nothing() {
    for program in ["ssh", "sshd", "ssh-keygen", "dpkg-deb"] {
        if !has_program(program) {
            return skip(program);
        }
    }
    emulated(|| {
        let machine = |memory_mib| builder(UBLK, memory_mib).systemd();
        // The second one needs room for all pages that come back when the package goes.
        let Some(machines) = Guest::boot_pair(machine(1024), machine(704)) else { return };
        for guest in &machines {
            make_packages(guest);
            make_fresh(guest);
        }
        let_in(&machines);
        for (machine, line) in commands(include_str!("../../../../README.md")) {
            let said = machines[machine].said(&plainly(&line));
            println!("node{}# {line}\n{said}", machine + 1);
        }
        let [lender, borrower] = &machines;
        assert_eq!(borrower.device()["donors"][0]["transport"], "tcp", "pages go over the network");
        // Programs have half of the memory that they fill.
        let script = verifiers(128, 3600);
        let programs = borrower
            .start(&format!("systemd-run --quiet --scope --unit paging --property MemoryMax=64M sh -c '{script}'"));
        wait_swapped(borrower, 48);
        let agent = || borrower.said("systemctl show --value --property MainPID spillway");
        let before = agent();
        let upgrade = "dpkg --install /share/later/*.deb; [ $(dpkg-query -W -f '${Version}' spillway) = 99.0.0 ]";
        for guest in [borrower, lender] {
            assert!(guest.said(&plainly(upgrade)).contains("what runs goes on"));
        }
        assert_eq!(agent(), before, "an upgrade stops nothing");
        assert_eq!(borrower.device()["pages_lost"], 0);
        wait_swapped(borrower, 48);
        borrower.said("systemctl set-property --runtime paging.scope MemoryMax=infinity");
        // Brings every page back first.
        borrower.said(&plainly("dpkg --purge spillway"));
        assert_eq!(borrower.said("awk 'NR>1' /proc/swaps"), "");
        borrower.said("pkill -USR1 verifier");
        assert_exact(&borrower.end_within(&programs, Duration::from_secs(300)));
        lender.said(&plainly("dpkg --purge spillway"));
        for guest in [borrower, lender] {
            guest.said("spillway uninstall-check");
            let left = "find /etc /var/lib /usr/bin /usr/lib/systemd /usr/share/man /usr/share/doc -xdev \
                        -name '*spillway*'";
            assert_eq!(guest.said(left), "");
        }
        machines.into_iter().for_each(Guest::finish);
    });
}
