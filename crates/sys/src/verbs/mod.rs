//! RDMA devices through `libibverbs.so.1`: one-sided reads and writes between registered memory here and at a peer.
//!
//! A thin binding, made for what Spillway asks: reliable connections, READ and WRITE with one piece of memory each,
//! completions by polling or by an event. The library is loaded at run time (`library`); its structures are written
//! down once (`layout`), asserted at compile time and compared with the C header by a test.
//!
//! - [`device`]: which devices there are, by their addresses; an open device.
//! - [`ip_over_infiniband`]: which InfiniBand port has an IP address.
//! - [`region`]: memory that a device may use.
//! - [`connection`]: a queue pair with its completion queue.
//!
//! Objects keep what they stand on: a connection and a region keep their protection domain, and that keeps its device.
//! Memory that a device reads or writes is pinned by the kernel until it is deregistered, so that no order of drops
//! lets a device write to memory that has another owner by then.

pub mod connection;
pub mod device;
pub mod ip_over_infiniband;
mod layout;
mod library;
pub mod region;

pub use connection::{Connection, Ended, OneSided, Route, Timing};
pub use device::{Device, GidKind, PortAddress, ProtectionDomain, VerbsError, addresses};
pub use region::{Access, Region, Registrable};
