//! Reads and writes of single pages, past the page cache, each read compared with what was written last.

use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Instant;

use rustix::fs::OFlags;

use super::figures::Read;
use crate::harness::HarnessError;
use spillway_workloads::random::{Random, mix, word_at};
use spillway_workloads::size::PAGE_SIZE_BYTES;
use spillway_workloads::zipf::Zipf;

const PAGE: usize = PAGE_SIZE_BYTES as usize;

/// Pages of one write of the fill: as much as a request may have.
const FILL_PAGES: usize = 256;

/// One of so many requests of the load writes: as many as in YCSB's workload A would, halved, since a write goes to
/// two donors.
const WRITE_EVERY: u64 = 4;

/// Skew among slabs, YCSB's.
const SKEW: f64 = 0.99;

/// Memory of which a part begins at a page, as direct I/O needs it.
struct Buffer {
    bytes: Vec<u8>,
    start: usize,
    length: usize,
}

impl Buffer {
    fn new(pages: usize) -> Self {
        let bytes = vec![0; (pages + 1) * PAGE];
        let start = bytes.as_ptr().align_offset(PAGE);
        Self { bytes, start, length: pages * PAGE }
    }

    fn bytes(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.length]
    }
}

/// Writes what belongs to `page` in its `version` into `bytes`.
fn generate(page: u64, version: u32, bytes: &mut [u8]) {
    let seed = mix(page << 32 | u64::from(version));
    for (index, word) in bytes.chunks_exact_mut(8).enumerate() {
        word.copy_from_slice(&word_at(seed, index as u64).to_le_bytes());
    }
}

/// Whether `bytes` are what belongs to `page` in its `version`.
fn is_right(page: u64, version: u32, bytes: &[u8]) -> bool {
    let seed = mix(page << 32 | u64::from(version));
    bytes.chunks_exact(8).enumerate().all(|(index, word)| word == word_at(seed, index as u64).to_le_bytes())
}

/// A device full of pages, of each of which the last version is known.
pub(super) struct Pages {
    file: File,
    slab_pages: u64,
    versions: Vec<AtomicU32>,
}

impl Pages {
    /// Fills `device`, of so many slabs of `slab_pages` pages.
    pub(super) fn fill(device: &Path, slab_count: u64, slab_pages: u64) -> Result<Self, HarnessError> {
        let direct = OFlags::DIRECT.bits() as i32;
        let opened = File::options().read(true).write(true).custom_flags(direct).open(device);
        let file = opened.map_err(HarnessError::system(format!("opening {}", device.display())))?;
        let versions = (0..slab_count * slab_pages).map(|_| AtomicU32::new(0)).collect();
        let pages = Self { file, slab_pages, versions };
        let mut buffer = Buffer::new(FILL_PAGES);
        for first in (0..pages.count()).step_by(FILL_PAGES) {
            let count = (pages.count() - first).min(FILL_PAGES as u64);
            for (index, bytes) in buffer.bytes().chunks_exact_mut(PAGE).enumerate() {
                generate(first + index as u64, 0, bytes);
            }
            let bytes = &buffer.bytes()[..count as usize * PAGE];
            let written = pages.file.write_all_at(bytes, first * PAGE_SIZE_BYTES);
            written.map_err(HarnessError::system("filling the device"))?;
        }
        Ok(pages)
    }

    fn count(&self) -> u64 {
        self.versions.len() as u64
    }

    fn read(&self, page: u64, buffer: &mut Buffer) -> Result<(), HarnessError> {
        let bytes = buffer.bytes();
        let read = self.file.read_exact_at(bytes, page * PAGE_SIZE_BYTES);
        read.map_err(HarnessError::system(format!("reading page {page}")))?;
        if is_right(page, self.versions[page as usize].load(Ordering::Relaxed), bytes) {
            return Ok(());
        }
        Err(HarnessError::wrong("a read", format!("page {page} is not what was written last")))
    }

    fn write(&self, page: u64, buffer: &mut Buffer) -> Result<(), HarnessError> {
        // Only this thread reads or writes the page.
        let version = self.versions[page as usize].fetch_add(1, Ordering::Relaxed) + 1;
        generate(page, version, buffer.bytes());
        let written = self.file.write_all_at(buffer.bytes(), page * PAGE_SIZE_BYTES);
        written.map_err(HarnessError::system(format!("writing page {page}")))
    }

