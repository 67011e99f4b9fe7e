//! Memory that others may change at any time: shared with a donor, or lent to the kernel as an I/O buffer.
//!
//! A Rust reference promises that bytes do not change behind it, which shared memory cannot keep. A [`Mapping`]
//! therefore never hands out references: bytes are copied in and out through raw pointers, bounds checked. A torn
//! copy is possible when two sides race; it is never undefined behaviour that reaches a caller, only bytes that the
//! protocol above must not use.
//!
//! Invariants: the address range `[base, base + length)` stays mapped readable and writable for as long as the value
//! lives, also while parts of it are replaced by [`Window::attach`] and [`Window::detach`].

use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::mm::{self, Advice, MapFlags, MlockFlags, ProtFlags};

use crate::memfd::Memfd;

/// Bytes of a page of memory on every machine that Spillway supports.
pub const PAGE_SIZE_BYTES: usize = 4096;

/// How long a lock waits for free pages. A memory group whose limit is raised because what is locked fills it, as that
/// of a run over swap is, gets them within a second; a busy machine needs longer.
const LOCK_PATIENCE: Duration = Duration::from_secs(5);
const LOCK_PAUSE: Duration = Duration::from_millis(20);

/// A mapped range of memory, see the module text.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    length: usize,
}

// SAFETY: the range is plain memory owned by this value until `drop`; all access is by copying bytes through raw
// pointers, so moving the value to another thread moves nothing that is bound to a thread.
unsafe impl Send for Mapping {}
// SAFETY: as above; concurrent copies may tear, which the type's contract allows, and no reference to the bytes exists.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Private zeroed memory of `length` bytes (a multiple of the page size), not yet backed by pages.
    pub fn anonymous(length: usize) -> io::Result<Self> {
        Self::map_anonymous(length, MapFlags::PRIVATE | MapFlags::NORESERVE)
    }

    /// Private zeroed memory whose pages are all present and locked: what I/O threads may touch while the machine has
    /// no memory left. As [`Mapping::lock`] where the lock limit forbids it.
    pub fn locked(length: usize) -> io::Result<Self> {
        let mapping = Self::map_anonymous(length, MapFlags::PRIVATE)?;
        mapping.lock()?;
        Ok(mapping)
    }

    fn map_anonymous(length: usize, flags: MapFlags) -> io::Result<Self> {
        check_length(length)?;
        // SAFETY: a fresh anonymous mapping at an address the kernel chooses replaces nothing.
        let base =
            unsafe { mm::mmap_anonymous(std::ptr::null_mut(), length, ProtFlags::READ | ProtFlags::WRITE, flags)? };
        Self::of_pages(base.cast(), length)
    }

    /// What was just mapped. It holds pages of others' memory, which have no business in a core dump.
    fn of_pages(base: *mut u8, length: usize) -> io::Result<Self> {
        let mapping = Self { base: non_null(base)?, length };
        mapping.leave_out_of_dumps(0, length)?;
        Ok(mapping)
    }

    fn leave_out_of_dumps(&self, offset: usize, length: usize) -> io::Result<()> {
        self.check(offset, length);
        // SAFETY: the range is mapped (checked); the advice changes no content.
        unsafe { mm::madvise(self.base.as_ptr().add(offset).cast(), length, Advice::LinuxDontDump)? };
        Ok(())
    }

    /// The first `length` bytes of `file`, shared with every process that maps it. `file` must not be able to shrink (a
    /// sealed memfd), otherwise a copy can raise SIGBUS; [`Memfd::open`] checks the seals.
    pub fn shared(file: &Memfd, length: usize) -> io::Result<Self> {
        Self::shared_at(file, 0, length)
    }

    /// As [`Mapping::shared`], from byte `offset` of `file` on (a multiple of the page size).
    pub fn shared_at(file: &Memfd, offset: u64, length: usize) -> io::Result<Self> {
        check_length(length)?;
        if offset.checked_add(length as u64).is_none_or(|end| end > file.length_bytes()) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "mapping is longer than its memfd"));
        }
        // SAFETY: a fresh mapping at an address the kernel chooses replaces nothing; the memfd is sealed against
        // shrinking.
        let base = unsafe {
            mm::mmap(
                std::ptr::null_mut(),
                length,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                file.as_fd_for_map(),
                offset,
            )?
        };
        Self::of_pages(base.cast(), length)
    }

    /// The first `length` bytes that a descriptor of the kernel's own offers to be mapped, such as a ring of a counter;
    /// unlike a file it never shrinks.
    pub(crate) fn of_descriptor(descriptor: BorrowedFd<'_>, length: usize) -> io::Result<Self> {
        check_length(length)?;
        let flags = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping at an address the kernel chooses replaces nothing.
        let base = unsafe { mm::mmap(std::ptr::null_mut(), length, flags, MapFlags::SHARED, descriptor, 0)? };
        Self::of_pages(base.cast(), length)
    }

    /// Bytes mapped.
    pub fn length(&self) -> usize {
        self.length
    }

    /// The address of the first byte, for system calls that take addresses. Never dereference it outside this crate.
    pub fn address(&self) -> usize {
        self.base.as_ptr() as usize
    }

    /// As [`Mapping::shared`], with all pages mapped at once.
    pub fn shared_present(file: &Memfd, length: usize) -> io::Result<Self> {
        let mapping = Self::shared(file, length)?;
        mapping.touch(0, length);
        Ok(mapping)
    }

    /// Reads a byte of each page of `[offset, offset + length)`, so that all are mapped. The kernel maps 16
    /// neighbours of a file's page with it if they were ever written, where `MAP_POPULATE` and mlock take them one by
    /// one: 3 ms instead of 22 for 32 MiB.
    fn touch(&self, offset: usize, length: usize) {
        for page in (offset..offset + length).step_by(PAGE_SIZE_BYTES) {
            // SAFETY: the page lies inside this mapping (the caller checked), and files in it cannot shrink.
            unsafe { std::ptr::read_volatile(self.at(page)) };
        }
    }

    /// Replaces `[offset, offset + length)` by fresh private memory, as a program does with its own.
    #[cfg(test)]
    pub(crate) fn map_anew(&self, offset: usize, length: usize) -> io::Result<()> {
        self.check(offset, length);
        let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
        let start = self.at(offset).cast();
        // SAFETY: the range lies inside this mapping (checked), which no thread refers to by reference.
        unsafe { mm::mmap_anonymous(start, length, ProtFlags::READ | ProtFlags::WRITE, flags)? };
        Ok(())
    }

    /// Makes every page present and locks it in memory. Where the lock limit (`ulimit -l`, 8 MiB on many systems)
    /// forbids it, this is an error for root, whose devices the whole machine may page to. An ordinary user has no
    /// such devices: his pages are present and not locked, as he is told for his whole process.
    ///
    /// Where no page is free for it at the moment (EAGAIN), it tries again for five seconds.
    pub fn lock(&self) -> io::Result<()> {
        let since = Instant::now();
        loop {
            // SAFETY: the range is mapped by this value.
            match unsafe { mm::mlock_with(self.base.as_ptr().cast(), self.length, MlockFlags::empty()) } {
                Ok(()) => return Ok(()),
                Err(Errno::NOMEM | Errno::PERM) if !rustix::process::geteuid().is_root() => {
                    self.make_present();
                    return Ok(());
                }
                Err(Errno::AGAIN) if since.elapsed() < LOCK_PATIENCE => std::thread::sleep(LOCK_PAUSE),
                Err(errno) => return Err(self.cannot_lock(errno)),
            }
        }
    }

    fn cannot_lock(&self, errno: Errno) -> io::Error {
        let length = self.length;
        let remedy = match errno {
            Errno::AGAIN => "the machine or the memory group of this process has no memory for it",
            _ => "raise the limit (ulimit -l unlimited, or LimitMEMLOCK=infinity)",
        };
        io::Error::new(
            io::Error::from(errno).kind(),
            format!("cannot lock {length} bytes of memory ({errno}); {remedy}"),
        )
    }

    /// Makes every page present, as far as the kernel can (`MADV_POPULATE_WRITE`, Linux 5.14); contents stay.
    fn make_present(&self) {
        // SAFETY: the range is mapped by this value, writable, and its content is left as it is.
        let _ = unsafe { mm::madvise(self.base.as_ptr().cast(), self.length, Advice::LinuxPopulateWrite) };
    }

    /// Frees the pages of `[offset, offset + length)`; they read as zeroes afterwards (also in a shared file).
    pub fn remove(&self, offset: usize, length: usize) -> io::Result<()> {
        self.check(offset, length);
        let start = self.at(offset).cast();
        // SAFETY: the range is mapped by this value (checked); content becomes zero, which the caller asked for.
        match unsafe { mm::madvise(start, length, Advice::LinuxRemove) } {
            // The kernel removes nothing from locked memory (madvise(2)), so the range is unlocked for that moment.
            Err(rustix::io::Errno::INVAL) => {
                // SAFETY: as above; unlocking and locking change no content.
                unsafe {
                    mm::munlock(start, length)?;
                    let removed = mm::madvise(start, length, Advice::LinuxRemove);
                    mm::mlock_with(start, length, MlockFlags::ONFAULT)?;
                    Ok(removed?)
                }
            }
            result => Ok(result?),
        }
    }

    /// Copies `target.len()` bytes from `offset` of the mapping.
    pub fn read(&self, offset: usize, target: &mut [u8]) {
        self.check(offset, target.len());
        // SAFETY: the source range is mapped (checked), the target is an exclusive slice of ours, and they cannot
        // overlap.
        unsafe { std::ptr::copy_nonoverlapping(self.at(offset), target.as_mut_ptr(), target.len()) };
    }

    /// Copies `source` to `offset` of the mapping.
    pub fn write(&self, offset: usize, source: &[u8]) {
        self.check(offset, source.len());
        // SAFETY: the target range is mapped (checked) and writable; no reference to it exists.
        unsafe { std::ptr::copy_nonoverlapping(source.as_ptr(), self.at(offset), source.len()) };
    }

    /// Copies `length` bytes from `source_offset` of `source` to `offset` of this mapping; the ranges may overlap.
    pub fn copy_from(&self, offset: usize, source: &Mapping, source_offset: usize, length: usize) {
        self.check(offset, length);
        source.check(source_offset, length);
        // SAFETY: both ranges are mapped (checked); `copy` allows overlap.
        unsafe { std::ptr::copy(source.at(source_offset), self.at(offset), length) };
    }

    /// As [`Mapping::copy_from`], for ranges that do not overlap and a target that no thread reads soon: whole pages at
    /// page boundaries go past the caches, which are not read before for that, nor filled with it (`MOVNTDQ`, Intel
    /// 64 and IA-32 Architectures Optimization Reference Manual, 9.4.1.2). Elsewhere than on `x86_64` it is an
    /// ordinary copy.
    pub fn stream_from(&self, offset: usize, source: &Mapping, source_offset: usize, length: usize) {
        self.check(offset, length);
        source.check(source_offset, length);
        let (target, origin) = (self.at(offset), source.at(source_offset));
        debug_assert!(target.addr().abs_diff(origin.addr()) >= length, "the ranges do not overlap");
        #[cfg(target_arch = "x86_64")]
        if [length, target.addr(), origin.addr()].iter().all(|number| number.is_multiple_of(PAGE_SIZE_BYTES)) {
            // SAFETY: both ranges are mapped (checked), and whole pages at page boundaries.
            return unsafe { stream(target, origin, length) };
        }
        self.copy_from(offset, source, source_offset, length);
    }

    /// Zeroes `[offset, offset + length)` by writing.
    pub fn zero(&self, offset: usize, length: usize) {
        self.check(offset, length);
        // SAFETY: the range is mapped (checked) and writable.
        unsafe { std::ptr::write_bytes(self.at(offset), 0, length) };
    }

    /// The address of byte `offset`; the fence keeps the compiler from carrying a copy across system calls that change
    /// what is mapped (seen: a store sunk below a hole punch).
    fn at(&self, offset: usize) -> *mut u8 {
        std::sync::atomic::compiler_fence(std::sync::atomic::Ordering::SeqCst);
        // SAFETY: callers checked that `offset` lies inside the mapping.
        unsafe { self.base.as_ptr().add(offset) }
    }

    fn check(&self, offset: usize, length: usize) {
        assert!(
            offset.checked_add(length).is_some_and(|end| end <= self.length),
            "range {offset}+{length} lies outside a mapping of {} bytes",
            self.length
        );
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the value owns the range and is going away; nothing else refers to it.
        let _ = unsafe { mm::munmap(self.base.as_ptr().cast(), self.length) };
    }
}

