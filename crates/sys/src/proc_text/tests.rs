//! Texts as the kernel writes them, with the names that a hostile user would choose.

use std::os::fd::AsFd;

use proptest::prelude::*;

use super::maps::{FileId, Mapped, Pieces};
use super::mounts::Mount;
use super::stat::Stat;
use super::words::Call;
use super::{cgroups, decimal, fields, hexadecimal, lines, locks, maps, mounts, strings, swaps, unescaped, words};

const HEAD: FileId = FileId { device: (0, 1), inode: 8 };

/// What a name may be made of: pieces that imitate columns, lines, escapes and ends, and any bytes.
fn hostile() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        Just(b" 00:01 8 ".to_vec()),
        Just(b"\n00400000-00401000 r--p 00000000 00:01 8 /x\n".to_vec()),
        Just(b"\\012".to_vec()),
        Just(b"\\04".to_vec()),
        Just(b" (deleted)".to_vec()),
        Just(b") S 1 1 (".to_vec()),
        Just(b" - fuse.spillway spillway:1.2:x rw,user_id=0".to_vec()),
        Just(b"VmLck:\t4 kB\nTgid:\t1\n".to_vec()),
        Just(b":/0::/".to_vec()),
        Just(b"#\t  - ".to_vec()),
        Just(b"[heap]".to_vec()),
        proptest::collection::vec(1_u8.., 0..12),
    ];
    proptest::collection::vec(piece, 0..6).prop_map(|pieces| pieces.concat())
}

/// As `seq_path` and `mangle_path` write it: these bytes as a backslash and three octal digits.
fn escaped(name: &[u8], escapes: &[u8]) -> Vec<u8> {
    let escape = |byte: &u8| if escapes.contains(byte) { format!("\\{byte:03o}").into_bytes() } else { vec![*byte] };
    name.iter().flat_map(escape).collect()
}

const MOUNT_ESCAPES: &[u8] = b" \t\n\\#";

