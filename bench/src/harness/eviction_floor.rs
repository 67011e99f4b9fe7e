//! The bare floor of a page that leaves: one thread moves pages out of memory, copies them to a buffer and from there
//! to other memory, and drops them, and does nothing else, in batches and runs as long as the pager's. What an
//! eviction adds is the choice of the pages, where they go, and the way between the two sides.

use std::io;
use std::time::Instant;

use spillway_pager::limits::{BATCH_PAGES, GROUP_PAGES};
use spillway_sys::mapping::Mapping;
use spillway_sys::memfd::Memfd;
use spillway_sys::userfaultfd::leaving::LeavingMemory;

use crate::harness::binding::pin;
use spillway_workloads::size::PAGE_SIZE_BYTES;

/// Pages a second that leave, of `pages` on one CPU.
pub fn pages_per_second(pages: usize, cpu: Option<usize>) -> io::Result<f64> {
    // A thread of its own: what it is bound to ends with it.
    let measured = std::thread::scope(|scope| scope.spawn(|| pin(cpu).and_then(|()| measure(pages))).join());
    measured.expect("the thread does not panic")
}

fn measure(pages: usize) -> io::Result<f64> {
    let (page_bytes, batches) = (PAGE_SIZE_BYTES as usize, pages / BATCH_PAGES);
    let leaving = LeavingMemory::new(batches * BATCH_PAGES, BATCH_PAGES)?;
    let buffer = Mapping::anonymous(BATCH_PAGES * page_bytes)?;
    let bytes = batches * BATCH_PAGES * page_bytes;
    let file = Memfd::create("spillway-bench-slab", bytes as u64)?;
    file.preallocate(0, bytes as u64)?;
    let slab = Mapping::shared_present(&file, bytes)?;
    let start = Instant::now();
    for batch in 0..batches {
        leaving.take(batch * BATCH_PAGES, GROUP_PAGES, &buffer)?;
        slab.copy_from(batch * BATCH_PAGES * page_bytes, &buffer, 0, BATCH_PAGES * page_bytes);
    }
    Ok((batches * BATCH_PAGES) as f64 / start.elapsed().as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_leave_in_some_time() {
        match pages_per_second(2 * BATCH_PAGES, Some(0)) {
            Ok(rate) => assert!(rate > 0.0 && rate.is_finite()),
            Err(error) => {
                spillway_sys::skipping::skip_because(format!("this user may not handle page faults: {error}"));
            }
        }
    }
}
