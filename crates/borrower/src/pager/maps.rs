//! Which memory of a program may be paged, by `/proc/PID/maps`: private, anonymous, readable and writable, and not a stack that
//! the kernel grows. Everything else stays: files have their own place to go, and what is shared is not one program's.

use std::ops::Range;

use super::space::ranges::Ranges;

/// One line of the maps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapped {
    /// Its addresses.
    pub range: Range<u64>,
    /// Whether it may be paged.
    pub is_pageable: bool,
}

/// Reads the maps; lines that are not understood are left out, and so are never paged.
pub fn parse(text: &str) -> Vec<Mapped> {
    text.lines().filter_map(parse_line).collect()
}

fn parse_line(line: &str) -> Option<Mapped> {
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let range = u64::from_str_radix(start, 16).ok()?..u64::from_str_radix(end, 16).ok()?;
    let (permissions, _offset, _device, inode) = (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
    let name = fields.next().unwrap_or_default();
    let is_private = permissions.starts_with("rw") && permissions.ends_with('p');
    let is_anonymous = inode == "0" && (name.is_empty() || name == "[heap]" || name.starts_with("[anon:"));
    Some(Mapped { range, is_pageable: is_private && is_anonymous })
}

/// The pageable mappings that touch none of `excluded`, each with the address up to which nothing else is mapped: a mapping
/// that grew since the look is registered as a whole then (rule 3 of docs/pager.md).
pub fn pageable(maps: &[Mapped], excluded: &[Range<u64>]) -> Vec<(Range<u64>, u64)> {
    let touches = |range: &Range<u64>| excluded.iter().any(|one| one.start < range.end && range.start < one.end);
    let next = maps.iter().skip(1).map(|next| next.range.start).chain(std::iter::once(0));
    let with_room = maps.iter().zip(next).map(|(mapped, next)| (mapped, next.max(mapped.range.end)));
    let wanted = with_room.filter(|(mapped, _)| mapped.is_pageable && !touches(&mapped.range));
    wanted.map(|(mapped, room)| (mapped.range.clone(), room)).collect()
}

/// The ranges with MADV_WIPEONFORK (`wf` among the flags of `/proc/PID/smaps`).
pub fn wiped_on_fork(smaps: &str) -> Ranges {
    let (mut wiped, mut current) = (Ranges::default(), None);
    for line in smaps.lines() {
        if let Some(flags) = line.strip_prefix("VmFlags:") {
            if let Some(range) = current.take()
                && flags.split_ascii_whitespace().any(|flag| flag == "wf")
            {
                wiped.insert(range);
            }
        } else if let Some(mapped) = parse_line(line) {
            current = Some(mapped.range);
        }
    }
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

    #[test]
    fn only_private_anonymous_writable_memory_is_paged() {
        let found = pageable(&parse(MAPS), &[]);
        let starts: Vec<u64> = found.iter().map(|(range, _)| range.start).collect();
        assert_eq!(starts, [0x55d0_c100_0000, 0x7f00_0000_0000, 0x7f00_2000_0000]);
    }

    #[test]
    fn each_mapping_comes_with_the_room_behind_it() {
        let found = pageable(&parse(MAPS), &[]);
        assert_eq!(found[0].1, 0x7f00_0000_0000, "nothing lies between");
        assert_eq!(found[1].1, found[1].0.end, "something follows at once");
    }

    #[test]
    fn what_touches_an_excluded_range_is_left_alone() {
        // Rule 7.
        let own = 0x7f00_0000_1000..0x7f00_0000_2000;
        let found = pageable(&parse(MAPS), &[own]);
        assert!(found.iter().all(|(range, _)| range.start != 0x7f00_0000_0000), "{found:x?}");
        assert_eq!(found.len(), 2);
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
        assert_eq!(wiped.iter().collect::<Vec<_>>(), [0x7f00_0010_0000..0x7f00_0012_1000]);
    }
}
