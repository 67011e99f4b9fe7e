//! The service as systemd runs it, with everything in `packaging/` where it belongs.

use std::path::Path;
use std::time::Duration;

use spillway_virtual_machine::emulated;

use crate::virtual_machine::front_ends::UBLK;
use crate::virtual_machine::guest::{Guest, SLABS, builder};
use crate::virtual_machine::overcommit::{assert_exact, verifiers, wait_swapped};

/// Puts everything where its first lines say, with the built program as `/usr/bin/spillway`, and lets systemd read it.
fn install(guest: &Guest) {
    let packaging = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging");
    guest.said(&format!(
        "cd {}; ln -sf {} /usr/bin/spillway; cp systemd/spillway.service /etc/systemd/system/; \
         mkdir -p /etc/modules-load.d /etc/tmpfiles.d; cp modules-load.d/spillway.conf /etc/modules-load.d/; \
         cp tmpfiles.d/spillway.conf /etc/tmpfiles.d/; \
         systemctl daemon-reload; systemctl restart systemd-modules-load; systemd-tmpfiles --create spillway.conf",
        packaging.display(),
        env!("CARGO_BIN_EXE_spillway"),
    ));
    guest.said("grep -qw ^ublk_drv /proc/modules && [ \"$(stat -c %a /var/lib/spillway)\" = 700 ]");
    guest.said(&format!(
        "printf '[borrower]\\nsize = \"144M\"\\ndonors = [\"unix:/run/d.sock\"]\\nredundancy = \"disk\"\\n\
         backing = \"/disk/backing\"\\nkey = \"none\"\\n{}\\n' >/etc/spillway/spillway.toml",
        SLABS.replace("--slab-size ", "slab_size = \"") + "\"",
    ));
}

/// A property of the service, as `systemctl show` tells it.
fn property(guest: &Guest, name: &str) -> String {
    guest.said(&format!("systemctl show --value --property {name} spillway")).trim().to_owned()
}

fn swap_areas(guest: &Guest) -> String {
    guest.said("awk 'NR>1 { print $1 }' /proc/swaps")
}

fn wait_running(guest: &Guest) {
    guest.wait_for("[ $(wc -l </proc/swaps) = 2 ] && spillway status | grep -q '^agent agent: running'");
}

#[test]
#[ignore = "systemd's boot and half a dozen of its commands, emulated, take two minutes: `make soak` runs it"]
fn systemd_starts_stops_and_restarts_the_service_and_no_page_is_lost() {
    emulated(|| {
        let Some(guest) = Guest::boot(builder(UBLK, 768).systemd()) else { return };
        install(&guest);
        let _ends_with_the_machine = guest.donor("d", "160M", "unix:/run/d.sock", "none");
        guest.said("systemctl start spillway || { journalctl -u spillway >&2; exit 1; }");
        wait_running(&guest);
        let device = swap_areas(&guest);
        let notes = guest.items("device")[0]["report"]["notes"].clone();
        assert_eq!(notes, serde_json::json!([]), "the unit lets it have all that it needs");
        // Its programs have half of the memory that they fill.
        let script = verifiers(128, 3600);
        let programs = guest
            .start(&format!("systemd-run --quiet --scope --unit paging --property MemoryMax=64M sh -c '{script}'"));
        wait_swapped(&guest, 48);
        let agent = property(&guest, "MainPID");
        guest.said(&format!("kill -KILL {agent}"));
        guest.wait_for("[ \"$(systemctl show --value --property NRestarts spillway)\" -ge 1 ]");
        wait_running(&guest);
        assert_ne!(property(&guest, "MainPID"), agent);
        assert_eq!(swap_areas(&guest), device, "it went on without an agent, and the next one takes it over");
        assert_eq!(guest.device()["pages_lost"], 0);
        guest.said("systemctl set-property --runtime paging.scope MemoryMax=infinity");
        // At a shutdown systemd switches every swap area off by itself, beside the stop.
        let by_systemd =
            guest.start(&format!("systemctl stop $(systemd-escape --path --suffix=swap {})", device.trim()));
        guest.wait_for("pgrep -x swapoff >/dev/null || [ $(wc -l </proc/swaps) = 1 ]");
        guest.said("systemctl stop spillway || { journalctl -u spillway >&2; exit 1; }");
        assert_eq!(swap_areas(&guest), "", "a stop brings every page back");
        assert_eq!(property(&guest, "Result"), "success");
        // Only one of the two can have done it; the other one may say so.
        guest.machine_end(&by_systemd);
        guest.said("pkill -USR1 verifier");
        assert_exact(&guest.end_within(&programs, Duration::from_secs(300)));
        guest.signal_donor("d", "TERM");
        guest.wait_for("[ -z \"$(spillway status --json | grep donor)\" ]");
        guest.finish();
    });
}
