//! Recorded page accesses: what the offline replayers of replacement and prefetching run on
//! (`spillway trace replay`, `spillway-research replay`).
//!
//! - [`recorder`]: takes events in bounded memory; may be called by the fault thread.
//! - [`fault_log`]: faults of programs as events: numbers for threads and address spaces, and times that never go back.
//! - [`reader`]: gives them back, and refuses what is not a trace.
//! - [`varint`]: numbers in as few bytes as they need.
//!
//! # Format, version 1
//! A head of 40 bytes, little-endian: magic `SPWTRACE`, version (u16), kind (u8: 0 touches, 1 faults, 2
//! faults on pages that had left), zero (5 bytes), events (u64), lost events (u64), bytes of the body (u64). Then the
//! body, for each event
//! - a varint: bit 0 says whether thread and time follow, bit 1 whether the page was written. The rest is the
//!   distance from the page before in zigzag order (0, -1, 1, -2..), from page 0 for the first;
//! - if bit 0 is set, two varints: the thread, and the ticks since the event before. Without, the thread is that of
//!   the event before (0 for the first), and no tick has passed.
//!
//! Sequential touches take a byte each. A page is below 2^52: its lower 36 bits are an address over 4096, its upper 16
//! bits the address space, which [`page_in`] puts together. The first address space is 0. A thread is any number that
//! the recording side chooses, and no two address spaces share one.
//!
//! Invariant: what found no room is counted as lost, and so is everything after it: that leaves no gap. A recording
//! side that misses events before they reach the recorder says so ([`Recorder::missed`]), and they count as lost too.

pub mod fault_log;
pub mod reader;
pub mod recorder;
pub mod varint;

use crate::prefetch::PageNumber;
pub use reader::Reader;
pub use recorder::Recorder;

/// The first bytes of a trace.
const MAGIC: [u8; 8] = *b"SPWTRACE";

/// The format that this module writes and reads.
pub const VERSION: u16 = 1;

/// Bytes before the body.
const HEAD_BYTES: usize = 40;

/// Pages end here: addresses have 64 bits, pages 4096 bytes.
const PAGE_END: u64 = 1 << 52;

/// Bits of a page's number within its address space: x86-64 and 64-bit ARM have addresses below 2^48 unless a program
/// asks for more.
const SPACE_SHIFT: u32 = 36;

/// Bit 0 of an event's first number.
const HAS_CONTEXT: u64 = 1;
/// Bit 1 of an event's first number.
const IS_WRITE: u64 = 2;
/// Bits below the distance in an event's first number.
const FLAG_BITS: u32 = 2;

/// What a trace tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Touches of a program that records itself, but for those of pages touched just before. A tick is a touch.
    Touches,
    /// All faults: first touches of fresh memory, first writes, and pages that had left. What was resident left no
    /// trace. A tick is a microsecond.
    Faults,
    /// Faults on pages that had left, and no others: so each page was local once before its first event. A tick is a
    /// microsecond.
    MajorFaults,
}

impl Kind {
    /// Nanoseconds of a tick. A touch that may miss the caches takes about two.
    pub fn tick_ns(self) -> u64 {
        match self {
            Self::Touches => 2,
            Self::Faults | Self::MajorFaults => 1000,
        }
    }

    /// Its name for users.
    pub fn name(self) -> &'static str {
        match self {
            Self::Touches => "touches",
            Self::Faults => "faults",
            Self::MajorFaults => "major-faults",
        }
    }

    fn code(self) -> u8 {
        match self {
            Self::Touches => 0,
            Self::Faults => 1,
            Self::MajorFaults => 2,
        }
    }

    fn of_code(code: u8) -> Option<Self> {
        [Self::Touches, Self::Faults, Self::MajorFaults].into_iter().find(|kind| kind.code() == code)
    }
}

