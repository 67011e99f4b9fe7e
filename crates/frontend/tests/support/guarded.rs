//! What an I/O thread does, under the allocator that aborts: every front end's channels are driven by it.

use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, poll};
use spillway_block::channel::{BlockChannel, Received};
use spillway_block::request::BlockOperation;
use spillway_sys::allocation_guard::forbid_allocation;
use spillway_sys::mapping::Mapping;

/// Serves from `memory` until the channel is closed, all of it guarded; how many requests there were.
pub(crate) fn serve_guarded(mut channel: impl BlockChannel, memory: &Mapping) -> u32 {
    let pool = Arc::clone(channel.pool());
    let mut served = 0;
    loop {
        let open = forbid_allocation(|| match channel.receive().unwrap() {
            Received::Closed => false,
            Received::Nothing => {
                let _ = poll(&mut [PollFd::from_borrowed_fd(channel.event(), PollFlags::IN)], None);
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
