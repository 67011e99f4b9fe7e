//! A device of the kernel's ublk driver, the shortest way into the kernel.
//!
//! - [`device`]: how it is made, started, recovered and stopped; [`identity`]: which one is meant, and whose it is.
//! - [`channel`]: one I/O thread's end of it.
//! - [`leftovers`]: devices that a killed process left, and their removal.
//! - [`bad_kernels`]: kernels whose driver harms the machine.

pub mod bad_kernels;
pub mod channel;
pub mod device;
pub mod identity;
pub mod leftovers;
