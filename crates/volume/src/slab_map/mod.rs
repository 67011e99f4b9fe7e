//! The volume: one borrower's linear, sparse array of pages, backed by slabs at donors and perhaps a file.
//!
//! Page -> slab -> copies. Everything here is shared by the I/O threads, the manager, the mover and the disk thread,
//! and none of it waits on the path of a page:
//! - [`page_bits`]: which copies of a page are valid, and which thread owns it. [`page_index`]: the number of a page.
//! - [`slab_entry`]: where a slab's copies are.
//! - [`gate`]: when no thread uses a removed copy any more.
//! - [`backlog`] (with [`page_table`], [`admission`] and [`journal`]): pages on their way to the backing file.
//! - [`dependence`]: whether pages would be lost with a donor.
//! - [`proofs`]: what is kept of each page to know its content again; [`trust`]: which donors sent something else.
//! - [`removal`]: taking a copy away without losing track of a page.
//! - [`words`]: the memory that page bits, copy indexes and journal lie in; [`recovery`]: going on with what a
//!   process left there that died.
//!
//! What may change what: the page bits of a page belong to the owner of its `Busy` bit; a slab's copy indexes belong
//! to the holder of [`Volume::assignment`].

pub mod admission;
pub mod backlog;
pub mod dependence;
pub mod donor_latency;
pub mod gate;
pub mod journal;
pub mod page_bits;
pub mod page_index;
pub mod page_table;
pub mod proofs;
pub mod recovery;
pub mod removal;
pub mod slab_entry;
pub mod trust;
pub mod words;

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use spillway_block::device_failure::DeviceFailure;
use spillway_fabric::buffer_pool::BufferPool;
use spillway_fabric::units::{PAGE_SIZE_BYTES, SlabIndex};
use spillway_sys::event::EventFd;

use self::backlog::Backlog;
use self::donor_latency::DonorLatencies;
use self::page_bits::{Bit, PageBits, WORD_PAGES};
use self::page_index::PageIndex;
use self::proofs::PageProofs;
use self::slab_entry::{DonorSlot, SlabEntry};
use self::trust::Trust;
use self::words::Words;
use crate::limits::{COPIES_MAX, DONORS_MAX};
use crate::settings::mapping::MappingPolicy;
use crate::settings::redundancy::Redundancy;

/// The size of a volume and of its parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Pages of a slab; a multiple of 64.
    pub slab_pages: u64,
    /// Slabs of the volume.
    pub slab_count: u32,
}

impl Geometry {
    /// Pages of the volume.
    pub fn page_count(self) -> u64 {
        self.slab_pages * u64::from(self.slab_count)
    }

    /// Bytes of a slab.
    pub fn slab_size_bytes(self) -> u64 {
        self.slab_pages * PAGE_SIZE_BYTES as u64
    }

    /// The slab that holds `page`.
    pub fn slab_of(self, page: PageIndex) -> SlabIndex {
        SlabIndex((page.0 / self.slab_pages) as u32)
    }

    /// Bytes of `page` from the start of its slab.
    pub fn offset_in_slab_bytes(self, page: PageIndex) -> u32 {
        ((page.0 % self.slab_pages) * PAGE_SIZE_BYTES as u64) as u32
    }

    /// The pages of `slab`.
    pub fn pages(self, slab: SlabIndex) -> Range<PageIndex> {
        let first = PageIndex(u64::from(slab.0) * self.slab_pages);
        first..first + self.slab_pages
    }

    /// The first page of each word of [`PageBits`] that has pages of `slab`.
    pub fn words(self, slab: SlabIndex) -> impl Iterator<Item = PageIndex> {
        let pages = self.pages(slab);
        (pages.start.0..pages.end.0).step_by(WORD_PAGES as usize).map(PageIndex)
    }

    /// Every slab.
    pub fn slabs(self) -> impl Iterator<Item = SlabIndex> {
        (0..self.slab_count).map(SlabIndex)
    }
}

/// The copy on disk: pages that wait, and their buffers.
#[derive(Debug)]
pub struct DiskCopy {
    /// Pages on their way.
    pub backlog: Backlog,
    /// Slot `i` is the content of backlog slot `i`.
    pub pool: Arc<BufferPool>,
}

