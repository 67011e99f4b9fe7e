//! How much memory a program needs: its miss curve, from samples of which memory it uses.
//!
//! - [`miss_curve`]: misses by size of memory, and the sizes at which they cost so much.
//! - [`footprint`]: the curve from how much memory is referenced within windows of time, as page-table scans tell.
//! - [`shards`]: the curve from single references, of which a part is looked at.
//! - [`pace`]: when to scan.
//! - [`stall_controller`]: local memory that follows what a program loses to page-ins.
//!
//! All of them mean a memory that keeps the pages used last (LRU).

pub mod footprint;
pub mod miss_curve;
pub mod pace;
pub mod shards;
pub mod stall_controller;
