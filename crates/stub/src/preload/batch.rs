//! One batch: move pages to the staging area, copy them to the seat, drop them.
//!
//! Moving is atomic for the program, which waits at its next touch. It is done with the program's main userfaultfd,
//! because only then does the kernel refuse it while a message about changed mappings was not read; so the staging
//! area is registered there too. Dropping registered pages would raise a message that the evictor has to wait for, so
//! the area is unregistered for that moment (rule 9; docs/pager.md has the figures).
//!
//! Linux 6.18 moves pages and does not say so (rule 16). The program may change a page in the middle of a move, by its
//! first write where a page of zeroes was. The kernel then tries again, moves the page and maybe neighbours, and still
//! has the error of the first try. It tries a third time, and finds its target in use (EEXIST; `move_pages` in its
//! `mm/userfaultfd.c`). So what it says of a page is believed only if it looked at that page's place
//! ([`is_in_doubt`]); else the place tells: one with anything but zeroes in it holds the page. A page of zeroes may
//! have moved too, and comes back as what it is, since its content is known. (No thread but the kernel
//! writes there, but a program that locks all its memory fills it with zeroes.)

use core::cell::Cell;
use core::sync::atomic::Ordering::{Relaxed, Release};

use crate::calls::{self, AGAIN, EXISTS, INVALID};
use crate::evictor::{Place, Userfaultfd, set_phase};
use crate::memory;
use crate::protocol::{
    BATCH_ENTRIES_MAX, Batch, Entry, Operation, PAGE_BYTES, Phase, STAGING_BYTES, SeatHead, outcome, transfer_offset,
};

/// `PROT_READ | PROT_WRITE`: pages move only between areas of the same protection.
const READ_WRITE: usize = 3;
/// `PROT_EXEC`, besides: what translators (QEMU, Java) have for the code that they make.
const EXECUTE: usize = 4;
/// `MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE`.
const RESERVED: usize = 0x2 | 0x20 | 0x4000;
/// `MADV_DONTNEED`.
const DROP: u32 = 4;
/// `MADV_DONTFORK`: a forked child has an evictor and an area of its own.
const NOT_IN_CHILDREN: u32 = 10;
/// `MADV_NOHUGEPAGE`: pages come one by one.
const NO_HUGE_PAGES: u32 = 15;
/// `MADV_POPULATE_WRITE`.
const POPULATE_WRITE: u32 = 23;

/// `UFFDIO_REGISTER`, `UFFDIO_UNREGISTER`, `UFFDIO_MOVE`.
const REGISTER: u32 = 0xc020_aa00;
const UNREGISTER: u32 = 0x8010_aa01;
const MOVE: u32 = 0xc028_aa05;
/// `UFFDIO_REGISTER_MODE_MISSING`.
const MISSING: u64 = 1;
/// `UFFDIO_MOVE_MODE_DONTWAKE`: no thread waits for pages of the staging area.
const WITHOUT_WAKE: u64 = 1;

/// `struct uffdio_register`.
#[repr(C)]
struct Register {
    start: u64,
    length: u64,
    mode: u64,
    ioctls: u64,
}

/// `struct uffdio_range`.
#[repr(C)]
struct Range {
    start: u64,
    length: u64,
}

/// `struct uffdio_move`.
#[repr(C)]
struct Move {
    target: u64,
    source: u64,
    length: u64,
    mode: u64,
    done: i64,
}

/// The memory that pages are moved to, a page of it for each entry of a batch, and the descriptor that moves them. A
/// page on either side is out of bounds, so that the kernel never merges the area with memory of the program.
pub(crate) struct Staging {
    address: usize,
    userfaultfd: Userfaultfd,
    seat: &'static SeatHead,
    /// What the area is protected as.
    protection: Cell<usize>,
}

impl Staging {
    /// A new one, registered; where it is stands in the seat before any process can ask the pager for its pages, which
    /// are none of the program's.
    pub(crate) fn new(userfaultfd: Userfaultfd, seat: &'static SeatHead) -> Result<Self, i32> {
        let reserved = calls::map_apart(1, STAGING_BYTES + 2 * PAGE_BYTES, 0, RESERVED, -1)?;
        let staging = Self { address: reserved + PAGE_BYTES, userfaultfd, seat, protection: Cell::new(READ_WRITE) };
        seat.staging.store(staging.address as u64, Release);
        // A program that locks all its memory has locked this too; locked and other pages do not mix, and are not
        // dropped.
        let _ = staging.unlock();
        calls::protect(staging.address, STAGING_BYTES, READ_WRITE)?;
        // SAFETY: the area is new and this library's.
        unsafe {
            calls::advise(staging.address, STAGING_BYTES, NOT_IN_CHILDREN)?;
            // A kernel without huge pages refuses this, and needs it not.
            let _ = calls::advise(staging.address, STAGING_BYTES, NO_HUGE_PAGES);
        }
        staging.register()?;
        Ok(staging)
    }

    fn page(&self, index: usize) -> usize {
        self.address + index * PAGE_BYTES
    }