    /// Reads pages of `slabs` at random, and one page more once `has_happened`: what one probe saw.
    pub(super) fn probe(
        &self,
        slabs: &[u64],
        mut random: Random,
        has_happened: &AtomicBool,
    ) -> Result<Vec<Read>, HarnessError> {
        let mut buffer = Buffer::new(1);
        let mut reads = Vec::new();
        loop {
            let is_last = has_happened.load(Ordering::Relaxed);
            let slab = slabs[random.below(slabs.len() as u64) as usize];
            let page = slab * self.slab_pages + random.below(self.slab_pages);
            let begun = Instant::now();
            self.read(page, &mut buffer)?;
            reads.push(Read { begun, ended: Instant::now() });
            if is_last {
                return Ok(reads);
            }
        }
    }

    /// Reads and writes the pages that belong to `worker` of `workers`, until `is_over`; when each request ended.
    /// A slab is asked for by Zipf's law, and each of its pages as often as the others.
    pub(super) fn work(
        &self,
        (worker, workers): (u64, u64),
        mut random: Random,
        is_over: &AtomicBool,
    ) -> Result<Vec<Instant>, HarnessError> {
        let slabs = Zipf::new(self.count() / self.slab_pages, SKEW);
        let mut buffer = Buffer::new(1);
        let mut ends = Vec::new();
        while !is_over.load(Ordering::Relaxed) {
            let place = random.below(self.slab_pages / workers) * workers + worker;
            let page = slabs.next(&mut random) * self.slab_pages + place;
            if random.below(WRITE_EVERY) == 0 {
                self.write(page, &mut buffer)?;
            } else {
                self.read(page, &mut buffer)?;
            }
            ends.push(Instant::now());
        }
        Ok(ends)
    }

    /// Reads every page once: nothing of all that happened cost one.
    pub(super) fn verify(&self) -> Result<(), HarnessError> {
        let mut buffer = Buffer::new(FILL_PAGES);
        for first in (0..self.count()).step_by(FILL_PAGES) {
            let count = (self.count() - first).min(FILL_PAGES as u64);
            let bytes = &mut buffer.bytes()[..count as usize * PAGE];
            let read = self.file.read_exact_at(bytes, first * PAGE_SIZE_BYTES);
            read.map_err(HarnessError::system("reading all pages"))?;
            for (page, bytes) in (first..).zip(bytes.chunks_exact(PAGE)) {
                if !is_right(page, self.versions[page as usize].load(Ordering::Relaxed), bytes) {
                    return Err(HarnessError::wrong("the device", format!("page {page} is not what was written last")));
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// A file on a disk in place of a device.
    fn filled(directory: &Path, slab_count: u64, slab_pages: u64) -> Pages {
        let path = directory.join("device");
        File::create(&path).unwrap().set_len(slab_count * slab_pages * PAGE_SIZE_BYTES).unwrap();
        Pages::fill(&path, slab_count, slab_pages).unwrap()
    }

    #[test]
    fn no_page_and_no_version_is_like_another() {
        let content = |page: u64, version: u32| {
            let mut bytes = vec![0; PAGE];
            generate(page, version, &mut bytes);
            assert!(is_right(page, version, &bytes));
            bytes
        };
        let (page, other, later) = (content(3, 0), content(4, 0), content(3, 1));
        assert!(page != other && page != later && other != later);
        assert!(!is_right(3, 1, &page) && !is_right(4, 0, &page));
    }

    #[test]
    fn workers_find_what_they_wrote() {
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        let pages = filled(directory.path(), 3, 200);
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let work = |worker| pages.work((worker, 2), Random::new(worker), &is_over);
            let workers = [0, 1].map(|worker| scope.spawn(move || work(worker)));
            std::thread::sleep(Duration::from_millis(50));
            is_over.store(true, Ordering::Relaxed);
            for worker in workers {
                assert!(!worker.join().unwrap().unwrap().is_empty());
            }
        });
        pages.verify().unwrap();
        assert!(pages.versions.iter().any(|version| version.load(Ordering::Relaxed) > 0));
    }

    #[test]
    fn a_wrong_byte_is_found() {
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        let pages = filled(directory.path(), 1, 300);
        pages.verify().unwrap();
        let path = directory.path().join("device");
        let file = File::options().write(true).open(&path).unwrap();
        file.write_all_at(b"x", 299 * PAGE_SIZE_BYTES + 77).unwrap();
        file.sync_all().unwrap();
        assert!(matches!(pages.verify(), Err(HarnessError::Wrong { .. })));
        assert!(matches!(pages.read(299, &mut Buffer::new(1)), Err(HarnessError::Wrong { .. })));
        pages.read(298, &mut Buffer::new(1)).unwrap();
    }
}
