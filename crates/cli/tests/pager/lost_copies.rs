//! The last copy of pages is lost: a program that needs one is told by the kernel, and no process reads a wrong byte.

use std::os::unix::process::ExitStatusExt;

use crate::both_ways::stage::Stage;
use crate::support::Running;

/// SIGBUS (signal(7)).
const BUS_ERROR: i32 = 7;

/// Has far more than its budget, waits for a word, and looks at all of it. No page is one word over and over: such
/// pages do not leave.
pub(crate) const SCRIPT: &str = "
import os, sys, time
filled, go = sys.argv[1:]
memory = bytearray(b'x' * 4095 + b'.') * (80 << 8)
open(filled, 'w').close()
while not os.path.exists(go): time.sleep(0.01)
print('right' if memory.count(b'x') == 4095 * (80 << 8) else 'wrong')
";

#[test]
fn a_page_whose_only_copy_is_lost_is_a_bus_error() {
    let Some(mut stage) = Stage::set(&["/usr/bin/python3"]) else { return };
    stage.donor("160M");
    let donors = stage.donor_options();
    let mut options = vec!["--local", "24M", "--lend", "128M", "--slab-size", "4M", "--key", "none"];
    options.extend(["--redundancy", "none"]);
    options.extend(donors.iter().map(String::as_str));
    let [filled, go] = ["filled", "go"].map(|name| stage.disk().join(name));
    let program = ["/usr/bin/python3", "-c", SCRIPT, filled.to_str().unwrap(), go.to_str().unwrap()];
    let mut running = Running::start(&mut stage.run(&options, &program));
    // A program that grows while nothing can be stored waits for each page; this one has all of its pages.
    running.wait_until("the program to have its memory", || filled.exists().then_some(()));
    running.wait_until("pages to be lent", || (stage.device_now()["pages_stored"].as_u64()? > 8192).then_some(()));
    stage.signal_donor(0, "KILL");
    std::fs::write(&go, "").unwrap();
    let said = running.end();
    assert_eq!(said.status.signal(), Some(BUS_ERROR), "{} {} {}", said.status, said.text(), said.errors);
    assert_eq!(said.text(), "", "no page was taken for another");
    let statistics = stage.statistics();
    assert!(statistics["pager"]["pages_lost"].as_u64().unwrap() > 0, "{statistics:#}");
    stage.assert_clean();
}
