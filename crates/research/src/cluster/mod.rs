//! Experiments with memory of whole clusters, which the simulator runs with the decisions of the product.
//!
//! - [`balance`]: memory of containers on many machines, as Infiniswap measured it. - [`slab_sizes`]: the same by the
//!   size of a slab. - [`eviction`]: how often busy slabs are spared.

pub mod balance;
pub mod eviction;
pub mod slab_sizes;
