//! What a process writes down for the next one besides pages: that it serves, by which block device, where its donors
//! are, and how each donor knows it.
//!
//! Donors come and go while the device runs. A slot is in use from the store of its address's length on, which comes
//! last, and is free again when that is zero, which comes first.
//!
//! A donor's record counts from the store of its mark on, which comes last, and stops counting before it is changed.
//! That is soon enough: a donor's slabs are put into copy indexes only after its record stands.

use serde::Serialize;
use serde::de::DeserializeOwned;
use spillway_fabric::units::DonorId;
use spillway_fabric::wire::{SESSION_TOKEN_BYTES, SessionToken};
use spillway_sys::atomic_words::WORD_SIZE_BYTES;

use crate::limits::DONORS_MAX;
use crate::slab_map::slab_entry::DonorSlot;
use crate::slab_map::words::Words;

const AT_STARTS: usize = 0;
const AT_SERVING: usize = 1;
/// Bytes of the front end's record, and the record.
const AT_FRONT_END_LENGTH: usize = 2;
const AT_FRONT_END: usize = 3;
/// The longest identity is NBD's: a name, a process and two numbers.
const FRONT_END_WORDS: usize = 61;
const AT_DONORS: usize = AT_FRONT_END + FRONT_END_WORDS;
const TOKEN_WORDS: usize = SESSION_TOKEN_BYTES / 8;
const DONOR_WORDS: usize = 1 + 2 + TOKEN_WORDS;

/// One word for each [`Milestone`].
const AT_LIFE: usize = AT_DONORS + DONORS_MAX * DONOR_WORDS;
const AT_ADDRESSES: usize = AT_LIFE + Milestone::ALL.len();
/// Words of an address: the longest host name has 253 bytes (RFC 1035), and a colon and a port follow.
const ADDRESS_TEXT_WORDS: usize = 33;
const ADDRESS_WORDS: usize = 1 + ADDRESS_TEXT_WORDS;

/// Bytes of the longest address that can be written down.
pub const ADDRESS_BYTES_MAX: usize = ADDRESS_TEXT_WORDS * WORD_SIZE_BYTES;

/// Words of the records.
pub(super) const RECORD_WORDS: usize = AT_ADDRESSES + DONORS_MAX * ADDRESS_WORDS;

/// With the length of an address: its donor is to be used no more.
const LEAVING: u64 = 1 << 32;

/// Marks a record that counts.
const STANDS: u64 = 1;

/// How far a process came with the device that it serves. Each is noted in a word of its own, by any I/O thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Milestone {
    /// The device can be used.
    Ready,
    /// A request came.
    Asked,
    /// A request was carried out.
    Answered,
}

impl Milestone {
    const ALL: [Self; 3] = [Self::Ready, Self::Asked, Self::Answered];
}

/// How a donor knows this borrower.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DonorRecord {
    /// Who lends; another one after each of its starts.
    pub donor: DonorId,
    /// What proves to it whose slabs they are.
    pub token: SessionToken,
}

/// A donor of the device, by its slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DonorPlace {
    /// Its slot.
    pub slot: DonorSlot,
    /// Where it listens.
    pub address: String,
    /// Whether it is to be used no more.
    pub is_leaving: bool,
}

/// The records of one device, see the module text. A clone is the same records.
#[derive(Clone, Debug)]
pub struct Records {
    words: Words,
}

impl Records {
    pub(super) fn over(words: Words) -> Self {
        assert!(words.count() == RECORD_WORDS, "records have one size");
        Self { words }
    }

    /// Records in memory of this process, which end with it.
    pub fn of_this_process() -> Self {
        Self::over(Words::new(RECORD_WORDS))
    }

    /// Counts a process that begins to serve the device; how many there were before.
    pub fn count_start(&self) -> u64 {
        let before = self.words.load(AT_STARTS);
        self.words.store(AT_STARTS, before + 1);
        before
    }

    /// Notes whether another process should go on with the device, should this one die.
    pub fn set_serving(&self, serving: bool) {
        self.words.store(AT_SERVING, u64::from(serving));
    }

    /// Whether another process should go on with the device.
    pub fn is_serving(&self) -> bool {
        self.words.load(AT_SERVING) != 0
    }

    /// Another process is to serve the device: it has reached nothing yet.
    pub fn begin_life(&self) {
        Milestone::ALL.into_iter().for_each(|milestone| self.words.store(AT_LIFE + milestone as usize, 0));
    }

    /// Notes what the process that serves the device reached.
    pub fn reach(&self, milestone: Milestone) {
        self.words.store(AT_LIFE + milestone as usize, 1);
    }

    /// Whether the process that serves the device, or died last, reached that.
    pub fn has_reached(&self, milestone: Milestone) -> bool {
        self.words.load(AT_LIFE + milestone as usize) != 0
    }

    /// Whether a process before this one noted how the block device is taken over.
    pub fn has_front_end(&self) -> bool {
        self.words.load(AT_FRONT_END_LENGTH) != 0
    }

