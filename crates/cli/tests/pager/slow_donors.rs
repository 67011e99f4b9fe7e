//! A donor that is alive and answers late.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::both_ways::stage::Stage;
use crate::pager::lost_copies::SCRIPT;
use crate::support::Running;

/// How late each piece of an answer is.
const LATE: Duration = Duration::from_millis(300);

/// The byte of a connection's first eight that tells what it is for, and its value for page data.
const ROLE: (usize, u8) = (6, 2);

/// Stands between borrowers and the donor at `socket`, and holds back the pages that the donor sends once it is told
/// to. Its threads wait for connections and bytes until the test's process ends.
fn stand_between(socket: PathBuf, place: &Path, is_slow: &Arc<AtomicBool>) {
    let listener = UnixListener::bind(place).unwrap();
    let is_slow = Arc::clone(is_slow);
    std::thread::spawn(move || {
        while let Ok((mut borrower, _)) = listener.accept() {
            let mut preface = [0; 8];
            // A borrower that hangs up at once is none.
            let Ok(()) = borrower.read_exact(&mut preface) else { continue };
            let mut donor = UnixStream::connect(&socket).unwrap();
            donor.write_all(&preface).unwrap();
            let holds_back = if preface[ROLE.0] == ROLE.1 { Arc::clone(&is_slow) } else { Arc::default() };
            let ends = (borrower.try_clone().unwrap(), donor.try_clone().unwrap());
            std::thread::spawn(move || carry(ends.0, ends.1, &AtomicBool::new(false)));
            std::thread::spawn(move || carry(donor, borrower, &holds_back));
        }
    });
}

fn carry(mut from: UnixStream, mut to: UnixStream, holds_back: &AtomicBool) {
    let mut bytes = vec![0; 64 << 10];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        if holds_back.load(Ordering::SeqCst) {
            std::thread::sleep(LATE);
        }
        if to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    // Either end may be gone.
    let _ = from.shutdown(std::net::Shutdown::Both);
    let _ = to.shutdown(std::net::Shutdown::Both);
}

/// With a copy elsewhere no process waits for 20,000 answers that are 300 ms late each: the run ends, has the right
/// bytes, and tells of the donor.
#[test]
fn what_a_slow_donor_has_is_read_from_the_other_copy_and_the_donor_is_told_of() {
    let Some(mut stage) = Stage::set(&["/usr/bin/python3"]) else { return };
    [0, 1].into_iter().for_each(|_| _ = stage.donor("160M"));
    let donors = stage.donor_options();
    let place = stage.disk().join("between.sock");
    let is_slow = Arc::new(AtomicBool::new(false));
    stand_between(PathBuf::from(donors[1].trim_start_matches("unix:")), &place, &is_slow);
    let slow = format!("unix:{}", place.display());
    let mut options =
        vec!["--local", "24M", "--lend", "128M", "--slab-size", "4M", "--key", "none", "--transport", "tcp"];
    options.extend(["--redundancy", "replicas=2", "--donor", &slow, "--donor", &donors[3]]);
    let [filled, go] = ["filled", "go"].map(|name| stage.disk().join(name));
    let program = ["/usr/bin/python3", "-c", SCRIPT, filled.to_str().unwrap(), go.to_str().unwrap()];
    let mut running = Running::start(&mut stage.run(&options, &program));
    running.wait_until("the program to have its memory", || filled.exists().then_some(()));
    is_slow.store(true, Ordering::SeqCst);
    std::fs::write(&go, "").unwrap();
    let said = running.end().done("the program");
    assert_eq!(said.text(), "right\n");
    let statistics = stage.statistics();
    let latency = &statistics["device"]["device"]["donors"][0]["latency"];
    assert!(latency["reads_taken_elsewhere"].as_u64().unwrap() > 0, "{statistics:#}");
    assert!(latency["reads"]["p50_us"].as_f64().unwrap() > 0.0, "{statistics:#}");
    stage.assert_clean();
}
