//! The head of a device's state: what it is, of which version, with which settings.
//!
//! Written once, the mark last, so that memory with the mark is a whole state. A checksum tells a damaged or foreign
//! head from one of other settings; both are refused, each in its own words.

use std::fmt::Display;
use std::hash::{DefaultHasher, Hash, Hasher};

use spillway_fabric::units::BorrowerId;
use zeroize::Zeroizing;

use super::records::{RECORD_WORDS, Records};
use crate::protection::{ProtectionKind, VOLUME_KEY_BYTES};
use crate::settings::VolumeConfig;
use crate::slab_map::Geometry;
use crate::slab_map::words::Words;

/// Says that memory holds a state: "spillway" in ASCII.
const MARK: u64 = 0x7370_696c_6c77_6179;

/// The layout of everything in a state. Raise it when the meaning of a word changes.
pub const STATE_VERSION: u64 = 2;

const AT_MARK: usize = 0;
const AT_VERSION: usize = 1;
const AT_CHECKSUM: usize = 2;
const AT_BORROWER: usize = 3;
const AT_SETTINGS: usize = 5;
const SETTINGS_WORDS: usize = 8;
const AT_RECORDS: usize = 16;
const AT_KEY: usize = HEADER_WORDS - KEY_WORDS;
const KEY_WORDS: usize = VOLUME_KEY_BYTES / 8;

/// Words of the head: whole pages, so that the rest starts on one.
pub const HEADER_WORDS: usize = 6 * 512;

/// Why a state is not for this device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StateRefused {
    /// It is no state at all, or damaged.
    #[error("the memory that was handed over holds no state of a device; start the device anew")]
    Foreign,
    /// Another program's.
    #[error(
        "the state of the device has layout {found}, and this program uses {STATE_VERSION}; go on with the program that made it, or start the device anew, without the pages in it"
    )]
    Version {
        /// The layout found.
        found: u64,
    },
    /// The device was another one.
    #[error(
        "the state belongs to a device with {what} {was}, not {now}; start it as it was, or start a new one, without the pages in it"
    )]
    Setting {
        /// Which setting differs.
        what: &'static str,
        /// As it was.
        was: String,
        /// As asked for.
        now: String,
    },
}

/// What must be the same in every process of a device. Donors need not: those that are noted in the records count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    slab_pages: u64,
    slab_count: u64,
    replicas: u64,
    /// Pages of the backlog; 0 without a copy on disk.
    pub backlog_pages: u64,
    name: u64,
    backing: u64,
    protection: u64,
}

impl Settings {
    pub(super) fn new(config: &VolumeConfig, geometry: Geometry, backlog_pages: u64) -> Self {
        Self {
            slab_pages: geometry.slab_pages,
            slab_count: u64::from(geometry.slab_count),
            replicas: u64::from(config.redundancy.replicas),
            backlog_pages,
            name: digest(&config.name),
            backing: digest(&config.backing),
            protection: config.protection() as u64,
        }
    }

    /// Sizes of the volume.
    pub fn geometry(&self) -> Geometry {
        Geometry { slab_pages: self.slab_pages, slab_count: self.slab_count as u32 }
    }

    /// Whether pages have proofs.
    pub(super) fn has_proofs(&self) -> bool {
        self.protection != ProtectionKind::Plain as u64
    }

    fn words(&self) -> [u64; SETTINGS_WORDS] {
        let Self { slab_pages, slab_count, replicas, backlog_pages, name, backing, protection } = *self;
        [slab_pages, slab_count, replicas, backlog_pages, name, backing, protection, 0]
    }

    fn from_words(words: [u64; SETTINGS_WORDS]) -> Self {
        let [slab_pages, slab_count, replicas, backlog_pages, name, backing, protection, _] = words;
        Self { slab_pages, slab_count, replicas, backlog_pages, name, backing, protection }
    }

