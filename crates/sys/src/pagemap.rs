//! PAGEMAP_SCAN (Linux 6.7): which pages of a process are there, as runs of pages that are alike.
//!
//! One call looks at as many pages as fit into the caller's regions, without touching them; see
//! `admin-guide/mm/pagemap.rst`. Only for processes that one may trace.

use std::fs::File;
use std::io;
use std::ops::{BitOr, Range};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use crate::lease::open_unless_leased;

/// What a page is (`PAGE_IS_*`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct Categories(pub u64);

impl Categories {
    /// Written since it was write-protected by a userfaultfd, or never protected.
    pub const WRITTEN: Self = Self(1 << 1);
    /// Of a file or shared memory.
    pub const FILE: Self = Self(1 << 2);
    /// In memory.
    pub const PRESENT: Self = Self(1 << 3);
    /// In a swap area.
    pub const SWAPPED: Self = Self(1 << 4);
    /// The kernel's shared page of zeroes: counts as present, uses no memory.
    pub const ZERO: Self = Self(1 << 5);
    /// Part of a huge page.
    pub const HUGE: Self = Self(1 << 6);
    /// A guard page (Linux 6.15; the kernel refuses to look for them before that).
    pub const GUARD: Self = Self(1 << 8);

    /// Whether all of `other` are in this set.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

impl BitOr for Categories {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// A run of pages that are alike (`struct page_region`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Region {
    /// Its first address.
    pub start: u64,
    /// The address behind it.
    pub end: u64,
    /// What its pages are, as far as was asked.
    pub categories: Categories,
}

/// Which pages are wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Query {
    /// Pages that are all of these.
    pub all_of: Categories,
    /// And any of these (empty: no condition).
    pub any_of: Categories,
    /// And none of these.
    pub none_of: Categories,
    /// What regions say of their pages; runs are split where it differs.
    pub report: Categories,
    /// The scan ends after so many such pages; 0: no bound. It bounds how long one call takes.
    pub pages_max: u64,
}

/// What a scan found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scan {
    /// Regions filled, in order of address.
    pub regions: usize,
    /// The address that was looked at up to; less than the range's end when the regions or the pages were used up.
    pub end: u64,
}

/// The page table of a process.
#[derive(Clone, Debug)]
pub struct Pagemap {
    file: Arc<File>,
}

/// `struct pm_scan_arg`.
#[repr(C)]
struct ScanArgument {
    size_bytes: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    regions: u64,
    regions_length: u64,
    pages_max: u64,
    inverted: u64,
    all_of: u64,
    any_of: u64,
    report: u64,
}

/// `PAGEMAP_SCAN`: `_IOWR('f', 16, struct pm_scan_arg)`.
const SCAN: u32 = 3 << 30 | (size_of::<ScanArgument>() as u32) << 16 | (b'f' as u32) << 8 | 16;

impl Pagemap {
    /// That of process `pid`; `WouldBlock` if another process has a lease on it.
    pub fn open(pid: u32) -> io::Result<Self> {
        Ok(Self { file: Arc::new(open_unless_leased(format!("/proc/{pid}/pagemap"))?) })
    }

    /// The open file.
    pub fn file(&self) -> &Arc<File> {
        &self.file
    }

    /// Looks for pages of `range`, and fills `regions` from the start. Fails with `ESRCH` when the process has ended.
    pub fn scan(&self, range: Range<u64>, query: &Query, regions: &mut [Region]) -> io::Result<Scan> {
        let mut argument = ScanArgument {
            size_bytes: size_of::<ScanArgument>() as u64,
            flags: 0,
            start: range.start,
            end: range.end,
            walk_end: 0,
            regions: regions.as_mut_ptr() as u64,
            regions_length: regions.len() as u64,
            pages_max: query.pages_max,
            // A page matches when (what it is, inverted) has all of the mask, so unwanted ones are inverted and
            // required.
            inverted: query.none_of.0,
            all_of: query.all_of.0 | query.none_of.0,
            any_of: query.any_of.0,
            report: query.report.0,
        };
        // SAFETY: the number encodes the argument's size, and the argument says how many of `regions` (plain numbers
        // in the kernel's layout) the kernel may write; both live through the call.
        let found = unsafe { libc::ioctl(self.file.as_raw_fd(), u64::from(SCAN), &raw mut argument) };
        if found < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Scan { regions: found as usize, end: argument.walk_end })
    }
}

