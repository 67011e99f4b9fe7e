//! Bounds of read-ahead and of the blocks around faults, each with its origin. "Chosen" says that no measurement that
//! compares values is on record. Relations between bounds are checked at compile time.

/// Places that read-ahead follows: a matrix product goes through three arrays, Barnes-Hut through two and a tree, each
/// beside pages at random. The first version had 4. Chosen, not measured.
pub(crate) const HEADS: usize = 16;

/// A fault in no line belongs to a place without a trend within so many pages: strides to 256 KiB. Farther ones are
/// found by `Strays`. Chosen, not measured.
pub(crate) const REACH_PAGES: u64 = 64;

/// A place is given up as if it had been used so many faults later for each vote it has. Chosen, not measured.
pub(crate) const FAULTS_PER_VOTE: u64 = 32;

/// A place that resumes has a window, before the window grows, of one in so many pages of the last one: the program
/// may have come to the end of its column there. Chosen, not measured.
pub(crate) const RESUMED_SHARE: u32 = 4;

/// Streams that go on in turn, none of which is followed yet. Chosen, not measured.
pub(crate) const IN_TURN_MAX: usize = 4;

/// Faults in no line that are remembered: three of each stream that goes on in turn, and a power of two.
pub(crate) const STRAYS: usize = (3 * IN_TURN_MAX).next_power_of_two();

/// The score of a stream counts what went well up to this, one more each time and one less for what did not ...
/// Chosen, not measured.
pub(crate) const STREAM_SCORE_MAX: u8 = 8;

/// ... and from this on it is worth doing: half of the most.
pub(crate) const STREAM_SCORE_WORTH: u8 = STREAM_SCORE_MAX / 2;

/// Blocks whose probes are watched. The pages that came with them are 1,024: they are still there in all but the
/// smallest budgets.
pub(crate) const PROBES: usize = 128;

/// A probe that was needed counts for so much ...
pub(crate) const NEEDED_WEIGHT: u32 = 3;

/// ... and one that was not for so much: the score grows where two in five are needed. A page that comes along takes
/// 2 us, and the one that leaves for it 2 to 3; a fault that it spares takes 10 and more
/// (docs/decisions/prefetching.md).
pub(crate) const UNNEEDED_WEIGHT: u32 = 2;

/// The score of blocks ends here: from the most, eleven probes in a row that were not needed end the blocks. Chosen,
/// not measured.
pub(crate) const BLOCK_SCORE_MAX: u32 = 40;

/// Blocks come along from this score on: seven probes in a row that were needed.
pub(crate) const BLOCK_SCORE_WORTH: u32 = 20;

const _: () = assert!(BLOCK_SCORE_WORTH.div_ceil(NEEDED_WEIGHT) == 7);
const _: () = assert!((BLOCK_SCORE_MAX - BLOCK_SCORE_WORTH) / UNNEEDED_WEIGHT + 1 == 11);
const _: () = assert!(STRAYS >= 3 * IN_TURN_MAX);
