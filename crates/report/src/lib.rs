//! What processes of Spillway report of themselves: one type for the process that writes a report and for each reader
//! (`status`, `top`, the metrics, the page, the benchmarks).
//!
//! - [`mod@format`]: the version of the form, and reading.
//! - [`kind`]: which kinds of things there are, and the report of any of them.
//! - [`device`], [`run`], [`donor`], [`cluster`]: the four reports; [`prefetch`] is a part of two.
//! - [`status`]: the list of them that `spillway status --json` writes.
//! - `test_support`: examples of them for tests, behind the feature `test-support`.
//!
//! Figures that a lower crate counts are reported as its own type (`spillway_volume::status`, `spillway_donor::status`,
//! `spillway_pager::statistics`).
//!
//! Invariants: `tests/snapshots` has the JSON of each report, and names, nesting and number formats stay as they are
//! there. A field that comes later has a default, so that the report of an older process can be read.

#![forbid(unsafe_code)]

pub mod cluster;
pub mod device;
pub mod donor;
pub mod format;
pub mod kind;
pub mod prefetch;
pub mod run;
pub mod status;
#[cfg(feature = "test-support")]
pub mod test_support;