    /// Notes what the next process needs to take the block device over. False when that is too long to be noted.
    #[must_use]
    pub fn set_front_end(&self, identity: Option<&impl Serialize>) -> bool {
        self.words.store(AT_FRONT_END_LENGTH, 0);
        let Some(identity) = identity else { return true };
        let text = serde_json::to_vec(identity).expect("an identity is plain data");
        if text.len() > FRONT_END_WORDS * WORD_SIZE_BYTES {
            return false;
        }
        for (index, bytes) in text.chunks(WORD_SIZE_BYTES).enumerate() {
            let mut word = [0; WORD_SIZE_BYTES];
            word[..bytes.len()].copy_from_slice(bytes);
            self.words.store(AT_FRONT_END + index, u64::from_le_bytes(word));
        }
        self.words.store(AT_FRONT_END_LENGTH, text.len() as u64);
        true
    }

    /// What the process before this one noted with [`Records::set_front_end`].
    pub fn front_end<Identity: DeserializeOwned>(&self) -> Option<Identity> {
        let length = self.words.load(AT_FRONT_END_LENGTH) as usize;
        if length == 0 || length > FRONT_END_WORDS * WORD_SIZE_BYTES {
            return None;
        }
        let words = (0..FRONT_END_WORDS).flat_map(|index| self.words.load(AT_FRONT_END + index).to_le_bytes());
        serde_json::from_slice(&words.take(length).collect::<Vec<u8>>()).ok()
    }

    /// The slots that are in use.
    pub fn places(&self) -> Vec<DonorPlace> {
        (0..DONORS_MAX as u16).map(DonorSlot).filter_map(|slot| self.place(slot)).collect()
    }

    fn place(&self, slot: DonorSlot) -> Option<DonorPlace> {
        let first = address_word(slot);
        let length = self.words.load(first);
        let bytes = (0..ADDRESS_TEXT_WORDS).flat_map(|index| self.words.load(first + 1 + index).to_le_bytes());
        let text: Vec<u8> = bytes.take((length & !LEAVING) as usize).collect();
        let address = String::from_utf8_lossy(&text).into_owned();
        (length != 0).then_some(DonorPlace { slot, address, is_leaving: length & LEAVING != 0 })
    }

    /// Puts a donor into a free slot. False when its address is too long to be noted.
    #[must_use]
    pub fn take_place(&self, slot: DonorSlot, address: &str) -> bool {
        if address.is_empty() || address.len() > ADDRESS_BYTES_MAX {
            return false;
        }
        let first = address_word(slot);
        assert!(self.words.load(first) == 0, "a slot has one donor");
        for (index, bytes) in address.as_bytes().chunks(WORD_SIZE_BYTES).enumerate() {
            let mut word = [0; WORD_SIZE_BYTES];
            word[..bytes.len()].copy_from_slice(bytes);
            self.words.store(first + 1 + index, u64::from_le_bytes(word));
        }
        self.words.store(first, address.len() as u64);
        true
    }

    /// Notes whether the donor in `slot` is to be used no more.
    pub fn set_leaving(&self, slot: DonorSlot, is_leaving: bool) {
        let first = address_word(slot);
        let length = self.words.load(first) & !LEAVING;
        self.words.store(first, if is_leaving { length | LEAVING } else { length });
    }

    /// The slot is free. No copy index names it.
    pub fn free_place(&self, slot: DonorSlot) {
        self.words.store(address_word(slot), 0);
        self.words.store(first_word(slot), 0);
    }

    /// How the donor in `slot` knows this borrower.
    pub fn donor(&self, slot: DonorSlot) -> Option<DonorRecord> {
        let first = first_word(slot);
        if self.words.load(first) != STANDS {
            return None;
        }
        let half = |index| u128::from(self.words.load(first + 1 + index));
        let mut token = [0; SESSION_TOKEN_BYTES];
        for (index, bytes) in token.chunks_exact_mut(8).enumerate() {
            bytes.copy_from_slice(&self.words.load(first + 3 + index).to_le_bytes());
        }
        Some(DonorRecord { donor: DonorId(half(0) | half(1) << 64), token: SessionToken(token) })
    }

    /// Writes that down. No copy index names a slab of another donor in this slot.
    pub fn set_donor(&self, slot: DonorSlot, record: &DonorRecord) {
        if self.donor(slot).as_ref() == Some(record) {
            return;
        }
        let first = first_word(slot);
        self.words.store(first, 0);
        self.words.store(first + 1, record.donor.0 as u64);
        self.words.store(first + 2, (record.donor.0 >> 64) as u64);
        for (index, bytes) in record.token.0.chunks_exact(8).enumerate() {
            let word = u64::from_le_bytes(bytes.try_into().expect("a word has eight bytes"));
            self.words.store(first + 3 + index, word);
        }
        self.words.store(first, STANDS);
    }
}

fn address_word(slot: DonorSlot) -> usize {
    AT_ADDRESSES + usize::from(slot.0) * ADDRESS_WORDS
}

fn first_word(slot: DonorSlot) -> usize {
    AT_DONORS + usize::from(slot.0) * DONOR_WORDS
}

const _: () = assert!(SESSION_TOKEN_BYTES.is_multiple_of(8), "a token is whole words");
