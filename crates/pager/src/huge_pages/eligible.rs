//! Where a program would have huge pages without the pager, by the kernel's settings and the flags of its mappings.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use spillway_sys::proc_text::maps;

use crate::limits::HUGE_PAGE_BYTES;
use crate::mappings::maps::Mapped;
use crate::page_table::ranges::Ranges;

/// Which mappings the kernel gives huge pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HugeSetting {
    /// All.
    Always,
    /// Those with MADV_HUGEPAGE.
    Advised,
    /// None.
    #[default]
    Never,
}

impl HugeSetting {
    /// By the texts of `enabled` and `hugepages-2048kB/enabled` in `/sys/kernel/mm/transparent_hugepage`; the second is
    /// there since Linux 6.8.
    pub fn parse(enabled: &str, of_size: Option<&str>) -> Self {
        let chosen = |text: &str| match text.split_once('[').and_then(|(_, rest)| rest.split_once(']')) {
            Some(("always", _)) => Some(Self::Always),
            Some(("madvise", _)) => Some(Self::Advised),
            Some(("inherit", _)) => None,
            _ => Some(Self::Never),
        };
        of_size.and_then(chosen).or_else(|| chosen(enabled)).unwrap_or_default()
    }
}

/// The blocks that may be huge pages in a process whose `/proc/PID/smaps` is `smaps`, as ranges of whole blocks.
pub fn eligible(smaps: &(impl AsRef<[u8]> + ?Sized), setting: HugeSetting) -> Ranges {
    let mut found = Ranges::default();
    for one in maps::detailed(smaps.as_ref()) {
        let is_wanted = match setting {
            HugeSetting::Always => true,
            HugeSetting::Advised => one.has_flag("hg"),
            HugeSetting::Never => false,
        };
        // Not eligible where the program switched huge pages off for all its memory (PR_SET_THP_DISABLE).
        let is_eligible = one.number("THPeligible") == Some(1) && !one.has_flag("nh");
        if is_wanted && is_eligible && Mapped::of(&one.mapped).is_pageable {
            found.insert(whole_blocks(one.mapped.range));
        }
    }
    found
}

/// The blocks that lie in `range` with all their bytes.
fn whole_blocks(range: std::ops::Range<u64>) -> std::ops::Range<u64> {
    let start = range.start.next_multiple_of(HUGE_PAGE_BYTES);
    start..(range.end / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES).max(start)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_setting_of_the_size_comes_before_that_of_all() {
        let [always, madvise, never] = ["[always] madvise never", "always [madvise] never", "always madvise [never]"];
        let inherit = "always [inherit] madvise never";
        assert_eq!(HugeSetting::parse(always, None), HugeSetting::Always);
        assert_eq!(HugeSetting::parse(madvise, Some(inherit)), HugeSetting::Advised);
        assert_eq!(HugeSetting::parse(madvise, Some("[always] inherit madvise never")), HugeSetting::Always);
        assert_eq!(HugeSetting::parse(always, Some(never)), HugeSetting::Never);
        assert_eq!(HugeSetting::parse("", None), HugeSetting::Never, "a kernel without huge pages");
    }

    #[test]
    fn only_blocks_that_the_kernel_would_make_huge_are_eligible() {
        let mapping = |head: &str, eligible: u8, flags: &str| {
            format!("{head} 00000000 00:00 0\nSize: 1 kB\nTHPeligible:           {eligible}\nVmFlags: rd wr {flags}\n")
        };
        let smaps = [
            mapping("7f0000100000-7f0000700000 rw-p", 1, "hg"),
            mapping("7f0010000000-7f0010200000 rw-p", 1, ""),
            mapping("7f0020000000-7f0020200000 rw-p", 1, "hg nh"),
            mapping("7f0030000000-7f0030200000 rw-p", 0, "hg"),
            mapping("7f0040000000-7f0040200000 rw-s", 1, "hg"),
            mapping("7f0050000000-7f0050100000 rw-p", 1, "hg"),
        ]
        .concat();
        let of = |setting| eligible(&smaps, setting).iter().collect::<Vec<_>>();
        let all = [0x7f00_0020_0000..0x7f00_0060_0000, 0x7f00_1000_0000..0x7f00_1020_0000];
        assert_eq!(of(HugeSetting::Advised), all[..1]);
        assert_eq!(of(HugeSetting::Always), all);
        assert_eq!(of(HugeSetting::Never), []);
        assert!(eligible("nonsense\nVmFlags: hg\nTHPeligible: 1", HugeSetting::Always).is_empty());
    }
}
