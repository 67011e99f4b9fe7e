//! Side-by-side comparisons of Spillway with its peers. Drives the `spillway` binary as a user would, and the programs
//! of `crates/workloads`.
//!
//! In the order of use:
//! - [`statistics`], [`result`], [`table`], [`cpu_table`], [`plot`], [`machine`], [`summary`]: from samples to
//!   what people read.
//!
//! - [`harness`]: other programs and kernel resources, always put back.
//! - [`studies`]: what is compared with what; [`runner`] runs them and writes their results;
//!   [`schedule`] says how long that still takes.
//! - [`demo`]: what `make demo` shows.
//!
//! [`limits`] serves all of them.

#![forbid(unsafe_code)]

pub mod cpu_table;
pub mod demo;
pub mod harness;
pub mod limits;
pub mod machine;
pub mod plot;
pub mod result;
pub mod runner;
pub mod schedule;
pub mod statistics;
pub mod studies;
pub mod summary;
pub mod table;
