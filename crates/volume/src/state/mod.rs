//! What of a device outlives its process: one memfd that another process holds too ([`keeping`];
//! docs/decisions/crash-recovery.md).
//!
//! In this order: the [`header`] (what this is, whose, and with which settings; donors and front end, [`records`]),
//! page bits and copy indexes of the volume, the journal of the backlog, the proofs of pages, and the contents of the
//! backlog's pages. Everything before the contents is words that change one at a time.
//!
//! A process that is given a memfd of zeroes begins a new device in it; one that is given the memfd of a process that
//! died goes on with its device. Settings must be the same: a memfd of another version, size or setting is refused in
//! words.

pub mod header;
pub mod keeping;
pub mod records;

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use spillway_fabric::address::DonorAddress;
use spillway_fabric::buffer_pool::BufferPool;
use spillway_fabric::control::host::random_bytes;
use spillway_fabric::units::{BorrowerId, PAGE_SIZE_BYTES};
use spillway_sys::atomic_words::{AtomicWords, WORD_SIZE_BYTES};
use spillway_sys::mapping::Mapping;
use spillway_sys::memfd::Memfd;
use zeroize::Zeroizing;

use self::header::{HEADER_WORDS, Header, Settings, StateRefused};
use self::records::{DonorPlace, Records};
use crate::error::VolumeError;
use crate::limits::BACKLOG_PAGES;
use crate::protection::{Protection, ProtectionKind};
use crate::settings::VolumeConfig;
use crate::slab_map::backlog::Backlog;
use crate::slab_map::journal::Journal;
use crate::slab_map::proofs::PageProofs;
use crate::slab_map::slab_entry::DonorSlot;
use crate::slab_map::words::Words;
use crate::slab_map::{DiskCopy, Geometry, Volume};

/// How the memory shows in `/proc`.
const FILE_NAME: &str = "spillway-state";

/// Why memory cannot be a device's state.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// It holds something else.
    #[error(transparent)]
    Refused(#[from] StateRefused),
    /// It could not be made, mapped or locked.
    #[error("cannot set the state of the device up: {0}")]
    System(#[from] io::Error),
}

/// When the memory of a state is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Presence {
    /// From the start on, and locked: the machine may page to the device when it has no memory left.
    Locked,
    /// Each page when it is touched: the machine never waits for this process.
    AsUsed,
}

/// A device's surviving state, mapped and locked; see the module text.
#[derive(Debug)]
pub struct DeviceState {
    file: Memfd,
    geometry: Geometry,
    settings: Settings,
    protection: ProtectionKind,
    presence: Presence,
    words: Words,
    header: Header,
    // Held for the lock: the key is in it, and an ordinary user may lock no more than that.
    _locked_head: Header,
    resumed: bool,
}

impl DeviceState {
    /// Memory for the device that `config` describes, all of it present: zeroes, which [`DeviceState::open`] turns
    /// into a state.
    pub fn memory(config: &VolumeConfig) -> Result<Memfd, VolumeError> {
        let settings = Settings::of(config, config.check()?);
        let make = || {
            let file = Memfd::create(FILE_NAME, size_bytes(&settings))?;
            file.preallocate(0, file.length_bytes())?;
            Ok(file)
        };
        make().map_err(VolumeError::system("cannot reserve memory for the state of the device"))
    }

    /// Begins a state for `config` in `file`, or goes on with the one that a dead process left there.
    pub fn open(file: Memfd, config: &VolumeConfig) -> Result<Self, VolumeError> {
        Self::open_with(file, config, Presence::Locked)
    }

    /// A new state for a process that serves programs and not the machine: it takes as much memory as is used of it.
    pub fn as_used(config: &VolumeConfig) -> Result<Self, VolumeError> {
        let settings = Settings::of(config, config.check()?);
        let file = Memfd::create(FILE_NAME, size_bytes(&settings));
        let file = file.map_err(VolumeError::system("cannot reserve memory for the state of the device"))?;
        Self::open_with(file, config, Presence::AsUsed)
    }

    fn open_with(file: Memfd, config: &VolumeConfig, presence: Presence) -> Result<Self, VolumeError> {
        Self::map(file, config.check()?, config, presence).map_err(|error| match error {
            StateError::Refused(refused) => VolumeError::State(refused),
            StateError::System(source) => VolumeError::system("cannot set the state of the device up")(source),
        })
    }

