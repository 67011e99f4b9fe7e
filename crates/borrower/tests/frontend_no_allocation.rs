//! Nothing that an I/O thread does on a FUSE channel allocates: a real device under an allocator that aborts.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

#[allow(dead_code)]
mod frontend_support;

use frontend_support::guarded::serve_guarded;

use frontend_support::{Aligned, PATIENCE, can_run, open_direct};
use spillway_borrower::frontend::loop_fuse::LoopFuse;
use spillway_borrower::frontend::{FrontEnd, FrontEndConfig};
use spillway_sys::allocation_guard::GuardedAllocator;
use spillway_sys::mapping::Mapping;

#[global_allocator]
static ALLOCATOR: GuardedAllocator = GuardedAllocator;

const SIZE_BYTES: usize = 8 << 20;

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
    let server = std::thread::spawn(move || serve_guarded(channel, &memory));
    let device = front.attach().unwrap();
    let file = open_direct(&device);
    let mut buffer = Aligned::new(1 << 20);
    for round in 1..20_u8 {
        buffer.write(&file, u64::from(round) * 4096, &[round; 64 * 1024]);
        assert!(buffer.read(&file, u64::from(round) * 4096, 64 * 1024).iter().all(|byte| *byte == round));
    }
    file.sync_all().unwrap();
    drop(file);
    front.detach(PATIENCE).unwrap();
    assert!(server.join().unwrap() >= 40);
}