/// A page of address space `space` by its number there; `None` if either is beyond what a trace can tell.
pub fn page_in(space: u32, page: PageNumber) -> Option<PageNumber> {
    let number = u64::from(space).checked_shl(SPACE_SHIFT)? | page.0;
    (page.0 < 1 << SPACE_SHIFT && number < PAGE_END).then_some(PageNumber(number))
}

/// The address space of an event's page, and the page's number there.
pub fn space_of(page: PageNumber) -> (u32, PageNumber) {
    ((page.0 >> SPACE_SHIFT) as u32, PageNumber(page.0 & ((1 << SPACE_SHIFT) - 1)))
}

/// A page was touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The page.
    pub page: PageNumber,
    /// What touched it, in numbers of the recording side.
    pub thread: u32,
    /// Whether it was written.
    pub write: bool,
    /// Ticks since the start; never less than at the event before.
    pub time: u64,
}

/// Why something is not a trace, or not all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TraceError {
    /// It does not begin as a trace does.
    #[error("this is not a trace: its first bytes are not those of one; record it again")]
    NotATrace,
    /// It is of another version.
    #[error("the trace has version {0}, this program reads version {VERSION}; record it again with this program")]
    Version(u16),
    /// The head contradicts itself or the body.
    #[error("the trace is damaged: {0}; copy or record it again")]
    Damaged(&'static str),
    /// Its pages are too many, or too far apart, to be replayed.
    #[error("the trace has pages in more groups of 32 neighbours than can be replayed; record a smaller program")]
    TooManyPages,
}

/// 0, -1, 1, -2, 2.. as 0, 1, 2, 3, 4..
fn zigzag(number: i64) -> u64 {
    ((number << 1) ^ (number >> 63)).cast_unsigned()
}

