//! What threads share, under a scheduler that explores interleavings: `cargo test -p spillway-volume --features
//! schedules`.
//!
//! Each test states the promise that the path of a page rests on, and lets shuttle try thousands of orders of the
//! atomic steps. A failure prints the schedule that replays it.

#![cfg(feature = "schedules")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::sync::Arc;

use shuttle::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use shuttle::thread;
use spillway_fabric::units::{SlabHandle, SlabIndex};
use spillway_volume::settings::redundancy::Redundancy;
use spillway_volume::slab_map::gate::Gate;
use spillway_volume::slab_map::page_bits::{Bit, PageBits};
use spillway_volume::slab_map::page_index::PageIndex;
use spillway_volume::slab_map::slab_entry::{DonorSlot, Location, SlabEntry};
use spillway_volume::slab_map::{Geometry, Volume};

const ROUNDS: usize = 5_000;

/// Memory of one lent slab: whether it is still ours to touch.
struct Memory {
    ours: AtomicBool,
}

/// A request that passed the gate and saw a copy may touch its memory until it leaves, whatever the manager does.
#[test]
fn no_request_touches_memory_after_its_copy_was_drained() {
    shuttle::check_random(
        || {
            let entry = Arc::new(SlabEntry::default());
            let memories: Arc<Vec<Memory>> = Arc::new((0..3).map(|_| Memory { ours: AtomicBool::new(true) }).collect());
            let location = |handle| Location { donor: DonorSlot(0), handle: SlabHandle(handle) };
            entry.fill(0, location(0));
            entry.fill(1, location(1));
            let readers: Vec<_> = (0..2)
                .map(|_| {
                    let (entry, memories) = (Arc::clone(&entry), Arc::clone(&memories));
                    thread::spawn(move || {
                        for _ in 0..3 {
                            let pass = entry.gate.enter();
                            for copy_index in entry.locations().into_iter().flatten() {
                                let memory = &memories[copy_index.handle.0 as usize];
                                assert!(memory.ours.load(Ordering::SeqCst), "memory was given back while in use");
                            }
                            entry.gate.leave(pass);
                        }
                    })
                })
                .collect();
            // Two removals one after the other: a straggler of the first must not be missed by the second.
            for copy_index in 0..2 {
                let removed = entry.empty(copy_index).unwrap();
                entry.gate.drain(|| {});
                memories[removed.handle.0 as usize].ours.store(false, Ordering::SeqCst);
            }
            readers.into_iter().for_each(|reader| reader.join().unwrap());
        },
        ROUNDS,
    );
}

/// Owners of overlapping ranges exclude each other, and one of them always gets on.
#[test]
fn pages_have_one_owner() {
    shuttle::check_random(
        || {
            let bits = Arc::new(PageBits::new(192));
            let inside: Arc<Vec<AtomicU64>> = Arc::new((0..192).map(|_| AtomicU64::new(0)).collect());
            let ranges = [(PageIndex(60), 10), (PageIndex(65), 70), (PageIndex(130), 5)];
            let owners: Vec<_> = ranges
                .into_iter()
                .map(|(first, count)| {
                    let (bits, inside) = (Arc::clone(&bits), Arc::clone(&inside));
                    thread::spawn(move || {
                        for _ in 0..2 {
                            while !bits.try_acquire(first, count) {
                                thread::yield_now();
                            }
                            for page in [first, first + (count - 1)] {
                                assert_eq!(inside[page.0 as usize].fetch_add(1, Ordering::SeqCst), 0, "two owners");
                            }
                            for page in [first, first + (count - 1)] {
                                inside[page.0 as usize].fetch_sub(1, Ordering::SeqCst);
                            }
                            bits.release(first, count);
                        }
                    })
                })
                .collect();
            owners.into_iter().for_each(|owner| owner.join().unwrap());
            assert!(bits.try_acquire(PageIndex(0), 192), "everything was given back");
        },
        ROUNDS,
    );
}

/// A reader always finds a page that moves from the backlog to the disk: in one or in the other.
#[test]
fn a_page_on_its_way_to_disk_is_never_nowhere() {
    shuttle::check_random(
        || {
            let bits = Arc::new(PageBits::new(64));
            bits.set(Bit::Pending, PageIndex(7), 1);
            let reader = Arc::clone(&bits);
            let reader = thread::spawn(move || {
                assert_ne!(reader.word(PageIndex(7)).stored() & (1 << 7), 0, "the page was nowhere for a moment");
            });
            // The order of the disk thread, see `Backlog::complete`.
            bits.set(Bit::Disk, PageIndex(7), 1);
            bits.clear(Bit::Pending, PageIndex(7), 1);
            reader.join().unwrap();
        },
        ROUNDS,
    );
}

/// A page whose only copy is taken away is lost, and never looks as if it had not been written.
#[test]
fn a_page_that_is_being_lost_never_reads_as_zeroes() {
    shuttle::check_random(
        || {
            let geometry = Geometry { slab_pages: 64, slab_count: 1 };
            let volume = Arc::new(Volume::new(geometry, Redundancy::NONE, None).unwrap());
            volume.slab(SlabIndex(0)).fill(0, Location { donor: DonorSlot(0), handle: SlabHandle(0) });
            volume.bits.set(Bit::Copy(0), PageIndex(7), 1);
            let reader = Arc::clone(&volume);
            let reader = thread::spawn(move || {
                // As `engine::read` does: the gate, then the copy indexes, then the bits.
                let pass = reader.slab(SlabIndex(0)).gate.enter();
                let _places = reader.slab(SlabIndex(0)).locations();
                let word = reader.bits.word(PageIndex(7));
                reader.slab(SlabIndex(0)).gate.leave(pass);
                assert_ne!((word.stored() | word.lost) & (1 << 7), 0, "the page reads as zeroes");
            });
            volume.remove_copy(SlabIndex(0), 0, || {});
            reader.join().unwrap();
        },
        ROUNDS,
    );
}

/// The explorer finds what it is there for: a drain with one flip misses stragglers.
#[test]
#[should_panic(expected = "memory was given back while in use")]
fn a_gate_that_is_not_drained_is_found_out() {
    shuttle::check_random(
        || {
            let gate = Arc::new(Gate::default());
            let ours = Arc::new(AtomicBool::new(true));
            let (reader_gate, reader_ours) = (Arc::clone(&gate), Arc::clone(&ours));
            let reader = thread::spawn(move || {
                let pass = reader_gate.enter();
                thread::yield_now();
                assert!(reader_ours.load(Ordering::SeqCst), "memory was given back while in use");
                reader_gate.leave(pass);
            });
            ours.store(false, Ordering::SeqCst);
            reader.join().unwrap();
        },
        ROUNDS,
    );
}
