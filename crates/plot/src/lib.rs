//! Plots as SVG, small enough to be read and compared as text. The command line and the benches draw with it.
//!
//! - [`svg`]: elements and escaping.
//! - [`axis`]: scales and round ticks.
//! - [`cloud`]: any number of points as marks of a bounded number.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod axis;
pub mod cloud;
pub mod svg;