/// A range of address space in which files are attached and detached, each at a place of its own.
///
/// What no file is attached to is a file without pages: an empty range of private memory, however large, counts as if
/// all of it were used where the machine promises no more memory than it has (`vm.overcommit_memory=2`,
/// Documentation/mm/overcommit-accounting.rst). A copy that races with [`Window::detach`] may leave pages in that file.
#[derive(Debug)]
pub struct Window {
    memory: Mapping,
    empty: Memfd,
}

impl Window {
    /// A window of `length` bytes (a multiple of the page size) to which nothing is attached.
    pub fn new(length: usize) -> io::Result<Self> {
        check_length(length)?;
        let empty = Memfd::create("spillway-window", length as u64)?;
        Ok(Self { memory: Mapping::shared(&empty, length)?, empty })
    }

    /// The whole range.
    pub fn memory(&self) -> &Mapping {
        &self.memory
    }

    /// Replaces `[offset, offset + length)` by the first `length` bytes of `file`, and maps its pages at once. Copies
    /// that race see either memory.
    pub fn attach(&self, offset: usize, file: &Memfd, length: usize) -> io::Result<()> {
        if (length as u64) > file.length_bytes() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "attachment is longer than its memfd"));
        }
        self.replace(offset, file, 0, length)?;
        self.memory.touch(offset, length);
        Ok(())
    }

    /// Takes what is attached at `[offset, offset + length)` away.
    pub fn detach(&self, offset: usize, length: usize) -> io::Result<()> {
        self.replace(offset, &self.empty, offset as u64, length)
    }

    fn replace(&self, offset: usize, file: &Memfd, file_offset: u64, length: usize) -> io::Result<()> {
        check_length(length)?;
        self.memory.check(offset, length);
        assert!(offset.is_multiple_of(PAGE_SIZE_BYTES), "a place begins at a page boundary");
        // SAFETY: the range lies inside this mapping (checked), which no thread refers to by reference; MAP_FIXED swaps
        // the pages atomically, so the range stays mapped. The caller checked that the file is long enough.
        unsafe {
            mm::mmap(
                self.memory.base.as_ptr().add(offset).cast(),
                length,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::FIXED,
                file.as_fd_for_map(),
                file_offset,
            )?;
        }
        self.memory.leave_out_of_dumps(offset, length)
    }
}