/// Bit 62 of an entry of `/proc/PID/pagemap`: the page is in a swap area, or in the cache of one and not mapped.
const ENTRY_SWAPPED: u64 = 1 << 62;

/// Bit 63: the page is in memory.
const ENTRY_PRESENT: u64 = 1 << 63;

/// Bit 61: of a file or shared memory.
const ENTRY_FILE: u64 = 1 << 61;

/// Bit 57: write-protected by a userfaultfd.
const ENTRY_PROTECTED: u64 = 1 << 57;

/// Bit 56: no other process maps the page. The shared page of zeroes has it not.
const ENTRY_EXCLUSIVE: u64 = 1 << 56;

/// Bytes of such an entry.
const ENTRY_BYTES: usize = 8;

/// What [`Pagemap::read_private`] found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrivatePages {
    /// Pages in memory that are anonymous and mapped by this process alone.
    pub present: usize,
    /// Of these, pages that a userfaultfd has write-protected.
    pub protected: usize,
}

impl Pagemap {
    /// Which pages from number `first` on are in swap, for each place of `swapped`; what is not mapped is not. Returns
    /// how many pages there were to look at: none when the process has ended or become another program. As old as the
    /// file itself, so also for kernels that cannot scan.
    pub fn read_swapped(&self, first: u64, swapped: &mut [bool]) -> io::Result<usize> {
        let mut bytes = vec![0; swapped.len() * ENTRY_BYTES];
        // Short at the end of the address space.
        let count = self.file.read_at(&mut bytes, first * ENTRY_BYTES as u64)? / ENTRY_BYTES;
        swapped.fill(false);
        for (entry, is_swapped) in bytes.as_chunks::<ENTRY_BYTES>().0.iter().zip(&mut swapped[..count]) {
            *is_swapped = u64::from_ne_bytes(*entry) & ENTRY_SWAPPED != 0;
        }
        Ok(count)
    }
}

impl Pagemap {
    /// How many of `pages` pages from number `first` on are anonymous, in memory, and this process's alone.
    pub fn read_private(&self, first: u64, pages: usize) -> io::Result<PrivatePages> {
        let mut bytes = vec![0; pages * ENTRY_BYTES];
        let count = self.file.read_at(&mut bytes, first * ENTRY_BYTES as u64)? / ENTRY_BYTES;
        let entries = bytes.as_chunks::<ENTRY_BYTES>().0.iter().take(count).map(|entry| u64::from_ne_bytes(*entry));
        let wanted = ENTRY_PRESENT | ENTRY_EXCLUSIVE;
        let mut found = PrivatePages::default();
        for entry in entries.filter(|entry| entry & (wanted | ENTRY_FILE) == wanted) {
            found.present += 1;
            found.protected += usize::from(entry & ENTRY_PROTECTED != 0);
        }
        Ok(found)
    }
}

