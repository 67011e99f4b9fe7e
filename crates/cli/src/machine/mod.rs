//! What the command line asks of the machine it runs on, read from `/proc` and friends.
//!
//! - [`memory`]: how much there is.
//! - [`process`]: which processes are alive, safely against reused process ids.
//! - [`held_setting`]: settings of the kernel that are held at a value and put back. [`reserve`]: free pages that the
//!   kernel keeps back while the machine swaps to us; [`swap_read_ahead`]: pages that it reads ahead from swap.
//! - [`swap_list`]: which swap areas are on.
//! - [`lock`]: locks between processes of one user.
//! - [`filesystem`]: what a path lies on. [`group`]: the number of a group of users.
//! - [`executable`]: whether the pager's library can be loaded into a program.
//! - [`system`]: where such facts are read from.
//! - [`waiting`]: for what no process tells of.

pub(crate) mod executable;
pub(crate) mod filesystem;
pub(crate) mod group;
pub(crate) mod held_setting;
pub(crate) mod lock;
pub(crate) mod memory;
pub(crate) mod process;
pub(crate) mod reserve;
pub(crate) mod swap_list;
pub(crate) mod swap_read_ahead;
pub(crate) mod system;
pub(crate) mod waiting;