/// The shared state, see the module text.
#[derive(Debug)]
pub struct Volume {
    /// Sizes.
    pub geometry: Geometry,
    /// Copies asked for.
    pub redundancy: Redundancy,
    /// When a slab gets its donor.
    pub mapping: MappingPolicy,
    /// Truth per page.
    pub bits: PageBits,
    /// What is kept of each page's content, unless pages are plain.
    pub proofs: Option<PageProofs>,
    /// Which donors sent something else.
    pub trust: Trust,
    /// The disk copy, when the redundancy has one.
    pub disk: Option<DiskCopy>,
    /// Whether the backing file keeps the blocks of discarded pages.
    pub keeps_disk_blocks: bool,
    /// Wakes the manager: a slab wants a donor.
    pub manager_event: EventFd,
    /// Whether an I/O thread panicked, which ends all of this.
    pub device_failure: Arc<DeviceFailure>,
    /// No engine is used any more: what one of them had under way ends never.
    is_abandoned: AtomicBool,
    slabs: Box<[SlabEntry]>,
    assignment: Mutex<()>,
    wanted: AtomicBool,
    trouble: AtomicU64,
    /// Donors to which a request failed in the session that they have now.
    suspects: AtomicU64,
    /// Donors of which nothing was heard for a while; their sessions may be open all the same.
    silent: AtomicU64,
    /// How fast donors answer.
    pub latencies: Arc<DonorLatencies>,
    mapping_possible: AtomicBool,
}

impl Volume {
    /// Says that no engine will be used any more; one that was dropped with requests under way left their pages and
    /// slabs in use.
    pub fn abandon(&self) {
        self.is_abandoned.store(true, Ordering::SeqCst);
    }

    /// Whether the thread that uses pages or slabs may still give them back.
    fn has_owners(&self) -> bool {
        !self.device_failure.has_come() && !self.is_abandoned.load(Ordering::SeqCst)
    }

    /// An empty volume, in memory of this process: every page reads as zeroes.
    pub fn new(geometry: Geometry, redundancy: Redundancy, disk: Option<DiskCopy>) -> std::io::Result<Self> {
        Self::over(geometry, redundancy, disk, &Words::new(Self::surviving_words(geometry)))
    }

    /// Words of a volume that outlive the process, besides those of its backlog.
    pub fn surviving_words(geometry: Geometry) -> usize {
        PageBits::surviving_words(geometry.page_count()) + geometry.slab_count as usize * COPIES_MAX
    }

    /// The volume that `surviving` holds; zeroes are an empty one. Anything else is [recovered](recovery) before it
    /// is used.
    pub fn over(
        geometry: Geometry,
        redundancy: Redundancy,
        disk: Option<DiskCopy>,
        surviving: &Words,
    ) -> std::io::Result<Self> {
        let bit_words = PageBits::surviving_words(geometry.page_count());
        let locations = |slab: usize| surviving.part(bit_words + slab * COPIES_MAX, COPIES_MAX);
        assert!(geometry.slab_pages.is_multiple_of(64), "a word of page bits lies in one slab");
        assert!(redundancy.disk == disk.is_some(), "a disk copy exists when it is asked for");
        Ok(Self {
            geometry,
            redundancy,
            mapping: MappingPolicy::OnDemand,
            bits: PageBits::over(geometry.page_count(), &surviving.part(0, bit_words)),
            proofs: None,
            trust: Trust::default(),
            disk,
            keeps_disk_blocks: false,
            manager_event: EventFd::new()?,
            device_failure: Arc::default(),
            is_abandoned: AtomicBool::new(false),
            slabs: (0..geometry.slab_count as usize).map(|slab| SlabEntry::over(locations(slab))).collect(),
            assignment: Mutex::new(()),
            wanted: AtomicBool::new(false),
            trouble: AtomicU64::new(0),
            suspects: AtomicU64::new(0),
            silent: AtomicU64::new(0),
            latencies: Arc::default(),
            mapping_possible: AtomicBool::new(false),
        })
    }

    /// The same volume with another way of mapping; by activity only with a disk, which has the slabs that are not hot.
    pub fn with_mapping(self, mapping: MappingPolicy) -> Self {
        assert!(mapping == MappingPolicy::OnDemand || self.disk.is_some(), "cold slabs are on the disk");
        Self { mapping, ..self }
    }

    /// The same volume, whose backing file keeps the blocks that it has: giving one back changes the file's map,
    /// which takes memory that a machine may not have.
    pub fn with_disk_blocks_kept(self, keeps_disk_blocks: bool) -> Self {
        Self { keeps_disk_blocks, ..self }
    }

    /// The same volume, whose pages are protected.
    pub fn with_proofs(self, proofs: Option<PageProofs>) -> Self {
        Self { proofs, ..self }
    }

    /// The shared state of `slab`.
    pub fn slab(&self, slab: SlabIndex) -> &SlabEntry {
        &self.slabs[slab.0 as usize]
    }