proptest! {
    #[test]
    fn a_mapping_is_its_own_columns_whatever_its_path(
        path in hostile(), inode in any::<u64>(), minor in 0_u32..1 << 20, offset in any::<u64>(), cut in 1_usize..40
    ) {
        let text = [
            format!("7f0000001000-7f0000003000 rw-p {offset:08x} fe:{minor:02x} {inode} ").into_bytes(),
            b"            /".to_vec(), escaped(&path, b"\n"), b"\n".to_vec(),
            b"ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]\n".to_vec(),
        ].concat();
        let found: Vec<Mapped<'_>> = maps::all(&text).collect();
        prop_assert_eq!(found.len(), 2, "a path ends no line");
        prop_assert_eq!(&found[0].range, &(0x7f00_0000_1000..0x7f00_0000_3000));
        prop_assert_eq!(found[0].file, FileId { device: (0xfe, minor), inode });
        prop_assert_eq!(found[0].offset, offset);
        prop_assert_eq!(&found[0].name[1..], &escaped(&path, b"\n")[..]);
        prop_assert!(!found[0].is_anonymous() && !found[0].is_shared() && found[0].is_writable());
        let (mut pieces, mut seen) = (Pieces::default(), Vec::new());
        for piece in text.chunks(cut) {
            pieces.any(piece, |mapped| { seen.push((mapped.range.clone(), mapped.file)); false });
        }
        let whole: Vec<_> = found.iter().map(|mapped| (mapped.range.clone(), mapped.file)).collect();
        prop_assert_eq!(seen, whole, "wherever a piece ends");
    }

    #[test]
    fn values_below_a_mapping_are_its_own_whatever_its_path(path in hostile()) {
        let head = |start: &str, file: &str| format!("{start} rw-p 00000000 {file} ").into_bytes();
        let text = [
            head("1000-2000", "fe:01 9"), b"/".to_vec(), escaped(&path, b"\n"),
            b"\nAnonymous:        4 kB\nTHPeligible:    0\nVmFlags: rd wr lo \n".to_vec(),
            head("3000-4000", "00:00 0"), b"\nAnonymous:        8 kB\nTHPeligible:    1\nVmFlags: rd wr wf\n".to_vec(),
        ].concat();
        let told: Vec<_> = maps::detailed(&text)
            .map(|one| (one.mapped.range.start, one.bytes("Anonymous"), one.number("THPeligible"), one.has_flag("lo")))
            .collect();
        prop_assert_eq!(told, [(0x1000, Some(4096), Some(0), true), (0x3000, Some(8192), Some(1), false)]);
    }

    #[test]
    fn a_mount_is_its_own_columns_whatever_its_names(root in hostile(), point in hostile(), source in hostile(), subtype in hostile()) {
        let kind = [b"fuse.", &subtype[..]].concat();
        let names = [&root, &point, &kind, &source].map(|name| escaped(name, MOUNT_ESCAPES));
        let text = [
            b"36 35 0:52 /".to_vec(), names[0].clone(), b" /".to_vec(), names[1].clone(),
            b" rw,nosuid shared:1 master:2 - ".to_vec(), names[2].clone(), b" ".to_vec(), names[3].clone(),
            b" rw,user_id=1000,group_id=1000\n".to_vec(),
        ].concat();
        let found: Vec<Mount<'_>> = mounts::all(&text).collect();
        prop_assert_eq!(found.len(), 1);
        let mount = found[0];
        prop_assert_eq!((mount.id, mount.parent, mount.device), (36, 35, (0, 52)));
        prop_assert!(unescaped(mount.kind).eq(kind.iter().copied()) && unescaped(mount.source).eq(source.iter().copied()));
        prop_assert!(unescaped(&mount.root[1..]).eq(root.iter().copied()));
        prop_assert!(unescaped(&mount.point[1..]).eq(point.iter().copied()));
        prop_assert_eq!((mount.number_of_option("user_id"), mount.has_option("rw")), (Some(1000), true));
    }

    #[test]
    fn columns_behind_a_programs_name_are_found_whatever_it_is(name in hostile()) {
        // comm(5) may be written with any bytes; the kernel escapes line ends and backslashes here.
        let name = escaped(&name, b"\n\\");
        let text = [b"7 (", &name[..], b") S 9 10 -11\n"].concat();
        let stat = Stat::parse(&text).unwrap();
        prop_assert_eq!((stat.name, stat.column(3), stat.column(4)), (&name[..], Some(&b"S"[..]), Some(&b"9"[..])));
        prop_assert_eq!((stat.column(6), stat.column(7), stat.column(2)), (Some(&b"-11"[..]), None, None));
        let status = [b"Name:\t", &name[..], b"\nTgid:\t7\nVmLck:\t      12 kB\nSigBlk:\t00ff\n"].concat();
        prop_assert_eq!(fields::value_of(&status, "Name"), Some(name.trim_ascii()));
        prop_assert_eq!((fields::number_of(&status, "Tgid"), fields::bytes_of(&status, "VmLck")), (Some(7), Some(12 << 10)));
        prop_assert_eq!(fields::mask_of(&status, "SigBlk"), Some(0xff));
    }

    #[test]
    fn areas_and_groups_are_their_own_columns_whatever_their_paths(path in hostile()) {
        let text = [b"Filename Type Size Used Priority\n/", &escaped(&path, MOUNT_ESCAPES)[..],
            b"   file\t\t1024\t12\t-2\n"].concat();
        let areas: Vec<_> = swaps::all(&text).collect();
        prop_assert_eq!(areas.len(), 1);
        prop_assert!(unescaped(&areas[0].path[1..]).eq(path.iter().copied()));
        prop_assert_eq!((areas[0].size_bytes, areas[0].used_bytes, areas[0].priority), (1 << 20, 12 << 10, -2));
        // A group's name has no line end: the kernel refuses such a name.
        let path: Vec<u8> = path.into_iter().filter(|byte| *byte != b'\n').collect();
        let text = [b"5:cpu,memory:/", &path[..], b"\n0::/", &path[..], b"\n"].concat();
        let groups: Vec<_> = cgroups::all(&text).collect();
        prop_assert_eq!(groups.len(), 2);
        prop_assert!(groups[0].has_controller("memory") && !groups[0].is_version_two() && groups[1].is_version_two());
        prop_assert!(groups.iter().all(|group| group.path[1..] == path[..]));
    }

    #[test]
    fn what_was_escaped_comes_back_and_arbitrary_bytes_harm_nothing(text in hostile(), any in proptest::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(unescaped(&escaped(&text, MOUNT_ESCAPES)).eq(text.iter().copied()));
        for text in [&text, &any] {
            let _ = (maps::all(text).count(), maps::detailed(text).count(), mounts::all(text).count());
            let _ = (swaps::all(text).count(), cgroups::all(text).count(), Stat::parse(text));
            let _ = (words::call(text), words::instruction(text), words::first::<3>(text), words::numbers(text).count());
            let _ = (fields::bytes_of(text, "a"), fields::counter_of(text, "a"), words::some_pressure(text, "total"));
            let _ = (strings::all(text).count(), strings::variable(text, "A"), lines(text).count());
            let _ = Pieces::default().any(text, |_| false);
        }
    }
}

