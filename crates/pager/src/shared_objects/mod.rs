//! Memory that several mappings share: when a page of such an object may leave, and what must come back before
//! a mapping may be used that the pager does not serve (docs/decisions/pager-shared-memory.md).
//!
//! Nothing calls this yet: shared memory stays local. The decisions are here, with the tests that find a schedule in
//! which a program reads a zero in place of a page.
//!
//! A hole of an object reads as zeroes through a mapping that no userfaultfd serves, and through every descriptor.
//! So an object has pages away only while it is *eligible*: each of its mappings is registered, and no descriptor,
//! device or process outside of the run reaches it. Whatever ends that is asked for first, waits, and is let go on
//! when the object is whole:
//!
//! ```text
//! eligible --- a way to reach it that is not registered is asked for ---> returning --- whole ---> local, for good
//! ```
//!
//! A page leaves in this order; until it is punched, a write, a new mapping or a dropped page table entry ends it:
//!
//! ```text
//! here -> protecting -> copying -> punching -> away -> coming -> here
//! ```

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

#[cfg(test)]
mod model_tests;
mod object;
mod page;

pub use self::object::{Change, Reach, SharedObject, Standing, Step, Ticket};
pub use self::page::{Fault, ObjectPage};
