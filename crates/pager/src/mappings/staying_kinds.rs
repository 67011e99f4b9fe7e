//! Memory that the pager leaves local, by kind: which mappings it lies in, by `/proc/PID/maps`.
//!
//! A file system says what a shared object is: the device number in the maps. Objects of memfd_create(2),
//! `MAP_SHARED | MAP_ANONYMOUS` and shmget(2) lie in a file system of the kernel's own, which has one device number;
//! those of huge pages lie in others, which no list of mounts has.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use std::ops::Range;

use serde::{Deserialize, Serialize};
use spillway_sys::proc_text::maps::{self, FileId};
use spillway_sys::proc_text::mounts;

/// Why memory of a program stays local.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StayingKind {
    /// Anonymous, and not writable.
    ReadOnly,
    /// Anonymous, and neither readable nor writable (`PROT_NONE`).
    NoAccess,
    /// On the main stack, which the kernel grows.
    MainStack,
    /// Changed pages of private mappings of files.
    FileChanges,
    /// Locked (mlock(2)).
    Locked,
    /// Merged with equal pages (`Documentation/admin-guide/mm/ksm.rst`), which `UFFDIO_MOVE` refuses.
    Merged,
    /// `MAP_SHARED | MAP_ANONYMOUS`.
    SharedAnonymous,
    /// An object of memfd_create(2).
    Memfd,
    /// Files of a tmpfs (`/dev/shm`) and objects of shmget(2).
    SharedMemory,
    /// Mapped parts of files and devices, mapped shared.
    SharedFile,
    /// hugetlbfs: files, `MAP_HUGETLB` and `MFD_HUGETLB`.
    HugePages,
}

/// Which shared memory leaves ([`crate::shared_memory`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SharedMemoryKinds {
    /// None does.
    #[default]
    None,
    /// [`StayingKind::SharedAnonymous`].
    Anonymous,
    /// [`StayingKind::Memfd`] too, as long as no descriptor of an object is open.
    Memfd,
}

impl SharedMemoryKinds {
    /// Whether objects of this kind may leave.
    pub const fn include(self, kind: StayingKind) -> bool {
        match kind {
            StayingKind::SharedAnonymous => !matches!(self, Self::None),
            StayingKind::Memfd => matches!(self, Self::Memfd),
            _ => false,
        }
    }

    /// Whether any does.
    pub const fn is_any(self) -> bool {
        !matches!(self, Self::None)
    }
}

/// Bytes that stay local, by kind; names as in [`StayingKind`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StayingBytes {
    /// See [`StayingKind::ReadOnly`].
    pub read_only_bytes: u64,
    /// See [`StayingKind::NoAccess`].
    pub no_access_bytes: u64,
    /// See [`StayingKind::MainStack`].
    pub main_stack_bytes: u64,
    /// See [`StayingKind::FileChanges`].
    pub file_changes_bytes: u64,
    /// See [`StayingKind::Locked`].
    pub locked_bytes: u64,
    /// See [`StayingKind::Merged`].
    pub merged_bytes: u64,
    /// See [`StayingKind::SharedAnonymous`].
    pub shared_anonymous_bytes: u64,
    /// See [`StayingKind::Memfd`].
    pub memfd_bytes: u64,
    /// See [`StayingKind::SharedMemory`].
    pub shared_memory_bytes: u64,
    /// See [`StayingKind::SharedFile`].
    pub shared_file_bytes: u64,
    /// See [`StayingKind::HugePages`].
    pub huge_pages_bytes: u64,
}

impl StayingKind {
    /// All of them. The first six are a program's own, and count in the budget; the others do not.
    pub const ALL: [Self; 11] = [
        Self::ReadOnly,
        Self::NoAccess,
        Self::MainStack,
        Self::FileChanges,
        Self::Locked,
        Self::Merged,
        Self::SharedAnonymous,
        Self::Memfd,
        Self::SharedMemory,
        Self::SharedFile,
        Self::HugePages,
    ];

