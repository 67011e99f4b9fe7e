//! A slab may be taken out of the window while an I/O thread copies from or to it: a copy that is reported as done
//! met the slab's memory, whole.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use spillway_fabric::queue_pair::{Operation, RequestError};
use spillway_fabric::shm::{ShmQueuePair, ShmWindow};
use spillway_fabric::units::SlabHandle;
use spillway_sys::mapping::Mapping;
use spillway_sys::memfd::Memfd;

use crate::support::*;

/// Handles are not reused, as donors promise.
const HANDLES: u32 = 1000;

#[test]
fn a_copy_that_is_done_met_the_slab() {
    let window = ShmWindow::new(SLAB_SIZE_BYTES as u64, HANDLES as usize).unwrap();
    let pool = pool(1, 64 * PAGE);
    let file = Memfd::create("test-slab", SLAB_SIZE_BYTES as u64).unwrap();
    Mapping::shared(&file, SLAB_SIZE_BYTES).unwrap().write(0, &[7; 64 * PAGE]);
    let current = AtomicU32::new(0);
    let mut pair = ShmQueuePair::new(Arc::clone(&window), Arc::clone(&pool));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for handle in 0..HANDLES {
                window.attach(SlabHandle(handle), &file).unwrap();
                current.store(handle, Ordering::SeqCst);
                std::thread::yield_now();
                window.detach(SlabHandle(handle)).unwrap();
            }
            current.store(HANDLES, Ordering::SeqCst);
        });
        loop {
            let handle = current.load(Ordering::SeqCst);
            if handle == HANDLES {
                break;
            }
            fill(&pool, pool.slot(0), 1);
            match carry_out(&mut pair, request(Operation::Read, handle, 0, pool.slot(0), 0)) {
                Ok(()) => assert!(content(&pool, pool.slot(0)).iter().all(|&byte| byte == 7)),
                Err(error) => assert_eq!(error, RequestError::NotLent),
            }
        }
    });
    let mut bytes = vec![0; 64 * PAGE];
    Mapping::shared(&file, SLAB_SIZE_BYTES).unwrap().read(0, &mut bytes);
    assert!(bytes.iter().all(|&byte| byte == 7), "detaching changes nothing in the slab");
}
