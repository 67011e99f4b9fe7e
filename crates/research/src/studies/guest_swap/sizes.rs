//! How much memory guest and host have on each side, so that each lacks the same.
//!
//! At L(N) a side lacks (100 - N) % of a job's working set: the guest that swaps has so much less memory, and the host
//! keeps so much less of QEMU when the guest is extended from outside.

use spillway_workloads::size::{MIB, Size};

/// The guest's memory in the first boot, beyond the working set: enough for any stock kernel.
pub const FIRST_ROOM_MIB: u64 = 192;

/// What a guest has beyond its kernel and the working set, MiB: its kernel keeps some pages free (sixteen times the
/// square root of its KiB, `init_per_zone_wmark_min` in mm/page_alloc.c), and a job has a few pages of its own.
const SLACK_MIB: u64 = 2;

/// A guest's ramdisk or disk beyond the pages that do not fit, MiB: what else a kernel swaps out before its job.
const SWAP_SLACK_MIB: u64 = 24;

/// Sizes of one study.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// A job's working set.
    pub working_set: Size,
    /// The guest's memory with all of it local.
    pub guest: Size,
    /// All that QEMU uses then, as the pager counts it.
    pub footprint: Size,
}

impl Sizes {
    /// The guest's memory in which `working_set` just fits, by what was free in the guest of the first boot.
    pub fn guest_for(working_set: Size, free: Size) -> Size {
        let first = working_set.0 + FIRST_ROOM_MIB * MIB;
        let kernel = first.saturating_sub(free.0);
        Size((working_set.0 + kernel).div_ceil(MIB) * MIB + SLACK_MIB * MIB)
    }

    /// What a side lacks at L(`percent`), in whole MiB.
    pub fn away(self, percent: u64) -> Size {
        let local = self.working_set.percent(percent).0;
        Size((self.working_set.0 - local) / MIB * MIB)
    }

    /// What the host keeps of QEMU.
    pub fn local(self, percent: u64) -> Size {
        Size(self.footprint.0 - self.away(percent).0)
    }

    /// The memory of a guest that swaps to something outside of it.
    pub fn small_guest(self, percent: u64) -> Size {
        Size(self.guest.0 - self.away(percent).0)
    }

    /// The ramdisk in a guest, which has its memory besides.
    pub fn ramdisk(self, percent: u64) -> Size {
        Size(self.away(percent).0 + SWAP_SLACK_MIB * MIB)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: Sizes = Sizes { working_set: Size(64 * MIB), guest: Size(140 * MIB), footprint: Size(180 * MIB) };

    #[test]
    fn every_side_lacks_the_same() {
        for percent in [100, 75, 50] {
            let away = SIZES.away(percent).0;
            assert_eq!(away, 64 * MIB * (100 - percent) / 100);
            assert_eq!(SIZES.guest.0 - SIZES.small_guest(percent).0, away);
            assert_eq!(SIZES.footprint.0 - SIZES.local(percent).0, away);
            assert!(SIZES.ramdisk(percent).0 > away);
        }
    }

    #[test]
    fn a_guest_has_its_kernel_the_working_set_and_a_little() {
        // Of 256 MiB the kernel left 200.5 free.
        let free = Size(200 * MIB + MIB / 2);
        assert_eq!(Sizes::guest_for(Size(64 * MIB), free), Size((64 + 56 + SLACK_MIB) * MIB));
    }
}
