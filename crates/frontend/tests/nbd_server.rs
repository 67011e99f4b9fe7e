//! The NBD server with ordinary clients: libnbd's tools, and clients of the test's own that behave badly.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

#[allow(dead_code)]
mod support;

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::Duration;

use spillway_frontend::front_end::FrontEndError;

use support::nbd::{Client, Server, has_programs, noise};

const MIB: u64 = 1 << 20;

/// Runs a program to its end; what it said. (nbdinfo takes the export's bytes for a file, and its description may
/// have some of them.)
fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn nbdinfo_sees_what_is_exported() {
    if !has_programs(&["nbdinfo"]) {
        return;
    }
    let server = Server::start(64 * MIB, 2);
    for address in [server.unix_address(), server.tcp_address()] {
        let said = run(Command::new("nbdinfo").arg("--json").arg(&address));
        for expected in [
            "\"export-size\": 67108864",
            "\"block_size_minimum\": 4096",
            "\"block_size_preferred\": 4096",
            "\"block_size_maximum\": 1048576",
            "\"can_multi_conn\": true",
            "\"can_trim\": true",
            "\"can_zero\": true",
            "\"can_flush\": true",
            "\"can_fua\": true",
            "\"is_read_only\": false",
        ] {
            assert!(said.contains(expected), "{expected} in {said}");
        }
        assert!(run(Command::new("nbdinfo").args(["--list", "--json"]).arg(&address)).contains("\"test\""));
    }
    server.stop();
}

#[test]
fn what_nbdcopy_copies_in_it_copies_out() {
    if !has_programs(&["nbdcopy"]) {
        return;
    }
    let server = Server::start(64 * MIB, 4);
    let directory = tempfile::tempdir().unwrap();
    let (source, target) = (directory.path().join("in"), directory.path().join("out"));
    let content = noise(7, (64 * MIB) as usize);
    fs::write(&source, &content).unwrap();
    for (address, connections) in [(server.unix_address(), "4"), (server.tcp_address(), "2")] {
        run(Command::new("nbdcopy").arg(format!("--connections={connections}")).arg(&source).arg(&address));
        run(Command::new("nbdcopy").arg(&address).arg(&target));
        assert!(fs::read(&target).unwrap() == content, "{address}");
        // Zeroes are sent as such, not as data.
        fs::write(&target, vec![0; (64 * MIB) as usize]).unwrap();
        run(Command::new("nbdcopy").arg(&target).arg(&address));
        run(Command::new("nbdcopy").arg(&address).arg(&target));
        assert!(fs::read(&target).unwrap().iter().all(|byte| *byte == 0), "{address}");
    }
    server.stop();
}

#[test]
fn many_clients_share_one_disk_and_take_turns() {
    let server = Server::start(16 * MIB, 2);
    let threads: Vec<_> = (0..6_u64)
        .map(|number| {
            let path = server.socket();
            std::thread::spawn(move || {
                // More clients than channels: each waits for its turn.
                for round in 0..5 {
                    let mut client = Client::connect(&path);
                    let data = noise(number * 100 + round, 128 << 10);
                    assert_eq!(client.write(number * MIB, &data), 0);
                    assert_eq!(client.flush(), 0);
                    assert!(client.read(number * MIB, 128 << 10).unwrap() == data);
                    client.goodbye();
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let (mut one, mut two) = (Client::connect(&server.socket()), Client::connect(&server.socket()));
    assert_eq!(one.write(0, &[9; 4096]), 0);
    assert_eq!(two.read(0, 4096).unwrap(), [9; 4096], "what one wrote, the other reads");
    assert_eq!(two.discard(0, 4096), 0);
    assert_eq!(one.read(0, 4096).unwrap(), [0; 4096]);
    drop((one, two));
    server.stop();
}

#[test]
fn bad_requests_are_refused_and_harm_no_client() {
    let server = Server::start(16 * MIB, 4);
    let mut good = Client::connect(&server.socket());
    assert_eq!(good.write(0, &[1; 8192]), 0);
    let mut bad = Client::connect(&server.socket());
    for (offset, length) in [(512, 4096), (0, 100), (16 * MIB, 4096), (u64::MAX - 4095, 4096), (0, (MIB + 4096) as u32)]
    {
        assert_eq!(bad.read(offset, length), Err(22), "{offset} {length}");
    }
    assert_eq!(bad.write(100, &[2; 4096]), 22);
    assert_eq!(bad.write(0, &vec![2; (2 * MIB) as usize]), 22);
    assert_eq!(bad.write(16 * MIB, &[2; 4096]), 28);
    assert_eq!(bad.read(0, 4096).unwrap(), [1; 4096], "its connection goes on");
    for nonsense in [&b"GET / HTTP/1.1\r\nHost: example.org\r\n\r\n"[..], &[0; 64], &[0xff; 64]] {
        let mut stranger = UnixStream::connect(server.socket()).unwrap();
        stranger.write_all(nonsense).unwrap();
        stranger.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let mut greeting = Vec::new();
        // A hang-up over unread bytes may come as a reset.
        let _ = stranger.read_to_end(&mut greeting);
        assert!(greeting.len() <= 18, "greeted, and then hung up on");
        let mut odd = Client::connect(&server.socket());
        odd.send(nonsense);
        assert!(odd.is_hung_up_on());
    }
    assert_eq!(good.read(4096, 4096).unwrap(), [1; 4096]);
    drop((good, bad));
    server.stop();
}

#[test]
fn a_client_that_disappears_in_the_middle_of_a_request_changes_nothing_and_makes_way() {
    let server = Server::start(16 * MIB, 1);
    let mut client = Client::connect(&server.socket());
    assert_eq!(client.write(0, &[1; 65536]), 0);
    client.send_write_header(0, 65536);
    client.send(&[2; 30_000]);
    drop(client);
    let mut next = Client::connect(&server.socket());
    assert_eq!(next.read(0, 65536).unwrap(), [1; 65536]);
    // One that asks and does not wait for the answers.
    for _ in 0..8 {
        next.send_read_header(0, MIB as u32);
    }
    drop(next);
    let mut last = Client::connect(&server.socket());
    assert_eq!(last.read(0, 4096).unwrap(), [1; 4096]);
    drop(last);
    server.stop();
}

#[test]
fn a_client_that_says_nothing_makes_way() {
    let server = Server::start(16 * MIB, 1);
    let _silent = TcpStream::connect(server.tcp_address().trim_start_matches("nbd://")).unwrap();
    // The only channel is taken for as long as a handshake may last.
    let mut client = Client::connect(&server.socket());
    assert_eq!(client.write(0, &[1; 4096]), 0);
    drop(client);
    server.stop();
}

#[test]
fn a_server_with_clients_is_not_stopped_and_goes_on() {
    let mut server = Server::start(16 * MIB, 2);
    let mut client = Client::connect(&server.socket());
    let refused = server.served.detach();
    let Err(FrontEndError::Busy(text)) = refused else { panic!("{refused:?}") };
    assert!(text.contains("1 client(s)"), "{text}");
    assert_eq!(client.write(0, &[1; 4096]), 0);
    drop(client);
    let path = server.socket();
    server.stop();
    assert!(!path.exists());
    assert!(UnixStream::connect(&path).is_err());
}

#[test]
fn a_client_of_old_is_served() {
    let server = Server::start(16 * MIB, 1);
    let mut client = Client::connect_by_name(&server.socket(), "test");
    assert_eq!(client.write(4096, &[3; 4096]), 0);
    assert_eq!(client.read(4096, 4096).unwrap(), [3; 4096]);
    drop(client);
    server.stop();
}
