//! Memory that the pager shares with its programs: created by the pager, mapped by every stub. Layout: [`crate::protocol`].

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;

use spillway_sys::mapping::Mapping;
use spillway_sys::memfd::Memfd;
use spillway_sys::shared_futex;
use spillway_sys::userfaultfd::Features;

use crate::greeting::Address;
use crate::protocol::{
    ADDRESS_BYTES_MAX, ARENA_SUFFIX, ArenaHead, MAGIC, POOL_SLOT_BYTES, VERSION, pool_offset, seat_offset,
};
use crate::seat::Seat;

/// What an arena holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArenaPlan {
    /// How many processes can have an agent at a time. A seat that is not used costs address space only.
    pub seats: u32,
    /// Slots of the write-back pool, of [`POOL_SLOT_BYTES`] each.
    pub pool_slots: u32,
}

/// The pager's view of the arena.
#[derive(Debug)]
pub struct Arena {
    file: Memfd,
    memory: Arc<Mapping>,
    plan: ArenaPlan,
    address: Address,
}

impl Arena {
    /// A new arena for programs that find their pager at `address`.
    pub fn create(plan: ArenaPlan, address: &Address) -> io::Result<Self> {
        let length = pool_offset(plan.seats) + plan.pool_slots as usize * POOL_SLOT_BYTES;
        let file = Memfd::create("spillway-arena", length as u64)?;
        let memory = Arc::new(Mapping::shared(&file, length)?);
        write_head(&memory, plan.seats, length as u64, address);
        let arena = Self { file, memory, plan, address: address.clone() };
        for index in 0..plan.seats {
            arena.seat(index).number();
        }
        Ok(arena)
    }

    /// Programs need not wait for the pager from now on: they find the arena by a link beside its address, and their userfaultfds agree on
    /// `features`. The link leads through this process's descriptors, so it ends with it; whoever owns the directory removes it.
    pub fn let_in(&self, features: Features) -> io::Result<()> {
        let file = format!("/proc/{}/fd/{}", std::process::id(), self.file.as_fd().as_raw_fd());
        shared_futex::long_word(&self.memory, std::mem::offset_of!(ArenaHead, features))
            .store(features.0, std::sync::atomic::Ordering::SeqCst);
        std::os::unix::fs::symlink(file, format!("{}{ARENA_SUFFIX}", self.address))
    }

    /// Where programs find their pager.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// What it holds.
    pub fn plan(&self) -> ArenaPlan {
        self.plan
    }

    /// The file, to be sent to programs, or mapped in part.
    pub fn file(&self) -> &Memfd {
        &self.file
    }

    /// All of it.
    pub fn memory(&self) -> &Arc<Mapping> {
        &self.memory
    }

    /// Bytes of all of it.
    pub fn length_bytes(&self) -> u64 {
        self.file.length_bytes()
    }

    /// Seat `index`.
    pub fn seat(&self, index: u32) -> Seat {
        assert!(index < self.plan.seats, "seat {index} of {}", self.plan.seats);
        Seat::new(Arc::clone(&self.memory), seat_offset(index), index)
    }

    /// Where the pool begins: a pool of its own can be mapped from there.
    pub fn pool_offset(&self) -> usize {
        pool_offset(self.plan.seats)
    }

    /// Where slot `slot` of the pool begins.
    pub fn slot_offset(&self, slot: u32) -> usize {
        assert!(slot < self.plan.pool_slots, "slot {slot} of {}", self.plan.pool_slots);
        self.pool_offset() + slot as usize * POOL_SLOT_BYTES
    }
}

fn write_head(memory: &Mapping, seats: u32, arena_bytes: u64, address: &Address) {
    use std::mem::offset_of;
    use std::sync::atomic::Ordering::Relaxed;
    let text = address.as_bytes();
    assert!(text.len() <= ADDRESS_BYTES_MAX, "an address is checked when it is made");
    shared_futex::long_word(memory, offset_of!(ArenaHead, magic)).store(MAGIC, Relaxed);
    shared_futex::word(memory, offset_of!(ArenaHead, version)).store(VERSION, Relaxed);
    shared_futex::word(memory, offset_of!(ArenaHead, seats)).store(seats, Relaxed);
    shared_futex::long_word(memory, offset_of!(ArenaHead, arena_bytes)).store(arena_bytes, Relaxed);
    shared_futex::word(memory, offset_of!(ArenaHead, address_length)).store(text.len() as u32, Relaxed);
    memory.write(offset_of!(ArenaHead, address), text);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::SEAT_BYTES;

    #[test]
    fn seats_and_slots_lie_one_after_the_other() {
        let address = Address::parse("@spillway-arena-test").unwrap();
        let arena = Arena::create(ArenaPlan { seats: 3, pool_slots: 2 }, &address).unwrap();
        assert_eq!(arena.slot_offset(1) + POOL_SLOT_BYTES, arena.length_bytes() as usize);
        assert_eq!(arena.slot_offset(0), seat_offset(2) + SEAT_BYTES);
        assert_eq!(arena.seat(2).index(), 2);
        let other = Mapping::shared(arena.file(), arena.length_bytes() as usize).unwrap();
        let mut magic = [0; 8];
        other.read(0, &mut magic);
        assert_eq!(u64::from_ne_bytes(magic), MAGIC, "a program sees the head");
    }

    #[test]
    #[should_panic(expected = "seat 1 of 1")]
    fn a_seat_that_is_not_there_is_refused() {
        let address = Address::parse("@spillway-arena-test").unwrap();
        Arena::create(ArenaPlan { seats: 1, pool_slots: 0 }, &address).unwrap().seat(1);
    }
}
