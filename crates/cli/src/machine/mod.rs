//! What the command line asks of the machine it runs on, read from `/proc` and friends.
//!
//! - [`memory`]: how much there is.
//! - [`process`]: who is alive, safely against reused process ids.
//! - [`swap_list`]: which swap areas are on.
//! - [`filesystem`]: what a path lies on.

pub(crate) mod filesystem;
pub(crate) mod memory;
pub(crate) mod process;
pub(crate) mod swap_list;
