//! Nothing that an I/O thread does on a FUSE channel allocates: a real device under an allocator that aborts.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

#[allow(dead_code)]
mod frontend_support;

use std::sync::Arc;
use std::time::Duration;

use frontend_support::{Aligned, can_run, open_direct};
use rustix::event::{PollFd, PollFlags, poll};
use spillway_borrower::block::{BlockChannel, BlockOperation, Received};
use spillway_borrower::frontend::fuse_channel::FuseChannel;
use spillway_borrower::frontend::loop_fuse::LoopFuse;
use spillway_borrower::frontend::{FrontEnd, FrontEndConfig};
use spillway_sys::allocation_guard::{GuardedAllocator, forbid_allocation};
use spillway_sys::mapping::Mapping;

#[global_allocator]
static ALLOCATOR: GuardedAllocator = GuardedAllocator;

const SIZE_BYTES: usize = 8 << 20;

/// Serves until the device is unmounted, all of it guarded; returns how many requests there were.
fn serve(mut channel: FuseChannel, memory: &Mapping) -> u32 {
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
fn receive_and_complete_do_not_allocate() {
    if !can_run("receive_and_complete_do_not_allocate") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let config = FrontEndConfig {
        name: "guarded".to_owned(),
        size_bytes: SIZE_BYTES as u64,
        threads: 1,
        slots_per_thread: 2,
        recoverable: false,
        directory: directory.path().to_owned(),
    };
    let (mut front, channels) = LoopFuse::mount(&config).unwrap();
    let memory = Mapping::locked(SIZE_BYTES).unwrap();
    let channel = channels.into_iter().next().unwrap();
    let server = std::thread::spawn(move || serve(channel, &memory));
    let device = front.attach().unwrap();
    let file = open_direct(&device);
    let mut buffer = Aligned::new(1 << 20);
    for round in 1..20_u8 {
        buffer.write(&file, u64::from(round) * 4096, &[round; 64 * 1024]);
        assert!(buffer.read(&file, u64::from(round) * 4096, 64 * 1024).iter().all(|byte| *byte == round));
    }
    file.sync_all().unwrap();
    drop(file);
    front.detach(Duration::from_secs(10)).unwrap();
    assert!(server.join().unwrap() >= 40);
}
