//! Nothing that an I/O thread of an NBD server does allocates, from a client's first byte to its last: under an allocator that
//! aborts.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

#[allow(dead_code)]
mod nbd_support;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use nbd_support::Client;
use rustix::event::{PollFd, PollFlags, poll};
use spillway_borrower::block::{BlockChannel, BlockOperation, Received};
use spillway_borrower::frontend::nbd_listener::NbdAddress;
use spillway_borrower::frontend::nbd_server::{NbdListen, NbdServer, NbdServerChannel};
use spillway_borrower::frontend::{FrontEnd, FrontEndConfig};
use spillway_sys::allocation_guard::{GuardedAllocator, forbid_allocation};
use spillway_sys::mapping::Mapping;

#[global_allocator]
static ALLOCATOR: GuardedAllocator = GuardedAllocator;

const SIZE_BYTES: usize = 8 << 20;

/// Serves until the server is closed, all of it guarded; returns how many requests there were.
fn serve(mut channel: NbdServerChannel, memory: &Mapping) -> u32 {
    let pool = Arc::clone(channel.pool());
    let mut served = 0;
    loop {
        let open = forbid_allocation(|| match channel.receive().unwrap() {
            Received::Closed => false,
            Received::Nothing => {
                poll(&mut [PollFd::from_borrowed_fd(channel.event(), PollFlags::IN)], None).unwrap();
                true
            }
            Received::Request(request) => {
                let (buffer, offset) = (pool.slot(request.slot).offset_bytes as usize, request.offset_bytes as usize);
                let length = request.length_bytes as usize;
                match request.operation {
                    BlockOperation::Read => pool.memory().copy_from(buffer, memory, offset, length),
                    BlockOperation::Write => memory.copy_from(offset, pool.memory(), buffer, length),
                    BlockOperation::Discard => memory.zero(offset, length),
                    BlockOperation::Flush => {}
                }
                channel.complete(request.slot, Ok(())).unwrap();
                channel.flush().unwrap();
                served += 1;
                true
            }
        });
        if !open {
            return served;
        }
    }
}

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
        directory: PathBuf::new(),
    };
    let listen = NbdListen { addresses: vec![NbdAddress::Unix(socket.clone())], exposed: false };
    let (mut server, channels) = NbdServer::open(&config, &listen).unwrap();
    let channel = channels.into_iter().next().unwrap();
    let memory = Mapping::locked(SIZE_BYTES).unwrap();
    let thread = std::thread::spawn(move || serve(channel, &memory));

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
    server.detach(Duration::from_secs(20)).unwrap();
    assert_eq!(thread.join().unwrap(), 38);
}
