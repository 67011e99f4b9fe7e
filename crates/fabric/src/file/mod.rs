//! The local backing file: a copy of pages on a disk, for when no donor has them.
//!
//! It is used like a donor: slab `s`, offset `o` is byte `s * slab_size + o` of the file. The file is opened for direct
//! I/O, since a copy in the page cache would take the memory that swapping is meant to free.
//!
//! - `backing`: preparing the file, and what is wrong with a bad choice.
//! - `queue_pair`: single requests, for the I/O threads.
//! - `writer`: long runs of pages, for the background writer. - `filler`: blocks for all of the file before they are
//!   needed.

mod backing;
mod filler;
mod queue_pair;
mod writer;

use spillway_sys::io_ring::RingMemory;
use spillway_sys::mapping::Mapping;

pub use self::backing::{BackingError, BackingFile};
pub use self::filler::FileFiller;
pub use self::queue_pair::FileQueuePair;
pub use self::writer::FileWriter;
use crate::buffer_pool::BufferPool;
use crate::queue_pair::RequestError;

impl RingMemory for BufferPool {
    fn mapping(&self) -> &Mapping {
        self.memory()
    }

    fn is_pinned(&self) -> bool {
        self.is_present()
    }
}

/// How far one transfer has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    /// The rest, after so many bytes, must be submitted again.
    Rest(usize),
    Ended(Result<(), RequestError>),
}

/// Judges one completion of a transfer of `total` bytes of which `before` had been moved earlier.
fn progress(total: usize, before: usize, result: Result<usize, i32>) -> Progress {
    match result {
        Ok(moved) if before + moved >= total => Progress::Ended(Ok(())),
        // The file was cut short behind our back, or the disk takes nothing: asking again would go on for ever.
        Ok(0) => Progress::Ended(Err(RequestError::Medium(rustix::io::Errno::IO.raw_os_error()))),
        Ok(moved) => Progress::Rest(before + moved),
        Err(errno) if is_transient(errno) => Progress::Rest(before),
        Err(errno) => Progress::Ended(Err(RequestError::Medium(errno))),
    }
}

fn is_transient(errno: i32) -> bool {
    [rustix::io::Errno::AGAIN, rustix::io::Errno::INTR].iter().any(|transient| transient.raw_os_error() == errno)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_transfers_go_on_and_errors_end_them() {
        assert_eq!(progress(8192, 0, Ok(8192)), Progress::Ended(Ok(())));
        assert_eq!(progress(8192, 0, Ok(4096)), Progress::Rest(4096));
        assert_eq!(progress(8192, 4096, Ok(4096)), Progress::Ended(Ok(())));
        assert_eq!(progress(8192, 4096, Err(11)), Progress::Rest(4096), "EAGAIN");
        assert_eq!(progress(8192, 512, Err(4)), Progress::Rest(512), "EINTR");
        assert_eq!(progress(8192, 4096, Ok(0)), Progress::Ended(Err(RequestError::Medium(5))), "EIO, not for ever");
        assert_eq!(progress(8192, 0, Err(28)), Progress::Ended(Err(RequestError::Medium(28))), "ENOSPC");
    }
}
