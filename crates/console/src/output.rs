//! Results on standard output, and what is told on standard error. A reader that went away (a closed pipe) is no
//! failure.

use std::borrow::Cow;
use std::fmt;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use clap::Args;
use serde::Serialize;
use spillway_fabric::plain_text::plain;

use crate::failure::Failure;

/// How results are printed.
#[derive(Clone, Debug, Default, Args)]
pub struct OutputArguments {
    /// Print JSON on standard output
    #[arg(long)]
    pub json: bool,
}

/// One JSON document.
pub fn json(value: &impl Serialize) -> Result<(), Failure> {
    let mut line = serde_json::to_string_pretty(value).map_err(Failure::failed)?;
    line.push('\n');
    write(&line)
}

/// One JSON document on a line of its own, for readers that wait for it.
pub fn json_line(value: &impl Serialize) -> Result<(), Failure> {
    let mut line = serde_json::to_string(value).map_err(Failure::failed)?;
    line.push('\n');
    write(&line)
}

/// Tells people something on standard error, as `eprint!` does, but for this: what cannot be told ends nothing, and a
/// terminal obeys nothing of it.
pub fn tell(text: fmt::Arguments<'_>) {
    let _ = io::stderr().lock().write_all(shown(&text.to_string()).as_bytes());
}

/// As `eprintln!`, by [`output::tell`](crate::output::tell).
#[macro_export]
macro_rules! say {
    ($($text:tt)*) => { $crate::output::tell(format_args!("{}\n", format_args!($($text)*))) };
}

/// Text for people: lines and tabulators, and nothing else that a terminal obeys.
pub fn text(text: &str) -> Result<(), Failure> {
    write(&shown(text))
}

/// `text` as a terminal may have it.
pub fn shown(text: &str) -> String {
    text.split_inclusive(['\n', '\t'])
        .flat_map(|part| {
            let end = part.trim_end_matches(['\n', '\t']).len();
            [plain(&part[..end]), Cow::Borrowed(&part[end..])]
        })
        .collect()
}

/// Whether this process has printed a result.
static HAS_RESULT: AtomicBool = AtomicBool::new(false);

/// A failure as JSON for a program that asked for it, unless a result was printed: it has one document.
pub fn json_of_failure(value: &impl Serialize) {
    if !HAS_RESULT.load(Ordering::Relaxed) {
        // Where standard output is closed, standard error has the text.
        let _ = json(value);
    }
}

fn write(text: &str) -> Result<(), Failure> {
    HAS_RESULT.store(true, Ordering::Relaxed);
    let mut output = io::stdout().lock();
    match output.write_all(text.as_bytes()).and_then(|()| output.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(Failure::during("standard output", error)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_and_columns_stay_and_what_a_terminal_obeys_does_not() {
        assert_eq!(shown("a\tb\n\nc"), "a\tb\n\nc");
        assert_eq!(shown("a\u{1b}[2J\nb\r\u{202e}c\n"), "a\u{fffd}[2J\nb\u{fffd}\u{fffd}c\n");
    }
}
