//! The handshake of the Network Block Device protocol: what an ordinary client asks before it sends requests.
//!
//! Sans-I/O: [`Handshake::advance`] takes what was received so far, writes an answer, and says how far it came.
//! "Fixed newstyle" is spoken: the client names options, one at a time, until it goes over to requests
//! (`EXPORT_NAME`, `GO`) or says goodbye. There is one export, known by the device's name and as the default (the
//! empty name). Options that are not offered, encryption and structured replies among them, are refused as the
//! protocol asks, and the client goes on without.
//!
//! Invariants: nothing here allocates; at most [`NBD_OPTION_BYTES_MAX`] of an option are waited for, and a client
//! that sends a longer one, or what is no option, is hung up on.

use spillway_fabric::units::PAGE_SIZE_BYTES;

use crate::limits::{NAME_LENGTH_MAX, NBD_OPTION_BYTES_MAX, NBD_REQUEST_BYTES_MAX};
use crate::nbd::protocol::TRANSMISSION_FLAGS;

/// `NBDMAGIC`.
const MAGIC: u64 = 0x4e42_444d_4147_4943;
/// `IHAVEOPT`.
const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;

/// Of the server's handshake flags and of the client's: fixed newstyle, and no zeroes after the export's description.
const FLAG_FIXED_NEWSTYLE: u32 = 1 << 0;
const FLAG_NO_ZEROES: u32 = 1 << 1;

const OPTION_EXPORT_NAME: u32 = 1;
const OPTION_ABORT: u32 = 2;
const OPTION_LIST: u32 = 3;
const OPTION_INFO: u32 = 6;
const OPTION_GO: u32 = 7;

const REPLY_ACKNOWLEDGED: u32 = 1;
const REPLY_SERVER: u32 = 2;
const REPLY_INFO: u32 = 3;
const ERROR_UNSUPPORTED: u32 = (1 << 31) + 1;
const ERROR_INVALID: u32 = (1 << 31) + 3;
const ERROR_UNKNOWN: u32 = (1 << 31) + 6;

const INFO_EXPORT: u16 = 0;
const INFO_BLOCK_SIZE: u16 = 3;

const CLIENT_FLAGS_BYTES: usize = 4;
const OPTION_HEADER_BYTES: usize = 16;
/// Zeroes that clients of old wait for after an export's description.
const RESERVED_BYTES: usize = 124;

/// Longest answer to one option: a description of the export and its zeroes, or three replies of at most 20 + 4 +
/// name bytes.
const ANSWER_BYTES_MAX: usize = 256;

/// What is exported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Export {
    /// Its name; at most [`NAME_LENGTH_MAX`] bytes.
    pub name: String,
    /// Its bytes.
    pub size_bytes: u64,
}

/// What is to be sent next.
#[derive(Debug)]
pub struct Answer {
    bytes: [u8; ANSWER_BYTES_MAX],
    length: usize,
}

impl Answer {
    /// Nothing.
    pub fn new() -> Self {
        Self { bytes: [0; ANSWER_BYTES_MAX], length: 0 }
    }

    /// The bytes to send.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    /// The first `count` bytes were sent.
    pub fn sent(&mut self, count: usize) {
        self.bytes.copy_within(count..self.length, 0);
        self.length -= count;
    }

    fn put(&mut self, bytes: &[u8]) {
        self.bytes[self.length..self.length + bytes.len()].copy_from_slice(bytes);
        self.length += bytes.len();
    }

    fn reply(&mut self, option: u32, kind: u32, data: &[&[u8]]) {
        let length = data.iter().map(|part| part.len()).sum::<usize>() as u32;
        self.put(&OPTION_REPLY_MAGIC.to_be_bytes());
        [option, kind, length].iter().for_each(|word| self.put(&word.to_be_bytes()));
        data.iter().for_each(|part| self.put(part));
    }
}

impl Default for Answer {
    fn default() -> Self {
        Self::new()
    }
}

/// How far [`Handshake::advance`] came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Wait for more bytes.
    Incomplete,
    /// So many bytes are dealt with. Go on once the answer is sent.
    Consumed(usize),
    /// So many bytes are dealt with; once the answer is sent, requests follow.
    Transmission(usize),
    /// The client leaves, or cannot be talked to: once the answer is sent, hang up.
    Over,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    ClientFlags,
    Options,
}

/// One client's handshake, see the module text.
#[derive(Debug)]
pub struct Handshake {
    stage: Stage,
    sends_zeroes: bool,
}

impl Handshake {
    /// Starts one, with the greeting in `answer`.
    pub fn begin(answer: &mut Answer) -> Self {
        *answer = Answer::new();
        answer.put(&MAGIC.to_be_bytes());
        answer.put(&OPTION_MAGIC.to_be_bytes());
        answer.put(&((FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES) as u16).to_be_bytes());
        Self { stage: Stage::ClientFlags, sends_zeroes: true }
    }

