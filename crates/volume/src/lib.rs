//! A volume: linear pages in slabs, each slab with copies at donors, on the local disk, or both.
//!
//! In the order of a request:
//! - [`engine`]: what happens to a request, one state machine per I/O thread.
//! - [`slab_map`]: which copies of a page are valid, shared by all threads.
//! - [`steward`]: where copies go and when they move, decided without I/O; [`manager`]: the threads that do it, and
//!   connections to donors. [`disk_writer`]: the asynchronous copy on disk.
//!
//! Around them:
//! - [`settings`]: what a volume is started with; [`error`]: why it is not.
//! - [`running`]: everything put together; [`state`]: what of it outlives its process.
//! - [`protection`]: how a page is sealed or checked.
//! - [`status`]: what it says of itself; [`health`]: in one line; [`limits`]: every bound.
//! - `test_support`: donors and a disk for tests, behind the feature `test-support`.

#![forbid(unsafe_code)]

pub mod disk_writer;
pub mod engine;
pub mod error;
pub mod health;
pub mod limits;
pub mod manager;
pub mod protection;
pub mod running;
pub mod settings;
pub mod slab_map;
pub mod state;
pub mod status;
pub mod steward;
mod sync;
#[cfg(feature = "test-support")]
pub mod test_support;
