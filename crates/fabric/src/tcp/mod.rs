//! The donor is anywhere: one-sided reads and writes over a stream socket (TCP, or UNIX for a donor on this host).
//!
//! Pages leave straight from the buffer pool or the slab (vectored sends) and land straight in the buffer or the
//! slab. The layout of the stream is in [`wire::data`](crate::wire::data).
//!
//! - `handshake`: preface and proofs; socket settings.
//! - `queue_pair`: the borrower's end.
//! - `serve`: the donor's end, made of `intake` (requests and incoming payloads) and `replies` (answers, sent in
//!   batches); `traffic` counts what they moved.
//! - `shares`: what each machine gets of a donor's bandwidth, by its `weights`; `fair_queue` decides.

mod fair_queue;
mod handshake;
mod intake;
mod queue_pair;
mod replies;
mod serve;
mod shares;
mod slab_directory;
mod traffic;
mod weights;

pub use self::handshake::{Greeting, introduce};
pub use self::queue_pair::TcpQueuePair;
pub use self::serve::serve;
pub use self::shares::{Share, Shares};
pub use self::slab_directory::SlabDirectory;
pub use self::traffic::Traffic;
pub use self::weights::{WeightError, Weights};
