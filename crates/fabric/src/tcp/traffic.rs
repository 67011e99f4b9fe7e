//! How many bytes of pages a donor's end moved, for people who want to know.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts of one session; several data connections may add to them. They order nothing, hence `Relaxed`.
#[derive(Debug, Default)]
pub struct Traffic {
    read_bytes: AtomicU64,
    written_bytes: AtomicU64,
}

impl Traffic {
    /// Bytes of slabs that were sent to the borrower.
    pub fn read_bytes(&self) -> u64 {
        self.read_bytes.load(Ordering::Relaxed)
    }

    /// Bytes from the borrower that went into slabs.
    pub fn written_bytes(&self) -> u64 {
        self.written_bytes.load(Ordering::Relaxed)
    }

    pub(super) fn note_read(&self, bytes: usize) {
        self.read_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(super) fn note_written(&self, bytes: usize) {
        self.written_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}