    fn register(&self) -> Result<(), i32> {
        let mut argument =
            Register { start: self.address as u64, length: STAGING_BYTES as u64, mode: MISSING, ioctls: 0 };
        // SAFETY: the argument is the request's structure; the area is this library's.
        unsafe { calls::control(self.userfaultfd.0, REGISTER, &raw mut argument as usize) }.map(|_| ())
    }

    fn unregister(&self) -> Result<(), i32> {
        let mut argument = Range { start: self.address as u64, length: STAGING_BYTES as u64 };
        // SAFETY: as for `register`.
        unsafe { calls::control(self.userfaultfd.0, UNREGISTER, &raw mut argument as usize) }.map(|_| ())
    }

    /// Moves pages from `source` of the program to page `index` on. Returns how many were moved; fails when the first
    /// was not, with [`AGAIN`] when the pager has what was moved so far, since this thread was stopped.
    fn take(&self, index: usize, source: u64, pages: usize) -> Result<usize, i32> {
        let target = self.page(index) as u64;
        let length = (pages * PAGE_BYTES) as u64;
        let mut argument = Move { target, source, length, mode: WITHOUT_WAKE, done: 0 };
        // SAFETY: the argument is the request's structure. Pages leave the program atomically, and the thread that
        // touches them waits for the pager, which asked for this.
        let result = unsafe {
            calls::control_unless_held(
                &raw const self.seat.is_held,
                self.userfaultfd.0 as usize,
                MOVE as usize,
                &raw mut argument as usize,
            )
        };
        match (usize::try_from(argument.done), result) {
            (Ok(done), _) if done > 0 => Ok(done / PAGE_BYTES),
            (_, 0..) => Ok(pages),
            (_, error) => Err(error as i32),
        }
    }

    /// Takes pages of the other kind from now on: executable ones, or those that are not. Programs without any that
    /// are executable never get here with pages that could move, and a program that may not have such memory
    /// (SELinux) is refused here as there.
    fn change_kind(&self) -> Result<(), i32> {
        let other = self.protection.get() ^ EXECUTE;
        calls::protect(self.address, STAGING_BYTES, other)?;
        self.protection.set(other);
        Ok(())
    }

    /// Drops the pages from `first` to `last`, while they are not registered.
    fn drop_pages(&self, first: usize, last: usize) -> Result<(), i32> {
        // SAFETY: the area is this library's, and its pages were copied or are not wanted.
        let drop = || unsafe { calls::advise(self.page(first), (last + 1 - first) * PAGE_BYTES, DROP) };
        drop()
            .or_else(|error| match error {
                // The program has locked all its memory meanwhile.
                INVALID => self.unlock().and_then(|_| drop()),
                error => Err(error),
            })
            .map(|_| ())
    }

    fn unlock(&self) -> Result<usize, i32> {
        calls::unlock(self.address - PAGE_BYTES, STAGING_BYTES + 2 * PAGE_BYTES)
    }

    /// Unmaps it, without a message about that.
    pub(crate) fn give_back(&self) {
        if self.unregister().is_ok() {
            let _ = calls::unmap(self.address - PAGE_BYTES, STAGING_BYTES + 2 * PAGE_BYTES);
        }
    }
}

/// Carries out `batch`, which is number `number` of the seat, up to its last phase. Whether it says to end, and with
/// what status.
pub(crate) fn run(place: Place, number: usize, batch: &Batch, staging: &Staging) -> Result<Option<u8>, i32> {
    // A program that locks all its memory has locked the staging area too: then its locked pages alone would move,
    // and those that it maps later would not.
    let _ = staging.unlock();
    let count = (batch.count.load(Relaxed) as usize).min(BATCH_ENTRIES_MAX);
    let entries = batch.entries.get(..count).unwrap_or_default();
    let doubted_from = move_all(entries, staging);
    set_phase(place, &batch.phase, Phase::Moved);
    copy_and_drop(&Target { place, batch: number }, entries, staging, doubted_from)?;
    Ok(others(entries))
}

fn operation(entry: &Entry) -> Option<Operation> {
    Operation::from_number(entry.operation.load(Relaxed))
}

fn is_eviction(entry: &Entry) -> bool {
    matches!(operation(entry), Some(Operation::EvictCopy | Operation::EvictDrop))
}

/// Whether the kernel may have moved the page without saying so, if it stopped at this one or before: it looks at a
/// page's place before it says anything else.
fn is_in_doubt(entry: &Entry) -> bool {
    let is_known =
        matches!(entry.result.load(Relaxed), outcome::DONE | outcome::ZERO | outcome::ABSENT | outcome::BUSY);
    is_eviction(entry) && !is_known
}

/// Moves all pages, neighbours together, until the kernel says that mappings change. Returns where the kernel first
/// stopped at a page, from where on it may have done more than it said.
fn move_all(entries: &[Entry], staging: &Staging) -> usize {
    let (mut index, mut doubted_from) = (0, entries.len());
    while let Some(entry) = entries.get(index) {
        if !is_eviction(entry) {
            index += 1;
            continue;
        }
        let wanted = neighbours(entries, index);
        match move_run(staging, index, entry.address.load(Relaxed), wanted) {
            Ok(moved) => {
                set_results(entries, index, index + moved, outcome::DONE);
                index += moved;
                if moved < wanted {
                    doubted_from = doubted_from.min(index);
                }
            }
            Err(AGAIN) => {
                set_results(entries, index, entries.len(), outcome::TRY_LATER);
                break;
            }
            Err(error) => {
                entry.result.store(error, Relaxed);
                if error == EXISTS {
                    doubted_from = doubted_from.min(index);
                }
                index += 1;
            }
        }
    }
    doubted_from
}

