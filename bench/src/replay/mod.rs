//! The traces that the studies replay (`spillway_policy::replay`).
//!
//! - [`traces`]: the workloads' own, and [`patterns`] by rule.

pub mod patterns;
pub mod traces;
