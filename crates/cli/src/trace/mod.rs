//! `spillway trace`: page faults of programs.
//!
//! - [`record`]: runs a program and records its faults.
//! - [`loaded`]: a trace from a file, ready for use.
//! - [`replay`]: what policies would have made of it; [`report`]: how that is told.
//! - [`plot`]: pictures of it; [`regions`]: addresses without the gaps between them.

pub(crate) mod loaded;
mod plot;
mod record;
mod regions;
mod replay;
mod report;

use spillway_console::failure::{EXIT_DONE, Failure};
use spillway_report::run::Ending;

use crate::arguments::trace::TraceCommand;

/// Executes the command.
pub(crate) fn execute(command: TraceCommand) -> Result<Ending, Failure> {
    match command {
        TraceCommand::Record(arguments) => return record::execute(*arguments),
        TraceCommand::Replay(arguments) => replay::execute(&arguments)?,
        TraceCommand::Plot(arguments) => plot::execute(&arguments)?,
    }
    Ok(Ending::Exited(EXIT_DONE))
}
