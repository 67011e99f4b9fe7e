//! What models of a whole device have in common: what they write, and what the manager and the disk thread do around
//! the engines.

use std::sync::Arc;
use std::time::Duration;

use spillway_block::request::{BlockOperation, BlockRequest};
use spillway_fabric::buffer_pool::BufferPool;
use spillway_fabric::units::{PAGE_SIZE_BYTES, Priority, SlabHandle, SlabIndex};

use crate::engine::queue_pairs::{QueuePairChange, QueuePairMailbox};
use crate::limits::COPIES_MAX;
use crate::slab_map::backlog::{BacklogPage, TakePolicy};
use crate::slab_map::slab_entry::{DonorSlot, Location};
use crate::slab_map::{DiskCopy, Volume};
use crate::test_support::{SharedStore, Store, StoreQueuePair};

/// The disk thread takes what there is, and waits for nothing.
pub const AT_ONCE: TakePolicy = TakePolicy { eager_pages: 1, delay: Duration::ZERO, patience: Duration::ZERO };

/// A request for `count` pages from page `first` on.
pub fn request(slot: usize, operation: BlockOperation, first: u64, count: u64) -> BlockRequest {
    let page = PAGE_SIZE_BYTES as u64;
    BlockRequest { slot, operation, offset_bytes: first * page, length_bytes: count * page, priority: Priority::Demand }
}

/// What write `number` gives `page`: no other page, and no other write, has it. Every third write gives each page one
/// word over and over.
pub fn content(page: u64, number: u32) -> Vec<u8> {
    if number.is_multiple_of(3) {
        let word = page << 32 | u64::from(number);
        return word.rotate_left(32).to_le_bytes().repeat(PAGE_SIZE_BYTES / 8);
    }
    let mut bytes = vec![number as u8; PAGE_SIZE_BYTES];
    bytes[..8].copy_from_slice(&page.to_le_bytes());
    bytes[PAGE_SIZE_BYTES - 4..].copy_from_slice(&number.to_le_bytes());
    bytes
}

/// Queue pairs to donors, each with the pool that its bytes are in.
#[derive(Clone, Copy)]
pub struct QueuePairEnds<'world> {
    /// Where engines find them, one for each engine.
    pub mailboxes: &'world [Arc<QueuePairMailbox>],
    /// The pool of each engine.
    pub pools: &'world [Arc<BufferPool>],
}

impl QueuePairEnds<'_> {
    /// A new session with the donor in slot `donor`: over sockets with every second one, by a device with every fourth.
    pub fn connect(self, volume: &Volume, donor: usize, store: &SharedStore, depth: usize) {
        let donor = DonorSlot(donor as u16);
        volume.begin_session(donor);
        for (mailbox, pool) in self.mailboxes.iter().zip(self.pools) {
            let make = match donor.0 % 4 {
                0 => StoreQueuePair::by_device,
                2 => StoreQueuePair::boxed,
                _ => StoreQueuePair::over_socket,
            };
            mailbox.leave(QueuePairChange { donor, queue_pair: Some(make(store, pool, depth)) });
        }
    }

    /// The end of the session.
    pub fn disconnect(self, donor: usize) {
        let donor = DonorSlot(donor as u16);
        self.mailboxes.iter().for_each(|mailbox| mailbox.leave(QueuePairChange { donor, queue_pair: None }));
    }
}

/// Every copy: its slab, its copy index, and where it is.
pub fn copies(volume: &Volume) -> Vec<(SlabIndex, usize, Location)> {
    let of_slab = |slab: SlabIndex| {
        let locations = volume.slab(slab).locations();
        (0..COPIES_MAX).filter_map(move |copy_index| Some((slab, copy_index, locations[copy_index]?)))
    };
    volume.geometry.slabs().flat_map(of_slab).collect()
}

/// Copies at the donor in slot `donor`.
pub fn copies_at(volume: &Volume, donor: usize) -> Vec<(SlabIndex, usize)> {
    let there = |(slab, copy_index, location): (_, _, Location)| {
        (usize::from(location.donor.0) == donor).then_some((slab, copy_index))
    };
    copies(volume).into_iter().filter_map(there).collect()
}

/// Brings every slab to as many copies as asked for; donor `first_choice` is asked first.
pub fn map(volume: &Volume, donors: &[SharedStore], first_choice: usize) {
    for slab in volume.geometry.slabs() {
        volume.slab(slab).take_want();
        for choice in 0..donors.len() {
            let copies = volume.slab(slab).locations().iter().flatten().count();
            if copies < usize::from(volume.redundancy.replicas) {
                lend(volume, donors, slab, first_choice + choice);
            }
        }
    }
}

/// A new copy of `slab` at donor `choice`, if that holds none; gives its copy index.
fn lend(volume: &Volume, donors: &[SharedStore], slab: SlabIndex, choice: usize) -> Option<(usize, Location)> {
    let (donor, locations) = (choice % donors.len(), volume.slab(slab).locations());
    let slot = DonorSlot(donor as u16);
    if locations.iter().flatten().any(|location| location.donor == slot) {
        return None;
    }
    let copy_index = locations.iter().position(Option::is_none)?;
    let target = Location { donor: slot, handle: donors[donor].lock().expect("no test thread panicked").lend() };
    volume.slab(slab).fill(copy_index, target);
    Some((copy_index, target))
}

/// A copy that moves.
#[derive(Clone, Copy, Debug)]
pub struct Move {
    /// The copy index that it leaves.
    pub old: usize,
    /// The copy index that it gets, still to be filled.
    pub new: usize,
    /// Where that is.
    pub target: Location,
}

/// Begins to move a copy of `slab`, as for a recall, to a donor that holds none, `choice` first; `None` if there is
/// no such copy or donor.
pub fn begin_move(volume: &Volume, donors: &[SharedStore], slab: SlabIndex, choice: usize) -> Option<Move> {
    let old = volume.slab(slab).locations().iter().position(Option::is_some)?;
    let (new, target) = (0..donors.len()).find_map(|offset| lend(volume, donors, slab, choice + offset))?;
    Some(Move { old, new, target })
}

/// A donor gets its memory back.
pub fn give_back(donors: &[SharedStore], location: Location) {
    donors[usize::from(location.donor.0)].lock().expect("no test thread panicked").take_back(location.handle);
}

/// Writes a page of the backlog to the disk.
pub fn write_out(volume: &Volume, copy: &DiskCopy, disk: &mut Store, page: &BacklogPage) {
    let source = copy.pool.slot(page.slot.0 as usize).offset_bytes as usize;
    let offset = (page.page.0 % volume.geometry.slab_pages) as usize * PAGE_SIZE_BYTES;
    let slab = disk.slab(SlabHandle(volume.geometry.slab_of(page.page).0));
    copy.pool.memory().read(source, &mut slab[offset..offset + PAGE_SIZE_BYTES]);
}