    /// In words, behind "32 MiB of".
    pub const fn words(self) -> &'static str {
        match self {
            Self::ReadOnly => "memory that may not be written (read-only)",
            Self::NoAccess => "memory that may not be written (PROT_NONE)",
            Self::MainStack => "its main stack",
            Self::FileChanges => "changed pages of files",
            Self::Locked => "locked memory",
            Self::Merged => "pages that the kernel merged with equal ones",
            Self::SharedAnonymous => "shared anonymous memory",
            Self::Memfd => "memfd objects",
            Self::SharedMemory => "shared memory (tmpfs, SysV)",
            Self::SharedFile => "files mapped shared",
            Self::HugePages => "huge pages (hugetlbfs)",
        }
    }

    /// Whether it counts in the budget: it is one program's own.
    pub const fn is_in_budget(self) -> bool {
        matches!(
            self,
            Self::ReadOnly | Self::NoAccess | Self::MainStack | Self::FileChanges | Self::Locked | Self::Merged
        )
    }
}

impl StayingBytes {
    /// Those of one kind.
    pub fn of(&self, kind: StayingKind) -> u64 {
        let mut copy = *self;
        *copy.entry(kind)
    }

    /// Adds bytes of one kind.
    pub fn add(&mut self, kind: StayingKind, bytes: u64) {
        *self.entry(kind) += bytes;
    }

    /// All of it.
    pub fn total_bytes(&self) -> u64 {
        StayingKind::ALL.into_iter().map(|kind| self.of(kind)).sum()
    }

    /// What of it counts in the budget.
    pub fn budgeted_bytes(&self) -> u64 {
        StayingKind::ALL.into_iter().filter(|kind| kind.is_in_budget()).map(|kind| self.of(kind)).sum()
    }

    /// By kind the larger of both.
    pub fn raise(&mut self, other: &Self) {
        for kind in StayingKind::ALL {
            let bytes = other.of(kind).max(self.of(kind));
            *self.entry(kind) = bytes;
        }
    }

    /// The kinds that `is_told` takes and that have at least `bytes_min`, in words; empty if there is none.
    pub fn describe(&self, bytes_min: u64, is_told: impl Fn(StayingKind) -> bool) -> String {
        let told = StayingKind::ALL.into_iter().filter(|kind| is_told(*kind) && self.of(*kind) >= bytes_min.max(1));
        let words: Vec<String> = told.map(|kind| format!("{} MiB of {}", self.of(kind) >> 20, kind.words())).collect();
        words.join(", ")
    }

    fn entry(&mut self, kind: StayingKind) -> &mut u64 {
        match kind {
            StayingKind::ReadOnly => &mut self.read_only_bytes,
            StayingKind::NoAccess => &mut self.no_access_bytes,
            StayingKind::MainStack => &mut self.main_stack_bytes,
            StayingKind::FileChanges => &mut self.file_changes_bytes,
            StayingKind::Locked => &mut self.locked_bytes,
            StayingKind::Merged => &mut self.merged_bytes,
            StayingKind::SharedAnonymous => &mut self.shared_anonymous_bytes,
            StayingKind::Memfd => &mut self.memfd_bytes,
            StayingKind::SharedMemory => &mut self.shared_memory_bytes,
            StayingKind::SharedFile => &mut self.shared_file_bytes,
            StayingKind::HugePages => &mut self.huge_pages_bytes,
        }
    }
}

pub use spillway_sys::proc_text::maps::DeviceNumber;

/// Which objects are memory, by the device numbers of file systems.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryDevices {
    /// Of the kernel's own tmpfs: memfd, shared anonymous memory, shmget(2).
    pub kernels: DeviceNumber,
    /// Of each tmpfs that is mounted.
    pub tmpfs: Vec<DeviceNumber>,
    /// Of each hugetlbfs that is mounted.
    pub hugetlbfs: Vec<DeviceNumber>,
}

impl MemoryDevices {
    /// Those that a program sees, by the text of its `/proc/PID/mountinfo` (proc_pid_mountinfo(5)), beside `kernels`.
    pub fn of(kernels: DeviceNumber, mountinfo: &(impl AsRef<[u8]> + ?Sized)) -> Self {
        let mut devices = Self { kernels, ..Self::default() };
        for mount in mounts::all(mountinfo.as_ref()) {
            match mount.kind {
                b"tmpfs" | b"devtmpfs" | b"ramfs" => devices.tmpfs.push(mount.device),
                b"hugetlbfs" => devices.hugetlbfs.push(mount.device),
                _ => {}
            }
        }
        devices
    }

