//! The donor: lends this machine's idle memory, slab by slab.
//!
//! Borrowers connect, prove the cluster key, and lease slabs. Over shared memory they map a slab themselves and the
//! donor's CPU does nothing; over TCP a thread per data connection carries out their requests. Decisions (capacity,
//! leases, eviction) are plain state machines; threads, sockets and memory stand around them.
//!
//! In reading order:
//! - [`config`]: what a donor is told.
//! - [`donor`]: starting, stopping, draining.
//! - [`listen`], `server`, [`connections`]: from a socket to a session. [`complaints`]: what strangers cause in the
//!   log.
//! - `conversation`: what is said to one borrower; `session`: the session as all threads see it.
//! - `donor_state`: lending a slab and taking it back.
//! - [`leases`]: who holds what. [`capacity`]: how much may be lent. [`eviction`]: what to ask back.
//! - [`slab_memory`]: the memory itself. [`host_memory`]: what the machine has, and cgroups leave of it.
//! - `housekeeper`: what happens in the background. [`preparation`]: which slabs to make ahead.
//! - [`status`]: what a donor tells. [`limits`]: every bound. [`random`]: seeded randomness.

#![forbid(unsafe_code)]

pub mod capacity;
pub mod complaints;
pub mod config;
pub mod connections;
mod conversation;
pub mod donor;
mod donor_state;
pub mod eviction;
pub mod host_memory;
mod housekeeper;
pub mod leases;
pub mod limits;
pub mod listen;
pub mod preparation;
pub mod random;
mod server;
mod session;
pub mod slab_memory;
pub mod status;

pub use config::{DonorConfig, DonorError, ListenAddress};
pub use donor::Donor;
pub use status::DonorStatus;