#[test]
fn a_line_that_a_path_imitates_is_no_mapping_of_the_file() {
    let text = b"00400000-00401000 r--p 00000000 fe:01 77             /tmp/ 00:01 8 /bait\n\
        00500000-00501000 r--p 00000000 fe:01 78 /tmp/x\\01200500000-00501000 r--p 00000000 00:01 8 /bait\n\
        00600000-00601000 r--p 00000000 00:00 0 [anon: 00:01 8 ]\n";
    assert!(maps::all(text).count() == 3 && maps::all(text).all(|mapped| mapped.file != HEAD));
    assert!(!Pieces::default().any(text, |mapped| mapped.file == HEAD));
}

#[test]
fn what_is_no_line_is_left_out() {
    for wrong in [
        "",
        "1000-2000",
        "1000-2000 rw-p 0 00:01",
        "1000-2000 rw-p 0 00:01 x",
        "1000-2000  rw-p 0 00:01 8",
        "1000-2000 rw-pp 0 00:01 8",
        "-1000-2000 rw-p 0 00:01 8",
        "+1000-2000 rw-p 0 00:01 8",
        "1000-2000 rw-p 0 00:100000000 8",
        "11112222333344445-2000 rw-p 0 00:01 8",
    ] {
        assert_eq!(Mapped::parse(wrong.as_bytes()), None, "{wrong}");
    }
    for wrong in ["", "36 35 0:52 / /x rw - fuse", "36 35 0:52 / /x rw shared:1", "x 35 0:52 / /x rw - fuse none rw"] {
        assert_eq!(Mount::parse(wrong.as_bytes()), None, "{wrong}");
    }
}

#[test]
fn an_empty_column_is_a_column() {
    // The source of a mount may be the empty text.
    let mount = Mount::parse(b"36 35 0:52 / /x rw - fuse  rw,user_id=7").unwrap();
    assert_eq!((mount.source, mount.number_of_option("user_id")), (&b""[..], Some(7)));
}

#[test]
fn anonymous_memory_has_no_file_at_all() {
    let is_anonymous = |line: &str| Mapped::parse(line.as_bytes()).unwrap().is_anonymous();
    assert!(is_anonymous("1000-2000 rw-p 00000000 00:00 0 "));
    assert!(is_anonymous("1000-2000 ---p 00000000 00:00 0 [anon:a name]") && is_anonymous("1-2 rw-p 0 00:00 0 [heap]"));
    // A file system in user space may give a file the inode 0.
    assert!(!is_anonymous("1000-2000 rw-p 00000000 00:3d 0"));
    assert!(!is_anonymous("1000-2000 rw-p 00000000 00:00 0 [stack]") && !is_anonymous("1-2 rw-s 0 00:00 0"));
}

#[test]
fn numbers_are_digits_only() {
    assert_eq!((decimal(b"18446744073709551615"), decimal(b"18446744073709551616")), (Some(u64::MAX), None));
    assert_eq!((hexadecimal(b"fF"), hexadecimal(b"0x1")), (Some(255), None));
    assert!([&b""[..], b"-1", b"+1", b" 1", b"1 "].into_iter().all(|text| decimal(text).is_none()));
    let texts = [(r"/swap\040file", "/swap file"), (r"/tail\04", r"/tail\04"), (r"\777\08", r"\777\08")];
    assert!(texts.iter().all(|(text, expected)| unescaped(text.as_bytes()).eq(expected.bytes())));
}

#[test]
fn calls_of_threads_are_understood() {
    let call = b"25 0x7f0000001000 0x1001 0x3000 0x3 0x7f0000009000 0x0 0x7ffc0 0x7f01\n";
    let arguments = [0x7f00_0000_1000, 0x1001, 0x3000, 3, 0x7f00_0000_9000, 0];
    assert_eq!((words::call(call), words::instruction(call)), (Some(Call::Number(25, arguments)), Some(0x7f01)));
    assert_eq!((words::call(b"running\n"), words::instruction(b"running\n")), (Some(Call::Runs), None));
    assert_eq!(words::call(b"-1 0x7ffc0 0x7f01\n"), Some(Call::Outside));
    for text in ["", "\n", "walking", "25", "25 0x1000", "25 1 2 3 4 5 6"] {
        assert_eq!(words::call(text.as_bytes()), None, "{text:?}");
    }
}

