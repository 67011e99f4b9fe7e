//! Nothing that an I/O thread does on a FUSE channel allocates: a real device under an allocator that aborts.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

#[allow(dead_code)]
mod support;

use spillway_frontend::front_end::{FrontEnd, FrontEndConfig};
use spillway_frontend::fuse::device::LoopFuse;
use spillway_sys::allocation_guard::GuardedAllocator;
use spillway_sys::mapping::Mapping;
use spillway_testing::block_devices::can_run;

use support::exercise::write_and_read_back;
use support::guarded::serve_guarded;
use support::{PATIENCE, Way, ways};

#[global_allocator]
static ALLOCATOR: GuardedAllocator = GuardedAllocator;

const SIZE_BYTES: usize = 8 << 20;

#[test]
fn receive_and_complete_do_not_allocate() {
    if can_run() {
        ways().into_iter().for_each(serve_without_allocation);
    }
}

fn serve_without_allocation(way: Way) {
    let directory = tempfile::tempdir().unwrap();
    let config = FrontEndConfig {
        name: "guarded".to_owned(),
        size_bytes: SIZE_BYTES as u64,
        threads: 1,
        slots_per_thread: 2,
        recoverable: false,
        answer_deadline: std::time::Duration::from_secs(12),
        directory: directory.path().to_owned(),
    };
    let memory = Mapping::locked(SIZE_BYTES).unwrap();
    let (mut front, server) = match way {
        Way::Device => {
            let (front, channels) = LoopFuse::mount(&config).unwrap();
            let channel = channels.into_iter().next().unwrap();
            (front, std::thread::spawn(move || serve_guarded(channel, &memory)))
        }
        Way::Rings => {
            let (front, channels) = LoopFuse::mount_with_rings(&config).unwrap();
            let channel = channels.into_iter().next().unwrap();
            (front, std::thread::spawn(move || serve_guarded(channel, &memory)))
        }
    };
    let device = front.attach().unwrap();
    write_and_read_back(&device, |_| {});
    front.detach(PATIENCE).unwrap();
    assert!(server.join().unwrap() >= 40);
}