/// Whether this kernel can scan.
pub fn is_scannable() -> bool {
    Pagemap::open(std::process::id())
        .and_then(|pagemap| {
            pagemap.scan(0..4096, &Query { report: Categories::PRESENT, ..Query::default() }, &mut [Region::default()])
        })
        .is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mapping::{Mapping, PAGE_SIZE_BYTES};

    #[test]
    fn the_layout_is_that_of_the_kernel_header() {
        assert_eq!(SCAN, 0xc060_6610);
        assert_eq!(size_of::<Region>(), 24);
    }

    #[test]
    fn present_pages_come_as_runs_and_the_rest_does_not() {
        let memory = Mapping::anonymous(8 * PAGE_SIZE_BYTES).unwrap();
        for page in [1, 2, 5] {
            memory.write(page * PAGE_SIZE_BYTES, b"here");
        }
        let base = memory.address() as u64;
        let page = |index: usize| base + (index * PAGE_SIZE_BYTES) as u64;
        let query = Query {
            all_of: Categories::PRESENT,
            none_of: Categories::FILE | Categories::ZERO,
            report: Categories::PRESENT | Categories::FILE,
            ..Query::default()
        };
        let mut regions = [Region::default(); 4];
        let pagemap = Pagemap::open(std::process::id()).unwrap();
        let scan = pagemap.scan(base..page(8), &query, &mut regions).unwrap();
        assert_eq!(scan, Scan { regions: 2, end: page(8) });
        assert_eq!(regions[0], Region { start: page(1), end: page(3), categories: Categories::PRESENT });
        assert_eq!(regions[1], Region { start: page(5), end: page(6), categories: Categories::PRESENT });
        let scan = pagemap.scan(base..page(8), &query, &mut regions[..1]).unwrap();
        assert_eq!(scan.regions, 1, "no room for more");
        assert!(scan.end < page(6), "the rest was not looked at");
    }

    #[test]
    fn a_page_that_was_only_read_is_the_zero_page() {
        let memory = Mapping::anonymous(PAGE_SIZE_BYTES).unwrap();
        let mut bytes = [1; 8];
        memory.read(0, &mut bytes);
        // Looked at, so that the compiler does not leave the reading out.
        assert_eq!(bytes, [0; 8]);
        let range = memory.address() as u64..(memory.address() + PAGE_SIZE_BYTES) as u64;
        let query = Query { all_of: Categories::PRESENT, report: Categories::ZERO, ..Query::default() };
        let mut regions = [Region::default(); 1];
        let pagemap = Pagemap::open(std::process::id()).unwrap();
        assert_eq!(pagemap.scan(range, &query, &mut regions).unwrap().regions, 1);
        assert_eq!(regions[0].categories, Categories::ZERO);
    }

    #[test]
    fn present_and_unmapped_pages_are_not_in_swap() {
        let memory = Mapping::anonymous(PAGE_SIZE_BYTES).unwrap();
        memory.write(0, b"here");
        let mut swapped = [true; 4];
        let pagemap = Pagemap::open(std::process::id()).unwrap();
        assert_eq!(pagemap.read_swapped(0, &mut swapped).unwrap(), 4);
        assert_eq!(swapped, [false; 4], "nothing is mapped at address 0");
        let first = (memory.address() / PAGE_SIZE_BYTES) as u64;
        pagemap.read_swapped(first, &mut swapped[..1]).unwrap();
        assert!(!swapped[0], "it was written just now");
    }

    #[test]
    fn pages_of_this_process_alone_are_counted() {
        let memory = Mapping::anonymous(8 * PAGE_SIZE_BYTES).unwrap();
        for page in [1, 2, 5] {
            memory.write(page * PAGE_SIZE_BYTES, b"here");
        }
        let mut bytes = [1; 8];
        memory.read(7 * PAGE_SIZE_BYTES, &mut bytes);
        assert_eq!(bytes, [0; 8], "the shared page of zeroes");
        let first = (memory.address() / PAGE_SIZE_BYTES) as u64;
        let pagemap = Pagemap::open(std::process::id()).unwrap();
        let found = pagemap.read_private(first, 8).unwrap();
        assert_eq!(found, PrivatePages { present: 3, protected: 0 });
    }

    #[test]
    fn a_process_that_has_ended_has_no_pages() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pagemap = Pagemap::open(child.id()).unwrap();
        assert_eq!(pagemap.read_swapped(0, &mut [false]).unwrap(), 1);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(pagemap.read_swapped(0, &mut [false]).unwrap(), 0);
    }

    #[test]
    fn a_process_that_is_not_there_is_an_error() {
        assert!(Pagemap::open(u32::MAX >> 1).is_err());
    }
}
