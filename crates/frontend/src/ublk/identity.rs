//! Which ublk device is meant, and whose it is.
//!
//! The kernel keeps 64 bits for the server of each device (`ublksrv_flags`). Ours hold a mark and the process that
//! added the device, so that another process can tell a device of ours, and whether its maker still lives.

use spillway_sys::process::ProcessIdentity;

/// "Sw": the public servers (ublksrv, libublk, SPDK) use low bits of the field only.
const MARK: u64 = 0x5377;
const MARK_SHIFT: u32 = 48;

/// Process numbers are below 2^22 (`PID_MAX_LIMIT` of `linux/threads.h`).
const PID_BITS: u32 = 22;

/// What is left for the start time. It repeats after a week of ticks, and a process number that is reused must also hit
/// the tick.
const START_BITS: u32 = MARK_SHIFT - PID_BITS;

/// The 64 bits for a device that `process` adds.
pub(super) fn tag_of(process: ProcessIdentity) -> u64 {
    let pid = u64::from(process.pid) & mask(PID_BITS);
    MARK << MARK_SHIFT | (process.start_ticks & mask(START_BITS)) << PID_BITS | pid
}

/// The number of the process that added the device with this tag, if it is ours.
pub(super) fn maker(tag: u64) -> Option<u32> {
    (tag >> MARK_SHIFT == MARK).then_some((tag & mask(PID_BITS)) as u32)
}

/// Whether the maker, if there is a process with its number now, is that process.
pub(super) fn is_maker(tag: u64, process: ProcessIdentity) -> bool {
    tag == tag_of(process)
}

fn mask(bits: u32) -> u64 {
    (1 << bits) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_names_its_maker_and_no_other() {
        let me = ProcessIdentity { pid: (1 << 22) - 1, start_ticks: 123_456_789_012 };
        let tag = tag_of(me);
        assert_eq!(maker(tag), Some(me.pid));
        assert!(is_maker(tag, me));
        assert!(!is_maker(tag, ProcessIdentity { start_ticks: me.start_ticks + 1, ..me }));
        assert!(!is_maker(tag, ProcessIdentity { pid: 1, ..me }));
    }

    #[test]
    fn tags_of_others_are_not_ours() {
        for tag in [0, 1, u64::MAX, 0x5378 << 48, 0x5377] {
            assert_eq!(maker(tag), None, "{tag:#x}");
        }
    }
}
