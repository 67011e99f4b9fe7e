//! What was compared with the product, and how: never shipped.
//!
//! - [`replacement`], [`prefetch`]: policies that no run can have, and all of them by name.
//! - [`patterns`]: accesses by rule. - [`optimal`]: the fewest faults that any order of eviction allows.
//! - [`cluster`]: experiments with memory of whole simulated clusters.
//! - [`replay`]: one study of recorded traces and patterns, with what is compared as its parameter.
//! - [`studies`]: experiments of papers, other pagers, and choices made once; run as the benchmarks are.

#![forbid(unsafe_code)]

pub mod cluster;
pub mod optimal;
pub mod patterns;
pub mod prefetch;
pub mod replacement;
pub mod replay;
pub mod studies;