#[test]
fn lists_are_understood() {
    let memory = "MemTotal:       1000 kB\nMemAvailable:    900 kB\nflags\t\t: fpu hypervisor\nPss:\t4 kB\nPss_Anon: 2 kB\nThreads:\t3\n";
    assert_eq!(
        (fields::bytes_of(memory, "MemTotal"), fields::bytes_of(memory, "Pss_Anon")),
        (Some(1_024_000), Some(2048))
    );
    assert_eq!((fields::bytes_of(memory, "Ps"), fields::bytes_of(memory, "Threads")), (None, None));
    assert_eq!(fields::value_of(memory, "flags"), Some(&b"fpu hypervisor"[..]));
    assert_eq!(fields::bytes_of("Huge: 99999999999999999 kB\n", "Huge"), None, "more than can be counted");
    let counters = "oom 1\noom_kill 2\nanon 4096\n";
    assert_eq!((fields::counter_of(counters, "oom_kill"), fields::counter_of(counters, "kill")), (Some(2), None));
    assert_eq!(words::first(b"12 345 6\n"), Some([12, 345]));
    assert_eq!((words::first::<2>(b"12"), words::first::<2>(b"-1 2")), (None, None));
    assert_eq!(words::processes("7 8\n4294967296 x\n").collect::<Vec<_>>(), [7, 8]);
    let pressure = "some avg10=1.50 avg60=0.00 total=77\nfull avg10=0.00 total=9\n";
    assert_eq!(words::some_pressure(pressure, "total"), Some(&b"77"[..]));
    assert_eq!(strings::variable(b"A=1\0AB=2\0B=3", "AB"), Some(&b"2"[..]));
}

#[test]
fn what_this_kernel_writes_is_understood() {
    let file = tempfile::tempdir().unwrap();
    let path = file.path().join(" 00:01 8 \n\u{7f}\\012) x");
    std::fs::write(&path, [1; 4096]).unwrap();
    let opened = std::fs::File::options().read(true).write(true).open(&path).unwrap();
    let id = FileId::of(&rustix::fs::fstat(&opened).unwrap());
    // SAFETY: a new mapping at a place of the kernel's choice, which nothing else uses.
    let mapped = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            4096,
            libc::PROT_READ,
            libc::MAP_PRIVATE,
            std::os::fd::AsRawFd::as_raw_fd(&opened.as_fd()),
            0,
        )
    };
    let text = std::fs::read("/proc/self/maps").unwrap();
    let found = maps::all(&text).find(|one| one.range.start == mapped as u64).unwrap();
    // Some file systems (overlay, btrfs) have another device for a file here.
    assert_eq!((found.range.end - found.range.start, found.file.inode, found.offset), (4096, id.inode, 0));
    // SAFETY: the mapping that was made above.
    assert_eq!(unsafe { libc::munmap(mapped, 4096) }, 0);
    assert_eq!(maps::all(&text).count(), lines(&text).count(), "no line is left out");
    let smaps = std::fs::read("/proc/self/smaps").unwrap();
    assert!(
        maps::detailed(&smaps)
            .all(|one| one.bytes("Rss").is_some() && one.has_flag("mr") || one.mapped.name == b"[vsyscall]")
    );
    let mountinfo = std::fs::read("/proc/self/mountinfo").unwrap();
    assert!(
        mounts::all(&mountinfo).count() == lines(&mountinfo).count()
            && mounts::all(&mountinfo).any(|one| one.point == b"/proc")
    );
    assert!(cgroups::all(&std::fs::read("/proc/self/cgroup").unwrap()).count() > 0);
    assert!(words::call(&std::fs::read("/proc/thread-self/syscall").unwrap()).is_some());
}

#[test]
fn holders_of_locks_are_told_from_waiters_and_other_files() {
    let text = b"1: POSIX  ADVISORY  WRITE 5 08:01:131 0 EOF\n2: FLOCK  ADVISORY  WRITE 12 08:01:131 0 EOF\n\
        2: -> FLOCK  ADVISORY  WRITE 13 08:01:131 0 EOF\n3: FLOCK  ADVISORY  READ 14 08:11:131 0 EOF\n\
        4: FLOCK\n5: FLOCK  ADVISORY  READ 0 fd:0a:131 0 EOF\n";
    let holders = |device, inode| locks::holders(text, FileId { device, inode }).collect::<Vec<_>>();
    assert_eq!((holders((8, 1), 131), holders((8, 17), 131)), (vec![12], vec![14]));
    assert_eq!((holders((0xfd, 10), 131), holders((8, 1), 13)), (vec![0], vec![]));
}
