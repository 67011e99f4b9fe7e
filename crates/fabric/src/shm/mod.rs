//! The donor is on the same host (or its memory is a CXL or DAX device): slabs are shared memory, and the borrower
//! copies in and out itself. The donor's CPU does nothing.
//!
//! - `window`: where lent slabs appear in the borrower's address space.
//! - `queue_pair`: requests on it.

mod queue_pair;
mod window;

pub use self::queue_pair::ShmQueuePair;
pub use self::window::ShmWindow;
