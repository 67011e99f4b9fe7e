//! The Network Block Device protocol: a device of the kernel's driver, and a server for ordinary clients.
//!
//! - [`device`]: a device of the kernel's driver; [`identity`]: which one is meant, and whose it is.
//! - [`server`], [`listener`]: ordinary clients that come and go; [`handshake`]: what is agreed with each.
//! - [`protocol`]: bytes of requests and answers, without I/O.
//! - [`channel`]: one I/O thread's end of a connection, the kernel's or an ordinary client's.
//! - [`leftovers`]: devices that a killed process left, and their removal.

pub mod channel;
pub mod device;
pub mod handshake;
pub mod identity;
pub mod leftovers;
pub mod listener;
pub mod protocol;
pub mod server;
