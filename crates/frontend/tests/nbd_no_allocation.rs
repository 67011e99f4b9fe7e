//! Nothing that an I/O thread of an NBD server does allocates, from a client's first byte to its last: under an
//! allocator that aborts.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

#[allow(dead_code)]
mod support;

use std::path::PathBuf;
use std::time::Duration;

use spillway_frontend::front_end::{FrontEnd, FrontEndConfig};
use spillway_frontend::nbd::listener::NbdAddress;
use spillway_frontend::nbd::server::{NbdListen, NbdServer};
use spillway_sys::allocation_guard::GuardedAllocator;
use spillway_sys::mapping::Mapping;

use support::guarded::serve_guarded;
use support::nbd::Client;

#[global_allocator]
static ALLOCATOR: GuardedAllocator = GuardedAllocator;

const SIZE_BYTES: usize = 8 << 20;

#[test]
fn clients_of_every_kind_cost_no_allocation() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("disk.sock");
    let config = FrontEndConfig {
        name: "test".to_owned(),
        size_bytes: SIZE_BYTES as u64,
        threads: 1,
        slots_per_thread: 2,
        recoverable: false,
        answer_deadline: Duration::from_secs(12),
        directory: PathBuf::new(),
    };
    let listen = NbdListen { addresses: vec![NbdAddress::Unix(socket.clone())], exposed: false };
    let (mut server, channels) = NbdServer::open(&config, &listen).unwrap();
    let channel = channels.into_iter().next().unwrap();
    let memory = Mapping::locked(SIZE_BYTES).unwrap();
    let thread = std::thread::spawn(move || serve_guarded(channel, &memory));

    let mut client = Client::connect(&socket);
    for round in 1..20_u8 {
        let data = vec![round; 1 << 20];
        assert_eq!(client.write(u64::from(round % 4) << 20, &data), 0);
        assert_eq!(client.read(u64::from(round % 4) << 20, 1 << 20).unwrap(), data);
        assert_eq!(client.write(1, &data), 22, "refused");
    }
    client.goodbye();
    let mut rude = Client::connect_by_name(&socket, "test");
    rude.send_write_header(0, 1 << 20);
    rude.send(&[1; 1000]);
    drop(rude);
    let mut odd = Client::connect(&socket);
    odd.send(&[0xff; 40]);
    assert!(odd.is_hung_up_on());
    server.detach(Duration::from_secs(120)).unwrap();
    assert_eq!(thread.join().unwrap(), 38);
}
