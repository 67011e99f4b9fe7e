//! Block devices in user space: the kernel's ublk driver (Linux `Documentation/block/ublk.rst`, `linux/ublk_cmd.h`).
//!
//! - [`abi`]: numbers and layouts that kernel and program share, as bytes.
//! - [`control`]: `/dev/ublk-control`: adding, starting, recovering, stopping and deleting devices, each with a
//!   deadline.
//! - [`queue`]: `/dev/ublkcN`: one hardware queue's requests and answers, over a ring of its own.

pub mod abi;
pub mod control;
pub mod queue;
