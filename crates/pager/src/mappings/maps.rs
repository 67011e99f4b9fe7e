//! Which memory of a program may be paged, by `/proc/PID/maps`: private, anonymous, readable and writable, and not a
//! stack that the kernel grows. Everything else stays: files have their own place to go, and what is shared is not
//! one program's.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use std::ops::Range;

use spillway_sys::proc_text::maps;

use crate::page_table::ranges::Ranges;

/// One line of the maps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapped {
    /// Its addresses.
    pub range: Range<u64>,
    /// Private and of no file.
    pub is_anonymous: bool,
    /// Whether it may be paged.
    pub is_pageable: bool,
}

/// Addresses between two mappings of other kinds: all that is mapped there is anonymous, now and while the program
/// maps and unmaps, unless it puts a file there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// All of it, holes too.
    pub range: Range<u64>,
    /// The mappings in it that may be paged.
    pub mappings: Vec<Range<u64>>,
    /// Those of them beside which nothing is protected: the others may be parts of one mapping, with a protected one
    /// between them.
    pub wholes: Vec<Range<u64>>,
}

/// Reads the maps; lines that are not understood are left out, and so are never paged.
pub fn parse(text: &(impl AsRef<[u8]> + ?Sized)) -> Vec<Mapped> {
    maps::all(text.as_ref()).map(|line| Mapped::of(&line)).collect()
}

impl Mapped {
    /// What is mapped by a line of the maps.
    pub fn of(line: &maps::Mapped<'_>) -> Self {
        let is_anonymous = line.is_anonymous();
        Self { range: line.range.clone(), is_anonymous, is_pageable: is_anonymous && line.is_writable() }
    }
}

/// The spans of a program that touch none of `excluded`.
///
/// Registration must not end inside a mapping, or the program cannot move or grow that mapping any more (rule 3 of
/// docs/pager.md). Where a mapping ends is known only for the moment of the look; where a span ends changes seldom.
pub fn spans(maps: &[Mapped], excluded: &[Range<u64>]) -> Vec<Span> {
    let touches = |range: &Range<u64>| excluded.iter().any(|one| one.start < range.end && range.start < one.end);
    let is_other = |mapped: &Mapped| !mapped.is_anonymous || touches(&mapped.range);
    let mut spans: Vec<Span> = Vec::new();
    let mut floor = None;
    for (index, mapped) in maps.iter().enumerate() {
        if is_other(mapped) {
            if let Some(span) = spans.last_mut().filter(|span| span.range.end > mapped.range.start) {
                span.range.end = mapped.range.start;
            }
            floor = Some(mapped.range.end);
            continue;
        }
        // A span reaches up to the next mapping of another kind, which is still to come.
        if spans.last().is_none_or(|span| span.range.end <= mapped.range.start) {
            spans.push(Span {
                range: floor.unwrap_or(mapped.range.start)..u64::MAX,
                mappings: Vec::new(),
                wholes: Vec::new(),
            });
        }
        let span = spans.last_mut().expect("just made");
        if mapped.is_pageable {
            span.mappings.push(mapped.range.clone());
            if !is_beside_protected(maps, index) {
                span.wholes.push(mapped.range.clone());
            }
        }
    }
    // Nothing of another kind above: the last mapping ends it.
    if let (Some(span), Some(last)) = (spans.last_mut(), maps.last()) {
        span.range.end = span.range.end.min(last.range.end);
    }
    spans.retain(|span| !span.mappings.is_empty());
    spans
}

impl Span {
    /// Whether `mapping` is one of [`Span::wholes`].
    pub fn has_whole(&self, mapping: &Range<u64>) -> bool {
        self.wholes
            .binary_search_by_key(&mapping.start, |whole| whole.start)
            .is_ok_and(|index| self.wholes[index] == *mapping)
    }
}

/// Whether anonymous memory that may not be written lies right beside mapping number `index`.
fn is_beside_protected(maps: &[Mapped], index: usize) -> bool {
    let range = &maps[index].range;
    let neighbours = [index.checked_sub(1), Some(index + 1)].into_iter().flatten().filter_map(|other| maps.get(other));
    neighbours
        .filter(|other| other.is_anonymous && !other.is_pageable)
        .any(|other| other.range.end == range.start || other.range.start == range.end)
}

/// Bytes of locked memory (mlock(2)) that could be paged otherwise, by the text of `/proc/PID/smaps`.
pub fn locked_bytes(smaps: &(impl AsRef<[u8]> + ?Sized)) -> u64 {
    let locked = maps::detailed(smaps.as_ref()).filter(|one| Mapped::of(&one.mapped).is_pageable && one.has_flag("lo"));
    locked.filter_map(|one| one.bytes("Anonymous")).sum()
}