fn check_length(length: usize) -> io::Result<()> {
    if length == 0 || !length.is_multiple_of(PAGE_SIZE_BYTES) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "a mapping is a positive number of whole pages"));
    }
    Ok(())
}

fn non_null(base: *mut u8) -> io::Result<NonNull<u8>> {
    NonNull::new(base).ok_or_else(|| io::Error::other("the kernel mapped memory at address zero"))
}

/// The descriptor of a memfd as a mapping call wants it.
trait MapDescriptor {
    fn as_fd_for_map(&self) -> BorrowedFd<'_>;
}

impl MapDescriptor for Memfd {
    fn as_fd_for_map(&self) -> BorrowedFd<'_> {
        std::os::fd::AsFd::as_fd(self)
    }
}

/// Copies past the caches, a cache line at a time; others see it all before what the caller writes next.
///
/// # Safety
/// Both ranges are mapped, lie at page boundaries, and are whole pages.
#[cfg(target_arch = "x86_64")]
unsafe fn stream(target: *mut u8, source: *const u8, length: usize) {
    use std::arch::x86_64::{__m128i, _mm_load_si128, _mm_sfence, _mm_stream_si128};

    let (target, source) = (target.cast::<__m128i>(), source.cast::<__m128i>());
    for line in (0..length / size_of::<__m128i>()).step_by(4) {
        // SAFETY: the caller vouches for the ranges; every processor of this architecture has SSE2.
        unsafe {
            let parts: [__m128i; 4] = std::array::from_fn(|part| _mm_load_si128(source.add(line + part)));
            for (part, value) in parts.into_iter().enumerate() {
                _mm_stream_si128(target.add(line + part), value);
            }
        }
    }
    // SAFETY: as above.
    unsafe { _mm_sfence() };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_past_the_caches_is_a_copy() {
        let pages = 3 * PAGE_SIZE_BYTES;
        let (source, target) = (Mapping::anonymous(pages).unwrap(), Mapping::anonymous(pages).unwrap());
        let bytes: Vec<u8> = (0..pages).map(|index| (index * 7 + index / 256) as u8).collect();
        source.write(0, &bytes);
        // Whole pages; a part of one; at no boundary; nothing.
        let page = PAGE_SIZE_BYTES;
        for (to, from, length) in [(page, 0, 2 * page), (0, page, page), (page, 2 * page, 40), (3, 64, page), (8, 8, 0)]
        {
            target.zero(0, pages);
            target.stream_from(to, &source, from, length);
            let mut found = vec![1; pages];
            target.read(0, &mut found);
            let mut expected = vec![0; pages];
            expected[to..to + length].copy_from_slice(&bytes[from..from + length]);
            assert!(found == expected, "{length} bytes from {from} to {to}");
        }
    }

    #[test]
    #[should_panic(expected = "lies outside")]
    fn a_copy_past_the_caches_stays_inside() {
        let page = Mapping::anonymous(PAGE_SIZE_BYTES).unwrap();
        page.stream_from(0, &page, PAGE_SIZE_BYTES, PAGE_SIZE_BYTES);
    }

    #[test]
    fn locked_shared_memory_can_be_removed_too() {
        let file = Memfd::create("removed", 4 * PAGE_SIZE_BYTES as u64).unwrap();
        let mapping = Mapping::shared(&file, 4 * PAGE_SIZE_BYTES).unwrap();
        mapping.lock().unwrap();
        mapping.write(0, &[7; 4 * PAGE_SIZE_BYTES]);
        mapping.remove(PAGE_SIZE_BYTES, 2 * PAGE_SIZE_BYTES).unwrap();
        let mut bytes = [1; 4 * PAGE_SIZE_BYTES];
        mapping.read(0, &mut bytes);
        let removed = PAGE_SIZE_BYTES..3 * PAGE_SIZE_BYTES;
        assert!(bytes.iter().enumerate().all(|(index, byte)| *byte == if removed.contains(&index) { 0 } else { 7 }));
    }

    #[test]
    fn shared_mappings_of_one_memfd_see_the_same_bytes_until_detached() {
        let file = Memfd::create("mapping-test", 8192).unwrap();
        let one = Mapping::shared(&file, 8192).unwrap();
        let window = Window::new(4 * 4096).unwrap();
        window.attach(4096, &file, 8192).unwrap();
        one.write(10, b"page");
        let mut seen = [0; 4];
        window.memory().read(4096 + 10, &mut seen);
        assert_eq!(&seen, b"page");
        window.detach(4096, 8192).unwrap();
        window.memory().read(4096 + 10, &mut seen);
        assert_eq!(seen, [0; 4]);
    }

    #[test]
    fn an_empty_window_is_no_memory_that_the_machine_promises() {
        let window = Window::new(1 << 36).unwrap();
        let text = std::fs::read("/proc/self/smaps").unwrap();
        let start = window.memory().address() as u64;
        let found = crate::proc_text::maps::detailed(&text).find(|one| one.mapped.range.start == start).unwrap();
        assert!(found.has_flag("wr") && !found.has_flag("ac"), "accountable");
    }

    #[test]
    fn removed_pages_read_as_zeroes_everywhere() {
        let file = Memfd::create("mapping-test", 8192).unwrap();
        let one = Mapping::shared(&file, 8192).unwrap();
        one.write(4096, &[7; 4096]);
        one.remove(4096, 4096).unwrap();
        let mut seen = [1; 16];
        one.read(4096, &mut seen);
        assert_eq!(seen, [0; 16]);
    }

    #[test]
    fn pages_of_locked_memory_are_removed_too() {
        let file = Memfd::create("mapping-test", 8192).unwrap();
        let one = Mapping::shared(&file, 8192).unwrap();
        one.lock().unwrap();
        one.write(0, &[7; 8192]);
        one.remove(4096, 4096).unwrap();
        let mut seen = [1; 16];
        one.read(4096, &mut seen);
        assert_eq!(seen, [0; 16]);
        assert_eq!(file.resident_bytes().unwrap(), 4096 + 4096, "looking made a zero page");
        one.read(0, &mut seen);
        assert_eq!(seen, [7; 16]);
    }

    #[test]
    #[should_panic(expected = "outside a mapping")]
    fn a_copy_past_the_end_panics_instead_of_reading() {
        Mapping::anonymous(4096).unwrap().read(4090, &mut [0; 16]);
    }

    #[test]
    fn odd_lengths_are_refused() {
        assert!(Mapping::anonymous(0).is_err());
        assert!(Mapping::anonymous(100).is_err());
    }
}
