//! Decisions of paging that need no I/O, no clock and no thread; so they run on recorded traces as in a pager.
//!
//! - [`replacement`]: which page leaves local memory ([`replacement::sampled`] is the pager's).
//! - [`prefetch`]: which pages come along with the one that a program waits for.
//! - [`trace`]: recorded accesses, by which both are chosen and compared.
//! - [`replay`]: recorded accesses in front of a memory that the policies manage.
//! - [`sizing`]: how much memory a program needs.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod limits;
pub mod prefetch;
pub mod replacement;
pub mod replay;
pub mod sizing;
pub mod trace;