/// The ranges with MADV_WIPEONFORK (`wf` among the flags of `/proc/PID/smaps`).
pub fn wiped_on_fork(smaps: &(impl AsRef<[u8]> + ?Sized)) -> Ranges {
    let mut wiped = Ranges::default();
    let found = maps::detailed(smaps.as_ref()).filter(|one| one.has_flag("wf"));
    found.for_each(|one| wiped.insert(one.mapped.range));
    wiped
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
55d0c0000000-55d0c0001000 r-xp 00000000 fe:01 1234 /usr/bin/program
55d0c0001000-55d0c0002000 rw-p 00001000 fe:01 1234 /usr/bin/program
55d0c1000000-55d0c1021000 rw-p 00000000 00:00 0 [heap]
7f0000000000-7f0000021000 rw-p 00000000 00:00 0
7f0000021000-7f0004000000 ---p 00000000 00:00 0
7f0010000000-7f0010100000 rw-s 00000000 00:01 77 /dev/zero (deleted)
7f0020000000-7f0020100000 rw-p 00000000 00:00 0 [anon:thing]
7f0030000000-7f0030200000 rw-p 00000000 00:0f 99 /anon_hugepage (deleted)
7f0040000000-7f0040100000 r--p 00000000 00:00 0
7ffc00000000-7ffc00021000 rw-p 00000000 00:00 0 [stack]
7ffc00100000-7ffc00102000 r-xp 00000000 00:00 0 [vdso]
no line at all
";

    fn starts(spans: &[Span]) -> Vec<u64> {
        spans.iter().flat_map(|span| span.mappings.iter().map(|mapping| mapping.start)).collect()
    }

    #[test]
    fn locked_memory_is_what_could_be_paged_otherwise() {
        let mapping = |head: &str, anonymous: u64, flags: &str| {
            format!(
                "{head}\nRss: 99 kB\nAnonymous: {anonymous} kB\nKSM: 40 kB\nAnonHugePages: 8 kB\nVmFlags: rd {flags}\n"
            )
        };
        let smaps = [
            mapping("55d0c0001000-55d0c0002000 rw-p 00001000 fe:01 1234 /usr/bin/program", 4, "wr lo"),
            mapping("55d0c1000000-55d0c1021000 rw-p 00000000 00:00 0 [heap]", 1000, "wr"),
            mapping("7f0001000000-7f0001021000 rw-p 00000000 00:00 0", 300, "wr lo"),
            mapping("7f0002000000-7f0002021000 r--p 00000000 00:00 0", 200, "lo"),
        ];
        assert_eq!(locked_bytes(&smaps.concat()), 300 << 10);
        assert_eq!(locked_bytes("nonsense"), 0);
    }

    #[test]
    fn only_private_anonymous_writable_memory_is_paged() {
        let found = spans(&parse(MAPS), &[]);
        assert_eq!(starts(&found), [0x55d0_c100_0000, 0x7f00_0000_0000, 0x7f00_2000_0000]);
    }

    #[test]
    fn spans_end_at_mappings_of_other_kinds_only() {
        // Rule 3.
        let found = spans(&parse(MAPS), &[]);
        let ranges: Vec<Range<u64>> = found.iter().map(|span| span.range.clone()).collect();
        assert_eq!(ranges[0], 0x55d0_c000_2000..0x7f00_1000_0000, "the hole and the guard are in it");
        assert_eq!(ranges[1], 0x7f00_1010_0000..0x7f00_3000_0000);
        assert_eq!(ranges.len(), 2, "what may not be written is in no span worth registering");
    }

    #[test]
    fn what_touches_an_excluded_range_is_left_alone() {
        // Rule 7.
        let own = 0x7f00_0000_1000..0x7f00_0000_2000;
        let found = spans(&parse(MAPS), std::slice::from_ref(&own));
        assert_eq!(starts(&found), [0x55d0_c100_0000, 0x7f00_2000_0000]);
        assert!(found.iter().all(|span| span.range.end <= own.start || span.range.start >= own.end), "{found:x?}");
    }

    #[test]
    fn anonymous_memory_at_the_end_of_the_maps_ends_its_span() {
        let found = spans(&parse("1000-2000 rw-p 00000000 00:00 0\n3000-5000 rw-p 00000000 00:00 0\n"), &[]);
        let mappings = vec![0x1000..0x2000, 0x3000..0x5000];
        assert_eq!(found, [Span { range: 0x1000..0x5000, mappings: mappings.clone(), wholes: mappings }]);
    }

    #[test]
    fn mappings_beside_protected_memory_are_no_wholes() {
        let line = |range: &str, permissions: &str| format!("{range} {permissions} 00000000 00:00 0\n");
        let maps = [
            line("1000-2000", "rw-p"),
            line("2000-3000", "r--p"),
            line("3000-4000", "rw-p"),
            line("4000-5000", "rw-p"),
            line("6000-7000", "---p"),
            line("8000-9000", "rw-p"),
        ];
        let [span] = &spans(&parse(&maps.concat()), &[])[..] else { panic!("one span") };
        assert_eq!(span.mappings, [0x1000..0x2000, 0x3000..0x4000, 0x4000..0x5000, 0x8000..0x9000]);
        assert_eq!(span.wholes, [0x4000..0x5000, 0x8000..0x9000]);
    }

    #[test]
    fn ranges_that_are_wiped_on_fork_are_found() {
        let smaps = "\
7f0000000000-7f0000021000 rw-p 00000000 00:00 0
Size:                132 kB
VmFlags: rd wr mr mw me ac sd
7f0000100000-7f0000121000 rw-p 00000000 00:00 0
Size:                132 kB
VmFlags: rd wr mr mw me ac wf sd
";
        let wiped = wiped_on_fork(smaps);
        assert!(wiped.contain(&(0x7f00_0010_0000..0x7f00_0012_1000)) && wiped.iter().count() == 1);
    }
}