    fn kind_of(&self, device: DeviceNumber, name: &[u8]) -> StayingKind {
        let starts_with = |start: &str| name.starts_with(start.as_bytes());
        let is_kernels =
            name.ends_with(b" (deleted)") && ["/memfd:", "/anon_hugepage", "/SYSV"].into_iter().any(starts_with);
        if device == self.kernels {
            if starts_with("/memfd:") {
                StayingKind::Memfd
            } else if starts_with("/dev/zero") || starts_with("[anon_shmem:") {
                StayingKind::SharedAnonymous
            } else {
                StayingKind::SharedMemory
            }
        } else if self.hugetlbfs.contains(&device) {
            StayingKind::HugePages
        } else if self.tmpfs.contains(&device) {
            StayingKind::SharedMemory
        } else if is_kernels && device.0 == 0 {
            StayingKind::HugePages
        } else {
            StayingKind::SharedFile
        }
    }
}

/// An object that several processes may map: its device and its inode.
pub type ObjectId = (DeviceNumber, u64);

/// A mapping with memory that stays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StayingMapping {
    /// Its addresses.
    pub range: Range<u64>,
    /// What is written to it is seen in no other (`MAP_PRIVATE`).
    pub is_private: bool,
    /// What it maps, if not anonymous memory, and from which byte on.
    pub object: Option<(ObjectId, u64)>,
    /// The kind of its anonymous pages; none: these are paged.
    pub anonymous: Option<StayingKind>,
    /// The kind of the object's pages; none: the kernel drops them when it needs memory.
    pub of_object: Option<StayingKind>,
}

/// The mappings of a program that have memory that stays, but for those that touch `excluded`; `text` is that of
/// `/proc/PID/maps`. Lines that are not understood are left out.
pub fn staying_mappings(
    text: &(impl AsRef<[u8]> + ?Sized),
    devices: &MemoryDevices,
    excluded: &[Range<u64>],
) -> Vec<StayingMapping> {
    let is_ours = |range: &Range<u64>| excluded.iter().any(|one| one.start < range.end && range.start < one.end);
    let all = maps::all(text.as_ref()).filter_map(|line| staying_mapping(&line, devices));
    all.filter(|mapping| !is_ours(&mapping.range)).collect()
}

