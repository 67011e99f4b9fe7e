//! What commands tell, and how they end: results on standard output, words for people and the log on standard error.
//!
//! Nothing here knows what a command does.
//!
//! - [`failure`]: how a command ends when it does not succeed.
//! - [`output`]: results, and what is told with [`say!`]; [`output_file`]: a file that a user wants to be written.
//! - [`progress`]: how far something is; [`progress_line`] shows it.
//! - [`log_writer`]: the log, for the journal too; `state_changes`: what it says of a device.
//! - `limits`: every bound.

#![forbid(unsafe_code)]

pub mod failure;
mod limits;
pub mod log_writer;
pub mod output;
pub mod output_file;
pub mod progress;
pub mod progress_line;
mod state_changes;
