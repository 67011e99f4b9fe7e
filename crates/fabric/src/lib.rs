//! How pages reach a donor.
//!
//! Shaped like RDMA verbs: memory is registered once ([`buffer_pool`]), requests are posted to a queue pair with a
//! tag, and completions are polled, or waited for on an event ([`queue_pair`]). One queue pair belongs to one I/O
//! thread and one donor, so nothing on the path takes a lock or allocates.
//!
//! In reading order:
//! - [`units`]: the words of the field as types.
//! - [`limits`]: every bound of this crate, with its origin.
//! - [`buffer_pool`]: pre-registered, locked page buffers.
//! - [`queue_pair`]: the transport trait.
//! - [`credit`], [`completion`]: how much may be in flight, and how to wait for it.
//! - [`patience`]: how long a silent donor is waited for; `progress`: whether one still answers.
//! - [`shm`]: slabs of the same host.
//! - [`tcp`]: slabs anywhere, over a stream socket.
//! - [`rdma`]: slabs anywhere, read and written by network adapters.
//! - [`mod@file`]: the local backing file, used like a donor.
//! - [`wire`]: the first bytes of every connection, and the data protocol.
//! - [`plain_text`]: what of other machines' texts may reach a terminal.
//! - [`key`]: the cluster's shared secret. [`complaints`]: what strangers cause in a log.
//! - [`control`]: the encrypted channel on which slabs are leased and recalled.
//! - [`membership`]: which machines belong to the cluster; [`site`]: where each stands.

#![forbid(unsafe_code)]

pub mod address;
pub mod buffer_pool;
pub mod complaints;
pub mod completion;
pub mod control;
pub mod credit;
#[cfg(test)]
mod decoders_tests;
mod endpoint;
pub mod file;
pub mod key;
pub mod key_source;
pub mod limits;
pub mod membership;
pub mod patience;
pub mod plain_text;
mod progress;
pub mod queue_pair;
pub mod rdma;
pub mod shm;
pub mod site;
pub mod tcp;
pub mod units;
pub mod wire;
