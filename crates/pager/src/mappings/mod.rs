//! The mappings of a program, and what changes them.
//!
//! - [`maps`]: which memory may be paged, by `/proc/PID/maps`.
//! - [`staying_kinds`]: which memory stays local, by kind; [`staying_tally`]: how much, of all programs.
//! - [`events`]: changes that were told, until their order is known; [`late_event`]: how long a late one is waited for.

pub mod events;
pub mod late_event;
pub mod maps;
pub mod staying_kinds;
pub mod staying_tally;
