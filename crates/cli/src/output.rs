//! Results on standard output, and what is told on standard error. A reader that went away (a closed pipe) is no
//! failure.

use std::fmt;
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

/// Tells people something on standard error, as `eprint!` does, but for this: what cannot be told ends nothing.
pub(crate) fn tell(text: fmt::Arguments<'_>) {
    let _ = io::stderr().lock().write_fmt(text);
}

/// As `eprintln!`, by [`tell`].
macro_rules! say {
    ($($text:tt)*) => { $crate::output::tell(format_args!("{}\n", format_args!($($text)*))) };
}
pub(crate) use say;

/// Text for people.
pub(crate) fn text(text: &str) -> Result<(), Failure> {
    let mut output = io::stdout().lock();
    match output.write_all(text.as_bytes()).and_then(|()| output.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(Failure::during("standard output", error)),
        _ => Ok(()),
    }
}