/// The inverse of [`zigzag`].
fn unzigzag(number: u64) -> i64 {
    (number >> 1).cast_signed() ^ -(number & 1).cast_signed()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn small_distances_are_small_numbers() {
        assert_eq!([0, -1, 1, -2, 2].map(zigzag), [0, 1, 2, 3, 4]);
    }

    proptest! {
        #[test]
        fn zigzag_has_an_inverse(number: i64) {
            prop_assert_eq!(unzigzag(zigzag(number)), number);
        }
    }

    fn event() -> impl Strategy<Value = (u64, u32, bool, u64)> {
        // Near and far pages, few and odd threads, equal and distant times.
        let page = prop_oneof![0_u64..100, 0..PAGE_END];
        let thread = prop_oneof![Just(0_u32), 0_u32..4, any::<u32>()];
        let ticks = prop_oneof![Just(0_u64), 0_u64..1000, 0..u64::from(u32::MAX)];
        (page, thread, any::<bool>(), ticks)
    }

    fn events(parts: &[(u64, u32, bool, u64)]) -> Vec<Event> {
        let mut time = 0;
        let event = |(page, thread, write, ticks): &(u64, u32, bool, u64)| {
            time += ticks;
            Event { page: PageNumber(*page), thread: *thread, write: *write, time }
        };
        parts.iter().map(event).collect()
    }

    fn recorded(kind: Kind, events: &[Event], room_bytes: usize) -> Vec<u8> {
        let mut recorder = Recorder::new(kind, room_bytes);
        events.iter().for_each(|event| {
            recorder.record(*event);
        });
        let mut bytes = Vec::new();
        recorder.write_to(&mut bytes).unwrap();
        bytes
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn what_is_recorded_is_read(parts in proptest::collection::vec(event(), 0..50)) {
            let events = events(&parts);
            let bytes = recorded(Kind::Faults, &events, 10_000);
            let reader = Reader::new(&bytes).unwrap();
            prop_assert_eq!((reader.kind(), reader.events(), reader.lost()), (Kind::Faults, events.len() as u64, 0));
            let read: Result<Vec<Event>, TraceError> = reader.collect();
            prop_assert_eq!(read.unwrap(), events);
        }

        #[test]
        fn what_finds_no_room_leaves_a_start_without_a_gap(
            parts in proptest::collection::vec(event(), 0..50), room in 0_usize..200
        ) {
            let events = events(&parts);
            let bytes = recorded(Kind::Touches, &events, room);
            prop_assert!(bytes.len() <= HEAD_BYTES + room);
            let reader = Reader::new(&bytes).unwrap();
            prop_assert_eq!(reader.events() + reader.lost(), events.len() as u64);
            let read: Vec<Event> = reader.map(Result::unwrap).collect();
            prop_assert_eq!(&read[..], &events[..read.len()]);
        }

        #[test]
        fn damage_is_an_error_or_another_trace_and_never_a_panic(
            parts in proptest::collection::vec(event(), 1..20), place: usize, flip in 1_u8.., cut: usize
        ) {
            let mut bytes = recorded(Kind::Touches, &events(&parts), 10_000);
            let place = place % bytes.len();
            bytes[place] ^= flip;
            if let Ok(reader) = Reader::new(&bytes) {
                prop_assert!(reader.count() <= parts.len() + 1, "an error ends it");
            }
            bytes[place] ^= flip;
            bytes.truncate(cut % bytes.len());
            prop_assert!(Reader::new(&bytes).is_err(), "a trace that was cut is refused at once");
        }

        #[test]
        fn noise_is_refused_or_read_to_an_end(noise in proptest::collection::vec(any::<u8>(), 0..200)) {
            prop_assert_eq!(Reader::new(&noise).err(), Some(TraceError::NotATrace));
            let mut bytes = recorded(Kind::Touches, &[], 0);
            bytes[24 - 8..24].copy_from_slice(&u64::MAX.to_le_bytes());
            bytes[HEAD_BYTES - 8..].copy_from_slice(&(noise.len() as u64).to_le_bytes());
            bytes.extend(&noise);
            prop_assert_eq!(Reader::new(&bytes).err().is_some(), true, "more events than bytes");
            bytes[16..24].copy_from_slice(&(noise.len() as u64).to_le_bytes());
            prop_assert!(Reader::new(&bytes).unwrap().count() <= noise.len() + 1);
        }
    }

    #[test]
    fn a_page_tells_its_address_space() {
        let page = page_in(7, PageNumber(0x7_fff0_0123)).unwrap();
        assert_eq!(space_of(page), (7, PageNumber(0x7_fff0_0123)));
        assert_eq!(page_in(0, PageNumber(5)), Some(PageNumber(5)), "the first one changes nothing");
        assert_eq!(page_in(0, PageNumber(1 << SPACE_SHIFT)), None);
        assert_eq!(page_in(1 << 16, PageNumber(5)), None);
        assert_eq!(page_in(0xffff, PageNumber((1 << SPACE_SHIFT) - 1)), Some(PageNumber(PAGE_END - 1)));
    }

    #[test]
    fn kinds_have_codes_of_their_own() {
        for kind in [Kind::Touches, Kind::Faults, Kind::MajorFaults] {
            assert_eq!(Reader::new(&recorded(kind, &[], 0)).unwrap().kind(), kind);
        }
    }

    #[test]
    fn sequential_touches_take_a_byte_each() {
        let events: Vec<_> = (0..1000).map(|page| (page, 0, false, 0)).collect();
        assert_eq!(recorded(Kind::Touches, &self::events(&events), 2000).len(), HEAD_BYTES + 1000);
    }

    #[test]
    fn other_versions_are_told() {
        let mut bytes = recorded(Kind::Touches, &[], 0);
        bytes[8] = 9;
        let error = Reader::new(&bytes).unwrap_err();
        assert!(error.to_string().contains("version 9, this program reads version 1"), "{error}");
        bytes[8] = 1;
        bytes[10] = 7;
        assert!(matches!(Reader::new(&bytes), Err(TraceError::Damaged(_))), "an unknown kind");
        bytes[10] = 0;
        bytes[12] = 7;
        assert!(matches!(Reader::new(&bytes), Err(TraceError::Damaged(_))), "what must be zero");
    }
}
