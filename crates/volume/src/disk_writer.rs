//! The disk thread: brings pages from the backlog to the backing file.
//!
//! It takes many pages at once, sorted, and writes neighbours in one go, straight from the backlog's buffers
//! (O_DIRECT, several writes in flight). A burst shorter than half the backlog is written after it is over, so that
//! it does not share the CPU with the disk. When it has nothing to write, it fills the file, if that was asked for
//! ([`FileFiller`]).

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use spillway_fabric::file::{FileFiller, FileWriter};
use spillway_fabric::queue_pair::{Completion, PostError, RequestError};
use spillway_fabric::units::Tag;

use crate::limits::{
    BACKLOG_BATCH_PAGES, BACKLOG_DELAY, BACKLOG_EAGER_PAGES, DISK_RUN_PAGES_MAX, DISK_WRITES_MAX, SLAB_SCAN_INTERVAL,
};
use crate::slab_map::backlog::{BacklogPage, TakePolicy};
use crate::slab_map::{DiskCopy, Volume};

/// What [`DiskCounters::blocks`] says of a file that gets its blocks page by page: for a program or a disk, which can
/// be told of an error.
pub const NOT_RESERVED: &str = "not reserved";

/// How [`DiskCounters::blocks`] begins when the file cannot be filled.
pub const NOT_ALL: &str = "not all: ";

/// All of the file is filled, see [`DiskCounters`].
const FILLED: u64 = 101;

/// What the disk thread did.
#[derive(Debug, Default)]
pub struct DiskCounters {
    pages_written: AtomicU64,
    write_errors: AtomicU64,
    last_error: Mutex<String>,
    is_filled: bool,
    /// Hundredths of the file that have blocks, plus one; zero before the first look.
    filled: AtomicU64,
    fill_error: Mutex<String>,
    buffered_reason: Option<String>,
}

impl DiskCounters {
    /// For a file that is written through the page cache for this reason, if it is, and that gets its blocks
    /// beforehand if it `is_filled`.
    pub fn new(buffered_reason: Option<&str>, is_filled: bool) -> Self {
        Self { buffered_reason: buffered_reason.map(str::to_owned), is_filled, ..Self::default() }
    }

    /// Why pages go through the page cache, if they do.
    pub fn buffered_reason(&self) -> Option<String> {
        self.buffered_reason.clone()
    }

    /// Pages on disk since the start.
    pub fn pages_written(&self) -> u64 {
        self.pages_written.load(Ordering::Relaxed)
    }

    /// Pages that could not be written.
    pub fn write_errors(&self) -> u64 {
        self.write_errors.load(Ordering::Relaxed)
    }

    /// The last error, in words; empty if there was none.
    pub fn last_error(&self) -> String {
        self.last_error.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How far the file has its blocks before they are needed, in words.
    pub fn blocks(&self) -> String {
        let error = self.fill_error.lock().unwrap_or_else(PoisonError::into_inner);
        match self.filled.load(Ordering::Relaxed) {
            _ if !error.is_empty() => format!("{NOT_ALL}{error}"),
            _ if !self.is_filled => NOT_RESERVED.to_owned(),
            0 => "0 %".to_owned(),
            FILLED => "all".to_owned(),
            more => format!("{} %", more - 1),
        }
    }

    fn count_fill(&self, result: &std::io::Result<bool>, filler: &FileFiller) {
        let hundredths = filler.filled_bytes() * 100 / filler.size_bytes().max(1);
        match result {
            Ok(true) => self.filled.store(1 + hundredths.min(99), Ordering::Relaxed),
            Ok(false) => self.filled.store(FILLED, Ordering::Relaxed),
            Err(error) => *self.fill_error.lock().unwrap_or_else(PoisonError::into_inner) = error.to_string(),
        }
    }

    fn count(&self, pages: usize, result: Result<(), RequestError>) {
        match result {
            Ok(()) => drop(self.pages_written.fetch_add(pages as u64, Ordering::Relaxed)),
            Err(error) => {
                self.write_errors.fetch_add(pages as u64, Ordering::Relaxed);
                let text = match error {
                    RequestError::Medium(errno) => std::io::Error::from_raw_os_error(errno).to_string(),
                    other => other.to_string(),
                };
                *self.last_error.lock().unwrap_or_else(PoisonError::into_inner) = text;
            }
        }
    }
}

/// The running disk thread.
#[derive(Debug)]
pub struct DiskThread {
    handle: Option<JoinHandle<()>>,
}

impl DiskThread {
    /// Starts it; it ends when the volume's backlog is closed and empty.
    pub fn start(
        volume: Arc<Volume>,
        writer: FileWriter,
        filler: Option<FileFiller>,
        counters: Arc<DiskCounters>,
    ) -> std::io::Result<Self> {
        let body = move || {
            let disk = volume.disk.as_ref().expect("the disk thread runs for volumes with a disk copy");
            DiskLoop { volume: &volume, disk, writer, filler, counters: &counters, runs: Vec::new() }.run();
        };
        Ok(Self { handle: Some(std::thread::Builder::new().name("disk".to_owned()).spawn(body)?) })
    }

