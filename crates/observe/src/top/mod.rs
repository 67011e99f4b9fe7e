//! `spillway top`: what happens on this machine, live.
//!
//! - [`arguments`]: its options.
//! - `counts`: what came between two looks; `rows`: what the tables show; `model`: from looks to a view.
//! - `controls`: what keys do; `words` and `draw`: the picture.
//! - `terminal`: keys and screen. Only it, and the loops below, wait and read.
//!
//! `--once` prints one picture as text, `--json` one view a line: both after two looks, because a rate needs two.

pub mod arguments;
mod controls;
pub(crate) mod counts;
mod draw;
pub(crate) mod model;
mod rows;
mod terminal;
mod words;

use std::io::Write;
use std::time::{Duration, Instant};

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use serde::Serialize;
use spillway_console::failure::Failure;
use spillway_control::registry::Registry;
use spillway_machine::interruption::Interruption;

use self::arguments::TopArguments;
use self::draw::Caption;
use self::model::{Choices, Model, View};
use crate::limits;
use crate::observation::Observation;

/// Columns of `--once`, where the terminal does not say.
const COLUMNS_DEFAULT: u16 = 80;

/// A line of `--json`.
#[derive(Debug, Serialize)]
struct Line {
    /// Since the start of `top`, by a clock that never jumps.
    seconds: f64,
    #[serde(flatten)]
    view: View,
}

/// Shows what the command line asks for.
pub fn execute(arguments: &TopArguments) -> Result<(), Failure> {
    let registry = Registry::open().map_err(Failure::failed)?;
    let interval = Duration::from_secs_f64(arguments.interval.seconds);
    let machine = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let caption = Caption { machine, interval_seconds: arguments.interval.seconds };
    if !arguments.once && !arguments.json {
        return terminal::live(registry, interval, &caption);
    }
    let interruption = Interruption::watch().map_err(|error| Failure::during("watching for signals", error))?;
    let (start, mut model) = (Instant::now(), Model::default());
    look(&registry, start, &mut model)?;
    loop {
        wait(interval, &interruption)?;
        look(&registry, start, &mut model)?;
        let view = model.view(&Choices::default());
        let is_read =
            if arguments.json { print(&json_line(start.elapsed(), view)?)? } else { print(&picture(&view, &caption))? };
        if arguments.once || !is_read {
            return Ok(());
        }
    }
}

fn look(registry: &Registry, start: Instant, model: &mut Model) -> Result<(), Failure> {
    let observation = Observation::gather(registry, None)?;
    model.observe(start.elapsed(), &observation);
    Ok(())
}

/// Waits, unless a signal ends the command.
fn wait(interval: Duration, interruption: &Interruption) -> Result<(), Failure> {
    let end = Instant::now() + interval;
    loop {
        interruption.check()?;
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        std::thread::sleep(left.min(limits::TOP_TURN));
    }
}

fn json_line(at: Duration, view: View) -> Result<String, Failure> {
    let mut line = serde_json::to_string(&Line { seconds: at.as_secs_f64(), view }).map_err(Failure::failed)?;
    line.push('\n');
    Ok(line)
}

/// Everything, as text.
fn picture(view: &View, caption: &Caption) -> String {
    let columns =
        ratatui::crossterm::terminal::size().map_or(COLUMNS_DEFAULT, |(columns, _)| columns.max(COLUMNS_DEFAULT));
    let area = Rect::new(0, 0, columns, draw::rows_of_all(view));
    let mut buffer = Buffer::empty(area);
    draw::everything(view, caption, area, &mut buffer);
    draw::text(&buffer)
}

/// Prints, and says whether there is still a reader.
fn print(text: &str) -> Result<bool, Failure> {
    let mut output = std::io::stdout().lock();
    match output.write_all(text.as_bytes()).and_then(|()| output.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Failure::during("standard output", error)),
    }
}

#[cfg(test)]
mod draw_tests;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observation::examples;

    #[test]
    fn a_line_of_json_has_what_the_screen_shows() {
        let mut model = Model::default();
        for second in 0..3 {
            model.observe(Duration::from_secs(second), &examples::observation(100 * (second + 1)));
        }
        let line = json_line(Duration::from_millis(1500), model.view(&Choices::default())).unwrap();
        assert_eq!(line.matches('\n').count(), 1);
        let line: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!((line["seconds"].as_f64(), line["total"]["pages_in"].as_f64()), (Some(1.5), Some(200.0)));
        assert_eq!(line["programs"][0]["flow"]["bytes_in"].as_f64(), Some(409_600.0));
        for part in ["memory", "donors", "lenders", "degraded"] {
            assert!(!line[part].is_null(), "{part}");
        }
        assert!(line["history"].is_null(), "a reader of lines has it");
    }
}