fn staying_mapping(line: &maps::Mapped<'_>, devices: &MemoryDevices) -> Option<StayingMapping> {
    let maps::Mapped { permissions, offset, file: FileId { device, inode }, name, .. } = *line;
    let (range, is_private) = (line.range.clone(), !line.is_shared());
    if line.has_no_file() {
        let kind = match permissions {
            _ if name == b"[stack]" => StayingKind::MainStack,
            // Memory of the kernel's (vdso) and of devices is not the program's.
            _ if !line.is_anonymous() || line.is_writable() => return None,
            _ if permissions.starts_with(b"---") => StayingKind::NoAccess,
            _ => StayingKind::ReadOnly,
        };
        return Some(StayingMapping { range, is_private, object: None, anonymous: Some(kind), of_object: None });
    }
    let kind = devices.kind_of(device, name);
    let is_huge = kind == StayingKind::HugePages;
    let anonymous = if is_huge { StayingKind::HugePages } else { StayingKind::FileChanges };
    let of_object = (kind != StayingKind::SharedFile || !is_private).then_some(kind);
    let object = Some(((device, inode), offset));
    Some(StayingMapping { range, is_private, object, anonymous: Some(anonymous), of_object })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
55d0c0001000-55d0c0002000 rw-p 00001000 fe:01 1234                       /usr/bin/program
55d0c1000000-55d0c1021000 rw-p 00000000 00:00 0                          [heap]
7f0000000000-7f0000021000 r--p 00000000 00:00 0
7f0000021000-7f0004000000 ---p 00000000 00:00 0
7f0010000000-7f0010100000 rw-s 00000000 00:01 77                         /dev/zero (deleted)
7f0011000000-7f0011100000 rw-s 00200000 00:01 78                         /memfd:a name (deleted)
7f0012000000-7f0012100000 rw-p 00000000 00:01 78                         /memfd:a name (deleted)
7f0013000000-7f0013100000 rw-s 00000000 00:01 5                          /SYSV00000000 (deleted)
7f0014000000-7f0014100000 rw-s 00000000 00:1b 6                          /dev/shm/psm_1
7f0015000000-7f0015200000 rw-s 00000000 00:11 9                          /memfd:huge (deleted)
7f0016000000-7f0016200000 rw-p 00000000 00:11 8                          /anon_hugepage (deleted)
7f0017000000-7f0017200000 rw-s 00000000 00:30 7                          /mnt/huge/file
7f0018000000-7f0018200000 rw-s 00000000 fe:01 99                         /var/lib/data file
7f0019000000-7f0019200000 rw-s 00000000 00:01 80                         [anon_shmem:buffers]
7f0020000000-7f0020100000 rw-p 00000000 00:00 0                          [anon:thing]
7ffc00000000-7ffc00021000 rw-p 00000000 00:00 0                          [stack]
7ffc00100000-7ffc00102000 r-xp 00000000 00:00 0                          [vdso]
no line at all
";

    const MOUNTS: &str = "\
22 1 254:1 / / rw - ext4 /dev/vda1 rw
24 22 0:27 / /dev/shm rw,nosuid shared:3 - tmpfs tmpfs rw
25 22 0:48 / /mnt/huge rw - hugetlbfs none rw,pagesize=2M
nonsense
";

    #[test]
    fn every_kind_is_told_by_its_line() {
        let devices = MemoryDevices::of((0, 1), MOUNTS);
        assert_eq!((&devices.tmpfs[..], &devices.hugetlbfs[..]), (&[(0, 27)][..], &[(0, 48)][..]));
        let found = staying_mappings(MAPS, &devices, &[]);
        let kinds: Vec<_> = found.iter().map(|one| (one.anonymous.unwrap(), one.of_object)).collect();
        let changes = StayingKind::FileChanges;
        assert_eq!(
            kinds,
            [
                (changes, None),
                (StayingKind::ReadOnly, None),
                (StayingKind::NoAccess, None),
                (changes, Some(StayingKind::SharedAnonymous)),
                (changes, Some(StayingKind::Memfd)),
                (changes, Some(StayingKind::Memfd)),
                (changes, Some(StayingKind::SharedMemory)),
                (changes, Some(StayingKind::SharedMemory)),
                (StayingKind::HugePages, Some(StayingKind::HugePages)),
                (StayingKind::HugePages, Some(StayingKind::HugePages)),
                (StayingKind::HugePages, Some(StayingKind::HugePages)),
                (changes, Some(StayingKind::SharedFile)),
                (changes, Some(StayingKind::SharedAnonymous)),
                (StayingKind::MainStack, None),
            ]
        );
        assert_eq!(found[4].object, Some((((0, 1), 78), 0x20_0000)));
    }

    #[test]
    fn what_is_ours_is_left_out() {
        let devices = MemoryDevices::of((0, 1), MOUNTS);
        let own = 0x7f00_1100_0000..0x7f00_1100_1000;
        let found = staying_mappings(MAPS, &devices, std::slice::from_ref(&own));
        assert!(found.len() == 13 && found.iter().all(|one| one.range.start != own.start), "{found:x?}");
    }

    #[test]
    fn kinds_are_added_raised_and_named() {
        let mut bytes = StayingBytes::default();
        for (index, kind) in StayingKind::ALL.into_iter().enumerate() {
            bytes.add(kind, (index as u64 + 1) << 20);
        }
        assert_eq!((bytes.total_bytes(), bytes.budgeted_bytes()), (66 << 20, 21 << 20));
        let mut peak = StayingBytes { memfd_bytes: 100 << 20, ..StayingBytes::default() };
        peak.raise(&bytes);
        assert_eq!((peak.memfd_bytes, peak.locked_bytes), (100 << 20, 5 << 20));
        let text = bytes.describe(10 << 20, |_| true);
        assert_eq!(text, "10 MiB of files mapped shared, 11 MiB of huge pages (hugetlbfs)");
        assert_eq!(StayingBytes::default().describe(0, |_| true), "");
        let json = serde_json::to_value(bytes).unwrap();
        assert_eq!(json.as_object().unwrap().len(), StayingKind::ALL.len(), "each kind has its field");
    }
}
