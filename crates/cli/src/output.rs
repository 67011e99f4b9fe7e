//! Results on standard output. A reader that went away (a closed pipe) is no failure.

use std::io::{self, Write};

use serde::Serialize;

use crate::failure::Failure;

/// One JSON document.
pub(crate) fn json(value: &impl Serialize) -> Result<(), Failure> {
    let mut line = serde_json::to_string_pretty(value).map_err(Failure::failed)?;
    line.push('\n');
    text(&line)
}

/// One JSON document on a line of its own, for readers that wait for it.
pub(crate) fn json_line(value: &impl Serialize) -> Result<(), Failure> {
    let mut line = serde_json::to_string(value).map_err(Failure::failed)?;
    line.push('\n');
    text(&line)
}

/// Text for people.
pub(crate) fn text(text: &str) -> Result<(), Failure> {
    let mut output = io::stdout().lock();
    match output.write_all(text.as_bytes()).and_then(|()| output.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(Failure::during("standard output", error)),
        _ => Ok(()),
    }
}