/// Moves the first of `pages` neighbours, or more of them. The kernel refuses a run that spans two mappings as a
/// whole, and one of another protection, and does not say which; so a run that it refuses is tried as the other kind,
/// and then halved.
fn move_run(staging: &Staging, index: usize, source: u64, mut pages: usize) -> Result<usize, i32> {
    loop {
        match move_as_either(staging, index, source, pages) {
            Err(INVALID) if pages > 1 => pages /= 2,
            result => return result,
        }
    }
}

fn move_as_either(staging: &Staging, index: usize, source: u64, pages: usize) -> Result<usize, i32> {
    match staging.take(index, source, pages) {
        Err(INVALID) if staging.change_kind().is_ok() => staging.take(index, source, pages),
        result => result,
    }
}

/// How many evictions from `first` on are of pages next to one another.
fn neighbours(entries: &[Entry], first: usize) -> usize {
    let rest = entries.get(first..).unwrap_or_default();
    let pairs = rest.iter().zip(rest.iter().skip(1));
    let follows = |(one, next): &(&Entry, &Entry)| {
        is_eviction(next) && next.address.load(Relaxed) == one.address.load(Relaxed) + PAGE_BYTES as u64
    };
    1 + pairs.take_while(follows).count()
}

fn set_results(entries: &[Entry], first: usize, end: usize, result: i32) {
    for entry in entries.iter().take(end).skip(first).filter(|entry| is_eviction(entry)) {
        entry.result.store(result, Relaxed);
    }
}

/// Copies moved pages to where they are wanted, and drops them all.
fn copy_and_drop(target: &Target, entries: &[Entry], staging: &Staging, doubted_from: usize) -> Result<(), i32> {
    let mut range = None;
    for (index, entry) in entries.iter().enumerate().filter(|(_, entry)| is_eviction(entry)) {
        let is_moved = entry.result.load(Relaxed) == outcome::DONE;
        if is_moved {
            copy(target, staging, index, entry);
        }
        if is_moved || (index >= doubted_from && is_in_doubt(entry)) {
            range = Some((range.map_or(index, |(first, _)| first), index));
        }
    }
    let Some((first, last)) = range else { return Ok(()) };
    staging.unregister()?;
    // Now the thread that reads a page that is not there gets zeroes, and no thread is asked.
    for (index, entry) in entries.iter().enumerate().skip(doubted_from).filter(|(_, entry)| is_in_doubt(entry)) {
        // SAFETY: the page is in the staging area.
        if unsafe { memory::is_written(staging.page(index), PAGE_BYTES) } {
            entry.result.store(outcome::DONE, Relaxed);
            copy(target, staging, index, entry);
        }
    }
    staging.drop_pages(first, last)?;
    staging.register()
}

/// Where the pages of a batch go.
struct Target {
    place: Place,
    batch: usize,
}

/// Copies page `index`, which was moved, if a copy is wanted. One of zeroes needs none: that is what a page reads as
/// that no thread has. Looking for that ends with the first word that is not zero, and brings what is copied next.
fn copy(target: &Target, staging: &Staging, index: usize, entry: &Entry) {
    if operation(entry) == Some(Operation::EvictCopy) {
        // SAFETY: the page is in the staging area.
        if !unsafe { memory::is_written(staging.page(index), PAGE_BYTES) } {
            entry.result.store(outcome::ZERO, Relaxed);
            return;
        }
        let target = target.place.at(transfer_offset(target.batch, index));
        // SAFETY: the page is in the staging area, and its target in the seat.
        unsafe { memory::copy(target, staging.page(index), PAGE_BYTES) };
    }
}

/// Does what is no eviction: these may wait for pages, which are served again by now. Whether to end, and with what
/// status.
fn others(entries: &[Entry]) -> Option<u8> {
    let mut exit = None;
    for entry in entries.iter().filter(|entry| !is_eviction(entry)) {
        let advice = match operation(entry) {
            Some(Operation::Populate) => POPULATE_WRITE,
            Some(Operation::Advise) => entry.detail.load(Relaxed),
            Some(Operation::Exit) => {
                exit = Some(entry.argument.load(Relaxed) as u8);
                entry.result.store(outcome::DONE, Relaxed);
                continue;
            }
            _ => {
                entry.result.store(outcome::UNKNOWN, Relaxed);
                continue;
            }
        };
        let (address, length) = (entry.address.load(Relaxed) as usize, entry.argument.load(Relaxed) as usize);
        // SAFETY: the pager knows what it asks for: it keeps the pages of this program.
        let result = unsafe { calls::advise(address, length, advice) };
        entry.result.store(result.err().unwrap_or(outcome::DONE), Relaxed);
    }
    exit
}
