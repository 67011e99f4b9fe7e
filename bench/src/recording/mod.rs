//! Traces of any program: what valgrind's example tool `lackey` prints of its touches, as page-level traces of ours.
//!
//! - [`mod@line`]: one line of the tool's log, read.
//! - [`anonymous`]: which addresses are private anonymous memory, from the program's own system calls.
//! - [`converter`]: lines in, a [`crate::touches::TouchLog`] out: only other pages than those touched just before are
//!   kept.
//! - [`valgrind`]: runs a program under the tool and reads its log while it comes. The text (15 bytes for each
//!   instruction and each touch, tens of GB) is never stored.
//! - [`programs`]: the programs of the study `recorded`.
//!
//! # What is recorded
//! Loads and stores of the program, in their order over all its threads, to memory that the pager would page: what it
//! mapped private and anonymous, and its heap (`brk`). Buffers of `read`, `write` and their like count as touched. A
//! tick is a touch of any memory.
//!
//! # What is left out
//! - Code and other mapped files, which the pager leaves to the kernel; and the first thread's stack and a program's
//!   own static data, which it does page, because the tool does not tell where they are: a few pages, nearly always
//!   among those touched just before.
//! - Buffers that the kernel finds by structures in memory (`readv`, `sendmsg`), and child processes.
//! - That memory was given back (`munmap`, `MADV_DONTNEED`): a trace has no such event. A page that is mapped again
//!   at the same address counts as the same page, and one that `mremap` moved as a new one. So refaults are some more
//!   than a pager's, for each policy and for the optimal order.
//! - Time: one thread runs at a time, and the tool decides which.

pub mod anonymous;
pub mod converter;
pub mod line;
pub mod programs;
pub mod valgrind;
