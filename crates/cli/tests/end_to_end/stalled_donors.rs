//! Donors that are heard while their data connections bring nothing: a network that loses large packets, a machine
//! that is too busy to serve.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use spillway_fabric::limits::REQUEST_DEADLINE;
use spillway_fabric::wire::preface::{self, Role};

use crate::both_ways::stage::Stage;
use crate::end_to_end::crash::Written;
use crate::support;

/// A donor's address at which it is heard, but brings no pages while `stalls`. Its threads end with their connections,
/// the one that waits for the next with the test's process.
fn relay(donor: PathBuf, stalls: &Arc<AtomicBool>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let stalls = Arc::clone(stalls);
    std::thread::spawn(move || {
        while let Ok((client, _)) = listener.accept() {
            let Ok(donor) = UnixStream::connect(&donor) else { continue };
            let stalls = Arc::clone(&stalls);
            std::thread::spawn(move || pass_on(client, donor, &stalls));
        }
    });
    address
}

fn pass_on(mut client: TcpStream, mut donor: UnixStream, stalls: &AtomicBool) {
    let mut first = preface::encode(Role::Data);
    let is_data = client.read_exact(&mut first).is_ok() && first == preface::encode(Role::Data);
    let _ended_as_a_read_will_tell = donor.write_all(&first);
    let (mut from_donor, mut to_client) = (donor.try_clone().unwrap(), client.try_clone().unwrap());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            copy(&mut from_donor, &mut to_client, is_data, stalls);
            let _may_be_closed = to_client.shutdown(Shutdown::Both);
        });
        copy(&mut client, &mut donor, is_data, stalls);
        let _may_be_closed = donor.shutdown(Shutdown::Both);
    });
}

/// Copies until one side ends; nothing of a data connection while they stall.
fn copy(from: &mut impl Read, to: &mut impl Write, is_data: bool, stalls: &AtomicBool) {
    let mut bytes = vec![0; 64 << 10];
    while let Ok(count) = from.read(&mut bytes) {
        while is_data && stalls.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(10));
        }
        if count == 0 || to.write_all(&bytes[..count]).is_err() {
            return;
        }
    }
}

/// Neither is given up because the other one has its pages.
#[test]
fn two_donors_whose_answers_stall_together_keep_their_pages() {
    let Some(mut stage) = Stage::set_beside_others(&[]) else { return };
    let stalls = Arc::new(AtomicBool::new(false));
    let mut options: Vec<String> =
        "device on --size 64M --slab-size 4M --key none --redundancy replicas=2 --transport tcp"
            .split(' ')
            .map(str::to_owned)
            .collect();
    for _ in 0..2 {
        stage.donor("160M");
    }
    for donor in stage.donor_options().iter().filter_map(|option| option.strip_prefix("unix:")) {
        options.extend(["--donor".to_owned(), relay(PathBuf::from(donor), &stalls)]);
    }
    let words: Vec<&str> = options.iter().map(String::as_str).collect();
    let device = PathBuf::from(support::run(&mut stage.spillway(&words)).done("device on").text().trim());
    let mut written = Written::default();
    written.write(&device, |round| round > 3000);

    stalls.store(true, Ordering::Relaxed);
    std::thread::scope(|scope| {
        // A write to both is under way meanwhile, for longer than a donor that can be spared may take.
        scope.spawn(|| {
            std::thread::sleep(REQUEST_DEADLINE * 2);
            stalls.store(false, Ordering::Relaxed);
        });
        written.write(&device, |_| true);
    });
    written.check(&device);
    let report = stage.device();
    assert_eq!(report["pages_lost"], 0, "{report:#}");
    support::run(&mut stage.spillway(&["device", "off"])).done("device off");
    stage.assert_clean();
}
