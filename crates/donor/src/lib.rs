//! The donor: lends this machine's idle memory, slab by slab.
//!
//! Borrowers connect, prove the cluster key, and lease slabs. Over shared memory they map a slab themselves and the
//! donor's CPU does nothing; over TCP a thread per data connection carries out their requests. All decisions are one
//! state machine, the [`lender`], without I/O; threads, sockets and memory stand around it.
//!
//! In reading order:
//! - [`config`]: what a donor is told.
//! - [`lender`]: what is decided, and the life of a slab. In it [`lender::capacity`]: how much may be lent;
//!   [`lender::leases`]: which borrower holds what; [`lender::eviction`]: what to ask back; [`lender::preparation`]:
//!   which slabs to make ahead.
//! - [`donor`]: starting, stopping, draining.
//! - [`listen`], `server`, [`connections`]: from a socket to a session. [`handshake_rates`]: how often;
//!   `door`: where those wait that come too often.
//! - `conversation`: the control thread of one borrower; `session`: the session as all threads see it.
//! - `donor_state`: what threads share; `shell`: from the Lender's outputs to what is done.
//! - `housekeeper`: what happens in the background.
//! - [`slab_memory`]: the memory itself. [`host_memory`]: what the machine has, and cgroups leave of it.
//! - [`status`]: what a donor tells. [`limits`]: every bound.

#![forbid(unsafe_code)]

pub mod config;
pub mod connections;
mod conversation;
pub mod donor;
mod donor_state;
mod door;
pub mod handshake_rates;
pub mod host_memory;
mod housekeeper;
pub mod lender;
pub mod limits;
pub mod listen;
mod server;
mod session;
mod shell;
pub mod slab_memory;
pub mod status;

pub use config::{DonorConfig, DonorError, ListenAddress};
pub use donor::Donor;
pub use status::DonorStatus;