    fn map(file: Memfd, geometry: Geometry, config: &VolumeConfig, presence: Presence) -> Result<Self, StateError> {
        let settings = Settings::of(config, geometry);
        if file.length_bytes() < (HEADER_WORDS * WORD_SIZE_BYTES) as u64 {
            return Err(StateRefused::Foreign.into());
        }
        // Only the header is looked at before it says that the rest is there.
        let head = Header::over(Words::over(AtomicWords::shared(&file, HEADER_WORDS)?));
        let resumed = !head.is_fresh();
        if resumed {
            head.check(&settings)?;
        }
        if file.length_bytes() != size_bytes(&settings) {
            return Err(StateRefused::Foreign.into());
        }
        let count = word_count(&settings);
        let words = Words::over(match presence {
            Presence::Locked => AtomicWords::shared(&file, count)?,
            Presence::AsUsed => AtomicWords::shared_as_used(&file, count)?,
        });
        let header = Header::over(words.part(0, HEADER_WORDS));
        if !resumed {
            note_donors(&header.records(), &config.donors);
            let key = Zeroizing::new(random_bytes()?);
            header.begin(&settings, BorrowerId(u128::from_le_bytes(random_bytes()?)), &key);
        }
        let protection = config.protection();
        Ok(Self { file, geometry, settings, protection, presence, words, header, _locked_head: head, resumed })
    }

    /// Whether a process before this one served the device.
    pub fn is_resumed(&self) -> bool {
        self.resumed
    }

    /// The memory, to be handed to the process that keeps it.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Bytes of the device, whole slabs.
    pub fn size_bytes(&self) -> u64 {
        self.geometry.page_count() * PAGE_SIZE_BYTES as u64
    }

    /// Who borrows, in every process of the device.
    pub fn borrower(&self) -> BorrowerId {
        self.header.borrower()
    }

    /// Who lends and how the kernel reaches the device.
    pub fn records(&self) -> Records {
        self.header.records()
    }

    /// The donors of the device: at its start those of its settings, later those that it has by then.
    pub fn donors(&self) -> Result<Vec<(DonorPlace, DonorAddress)>, StateRefused> {
        let parse = |place: DonorPlace| {
            let address = place.address.parse().map_err(|_| StateRefused::Foreign)?;
            Ok((place, address))
        };
        self.records().places().into_iter().map(parse).collect()
    }

    /// The volume as it stands there; [recovered](Volume::recover) by the caller before it is used, if it is resumed.
    pub(crate) fn volume(&self, redundancy: crate::settings::redundancy::Redundancy) -> io::Result<Volume> {
        let own = Volume::surviving_words(self.geometry);
        let disk = if self.settings.backlog_pages > 0 { Some(self.disk_copy(HEADER_WORDS + own)?) } else { None };
        let volume = Volume::over(self.geometry, redundancy, disk, &self.words.part(HEADER_WORDS, own))?;
        Ok(volume.with_proofs(self.proofs(HEADER_WORDS + own + Journal::words(self.settings.backlog_pages as usize))))
    }

    fn proofs(&self, first: usize) -> Option<PageProofs> {
        let protection = Protection::new(self.protection, &self.header.key())?;
        let pages = self.geometry.page_count();
        Some(PageProofs::over(pages, protection, &self.words.part(first, PageProofs::words(pages))))
    }

    fn disk_copy(&self, journal_first: usize) -> io::Result<DiskCopy> {
        let pages = self.settings.backlog_pages as usize;
        let journal = self.words.part(journal_first, Journal::words(pages));
        let contents = Mapping::shared_at(&self.file, words_bytes(&self.settings), pages * PAGE_SIZE_BYTES)?;
        let pool = match self.presence {
            Presence::Locked => BufferPool::over(contents, pages, PAGE_SIZE_BYTES)?,
            Presence::AsUsed => BufferPool::as_used(contents, pages, PAGE_SIZE_BYTES)?,
        };
        Ok(DiskCopy { backlog: Backlog::over(journal), pool: Arc::clone(&pool) })
    }
}

/// Writes the donors of a new device down.
fn note_donors(records: &Records, donors: &[DonorAddress]) {
    for (slot, donor) in (0..).map(DonorSlot).zip(donors) {
        assert!(records.take_place(slot, &donor.to_string()), "settings with too long an address are refused");
    }
}

impl Settings {
    fn of(config: &VolumeConfig, geometry: Geometry) -> Self {
        let backlog_pages = if config.redundancy.disk { BACKLOG_PAGES as u64 } else { 0 };
        Self::new(config, geometry, backlog_pages)
    }
}

fn word_count(settings: &Settings) -> usize {
    let geometry = settings.geometry();
    let proofs = if settings.has_proofs() { PageProofs::words(geometry.page_count()) } else { 0 };
    let journal = Journal::words(settings.backlog_pages as usize);
    HEADER_WORDS + Volume::surviving_words(geometry) + journal + proofs
}

/// Bytes of the words, up to the page where the contents begin.
fn words_bytes(settings: &Settings) -> u64 {
    ((word_count(settings) * WORD_SIZE_BYTES).next_multiple_of(PAGE_SIZE_BYTES)) as u64
}

fn size_bytes(settings: &Settings) -> u64 {
    words_bytes(settings) + settings.backlog_pages * PAGE_SIZE_BYTES as u64
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
