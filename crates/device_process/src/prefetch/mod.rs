//! Prefetching for a swap device of the whole machine: `swap on --prefetch`.
//!
//! - [`choice`]: what can be asked for; [`plan`]: what the user asked for.
//! - `keeping`: the keeper's part, which sets the kernel's read-ahead aside.
//! - [`process`]: the process that prefetches; `subjects`: for which processes, and how much at a time.
//!
//! It has a process of its own, a child of the device's keeper. Asking the kernel for a page may wait for that page,
//! and so for the device: the keeper and the process that serves it must never do that. The process is also what the
//! kernel may end when memory is short, and what it needs comes from no reserve.

pub mod choice;
pub(crate) mod keeping;
pub mod plan;
pub mod process;
mod subjects;