    /// Deals with the next thing in `input`; `answer` must be empty, so that a client that never reads gets nowhere.
    pub fn advance(&mut self, input: &[u8], export: &Export, answer: &mut Answer) -> Progress {
        assert!(answer.bytes().is_empty(), "an answer is sent before the next is made");
        match self.stage {
            Stage::ClientFlags => self.client_flags(input),
            Stage::Options => self.option(input, export, answer),
        }
    }

    fn client_flags(&mut self, input: &[u8]) -> Progress {
        let Some(flags) = word_at(input, 0) else { return Progress::Incomplete };
        // Clients from before the fix know no option but one, and need none.
        if flags & !(FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES) != 0 {
            return Progress::Over;
        }
        self.sends_zeroes = flags & FLAG_NO_ZEROES == 0;
        self.stage = Stage::Options;
        Progress::Consumed(CLIENT_FLAGS_BYTES)
    }

    fn option(&self, input: &[u8], export: &Export, answer: &mut Answer) -> Progress {
        let (Some(high), Some(low), Some(option), Some(length)) =
            (word_at(input, 0), word_at(input, 4), word_at(input, 8), word_at(input, 12))
        else {
            return Progress::Incomplete;
        };
        let length = length as usize;
        if u64::from(high) << 32 | u64::from(low) != OPTION_MAGIC || length > NBD_OPTION_BYTES_MAX {
            return Progress::Over;
        }
        let end = OPTION_HEADER_BYTES + length;
        let Some(data) = input.get(OPTION_HEADER_BYTES..end) else { return Progress::Incomplete };
        match option {
            OPTION_EXPORT_NAME if export.is_called(data) => {
                answer.put(&export.size_bytes.to_be_bytes());
                answer.put(&TRANSMISSION_FLAGS.to_be_bytes());
                let zeroes = if self.sends_zeroes { RESERVED_BYTES } else { 0 };
                answer.put(&[0; RESERVED_BYTES][..zeroes]);
                return Progress::Transmission(end);
            }
            // The protocol has no way to say why.
            OPTION_EXPORT_NAME => return Progress::Over,
            OPTION_ABORT => {
                answer.reply(option, REPLY_ACKNOWLEDGED, &[]);
                return Progress::Over;
            }
            OPTION_LIST if data.is_empty() => {
                let name = export.name.as_bytes();
                answer.reply(option, REPLY_SERVER, &[&(name.len() as u32).to_be_bytes(), name]);
                answer.reply(option, REPLY_ACKNOWLEDGED, &[]);
            }
            OPTION_LIST => answer.reply(option, ERROR_INVALID, &[]),
            OPTION_INFO | OPTION_GO => match name_in(data) {
                Some(name) if export.is_called(name) => {
                    describe(option, export, answer);
                    if option == OPTION_GO {
                        return Progress::Transmission(end);
                    }
                }
                Some(_) => answer.reply(option, ERROR_UNKNOWN, &[b"no such export; leave its name out"]),
                None => answer.reply(option, ERROR_INVALID, &[]),
            },
            _ => answer.reply(option, ERROR_UNSUPPORTED, &[]),
        }
        Progress::Consumed(end)
    }
}

impl Export {
    fn is_called(&self, name: &[u8]) -> bool {
        name.is_empty() || name == self.name.as_bytes()
    }
}

/// Everything about the export, whether it was asked for or not: block sizes must be known, or requests are refused.
fn describe(option: u32, export: &Export, answer: &mut Answer) {
    let (size, flags) = (export.size_bytes.to_be_bytes(), TRANSMISSION_FLAGS.to_be_bytes());
    answer.reply(option, REPLY_INFO, &[&INFO_EXPORT.to_be_bytes(), &size, &flags]);
    let [least, best, most] =
        [PAGE_SIZE_BYTES, PAGE_SIZE_BYTES, NBD_REQUEST_BYTES_MAX].map(|size| (size as u32).to_be_bytes());
    answer.reply(option, REPLY_INFO, &[&INFO_BLOCK_SIZE.to_be_bytes(), &least, &best, &most]);
    answer.reply(option, REPLY_ACKNOWLEDGED, &[]);
}

/// The export's name in the data of `INFO` and `GO`, if the data is what it should be.
fn name_in(data: &[u8]) -> Option<&[u8]> {
    let length = word_at(data, 0)? as usize;
    let rest = data.get(4..)?;
    let name = rest.get(..length)?;
    let [c0, c1, asked @ ..] = rest.get(length..)? else { return None };
    (asked.len() == 2 * usize::from(u16::from_be_bytes([*c0, *c1]))).then_some(name)
}

fn word_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

const _: () = {
    let description = 20 + 12 + 20 + 14 + 20;
    let list = 20 + 4 + NAME_LENGTH_MAX + 20;
    assert!(description <= ANSWER_BYTES_MAX && list <= ANSWER_BYTES_MAX && 10 + RESERVED_BYTES <= ANSWER_BYTES_MAX);
};

#[cfg(test)]
#[path = "handshake_tests.rs"]
mod tests;
