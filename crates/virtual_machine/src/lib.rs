//! Virtual machines with stock Debian kernels, for tests and for a developer's shell. Never shipped.
//!
//! The product pages a whole machine through kernels that we did not build; this crate proves that on any development
//! machine. A guest has the host's file system, read-only below a layer in its memory, so that programs built on the
//! host run unchanged; it boots in some seconds, also without hardware virtualisation.
//!
//! ```no_run
//! use std::time::Duration;
//! use spillway_virtual_machine::{Disk, Kernel, VirtualMachine};
//!
//! let builder = VirtualMachine::builder().kernel(Kernel::Debian612).memory_mib(512);
//! let builder = builder.modules(&["zram"]).disk(Disk::files(256));
//! let machine = builder.start()?;
//! let said = machine.run("uname -r; df /disk", Duration::from_secs(60))?;
//! assert_eq!(said.status, 0);
//! machine.end()?;
//! # Ok::<(), spillway_virtual_machine::Failure>(())
//! ```
//!
//! - [`kernel`], [`package`], [`module_tree`], [`initramfs`], [`image`]: what boots, made once and kept under
//!   `target/`.
//! - [`builder`], [`command_line`], [`acceleration`], [`disk`], [`directory`]: one machine and how QEMU is started
//!   for it.
//! - [`machine`], [`control`], [`console`]: a running machine, commands in it, and what its kernel complained about.
//! - [`script_guest`]: a guest that is nothing but one script, for QEMU under something that is tested.
//! - [`attempts`]: once more where the emulator failed.
//! - [`turn`]: machines boot one test at a time, because emulation takes all processors.
//! - [`tools`], [`failure`]: what the host must have, and everything that can go wrong.

#![forbid(unsafe_code)]

pub mod acceleration;
pub mod attempts;
pub mod builder;
pub mod command_line;
pub mod console;
pub mod control;
pub mod directory;
pub mod disk;
pub mod failure;
pub mod image;
pub mod initramfs;
pub mod kernel;
pub mod limits;
pub mod machine;
pub mod module_tree;
pub mod package;
pub mod script_guest;
pub mod tools;
pub mod turn;

pub use attempts::emulated;
pub use builder::Builder;
pub use control::Said;
pub use disk::Disk;
pub use failure::Failure;
pub use kernel::Kernel;
pub use machine::VirtualMachine;
pub use script_guest::ScriptGuest;
