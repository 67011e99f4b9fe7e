//! Memory that several programs share and that leaves: objects of `MAP_SHARED | MAP_ANONYMOUS`
//! (docs/decisions/pager-shared-memory.md).
//!
//! An object is an address space of its own: its addresses are offsets in the object, its page table says where each
//! page is, once for all that map it, and the budget and the policy count it once. Faults of programs are answered
//! there ([`views::SharedObjects::find`]). What is done to a page of the object is done through the userfaultfds of its
//! *views*, the mappings that programs have of it.
//!
//! - [`views`]: which programs map what, as the kernel's messages tell.
//! - [`memory`]: a page comes in through one view, and the others are told.
//! - [`evictor`]: a page leaves by write protection in all views, a copy, and a hole in the object.
//!
//! Locks: a program's table, then an object's table, then the views. The evictor has the tables of all programs of an
//! object while pages leave, so no message of these is read meanwhile.

pub mod evictor;
pub mod memory;
#[cfg(test)]
mod model_tests;
#[cfg(test)]
mod tests;
pub mod views;