    /// Held by the thread that fills or empties copy indexes of slab entries. Never taken by an I/O thread, nor
    /// inside a gate.
    pub fn assignment(&self) -> MutexGuard<'_, ()> {
        self.assignment.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks the manager to map `slab`, from an I/O thread.
    pub fn want(&self, slab: SlabIndex) {
        if self.slab(slab).want() && !self.wanted.swap(true, Ordering::SeqCst) {
            self.manager_event.signal();
        }
    }

    /// Asks for a donor for the slab after `slab`, which is written to: swap fills a device from its start, and a
    /// mapping that was made ahead costs no page-out its time (a donor needs 20 ms for a slab that it has not
    /// prepared).
    pub fn want_next(&self, slab: SlabIndex) {
        if self.mapping == MappingPolicy::ByActivity {
            return;
        }
        let next = SlabIndex(slab.0 + 1);
        if next.0 < self.geometry.slab_count && self.mapping_possible() && self.slab(next).is_unmapped() {
            self.want(next);
        }
    }

    /// Whether a slab was wanted since the last call.
    pub fn take_wanted(&self) -> bool {
        self.wanted.swap(false, Ordering::SeqCst)
    }

    /// Tells the manager, from an I/O thread, that a request to `donor` failed.
    pub fn report_trouble(&self, donor: DonorSlot) {
        const { assert!(DONORS_MAX <= 64, "a donor is a bit of a word") };
        let mask = 1 << donor.0;
        self.suspects.fetch_or(mask, Ordering::SeqCst);
        if self.trouble.fetch_or(mask, Ordering::SeqCst) & mask == 0 {
            self.manager_event.signal();
        }
    }

    /// Pages of the word that holds `page` that a dead process was writing: which of their copies are right is found
    /// out by their proofs.
    pub fn in_doubt(&self, page: PageIndex) -> u64 {
        if self.proofs.is_some() { self.bits.in_doubt(page) } else { 0 }
    }

    /// Whether some of the owned pages are in doubt.
    pub fn is_in_doubt(&self, first: PageIndex, count: u64) -> bool {
        let is_copied = |page| (0..COPIES_MAX).any(|copy_index| self.bits.any(Bit::Copy(copy_index), page, 1));
        let is_one = |page| self.bits.any(Bit::Writing, page, 1) && is_copied(page);
        self.proofs.is_some() && self.bits.any(Bit::Writing, first, count) && first.up_to(first + count).any(is_one)
    }

    /// Counts a page from `donor`, or from the disk, that is not what was written, and has it told.
    pub fn report_wrong_page(&self, donor: Option<DonorSlot>, page: PageIndex) {
        self.trust.failed(donor, page);
        self.manager_event.signal();
    }

    /// Whether a request that was given up may still reach memory of `donor`: nothing is made valid there.
    pub fn is_suspect(&self, donor: DonorSlot) -> bool {
        self.suspects.load(Ordering::SeqCst) & (1 << donor.0) != 0
    }

    /// Says whether `donor` is silent.
    pub fn set_silent(&self, donor: DonorSlot, is_silent: bool) {
        let mask = 1 << donor.0;
        if is_silent {
            self.silent.fetch_or(mask, Ordering::SeqCst);
        } else {
            self.silent.fetch_and(!mask, Ordering::SeqCst);
        }
    }

    /// Whether `donor` is silent: what others have is read from them. An old answer costs a wait.
    pub fn is_silent(&self, donor: DonorSlot) -> bool {
        self.silent.load(Ordering::SeqCst) & (1 << donor.0) != 0
    }

    /// A new session with `donor` begins: what happened in the last one, whose requests have all ended, says nothing
    /// of it.
    pub fn begin_session(&self, donor: DonorSlot) {
        self.latencies.begin_session(donor);
        self.trouble.fetch_and(!(1 << donor.0), Ordering::SeqCst);
        self.suspects.fetch_and(!(1 << donor.0), Ordering::SeqCst);
    }

    /// The donors reported since the last call.
    pub fn take_trouble(&self) -> impl Iterator<Item = DonorSlot> + use<> {
        let trouble = self.trouble.swap(0, Ordering::SeqCst);
        (0..DONORS_MAX as u16).filter(move |donor| trouble & (1 << donor) != 0).map(DonorSlot)
    }

    /// Whether some donor may have room, as far as the manager knows.
    pub fn mapping_possible(&self) -> bool {
        self.mapping_possible.load(Ordering::SeqCst)
    }

    /// Told by the manager.
    pub fn set_mapping_possible(&self, possible: bool) {
        self.mapping_possible.store(possible, Ordering::SeqCst);
    }
}
