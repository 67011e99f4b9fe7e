//! What happens away from the path of a page: connections to donors, mapping, moving, recovery.

pub mod placement;
pub mod refill;