    /// Waits for its end.
    pub fn join(&mut self) {
        if let Some(handle) = self.handle.take() {
            // A panicked disk thread has said so on stderr.
            let _ = handle.join();
        }
    }
}

struct DiskLoop<'a> {
    volume: &'a Volume,
    disk: &'a DiskCopy,
    writer: FileWriter,
    /// Until the file is full.
    filler: Option<FileFiller>,
    counters: &'a DiskCounters,
    /// Neighbouring pages of the batch: first index and count. The index is the tag.
    runs: Vec<(usize, usize)>,
}

impl DiskLoop<'_> {
    fn run(&mut self) {
        let mut batch = Vec::with_capacity(BACKLOG_BATCH_PAGES);
        self.runs.reserve(BACKLOG_BATCH_PAGES);
        while self.disk.backlog.take(self.policy(), &mut batch) {
            if batch.is_empty() {
                self.fill();
            }
            find_runs(&batch, &mut self.runs);
            for number in 0..self.runs.len() {
                self.write(&batch, number);
            }
            while self.writer.in_flight() > 0 {
                self.wait(&batch);
            }
        }
    }

    fn policy(&self) -> TakePolicy {
        let patience = if self.filler.is_some() { Duration::ZERO } else { SLAB_SCAN_INTERVAL };
        TakePolicy { eager_pages: BACKLOG_EAGER_PAGES, delay: BACKLOG_DELAY, patience }
    }

    /// One step of filling the file; nothing is in flight.
    fn fill(&mut self) {
        let Some(filler) = &mut self.filler else { return };
        let result = filler.step();
        self.counters.count_fill(&result, filler);
        if !matches!(result, Ok(true)) {
            self.filler = None;
        }
    }

    fn write(&mut self, batch: &[BacklogPage], number: usize) {
        let (first, count) = self.runs[number];
        let offset = batch[first].page.offset_bytes();
        loop {
            let pool = &self.disk.pool;
            let buffers = batch[first..first + count].iter().map(|page| pool.slot(page.slot.0 as usize));
            match self.writer.post(offset, buffers, Tag(number as u32)) {
                Ok(()) => return,
                Err(PostError::Busy) => self.wait(batch),
                Err(PostError::Down) => {
                    return ended(
                        self.volume,
                        self.disk,
                        self.counters,
                        &batch[first..first + count],
                        Err(RequestError::Down),
                    );
                }
            }
        }
    }

    fn wait(&mut self, batch: &[BacklogPage]) {
        let (volume, disk, counters, runs) = (self.volume, self.disk, self.counters, &self.runs);
        let mut complete = |completion: Completion| {
            let (first, count) = runs[completion.tag.0 as usize];
            ended(volume, disk, counters, &batch[first..first + count], completion.result);
        };
        if let Err(error) = self.writer.wait(&mut complete) {
            tracing::error!("cannot wait for the backing file: {error}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

fn ended(
    volume: &Volume,
    disk: &DiskCopy,
    counters: &DiskCounters,
    pages: &[BacklogPage],
    result: Result<(), RequestError>,
) {
    counters.count(pages.len(), result);
    let now = Instant::now();
    if result.is_ok() {
        let unsaved = disk.backlog.complete(&volume.bits, pages, true, now);
        assert!(!unsaved, "what the disk has is saved");
        return;
    }
    for page in pages.chunks(1) {
        if disk.backlog.complete(&volume.bits, page, false, now) {
            volume.disk_write_failed(page[0].page, || std::thread::sleep(Duration::from_micros(50)));
        }
    }
}

/// Groups a sorted batch into runs of neighbours, each short enough for one write.
fn find_runs(batch: &[BacklogPage], runs: &mut Vec<(usize, usize)>) {
    runs.clear();
    for (index, page) in batch.iter().enumerate() {
        match runs.last_mut() {
            Some((first, count)) if *count < DISK_RUN_PAGES_MAX && batch[*first].page + *count as u64 == page.page => {
                *count += 1;
            }
            _ => runs.push((index, 1)),
        }
    }
}

const _: () = {
    assert!(DISK_RUN_PAGES_MAX <= spillway_fabric::limits::RUN_PIECES_MAX, "a run fits one vectored write");
    assert!(DISK_WRITES_MAX >= 2, "the disk works while the next write is made");
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slab_map::backlog::BacklogSlot;
    use crate::slab_map::page_index::PageIndex;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn runs_cover_the_batch_in_neighbours(pages in prop::collection::btree_set(0u64..2000, 0..600)) {
            let taken = |page: &u64| BacklogPage { page: PageIndex(*page), slot: BacklogSlot(0) };
            let batch: Vec<_> = pages.iter().map(taken).collect();
            let mut runs = Vec::new();
            find_runs(&batch, &mut runs);
            let mut next = 0;
            for (first, count) in runs {
                prop_assert_eq!(first, next);
                prop_assert!((1..=DISK_RUN_PAGES_MAX).contains(&count));
                let start = batch[first].page;
                prop_assert!((0..count).all(|offset| batch[first + offset].page == start + offset as u64));
                next += count;
            }
            prop_assert_eq!(next, batch.len());
        }
    }
}