    /// The first setting that differs.
    fn difference(&self, now: &Self) -> Option<StateRefused> {
        let numbers = [
            ("slabs of so many pages:", self.slab_pages, now.slab_pages),
            ("slabs:", self.slab_count, now.slab_count),
            ("copies at donors:", self.replicas, now.replicas),
            ("pages of backlog to the disk:", self.backlog_pages, now.backlog_pages),
        ];
        let names = [
            ("another name", self.name, now.name),
            ("another backing file", self.backing, now.backing),
            ("another protection of its pages", self.protection, now.protection),
        ];
        let shown = |value: &dyn Display| value.to_string();
        let number = numbers.iter().find(|(_, was, now)| was != now);
        let number = number.map(|(what, was, now)| StateRefused::Setting { what, was: shown(was), now: shown(now) });
        let name = names.iter().find(|(_, was, now)| was != now);
        number.or_else(|| {
            name.map(|(what, ..)| StateRefused::Setting {
                what,
                was: "(as at its start)".to_owned(),
                now: "as asked for now".to_owned(),
            })
        })
    }
}

/// Tells values apart; the same in every process of one program.
fn digest(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// The head, see the module text.
#[derive(Debug)]
pub struct Header {
    words: Words,
}

impl Header {
    pub(super) fn over(words: Words) -> Self {
        assert!(words.count() == HEADER_WORDS, "a header has one size");
        Self { words }
    }

    /// Whether nothing was ever written here.
    pub(super) fn is_fresh(&self) -> bool {
        (0..HEADER_WORDS).all(|index| self.words.load(index) == 0)
    }

    /// Writes a head for an empty device. A process that dies before the mark leaves memory that no thread takes.
    pub(super) fn begin(&self, settings: &Settings, borrower: BorrowerId, key: &[u8; VOLUME_KEY_BYTES]) {
        self.words.store(AT_VERSION, STATE_VERSION);
        self.words.store(AT_BORROWER, borrower.0 as u64);
        self.words.store(AT_BORROWER + 1, (borrower.0 >> 64) as u64);
        settings.words().iter().enumerate().for_each(|(index, word)| self.words.store(AT_SETTINGS + index, *word));
        for (index, bytes) in key.chunks_exact(8).enumerate() {
            let word = u64::from_le_bytes(bytes.try_into().expect("a word has eight bytes"));
            self.words.store(AT_KEY + index, word);
        }
        self.words.store(AT_CHECKSUM, self.checksum());
        self.words.store(AT_MARK, MARK);
    }

    /// Refuses what is not the state of a device with `settings`.
    pub(super) fn check(&self, settings: &Settings) -> Result<(), StateRefused> {
        if self.words.load(AT_MARK) != MARK {
            return Err(StateRefused::Foreign);
        }
        let found = self.words.load(AT_VERSION);
        if found != STATE_VERSION {
            return Err(StateRefused::Version { found });
        }
        if self.words.load(AT_CHECKSUM) != self.checksum() {
            return Err(StateRefused::Foreign);
        }
        let was = Settings::from_words(std::array::from_fn(|index| self.words.load(AT_SETTINGS + index)));
        was.difference(settings).map_or(Ok(()), Err)
    }

    fn checksum(&self) -> u64 {
        let fixed: Vec<u64> = std::iter::once(self.words.load(AT_VERSION))
            .chain((AT_BORROWER..AT_SETTINGS + SETTINGS_WORDS).map(|index| self.words.load(index)))
            .collect();
        digest(&fixed)
    }

    pub(super) fn borrower(&self) -> BorrowerId {
        let half = |index| u128::from(self.words.load(AT_BORROWER + index));
        BorrowerId(half(0) | half(1) << 64)
    }

    /// The key of the volume's pages, the same in every process of the device.
    pub(super) fn key(&self) -> Zeroizing<[u8; VOLUME_KEY_BYTES]> {
        let mut key = Zeroizing::new([0; VOLUME_KEY_BYTES]);
        for (index, bytes) in key.chunks_exact_mut(8).enumerate() {
            bytes.copy_from_slice(&self.words.load(AT_KEY + index).to_le_bytes());
        }
        key
    }

    pub(super) fn records(&self) -> Records {
        Records::over(self.words.part(AT_RECORDS, RECORD_WORDS))
    }
}

const _: () = {
    assert!(AT_SETTINGS + SETTINGS_WORDS <= AT_RECORDS);
    assert!(AT_RECORDS + RECORD_WORDS <= AT_KEY, "the records and the key fit the head");
};
